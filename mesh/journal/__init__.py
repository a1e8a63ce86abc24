"""Durable storage: the port and its stores."""

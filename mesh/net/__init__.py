"""Helpers for network code that servers and clients share."""

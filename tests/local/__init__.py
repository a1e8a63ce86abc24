"""Keepers and nodes of one process."""

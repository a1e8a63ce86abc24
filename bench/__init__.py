"""Measurements of a whole mesh on this machine: ``python -m bench``."""

"""Tests that need long to say something: `make chaos` runs them, and `make test` does not, or in part."""

import os

import pytest

IS_LONG = "CHAOS_KILLS" in os.environ
"""Whether this is a run of `make chaos`."""

takes_long = pytest.mark.skipif(not IS_LONG, reason="takes long: make chaos runs it")


def as_often_as(examples: int) -> int:
    """How many examples of a property are tried: as many in a long run, a third of them in any other."""
    return examples if IS_LONG else examples // 3

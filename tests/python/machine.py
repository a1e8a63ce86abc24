"""Whether this machine can run Python code in a sandbox."""

import asyncio
from functools import cache

import pytest

from mesh.python.proven import why_refused


@cache
def why_not() -> str:
    """Why not; empty if it can."""
    return asyncio.run(why_refused())


def skip_without_python() -> None:
    if reason := why_not():
        pytest.skip(reason)

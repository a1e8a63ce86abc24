"""A root in a folder, and the server's calls without MCP. Tests run with both ways of opening a path."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.servers.filesystem import opening
from tests.servers.filesystem.world import World


@pytest.fixture(params=["openat2", "O_NOFOLLOW"])
def how(request: pytest.FixtureRequest) -> opening.Open:
    return opening.by_kernel if request.param == "openat2" else opening.by_component


@pytest.fixture
def world(tmp_path: Path, how: opening.Open) -> Iterator[World]:
    os.umask(0o022)
    world = World(tmp_path, how)
    yield world
    world.close()

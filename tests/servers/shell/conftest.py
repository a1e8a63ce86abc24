"""A root in a folder, and a sandbox around commands. Tests run with each that holds here."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.sandbox.launching import Launcher
from mesh.sandbox.sandbox import Kind
from tests.servers.shell.world import World, nothing_left, skip_without


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(params=["bubblewrap", "landlock"])
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    skip_without(kind)
    return kind


@pytest.fixture
def world(tmp_path: Path, kind: Kind, launcher: Launcher) -> Iterator[World]:
    world = World(tmp_path, kind, launcher)
    with nothing_left(launcher):
        yield world
    world.close()

"""One mesh for all tests that leave it as it was: to start one takes ten seconds and more."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster.model import Model
from tests.cluster.world import World
from tests.worlds.process import WITH_DASHBOARD, running


@pytest.fixture(scope="session")
def model() -> Iterator[Model]:
    with Model() as model:
        yield model


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, which outlives processes that still write there."""
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def world(model: Model) -> Iterator[World]:
    """The shared mesh, with its ledger."""
    with tempfile.TemporaryDirectory(prefix="mesh-test-", ignore_cleanup_errors=True) as name:
        world = World(Path(name), model, WITH_DASHBOARD)
        with running(world.mesh):
            yield world


@pytest.fixture
def api(world: World) -> Iterator[httpx.Client]:
    """A plain client of the shared mesh."""
    with httpx.Client(base_url=world.mesh.url, timeout=30) as client:
        yield client

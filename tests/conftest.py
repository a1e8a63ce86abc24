"""What holds for every test."""

import functools
import os
import signal
import tomllib
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING

import httpcore2
import pytest
from httpx._config import DEFAULT_TIMEOUT_CONFIG
from httpx._transports import default as _transport
from hypothesis import settings

from mesh.policy import shell
from tests.worlds.long import as_often_as

if TYPE_CHECKING:
    from tests.worlds.postgres import PostgresServer

# Tests share a machine with others: how long one example takes says nothing about the code. Whoever works on
# the mesh tries other examples each time; what CI says of a change depends on the change alone.
settings.register_profile(
    "mesh", deadline=None, max_examples=as_often_as(100), derandomize="CI" in os.environ
)
settings.load_profile("mesh")

# Nor does how long a request takes, or the parser of a shell command, unless a test says so.
for _step in ("connect", "read", "write", "pool"):
    setattr(DEFAULT_TIMEOUT_CONFIG, _step, 60.0)
shell.TIMEOUT_S = 60.0

# A client of a test talks to this machine. Each would read the certificates of all authorities, which takes a
# tenth of a second: for most tests more than what they are about.
_transport.create_ssl_context = functools.cache(_transport.create_ssl_context)
httpcore2.default_ssl_context = functools.cache(httpcore2.default_ssl_context)

# A shell that runs pytest beside something else (`make test`) lets it ignore SIGINT, and all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests leave nothing in the home of whoever runs them. Their meshes have no dashboard, if they do not
    say so: it costs a fifth of the CPU of a start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MESH_DASHBOARD", "0")
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def postgres_server() -> "Iterator[PostgresServer]":
    """A PostgreSQL that the tests of this process share: they leave it running. It is started when the first
    of them needs it."""
    from tests.worlds.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture
def database_url(postgres_server: "PostgresServer") -> Iterator[str]:
    """A database of its own for a test, empty."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


def pytest_sessionstart() -> None:
    """Entry points are written when the mesh is installed, and not when its source changes."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    declared = {(g, n, v) for g, points in project["entry-points"].items() for n, v in points.items()}
    installed = {(point.group, point.name, point.value) for point in distribution("mesh").entry_points}
    if declared - installed:
        pytest.exit("the installation is older than pyproject.toml: run make setup", returncode=4)

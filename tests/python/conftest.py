"""One launcher for all tests, and interpreters in each sandbox that holds here."""

from collections.abc import Iterator

import pytest

from mesh.python.interpreter import Interpreter
from mesh.sandbox.launching import Launcher
from mesh.sandbox.sandbox import Kind
from tests.python.world import KINDS, first_kind, interpreter_in, skip_without


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    kind: Kind = request.param
    skip_without(kind)
    return kind


@pytest.fixture
def confined(kind: Kind, launcher: Launcher) -> Iterator[Interpreter]:
    """In each sandbox that holds here."""
    with interpreter_in(kind, launcher) as interpreter:
        yield interpreter


@pytest.fixture
def one_kind() -> Kind:
    """The first sandbox that holds here, for what does not depend on it."""
    kind = first_kind()
    skip_without(kind)
    return kind


@pytest.fixture
def interpreter(one_kind: Kind, launcher: Launcher) -> Iterator[Interpreter]:
    """In the first sandbox that holds here."""
    with interpreter_in(one_kind, launcher) as interpreter:
        yield interpreter

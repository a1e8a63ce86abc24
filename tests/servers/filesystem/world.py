"""What the tests of `mcp-filesystem` need: a root, calls, and trees as they are on the disk."""

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mesh.servers.filesystem.bounds import TimeLimit
from mesh.servers.filesystem.dispatch import Server
from mesh.servers.filesystem.globs import Patterns
from mesh.servers.filesystem.opening import Open
from mesh.servers.filesystem.root import Root
from tests.worlds.long import takes_long


def long(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that takes long: `make chaos` runs it."""
    for mark in (
        pytest.mark.chaos,
        pytest.mark.timeout(3600),
        takes_long,
    ):
        test = mark(test)
    return test


class Failed(Exception):
    """A call was answered with an error."""


class World:
    """``ws`` is the root; ``outside`` is beside it."""

    def __init__(self, folder: Path, how: Open, *, page_size: int = 1 << 20, **more: Any) -> None:
        self.ws = folder / "ws"
        self.outside = folder / "outside"
        for each in (self.ws, self.outside):
            each.mkdir(exist_ok=True)
        (self.outside / "secret").write_text("the secret\n")
        self.how = how
        self._opened: list[int] = []
        self._page_size = page_size
        self.root = self.made("ws", self.ws, **more)
        self.server = Server([self.root], page_size)

    def made(self, name: str, folder: Path, *, hide: tuple[str, ...] = (), freeze: tuple[str, ...] = (),
             tools: frozenset[str] | None = None) -> Root:  # fmt: skip
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._opened.append(descriptor)
        return Root(name, descriptor, self.how, tools, Patterns(hide), Patterns(freeze))

    def ruled(self, **more: Any) -> None:
        """Gives the root other rules."""
        self.root = self.made("ws", self.ws, **more)
        self.server = Server([self.root], self._page_size)

    def paged(self, size: int) -> None:
        self.server = Server(self.server.roots, size)

    def second(self, folder: Path, **more: Any) -> None:
        """Adds a root, named ``other``."""
        folder.mkdir(exist_ok=True)
        self.server = Server([*self.server.roots, self.made("other", folder, **more)], self._page_size)

    def call(self, tool: str, stop: TimeLimit | None = None, **arguments: Any) -> Any:
        """The result of a call. Raises `Failed` with the text of an error."""
        answer = self.server.answer(tool, arguments, stop or TimeLimit(100))
        if answer.failed:
            raise Failed(answer.value)
        return answer.value

    def error(self, tool: str, **arguments: Any) -> str:
        answer = self.server.answer(tool, arguments, TimeLimit(100))
        assert answer.failed, answer.value
        return str(answer.value)

    def close(self) -> None:
        for descriptor in self._opened:
            os.close(descriptor)


def tree(folder: Path) -> dict[str, str]:
    """Everything below a folder, with a word for what it is."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(folder))
        if stat.S_ISLNK(mode):
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "folder" if stat.S_ISDIR(mode) else sha(path.read_bytes())
    return found


def sha(content: bytes | str) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()

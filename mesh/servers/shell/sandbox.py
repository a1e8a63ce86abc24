"""The sandboxes: each turns a command into an order that confines it."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mesh.servers.shell import bubblewrap, process_limit, restriction
from mesh.servers.shell.box import Box
from mesh.servers.shell.landlock import restriction_of
from mesh.servers.shell.order import CommandLimits, Order
from mesh.servers.shell.variables import inherited

Kind: TypeAlias = Literal["bubblewrap", "landlock", "none"]
KINDS: tuple[Kind, ...] = ("bubblewrap", "landlock")
"""Those that `auto` tries, in this order."""
_INSTALL = {
    "bubblewrap": "install bubblewrap (apt-get install bubblewrap, dnf install bubblewrap)",
    "landlock": "it needs Linux 6.12 or later with Landlock, on x86-64 or ARM64",
}


def missing(kind: Kind) -> str:
    """What has to be installed for it; an empty text if it is there."""
    if kind != "none" and not process_limit.is_possible():
        return (
            "nothing bounds the number of processes here: run the server as another user than root, or bound "
            "those of its container (docker run --pids-limit)"
        )
    is_there = bubblewrap.program() is not None if kind == "bubblewrap" else restriction.is_possible()
    return "" if kind == "none" or is_there else _INSTALL[kind]


@dataclass(frozen=True)
class Sandbox:
    """``env`` is the environment of the server, of which a command inherits what is in the short list, and
    the names in ``passed``."""

    kind: Kind
    limits: CommandLimits
    env: Mapping[str, str]
    passed: Sequence[str] = ()

    @contextmanager
    def order(self, box: Box, argv: tuple[str, ...], cwd: str, timeout_s: float) -> Iterator[Order]:
        """The order for a command. What it needs is there for the length of the ``with`` statement."""
        if self.kind == "bubblewrap":
            bwrap = bubblewrap.program()
            assert bwrap is not None, "it was found when the server started"
            wrapped = bubblewrap.wrapped(box, bwrap, cwd, argv)
            env = self._env(box, "/tmp")
            wrappers, filter_at = bubblewrap.WRAPPERS, bubblewrap.filter_at()
            yield Order(wrapped, env, "/", timeout_s, self.limits, wrappers=wrappers, filter_at=filter_at)
            return
        with _temporary() as temporary:
            box = replace(box, temporary=temporary)
            confined = restriction_of(box, _listed) if self.kind == "landlock" else None
            yield Order(argv, self._env(box, temporary), cwd, timeout_s, self.limits, confined)

    def _env(self, box: Box, temporary: str) -> dict[str, str]:
        allowed = ["/"] if self.kind == "none" else box.readable
        return inherited(self.env, self.passed, allowed, temporary)


def _listed(folder: str) -> list[str]:
    try:
        return [f"{folder.rstrip('/')}/{name}" for name in os.listdir(folder)]  # noqa: PTH208 - as text
    except OSError:  # it is gone
        return []


@contextmanager
def _temporary() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="mcp-shell-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

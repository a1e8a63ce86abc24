"""The sandboxes: each turns a command into an order that confines it."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mesh.sandbox import bubblewrap, process_limit, restriction
from mesh.sandbox.box import Box
from mesh.sandbox.landlock import restriction_of
from mesh.sandbox.order import CommandLimits, Order

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
            "nothing bounds the number of processes here: run it as another user than root, or bound those "
            "of its container (docker run --pids-limit)"
        )
    is_there = bubblewrap.program() is not None if kind == "bubblewrap" else restriction.is_possible()
    return "" if kind == "none" or is_there else _INSTALL[kind]


Variables: TypeAlias = Callable[[Iterable[str], str], dict[str, str]]
"""Takes the folders that a command may read, and its own for temporary files."""


@dataclass(frozen=True)
class Sandbox:
    """``variables`` gives the environment of a command."""

    kind: Kind
    limits: CommandLimits
    variables: Variables
    has_fixed_addresses: bool = False

    @contextmanager
    def order(self, box: Box, argv: tuple[str, ...], cwd: str, timeout_s: float) -> Iterator[Order]:
        """The order for a command. What it needs is there for the length of the ``with`` statement. An empty
        ``cwd`` is the folder for temporary files."""
        if self.kind == "bubblewrap":
            bwrap = bubblewrap.program()
            assert bwrap is not None, "it was found when the server started"
            wrapped = bubblewrap.wrapped(box, bwrap, cwd or bubblewrap.TEMPORARY, argv)
            order = Order(wrapped, self._env(box, bubblewrap.TEMPORARY), "/", timeout_s, self.limits)
            wrappers, filter_at = bubblewrap.WRAPPERS, bubblewrap.filter_at()
            order = replace(order, wrappers=wrappers, filter_at=filter_at)
            yield self._completed(order, box)
            return
        with nullcontext(box.temporary) if box.temporary else _temporary() as temporary:
            inside = replace(box, temporary=temporary)
            confined = restriction_of(inside, _listed) if self.kind == "landlock" else None
            env = self._env(inside, temporary)
            order = Order(argv, env, cwd or temporary, timeout_s, self.limits, confined)
            yield self._completed(order, box)

    def _completed(self, order: Order, box: Box) -> Order:
        return replace(order, temporary=box.temporary, has_fixed_addresses=self.has_fixed_addresses)

    def _env(self, box: Box, temporary: str) -> dict[str, str]:
        allowed = ["/"] if self.kind == "none" else box.readable
        return self.variables(allowed, temporary)


def _listed(folder: str) -> list[str]:
    try:
        return [f"{folder.rstrip('/')}/{name}" for name in os.listdir(folder)]  # noqa: PTH208 - as text
    except OSError:  # it is gone
        return []


@contextmanager
def _temporary() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="mesh-sandbox-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)

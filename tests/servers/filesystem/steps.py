"""Something happens at one step of a change. A step is a call into the operating system.

The process that makes the change counts its steps, and does before one of them what it is told, so that no
step is left out, and no timing matters.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mesh.processes import kernel
from mesh.servers.filesystem import (
    changing,
    copying,
    opening,
    removing,
    staging,
    target,
    transferring,
)
from mesh.servers.filesystem import tree as tree_module
from mesh.servers.filesystem.bounds import TimeLimit
from tests.servers.filesystem.world import World

NEVER = 10**6
MOST = 400
_COUNTED = (changing, copying, opening, removing, staging, target, transferring, tree_module)
"""The modules that call the operating system."""


class _Counting:
    """A module whose functions are counted."""

    left = 0
    action: Callable[[], None]

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if not callable(found) or isinstance(found, type) or name in ("fsencode", "fsdecode", "strerror"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            if _Counting.left == 0:
                _Counting.action()
            _Counting.left -= 1
            return found(*args, **kwargs)

        return call


def changed(
    folder: Path, tool: str, arguments: dict[str, Any], step: int, action: Callable[[], None]
) -> tuple[int, bool]:
    """Makes a change in a process of its own, with ``action`` before a step. Returns the exit code, which is
    1 if the change was refused, and whether it came to that step."""
    reached, told = os.pipe()
    child = os.fork()
    if not child:
        _change(folder, tool, arguments, step, lambda: (os.write(told, b"x"), action()))
    os.close(told)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reached, "rb") as file:
        return os.waitstatus_to_exitcode(status), file.read() != b""


def _change(
    folder: Path, tool: str, arguments: dict[str, Any], step: int, action: Callable[[], object]
) -> None:
    """Never returns: a child of a test that went on would be a second test."""
    code = 99
    try:
        world = World(folder, opening.by_kernel)
        _Counting.left, _Counting.action = step, staticmethod(action)  # type: ignore[assignment]
        for module in _COUNTED:
            module.os = _Counting(os)  # type: ignore[attr-defined]
            if hasattr(module, "kernel"):
                module.kernel = _Counting(kernel)
        code = int(world.server.answer(tool, arguments, TimeLimit(100)).failed)
    finally:
        os._exit(code)

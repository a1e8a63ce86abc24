"""Calls of the tool ``hold``: each shows by a file that it runs, and ends when the file is taken away."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

from mesh.mcp.port import ToolOutcome, ToolSession

WITHIN_S = 60.0
_LOOK_EACH_S = 0.01


async def hold(folder: str, n: int) -> None:
    """What the tool does, in the worlds without a process of their own."""
    file = Path(folder, str(n))
    _begin(file)
    while _is_there(file):  # noqa: ASYNC110 - files have no event
        await asyncio.sleep(_LOOK_EACH_S)


async def until_heard(folder: str, n: int) -> None:
    """What the tool ``steps`` does after each step: it goes on when somebody has heard of it."""
    while not _is_there(Path(folder, str(n))):  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EACH_S)


def held(session: ToolSession, folder: Path, n: int) -> "asyncio.Task[ToolOutcome]":
    """A call that ends when it is released."""
    return asyncio.create_task(session.call("hold", {"folder": str(folder), "n": n}, WITHIN_S))


def release(folder: Path, calls: Iterable[int]) -> None:
    for n in calls:
        (folder / str(n)).unlink()


async def begun(folder: Path, number: int) -> dict[int, str]:
    """The held calls that run, once there are so many, and the process of each."""
    async with asyncio.timeout(WITHIN_S):
        while len(found := _running_in(folder)) < number:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EACH_S)
    return found


async def until_it_has(session: ToolSession, calls: int) -> None:
    """Waits until so many calls run or wait in a session."""
    async with asyncio.timeout(WITHIN_S):
        while await session.backlog() != calls:  # noqa: ASYNC110 - it is only asked
            await asyncio.sleep(_LOOK_EACH_S)


def _begin(file: Path) -> None:
    file.touch(exist_ok=False)


def _is_there(file: Path) -> bool:
    return file.exists()


def _running_in(folder: Path) -> dict[int, str]:
    return {int(file.name): file.read_text() for file in folder.iterdir() if not file.suffix}

"""The parallel node runs all its children at the same time, on the machines on which they are.

A child that waits for a person does not hold up its siblings: they run to their end. While one of them runs,
this node listens for decisions, and a child whose approval is decided goes on at once. When no child can go
on, the node pauses, with all approvals that its children wait for.
"""

import asyncio
from typing import Any, Literal

from mesh.core.errors import Unavailable
from mesh.core.events import NodeCompleted
from mesh.core.places import StepKey
from mesh.tree.children import Children
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps

Ended = NodeCompleted | PassEnd


class Parallel:
    """`Work` of a parallel node. Its response is those of its children, in their order, one a line."""

    def __init__(self, children: Children, on_error: Literal["fail", "continue"]) -> None:
        self._children = children
        self._on_error = on_error

    async def __call__(self, steps: Steps) -> PassEnd:
        ended = await _Branches(self._children, steps).run()
        for status in ("stopped", "paused"):
            for outcome in ended:
                if isinstance(outcome, PassEnd) and outcome.status == status:
                    return outcome
        return self._joined([done for done in ended if isinstance(done, NodeCompleted)])

    def _joined(self, done: list[NodeCompleted]) -> PassEnd:
        failed = [child for child in done if child.status == "failed"]
        if failed and (self._on_error == "fail" or len(failed) == len(done)):
            return PassEnd("failed", "\n".join(child.text for child in failed))
        good = [child for child in done if child.status == "completed"]
        written = {key: text for child in good for key, text in child.state.items()}
        text = "\n".join(child.text for child in good)
        return PassEnd("completed", text, written, any(child.exits for child in good))


class _Branches:
    """The branches of one pass."""

    def __init__(self, children: Children, steps: Steps) -> None:
        self._children = children
        self._steps = steps
        self._running: dict[asyncio.Task[Ended], int] = {}
        self._ended: dict[int, Ended] = {}
        self._news: asyncio.Task[list[StepKey]] | None = None

    async def run(self) -> list[Ended]:
        """Runs all branches; returns how each of them ended, in the order of the children. Raises
        `Superseded` at once. Raises `Unavailable` only after all branches have ended, as their outcomes must
        not be lost."""
        for index in range(len(self._children)):
            self._start(index)
        lost: Unavailable | None = None
        try:
            while self._running:
                lost = await self._next() or lost
        finally:
            await _cancelled(*self._running, *([self._news] if self._news else ()))
        if lost:
            raise lost
        return [self._ended[index] for index in range(len(self._children))]

    def _start(self, index: int) -> None:
        state = self._steps.turn.state
        self._running[asyncio.create_task(self._children.run(self._steps, index, state))] = index

    async def _next(self) -> Unavailable | None:
        """Waits until a branch has ended or a paused one can go on. Returns what went wrong with a branch."""
        if self._news is None and self._paused():
            self._news = asyncio.create_task(self._steps.wait_for_decisions())
        tasks: set[asyncio.Task[Any]] = {*self._running, *([self._news] if self._news else ())}
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        lost: Unavailable | None = None
        for task in done:
            try:
                self._take(task)
            except Unavailable as problem:
                lost = problem
        return lost

    def _take(self, task: asyncio.Task[Any]) -> None:
        if task is self._news:
            self._news = None
            self._go_on(task.result())
        else:
            index = self._running.pop(task)
            self._ended[index] = task.result()

    def _paused(self) -> list[int]:
        return [i for i, end in self._ended.items() if isinstance(end, PassEnd) and end.status == "paused"]

    def _go_on(self, decided: list[StepKey]) -> None:
        for index in self._paused():
            place = self._steps.turn.place.child(index)
            if any(place.contains(step.place) for step in decided):
                del self._ended[index]
                self._start(index)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

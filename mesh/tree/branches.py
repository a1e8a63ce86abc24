"""Branches of one node that run at the same time: the children of a parallel node, or calls of one answer.

A branch that waits for a person does not hold up the others: they run to their end. While one of them runs,
the node listens for decisions, and a branch whose approval is decided goes on at once. When no branch can go
on, all of them have ended, some of them paused.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from mesh.core.errors import Unavailable
from mesh.core.places import StepKey
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps

T = TypeVar("T")


class Branch(msgspec.Struct, frozen=True):
    """One branch. ``run`` begins or continues it; ``holds`` says whether a decision about a step lets it go
    on."""

    run: Callable[[], Coroutine[Any, Any, Any]]
    holds: Callable[[StepKey], bool]


class Branches(Generic[T]):
    """The branches of one pass. Each of them ends with a `PassEnd`, or with an outcome of type T.

    ``ends_all``: whether with this outcome of a branch the others are to be cancelled. ``at_most`` of them
    run at the same time.
    """

    def __init__(
        self,
        steps: Steps,
        branches: Sequence[Branch],
        *,
        ends_all: Callable[[T], bool] = lambda _: False,
        at_most: int | None = None,
    ) -> None:
        self._steps = steps
        self._branches = branches
        self._ends_all = ends_all
        # A branch that pauses gives up its slot: what waits for a person holds up nobody.
        self._slots = asyncio.Semaphore(at_most) if at_most and at_most < len(branches) else None
        self._running: dict[asyncio.Task[T | PassEnd], int] = {}
        self._ended: dict[int, T | PassEnd] = {}
        self._news: asyncio.Task[list[StepKey]] | None = None
        self._missed: set[int] = set()  # branches that ran when a decision about them came

    async def run(self) -> dict[int, T | PassEnd]:
        """Runs all branches; returns how each of them ended, by its position. Raises `Superseded` at once.
        Raises `Unavailable` only after all branches have ended, as their outcomes must not be lost."""
        for index in range(len(self._branches)):
            self._start(index)
        lost: Unavailable | None = None
        try:
            while self._running and not self._is_over:
                lost = await self._next() or lost
        finally:
            await _cancelled(*self._running, *([self._news] if self._news else ()))
        if lost and not self._is_over:
            raise lost
        return self._ended

    @property
    def _is_over(self) -> bool:
        return any(not isinstance(end, PassEnd) and self._ends_all(end) for end in self._ended.values())

    def _start(self, index: int) -> None:
        self._running[asyncio.create_task(self._in_a_slot(index))] = index

    async def _in_a_slot(self, index: int) -> T | PassEnd:
        run: Callable[[], Coroutine[Any, Any, T | PassEnd]] = self._branches[index].run
        if self._slots is None:
            return await run()
        async with self._slots:
            return await run()

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
            # It may have paused before it could hear of the decision.
            if index in self._missed and index in self._paused():
                self._go_on_with(index)

    def _paused(self) -> list[int]:
        return [i for i, end in self._ended.items() if isinstance(end, PassEnd) and end.status == "paused"]

    def _go_on(self, decided: list[StepKey]) -> None:
        paused, running = self._paused(), set(self._running.values())
        for index, branch in enumerate(self._branches):
            if any(branch.holds(step) for step in decided):
                if index in paused:
                    self._go_on_with(index)
                elif index in running:
                    self._missed.add(index)

    def _go_on_with(self, index: int) -> None:
        self._missed.discard(index)
        del self._ended[index]
        self._start(index)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

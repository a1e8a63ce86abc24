"""Branches of one node that run at the same time: the children of a parallel node, calls of one answer, the
items of a map, or a model's work and the agents that it has started.

A branch that waits for a person does not hold up the others: they run to their end. While one of them runs,
decisions come down to the node, and a branch whose approval is decided goes on at once. When no branch can go
on, all of them have ended, some of them paused.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from mesh.core.errors import Unavailable
from mesh.core.places import Place, StepKey
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Branch(msgspec.Struct, frozen=True):
    """One branch. ``run`` begins or continues it. A decision about a step lets it go on if the step lies at
    the ``of`` place or below it, or is a limit that holds there; or if ``of`` says so."""

    run: Callable[[], Coroutine[Any, Any, Any]]
    of: Place | Callable[[StepKey], bool]

    def goes_on(self, decided: StepKey) -> bool:
        """Whether a decision about a step lets it go on."""
        return decided.lets_go_on(self.of) if isinstance(self.of, Place) else self.of(decided)


class Branches(Generic[K, T]):
    """The branches of one pass, by key; more can be added while they run. Each of them ends with a
    `PassEnd`, or with an outcome of type T.

    ``is_over``: whether with this end of a branch the others are to be cancelled. ``at_most`` of them run at
    the same time.
    """

    def __init__(
        self,
        steps: Steps,
        *,
        is_over: Callable[[K, T | PassEnd], bool] = lambda *_: False,
        at_most: int | None = None,
    ) -> None:
        self._steps = steps
        self._branches: dict[K, Branch] = {}
        self._at: dict[str, K] = {}  # those of a place, by place
        self._elsewhere: list[K] = []  # the others
        self._ends_all = is_over
        # A branch that pauses gives up its slot: what waits for a person holds up nobody.
        self._slots = asyncio.Semaphore(at_most) if at_most else None
        self._tasks: dict[asyncio.Task[T | PassEnd], K] = {}
        self._running: dict[K, asyncio.Task[T | PassEnd]] = {}
        self._ended: dict[K, T | PassEnd] = {}
        self._paused: set[K] = set()
        self._missed: set[K] = set()  # branches that ran when a decision about them came
        self._leaving: set[asyncio.Task[T | PassEnd]] = set()  # branches that were ended from outside
        self._is_over = False
        self._heard = steps.decided  # the decisions that these branches know of
        self._news: asyncio.Task[Sequence[StepKey]] | None = None
        # What `run` waits for: a branch that ended, decisions, or a branch that was added.
        self._changed = asyncio.Event()
        self._finished: list[asyncio.Task[T | PassEnd]] = []

    def add(self, key: K, branch: Branch) -> None:
        """Adds a branch and starts it. There must be none with this key."""
        self._branches[key] = branch
        if isinstance(branch.of, Place):
            self._at[branch.of.text] = key
        else:
            self._elsewhere.append(key)
        self._start(key)

    def go_on(self, key: K) -> None:
        """Runs a branch again that has paused, for another reason than a decision; one that is about to
        pause, too."""
        if key in self._paused:
            self._start(key)
        elif key in self._running:
            self._missed.add(key)

    async def end(self, key: K, outcome: T) -> None:
        """Ends a branch with this outcome, whether it runs or has paused; returns when it runs no more."""
        task = self.end_soon(key, outcome)
        if task is not None:  # not cancelled once more: that would break off what must not be
            await asyncio.gather(task, return_exceptions=True)

    def end_soon(self, key: K, outcome: T) -> asyncio.Task[T | PassEnd] | None:
        """As `end`, but returns at once. What still runs of the branch, such as a tool that must not be
        broken off, is waited for at the end of `run`."""
        task = self._running.pop(key, None)
        self._paused.discard(key)
        self._ended[key] = outcome
        if task is not None:
            del self._tasks[task]
            task.cancel()
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        self._changed.set()
        return task

    async def run(self) -> dict[K, T | PassEnd]:
        """Runs all branches; returns how each of them ended, in the order in which they were added. Raises
        `Superseded` at once. Raises `Unavailable` only after all branches have ended, as their outcomes
        must not be lost."""
        lost: Unavailable | None = None
        try:
            with self._steps.when_told(self._may_go_on):
                while self._running and not self._is_over:
                    lost = await self._next() or lost
        finally:
            await _cancelled(*self._running.values(), *([self._news] if self._news else ()))
            await asyncio.gather(*self._leaving, return_exceptions=True)
        if lost and not self._is_over:
            raise lost
        return {key: self._ended[key] for key in self._branches if key in self._ended}

    def _start(self, key: K) -> None:
        self._paused.discard(key)
        self._missed.discard(key)
        self._ended.pop(key, None)
        task = asyncio.create_task(self._in_a_slot(key))
        self._tasks[task] = key
        self._running[key] = task
        task.add_done_callback(self._note)
        self._changed.set()

    async def _in_a_slot(self, key: K) -> T | PassEnd:
        run: Callable[[], Coroutine[Any, Any, T | PassEnd]] = self._branches[key].run
        if self._slots is None:
            return await run()
        async with self._slots:
            return await run()

    def _note(self, task: asyncio.Task[T | PassEnd]) -> None:
        self._finished.append(task)
        self._changed.set()

    async def _next(self) -> Unavailable | None:
        """Waits until a branch has ended or a paused one can go on. Returns what went wrong with a branch."""
        if self._news is None and self._paused:
            self._news = asyncio.create_task(self._steps.next_decisions(self._heard))
            self._news.add_done_callback(lambda _: self._changed.set())
        await self._changed.wait()
        self._changed.clear()
        lost: Unavailable | None = None
        finished, self._finished = self._finished, []
        for task in finished:
            try:
                self._take(task)
            except Unavailable as problem:
                lost = problem
        if self._news is not None and self._news.done():
            decided, self._news = self._news.result(), None
            self._heard += len(decided)
            self._go_on(decided)
        return lost

    def _take(self, task: asyncio.Task[T | PassEnd]) -> None:
        key = self._tasks.pop(task, None)
        if key is None:  # the branch was ended from outside
            return
        del self._running[key]
        end = self._ended[key] = task.result()
        self._is_over = self._is_over or self._ends_all(key, end)
        if isinstance(end, PassEnd) and end.status == "paused":
            self._paused.add(key)
            # It may have paused before it could hear of the decision.
            if key in self._missed:
                self._start(key)

    def _may_go_on(self, step: StepKey | None) -> None:
        if step is not None:
            self._go_on([step])
            return
        for key in self._branches:
            self.go_on(key)

    def _go_on(self, decided: Sequence[StepKey]) -> None:
        for key in {key: None for step in decided for key in self._about(step)}:
            self.go_on(key)

    def _about(self, step: StepKey) -> Iterator[K]:
        """The branches that a decision about a step lets go on: of very many, few are looked at."""
        if step.is_limit:  # it may hold for all of them
            yield from (key for key, branch in self._branches.items() if branch.goes_on(step))
            return
        around = (at.first.text for at in step.place.scopes)  # a branch is at the first place of its agent
        yield from (self._at[at] for at in around if at in self._at)
        yield from (key for key in self._elsewhere if self._branches[key].goes_on(step))


async def run_together(
    steps: Steps,
    branches: Sequence[Branch],
    *,
    ends_all: Callable[[T], bool] = lambda _: False,
    at_most: int | None = None,
) -> list[T | PassEnd]:
    """Runs branches that are known from the beginning; returns how each of them ended, in their order;
    those that were cancelled are missing. ``ends_all``: whether with this outcome of a branch the others
    are to be cancelled. Raises as `Branches.run`."""
    together = Branches[int, T](
        steps,
        is_over=lambda _, end: not isinstance(end, PassEnd) and ends_all(end),
        at_most=at_most if at_most and at_most < len(branches) else None,
    )
    for index, branch in enumerate(branches):
        together.add(index, branch)
    return list((await together.run()).values())


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

"""A node of the tree. `Node.run` takes one pass to its end, whatever happens on the way.

    llm                    asks a model and runs the tools that it calls
    a2a                    asks another agent
    tool                   makes one tool call
    sequential             runs its children one after the other
    parallel               runs its children at the same time
    loop                   runs its children again and again
    map                    runs its child for each item of a list, all at the same time

A node knows its children by a port (`RunNode`), behind which are actors on other machines or objects in this
process. It runs any number of turns at the same time and keeps no state of them.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Protocol
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from mesh.core.budget import scope_of, tightest
from mesh.core.errors import JournalError, LlmError, NodeLost, Unavailable, ValidatorError
from mesh.core.events import NodeStarted, moment
from mesh.core.news import HAS_MODEL
from mesh.core.open_steps import outcomes_of
from mesh.tree.pass_clock import OutOfTime
from mesh.tree.steps import PassesAtOnce, Steps, Superseded, changes_in
from mesh.tree.turn import Activation, Hearing, News, PassInput, PassOutput, PassStatus, Recorder

STOPPED_BY_PERSON = "Operation cancelled by user."
"""The answer of a turn that a person cancelled, or whose operation a person rejected without a reason."""


class PassEnd(msgspec.Struct, frozen=True):
    """How a pass ended: see `PassOutput`. ``state`` is what was written, without the node's
    ``output_key``."""

    status: PassStatus
    text: str = ""
    state: Mapping[str, str] = {}
    exits: bool = False
    ends_agent: bool = False
    forced: str = ""
    output: Any = UNSET
    invalid: str = ""
    gave_up: bool = False


PAUSED = PassEnd("paused")
REJECTED = PassEnd("stopped", STOPPED_BY_PERSON)


class Work(Protocol):
    """The part in which the types of nodes differ."""

    async def __call__(self, steps: Steps) -> PassEnd:
        """Raises `Superseded`, `Unavailable`, `LlmError`, `ValidatorError`; may be cancelled at any await."""
        ...


_BEGINS_WITHIN_S = 20.0
"""How long news waits for the run that it is for: calls may overtake each other."""


class Activations:
    """The runs of one node that go on, for the news that comes for them."""

    def __init__(self) -> None:
        self._steps: dict[Activation, Steps] = {}
        self._awaited: dict[Activation, list[asyncio.Event]] = {}

    @contextmanager
    def entered(self, steps: Steps) -> Iterator[None]:
        """While it is open, this is the run of its activation."""
        activation = steps.turn.activation
        self._steps[activation] = steps
        for begun in self._awaited.pop(activation, ()):
            begun.set()
        try:
            yield
        finally:
            if self._steps.get(activation) is steps:
                del self._steps[activation]

    async def steps_of(self, activation: Activation) -> Steps | None:
        """The run of an activation; waits for its beginning. None: it has not begun in good time."""
        if activation not in self._steps:
            await self._beginning(activation)
        return self._steps.get(activation)

    async def _beginning(self, activation: Activation) -> None:
        begun = asyncio.Event()
        self._awaited.setdefault(activation, []).append(begun)
        try:
            async with asyncio.timeout(_BEGINS_WITHIN_S):
                await begun.wait()
        except TimeoutError:
            pass  # whoever asks finds no run
        finally:
            if not begun.is_set():
                self._awaited[activation].remove(begun)
                if not self._awaited[activation]:
                    del self._awaited[activation]


NO_LIMITS: Mapping[str, float] = MappingProxyType({})


class Node:
    """A node that runs. ``kind`` is its type in the config. ``timeout_s`` bounds one pass; the time in which
    a person is waited for is between passes. ``limits`` are those of its budget, by key: the keeper holds
    them, over all passes."""

    def __init__(
        self,
        name: str,
        kind: str,
        work: Work,
        *,
        output_key: str | None = None,
        timeout_s: float | None = None,
        limits: Mapping[str, float] = NO_LIMITS,
    ) -> None:
        self._name = name
        self._kind = kind
        self._work = work
        self._output_key = output_key
        self._timeout_s = timeout_s
        self._limits = limits
        self._at_work = Activations()
        self._passes: WeakValueDictionary[str, PassesAtOnce] = WeakValueDictionary()  # by conversation

    async def run(self, turn: PassInput, recorder: Recorder) -> PassOutput:
        """Runs one pass. Known steps are not run again."""
        # For each conversation, as each has a keeper that may not answer.
        passes = self._passes.setdefault(turn.conversation_id, PassesAtOnce())
        has_model = self._kind == HAS_MODEL
        steps = Steps(self._within_budget(self._bounded(turn)), recorder, passes, has_model=has_model)
        with passes.entered():
            return await self._run(steps)

    async def hear(self, activation: Activation, news: News, is_durable: bool) -> Hearing:
        """See `RunNode.hear`."""
        steps = await self._at_work.steps_of(activation)
        if steps is None:
            raise Unavailable(f"{self._name} does not run at {activation.at}")
        try:
            return await steps.hear(news, is_durable=is_durable)
        except (Superseded, JournalError) as problem:
            raise Unavailable(f"{self._name} could not take news: {problem}") from problem

    async def _run(self, steps: Steps) -> PassOutput:
        turn = steps.turn
        steps.show(turn.place.step, NodeStarted(name=self._name, kind=self._kind))
        try:
            with self._at_work.entered(steps):
                outcome = await self._outcome(steps)
                if steps.is_held and outcome.status == "completed":
                    outcome = PAUSED  # all that it did is known: once it may go on, it ends by that
        except Superseded:
            await steps.close()
            return PassOutput("superseded")
        except asyncio.CancelledError:
            steps.abandon()
            raise
        events, sent = await steps.close()
        return PassOutput(
            outcome.status,
            outcome.text,
            events,
            outcomes_of(sent) if outcome.status == "paused" else (),
            self._written(outcome),
            outcome.exits,
            outcome.ends_agent,
            outcome.forced,
            steps.llm_calls_made,
            outcome.output,
            outcome.invalid,
            outcome.gave_up,
            steps.runs_below if outcome.status == "paused" else {},
            steps.heard,
        )

    def _bounded(self, turn: PassInput) -> PassInput:
        """The pass with the deadline of this node, if that is earlier than the one around it."""
        timeout_s = changes_in(turn.known, turn.place).get("timeout_s", self._timeout_s)
        if timeout_s is None:
            return turn
        latest = moment(timedelta(seconds=timeout_s))
        return msgspec.structs.replace(turn, deadline=min(turn.deadline or latest, latest))

    def _within_budget(self, turn: PassInput) -> PassInput:
        """The pass with the budget of this node among its scopes. The request's limits are those of the root,
        which gives them to no other node. What a person has changed takes the place of both."""
        limits = tightest(self._limits, turn.budget) if turn.budget else self._limits
        limits = {**limits, **changes_in(turn.known, turn.place).get("budget", {})}
        if not limits:
            return turn
        return msgspec.structs.replace(turn, budget={}, scopes=[*turn.scopes, scope_of(turn.at, limits)])

    async def _outcome(self, steps: Steps) -> PassEnd:
        try:
            limit_s = steps.changes.get("timeout_s", self._timeout_s)
            return await steps.clock.run(self._work(steps), limit_s, is_held=steps.is_held)
        except OutOfTime as late:
            return PassEnd("failed", f"{self._name} took longer than {late.limit_s:g} s (timeout_s)")
        except Unavailable as problem:
            return PassEnd("interrupted", str(problem), gave_up=isinstance(problem, NodeLost))
        except (LlmError, ValidatorError) as problem:
            return PassEnd("failed", f"{self._name}: {problem}")

    def _written(self, outcome: PassEnd) -> Mapping[str, str]:
        # A node that only ended its loop has said nothing: the state keeps its former value.
        says_nothing = outcome.exits and not outcome.text
        if self._output_key is None or outcome.status != "completed" or says_nothing:
            return outcome.state
        return {**outcome.state, self._output_key: outcome.text}

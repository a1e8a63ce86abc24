"""The agents that a node has started, which work beside it.

    `AgentsAtWork.run`     runs the work of the node (the lead) and its agents together
      ├ lead               the node's own work: it starts agents, waits for them, ends them
      └ agents             each a pass below the place that names its start

An agent is a place below the call that started it (`StepKey.started_agent`). That it starts is journaled
before it runs (`AgentStarted`), and how it ended is the `NodeCompleted` at its place. So a later pass knows
by the journal which agents there are, and runs those again that have not ended, when it comes to the call
that started them; those that a person has added (`Place.added_agent`), when it begins.

Invariant: no agent outlives its node. When the lead ends, what still runs is deleted, in the same append.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from mesh.core.errors import LlmError, Unavailable, ValidatorError
from mesh.core.events import AgentStarted, AgentTold, NodeCompleted, NodeStatus, StartedBy, moment
from mesh.core.ids import agent_id
from mesh.core.messages import Message, accepted_mark
from mesh.core.places import FORK, Place, StepKey
from mesh.runtime.failpoints import failpoint
from mesh.tree.agent_call import CallableAgent
from mesh.tree.branches import Branch, Branches
from mesh.tree.calls import CallSettings, bounded
from mesh.tree.children import not_ended
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import PassInput, RunNode

LEAD = ""
"""The key of the node's own work among the branches; those of agents are their places."""
ENDED_WITH_NODE = "the agent that started it has ended"
_FORCED = "\n[It had to end here: the limit {} of the budget was reached.]"
_LEAST_TEXT = 200
"""Bytes of an agent's result that are told in any case, however many agents there are."""

ExchangeOf = Callable[[str], Sequence[Message]]
"""Takes what a fork is told, and gives the messages that it begins with."""
SummaryStatus = Literal["completed", "failed", "deleted", "running", "queued", "awaiting_user"]
Until = Literal["all", "any"]


class StartPlan(msgspec.Struct, frozen=True):
    """An agent that is to be started: its name (`FORK`: a fork) and what it is told. ``budget`` as in
    `AgentStarted`."""

    agent: str
    task: str
    title: str = ""
    metadata: Mapping[str, str] = {}
    budget: Mapping[str, float] = {}


class AgentSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one started agent stands, for the model and for code. ``result`` is its answer, what went wrong
    or why it was deleted; empty while it has not ended."""

    handle: str
    agent: str
    status: SummaryStatus
    title: str = ""
    result: str = ""


class Waited(msgspec.Struct, frozen=True):
    """What a wait came to."""

    entries: Sequence[AgentSummary]
    told: tuple[str, ...]
    timed_out: bool = False


class _Ended(msgspec.Struct, frozen=True):
    """The end of a branch: of an agent, or of the lead."""

    end: NodeCompleted | PassEnd


class StartableAgents(msgspec.Struct, frozen=True, kw_only=True):
    """What a node may start: agents of the config, by name, and forks of itself (``fork``; None: it may not).
    ``kind`` is the type of the node itself, ``settings`` are those of its calls."""

    agents: Mapping[str, CallableAgent]
    fork: RunNode | None
    settings: CallSettings
    kind: str = "llm"


class _Wait:
    """What the lead waits for, kept up to date so that a change costs the same however many agents there are.
    ``open`` are the agents that have not ended, ``paused`` those of them that wait for a person."""

    def __init__(
        self, places: Sequence[str], until: Until, ended: Container[str], paused: Container[str]
    ) -> None:
        self.open = {place for place in places if place not in ended}
        self.paused = {place for place in self.open if place in paused}
        self._is_all = until == "all"
        self._most = len(places)

    @property
    def is_over(self) -> bool:
        """Whether all have ended, or one if one is enough."""
        return not self.open or (not self._is_all and len(self.open) < self._most)

    @property
    def is_paused(self) -> bool:
        """Whether none of them can go on before a person decides."""
        return len(self.open) == len(self.paused)

    def ended(self, place: str) -> None:
        self.open.discard(place)
        self.paused.discard(place)

    def pauses(self, place: str) -> None:
        if place in self.open:
            self.paused.add(place)

    def goes_on(self, place: str) -> None:
        self.paused.discard(place)


RefusalOf = Callable[[StartPlan], Awaitable[str]]
"""Says why an agent that a person adds may not start; empty if it may."""


class AgentsAtWork:
    """See the module. One pass of one node."""

    def __init__(self, startable: StartableAgents, steps: Steps, refusal: RefusalOf) -> None:
        self._startable = startable
        self._steps = steps
        self._refusal = refusal
        self._branches = Branches[str, _Ended](steps, is_over=self._ends_all)
        self._started: dict[str, AgentStarted] = {}  # by place, in their order
        self._runs_of: dict[str, int] = {}  # how many of those that a call has started are among them
        self._ends: dict[str, NodeCompleted] = {}
        self._paused: set[str] = set()
        self._told: set[str] = set()
        self._unended: dict[str, None] = {}  # as an ordered set: those of ``_started`` that have not ended
        self._waits: list[_Wait] = []  # what the lead waits for, or has paused for
        self._waiting = 0  # how many wait at this moment
        self._changed = asyncio.Event()
        steps.stop_agent = self._stop
        steps.start_added = self._go_on_added

    # -- the pass

    async def run(self, lead: Callable[[], Coroutine[Any, Any, PassEnd]]) -> PassEnd:
        """Runs the node's own work, and beside it the agents that it starts. Raises `Superseded`,
        `Unavailable`, `LlmError`, `ValidatorError`."""
        self._branches.add(LEAD, Branch(partial(self._lead, lead), self._is_of_lead))
        self._go_on_added()
        try:
            ended = await self._branches.run()
        except (LlmError, ValidatorError, asyncio.CancelledError):
            # The node fails, maybe because its time is over. If it is cancelled from outside, nobody records
            # anything of it any more.
            self._delete_all(ENDED_WITH_NODE)
            raise
        finally:
            self._waits.clear()  # an agent that is stopped from now on makes nobody here go on
        for outcome in ended.values():
            if isinstance(outcome, PassEnd) and outcome.status == "stopped":
                return outcome
        found = ended[LEAD]
        end = found if isinstance(found, PassEnd) else found.end
        assert isinstance(end, PassEnd)
        if end.status != "paused":
            self._delete_all(ENDED_WITH_NODE)
        return end

    async def _lead(self, lead: Callable[[], Coroutine[Any, Any, PassEnd]]) -> _Ended | PassEnd:
        # Only the pause of a branch is a `PassEnd` here: everything else ends the lead, and with it all
        # branches.
        self._waits.clear()
        await self._steps.work()
        end = await lead()
        if end.status == "paused":
            self._steps.rest()  # its agents may go on
        return end if end.status in ("paused", "stopped") else _Ended(end)

    def _ends_all(self, key: str, end: _Ended | PassEnd) -> bool:
        if isinstance(end, PassEnd):
            return end.status == "stopped"
        return key == LEAD

    def _is_of_lead(self, step: StepKey) -> bool:
        """Whether a decision is about the lead: about no agent of its own, or about a limit around it."""
        return step.lets_go_on(self._steps.turn.place) and not self._is_of_an_agent(step.place)

    def _is_of_an_agent(self, place: Place) -> bool:
        own = self._steps.turn.place.text
        if not place.text.startswith(f"{own}."):
            return False
        first = place.text[len(own) + 1 :].partition(".")[0]
        return Place(f"{own}.{first}").first.text in self._started

    # -- starting

    async def start(
        self, call: StepKey, plans: Sequence[StartPlan], by: StartedBy, exchange_of: ExchangeOf
    ) -> str:
        """Starts agents, the next ones of a tool call. Returns when all their starts are journaled, in one
        append; or says why none of them may start. Raises `Superseded`, `Unavailable`."""
        first, turn = len(self._steps.started_in(call)), self._steps.turn
        path = tuple(turn.agent_path or (self._startable.settings.root,))
        starts = []
        for index, plan in enumerate(plans, first):
            place = call.started_agent(plan.agent, index)
            start = AgentStarted(
                name=plan.agent,
                kind=self._kind(plan.agent),
                agent_path=(*path, plan.agent),
                id=agent_id(turn.conversation_id, turn.turn, place),
                title=plan.title,
                task=plan.task,
                metadata=dict(plan.metadata),
                budget=dict(plan.budget),
                by=by,
                changes=self._changes_of_fork if plan.agent == FORK else {},
            )
            starts.append((place, start))
        if refusal := await self._steps.start(starts):
            return refusal
        failpoint("agents.started")
        self.go_on_below(call, exchange_of)
        return ""

    @property
    def _changes_of_fork(self) -> dict[str, Any]:
        """What makes a fork the same as this node, of which a person may have changed it."""
        changes = self._steps.changes
        return {name: changes[name] for name in ("prompt", "model", "tools") if name in changes}

    def go_on_below(self, call: StepKey, exchange_of: ExchangeOf) -> None:
        """Runs the agents that a tool call has started and that have not ended; those that run are left
        alone."""
        started = self._steps.started_in(call)
        before, self._runs_of[call.text] = self._runs_of.get(call.text, 0), len(started)
        for start in started[before:]:
            self._go_on(start, exchange_of)

    def _go_on_added(self) -> None:
        """Runs the agents that people have added, as `go_on_below` does."""
        for start in self._steps.added:
            if start.step not in self._started:
                self._go_on(start)

    def _go_on(self, start: AgentStarted, exchange_of: ExchangeOf = lambda _: ()) -> None:
        self._started[start.step] = start
        end = self._steps.known(start.place.step, NodeCompleted)
        if end is not None:
            self._ends[start.step] = end
            return
        self._unended[start.step] = None
        if stop := self._steps.stop_of(start.place):
            self._deleted(start, stop.end_text)
            return
        exchange = tuple(exchange_of(start.task)) if start.place.is_fork else ()
        run = partial(self._run_agent, start, exchange)
        self._branches.add(start.step, Branch(run, start.place))

    def _kind(self, name: str) -> str:
        return self._startable.kind if name == FORK else self._startable.agents[name].kind

    async def _run_agent(self, start: AgentStarted, exchange: tuple[Message, ...]) -> _Ended | PassEnd:
        self._goes_on(start.step)
        try:
            if start.place.is_added and (refusal := await self._refusal(StartPlan(start.name, start.task))):
                return _Ended(self._end(start, NodeCompleted(name=start.name, status="failed", text=refusal)))
            return await self._ended(start, exchange)
        except Unavailable:
            # Nothing comes of it in this pass, which fails when the others have ended: whoever waits for it
            # must not wait for ever.
            self._pauses(start.step)
            raise

    async def _ended(self, start: AgentStarted, exchange: tuple[Message, ...]) -> _Ended | PassEnd:
        async with self._steps.slot(start.place):
            began = time.monotonic()
            run, below = self._pass_of(start, exchange)
            output = await self._steps.run_below(run, below)
        failpoint("agent.returned")
        if output.status == "deleted":
            return _Ended(self._deleted(start, output.text))
        if output.status not in ("completed", "failed"):
            ended = not_ended(output)
            self._pauses(start.step)
            return ended
        text = output.text + (_FORCED.format(output.forced) if output.forced else "")
        end = NodeCompleted(
            name=start.name,
            status="completed" if output.status == "completed" else "failed",
            text=bounded(text + accepted_mark(output.invalid), self._startable.settings.max_result_bytes),
            forced=output.forced,
            duration_ms=round((time.monotonic() - began) * 1000),
            output=output.output,
            invalid=output.invalid,
        )
        return _Ended(self._end(start, end))

    def _pass_of(self, start: AgentStarted, exchange: tuple[Message, ...]) -> tuple[RunNode, PassInput]:
        """What runs an agent, and its input."""
        steps, turn, settings = self._steps, self._steps.turn, self._startable.settings
        started = {
            "started_at": start.time,
            "agent_path": start.agent_path,
            "may_end_turn": False,
            "budget": start.budget,
        }
        if start.place.is_fork:
            assert self._startable.fork is not None  # checked before it was started
            below = steps.below(start.place, turn.state, turn.iteration, history=True, is_started=True)
            return self._startable.fork, replace(below, exchange=exchange, **started)
        agent = self._startable.agents[start.name]
        state = {**turn.state, "task": start.task}
        below = steps.below(start.place, state, 0, history=agent.reads_history, is_started=True)
        return agent.run, replace(
            below,
            user_message=start.task,
            asks=settings.approvals.said_in(turn),
            at_once=turn.at_once or settings.approvals.at_once,
            **started,
        )

    # -- ending

    def _end(self, start: AgentStarted, end: NodeCompleted) -> NodeCompleted:
        recorded = self._ends[start.step] = self._steps.record(start.place.step, end)
        self._unended.pop(start.step, None)
        self._paused.discard(start.step)
        for wait in self._waits:
            wait.ended(start.step)
            if wait.is_over:
                self._branches.go_on(LEAD)
        self._note_change()
        return recorded

    def _pauses(self, place: str) -> None:
        self._paused.add(place)
        for wait in self._waits:
            wait.pauses(place)
        self._note_change()

    def _goes_on(self, place: str) -> None:
        self._paused.discard(place)
        for wait in self._waits:
            wait.goes_on(place)

    def _note_change(self) -> None:
        """Wakes what waits for a change."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def delete(self, place: str, text: str) -> None:
        """Ends an agent that has not ended; its own agents end with it. The text says why."""
        deleted = self._deleted(self._started[place], text)
        await self._branches.end(place, _Ended(deleted))

    def _stop(self, stop: AgentTold) -> None:
        """Ends an agent that a node above has stopped."""
        first = stop.place.first.text
        if first in self._unended:
            deleted = self._deleted(self._started[first], stop.end_text)
            # Whoever has stopped it does not wait until it runs no more: a tool may take long.
            self._branches.end_soon(first, _Ended(deleted))

    def _delete_all(self, reason: str) -> None:
        for place in [*self._unended]:
            self._deleted(self._started[place], f"Deleted: {reason}")

    def _deleted(self, start: AgentStarted, text: str) -> NodeCompleted:
        status: NodeStatus = "deleted"
        return self._end(start, NodeCompleted(name=start.name, status=status, text=text))

    # -- what the lead asks

    def place_of(self, handle: str) -> str | None:
        """The place of the own agent with this handle; None if there is none."""
        place = f"{self._steps.turn.at}.{handle}"
        return place if place in self._started else None

    def handle(self, place: str) -> str:
        """How the model names the agent at a place."""
        return Place(place).below(self._steps.turn.place)

    @property
    def untold(self) -> list[str]:
        """The places of the agents of whose end the model has not been told."""
        return [place for place in self._started if place not in self._told]

    @property
    def are_running(self) -> bool:
        """Whether an agent has not ended."""
        return bool(self._unended)

    def has_ended(self, place: str) -> bool:
        """Whether an own agent has ended."""
        return place in self._ends

    def end_of(self, place: str) -> NodeCompleted | None:
        """How an own agent has ended; None while it has not."""
        return self._ends.get(place)

    def tell(self, places: Iterable[str]) -> None:
        """Notes that the model knows how these agents ended."""
        self._told.update(places)

    def entries(self, places: Sequence[str]) -> list[AgentSummary]:
        """How these agents stand. Their results have the room of one result together."""
        share = max(_LEAST_TEXT, self._startable.settings.max_result_bytes // max(1, 2 * len(places)))
        return [self._entry(place, share) for place in places]

    def _entry(self, place: str, most: int) -> AgentSummary:
        start, end = self._started[place], self._ends.get(place)
        status: SummaryStatus = "awaiting_user" if place in self._paused else "running"
        if self._steps.is_queued(Place(place)):
            status = "queued"
        return AgentSummary(
            handle=self.handle(place),
            agent=start.name,
            status=status if end is None else end.status,
            title=start.title,
            result="" if end is None else bounded(end.text, most),
        )

    def rest(self) -> None:
        """One of several calls that run at the same time has ended. If another one waits for agents, these
        may need the slot that the first one has taken again; so may those of an agent that is called beside
        it."""
        if self._waiting:
            self._steps.rest()
        else:
            self._steps.leave()

    def _outlasts_pass(self, timeout_s: float) -> bool:
        """Whether the pass is over before a wait: it would fail, waiting for a person."""
        deadline = self._steps.turn.deadline
        return bool(deadline) and moment(timedelta(seconds=timeout_s)) >= deadline

    async def wait(self, places: Sequence[str], until: Until, timeout_s: float | None) -> Waited | PassEnd:
        """Waits until these agents have ended, all of them or one. Pauses if none of them can go on before a
        person decides, unless the wait has a timeout that comes before the end of the pass. Raises
        `Superseded`, `Unavailable`."""
        wait = _Wait(places, until, self._ends, self._paused)
        self._waits.append(wait)
        timed_out = False
        self._steps.rest()
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s):
                while not wait.is_over:
                    may_wait = timeout_s is not None and not self._outlasts_pass(timeout_s)
                    if wait.is_paused and (self._steps.is_held or not may_wait):
                        return PAUSED  # it stays among the waits: when it is over, the lead runs again
                    await self._changed.wait()
        except TimeoutError:
            if self._steps.is_held:  # it begins to wait anew
                return PAUSED
            timed_out = True
        finally:
            self._waiting -= 1
        await self._steps.work()
        self._waits.remove(wait)
        ended = tuple(place for place in places if place in self._ends)
        return Waited(self.entries(places), ended, timed_out)


def as_json(entries: Sequence[AgentSummary], **more: Any) -> str:
    """Entries as the result of a tool."""
    return json.dumps({"agents": msgspec.to_builtins(entries), **more}, ensure_ascii=False)

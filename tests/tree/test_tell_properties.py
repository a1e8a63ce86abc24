"""Whatever is told to whom, and whatever is lost meanwhile: each message is new to one model call."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from mesh.core.budget import Scope
from mesh.core.errors import Unavailable
from mesh.core.events import AgentTold, AnyEvent, Event, LlmCall, NodeCompleted, ToolCall, ToolResult
from mesh.core.history import news_message
from mesh.core.ids import new_id
from mesh.core.messages import Assistant, Message, User
from mesh.core.places import StepKey
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper import event_feeds
from mesh.llm.port import LlmRequest
from mesh.tree import steps
from mesh.tree.local import LocalTree
from mesh.tree.turn import Ack, Activation, PassInput, PassOutput, Restarted, StartReply
from tests.worlds.mesh import Caller, Create, WorldMesh
from tests.worlds.trees import config, llm, sequential

T = TypeVar("T")
LIMIT_S = 30.0
HANDLES = ("one@0-0-0", "two@0-0-1", "one@0-0-0.deep@0-0-0", "team@0-0-2.1.deep@0-0-0")
"""Of agents that the lead has started, and of one that each of them may have."""


@dataclass(frozen=True)
class Case:
    """What the lead tells whom, and how long its agents work. Each entry of ``told`` is an answer of its
    model: the handles of HANDLES that it tells something. ``works`` are the tools that each kind of agent
    calls before it answers."""

    told: tuple[tuple[int, ...], ...]
    works: dict[str, int]


@dataclass(frozen=True)
class Trouble:
    """At which moments a pass is lost while it goes on, a node dies, or everything does; and how long each
    moment takes."""

    losses: frozenset[int] = frozenset()
    deaths: frozenset[int] = frozenset()
    crashes: frozenset[int] = frozenset()
    delays: tuple[int, ...] = (0,)
    sent_at_once: bool = False


def moments(most: int) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(st.integers(1, 60), max_size=most)


CASES = st.builds(
    Case,
    st.lists(st.lists(st.integers(0, 3), max_size=2).map(tuple), min_size=1, max_size=4).map(tuple),
    st.fixed_dictionaries({name: st.integers(0, 3) for name in ("one", "two", "deep", "boss")}),
)
DEEP_ENDS_MEANWHILE = Case(told=((), (0, 2)), works={"one": 0, "two": 0, "deep": 3, "boss": 0})
"""An agent of an agent returns while what it is told is being journaled."""
TROUBLES = st.builds(
    Trouble,
    moments(2),
    moments(2),
    moments(2),
    st.lists(st.integers(0, 4), min_size=1, max_size=5).map(tuple),
    st.booleans(),
)


def scripts(case: Case) -> dict[str, list[list[tuple[str, dict[str, Any]]]]]:
    """The calls of each answer of each model."""

    def spawn(*agents: str) -> list[tuple[str, dict[str, Any]]]:
        return [("spawn", {"agents": [{"agent": agent, "task": "go"} for agent in agents]})]

    look, wait = [("look", dict[str, Any]())], [("wait", dict[str, Any]())]
    texts = itertools.count()
    told = [
        [("tell", {"handle": HANDLES[i], "message": f"message {next(texts)}"}) for i in answer] or look
        for answer in case.told
    ]
    works = {name: [look] * number for name, number in case.works.items()}
    return {
        "main": [spawn("one", "two", "team"), *told, wait],
        "one": [spawn("deep"), *works["one"], wait],
        "two": works["two"],
        "first": [look],
        "boss": [spawn("deep"), *works["boss"], wait],
        "deep": works["deep"],
    }


@dataclass
class Model:
    """Answers by the script of the node that asks, and numbers its answers: so it is known which request
    each of them was for."""

    world: "World"
    script: dict[str, list[list[tuple[str, dict[str, Any]]]]]
    requests: dict[str, list[Message]] = field(default_factory=dict)

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        await self.world.moment()
        name = request.system.partition(":")[0]
        number = sum(isinstance(message, Assistant) for message in request.messages)
        serial = f"#{len(self.requests)}"
        self.requests[serial] = [*request.messages]
        await self.world.moment()
        answers = self.script[name]
        made = tuple(
            ToolCall(f"c{number}.{i}", tool, arguments)
            for i, (tool, arguments) in enumerate(answers[number] if number < len(answers) else ())
        )
        yield LlmCall(model="scripted", text=serial, tool_calls=made)

    async def close(self) -> None:
        return None


class Journal(MemoryJournal):
    """Its appends are moments, before and after they are durable."""

    world: "World"

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        await self.world.moment()
        size = await super().append(shard, epoch, append)
        await self.world.moment()
        return size


class Tree(LocalTree):
    """Its nodes can die, with all that they have called."""

    world: "World"

    async def run(self, turn: PassInput) -> PassOutput:
        return await self.world.endangered(turn, super().run(turn))


class World(WorldMesh):
    """A mesh in which a case happens, in trouble."""

    def __init__(self, case: Case, trouble: Trouble) -> None:
        self.trouble = trouble
        self.model = Model(self, scripts(case))
        journal = Journal()
        journal.world = self
        agents = [
            llm("one", agents=["deep"], spawn={}),
            llm("two"),
            llm("deep"),
            sequential(llm("first"), llm("boss", agents=["deep"], spawn={}), name="team"),
        ]
        main = llm("main", agents=["one", "two", "team"], spawn={})
        super().__init__(self.model, journal, config(main, agents=agents, limits={"max_tool_iterations": 50}))
        self.tree = Tree(self.config, [self.ledger.session()], lambda _: self.model, self)
        self.tree.world = self
        self._delays = itertools.cycle(trouble.delays)
        self._moments = itertools.count(1)
        self._crashing = asyncio.Event()
        self._running: dict[asyncio.Future[bool], PassInput] = {}
        self._lost: set[asyncio.Task[PassOutput]] = set()
        self.id = new_id()

    async def moment(self) -> None:
        number = next(self._moments)
        for _ in range(next(self._delays)):
            await asyncio.sleep(0)
        if number in self.trouble.losses or number in self.trouble.deaths:
            self._end_one(number, dies=number in self.trouble.deaths)
        if number in self.trouble.crashes:
            self._crashing.set()
            await asyncio.wait_for(asyncio.Event().wait(), LIMIT_S)

    def _end_one(self, number: int, *, dies: bool) -> None:
        going = [*self._running]
        if going and not (chosen := going[number % len(going)]).done():
            chosen.set_result(dies)

    async def endangered(self, turn: PassInput, run: Coroutine[Any, Any, PassOutput]) -> PassOutput:
        """A run of a node; or the news that it is gone, which may be wrong."""
        going = asyncio.create_task(run)
        ending: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._running[ending] = turn
        try:
            either: set[asyncio.Future[Any]] = {going, ending}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if going.done():
                return going.result()
            if not ending.result():
                self._lost.add(going)
                raise Unavailable("the connection to the node broke", retry_after_s=0)
            await cancelled(going)
            raise Unavailable("the node died", retry_after_s=0)
        except asyncio.CancelledError:
            await cancelled(going)
            raise
        finally:
            del self._running[ending]

    # As between actors: a caller that dies does not break off what the keeper does for it.

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        return await asyncio.shield(asyncio.create_task(super().append(activation, events)))

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        return await asyncio.shield(asyncio.create_task(super().start(activation, events, scopes, asker)))

    async def restart(self, lost: Activation) -> Restarted:
        return await asyncio.shield(asyncio.create_task(super().restart(lost)))

    async def live(self) -> list[AnyEvent]:
        """The journal when all is done."""
        async with asyncio.timeout(LIMIT_S), self:
            create = Create(self.id, Caller(session_id="s", idempotency_key="k"), "go")
            while (found := await self._attempt(self.ask(create))) is None or found[0] >= 500:
                pass
            assert found[1]["result"]["response"].startswith("#"), found
            for task in self._lost:
                task.cancel()
            await asyncio.gather(*self._lost, return_exceptions=True)
            return list(await self.journal.read(self.id))

    async def _attempt(self, request: Coroutine[Any, Any, T]) -> T | None:
        asking = asyncio.create_task(request)
        crashing = asyncio.create_task(self._crashing.wait())
        await asyncio.wait({asking, crashing}, return_when=asyncio.FIRST_COMPLETED)
        if not self._crashing.is_set():
            crashing.cancel()
            return asking.result()
        self._crashing.clear()
        await self.crash()
        await asyncio.gather(asking, return_exceptions=True)
        return None


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def lived(case: Case, trouble: Trouble) -> tuple[list[AnyEvent], Model]:
    async def live() -> tuple[list[AnyEvent], Model]:
        world = World(case, trouble)
        return await world.live(), world.model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_feeds, "WAIT_S", 0.01)
        if trouble.sent_at_once:
            patch.setattr(steps, "SEND_AHEAD_S", 0.0)
        return asyncio.run(live())


def of(kind: type[T], events: Sequence[AnyEvent]) -> list[T]:
    return [event for event in events if isinstance(event, kind)]


@settings(max_examples=16, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES, TROUBLES)
@example(DEEP_ENDS_MEANWHILE, Trouble())
def test_what_is_told_is_new_to_one_model_call_and_stays_in_every_later_one(
    case: Case, trouble: Trouble
) -> None:
    events, model = lived(case, trouble)
    told = {(each.step, each.id): each for each in of(AgentTold, events)}
    answers: dict[str, list[LlmCall]] = {}
    for answer in of(LlmCall, events):
        answers.setdefault(answer.node, []).append(answer)

    for place, made in answers.items():
        heard = [id for answer in made for id in answer.heard]
        assert len(heard) == len({*heard})
        read: list[User] = []
        before: list[Message] = []
        for answer in made:
            read += [news_message(told[place, id]) for id in answer.heard]
            request = model.requests[answer.text]
            assert [m for m in request if isinstance(m, User) and "tells you" in m.text] == read
            assert request[: len(before)] == before
            before = request

    taken = [e for e in of(ToolResult, events) if e.tool == "tell" and not e.is_error]
    for result in taken:
        (place,) = {step for step, id in told if id == result.step}
        assert any(result.step in answer.heard for answer in answers[place])
    event(f"taken: {len(taken)}, told: {len(told)}, of {sum(map(len, case.told))}")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES, TROUBLES)
def test_it_is_journaled_before_it_is_heard_and_after_the_answer_that_says_it(
    case: Case, trouble: Trouble
) -> None:
    events, _ = lived(case, trouble)
    at = {each.key: each.seq for each in events}
    assert len(at) == len(events)
    ended = {end.step: end.seq for end in of(NodeCompleted, events)}
    for told in of(AgentTold, events):
        assert at[f"1|{told.step}|AgentStarted"] < told.seq
        assert at[f"1|{StepKey(told.id).asked_by.text}|LlmCall"] < told.seq < ended[told.step]
    for answer in of(LlmCall, events):
        for id in answer.heard:
            assert at[f"1|{answer.node}|AgentTold|{id}"] < answer.seq

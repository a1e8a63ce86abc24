"""A mesh in which a generated case happens, with its crashes, lost passes and orders.

Everything a generated model or person says depends on the place in the tree alone, so that two runs of one
case can be compared: one undisturbed, one with any trouble.
"""

import asyncio
import itertools
import json
import zlib
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from msgspec.structs import replace

from mesh.core.approvals import Decision
from mesh.core.budget import Scope
from mesh.core.conversation import Conversation, fold
from mesh.core.errors import LlmError, Unavailable
from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    Event,
    LlmCall,
    NodeCompleted,
    ToolCall,
    ToolResult,
    Validation,
)
from mesh.core.ids import new_id
from mesh.core.messages import Assistant, Results, User
from mesh.core.places import ROOT
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper.replies import Refusal
from mesh.keeper.requests import Caller, Complete, Create, Decide, Request, Watch
from mesh.llm.port import LlmRequest
from mesh.mcp.memory import execution
from mesh.mcp.port import Tool
from mesh.tree.local import LocalTree
from mesh.tree.turn import Ack, Activation, PassInput, PassOutput, StartReply
from tests.tree.causality import TOOLS_FOR_AGENTS
from tests.tree.generated import AGENTS, JUDGE, RACING, STARTS, WAITS, Case, Script, Trouble
from tests.worlds.dying_session import DyingSession
from tests.worlds.mesh import ScriptedLlm, WorldMesh, says

T = TypeVar("T")
_IS_FINE = Tool(
    name="is_fine",
    description="",
    input_schema={"type": "object"},
    server="ledger",
    destructive=False,
    repeatable=True,
    is_check=True,
)
REPORT = "Your answer does not count yet, because agents"
"""How the text begins that tells a model what its agents brought for which it did not wait."""
_TOOLS = {"spawn_two": "spawn", "wait_for_first": "wait", "wait_for_any": "wait"}
"""The tools of scripted calls that have another name."""
LIMIT_S = 30.0
"""How long a case may take before it counts as stuck."""
_AT: ContextVar[PassInput] = ContextVar("at")


class _Tree(LocalTree):
    """Whoever is called below a node can see where it is. A node may be lost while it lives on."""

    world: "World"

    async def run(self, turn: PassInput) -> PassOutput:
        above = _AT.set(turn)
        try:
            return await self.world.unless_lost(turn, super().run(turn))
        finally:
            _AT.reset(above)


class _Journal(MemoryJournal):
    """Its appends are moments, before and after they are durable."""

    world: "World"

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        await self.world.moment()
        size = await super().append(shard, epoch, append)
        self.world.noted(append.events)
        await self.world.moment()
        return size


class _Model(ScriptedLlm):
    """Answers by the script of the node that asks, and remembers which steps it was asked for."""

    world: "World"

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        turn, name = _AT.get(), request.system.partition(":")[0]
        seen = sum(isinstance(message, Results) for message in request.messages)
        before = sum(isinstance(message, Assistant) for message in request.messages)
        # What a fork knows of the time before it is no step of its own.
        number = before - sum(isinstance(message, Assistant) for message in turn.exchange)
        self.world.asks_model(turn, f"{turn.at}/llm/{number}", request)
        await self.world.moment()
        if name == JUDGE["name"]:
            yield says(json.dumps({"valid": _is_fine(request.system), "feedback": "as the judge says"}))
            return
        script = self.world.case.scripts[name]
        if script.items is not None:
            yield says("\n".join(f"{name}-{number}" for number in range(script.items)))
            return
        if seen < len(script.answers):
            yield _calls(script, seen, turn.at, _handles(request))
        elif script.fails:
            raise LlmError("as the script says")
        else:
            again = f" {before - seen}" if before > seen else ""
            yield says(f"{name} {zlib.crc32(request.system.encode()):08x}{again}")


def _is_fine(text: str) -> bool:
    return zlib.crc32(text.encode()) % 3 > 0


def _iterations(at: str) -> list[int]:
    return [int(part.partition("#")[2] or 0) for part in at.split(".")]


def _calls(script: Script, seen: int, at: str, handles: Sequence[str]) -> LlmCall:
    """The calls of an answer. Each ``add`` in the whole turn has another number. ``handles``: the agents that
    the model knows of."""
    made: list[ToolCall] = []
    leave = max(_iterations(at)) >= script.exits_in
    for j, name in enumerate(script.answers[seen]):
        tool = "look" if name == "exit_loop" and not leave else name
        arguments = _arguments(tool, f"{at}/{seen}.{j}", handles)
        made.append(ToolCall(f"c{seen}.{j}", _TOOLS.get(tool, tool), arguments))
    return LlmCall(model="scripted", tool_calls=tuple(made), finish_reason="tool_calls")


def _handles(request: LlmRequest) -> list[str]:
    """The handles that a model has been told, in their order."""
    found: dict[str, None] = {}
    for message in request.messages:
        for result in message.results if isinstance(message, Results) else ():
            if result.name in ("spawn", "fork") and result.content.startswith('{"agents"'):
                found |= {entry["handle"]: None for entry in json.loads(result.content)["agents"]}
    return [*found]


def _arguments(tool: str, call: str, handles: Sequence[str]) -> dict[str, Any]:
    if tool in STARTS + WAITS + RACING:
        return _of_agents(tool, call, handles)
    if tool == "add":
        return {"n": zlib.crc32(call.encode())}
    if tool in AGENTS:
        return {"task": call}
    return {"result": call} if tool in ("complete_task", "return_to_user") else {}


def _of_agents(tool: str, call: str, handles: Sequence[str]) -> dict[str, Any]:
    """The arguments of a call that starts agents, waits for them or ends one."""
    match tool:
        case "spawn":
            return {
                "agents": [{"agent": AGENTS[zlib.crc32(call.encode()) % 2], "task": call, "title": "one"}]
            }
        case "spawn_two":
            return {"agents": [{"agent": name, "task": f"{call} {name}"} for name in AGENTS]}
        case "fork":
            return {"prompt": call}
        case "wait_for_first":
            return {"handles": [*handles[:1]]}
        case "wait_for_any":
            return {"until": "any"}
        case "stop":
            return {"handle": handles[-1] if handles else "nobody", "reason": "enough"}
        case _:
            return {}


class World(WorldMesh):
    """A mesh in which a case happens. `live` takes it to its end; ``watched``: before the eyes of somebody
    who comes back after each crash, and has ``seen`` the journaled events of these numbers."""

    def __init__(self, case: Case, trouble: Trouble, *, watched: bool = False) -> None:
        self.case = case
        self.watched = watched
        self.seen: list[int] = []
        self.trouble = trouble
        self.id = new_id()
        self.durable: set[str] = set()
        self.asked_again: list[str] = []
        self.checked_again: list[str] = []
        self.model_calls: Counter[str] = Counter()
        self.told: dict[str, list[list[str]]] = defaultdict(list)
        self.appends: list[Sequence[AnyEvent]] = []
        self.moments = 0
        journal, model = _Journal(), _Model(says("never said"))
        super().__init__(model, journal, self.case.yaml(trouble.agents_at_once))
        journal.world = model.world = self
        self.ledger.is_checked = trouble.checked
        pairs = [*self.ledger.pairs(), (_IS_FINE, self._is_fine)]
        session = DyingSession("ledger", pairs, trouble.deaths)
        self.tree = _Tree(self.config, [session], lambda _: model, self)
        self.tree.world = self
        self.lost_nodes: list[str] = []
        self.ledger.before_add = self.moment
        self._delays = itertools.cycle(self.trouble.delays)
        self._crashing, self._losing = asyncio.Event(), asyncio.Event()
        self._newest: dict[str, int] = {}  # by place
        self._running: list[tuple[str, asyncio.Event]] = []  # the nodes below the root
        self._lost: set[asyncio.Task[PassOutput]] = set()
        self._deciding: set[asyncio.Task[None]] = set()
        self._shown: set[str] = set()

    # -- what happens to it

    async def moment(self) -> None:
        """A point at which the world may crash, or lose a pass."""
        self.moments += 1
        number = self.moments
        for _ in range(next(self._delays)):
            await asyncio.sleep(0)
        if number in self.trouble.losses:
            self._losing.set()
        if number in self.trouble.node_losses and self._running:
            place, lost = self._running[number % len(self._running)]
            self.lost_nodes.append(place)
            lost.set()
        if number in self.trouble.crashes:
            self._crashing.set()
            await asyncio.wait_for(asyncio.Event().wait(), LIMIT_S)

    def asks_model(self, turn: PassInput, step: str, request: LlmRequest) -> None:
        self.model_calls[step] += 1
        self.told[step].append(_told(request))
        if step in self.durable and self._is_in_force(turn):
            self.asked_again.append(step)

    async def _is_fine(self, arguments: dict[str, Any]) -> str:
        """A check of answers that goes by the text alone."""
        turn, context = _AT.get(), execution.get()
        assert context is not None
        step = context.idempotency_key.rpartition("|")[2]
        if step in self.durable and self._is_in_force(turn):
            self.checked_again.append(step)
        await self.moment()
        return "true" if _is_fine(arguments["output"]) else "not fine"

    def noted(self, events: Any) -> None:
        """These are durable."""
        self.appends.append(events)
        self.durable |= {event.step for event in events if isinstance(event, LlmCall | Validation)}

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        """`Recorder`. Eager people decide what was asked while the pass still goes on."""
        # As between actors: a caller that is cancelled does not break off what the keeper does for it.
        appending = asyncio.create_task(super().append(activation, events))
        ack = await asyncio.shield(appending)
        self._decide_eagerly(events if ack.taken else ())
        return ack

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        """`Recorder`, as `append`."""
        starting = asyncio.create_task(super().start(activation, events, scopes, asker))
        reply = await asyncio.shield(starting)
        self._decide_eagerly(events if reply.ack.taken else ())
        return reply

    def _decide_eagerly(self, events: Sequence[AnyEvent]) -> None:
        for event in events if self.trouble.eager else ():
            if isinstance(event, ApprovalRequired) and event.uuid not in self._shown:
                self._shown.add(event.uuid)
                if event.kind in ("tool_call", "validation"):
                    self._deciding.add(asyncio.create_task(self._decide_now(event)))

    async def run(self, turn: PassInput) -> PassOutput:
        """A pass; or the news that it was lost, while what it started goes on."""
        try:
            return await self._unless(self._losing, super().run(turn))
        finally:
            self._losing.clear()

    async def unless_lost(self, turn: PassInput, running: Coroutine[Any, Any, PassOutput]) -> PassOutput:
        """What a node comes to; or the news that it was lost, while it goes on."""
        self._newest[turn.at] = turn.run
        if turn.at == ROOT.text:
            return await running
        entry = (turn.at, asyncio.Event())
        self._running.append(entry)
        try:
            return await self._unless(entry[1], running)
        finally:
            self._running.remove(entry)

    async def _unless(self, lost: asyncio.Event, running: Coroutine[Any, Any, PassOutput]) -> PassOutput:
        going = asyncio.create_task(running)
        losing = asyncio.create_task(lost.wait())
        try:
            await asyncio.wait({going, losing}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # as between actors: it is cancelled there, too, and waited for
            going.cancel()
            await asyncio.wait({going})
            raise
        finally:
            losing.cancel()
        if going.done():
            return going.result()
        self._lost.add(going)
        raise Unavailable("the node died", retry_after_s=0)

    def _is_in_force(self, turn: PassInput) -> bool:
        """Whether no newer run was begun at the place of a node, or around it."""
        return turn.run == max(self._newest.get(place.text, 0) for place in turn.place.scopes)

    # -- the people

    async def live(self, kept: Sequence[AnyEvent] = ()) -> Conversation:
        """The conversation when all is decided and done. ``kept``: events that are in its journal already."""
        await self._keep(kept)
        async with asyncio.timeout(LIMIT_S), self:
            create = Create(self.id, self._caller("create"), "go")
            while await self._attempt(self.ask(create)) is None:
                pass
            watching = {asyncio.create_task(self._watch())} if self.watched else set()
            self._survivors |= watching
            while not await self._is_finished():
                await self._decide_one()
            await self._attempt(_ended(self._deciding))
            await self._attempt(_ended(self._lost))
            await asyncio.gather(*watching)
            return fold(await self.journal.read(self.id))

    async def _watch(self) -> None:
        """Until the conversation is final. A crash of the keeper breaks off what it was asked."""
        request = Watch(self.id, "watcher", 0, wait=False)
        while True:
            asking = asyncio.create_task(self.keeper.watch(request))
            await asyncio.wait({asking})
            if asking.cancelled() or isinstance(asking.result(), Refusal):
                await asyncio.sleep(0)
                continue
            news = asking.result()
            self.seen += [event.seq for event in news.events if event.seq]
            if any(isinstance(event, ConversationCompleted) for event in news.events):
                return
            request = replace(request, after=news.after, cursor=news.cursor, wait=True)

    async def _keep(self, kept: Sequence[AnyEvent]) -> None:
        if kept and isinstance(kept[0], ConversationCreated):
            self.id = kept[0].conversation_id
            await self.journal.append(0, await self.journal.open(0), Append(self.id, 0, kept))

    def _caller(self, key: str) -> Caller:
        return Caller(session_id="s", idempotency_key=key)

    async def _attempt(self, request: Coroutine[Any, Any, T]) -> T | None:
        """What a request, or another wait, comes to; None if the process crashed first."""
        asking = asyncio.create_task(request)
        crashing = asyncio.create_task(self._crashing.wait())
        await asyncio.wait({asking, crashing}, return_when=asyncio.FIRST_COMPLETED)
        found = asking.result() if asking.done() else None
        if self._crashing.is_set():
            self._crashing.clear()
            await self.crash()
        crashing.cancel()
        return found

    async def _is_finished(self) -> bool:
        """Waits until nothing goes on any more; whether nothing waits for a person either."""
        while (found := await self._attempt(self.ask(Complete(self.id)))) is None:
            pass
        assert found[0] in (200, 409), found
        return found[0] == 200

    async def _decide_one(self) -> None:
        """Decides the approval that the case decides first; before that, what nobody knows the outcome of."""
        pending = fold(await self.journal.read(self.id)).pending
        unknown = [asked for asked in pending if asked.kind == "unknown_outcome"]
        if unknown and self._lost:
            await self._attempt(_ended(self._lost))
            return  # what comes late may let something go on: people wait for that
        order = [*self.case.verdicts]
        for asked in unknown or sorted(pending, key=lambda a: (order.index(self._name(a)), a.step))[:1]:
            # What is in the journal is known to its keeper a moment later: until then it answers 404.
            while (found := await self._attempt(self.ask(self._decision(asked)))) is None or found[0] == 404:
                pass
            assert found[0] in (200, 409, 502), found

    async def _decide_now(self, asked: ApprovalRequired) -> None:
        status, body = await self.ask(self._decision(asked, wait=False))
        # The pass that asked may be lost, the turn may be over, the keeper may be fenced by its successor.
        assert status in (202, 404, 409, 503), body

    def _decision(self, asked: ApprovalRequired, wait: bool = True) -> Request:
        caller, number = self._caller(asked.uuid), asked.tool_args.get("n", 0)
        edited = _edited(asked) if asked.kind == "tool_call" else {"output": "better"}
        if asked.kind == "unknown_outcome":
            ran = f"add {number}" in self.ledger.lines
            return Decide(caller, (Decision(asked.uuid, "skip" if ran else "retry"),), wait)
        match self.case.verdicts[self._name(asked)]:
            case "approve":
                return Decide(caller, (Decision(asked.uuid, "approve"),), wait)
            case "edit":
                return Decide(caller, (Decision(asked.uuid, "approve", edited),), wait)
            case "reason":
                return Decide(caller, (Decision(asked.uuid, "reject", reason="not this one"),), wait)
            case "reject":
                return Decide(caller, (Decision(asked.uuid, "reject"),), wait)

    def _name(self, asked: ApprovalRequired) -> str:
        return self.case.name_at(asked.place)


def _edited(asked: ApprovalRequired) -> dict[str, Any]:
    """What a person makes of the arguments of a call."""
    match asked.tool_name:
        case "spawn":
            return {"agents": [{"agent": AGENTS[1], "task": f"{asked.step} as the person says"}]}
        case "fork":
            return {"prompt": f"{asked.step} as the person says"}
        case "add":
            return {"n": asked.tool_args["n"] + 1}
        case _:
            return {"task": f"{asked.step} as the person says"}


def _told(request: LlmRequest) -> list[str]:
    """What the tools told a model, and what became of the agents it had not waited for."""
    told: list[str] = []
    for message in request.messages:
        if isinstance(message, Results):
            told += [result.content for result in message.results]
        elif isinstance(message, User) and message.text.startswith(REPORT):
            told.append(message.text)
    return told


async def _ended(tasks: set[asyncio.Task[T]]) -> None:
    """Waits for tasks; what failed in one fails here, a crash excepted."""
    while tasks:
        task = next(iter(tasks))
        await asyncio.wait({task})
        tasks.discard(task)
        if not task.cancelled():
            task.result()


# -- what can be compared


@dataclass(frozen=True)
class Final:
    """What a case came to, without ids, times, and what depends on the order of the branches."""

    answer: tuple[str, bool] | str
    state: dict[str, str]
    said: Counter[tuple[str, ...]]
    ledger: Counter[str]
    nodes: Counter[tuple[str, ...]]
    started: Counter[tuple[str, ...]]
    told_of_agents: Counter[tuple[str, ...]]


def final(conversation: Conversation, events: list[AnyEvent], ledger: list[str]) -> Final:
    last = conversation.last_answer
    assert isinstance(last, Completed | Error), last
    done = (e for e in events if isinstance(e, NodeCompleted))
    return Final(
        (last.response, last.stopped_by_person) if isinstance(last, Completed) else last.message,
        conversation.session_state,
        Counter(_said(message) for message in conversation.messages),
        Counter(line for line in ledger if line != "look"),  # looking twice is harmless
        Counter((e.step, e.name, e.status, e.text, str(sorted(e.state.items())), str(e.exits)) for e in done),
        Counter(
            (e.step, e.name, e.kind, e.by, e.title, e.task, *e.agent_path)
            for e in events
            if isinstance(e, AgentStarted)
        ),
        Counter((e.step, *_about_agents(e)) for e in events if _about_agents(e)),
    )


def _about_agents(event: AnyEvent) -> tuple[str, ...]:
    """What an event tells a model about the agents that it has started."""
    if isinstance(event, AgentsReported):
        return (event.text, *event.told)
    if isinstance(event, ToolResult) and event.tool in TOOLS_FOR_AGENTS:
        return (event.tool, event.content, *event.told)
    return ()


def _said(message: Any) -> tuple[str, ...]:
    """A message; of a tool that ran, what was called: what it saw depends on when it looked."""
    if message.tool_call is None:
        return message.role, message.content
    return message.role, message.tool_call.name, str(message.tool_call.arguments)

"""A whole mesh in one process: real keeper, node, toolbox; journal and model in memory."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from mesh.a2a.server.notifications import notifications
from mesh.config.environment import Unchecked
from mesh.config.kept_versions import MemoryVersions, kept_config
from mesh.config.model import parse
from mesh.core.approvals import Decision
from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope
from mesh.core.events import (
    NEWS_ACTIONS,
    AgentTold,
    AnyEvent,
    Event,
    LlmCall,
    Preview,
    ToolCall,
    ToolResult,
)
from mesh.core.ids import new_id
from mesh.core.verdict import Remember, Verdict
from mesh.http.responses import error_response, json_response, turn_response
from mesh.http.rest import conversation_page
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Journal
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.keeper.replies import (
    ConversationReply,
    Conversations,
    NothingTaken,
    Refusal,
    Reply,
    TurnAccepted,
    TurnAnswer,
)
from mesh.keeper.requests import Caller, Complete, Create, Decide, Import, Page, Request, SendMessage, Show
from mesh.llm.port import Llm, LlmRequest
from mesh.mcp.memory import MemorySession, ToolFunction
from mesh.mcp.port import Tool, ToolOutcome
from mesh.net.http_status import retry_after_of, status_of
from mesh.policy.book import MemoryGrantBook
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.push.delivery import RetryPolicy
from mesh.push.memory import MemoryPushStore
from mesh.push.port import PushStore
from mesh.push.sender import WebhookSender
from mesh.push.service import PushNotifications
from mesh.tracing.spans import Tracer
from mesh.tree.build import AgentFor, reach
from mesh.tree.configured_limits import limits_by_path, priced_models
from mesh.tree.gate import NewestPolicy
from mesh.tree.local import LocalTree
from mesh.tree.plan import infos_of_nodes, startable_agents
from mesh.tree.turn import (
    AbandonedTask,
    Ack,
    Activation,
    Hearing,
    PassInput,
    PassOutput,
    ReserveReply,
    Restarted,
    SlotReply,
    SlotRequest,
    StartReply,
    UnsettledCall,
)
from mesh.tree.version_bonds import NodeBond, bonds_of

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class ScriptedLlm:
    """An `Llm` that gives prepared answers, one a call, and keeps what it was asked.

    Keyed by the number of results in the request, so that a repeated pass gets the same answer.
    """

    def __init__(self, *answers: LlmCall | Callable[[LlmRequest], Awaitable[LlmCall]]) -> None:
        self.answers = list(answers)
        self.requests: list[LlmRequest] = []

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        yield answer if isinstance(answer, LlmCall) else await answer(request)

    async def close(self) -> None:
        return None


def says(text: str) -> LlmCall:
    return LlmCall(model="scripted", text=text)


def calls(*names_and_arguments: tuple[str, dict[str, Any]]) -> LlmCall:
    made = tuple(ToolCall(f"c{i}-{name}", name, args) for i, (name, args) in enumerate(names_and_arguments))
    return LlmCall(model="scripted", tool_calls=made, finish_reason="tool_calls")


class Ledger:
    """Two tools that write down that they ran: ``add`` asks a person, ``look`` does not. ``is_checked``:
    ``add`` has a check, ``was_added``."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.is_checked = False
        self.before_add: Callable[[], Awaitable[None]] | None = None

    def session(self) -> MemorySession:
        """A new session with this server; from then on it is ``offered``."""
        self.offered = MemorySession("ledger", self.pairs())
        return self.offered

    def pairs(self) -> list[tuple[Tool, ToolFunction]]:
        """The tools, each with what it does."""
        add = Tool(name="add", description="Adds a number.", input_schema=NUMBER, server="ledger")
        look = Tool(
            name="look",
            description="Shows all numbers.",
            input_schema={"type": "object"},
            server="ledger",
            destructive=False,
            repeatable=True,
            read_only=True,
        )
        if not self.is_checked:
            return [(add, self.add), (look, self._look)]
        check = msgspec.structs.replace(look, name="was_added", input_schema=NUMBER, is_check=True)
        add = msgspec.structs.replace(add, checked_by=check.name)
        return [(add, self.add), (look, self._look), (check, self.was_added)]

    async def was_added(self, arguments: dict[str, Any]) -> ToolOutcome | str:
        """What came of a call of ``add``."""
        was_added = f"add {arguments['n']}" in self.lines
        return json.dumps({"outcome": "applied" if was_added else "not_applied", "text": str(self.lines)})

    async def add(self, arguments: dict[str, Any]) -> ToolOutcome | str:
        """Adds a line."""
        if self.before_add:
            await self.before_add()
        self.lines.append(f"add {arguments['n']}")
        return json.dumps({"added": arguments["n"]})

    async def _look(self, arguments: dict[str, Any]) -> str:
        self.lines.append("look")
        return json.dumps(self.lines)


T = TypeVar("T")
SIMPLE = "name: test\nprompt: Be kind.\nllm: {model: scripted}\n"


async def until(what: Callable[[], Awaitable[T]]) -> T:
    """The first answer that is true."""
    async with asyncio.timeout(100):
        while True:
            if found := await what():
                return found
            await asyncio.sleep(0.002)


def as_rest(request: Request, reply: Reply) -> tuple[int, dict[str, Any]]:
    """What a client of the REST API sees of a reply: status and body."""
    match reply:
        case Refusal():
            problem = reply.error()
            shown = error_response(status_of(problem), str(problem), retry_after_of(problem))
        case Conversations():
            assert isinstance(request, Page)
            shown = json_response(conversation_page([reply], request.limit))
        case NothingTaken():
            return 204, {}
        case TurnAnswer() | TurnAccepted() | ConversationReply():
            shown = turn_response(reply, 201 if isinstance(request, Create | Import) else 200)
        case _:  # what REST does not show
            return 200, {key: value for key, value in msgspec.to_builtins(reply).items() if key != "type"}
    return shown.status_code, json.loads(bytes(shown.body))


class WorldMesh:
    """A keeper and a tree in this process. `crash` forgets the keeper and starts another."""

    def __init__(
        self,
        llm: Llm,
        journal: Journal | None = None,
        config: str = SIMPLE,
        agent_for: AgentFor = reach,
        push_store: PushStore | None = None,
        ledger: Ledger | None = None,
        origin: str = "test.yaml",
        tracer: Tracer | None = None,
        **settings: Any,
    ) -> None:
        self.journal = journal or MemoryJournal()
        self.llm = llm
        self.tracer = tracer
        self.ledger = ledger or Ledger()
        self.config = self.newest = parse(config, origin, {})
        self.versions = MemoryVersions("test")
        self._newer_trees: dict[str, LocalTree] = {}
        self.settings = KeeperSettings(
            agent="test",
            digest=self.config.digest,
            root=self.config.tree.name,
            root_kind=self.config.tree.type,
            intervene=NEWS_ACTIONS if self.config.intervene is None else self.config.intervene,
            models=priced_models(self.config),
            startable=startable_agents(self.config),
            nodes=infos_of_nodes(self.config),
            limits=limits_by_path(self.config),
            system_prompt=self.config.prompt,
            agents_at_once=self.config.limits.agents_at_once,
            **settings,
        )
        self.tree = LocalTree(self.config, [self.ledger.session()], lambda _: llm, self, agent_for)
        self.push_store = push_store or MemoryPushStore()
        self.grant_book = MemoryGrantBook()
        self.push_policy = RetryPolicy()
        self.sender = WebhookSender(self.config.card.push_hosts)
        self.fenced = asyncio.Event()
        self.passes = 0
        self.newest_run = 0
        self.keepers = [self._new_keeper()]

    @property
    def keeper(self) -> Keeper:
        """The one there is now."""
        return self.keepers[0]

    def _new_keeper(self) -> Keeper:
        hosts, fenced = self.config.card.push_hosts, self.fenced.set
        push = PushNotifications(
            0, self.push_store, self.journal, self.sender, notifications, hosts, self.push_policy, fenced
        )
        newest = NewestPolicy(self.newest).denial
        return Keeper(
            0,
            1,
            self.journal,
            self,
            self.settings,
            push,
            self.grant_book,
            newest,
            self._bonds_of,
            fenced,
            tracer=self.tracer,
        )

    async def _bonds_of(self, version: str, must_run: bool) -> dict[str, NodeBond]:
        env = os.environ if must_run else Unchecked(os.environ)
        return bonds_of(await kept_config(self.versions, version, env))

    async def upgrade(self, config: str, agent_for: AgentFor = reach, **settings: Any) -> None:
        """Another version of the agent takes over."""
        self.newest = newest = parse(config, "newer.yaml", os.environ)
        await self.versions.keep(newest.digest, newest.source, newest.files)
        if newest.digest != self.config.digest:
            tree = LocalTree(newest, [self.ledger.session()], lambda _: self.llm, self, agent_for)
            await tree.start()
            self._newer_trees[newest.digest] = tree
        self.settings = msgspec.structs.replace(
            self.settings, digest=self.newest.digest, nodes=infos_of_nodes(self.newest), **settings
        )
        await self.lose_keeper()

    async def __aenter__(self) -> "WorldMesh":
        await self.versions.keep(self.config.digest, self.config.source, self.config.files)
        await self.tree.start()
        self._survivors = asyncio.all_tasks()
        await self.keeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.keeper.close()
        await self.sender.close()
        for tree in (self.tree, *self._newer_trees.values()):
            await tree.close()

    def _tree(self, version: str) -> LocalTree:
        return self._newer_trees.get(version, self.tree)

    async def run(self, turn: PassInput) -> PassOutput:
        """`Tree.run`; a test may put something else in its place."""
        self.passes += 1
        self.newest_run = turn.run
        return await self._tree(turn.digest).run(turn)

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        return await self._tree(digest).problems(digest, node, tool, arguments)

    async def verdict(self, digest: str, node: str, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        return await self._tree(digest).verdict(digest, node, call, grants)

    async def preview(self, digest: str, node: str, call: ToolCall, offset: int) -> Preview | None:
        return await self._tree(digest).preview(digest, node, call, offset)

    async def hear(self, digest: str, activation: Activation, news: AgentTold, is_durable: bool) -> Hearing:
        return await self._tree(digest).hear(digest, activation, news, is_durable)

    async def cancel(self, task: AbandonedTask) -> None:
        await self.tree.cancel(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return await self.tree.settle(call)

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        """`Recorder`, of whichever keeper there is now."""
        return await self.keeper.append(activation, events)

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        return await self.keeper.reserve(activation, events, request)

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        return await self.keeper.start_agents(activation, events, scopes, asker)

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        return await self.keeper.slots(activation, request)

    async def restart(self, lost: Activation) -> Restarted:
        return await self.keeper.restart(lost)

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        return await self.keeper.remaining(conversation_id, scopes, on_limit)

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        return await self.keeper.grants(conversation_id, agent)

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        return await self.keeper.denial(conversation_id, call)

    async def crash(self) -> None:
        """The process is gone without a word, with all that ran in it; another one takes over."""
        died = asyncio.all_tasks() - self._survivors - {asyncio.current_task()}
        for task in died:
            task.cancel()
        await asyncio.gather(*died, return_exceptions=True)
        self.keeper._shard.abandon()
        keeper = self._new_keeper()
        await keeper.start()
        self.keepers[0] = keeper  # not before: nobody can ask an actor that does not know its shard yet

    async def lose_keeper(self) -> None:
        """Another keeper takes over; passes that run go on, and know nothing of it."""
        keeper = self._new_keeper()
        await keeper.start()
        self.keepers[0] = keeper

    async def ask(self, request: Request) -> tuple[int, dict[str, Any]]:
        """The reply as REST shows it: status and body."""
        return as_rest(request, await asyncio.wait_for(self.keeper.handle(request), 100))

    async def create(self, message: str | None = None, **caller: str) -> tuple[int, dict[str, Any]]:
        return await self.ask(Create(new_id(), Caller(session_id="s1", **caller), message))

    async def say(self, conversation_id: str, message: str, **caller: str) -> tuple[int, dict[str, Any]]:
        return await self.ask(SendMessage(conversation_id, Caller(session_id="s1", **caller), message))

    async def decide(
        self,
        uuid: str,
        decision: Any,
        *,
        edited: dict[str, Any] | None = None,
        reason: str = "",
        remember: Remember = "none",
        rule: dict[str, Any] | None = None,
        **caller: str,
    ) -> tuple[int, dict[str, Any]]:
        decided = Decision(uuid, decision, edited, reason, remember=remember, rule=rule)
        return await self.ask(Decide(Caller(session_id="s1", **caller), (decided,)))

    async def answer(self, uuid: str, answer: str) -> tuple[int, dict[str, Any]]:
        decided = Decision(uuid, "answer", answer=answer)
        return await self.ask(Decide(Caller(session_id="s1"), (decided,)))

    async def show(self, conversation_id: str) -> dict[str, Any]:
        status, body = await self.ask(Show(conversation_id))
        assert status == 200, body
        shown: dict[str, Any] = body["conversation"]
        return shown


__all__ = [
    "Caller",
    "Complete",
    "Create",
    "Decide",
    "Page",
    "ScriptedLlm",
    "SendMessage",
    "Show",
    "WorldMesh",
]

"""A whole mesh in one process: real keeper, node, toolbox; journal and model in memory."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from mesh.events import AnyEvent, Event, LlmCall, ToolCall
from mesh.ids import new_id
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Journal
from mesh.keeper.keeper import Keeper, KeeperSettings
from mesh.keeper.requests import Caller, Create, Decide, Finish, Page, Reply, Request, Say, Show
from mesh.llm.port import LlmRequest
from mesh.mcp.memory import MemorySession
from mesh.mcp.port import Tool
from mesh.mcp.toolbox import Toolbox
from mesh.tree.llm import LlmNode
from mesh.tree.turn import TurnInput, TurnOutput, decode_input, decode_output, encode_input, encode_output

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
    """Two tools that write down that they ran: ``add`` asks a person, ``look`` does not."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.before_add: Callable[[], Awaitable[None]] | None = None

    def session(self) -> MemorySession:
        add = Tool(name="add", description="Adds a number.", input_schema=NUMBER, server="ledger")
        look = Tool(
            name="look",
            description="Shows all numbers.",
            input_schema={"type": "object"},
            server="ledger",
            destructive=False,
            repeatable=True,
        )
        return MemorySession("ledger", [(add, self._add), (look, self._look)])

    async def _add(self, arguments: dict[str, Any]) -> str:
        if self.before_add:
            await self.before_add()
        self.lines.append(f"add {arguments['n']}")
        return json.dumps({"added": arguments["n"]})

    async def _look(self, arguments: dict[str, Any]) -> str:
        self.lines.append("look")
        return json.dumps(self.lines)


class LocalMesh:
    """A keeper and a node in this process. `crash` forgets the keeper and starts another."""

    def __init__(self, llm: ScriptedLlm, journal: Journal | None = None, **settings: Any) -> None:
        self.journal = journal or MemoryJournal()
        self.llm = llm
        self.ledger = Ledger()
        self.toolbox = Toolbox([self.ledger.session()])
        self.settings = KeeperSettings(agent="test", digest="d1", system_prompt="Be kind.", **settings)
        self.node = LlmNode(path="0", system="Be kind.", model="scripted", llm=llm, toolbox=self.toolbox)
        self.fenced = asyncio.Event()
        self.keeper = self._new_keeper()

    def _new_keeper(self) -> Keeper:
        return Keeper(0, 1, self.journal, self.run_turn, self.settings, self.fenced.set)

    async def __aenter__(self) -> "LocalMesh":
        await self.toolbox.start()
        await self.keeper.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.keeper.close()
        await self.toolbox.close()

    async def run_turn(self, turn: TurnInput) -> TurnOutput:
        """A pass, over the wire form both ways, as between actors."""
        output = await self.node.run(decode_input(encode_input(turn)), self.append_ahead)
        return decode_output(encode_output(output))

    async def append_ahead(
        self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]
    ) -> bool:
        return await self.keeper.append_ahead(conversation_id, turn, run, events)

    async def crash(self) -> None:
        """The keeper is gone without a word; another one takes over."""
        old = self.keeper
        self.keeper = self._new_keeper()
        for cell in old._cells._cells.values():
            if cell.driver:
                cell.driver.cancel()
        await self.keeper.start()

    async def ask(self, request: Request) -> tuple[int, dict[str, Any]]:
        found = await asyncio.wait_for(self.keeper.handle(request), 10)
        return found.status, json.loads(found.body)

    async def create(self, message: str | None = None, **caller: str) -> tuple[int, dict[str, Any]]:
        return await self.ask(Create(new_id(), Caller(session_id="s1", **caller), message))

    async def say(self, conversation_id: str, message: str, **caller: str) -> tuple[int, dict[str, Any]]:
        return await self.ask(Say(conversation_id, Caller(session_id="s1", **caller), message))

    async def decide(self, uuid: str, decision: Any, **caller: str) -> tuple[int, dict[str, Any]]:
        return await self.ask(Decide(uuid, Caller(session_id="s1", **caller), decision))

    async def show(self, conversation_id: str) -> dict[str, Any]:
        status, body = await self.ask(Show(conversation_id))
        assert status == 200, body
        shown: dict[str, Any] = body["conversation"]
        return shown


__all__ = ["Caller", "Create", "Decide", "Finish", "LocalMesh", "Page", "Reply", "Say", "ScriptedLlm", "Show"]

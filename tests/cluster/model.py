"""A scripted model that does what the last message says, served over HTTP to the real SDK.

append a          calls ledger_append with the line "a", then says what came of it
append a, b       calls it twice in one answer
read              calls ledger_read, then says what came of it
tell b hello      asks the agent b "hello", then says what came of it
use a read        calls the agent a with the task "read", then says what came of it
advise a hello    starts the agent a, tells it "hello" while it works, waits for it, then says what came of it
start a           starts the agent a, and has nothing else to do
sleep 1.5         says "slept 1.5" after that many seconds
anything else     is repeated; where the answer has a schema, it is the verdict that another answer is valid

A model whose prompt is `LISTENS` reads the ledger, again and again, until somebody tells it something.
"""

import asyncio
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, Self

from mesh.servers.llm_stub.http import StubResponse, StubServer
from mesh.servers.llm_stub.script import ModelRequest, Script, ScriptedAnswer, ScriptedCall
from mesh.servers.llm_stub.server import LlmStub

START_WITHIN_S = 120.0
LISTENS = "You listen."
_LISTENS_EVERY_S = 0.05


class Obedient(Script):
    """The script; see the module's text."""

    def answer(self, call: ModelRequest) -> ScriptedAnswer:
        self.calls += 1
        if call.output_schema is not None:
            return ScriptedAnswer(text='{"valid": true, "feedback": "fine"}')
        if call.system == LISTENS and not call.last.startswith("["):
            return ScriptedAnswer(tool_calls=(ScriptedCall(name="ledger_read"),), delay=_LISTENS_EVERY_S)
        if call.speaker == "tool" and (advised := _advised(call.last)):
            return ScriptedAnswer(tool_calls=(advised,))
        if call.speaker == "tool":
            return ScriptedAnswer(text=f"done: {call.last}")
        if said := re.fullmatch(r"append (.+)", call.last):
            lines = said[1].split(", ")
            return ScriptedAnswer(
                tool_calls=tuple(ScriptedCall(name="ledger_append", arguments={"line": x}) for x in lines)
            )
        if said := re.fullmatch(r"tell (\w+) (.+)", call.last):
            return ScriptedAnswer(
                tool_calls=(ScriptedCall(name=f"a2a_{said[1]}", arguments={"message": said[2]}),)
            )
        if said := re.fullmatch(r"use (\w+) (.+)", call.last):
            return ScriptedAnswer(tool_calls=(ScriptedCall(name=said[1], arguments={"task": said[2]}),))
        if said := re.fullmatch(r"advise (\w+) (.+)", call.last):
            agents = [{"agent": said[1], "task": "go", "title": said[2]}]
            return ScriptedAnswer(tool_calls=(ScriptedCall(name="spawn", arguments={"agents": agents}),))
        if said := re.fullmatch(r"start (\w+)", call.last):
            agents = [{"agent": said[1], "task": "go"}]
            return ScriptedAnswer(tool_calls=(ScriptedCall(name="spawn", arguments={"agents": agents}),))
        if said := re.fullmatch(r"sleep ([\d.]+)", call.last):
            return ScriptedAnswer(text=f"slept {said[1]}", delay=float(said[1]))
        if call.last == "read":
            return ScriptedAnswer(tool_calls=(ScriptedCall(name="ledger_read"),))
        return ScriptedAnswer.model_construct(text=f"echo: {call.last}")


def _advised(result: str) -> ScriptedCall | None:
    """What follows the start of an agent, and what follows when it was told something."""
    if started := re.search(
        r'"handle": "([^"]+)".*"status": "(?:running|queued)", "title": "([^"]+)"', result
    ):
        return ScriptedCall(name="tell", arguments={"handle": started[1], "message": started[2]})
    return ScriptedCall(name="wait") if result.endswith("reads it before its next step.") else None


class Server(Protocol):
    """A model behind HTTP, from entering to leaving."""

    url: str

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...


class OwnModel(ABC):
    """A model that a test writes itself: `_route` answers each request. A `Server`."""

    def __init__(self) -> None:
        self.url = ""
        self._server = StubServer(self._route)

    async def __aenter__(self) -> Self:
        self.url = await self._server.start("127.0.0.1", 0)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.close()

    @abstractmethod
    def _route(self, method: str, path: str, body: bytes) -> StubResponse: ...


def obedient() -> Server:
    """The model that does what the last message says."""
    return LlmStub(Obedient())


class Model:
    """A server, in a thread of its own: the tests that use it block."""

    def __init__(self, server: Callable[[], Server] = obedient) -> None:
        self._server = server
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(START_WITHIN_S), "the scripted model does not start"
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_WITHIN_S)

    @property
    def env(self) -> dict[str, str]:
        """What makes ``openai:`` models come here."""
        return {"OPENAI_BASE_URL": f"{self._url}/v1", "OPENAI_API_KEY": "none"}

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with self._server() as server:
            self._url = server.url
            self._ready.set()
            await self._stop.wait()

"""A mesh in this process behind a real HTTP server: real keeper, tree, gateway; no Ray.

`LiveMesh` runs in a thread of its own, so that tests of browsers and terminals may block. `restart` is a
crash of all of it: what is in the journal is there again, at the same address.
"""

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

import uvicorn

from mesh.core.events import Event, LlmCall, TextDelta, ToolCallDelta
from mesh.gateway.app import http_app
from mesh.journal.memory import MemoryJournal
from mesh.llm.port import Llm, LlmRequest
from mesh.local import local_backend
from mesh.mcp.memory import progress
from mesh.mcp.port import Catalogue
from mesh.mcp.progress import Progress
from mesh.tracing.spans import Tracer
from tests.worlds.mesh import SIMPLE, Ledger, ScriptedLlm, WorldMesh
from tests.worlds.ports import free_port

_WITHIN_S = 120.0
T = TypeVar("T")


class LocalBackend(local_backend.LocalBackend):
    """What asks the keeper of a mesh, whichever it has then."""

    def __init__(self, mesh: WorldMesh) -> None:
        async def catalogues() -> list[Catalogue]:
            return [await mesh.ledger.offered.catalogue()]

        super().__init__(mesh.keepers, catalogues, mesh.grant_book, mesh.versions)


class Spoken(ScriptedLlm):
    """Prepared answers that come in pieces, as a streaming provider's; `between` is awaited before each piece
    of text."""

    def __init__(self, *answers: LlmCall | Callable[[LlmRequest], Coroutine[Any, Any, LlmCall]]) -> None:
        super().__init__(*answers)
        self.between: Callable[[str], Coroutine[Any, Any, None]] | None = None

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        async for event in super().stream(request):
            if isinstance(event, LlmCall) and request.deltas:
                async for piece in self._pieces(event):
                    yield piece
            yield event

    async def _pieces(self, answer: LlmCall) -> AsyncIterator[Event]:
        offset = 0
        for word in answer.text.split(" ") if answer.text else ():
            if self.between:
                await self.between(word)
            piece = word if offset == 0 else f" {word}"
            yield TextDelta(text=piece, offset=offset)
            offset += len(piece)
        for call in answer.tool_calls:
            yield ToolCallDelta(phase="started", call_id=call.id, name=call.name)
            yield ToolCallDelta(phase="ready", call_id=call.id, name=call.name, call=call)


class _Quiet(uvicorn.Server):
    """Signals are the test's, not the server's."""

    def capture_signals(self) -> Any:
        from contextlib import nullcontext

        return nullcontext()


async def _cancel_the_rest() -> None:
    """What watches the whole loop, as the SSE server's watcher of shutdowns does."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


class LiveMesh:
    """See the module's text. ``config`` is YAML; ``llm`` answers for every model in it. Its ledger has the
    tools ``add`` {n: int} (asks a person) and ``look``."""

    def __init__(
        self,
        llm: Llm,
        config: str = SIMPLE,
        journal: MemoryJournal | None = None,
        ledger: Ledger | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.mesh = WorldMesh(llm, journal, config, ledger=ledger, tracer=tracer)
        self._secret = secrets.token_bytes(32)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: _Quiet | None = None
        self._serving: Future[None] | None = None
        self._restarting: threading.Thread | None = None

    def __enter__(self) -> "LiveMesh":
        self._thread.start()
        self.run(self.mesh.__aenter__())
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._restarting is not None:
            self._restarting.join(_WITHIN_S)
        self.down()
        self.run(self.mesh.__aexit__(kind, error, trace))
        self.run(_cancel_the_rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WITHIN_S)
        self._loop.close()

    @property
    def requests(self) -> int:
        """How many HTTP requests have come since it began to listen."""
        assert self._server is not None
        return self._server.server_state.total_requests

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs something in the mesh's own loop, and waits for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_WITHIN_S)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the mesh's own loop (to set an `asyncio.Event` of it, for instance)."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def slow_look(self, *said: Progress) -> asyncio.Event:
        """From now on ``look`` says how far it is, and then waits for the event that is returned: it belongs
        to the mesh's own loop."""
        go = asyncio.Event()

        async def look(_: dict[str, Any]) -> str:
            for each in said:
                progress.get()(each)
            await asyncio.wait_for(go.wait(), _WITHIN_S)
            return "looked"

        ledger = self.mesh.ledger
        self.call(
            lambda: ledger.offered.offer((t, look if t.name == "look" else f) for t, f in ledger.pairs())
        )
        return go

    def up(self) -> None:
        """Begins to listen."""
        self.run(self._up())

    def down(self) -> None:
        """Closes every connection and listens no more; what runs goes on."""
        self.run(self._down())

    def restart(self) -> None:
        """The whole process dies and another takes over, at the same address."""
        self.down()
        self.run(self.mesh.crash())
        self.up()

    def restart_soon(self) -> None:
        """`restart`, from a thread of its own: for what runs in the mesh's own loop."""
        self._restarting = threading.Thread(target=self.restart, daemon=True)
        self._restarting.start()

    async def _up(self) -> None:
        app = http_app(LocalBackend(self.mesh), self.mesh.config, self._secret)
        config = uvicorn.Config(
            app,
            "127.0.0.1",
            self.port,
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=0,
            proxy_headers=False,
        )
        self._server = _Quiet(config)
        task = asyncio.create_task(self._server.serve())
        self._task = task
        async with asyncio.timeout(_WITHIN_S):
            while not self._server.started:
                assert not task.done(), "the HTTP server did not start"
                await asyncio.sleep(0.01)

    async def _down(self) -> None:
        assert self._server is not None
        self._server.should_exit = True
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        await asyncio.wait_for(self._task, _WITHIN_S)

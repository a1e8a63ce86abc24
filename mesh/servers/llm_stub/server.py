"""The server of the stub: which path is which format, and the two ways to run it."""

import asyncio
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from mesh.core.errors import ConfigError
from mesh.servers.llm_stub import anthropic_wire, gemini_wire, openai_wire
from mesh.servers.llm_stub.http import StubResponse, StubServer
from mesh.servers.llm_stub.recorded import RecordedRequest, RequestLog
from mesh.servers.llm_stub.script import ModelRequest, Script, ScriptedAnswer, load
from mesh.servers.llm_stub.wire import WireFormat, dumps

_FORMATS: dict[str, WireFormat] = {
    "/chat/completions": openai_wire,
    "/messages": anthropic_wire,
    ":generateContent": gemini_wire,
    ":streamGenerateContent": gemini_wire,
}
"""The formats, by the ends of the paths at which they are spoken."""


class LlmStub:
    """A scripted model server for tests and load: ``async with LlmStub(script) as stub: stub.url``.

    ``script`` is the mapping `mesh.servers.llm_stub.script` describes, or a `Script`, or None for
    echoes. ``formats`` are spoken besides its own, each at the paths that end so. Raises `ConfigError` for a
    wrong script, and when it cannot listen.
    """

    def __init__(
        self,
        script: Mapping[str, Any] | Script | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        latency_s: float = 0.0,
        formats: Mapping[str, WireFormat] | None = None,
    ) -> None:
        self._formats = {**_FORMATS, **(formats or {})}
        self.script = script if isinstance(script, Script) else Script(script)
        self.url = ""
        self._host, self._port, self._latency_s = host, port, latency_s
        self._server = StubServer(self._route)

    async def __aenter__(self) -> Self:
        file = self.script.document.log
        try:
            self._log = RequestLog(Path(file) if file else None)
        except OSError as error:
            raise ConfigError([f"llm-stub: cannot write the log {file}: {error.strerror}"]) from None
        try:
            self.url = await self._server.start(self._host, self._port)
        except OSError as error:
            await self.__aexit__()
            raise ConfigError(
                [f"llm-stub: cannot listen on {self._host}:{self._port}: {error.strerror}"]
            ) from None
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.close()
        self._log.close()

    @property
    def calls(self) -> list[RecordedRequest]:
        """The model calls so far, oldest first (the last 10,000)."""
        return self._log.all()

    def _route(self, method: str, path: str, body: bytes) -> StubResponse:
        wire = self._wire_of(path)
        if method == "POST" and wire is not None:
            return self._model_call(wire, path, body)
        if path == "/health" and method == "GET":
            return StubResponse(body=b'{"status":"ok"}')
        if path == "/calls" and method == "GET":
            return StubResponse(body=self._log.to_json())
        if path == "/calls" and method == "DELETE":
            self._log.clear()
            return StubResponse(body=b"[]")
        return StubResponse(
            status=404, body=dumps({"error": {"message": f"llm-stub has no {method} {path}"}})
        )

    def _wire_of(self, path: str) -> WireFormat | None:
        path = path.partition("?")[0]
        return next((wire for end, wire in self._formats.items() if path.endswith(end)), None)

    def _model_call(self, wire: WireFormat, path: str, body: bytes) -> StubResponse:
        try:
            call = wire.read(path, body)
        except msgspec.DecodeError as error:
            return StubResponse(
                status=400, body=wire.error(400, f"llm-stub cannot read this request: {error}")
            )
        answer = self.script.answer(call)
        reply = self._reply(wire, call, answer)
        number = self.script.calls
        self._log.add(
            RecordedRequest(
                number, call.format, path, call.model, call.stream, reply.status, msgspec.Raw(body)
            )
        )
        return reply

    def _reply(self, wire: WireFormat, call: ModelRequest, answer: ScriptedAnswer) -> StubResponse:
        delay = self._latency_s + self.script.delay_of(answer)
        number = self.script.calls
        if answer.status is not None:
            headers = tuple(answer.headers.items())
            body = wire.error(answer.status, answer.error)
            return StubResponse(
                status=answer.status, body=body, headers=headers, delay=delay, hang=answer.hang
            )
        body = b"" if call.stream else wire.plain(call, answer, number)
        chunks = tuple(wire.chunks(call, answer, number)) if call.stream else ()
        return StubResponse(
            body=body,
            chunks=chunks,
            headers=tuple(answer.headers.items()),
            delay=delay,
            chunk_delay=answer.chunk_delay,
            broken=answer.broken or "",
            hang=answer.hang,
        )


def serve(
    host: str,
    port: int,
    script: Path | None = None,
    latency_s: float = 0.0,
    formats: Mapping[str, WireFormat] | None = None,
) -> None:
    """Runs the stub until SIGINT or SIGTERM. Prints one line with its URL when it is ready.

    ``port`` 0 picks a free one; ``latency_s`` is added to every answer. Raises `ConfigError`.
    """
    stub = LlmStub(load(script) if script else None, host, port, latency_s, formats)
    runner = asyncio.Runner(loop_factory=_fast_loop())
    with runner:
        runner.run(_until_stopped(stub))


async def _until_stopped(stub: LlmStub) -> None:
    stop = asyncio.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, stop.set)
    async with stub:
        sys.stdout.write(f"llm-stub is ready at {stub.url}\n")
        sys.stdout.flush()
        await stop.wait()


def _fast_loop() -> Any:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop

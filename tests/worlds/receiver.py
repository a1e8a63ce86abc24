"""Where notifications arrive: a real HTTP server that writes down what it got, and answers as a test says."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from tests.worlds.ports import free_port

WITHIN_S = 120.0
Answer = Callable[[web.Request], Awaitable[web.Response]]


async def ok(request: web.Request) -> web.Response:
    return web.Response()


class Receiver:
    """``got``: path, headers and JSON of each request, in order. ``answers`` are taken one after the other,
    then ``answer``."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/hook"
        self.got: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.answers: list[Answer] = []
        self.answer: Answer = ok
        self.most_at_once = self._under_way = 0
        self._more = asyncio.Condition()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, _, body in self.got]

    @property
    def told(self) -> list[str]:
        """What the requests said, in short: the state, or "artifact"."""
        return [short(body) for body in self.bodies]

    @asynccontextmanager
    async def up(self) -> AsyncIterator["Receiver"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        try:
            yield self
        finally:
            await runner.cleanup()

    async def until(self, count: int) -> None:
        """Returns when so many requests came."""
        async with asyncio.timeout(WITHIN_S), self._more:
            await self._more.wait_for(lambda: len(self.got) >= count)

    async def _take(self, request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        body = json.loads(await request.read())
        async with self._more:
            self.got.append((request.path, headers, body))
            self._more.notify_all()
        answer = self.answers.pop(0) if self.answers else self.answer
        self._under_way += 1
        self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            response = await answer(request)
            response.force_close()  # the crash of a mesh in this loop would kill whom the connection is with
            return response
        finally:
            self._under_way -= 1


def status(code: int, **headers: str) -> Answer:
    """An answer with nothing but a status."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=code, headers=headers)

    return answer


def short(body: dict[str, Any]) -> str:
    if "artifactUpdate" in body:
        return "artifact"
    state: str = (
        body["statusUpdate"]["status"]["state"] if "statusUpdate" in body else body["status"]["state"]
    )
    return state.removeprefix("TASK_STATE_").lower()

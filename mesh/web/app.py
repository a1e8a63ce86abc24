"""The web chat as an ASGI app: the files of the page, and a few routes that pass requests on to the mesh."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from mesh.core.errors import BadRequest, MeshError, TooLarge
from mesh.net.bodies import BodyTooLarge, read_body
from mesh.net.http_status import retry_after_of, status_of
from mesh.net.sse import encode
from mesh.web import approval_kinds
from mesh.web.config import WebConfig
from mesh.web.page_requests import (
    CancelTurn,
    CreateConversation,
    DecideApproval,
    MessageForm,
    StepIn,
    cancel_request,
    checked_id,
    decision_request,
    forwarded,
    intervention_request,
    message_request,
    read,
)
from mesh.web.search import search
from mesh.web.security import SecurityMiddleware
from mesh.web.upstream import Upstream, UpstreamResponse

STATIC = Path(__file__).parent / "static"
_ASYNC = {"Prefer": "respond-async", "Content-Type": "application/json"}
_MAX_WORDS = 200


def app(config: WebConfig) -> Starlette:
    """The app before the mesh that ``config`` names."""
    upstream = Upstream(config)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await upstream.close()

    return Starlette(
        routes=_Routes(upstream, config).all(),
        middleware=[Middleware(SecurityMiddleware, names=config.served_names)],
        exception_handlers={MeshError: _error_response, HTTPException: _refused},
        lifespan=lifespan,
    )


class _Routes:
    """The routes of the page. Each checks a request, sends it to the mesh and passes the response on."""

    def __init__(self, upstream: Upstream, config: WebConfig) -> None:
        self._upstream = upstream
        self._max_body_bytes = config.max_body_bytes
        self._timeout_s = config.timeout_s

    def all(self) -> list[Route | Mount]:
        return [
            Route("/", _page),
            Route("/api/conversations", self.conversations),
            Route("/api/conversation", self.create, methods=["POST"]),
            Route("/api/conversation/{id}", self.conversation),
            Route("/api/conversation/{id}/events", self.events),
            Route("/api/conversation/{id}/agents", self.agents),
            Route("/api/conversation/{id}/agents/changes", self.agent_changes),
            Route("/api/conversation/{id}/spend", self.spend),
            Route("/api/send", self.send, methods=["POST"]),
            Route("/api/approve", self.approve, methods=["POST"]),
            Route("/api/approval/{id}/preview", self.preview),
            Route("/api/cancel", self.cancel, methods=["POST"]),
            Route("/api/intervene", self.intervene, methods=["POST"]),
            Route("/api/tree", self._get("/tree")),
            Route("/api/tools", self._get("/tools")),
            Route("/static/approval-kinds.js", _approval_kinds),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]

    async def conversations(self, request: Request) -> Response:
        headers, query = forwarded(request.headers), dict(request.query_params)
        words = query.pop("q", "").strip()
        if len(words) > _MAX_WORDS:
            raise BadRequest(f"q is over {_MAX_WORDS} characters")
        if words:
            return _passed_on(await search(self._upstream, words, headers))
        return _passed_on(
            await self._upstream.request("GET", "/conversations", headers=headers, params=query)
        )

    async def conversation(self, request: Request) -> Response:
        return await self._get(f"/conversations/{_id(request)}")(request)

    async def spend(self, request: Request) -> Response:
        return await self._get(f"/conversations/{_id(request)}/spend")(request)

    async def agents(self, request: Request) -> Response:
        """The agents of the newest turn, also those that have ended: a page, from the one before on."""
        params = {"conversation": _id(request), "all": "true"}
        if cursor := request.query_params.get("cursor", ""):
            params["cursor"] = cursor
        headers = forwarded(request.headers)
        return _passed_on(await self._upstream.request("GET", "/agent/tree", headers=headers, params=params))

    async def agent_changes(self, request: Request) -> Response:
        """The agents at work, and how they change."""
        return await self._relayed("/agent/tree", forwarded(request.headers), {"conversation": _id(request)})

    async def create(self, request: Request) -> Response:
        read(await self._body(request), CreateConversation)
        return await self._post(request, "/conversations", b"{}")

    async def send(self, request: Request) -> Response:
        said = read(await self._body(request), MessageForm)
        return await self._post(request, *message_request(said))

    async def approve(self, request: Request) -> Response:
        said = read(await self._body(request), DecideApproval)
        return await self._post(request, *decision_request(said))

    async def preview(self, request: Request) -> Response:
        """What the call of an approval would do: the part from an offset on."""
        params = {key: request.query_params[key] for key in ("offset",) if key in request.query_params}
        path = f"/approvals/{_id(request)}/preview"
        asked = self._upstream.request("GET", path, headers=forwarded(request.headers), params=params)
        return _passed_on(await asked)

    async def cancel(self, request: Request) -> Response:
        said = read(await self._body(request), CancelTurn)
        return await self._post(request, *cancel_request(said))

    async def intervene(self, request: Request) -> Response:
        said = read(await self._body(request), StepIn)
        return await self._post(request, *intervention_request(said))

    async def events(self, request: Request) -> Response:
        """The event stream of the mesh, byte for byte. It is closed when the browser disconnects."""
        headers = forwarded(request.headers)
        params = {key: request.query_params[key] for key in ("after",) if key in request.query_params}
        if "last-event-id" in request.headers:
            headers["last-event-id"] = request.headers["last-event-id"]
        return await self._relayed(f"/conversations/{_id(request)}/events", headers, params)

    async def _relayed(self, path: str, headers: dict[str, str], params: dict[str, str]) -> Response:
        stack = AsyncExitStack()
        asked = self._upstream.events(path, headers=headers, params=params)
        stream = await stack.enter_async_context(asked)
        if isinstance(stream, UpstreamResponse):
            await stack.aclose()
            return _passed_on(stream)
        return _Relay(stream, stack)

    def _get(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def get(request: Request) -> Response:
            return _passed_on(await self._upstream.request("GET", path, headers=forwarded(request.headers)))

        return get

    async def _post(self, request: Request, path: str, body: bytes) -> Response:
        headers = forwarded(request.headers) | _ASYNC
        return _passed_on(await self._upstream.request("POST", path, headers=headers, content=body))

    async def _body(self, request: Request) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await read_body(request.stream(), self._max_body_bytes)
        except BodyTooLarge as error:
            raise TooLarge(f"the request is over {error.limit:,} bytes (max_body_bytes)") from None
        except TimeoutError:
            why = f"the body did not arrive within {self._timeout_s:g} s (timeout_s)"
            raise HTTPException(408, why, {"Connection": "close"}) from None


class _Relay(StreamingResponse):
    """Events as they arrive. The stream of the mesh is closed whatever ends this response."""

    def __init__(self, stream: AsyncIterator[bytes], stack: AsyncExitStack) -> None:
        super().__init__(_with_reason(stream), media_type="text/event-stream")
        self._stack = stack

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._stack:
            await super().__call__(scope, receive, send)


async def _with_reason(stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The bytes of a stream. If it breaks between two events, one more event says why."""
    end = b"\n\n"
    try:
        async for chunk in stream:
            end = (end + chunk)[-2:]
            yield chunk
    except MeshError as problem:
        if end == b"\n\n":  # otherwise the browser drops the half event, as it should
            said = msgspec.json.encode({"type": "cut_off", "message": str(problem)})
            yield encode(said, event="cut_off")


async def _page(_: Request) -> Response:
    return FileResponse(STATIC / "index.html")


async def _approval_kinds(_: Request) -> Response:
    return Response(approval_kinds.module(), media_type="text/javascript")


def _id(request: Request) -> str:
    return checked_id(request.path_params["id"])


def _passed_on(response: UpstreamResponse) -> Response:
    return Response(response.body, response.status, response.headers, "application/json")


async def _error_response(_: Request, problem: Exception) -> Response:
    assert isinstance(problem, MeshError)
    retry_after_s = retry_after_of(problem)
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else None
    return JSONResponse({"error": str(problem)}, status_of(problem), headers)


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return JSONResponse(
        {"error": f"{request.url.path}: {problem.detail}"}, problem.status_code, problem.headers
    )

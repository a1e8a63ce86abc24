"""The server as clients meet it: MCP by the official SDK, over stdio or HTTP."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from mesh.servers import over_http
from mesh.servers.filesystem.bounds import MAX_CALL_S, TimeLimit
from mesh.servers.filesystem.dispatch import CallResult, Server
from mesh.servers.filesystem.narrowing import narrowed_by_client
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.filesystem.schemas import TOOLS
from mesh.servers.server_version import VERSION

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server as McpServer
    from starlette.requests import Request
    from starlette.responses import Response

NAME = "mcp-filesystem"
_GOES_ON_S = 3
"""For calls under way when the server is told to end."""
_SHORT = frozenset({"list_roots", "read_file", "stat_file", "permissions_file"})
"""Tools that take less time than to hand a call to a thread and the result back: two thirds of a call."""
MOST_AT_ONCE = 16
"""Calls that run at the same time; others wait."""


def build(server: Server, *, is_shared: bool) -> "McpServer[Any]":
    """The MCP server. If it is shared by clients, no call is answered in the event loop itself: a disk that
    hangs would keep the others waiting."""
    import mcp_types as types
    from mcp.server.lowlevel import Server as McpServer
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider

    listing = types.ListToolsResult.model_validate({"tools": TOOLS})
    limiter = anyio.CapacityLimiter(MOST_AT_ONCE)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        arguments = params.arguments or {}
        try:
            roots = await narrowed_by_client(context, server.roots)
        except FileRefusal as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        own = server if roots is server.roots else replace(server, roots=roots)
        if is_shared or params.name not in _SHORT or "offset_lines" in arguments:
            answer = await _answered(own, params.name, arguments, limiter)
        else:
            answer = own.answer(params.name, arguments, TimeLimit(MAX_CALL_S))
        text = answer.value if answer.failed else as_json(answer.value)
        meta = {"mesh": {"conflict": True}} if answer.conflict else None
        return types.CallToolResult(
            content=[types.TextContent(text=text)], is_error=answer.failed, _meta=meta
        )

    mcp = McpServer(NAME, version=VERSION, on_list_tools=list_tools, on_call_tool=call_tool)
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        # Nobody collects spans, and to make them takes a tenth of the time of a call.
        mcp.middleware.clear()
    return mcp


def as_json(value: Any) -> str:
    """The text that `json.dumps` writes without ``ensure_ascii``, in a third of the time."""
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


async def _answered(
    server: Server, tool: str, arguments: dict[str, Any], limiter: anyio.CapacityLimiter
) -> CallResult:
    """Runs a call in a thread: a disk may be slow, and other calls go on. A call that is cancelled ends at
    the next place where it may; a change that has begun is completed."""
    stop = TimeLimit(MAX_CALL_S)
    try:
        return await anyio.to_thread.run_sync(
            server.answer, tool, arguments, stop, limiter=limiter, abandon_on_cancel=True
        )
    finally:
        stop.cancel()


async def serve_stdio(server: Server) -> None:
    from mesh.mcp.stdio_server import serve

    await serve(build(server, is_shared=False))


async def serve_http(server: Server, host: str, port: int) -> None:
    """Serves ``http://host:port/mcp`` and ``/health``, and writes the address to stderr. Port 0 picks a free
    port."""
    from starlette.routing import Route

    async def health(request: "Request") -> "Response":
        return _health(server)

    # Answers are streams of events, on which a client can be asked for its roots, and not plain JSON.
    app = build(server, is_shared=True).streamable_http_app(
        json_response=False, host=host, custom_starlette_routes=[Route("/health", health)]
    )
    await over_http.serve(app, NAME, host, port, _GOES_ON_S)


def _health(server: Server) -> "Response":
    """Whether the roots are still there: 200, or 503 with the names of those that are not."""
    from starlette.responses import JSONResponse

    gone = sorted(root.name for root in server.roots if not root.is_there)
    status = {"status": "unavailable", "roots": gone} if gone else {"status": "ok"}
    return JSONResponse(status, status_code=503 if gone else 200)

"""The server as clients meet it: MCP by the official SDK, over stdio or HTTP."""

import json
from typing import TYPE_CHECKING, Any

import anyio

from mesh.mcp.meta import context_of
from mesh.sandbox.launching import LauncherGone
from mesh.servers import over_http
from mesh.servers.filesystem.narrowing import narrowed_by_client
from mesh.servers.filesystem.refusal import FileRefusal
from mesh.servers.server_version import VERSION
from mesh.servers.shell.http_clients import NotesEnd, until_over
from mesh.servers.shell.request import DEFAULT_TIMEOUT_S, SCHEMA, TOOL, request_of
from mesh.servers.shell.run_command import Commands

if TYPE_CHECKING:
    import mcp_types as types
    from mcp.server.lowlevel import Server as McpServer
    from starlette.requests import Request
    from starlette.responses import Response

NAME = "mcp-shell"
MOST_AT_ONCE = 8
"""Commands that run at the same time; others wait."""
_GOES_ON_S = 3


def tool_of(commands: Commands) -> dict[str, Any]:
    """The tool as clients see it. Without a sandbox, every call of it is to be asked about, whatever its
    command is."""
    sandbox = commands.sandbox.kind
    reach = {
        "none": "There is no sandbox: it can do all that the user of this server can.",
    }.get(sandbox, "It can write in the roots only" + ("." if commands.network else ", and has no network."))
    more = {"risk": "high", "ask": True} if sandbox == "none" else {"risk": "medium"}
    return {
        "name": TOOL,
        "description": f"Run a command, and wait for its end. {reach} Nothing that it starts is left when it "
        f"has ended, and after {DEFAULT_TIMEOUT_S} s (timeout_s) it is stopped. It reads nothing from stdin.",
        "inputSchema": SCHEMA,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": False,
            "openWorldHint": sandbox == "none" or commands.network,
        },
        "_meta": {
            "mesh": {
                "command": "command",
                "exe": ["exe", "args"],
                "paths": [{"path": "cwd", "root": "root"}],
                "check": {"check": True},
                "sandbox": sandbox,
                **more,
            }
        },
    }


def build(commands: Commands) -> "McpServer[Any]":
    """The MCP server."""
    import mcp_types as types
    from mcp.server.lowlevel import Server as McpServer

    listing = types.ListToolsResult.model_validate({"tools": [tool_of(commands)]})
    at_once = anyio.CapacityLimiter(MOST_AT_ONCE)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return listing

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        async with until_over(context.request):
            return await _result(commands, at_once, context, params)
        return _text("the client has gone, and the command was ended", is_error=True)

    return McpServer(NAME, version=VERSION, on_list_tools=list_tools, on_call_tool=call_tool)


async def _result(
    commands: Commands, at_once: anyio.CapacityLimiter, context: Any, params: "types.CallToolRequestParams"
) -> "types.CallToolResult":
    """Runs a command, or looks up what came of one."""

    async def tell(written: int, latest: str) -> None:
        await context.session.report_progress(written, message=latest)

    arguments = dict(params.arguments or {})
    asked = context_of(context.meta)
    try:
        if arguments.pop("check", False) is True:
            found = await commands.records.outcome(asked.idempotency_key, arguments, asked.started_at)
            return _text(json.dumps(found))
        with commands.records.call(asked.idempotency_key, arguments) as record:
            roots = await narrowed_by_client(context, commands.roots)
            request = request_of(params.name, arguments, roots, commands.shell)
            async with at_once:
                return _text(await commands.run(request, record, tell))
    except (FileRefusal, LauncherGone) as error:
        return _text(str(error), is_error=True)


def _text(text: str, *, is_error: bool = False) -> "types.CallToolResult":
    import mcp_types as types

    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)


async def serve_stdio(commands: Commands) -> None:
    from mesh.mcp.stdio_server import serve

    await serve(build(commands))


async def serve_http(commands: Commands, host: str, port: int) -> None:
    """Serves ``http://host:port/mcp`` and ``/health``, and writes the address to stderr. Port 0 picks a free
    port."""
    from starlette.routing import Route

    async def health(request: "Request") -> "Response":
        return _health(commands)

    app = build(commands).streamable_http_app(host=host, custom_starlette_routes=[Route("/health", health)])
    app.add_middleware(NotesEnd)
    await over_http.serve(app, NAME, host, port, _GOES_ON_S)


def _health(commands: Commands) -> "Response":
    """Whether commands can be run: 200, or 503 with what is gone."""
    from starlette.responses import JSONResponse

    gone = sorted(root.name for root in commands.roots if not root.is_there)
    problem = {"roots": gone} if gone else {} if commands.launcher.is_there else {"launcher": "gone"}
    status = {"status": "unavailable", **problem} if problem else {"status": "ok"}
    return JSONResponse({**status, "sandbox": commands.sandbox.kind}, status_code=503 if problem else 200)

"""The sessions of the conformance tests: one small set of tools, offered in memory and by real servers."""

import asyncio
import contextlib
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged

from mesh.mcp.memory import MemorySession, execution, progress
from mesh.mcp.meta import meta_of
from mesh.mcp.port import Tool, ToolOutcome, ToolSession
from mesh.mcp.progress import progress_of
from mesh.mcp.replicas import ReplicatedSession
from mesh.mcp.session import McpSession
from tests.worlds.held import hold, until_heard

HOSTILE = Path(__file__).with_name("hostile.py")
ANY = {"type": "object"}
OPEN = ("echo", "fail", "wait", "told", "grow", "steps", "patient", "cancelled", "hold")
"""The tools that need no person. ``told`` answers with the ``_meta`` of its call."""

OneSession = contextlib.AbstractAsyncContextManager[ToolSession]


@dataclass
class Spec:
    """A server's config, as `mesh.mcp.session.ServerSpec` asks for it."""

    name: str = "srv"
    command: str | None = None
    args: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    url: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    unannotated: Literal["ask", "allow"] = "ask"
    timeout_s: float = 20.0
    start_timeout_s: float = 20.0
    max_result_bytes: int = 1 << 20
    believes_checks: bool = False
    tells_truth: bool = False
    is_trusted: bool = False
    previews: Mapping[str, dict[str, Any]] = field(default_factory=dict)


def hostile(*args: str, **options: Any) -> Spec:
    return Spec(command=sys.executable, args=["-I", "-S", str(HOSTILE), *args], **options)


async def next_step(args: dict[str, Any], done: int) -> None:
    """Between two steps of the tool ``steps``."""
    if "heard" in args:
        await until_heard(args["heard"], done)
    else:
        await asyncio.sleep(args["s"])


@asynccontextmanager
async def in_memory() -> AsyncIterator[ToolSession]:
    async def echo(args: dict[str, Any]) -> str:
        return str(args["text"])

    async def fail(args: dict[str, Any]) -> ToolOutcome:
        raise ValueError("it went wrong")

    async def wait(args: dict[str, Any]) -> str:
        start = time.monotonic()
        await asyncio.sleep(args["s"])
        return json.dumps([start, time.monotonic()])

    async def told(args: dict[str, Any]) -> str:
        context = execution.get()
        return json.dumps({} if context is None else meta_of(context))

    async def steps(args: dict[str, Any]) -> str:
        tell = progress.get()
        for done in range(1, args["n"] + 1):
            tell(progress_of(done, args["n"], f"step {done}"))
            await next_step(args, done)
        return "walked"

    async def patient(args: dict[str, Any]) -> str:
        progress.get()(progress_of(0, 1, "begun"))
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            broken_off.append("patient")
            raise
        return "never"

    async def cancelled(args: dict[str, Any]) -> str:
        return str(len(broken_off))

    async def held(args: dict[str, Any]) -> str:
        await hold(args["folder"], args["n"])
        return "released"

    async def grow(args: dict[str, Any]) -> str:
        if args["name"] not in {each.name for each, _ in tools}:
            tools.append((tool(args["name"]), echo))
        session.offer(tools)
        return "grown"

    def tool(name: str, destructive: bool = False) -> Tool:
        return Tool(
            name=name,
            description=name,
            input_schema=ANY,
            server="srv",
            destructive=destructive,
            repeatable=not destructive,
        )

    broken_off: list[str] = []
    tools: list[tuple[Tool, Callable[[dict[str, Any]], Awaitable[ToolOutcome | str]]]] = [
        (tool("echo"), echo),
        (tool("fail"), fail),
        (tool("wait"), wait),
        (tool("told"), told),
        (tool("grow"), grow),
        (tool("steps"), steps),
        (tool("patient"), patient),
        (tool("cancelled"), cancelled),
        (tool("hold"), held),
        (tool("drop", destructive=True), echo),
    ]
    session = MemorySession("srv", tools)
    yield session
    await session.close()


@asynccontextmanager
async def over_stdio() -> AsyncIterator[ToolSession]:
    session = McpSession(hostile())
    yield session
    await session.close()


def sdk_server() -> Server[Any]:
    """The same tools on the SDK's server."""
    open_tool: dict[str, Any] = {"inputSchema": ANY, "annotations": {"readOnlyHint": True}}
    offered = [{"name": name, "description": name, **open_tool} for name in OPEN]
    offered.append({"name": "drop", "inputSchema": ANY, "annotations": {"destructiveHint": True}})
    broken_off: list[str] = []
    bus = InMemorySubscriptionBus()

    def text(value: str, is_error: bool = False) -> types.CallToolResult:
        return types.CallToolResult(content=[types.TextContent(text=value)], is_error=is_error)

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult.model_validate({"tools": offered})

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        args = params.arguments or {}
        match params.name:
            case "echo":
                return text(args["text"])
            case "fail":
                return text("it went wrong", is_error=True)
            case "wait":
                start = time.monotonic()
                await asyncio.sleep(args["s"])
                return text(json.dumps([start, time.monotonic()]))
            case "told":
                return text(json.dumps(params.meta or {}))
            case "steps":
                for done in range(1, args["n"] + 1):
                    await context.session.report_progress(done, args["n"], f"step {done}")
                    await next_step(args, done)
                return text("walked")
            case "patient":
                await context.session.report_progress(0, 1, "begun")
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    broken_off.append("patient")
                    raise
            case "cancelled":
                return text(str(len(broken_off)))
            case "hold":
                await hold(args["folder"], args["n"])
                return text("released")
            case "grow":
                if args["name"] not in {each["name"] for each in offered}:
                    offered.append({"name": args["name"], **open_tool})
                await bus.publish(ToolsListChanged())
                await context.session.send_tool_list_changed()
                return text("grown")
        return text(f"unknown tool {params.name}", is_error=True)

    listen = ListenHandler(bus)
    server = Server("sdk", on_list_tools=list_tools, on_call_tool=call_tool, on_subscriptions_listen=listen)
    server.create_initialization_options = lambda *a, **k: Server.create_initialization_options(  # type: ignore[method-assign]
        server, NotificationOptions(tools_changed=True)
    )
    return server


def without_discover(app: Any) -> Any:
    """As an old server: whatever comes with the header of the revision of 2026 is refused."""

    async def old(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and dict(scope["headers"]).get(b"mcp-method") == b"server/discover":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await app(scope, receive, send)

    return old


@asynccontextmanager
async def served(app: Any, port: int = 0) -> AsyncIterator[str]:
    """An ASGI app on a real port of this machine; its base URL."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none")
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
        task = asyncio.create_task(server.serve(sockets=[sock]))
        async with asyncio.timeout(30):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await asyncio.wait_for(task, 30)


@asynccontextmanager
async def over_http(old: bool = False, json_response: bool = False) -> AsyncIterator[ToolSession]:
    app = sdk_server().streamable_http_app(json_response=json_response)
    async with served(without_discover(app) if old else app) as url:
        session = McpSession(Spec(url=f"{url}/mcp"))
        yield session
        await session.close()


@asynccontextmanager
async def behind_an_actor(one: Callable[[], OneSession]) -> AsyncIterator[ToolSession]:
    """As a node sees the session of an actor: by calls on a connection."""
    # Not at the top: they import Ray.
    from deployments.channel import Channel, Endpoint
    from deployments.remote import RemoteSession
    from deployments.served_session import ServedSession
    from deployments.services import TOOL_SESSION

    async with one() as session:
        endpoint = Endpoint(TOOL_SESSION.methods_of(ServedSession(session, contextlib.nullcontext())))
        channel = Channel(partial(endpoint.listen, "127.0.0.1"))
        yield RemoteSession("srv", "srv", TOOL_SESSION.stub(channel, "srv"), 20)
        channel.close()
        endpoint.close()


REPLICAS = 3


@asynccontextmanager
async def replicated(one: Callable[[], OneSession]) -> AsyncIterator[ToolSession]:
    async with contextlib.AsyncExitStack() as stack:
        yield ReplicatedSession("srv", [await stack.enter_async_context(one()) for _ in range(REPLICAS)])


WORLDS: dict[str, Callable[[], OneSession]] = {
    "memory": in_memory,
    "stdio": over_stdio,
    "http": over_http,
    "http-json": lambda: over_http(json_response=True),
    "http-2025": lambda: over_http(old=True),
    "actor": lambda: behind_an_actor(in_memory),
    "actor-stdio": lambda: behind_an_actor(over_stdio),
    "memory-replicas": lambda: replicated(in_memory),
    "stdio-replicas": lambda: replicated(over_stdio),
    "actor-replicas": lambda: replicated(lambda: behind_an_actor(in_memory)),
}
AT_A_TIME = {world: REPLICAS if "replicas" in world else 1 for world in WORLDS}
"""How many calls run at the same time."""

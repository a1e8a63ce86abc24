"""One living connection to an MCP server: the SDK's client over one of our wires.

Above: `mesh.mcp.session`, whose owner task opens a link, uses it and leaves it. Below: the SDK. A link
must be entered, used and left by one task, for the SDK cancels the task that entered it when an HTTP
connection breaks. A link knows no queue and no deadline of a call, and is never repaired: it ends
with `LinkLost`, or by an exception group of the SDK's, and a new one is opened.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Literal, Protocol

import anyio
import httpx2
import mcp_types as types
from mcp.client._transport import TransportStreams
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.client.subscriptions import listen as sdk_listen
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mesh.core.errors import ToolSessionError
from mesh.core.policy import hints_of
from mesh.mcp.content import outcome_of
from mesh.mcp.http import HttpWire
from mesh.mcp.port import Tool, ToolOutcome
from mesh.mcp.session_file import SessionFile
from mesh.mcp.stdio import StdioWire

logger = logging.getLogger("mesh.mcp")

PAGES = 100
PING_S = 2.0
RELISTEN_S = 5.0
LISTEN_ACK_S = 10.0
LINE_SLACK = 64 << 10
MADE_UP = (
    "Session terminated",
    "Not Found",
    "Server returned an error response",
    "Unexpected content type",
    "server answered a request with 202",
    "Redirect to",
    "SSE stream",
    "Failed to parse",
)
"""How the errors begin that the SDK's HTTP transport puts in place of an answer that never came."""
SELF = types.Implementation(name="mesh", version=version("mesh"))


class ServerSpec(Protocol):
    """What a session needs to know of a server's config. ``command`` or ``url`` is set."""

    @property
    def name(self) -> str: ...
    @property
    def command(self) -> str | None: ...
    @property
    def args(self) -> list[str]: ...
    @property
    def env(self) -> dict[str, str]: ...
    @property
    def url(self) -> str | None: ...
    @property
    def headers(self) -> dict[str, str]: ...
    @property
    def unannotated(self) -> Literal["ask", "allow"]: ...
    @property
    def timeout_s(self) -> float: ...
    @property
    def start_timeout_s(self) -> float: ...
    @property
    def max_result_bytes(self) -> int: ...


class Wire(Protocol):
    """A transport that can say what happened to it (see `StdioWire`, `HttpWire`)."""

    trouble: str
    reached: bool
    forgotten: bool

    def mark(self) -> None: ...
    def doom(self, why: str) -> None: ...
    async def __aenter__(self) -> TransportStreams: ...
    async def __aexit__(self, *exc_info: Any) -> bool | None: ...


class LinkLost(Exception):
    """The connection is of no use any more, and why."""


class WireTool(BaseModel):
    """A tool as it came: old servers put hints at the top level, where the SDK's type drops them."""

    model_config = ConfigDict(extra="allow")
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(alias="inputSchema")

    def resolved(self, server: ServerSpec) -> Tool:
        hints = hints_of(self.model_extra or {}, server.unannotated)
        return Tool(
            name=self.name,
            description=self.description or "",
            input_schema=self.input_schema,
            server=server.name,
            destructive=hints.destructive,
            repeatable=hints.repeatable,
        )


class Listing(BaseModel):
    """A page of tools."""

    tools: list[WireTool]
    next_cursor: str | None = Field(default=None, alias="nextCursor")


LISTING = TypeAdapter(Listing)
ANSWER: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class Link:
    """See the module. `stale`: the server said that its tools changed. `lost`: the output has ended."""

    def __init__(self, server: ServerSpec, wake: Callable[[], None], file: SessionFile | None) -> None:
        self.stale = False
        self.lost = False
        self._server = server
        self._wake = wake
        self.wire = self._make_wire(file)
        self.session: ClientSession

    async def tools(self) -> tuple[Tool, ...]:
        """The server's list, all its pages (at most `PAGES`). Raises `LinkLost`."""
        self.stale = False
        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await self._page(cursor)
            found += [tool.resolved(self._server) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor:
                return tuple(found)
        raise LinkLost(f"its list of tools has more than {PAGES} pages")

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolOutcome:
        """Runs a tool. Raises `LinkLost`; waits as long as the server takes.

        Not the SDK's `call_tool`: that one turns a tool that ran into an error when the result does not
        fit the tool's output schema."""
        request = types.CallToolRequest(params=types.CallToolRequestParams(name=name, arguments=arguments))
        self.wire.mark()
        try:
            result = await self.session.send_request(request, ANSWER)
        except MCPError as error:
            return self._refusal(error)
        except ValidationError as error:
            raise LinkLost(f"its result breaks the protocol ({error.error_count()} problems)") from error
        if isinstance(result, types.InputRequiredResult):
            return ToolOutcome(content="the tool asks for more input, which is not supported", is_error=True)
        return outcome_of(result, self._server.max_result_bytes)

    async def check(self) -> None:
        """Raises `LinkLost` unless the server answers within `PING_S` seconds."""
        with anyio.move_on_after(PING_S):
            try:
                if self._modern:
                    await self.session.send_discover(str(self.session.protocol_version))
                else:
                    await self.session.send_ping()
            except MCPError as error:
                self._refusal(error)  # any answer is a sign of life
            return
        self.wire.doom("it hangs: it did not answer its last call, nor a ping")
        raise LinkLost(self.wire.trouble)

    async def watch(self) -> None:
        """Keeps a subscription to changes of the list open, where the protocol wants one (2026-07-28)."""
        capabilities = self.session.server_capabilities
        if not (self._modern and capabilities and capabilities.tools and capabilities.tools.list_changed):
            return
        while True:
            with suppress(MCPError, SubscriptionLost, ListenNotSupportedError, TimeoutError):
                await self._listen()
            await asyncio.sleep(RELISTEN_S)
            self.notice()  # what changed in between was not told

    async def _listen(self) -> None:
        async with asyncio.timeout(LISTEN_ACK_S) as patience:
            async with sdk_listen(self.session, tools_list_changed=True) as changes:
                patience.reschedule(None)
                async for _ in changes:
                    self.notice()

    async def on_message(self, message: IncomingMessage) -> None:
        """What the SDK hands out beside answers."""
        if isinstance(message, types.ToolListChangedNotification):
            self.notice()

    def notice(self) -> None:
        self.stale = True
        self._wake()

    @property
    def _modern(self) -> bool:
        return self.session.protocol_version in MODERN_PROTOCOL_VERSIONS

    def _ended(self) -> None:
        self.lost = True
        self._wake()

    def _make_wire(self, file: SessionFile | None) -> Wire:
        server, bound = self._server, self._server.max_result_bytes * 2 + LINE_SLACK
        if server.url:
            return HttpWire(server.url, server.headers, bound)
        command = [server.command or "", *server.args]
        return StdioWire(server.name, command, server.env, bound, self._ended, file)

    async def _page(self, cursor: str | None) -> Listing:
        params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
        try:
            page = await self.session.send_request(types.ListToolsRequest(params=params), LISTING)
            if self._modern and "x-mcp-header" in json.dumps([t.input_schema for t in page.tools]):
                await self.session.list_tools(params=params)  # there the SDK learns which headers to send
        except MCPError as error:
            raise LinkLost(self.wire.trouble or f"it does not list its tools: {error}") from error
        except ValidationError as error:
            raise LinkLost(f"its list of tools breaks the protocol: {first_problem(error)}") from error
        return page

    def _refusal(self, error: MCPError) -> ToolOutcome:
        """A JSON-RPC error: the server's own, or one that the SDK made up for a broken exchange."""
        made_up = bool(self._server.url) and error.message.startswith(MADE_UP)
        if self.lost or self.wire.forgotten or made_up:
            raise LinkLost(self.wire.trouble or error.message) from error
        return ToolOutcome(content=f"the server refused the call: {error.message}", is_error=True)


def first_problem(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"


@asynccontextmanager
async def open_link(
    server: ServerSpec, wake: Callable[[], None], file: SessionFile | None = None
) -> AsyncIterator[Link]:
    """A link to ``server`` after the handshake. ``wake`` is called when `stale` or `lost` turns true.

    Raises `ToolSessionError` (there is no such command) and `LinkLost`."""
    link = Link(server, wake, file)
    try:
        async with AsyncExitStack() as stack:
            await shake_hands(link, server, stack)
            watcher = asyncio.create_task(link.watch(), name=f"mcp {server.name} changes")
            stack.push_async_callback(ended, watcher)
            yield link
    except Exception as error:
        # The SDK's task groups wrap whatever passes through them.
        raise plain(error, link.wire.trouble) from error


async def shake_hands(link: Link, server: ServerSpec, stack: AsyncExitStack) -> None:
    try:
        # A timeout of asyncio's, not anyio's: the scopes entered inside stay open beyond it.
        async with asyncio.timeout(server.start_timeout_s):
            incoming, outgoing = await stack.enter_async_context(link.wire)
            session = ClientSession(incoming, outgoing, message_handler=link.on_message, client_info=SELF)
            link.session = await stack.enter_async_context(session)
            await negotiate(session, modern_first=bool(server.url))
    except TimeoutError:
        link.wire.doom(f"no answer to the handshake within {server.start_timeout_s:g} s")
        raise LinkLost(link.wire.trouble) from None
    except (MCPError, RuntimeError, ValidationError) as error:
        raise LinkLost(link.wire.trouble or f"the handshake failed: {error}") from error


async def negotiate(session: ClientSession, modern_first: bool) -> None:
    """Finds a revision both speak. Over stdio the handshake of 2025 goes first, which costs a call a
    sixth less CPU, has a ping, and is what old servers expect; over HTTP the stateless revision of 2026
    does, whose sessions survive a restart of the server."""
    tries = (session.discover, session.initialize)
    first, second = tries if modern_first else reversed(tries)
    try:
        await first()
    except (MCPError, RuntimeError, ValidationError) as refused:
        logger.debug("%s: %s; trying the other revision", first.__name__, refused)
        await second()


def plain(error: BaseException, trouble: str) -> BaseException:
    """The one error of ours in a group, or else what the group tells as a `LinkLost`."""
    leaves = list(flatten(error))
    for leaf in leaves:
        if isinstance(leaf, LinkLost | ToolSessionError):
            return leaf
    expected = all(isinstance(leaf, httpx2.HTTPError | OSError | MCPError) for leaf in leaves)
    why = trouble or "; ".join(str(leaf) or type(leaf).__name__ for leaf in leaves)
    return LinkLost(why) if expected else error


def flatten(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from flatten(inner)
    else:
        yield error


async def ended(task: "asyncio.Task[None]") -> None:
    """Ends a task and waits for it."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

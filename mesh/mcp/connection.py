"""One connection to an MCP server: the SDK's client session over one of our transports.

Above: `mesh.mcp.session`, whose owner task opens a connection, uses it and leaves it. Below: the SDK. One
task must enter, use and leave a connection, because the SDK cancels the task that entered it when an HTTP
connection breaks. A connection knows no queue and no deadline of a call. It is never repaired: it ends with
`McpConnectionLost`, or with an exception group of the SDK's, and a new one is opened.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib.metadata import version
from typing import Any, Literal, Protocol, cast

import anyio
import httpx2
import mcp_types as types
import msgspec
from mcp.client.session import ClientSession, IncomingMessage
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.client.subscriptions import listen as sdk_listen
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from mesh.core.errors import ToolSessionError
from mesh.core.execution import ExecutionContext
from mesh.core.hints import hints_of
from mesh.core.redaction import Redaction
from mesh.mcp.content import outcome_of
from mesh.mcp.http import HttpTransport
from mesh.mcp.meta import ArgumentMeta, ToolMeta, argument_meta, meta_of, tool_meta
from mesh.mcp.port import Tool, ToolOutcome
from mesh.mcp.progress import OnProgress, progress_of
from mesh.mcp.session_file import SessionFile
from mesh.mcp.stdio import StdioTransport

logger = logging.getLogger("mesh.mcp")

MAX_PAGES = 100
"""A list of tools that has more pages is taken for one without an end."""
PING_TIMEOUT_S = 2.0
LISTEN_AGAIN_S = 5.0
LISTEN_TIMEOUT_S = 10.0
ENVELOPE_BYTES = 64 << 10
"""What a message may have beside the result. A result may take twice its bytes, as JSON escapes
characters."""
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
    @property
    def believes_checks(self) -> bool: ...
    @property
    def tells_truth(self) -> bool: ...
    @property
    def is_trusted(self) -> bool: ...
    @property
    def previews(self) -> Mapping[str, dict[str, Any]]: ...


class McpTransport(Protocol):
    """A transport of the SDK's that can say what happened to it: `StdioTransport`, `HttpTransport`.

    ``problem`` says what went wrong last, for a person. ``reached_server`` is whether the last call may have
    reached the server; ``session_expired``, whether the server has forgotten the session.
    """

    problem: str
    reached_server: bool
    session_expired: bool

    def begin_call(self) -> None:
        """Makes `reached_server` and `problem` speak of the call that follows."""
        ...

    def abort(self, reason: str) -> None:
        """Gives the server up: kills it, if it is a subprocess."""
        ...

    def is_from_server(self, error: types.ErrorData) -> bool:
        """Whether the server sent this error. If not, the SDK put it in place of an answer."""
        ...

    async def __aenter__(self) -> tuple[Any, Any]: ...
    async def __aexit__(self, *exc_info: Any) -> bool | None: ...


class McpConnectionLost(Exception):
    """The connection cannot be used any more. The message says why."""


class ReceivedTool(BaseModel):
    """A tool as the server sent it: old servers put hints at the top level, where the SDK's type drops
    them."""

    model_config = ConfigDict(extra="allow")
    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(alias="inputSchema")

    def resolved(self, server: ServerSpec) -> Tool:
        received = self.model_extra or {}
        hints = hints_of(received, server.unannotated)
        said = tool_meta(received.get("_meta")) if server.believes_checks else ToolMeta()
        about = argument_meta(received.get("_meta")) if server.is_trusted else ArgumentMeta()
        if preview := server.previews.get(self.name):
            about = msgspec.structs.replace(about, preview=preview)
        return Tool(
            name=self.name,
            description=self.description or "",
            input_schema=self.input_schema,
            server=server.name,
            destructive=hints.destructive and not said.is_check,
            repeatable=hints.repeatable or said.is_check,
            read_only=hints.read_only or said.is_check,
            is_check=said.is_check,
            checked_by=said.checked_by,
            tells_truth=server.tells_truth,
            about=about,
        )


class ToolsPage(BaseModel):
    """A page of a list of tools."""

    tools: list[ReceivedTool]
    next_cursor: str | None = Field(default=None, alias="nextCursor")


TOOLS_PAGE = TypeAdapter(ToolsPage)
CALL_RESULT: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class McpConnection:
    """See the module. `is_stale`: the server said that its tools changed. `has_ended`: so did its output."""

    def __init__(
        self, server: ServerSpec, wake: Callable[[], None], file: SessionFile | None, memory_bytes: int
    ) -> None:
        self.is_stale = False
        self.has_ended = False
        self._server = server
        self._wake = wake
        self.transport = self._make_transport(file, memory_bytes)
        self._redacted = Redaction(secrets_of(server))
        self.session: ClientSession

    async def tools(self) -> tuple[Tool, ...]:
        """Returns the server's tools, of all pages. Raises `McpConnectionLost`."""
        self.is_stale = False
        found: list[Tool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._page(cursor)
            found += [tool.resolved(self._server) for tool in page.tools]
            cursor = page.next_cursor
            if not cursor:
                return tuple(found)
        raise McpConnectionLost(f"its list of tools has more than {MAX_PAGES} pages")

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        """Calls a tool and waits as long as the server takes. Raises `McpConnectionLost`.

        Not by the SDK's `call_tool`, which turns a call that succeeded into an error if the result does not
        match the tool's output schema.
        """
        meta = cast(types.RequestParamsMeta, meta_of(context)) if context else None
        params = types.CallToolRequestParams(name=name, arguments=arguments, _meta=meta)
        request = types.CallToolRequest(params=params)
        self.transport.begin_call()
        try:
            result = await self.session.send_request(
                request, CALL_RESULT, progress_callback=_received_by(on_progress, self._redacted)
            )
        except MCPError as error:
            return self._refused(error)
        except ValidationError as error:
            raise McpConnectionLost(
                f"its result breaks the protocol ({error.error_count()} problems)"
            ) from error
        if isinstance(result, types.InputRequiredResult):
            return ToolOutcome(content="the tool asks for more input, which is not supported", is_error=True)
        return self._without_secrets(outcome_of(result, self._server.max_result_bytes))

    async def check(self) -> None:
        """Raises `McpConnectionLost` unless the server answers within `PING_TIMEOUT_S`."""
        with anyio.move_on_after(PING_TIMEOUT_S):
            try:
                if self._modern:
                    await self.session.send_discover(str(self.session.protocol_version))
                else:
                    await self.session.send_ping()
            except MCPError as error:
                self._refused(error)  # any answer of the server shows that it is alive
            return
        self.transport.abort("it hangs: it did not answer its last call, nor a ping")
        raise McpConnectionLost(self.transport.problem)

    async def watch(self) -> None:
        """Keeps a subscription to changes of the list open, where the protocol has one (2026-07-28)."""
        capabilities = self.session.server_capabilities
        if not (self._modern and capabilities and capabilities.tools and capabilities.tools.list_changed):
            return
        while True:
            with suppress(MCPError, SubscriptionLost, ListenNotSupportedError, TimeoutError):
                await self._listen()
            await asyncio.sleep(LISTEN_AGAIN_S)
            self.mark_stale()  # changes in between were not reported

    async def _listen(self) -> None:
        async with asyncio.timeout(LISTEN_TIMEOUT_S) as timeout:
            async with sdk_listen(self.session, tools_list_changed=True) as changes:
                timeout.reschedule(None)  # only the acknowledgement is awaited with a bound
                self.mark_stale()  # changes before it were not reported
                async for _ in changes:
                    self.mark_stale()

    async def on_message(self, message: IncomingMessage) -> None:
        """Takes what the server sends beside responses."""
        if isinstance(message, types.ToolListChangedNotification):
            self.mark_stale()

    def mark_stale(self) -> None:
        """The list of tools has to be read again."""
        self.is_stale = True
        self._wake()

    @property
    def _modern(self) -> bool:
        return self.session.protocol_version in MODERN_PROTOCOL_VERSIONS

    def _ended(self) -> None:
        self.has_ended = True
        self._wake()

    def _make_transport(self, file: SessionFile | None, memory_bytes: int) -> McpTransport:
        server, bound = self._server, self._server.max_result_bytes * 2 + ENVELOPE_BYTES
        if server.url:
            return HttpTransport(server.url, server.headers, bound)
        command = [server.command or "", *server.args]
        return StdioTransport(server.name, command, server.env, bound, self._ended, file, memory_bytes)

    async def _page(self, cursor: str | None) -> ToolsPage:
        params = types.PaginatedRequestParams(cursor=cursor) if cursor else None
        try:
            page = await self.session.send_request(types.ListToolsRequest(params=params), TOOLS_PAGE)
            if self._modern and "x-mcp-header" in json.dumps([t.input_schema for t in page.tools]):
                await self.session.list_tools(params=params)  # for the SDK to learn which headers to send
        except MCPError as error:
            raise McpConnectionLost(
                self.transport.problem or f"it does not list its tools: {error}"
            ) from error
        except ValidationError as error:
            raise McpConnectionLost(
                f"its list of tools breaks the protocol: {first_problem(error)}"
            ) from error
        return page

    def _refused(self, error: MCPError) -> ToolOutcome:
        """Returns a JSON-RPC error of the server's as an outcome. Raises `McpConnectionLost` for any
        other."""
        transport = self.transport
        if self.has_ended or transport.session_expired or not transport.is_from_server(error.error):
            raise McpConnectionLost(self.transport.problem or error.message) from error
        why = f"the server refused the call: {error.message}"
        return self._without_secrets(ToolOutcome(content=why, is_error=True))

    def _without_secrets(self, outcome: ToolOutcome) -> ToolOutcome:
        """An error without the variables and headers of the server, which may be in the message of an
        exception. Results are what the tool means to tell."""
        if not outcome.is_error:
            return outcome
        return msgspec.structs.replace(outcome, content=self._redacted(outcome.content))


def secrets_of(server: ServerSpec) -> Iterator[str]:
    """The values of a server's config that may be secrets. A header is sent whole, as ``Bearer …``, and a
    server may tell either the whole or its last word."""
    yield from server.env.values()
    for value in server.headers.values():
        yield from (value, *value.split())


def _received_by(on_progress: OnProgress | None, redacted: Redaction) -> ProgressFnT | None:
    """The SDK's form of a listener; None, and the server is not asked for progress."""
    if on_progress is None:
        return None

    async def receive(progress: float, total: float | None, message: str | None) -> None:
        on_progress(progress_of(progress, total, redacted(message or "")))

    return receive


def first_problem(error: ValidationError) -> str:
    detail = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"


@asynccontextmanager
async def open_connection(
    server: ServerSpec, wake: Callable[[], None], file: SessionFile | None = None, memory_bytes: int = 0
) -> AsyncIterator[McpConnection]:
    """Opens a connection and shakes hands. ``wake`` is called when `is_stale` or `has_ended` becomes true.
    ``memory_bytes`` as in `StdioTransport`.

    Raises `ToolSessionError` if there is no such command, and `McpConnectionLost`.
    """
    connection = McpConnection(server, wake, file, memory_bytes)
    try:
        async with AsyncExitStack() as stack:
            await shake_hands(connection, server, stack)
            watcher = asyncio.create_task(connection.watch(), name=f"mcp {server.name} changes")
            stack.push_async_callback(end_task, watcher)
            yield connection
    except Exception as error:
        # The SDK's task groups wrap every exception that passes through them.
        raise without_secrets(unwrapped(error, connection.transport.problem), server) from error


async def shake_hands(connection: McpConnection, server: ServerSpec, stack: AsyncExitStack) -> None:
    try:
        # A timeout of asyncio's, not anyio's: the cancel scopes entered inside stay open beyond it.
        async with asyncio.timeout(server.start_timeout_s):
            incoming, outgoing = await stack.enter_async_context(connection.transport)
            session = ClientSession(
                incoming, outgoing, message_handler=connection.on_message, client_info=SELF
            )
            connection.session = await stack.enter_async_context(session)
            await negotiate(session, modern_first=bool(server.url))
    except TimeoutError:
        connection.transport.abort(f"no answer to the handshake within {server.start_timeout_s:g} s")
        raise McpConnectionLost(connection.transport.problem) from None
    except (MCPError, RuntimeError, ValidationError) as error:
        raise McpConnectionLost(connection.transport.problem or f"the handshake failed: {error}") from error


async def negotiate(session: ClientSession, modern_first: bool) -> None:
    """Finds a protocol revision that both speak. Over stdio the handshake of 2025 is tried first: a call
    costs a sixth less CPU with it, it has a ping, and old servers expect it. Over HTTP the stateless revision
    of 2026 is, because its sessions survive a restart of the server."""
    handshakes = (session.discover, session.initialize)
    first, second = handshakes if modern_first else reversed(handshakes)
    try:
        await first()
    except (MCPError, RuntimeError, ValidationError) as refused:
        logger.debug("%s: %s; trying the other revision", first.__name__, refused)
        await second()


def unwrapped(error: BaseException, problem: str) -> BaseException:
    """Returns our own error in a group; otherwise a `McpConnectionLost` if the group has only errors of a
    connection, or the group itself."""
    leaves = list(flatten(error))
    for leaf in leaves:
        if isinstance(leaf, McpConnectionLost | ToolSessionError):
            return leaf
    expected = all(isinstance(leaf, httpx2.HTTPError | OSError | MCPError) for leaf in leaves)
    why = problem or "; ".join(str(leaf) or type(leaf).__name__ for leaf in leaves)
    return McpConnectionLost(why) if expected else error


def without_secrets(error: BaseException, server: ServerSpec) -> BaseException:
    """An error without the variables and headers of the server, which may have sent them back."""
    told, shown = str(error), Redaction(secrets_of(server))(str(error))
    return McpConnectionLost(shown) if isinstance(error, McpConnectionLost) and shown != told else error


def flatten(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from flatten(inner)
    else:
        yield error


async def end_task(task: "asyncio.Task[None]") -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

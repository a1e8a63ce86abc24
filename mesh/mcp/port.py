"""The port to tool servers: sessions that list tools and call them, one call at a time.

Above: a node's toolbox. Below: an MCP server (subprocess or HTTP), a Ray actor that holds one, or
a session in memory. A session knows no approval, no journal and no model: what may run is decided
before it is called.
"""

from typing import Any, Protocol

import msgspec

from mesh.core.events import Artifact


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server, with the hints resolved (see `mesh.core.policy`).

    ``destructive``: a person must approve each call. ``repeatable``: running it twice does no more
    than running it once (read-only or declared idempotent), so that it needs no intent record.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    server: str
    destructive: bool = True
    repeatable: bool = False

    def shown(self) -> dict[str, Any]:
        """The tool as JSON lists of tools show it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "destructiveHint": self.destructive,
            "server": self.server,
        }


class Catalogue(msgspec.Struct, frozen=True):
    """The tools of one session. ``version`` grows whenever the server's list changed."""

    server: str
    version: int
    tools: tuple[Tool, ...]


class ToolOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call gave: text for the model (JSON where the tool gives structure).

    ``is_error``: the tool (or the protocol, before the tool ran) reported an error. ``artifacts``: files that
    it gave, which the text only mentions.
    """

    content: str
    is_error: bool = False
    artifacts: tuple[Artifact, ...] = ()


class Claim(msgspec.Struct, frozen=True):
    """One attempt at a call that must not run twice.

    ``session`` is the only session that may run it (`ToolSession.identity`), ``step`` names the step among
    those of all conversations, ``attempt`` counts from 0.
    """

    session: str
    step: str
    attempt: int


class ToolSession(Protocol):
    """One session with one server.

    Promises: calls run one at a time in the order they came; each ends within its deadline; after
    a crash of the server the next call meets a new one; an attempt that `settle` found not begun never
    begins. Does not promise: that a call which raised did not run (see ``may_have_run``), that the list of
    tools stays what it was, or anything about calls of other sessions to the same server.
    """

    async def catalogue(self) -> Catalogue:
        """The tools now. Raises `ToolSessionError` when the server cannot be reached."""
        ...

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        """Waits until the catalogue is newer than ``version``, at most ``timeout_s`` seconds; the
        catalogue as it is then."""
        ...

    async def identity(self) -> str:
        """The id of this session, in whose name calls are claimed; returns once the server answers. Raises
        `ToolSessionError`."""
        ...

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
    ) -> ToolOutcome:
        """Calls a tool. ``timeout_s`` None: the server's configured bound. A call with a ``claim`` goes on
        when its caller goes away, and is joined by a second call with the same claim.

        Raises `ToolSessionError`; `CallRevoked` when the claim does not hold any more, and the call did not
        run."""
        ...

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        """What came of a claimed call. None: it has not begun, and from now on never will. Waits while it
        runs.

        Raises `ToolSessionError` when nobody knows, because the session that could is gone: its subprocess,
        if it had one, is dead then. Raises `Unavailable` when that cannot be found out now."""
        ...

    async def close(self) -> None:
        """Ends the session and its subprocess."""
        ...

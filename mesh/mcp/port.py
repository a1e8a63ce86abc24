"""The port to tool servers: sessions that list tools and call them, one call at a time.

Above: a node's toolbox. Below: an MCP server (a subprocess, or over HTTP), an actor that owns a session with
one, or a session in memory. A session knows no approval, no journal and no model: what may run is decided
before it is called.
"""

import re
from typing import Any, Protocol

import msgspec

from mesh.core.events import Artifact
from mesh.core.execution import ExecutionContext
from mesh.mcp.meta import ArgumentMeta
from mesh.mcp.progress import OnProgress

TOOL_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
"""What models accept as the name of a tool."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of a server, with its hints resolved (see `mesh.core.hints`).

    ``destructive``: a person must approve each call. ``repeatable``: running it twice does no more than
    running it once, because it is read-only or declared idempotent, so that its calls need no claim.
    ``read_only``: it changes nothing, so that a call may be broken off.

    ``is_check``: it is there for the mesh to ask, and models neither see nor call it. ``checked_by`` names
    the tool of the same server that tells what came of a call of this one (see `mesh.mcp.outcome_checks`).
    ``tells_truth``: it is a Python function, which returns a truth value as such (`ToolOutcome.truth`) and
    never as a text.

    ``about`` is what a trusted server says for policies and previews.
    """

    name: str
    description: str
    input_schema: dict[str, Any]
    server: str
    destructive: bool = True
    repeatable: bool = False
    read_only: bool = False
    is_check: bool = False
    checked_by: str = ""
    tells_truth: bool = False
    about: ArgumentMeta = ArgumentMeta()

    @property
    def is_harmless(self) -> bool:
        """Whether nobody has to approve a call, and running it again does no more."""
        return self.repeatable and not self.destructive

    def shown(self) -> dict[str, Any]:
        """Returns the tool as lists of tools show it in JSON."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
            "destructiveHint": self.destructive,
            "server": self.server,
        }


class Catalogue(msgspec.Struct, frozen=True):
    """The tools of one session. ``version`` grows whenever the server's list changes."""

    server: str
    version: int
    tools: tuple[Tool, ...]


class ToolOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a call: text for the model, JSON where the tool returns structured content.

    ``is_error``: the tool reported an error, or the protocol did before the tool ran. ``artifacts``: files
    that the tool returned, and that the text only mentions. ``truth``: the truth value that the tool returned
    as structured content, if it did. ``is_structured``: it returned structured content, so that a text which
    reads like a truth value is none. ``is_conflict``: the server says that the call changed nothing, because
    what it expects is not there. ``asks``: it has no result yet, but asks this first (`mesh.tools.asking`).
    """

    content: str
    is_error: bool = False
    artifacts: tuple[Artifact, ...] = ()
    truth: bool | None = None
    is_structured: bool = False
    is_conflict: bool = False
    asks: tuple[str, ...] = ()


class Claim(msgspec.Struct, frozen=True):
    """The right to make one attempt at a call that must not run twice.

    ``session`` is the only session that may run it (`ToolSession.identity`). ``step`` names the step among
    those of all conversations. ``attempt`` counts from 0.
    """

    session: str
    step: str
    attempt: int


class ToolSession(Protocol):
    """One session with one server, or with several replicas of it (`mesh.mcp.replicas`).

    Promises: calls run one at a time, in the order in which they came, or as many at a time as there are
    replicas; each ends within its deadline; after a crash of the server the next call finds a new one; an
    attempt that `settle` found not begun never begins.

    Does not promise: that a call which raised did not run (see ``may_have_run``); that the list of tools
    stays what it was; anything about the calls of other sessions with the same server.
    """

    async def catalogue(self) -> Catalogue:
        """Returns the present tools. Raises `ToolSessionError` if the server cannot be reached."""
        ...

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        """Waits until the catalogue is newer than ``version``, at most ``timeout_s`` seconds. Returns it as
        it is then."""
        ...

    async def identity(self) -> str:
        """Returns the id of the session for which the next call is to be claimed, once the server answers.
        Raises `ToolSessionError`."""
        ...

    async def backlog(self) -> int:
        """Returns at once how many calls run or wait. Raises `ToolSessionError` while the server does not
        run."""
        ...

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
        on_progress: OnProgress | None = None,
    ) -> ToolOutcome:
        """Calls a tool. Without ``timeout_s``, the server's configured bound applies. A call with a ``claim``
        goes on when its caller is cancelled, and a second call with the same claim joins it. One without a
        claim is cancelled on the server, too. The server is told the ``context`` with the call.
        ``on_progress`` is told how far the call has come, if the server says so; without it, the server is
        not asked.

        Raises `ToolSessionError`; `CallRevoked` if the claim is no longer valid, and the call did not run.
        """
        ...

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        """Returns the outcome of a claimed call, and waits for it while the call runs; None if it has not
        begun, and from now on never will.

        Raises `ToolSessionError` if nobody knows the outcome, because the session that knew it is gone; its
        subprocess, if it had one, is dead by then. Raises `Unavailable` if that cannot be found out now.
        """
        ...

    async def stop(self, claim: Claim) -> None:
        """Cancels a claimed call that runs, on the server, too: nobody wants it any more. Nobody knows its
        outcome then but the server. For tools that can tell it (`ArgumentMeta.check`)."""
        ...

    async def close(self) -> None:
        """Ends the session and its subprocess."""
        ...

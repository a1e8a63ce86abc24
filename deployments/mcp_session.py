"""A session with an MCP server as an actor."""

from typing import Any

from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.idle import Idle
from deployments.services import TOOL_SESSION
from mesh.core.execution import ExecutionContext
from mesh.mcp.port import Catalogue, Claim, ToolOutcome
from mesh.mcp.python_file import launched
from mesh.mcp.session_file import SessionFile
from mesh.runtime.failpoints import failpoint


class McpSessionActor(Actor):
    """Owns one session with one MCP server; a `ToolSession`."""

    async def __init__(self, blueprint: Blueprint, server: str, replica: int) -> None:  # type: ignore[misc]  # Ray awaits it
        # Not at the top: the SDK takes a second of CPU, and this module is imported by every process that
        # addresses the actor.
        from mesh.mcp.session import McpSession

        await self._begin()
        spec = next(spec for spec in blueprint.config().servers if spec.name == server)
        session_file = _file(blueprint, server, replica)
        self._session = McpSession(launched(spec, blueprint.data_dir / "code"), session_file)
        # Only calls count as use. Every toolbox waits in `changed` all the time: no session would ever leave.
        self._idle = Idle(blueprint.idle_timeout_s if blueprint.leaves else None)
        self._serve(TOOL_SESSION, self, blueprint)

    async def catalogue(self) -> Catalogue:
        return await self._session.catalogue()

    async def changed(self, version: int, timeout_s: float) -> Catalogue:
        return await self._session.changed(version, timeout_s)

    async def identity(self) -> str:
        return await self._session.identity()

    async def backlog(self) -> int:
        return await self._session.backlog()

    async def call(
        self,
        name: str,
        arguments: dict[str, Any],
        timeout_s: float | None = None,
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
    ) -> ToolOutcome:
        failpoint("mcp.before_call")
        with self._idle:
            outcome = await self._session.call(name, arguments, timeout_s, claim, context)
        failpoint("mcp.after_call")
        return outcome

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        with self._idle:
            return await self._session.settle(claim)

    async def ready(self) -> None:
        """Returns when the server answers. Raises `ToolSessionError`."""
        await self._session.catalogue()

    async def close(self) -> None:
        """Ends the server's process before the actor goes."""
        await self._session.close()


def _file(blueprint: Blueprint, server: str, replica: int) -> SessionFile:
    """Sessions with one name, in whichever Ray on this machine, have one file."""
    name = f"{server} of {blueprint.agent}@{blueprint.digest}"
    if replica:  # the first has the name of the only one
        name = f"{name}, replica {replica}"
    return SessionFile(name, blueprint.data_dir / "sessions")

"""A session with an MCP server as an actor."""

from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.idle import Idle
from deployments.served_session import ServedSession
from deployments.services import TOOL_SESSION
from mesh.mcp.python_file import launched
from mesh.mcp.session_file import SessionFile


class McpSessionActor(Actor):
    """Owns one session with one replica of an MCP server."""

    async def __init__(self, blueprint: Blueprint, server: str, replica: int) -> None:  # type: ignore[misc]  # Ray awaits it
        # Not at the top: the SDK takes a second of CPU, and this module is imported by every process that
        # addresses the actor.
        from mesh.mcp.session import McpSession

        await self._begin()
        config = blueprint.config()
        spec = next(spec for spec in config.servers if spec.name == server)
        self._session = McpSession(
            launched(spec, blueprint.data_dir / "code"),
            _file(blueprint, server, replica),
            config.limits.tool_memory_bytes,
        )
        idle = Idle(blueprint.idle_timeout_s if blueprint.leaves else None)
        self._serve(TOOL_SESSION, ServedSession(self._session, idle), blueprint)

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

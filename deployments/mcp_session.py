"""A session with an MCP server as an actor."""

from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.idle import Idle
from deployments.served_session import ServedSession
from deployments.services import TOOL_SESSION


class McpSessionActor(Actor):
    """Owns one session with one replica of an MCP server."""

    async def __init__(self, blueprint: Blueprint, server: str, replica: int) -> None:  # type: ignore[misc]  # Ray awaits it
        # Not at the top: the SDK takes a second of CPU, and this module is imported by every process that
        # addresses the actor.
        from mesh.mcp.own_sessions import own_session

        await self._begin()
        config = blueprint.config()
        spec = next(spec for spec in config.servers if spec.name == server)
        self._session = own_session(config, spec, replica, blueprint.data_dir)
        self._idle = Idle(blueprint.idle_timeout_s, leaves=blueprint.leaves)
        self._serve(TOOL_SESSION, ServedSession(self._session, self._idle), blueprint)
        self._publish_soon(blueprint)

    async def ready(self) -> None:
        """Returns when the server answers. Raises `ToolSessionError`."""
        await self._session.catalogue()

    async def close(self) -> None:
        """Ends the server's process before the actor goes."""
        await self._session.close()

    async def leave_when_idle(self) -> None:
        """See `NodeActor.leave_when_idle`."""
        self._idle.leave()

    async def stay(self) -> None:
        """See `NodeActor.stay`."""
        self._idle.stay()

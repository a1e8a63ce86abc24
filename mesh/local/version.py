"""One version of an agent in this process: its sessions with MCP servers, and the tree that uses them.

A module of its own, because the SDK that it imports takes longer than everything else that a chat needs
before its first prompt.
"""

import asyncio
from pathlib import Path

from mesh.config.model import Config, McpServer
from mesh.llm.routing import provider_for
from mesh.mcp.own_sessions import own_session
from mesh.mcp.port import Catalogue, ToolSession
from mesh.mcp.replicas import ReplicatedSession
from mesh.tree.local import LocalTree
from mesh.tree.turn import Recorder


class Version:
    """See the module. Nothing starts before it is used."""

    def __init__(self, config: Config, data_dir: Path, recorder: Recorder) -> None:
        self._sessions = [_session(config, server, data_dir) for server in config.servers]
        self.tree = LocalTree(config, self._sessions, provider_for, recorder)

    async def catalogues(self) -> list[Catalogue]:
        """The present tools of all servers. Raises `ToolSessionError`."""
        return await asyncio.gather(*(session.catalogue() for session in self._sessions))

    async def close(self) -> None:
        """Ends its servers."""
        await self.tree.close()
        await asyncio.gather(*(session.close() for session in self._sessions))


def _session(config: Config, server: McpServer, data_dir: Path) -> ToolSession:
    replicas = [own_session(config, server, replica, data_dir) for replica in range(server.replicas)]
    return ReplicatedSession(server.name, replicas) if len(replicas) > 1 else replicas[0]

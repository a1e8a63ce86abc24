"""What one agent has on the cluster: its actors, and its application at the HTTP edge."""

from typing import Any

from deployments.blueprint import blueprint_of
from mesh.config.model import Config
from mesh.config.several_agents import path_of


class DeployedAgent:
    """An agent on the cluster. ``path`` is where it is served: "/", or "/its-name".

    ``actors`` are its actors by the names that people see. ``closable`` are the names of those that have
    something to write or to end before they stop; nodes have nothing.
    """

    def __init__(self, config: Config, *, alone: bool, one_machine: bool) -> None:
        self.config = config
        self.name = config.name
        self.path = path_of(config.name, alone=alone)
        self.blueprint = blueprint_of(config, one_machine=one_machine)
        self.actors: dict[str, Any] = {}
        self.closable: set[str] = set()
        self._prefix = "" if alone else f"{config.name}: "

    def make_actors(self) -> None:
        """Creates all actors without waiting for them, so that they start in parallel."""
        from deployments import addresses

        blueprint = self.blueprint
        for number in range(blueprint.keepers):
            self._add(f"keeper {number}", addresses.keeper(blueprint, number), closes=True)
        for server in self.config.servers:
            for replica in range(server.replicas):
                session = addresses.mcp_session(blueprint, server, replica)
                self._add(f"mcp {addresses.session_name(server, replica)}", session, closes=True)
        for path, placement in blueprint.nodes.items():
            for replica in range(placement.replicas):
                node = addresses.node(blueprint, path, replica)
                self._add(f"node {path} {placement.name}/{replica}", node)

    def url(self, edge: str) -> str:
        """Returns the URL of the agent at an edge such as ``http://127.0.0.1:8080``."""
        return f"{edge}{self.path}".rstrip("/")

    def _add(self, name: str, actor: Any, *, closes: bool = False) -> None:
        full = f"{self._prefix}{name}"
        self.actors[full] = actor
        if closes:
            self.closable.add(full)

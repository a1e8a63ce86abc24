"""What one agent brings to the cluster: its actors, and its application at the HTTP edge."""

from typing import Any

from deployments.blueprint import blueprint_of
from mesh.config.model import Config
from mesh.config.together import path_of


class Agent:
    """An agent that is being brought up. ``path`` is where it is served: "/", or "/its-name".

    ``actors`` are those that were asked for, by the names that people are told."""

    def __init__(self, config: Config, *, alone: bool, one_machine: bool) -> None:
        self.config = config
        self.name = config.name
        self.path = path_of(config.name, alone=alone)
        self.blueprint = blueprint_of(config, one_machine=one_machine)
        self.actors: dict[str, Any] = {}
        self._prefix = "" if alone else f"{config.name}: "

    def make_actors(self) -> None:
        """Asks for all of them; they start beside each other."""
        from deployments import actors

        blueprint = self.blueprint
        for shard in range(blueprint.keepers):
            self._keep(f"keeper {shard}", actors.keeper(blueprint, shard))
        for server in self.config.servers:
            self._keep(f"mcp {server.name}", actors.mcp_session(blueprint, server.name))
        for path, placement in blueprint.nodes.items():
            for replica in range(placement.replicas):
                node = actors.node(blueprint, path, replica)
                self._keep(f"node {path} {placement.name}/{replica}", node)

    def closable(self) -> list[Any]:
        """The actors that have something to write or to end. Nodes have not."""
        return [actor for name, actor in self.actors.items() if not name.startswith(f"{self._prefix}node ")]

    def url(self, edge: str) -> str:
        """Its address, at an edge such as ``http://127.0.0.1:8080``."""
        return f"{edge}{self.path}".rstrip("/")

    def _keep(self, name: str, actor: Any) -> None:
        self.actors[f"{self._prefix}{name}"] = actor

"""What every actor of one agent is created from: plain data that travels to any machine.

It holds the config's text with ``${VAR}`` not yet replaced, and the texts of the files that the config names:
each actor reads the environment of its own machine, so that secrets neither travel nor reach Ray's control
store.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mesh.config.files import FileText
from mesh.config.model import Auth, Config, McpServer, parse
from mesh.config.workspace_variable import with_workspace
from mesh.core.ids import shard_of
from mesh.store.chosen import shards_of, store_of
from mesh.tree.plan import all_nodes

NAMESPACE = "mesh"
"""What the namespaces in Ray of all actors begin with."""


@dataclass(frozen=True)
class Placement:
    """A node's actors: how many, and the resources that each asks Ray for. With 0 replicas there is one actor
    from its first use until it is idle; with None there is one on each machine. ``is_shared``: the node
    shares one actor with all others for which this is true."""

    name: str
    replicas: int | None
    resources: Mapping[str, float]
    is_shared: bool = False


@dataclass(frozen=True)
class Blueprint:
    """One version of one agent, as a deployment has it, whose number is ``generation``. Its keepers share
    the ``shards`` shards of the conversations. ``nodes`` are those of the tree, by node path. All paths are
    absolute.

    ``namespace`` is that of its actors in Ray, another one for each store.

    ``workspace`` is that of the process that started the agent; a machine whose environment names another one
    uses that. ``listen_host``: the host on which its actors take calls; empty for the address of each one's
    machine in the cluster. ``leaves``: this is not the version that was started, so its actors leave when
    they were idle for ``idle_timeout_s``. ``keys_file`` is None without ``auth``. ``deployment`` is the key
    of what was deployed (`deployments.caretaker.AgentDescription.key`), empty for a ``mesh up``.
    ``keeper_resources`` are those that each keeper asks Ray for.
    """

    agent: str
    digest: str
    source: str
    origin: str
    data_dir: Path
    shards: int
    nodes: Mapping[str, Placement]
    idle_timeout_s: float
    namespace: str = NAMESPACE
    workspace: Path | None = None
    listen_host: str = ""
    leaves: bool = False
    generation: int = 0
    keys_file: Path | None = None
    files: Mapping[str, FileText] = field(default_factory=dict)
    deployment: str = ""
    keeper_resources: Mapping[str, float] = field(default_factory=dict)

    @property
    def edition(self) -> tuple[str, int]:
        """What tells it apart from others: the deployment, and the number that it gets with its keepers."""
        return self.deployment, self.generation

    def sharing(self, path: str) -> tuple[str, ...]:
        """The nodes that share the process of this one, in the order of the tree; itself among them."""
        if not self.nodes[path].is_shared:
            return (path,)
        return tuple(each for each, placement in self.nodes.items() if placement.is_shared)

    def config(self) -> Config:
        """The config, read with this process's environment. Raises `ConfigError`."""
        env = with_workspace(os.environ, self.workspace)
        config = parse(self.source, self.origin, env, self.files)
        if self.keys_file is None:
            return config
        return config.model_copy(update={"auth": Auth(keys_file=self.keys_file)})

    def shard_of(self, some_id: str) -> int:
        """The shard of a conversation or an approval."""
        return shard_of(some_id, self.shards)


def blueprint_of(config: Config, *, one_machine: bool, deployment: str = "") -> Blueprint:
    """The blueprint of a config. ``one_machine``: all actors will be on this machine."""
    return Blueprint(
        agent=config.name,
        digest=config.digest,
        source=config.source,
        origin=config.origin,
        data_dir=config.data_dir.absolute(),
        shards=shards_of(config),
        nodes=placements(config),
        idle_timeout_s=config.cluster.idle_timeout_s,
        namespace=f"{NAMESPACE}-{_short(store_of(config, config.data_dir.absolute()).name)}",
        workspace=config.workspace,
        listen_host="127.0.0.1" if one_machine else "",
        keys_file=config.auth.keys_file.absolute() if config.auth else None,
        files=dict(config.files),
        deployment=deployment,
        keeper_resources=dict(config.cluster.keepers.resources) if config.cluster.keepers else {},
    )


def demand(blueprint: Blueprint, config: Config) -> dict[str, float]:
    """The resources that all nodes, the sessions with all servers, and as many keepers and gateways as there
    are at least, together ask Ray for."""
    asked: dict[str, float] = {}
    for scale in (config.cluster.gateways, config.cluster.keepers):
        if scale is not None:
            for resource, amount in scale.resources.items():
                asked[resource] = asked.get(resource, 0) + amount * scale.min
    placed: tuple[Placement | McpServer, ...] = (*blueprint.nodes.values(), *config.servers)
    for each in placed:
        for resource, amount in each.resources.items():
            number = 1 if each.replicas is None else each.replicas
            asked[resource] = asked.get(resource, 0) + amount * number
    return asked


def placements(config: Config) -> dict[str, Placement]:
    """The nodes of a config's tree, by path."""
    shares = config.cluster.isolation == "shared"
    found = {}
    for planned in all_nodes(config):
        node = planned.node
        is_shared = shares and node.replicas == 1 and not node.resources
        found[planned.path] = Placement(node.name, node.replicas, dict(node.resources), is_shared)
    return found


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]

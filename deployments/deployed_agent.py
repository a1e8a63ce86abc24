"""What one agent has on the cluster: its actors, and its application at the HTTP edge."""

import logging
import time
from dataclasses import replace
from typing import Any

from deployments.blueprint import blueprint_of
from mesh.config.model import Config
from mesh.config.several_agents import path_of
from mesh.core.errors import MeshError, StoreAway
from mesh.net.backoff import Backoff, Patience
from mesh.runtime.logs import fields
from mesh.store.chosen import begin_generation, newest_generation, shards_of

_STORE_AWAY = Backoff(first_s=0.2, longest_s=5.0)
_STORE_WITHIN_S = 120.0
_ANY = ""
"""In place of a machine's id."""
_log = logging.getLogger("mesh.deployed_agent")


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
        self._keepers: set[str] = set()
        self._keeper_on: dict[str, str] = {}
        """The keeper of each machine, by the id that Ray gives it."""
        self._made_keepers = 0
        self._prefix = "" if alone else f"{config.name}: "

    def make_actors(self) -> None:
        """Creates all actors without waiting for them, so that they start in parallel. Raises `MeshError` if
        the store does not answer."""
        from deployments import addresses

        generation = self._begin_generation()
        # The number of shards once more: another mesh may have been the first to use this store meanwhile.
        shards = shards_of(self.config)
        self.blueprint = blueprint = replace(self.blueprint, generation=generation, shards=shards)
        if self.config.cluster.keepers == "auto":
            self.follow_machines()
            if not self._keeper_on:  # of any machine: Ray starts it on the first that joins
                self._keeper_on[_ANY] = self._add_keeper(0)
        else:
            for number in range(min(self.config.cluster.keepers, blueprint.shards)):
                self._add_keeper(number)
        for server in self.config.servers:
            for replica in range(server.replicas):
                session = addresses.mcp_session(blueprint, server, replica)
                self._add(f"mcp {addresses.session_name(server, replica)}", session, closes=True)
        for path, placement in blueprint.nodes.items():
            for replica in range(placement.replicas):
                node = addresses.node(blueprint, path, replica)
                self._add(f"node {path} {placement.name}/{replica}", node)

    def follow_machines(self) -> None:
        """Where each machine has a keeper: creates one on each that has joined, as long as there are shards
        for it, and forgets those of machines that are gone."""
        from deployments import cluster

        if self.config.cluster.keepers != "auto":
            return
        machines = cluster.machines()
        for gone in self._keeper_on.keys() - {*machines, _ANY}:
            name = self._keeper_on.pop(gone)
            del self.actors[name]
            self.closable.discard(name)
        for machine in machines:
            if machine not in self._keeper_on and len(self._keeper_on) < self.blueprint.shards:
                self._keeper_on[machine] = self._add_keeper(self._made_keepers, machine)

    def _begin_generation(self) -> int:
        """The number of this deployment. Waits a while for a store that does not answer."""
        patience = Patience(_STORE_AWAY, _STORE_WITHIN_S)
        while True:
            try:
                return begin_generation(self.config, self.blueprint.data_dir)
            except StoreAway as problem:
                if patience.is_over:
                    raise
                _log.warning("event=store_away %s", fields(message=problem))
                time.sleep(patience.next_delay())

    def _add_keeper(self, number: int, machine: str = "") -> str:
        from deployments import addresses

        self._made_keepers += 1
        keeper = addresses.keeper(self.blueprint, number, machine)
        name = self._add(f"keeper {number}", keeper, closes=True)
        self._keepers.add(name)
        return name

    def forget_shared(self) -> bool:
        """Leaves out of `actors` what belongs to a newer deployment of the agent, too: all but the keepers,
        if that has the same version. Returns whether there is a newer one."""
        try:
            newest, digest = newest_generation(self.config, self.blueprint.data_dir)
        except MeshError as problem:
            _log.warning("event=newest_deployment_unknown %s", fields(message=problem))
            return False
        is_older = self.blueprint.generation < newest
        if is_older and digest == self.config.digest:
            self.actors = {name: actor for name, actor in self.actors.items() if name in self._keepers}
            self.closable &= self._keepers
        return is_older

    def url(self, edge: str) -> str:
        """Returns the URL of the agent at an edge such as ``http://127.0.0.1:8080``."""
        return f"{edge}{self.path}".rstrip("/")

    def find_actors_again(self) -> None:
        """Gets new handles of those that are still there, in a process that has joined the cluster anew."""
        from deployments import addresses

        self.actors = addresses.found_again(self.actors)
        self.closable &= self.actors.keys()

    def _add(self, name: str, actor: Any, *, closes: bool = False) -> str:
        full = f"{self._prefix}{name}"
        self.actors[full] = actor
        if closes:
            self.closable.add(full)
        return full

"""What one agent has on the cluster: its actors, and its application at the HTTP edge."""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from deployments.blueprint import Blueprint, blueprint_of
from deployments.scaler import Scaler
from mesh.config.model import Config
from mesh.config.several_agents import path_of
from mesh.core.errors import MeshError, StoreAway
from mesh.net.backoff import Backoff, Patience
from mesh.runtime.logs import fields
from mesh.store.chosen import begin_generation, newest_generation, shard_map, shards_of

if TYPE_CHECKING:
    from deployments.addresses import ActorName

_STORE_AWAY = Backoff(first_s=0.2, longest_s=5.0)
_STORE_WITHIN_S = 120.0
_CLOSE_WITHIN_S = 20.0
_ANY = ""
"""In place of a machine's id."""
_log = logging.getLogger("mesh.deployed_agent")


class DeployedAgent:
    """An agent on the cluster. ``path`` is where it is served: "/", or "/its-name".

    ``actors`` are its actors by the names that people see. ``closable`` are the names of those that have
    something to write or to end before they stop; nodes have nothing.
    """

    def __init__(self, config: Config, *, alone: bool, one_machine: bool, deployment: str = "") -> None:
        self.config = config
        self.name = config.name
        self.path = path_of(config.name, alone=alone)
        self.blueprint = blueprint_of(config, one_machine=one_machine, deployment=deployment)
        self.actors: dict[str, Any] = {}
        self.closable: set[str] = set()
        self._keepers: set[str] = set()
        self._keeper_on: dict[str, str] = {}
        """The keeper of each machine, by the id that Ray gives it."""
        self._made_keepers = 0
        self._of_machines: set[str] = set()
        """The names of the nodes of which each machine has one."""
        self._scaler = Scaler(config.cluster.keepers) if config.cluster.keepers else None
        self._prefix = "" if alone else f"{config.name}: "

    def make_actors(self) -> None:
        """Creates all actors without waiting for them, so that they start in parallel. Raises `MeshError` if
        the store does not answer."""
        self.make_keepers()
        self.make_nodes()

    @property
    def has_shards(self) -> bool:
        """Whether its keepers have been created, which take the shards."""
        return self.blueprint.generation > 0

    def is_first(self) -> bool:
        """Whether no other deployment of the agent is there, on this cluster or on another one that uses the
        same store. Raises `MeshError`."""
        from deployments import addresses

        hosts = shard_map(self.config, self.blueprint.data_dir).hosts
        is_used = any(host.is_live for host in hosts)
        return not is_used and not any(each.is_keeper for each in addresses.actors_of(self.name))

    def find_keepers(self) -> None:
        """Finds the keepers that an earlier process has created for the same deployment, if it is the newest
        of those on this cluster."""
        from deployments import addresses

        generations = addresses.known_keepers(self.blueprint)
        if not generations:
            return
        generation, numbers = max(generations.items())
        self.blueprint = replace(self.blueprint, generation=generation)
        for number in sorted(numbers):
            keeper = addresses.keeper(self.blueprint, number)
            machine = addresses.told_by(keeper, "machine") or f"unknown {number}"
            self._keeper_on[machine] = self._add_keeper(number)
        self._made_keepers = max(numbers) + 1
        if self._scaler is not None:
            self._scaler.found(max(numbers) + 1)

    def forget(self, name: str) -> None:
        """Leaves out an actor that is gone for good. Whoever makes the actors again makes it anew."""
        from deployments import addresses

        if (actor := self.actors.pop(name, None)) is not None:
            addresses.discard(actor)
        self.closable.discard(name)
        self._keepers.discard(name)
        self._keeper_on = {machine: keeper for machine, keeper in self._keeper_on.items() if keeper != name}

    def make_missing_keepers(self) -> None:
        """Creates the keepers that are gone for good, and those of machines that have joined."""
        from deployments import addresses

        known = addresses.known_keepers(self.blueprint).get(self.blueprint.generation, [])
        there = {f"{self._prefix}keeper {number}" for number in known}
        for name in self._keepers - there:
            _log.warning("event=keeper_missing actor=%s", name.replace(" ", "_"))
            self.forget(name)
        self.make_keepers()

    def make_keepers(self) -> None:
        """Creates the keepers, which take the shards. Raises `MeshError` if the store does not answer."""
        if not self.has_shards:
            generation = self._begin_generation()
            # The number of shards once more: another mesh may have been the first to use the store meanwhile.
            shards = shards_of(self.config)
            self.blueprint = replace(self.blueprint, generation=generation, shards=shards)
        if self._scaler is None:
            self._follow_machines()
            if not self._keeper_on:  # of any machine: Ray starts it on the first that joins
                self._keeper_on[_ANY] = self._add_keeper(0)
        else:
            for number in range(min(self._scaler.number, self.blueprint.shards)):
                self._add_keeper(number)

    def make_nodes(self) -> None:
        """Creates the sessions and the nodes."""
        from deployments import addresses

        blueprint = self.blueprint
        for server in self.config.servers:
            for replica in range(server.replicas):
                session = addresses.mcp_session(blueprint, server, replica)
                self._add(f"mcp {addresses.session_name(server, replica)}", session, closes=True)
        for path, placement in blueprint.nodes.items():
            for replica in range(placement.replicas or 0):
                node = addresses.node(blueprint, path, str(replica))
                self._add(f"node {path} {placement.name}/{replica}", node)
        self._make_nodes_of_machines()

    def _make_nodes_of_machines(self) -> None:
        """Creates what each machine has one of on those that have joined, and forgets that of those that are
        gone."""
        from deployments import addresses, cluster

        before, self._of_machines = self._of_machines, set()
        for path, placement in self.blueprint.nodes.items():
            if placement.replicas is not None:
                continue
            for machine in cluster.machines(placement.resources):
                node = addresses.node(self.blueprint, path, machine)
                self._of_machines.add(self._add(f"node {path} {placement.name}/{machine[:8]}", node))
        for gone in before - self._of_machines:
            self.forget(gone)

    def let_stay(self) -> None:
        """Undoes `retire_others` for the nodes and sessions of this version, which was deployed before."""
        for name, actor in self.actors.items():
            if name not in self._keepers:
                actor.stay.remote()

    def retire_others(self) -> None:
        """Ends the keepers of other deployments of the agent, once they have given away what they had. Their
        nodes and sessions stay as long as turns need them, or as a ``mesh up`` of the
        same agent is there, which stands by."""
        from deployments import addresses

        there = addresses.actors_of(self.name)
        used = list(self.actors.values())
        others = [each for each in there if not addresses.is_of(self.blueprint, each, used)]
        end([each for each in others if each.is_keeper and each.is_deployed])
        if any(each.is_keeper and not each.is_deployed for each in there):
            return
        for each in others:
            if not each.is_keeper:
                with suppress(ValueError):  # it has ended since
                    each.handle().leave_when_idle.remote()

    def follow(self) -> None:
        """Creates nodes and keepers on machines that have joined, or as many keepers as the turns under way
        need; and has those leave that are not needed any more."""
        if not self.has_shards:
            return
        self._make_nodes_of_machines()
        keepers = self.config.cluster.keepers
        if self._scaler is None or keepers is None:
            self._follow_machines()
        elif not keepers.is_fixed:
            self._follow_load(self._scaler)

    def _follow_load(self, scaler: Scaler) -> None:
        from deployments import addresses

        before = scaler.number
        keepers = [self.actors[name] for name in self._keepers]
        scaler.note(addresses.sum_told_by(keepers, "turns"), time.monotonic())
        if scaler.number == before:
            return
        _log.info("event=keepers_scaled agent=%s before=%d after=%d", self.name, before, scaler.number)
        for number in range(before, min(scaler.number, self.blueprint.shards)):
            self._add_keeper(number)
        for number in range(scaler.number, before):
            self._end_keeper(number)

    def _end_keeper(self, number: int) -> None:
        """Has a keeper give its shards to the others, and ends it."""
        import ray

        name = f"{self._prefix}keeper {number}"
        if (keeper := self.actors.get(name)) is None:
            return
        # One that waits for a machine to start on does not answer.
        ray.wait([keeper.leave.remote()], timeout=_CLOSE_WITHIN_S)
        ray.kill(keeper)
        self.forget(name)

    def _follow_machines(self) -> None:
        """Where each machine has a keeper: creates one on each that has joined, as long as there are shards
        for it, and forgets those of machines that are gone."""
        from deployments import cluster

        machines = cluster.machines()
        for gone in self._keeper_on.keys() - {*machines, _ANY}:
            self.forget(self._keeper_on[gone])
        for machine in machines:
            if machine not in self._keeper_on and len(self._keeper_on) < self.blueprint.shards:
                self._keeper_on[machine] = self._add_keeper(self._made_keepers, machine)

    def _begin_generation(self) -> int:
        """The number of this deployment. Waits a while for a store that does not answer."""
        # A caretaker tries again by itself, and may be told of another version meanwhile.
        patience = Patience(_STORE_AWAY, 0.0 if self.blueprint.deployment else _STORE_WITHIN_S)
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

        self._made_keepers = max(self._made_keepers, number) + 1
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


def blueprint_in_force(agent: str) -> Blueprint | None:
    """The blueprint of the deployment of an agent that is in force on this cluster; None if none is."""
    from deployments import addresses

    keepers = [each for each in addresses.actors_of(agent) if each.is_keeper and each.is_deployed]
    for each in sorted(keepers, key=lambda keeper: -keeper.generation):
        with suppress(ValueError):  # it has ended since
            if found := addresses.told_by(each.handle(), "blueprint"):
                return cast(Blueprint, found)
    return None


def end_all(agent: str) -> None:
    """Ends all actors of an agent that was deployed to the cluster, but for what a ``mesh up`` of the same
    agent has."""
    from deployments import addresses

    found = addresses.actors_of(agent)
    end([each for each in found if each.is_keeper and each.is_deployed])
    if any(each.is_keeper and not each.is_deployed for each in found):
        return
    end([each for each in found if each.is_session])  # a node that waits for a session would make it anew
    end([each for each in found if not each.is_keeper and not each.is_session])


def end(actors: "Sequence[ActorName]") -> None:
    """Closes actors, and ends them for good. Those that have something to write or to hand over get some time
    for it."""
    import ray

    handles = []
    for each in actors:
        with suppress(ValueError):  # it has ended since
            handles.append((each, each.handle()))
    closing = [handle.close.remote() for each, handle in handles if each.is_keeper or each.is_session]
    if closing:
        ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_WITHIN_S)
    for each, handle in handles:
        _log.info("event=actor_retired actor=%s", each.name)
        ray.kill(handle)

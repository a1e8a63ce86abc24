"""What one agent has on the cluster: its actors, and its application at the HTTP edge."""

import logging
import time
from collections.abc import Collection, Sequence
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
_TURNS_WITHIN_S, _COUNTED_FOR_S = 1.0, 30.0
_LEAVE_WITHIN_S, _LEFT_WITHIN_S = 20.0, 40.0
"""How long a keeper that is not needed any more may give its shards away, and how long it is waited for."""
_ANY = ""
"""In place of a machine's id."""
_log = logging.getLogger("mesh.deployed_agent")
_now = time.monotonic


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
        self._of_machines: dict[str, str] = {}
        """The names of the nodes of which each machine has one, with their paths."""
        self._turns: dict[str, tuple[float, float]] = {}
        """How many turns each keeper had when it answered last, and when that was."""
        self._leaving: dict[str, tuple[Any, float]] = {}
        """Keepers that give their shards away: what says that they have, and until when it is waited for."""
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

    @property
    def is_scaled(self) -> bool:
        """Whether the number of its keepers depends on the load."""
        keepers = self.config.cluster.keepers
        return keepers is not None and not keepers.is_fixed

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
        keepers = {number: addresses.keeper(self.blueprint, number) for number in sorted(numbers)}
        machines = addresses.told_by_each(keepers, "machine")
        for number in keepers:
            self._keeper_on[machines.get(number, f"unknown {number}")] = self._add_keeper(number)
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
            if self._scaler is not None:  # as many as there were for the load that there is
                hosts = shard_map(self.config, self.blueprint.data_dir).hosts
                self._scaler.found(sum(host.is_live for host in hosts))
            # The number of shards once more: another mesh may have been the first to use the store meanwhile.
            shards = shards_of(self.config)
            self.blueprint = replace(self.blueprint, generation=generation, shards=shards)
        if self._scaler is None:
            self._follow_machines()
            if not self._keeper_on:  # of any machine: Ray starts it on the first that joins
                self._keeper_on[_ANY] = self._add_keeper(0)
        else:
            for number in self._numbers(self._scaler):
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

        there: dict[str, str] = {}
        for path, placement in self.blueprint.nodes.items():
            for machine in cluster.machines(placement.resources) if placement.replicas is None else ():
                node = addresses.node(self.blueprint, path, machine)
                there[self._add(f"node {path} {placement.name}/{machine[:8]}", node)] = path
        for gone in self._of_machines.keys() - there.keys():
            self.forget(gone)
        self._of_machines = there

    def lacked(self, ready: Collection[str]) -> list[str]:
        """The names of actors that are not ready, and that it cannot do without: not keepers that were added
        for the load, which may wait for a machine; of nodes that each machine has, one is enough."""
        there = {self._of_machines[name] for name in ready if name in self._of_machines}
        can_wait = {name for name, path in self._of_machines.items() if path in there}
        if self.config.cluster.keepers is not None:
            at_least = map(self._keeper_name, range(self.config.cluster.keepers.min))
            can_wait |= self._keepers - {*at_least}
        return [name for name in self.actors if name not in ready and name not in can_wait]

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
        if self._scaler is None:
            self._follow_machines()
        elif self.is_scaled:
            self._follow_load(self._scaler)

    def _follow_load(self, scaler: Scaler) -> None:
        from deployments import addresses

        keepers = {name: self.actors[name] for name in self._keepers}
        told = addresses.told_by_each(keepers, "turns", _TURNS_WITHIN_S)
        before, now = scaler.number, _now()
        # One that does not answer now is as busy as when it did: it may be too busy to answer. Later, others
        # have its shards.
        lately = {name: turns for name, turns in self._turns.items() if now - turns[1] < _COUNTED_FOR_S}
        self._turns = lately | {name: (turns, now) for name, turns in told.items()}
        scaler.note(sum(turns for turns, _ in self._turns.values()), now)
        if scaler.number != before:
            _log.info("event=keepers_scaled agent=%s before=%d after=%d", self.name, before, scaler.number)
        wanted = {self._keeper_name(each): each for each in self._numbers(scaler)}
        for name, number in wanted.items():
            if name not in keepers:
                self._add_keeper(number)
        self._end_left()
        if told.keys() >= wanted.keys():  # those that stay can take the shards of the others
            self._let_leave(self._keepers - wanted.keys())

    def _let_leave(self, names: Collection[str]) -> None:
        """Has keepers give their shards to the others. Those that have not answered for long have none, as
        they wait for a machine to start on, and are ended at once."""
        import ray

        for name in names:
            if name not in self._turns:
                ray.kill(self.actors[name])
                self.forget(name)
            elif name not in self._leaving:
                left = self.actors[name].leave.remote(_LEAVE_WITHIN_S)
                self._leaving[name] = left, _now() + _LEFT_WITHIN_S

    def _end_left(self) -> None:
        """Ends the keepers that have left, and those that did not in time: their leases end by themselves."""
        import ray

        for name, (left, until) in list(self._leaving.items()):
            if ray.wait([left], timeout=0)[0] or _now() > until:
                del self._leaving[name]
                if (keeper := self.actors.get(name)) is not None:
                    ray.kill(keeper)
                    self.forget(name)

    def _numbers(self, scaler: Scaler) -> range:
        return range(min(scaler.number, self.blueprint.shards))

    def _keeper_name(self, number: int) -> str:
        return f"{self._prefix}keeper {number}"

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

"""Actors are addresses: each is got by its name, and created on first use, by whichever caller is first.

    {agent}#{generation}/keeper/{number}             KeeperActor; deployed {agent}#{generation}.{key}/…
    {agent}@{digest}/node/{path}:{name}/{replica}    NodeActor; of several that share one, …:{name},{path}:…
                                                     with ``replicas: auto``, …/{id of the machine}
    {agent}@{digest}/mcp/{server}                    McpSessionActor; with replicas …/{server}/{replica}

All are detached, and Ray starts them again without limit when they die. Those of one store have a namespace
of their own: an agent of the same name with another store has other actors.

A handle is Ray's: it creates the actor, and calls it through Ray. A stub calls the actor's service on a
channel, and is what all but the start of a mesh uses.
"""

import asyncio
import pkgutil
import re
import zlib
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from deployments import cluster
from deployments.blueprint import NAMESPACE, Blueprint
from deployments.channel import Address, Channel, ConnectionLost
from deployments.published import PublishedKey, published
from deployments.services import NODE, TOOL_SESSION, NodeService, ToolSessionService
from deployments.tls import client_tls
from mesh.config.model import McpServer

# The classes are named, not imported: actors call each other, so their modules import this one.
_KEEPER = "deployments.keeper:KeeperActor"
_NODE = "deployments.node:NodeActor"
_MCP_SESSION = "deployments.mcp_session:McpSessionActor"

_CONCURRENT_CALLS = 20_000
"""Ray's bound on calls at the same time. Ray would make an actor wait at 1,000; ours wait for models and
people, and the gateways bound what comes in."""

_ASKED_WITHIN_S = 10.0
_LONGEST_NAME = 400
"""In the names of actors that several nodes share, which the Ray dashboard shows."""
_KEEPER_NAME = re.compile(r".*#(\d+)(?:\.(\w+))?/keeper/(\d+)")
K = TypeVar("K")
_handles: dict[tuple[str, str], Any] = {}
_asking_ray = ThreadPoolExecutor(4, "asking-ray")


def keeper(blueprint: Blueprint, number: int, machine: str = "") -> Any:
    """The handle of a keeper. With the id of a ``machine`` it is there, and gone when that is."""
    name = f"{keepers_of(blueprint)}/keeper/{number}"
    placed = partial(NodeAffinitySchedulingStrategy, machine, soft=False) if machine else _spread
    return _handle(_KEEPER, name, blueprint, placed, number, **requests(blueprint.keeper_resources))


def keepers_of(blueprint: Blueprint) -> str:
    """What the names of a deployment's keepers begin with."""
    key = f".{blueprint.deployment}" if blueprint.deployment else ""
    return f"{blueprint.agent}#{blueprint.generation}{key}"


def known_keepers(blueprint: Blueprint) -> dict[int, list[int]]:
    """The keepers of one deployment that are there: their numbers, by the generation. There may be more than
    one if it was deployed again after another one."""
    found: dict[int, list[int]] = {}
    keepers = (each for each in actors_of(blueprint.agent) if each.is_keeper)
    for each in keepers:
        if (each.namespace, each.deployment) == (blueprint.namespace, blueprint.deployment):
            found.setdefault(each.generation, []).append(each.number)
    return found


class ActorName(NamedTuple):
    """By which an actor is found in Ray."""

    namespace: str
    name: str

    @property
    def is_keeper(self) -> bool:
        """Whether it is a keeper's: otherwise it is that of a node or a session."""
        return "#" in self.name

    @property
    def generation(self) -> int:
        """That of a keeper."""
        return int(self._of_keeper[1])

    @property
    def deployment(self) -> str:
        """The key of what a keeper was deployed with; empty for that of a ``mesh up``."""
        return self._of_keeper[2] or ""

    @property
    def number(self) -> int:
        """That of a keeper."""
        return int(self._of_keeper[3])

    @property
    def is_deployed(self) -> bool:
        """Whether it is the keeper of a deployment that a caretaker looks after, and not of a ``mesh up``."""
        return self.is_keeper and self.deployment != ""

    @property
    def _of_keeper(self) -> re.Match[str]:
        found = _KEEPER_NAME.fullmatch(self.name)
        assert found is not None, self.name
        return found

    @property
    def is_session(self) -> bool:
        """Whether it is that of the session with an MCP server."""
        return "/mcp/" in self.name and not self.is_keeper

    def handle(self) -> Any:
        """The actor. Raises `ValueError` if it has ended."""
        return ray.get_actor(self.name, self.namespace)


def actors_of(agent: str) -> list[ActorName]:
    """All actors of an agent on the cluster, of whatever version, deployment and store."""
    begins = (f"{agent}#", f"{agent}@")
    return [each for each in _all_actors() if each.name.startswith(begins)]


def all_keepers() -> list[ActorName]:
    """The keepers of all agents on the cluster."""
    return [each for each in _all_actors() if each.is_keeper]


def _all_actors() -> list[ActorName]:
    everything = ray.util.list_named_actors(all_namespaces=True)
    names = (ActorName(each["namespace"], each["name"]) for each in everything)
    return [each for each in names if each.namespace.startswith(f"{NAMESPACE}-")]


def told_by_each(keepers: Mapping[K, Any], method: str, within_s: float = _ASKED_WITHIN_S) -> dict[K, Any]:
    """What these keepers say, all asked at once, without those that do not answer soon."""
    asking = {getattr(keeper, method).remote(): key for key, keeper in keepers.items()}
    done, _ = ray.wait([*asking], num_returns=len(asking), timeout=within_s) if asking else ([], [])
    told = {}
    for each in done:
        with suppress(RayError):
            told[asking[each]] = ray.get(each)
    return told


def told_by(keeper: Any, method: str) -> Any:
    """What a keeper says; None if it does not answer soon."""
    return told_by_each({0: keeper}, method).get(0)


def is_of(blueprint: Blueprint, actor: ActorName, used: Collection[Any]) -> bool:
    """Whether an actor belongs to a deployment, whose nodes and sessions have the handles ``used``."""
    if actor.namespace != blueprint.namespace:
        return False
    if actor.is_keeper:
        return actor.name.startswith(f"{keepers_of(blueprint)}/")
    # Not all of its version: it may have been deployed before with more replicas, for instance.
    return _handles.get(actor) in used


def node(blueprint: Blueprint, path: str, replica: str) -> Any:
    """The handle of a replica of a node of the tree: a number, or where each machine has one, the machine's
    id."""
    placement = blueprint.nodes[path]
    name = node_name(blueprint, path, replica)
    placed: Callable[[], Any] = _spread
    if placement.replicas is None:
        placed = partial(NodeAffinitySchedulingStrategy, replica, soft=False)
    elif placement.replicas > 1:
        placed = partial(_on_machine, path, int(replica))
    paths = blueprint.sharing(path)
    return _handle(_NODE, name, blueprint, placed, paths, **requests(placement.resources))


def node_name(blueprint: Blueprint, path: str, replica: str) -> str:
    """The name of the actor of a replica of a node, which has the names of all nodes that share it."""
    shown = ",".join(f"{each}:{blueprint.nodes[each].name}" for each in blueprint.sharing(path))
    if len(shown) > _LONGEST_NAME:
        shown = f"{shown[:_LONGEST_NAME]}…"
    return f"{_version(blueprint)}/node/{shown}/{replica}"


def mcp_session(blueprint: Blueprint, server: McpServer, replica: int) -> Any:
    """The handle of the session with a replica of an MCP server."""
    name = _session_address(blueprint, server, replica)
    # Ray selects by labels only where it may choose the machine.
    apart = _spread if server.labels else partial(_on_machine, server.name, replica)
    placed = apart if server.replicas > 1 else _anywhere
    options = {**requests(server.resources), "label_selector": dict(server.labels) or None}
    return _handle(_MCP_SESSION, name, blueprint, placed, server.name, replica, **options)


def _session_address(blueprint: Blueprint, server: McpServer, replica: int) -> str:
    return f"{_version(blueprint)}/mcp/{session_name(server, replica)}"


def session_name(server: McpServer, replica: int) -> str:
    """The name of the session with a replica, for people and in addresses."""
    return f"{server.name}/{replica}" if server.replicas > 1 else server.name


def forget_node(blueprint: Blueprint, path: str, replica: str) -> None:
    """Forgets the handle of a replica whose machine has gone."""
    _handles.pop((blueprint.namespace, node_name(blueprint, path, replica)), None)


async def find_node(blueprint: Blueprint, path: str, replica: str) -> bool:
    """Whether a replica of a node is there, and is found from then on without Ray's control store. Creates
    none: it may have been ended for good."""
    name = node_name(blueprint, path, replica)
    try:
        found = await asked(partial(ray.get_actor, name, blueprint.namespace))
        await found.address.remote(path)
    except (RayError, ValueError):
        return False
    _handles[blueprint.namespace, name] = found
    return True


async def asked(ray_call: Callable[[], Any]) -> Any:
    """The result of a call of Ray's that may ask its control store, and wait a minute if that is away: not on
    the event loop, and not in the threads that others wait for."""
    return await asyncio.get_running_loop().run_in_executor(_asking_ray, ray_call)


def found_again(actors: Mapping[str, Any]) -> dict[str, Any]:
    """New handles of those actors that are still there, in a process that has joined Ray anew."""
    names = {id(handle): key for key, handle in list(_handles.items())}
    again: dict[str, Any] = {}
    for shown, actor in actors.items():
        namespace, name = key = names[id(actor)]
        with suppress(ValueError):  # it is gone
            again[shown] = _handles[key] = ray.get_actor(name, namespace)
    return again


def node_stub(blueprint: Blueprint, path: str, replica: str) -> NodeService:
    """A replica of a node of the tree."""
    name = f"node {path} of {blueprint.agent}"
    key = PublishedKey(blueprint.namespace, node_name(blueprint, path, replica), path)
    return NODE.stub(_channel(lambda: node(blueprint, path, replica), key), name)


def mcp_session_stub(
    blueprint: Blueprint, server: McpServer, replica: int
) -> tuple[ToolSessionService, Callable[[], None]]:
    """The session with a replica of an MCP server, and what closes the connection to its actor."""
    key = PublishedKey(blueprint.namespace, _session_address(blueprint, server, replica), "")
    channel = _channel(lambda: mcp_session(blueprint, server, replica), key)
    return TOOL_SESSION.stub(channel, session_name(server, replica)), channel.close


def _channel(handle: Callable[[], Any], key: PublishedKey) -> Channel:
    """A channel to a service of an actor whose handle is got anew for each connection: the actor may have
    been created again since the last one."""

    async def locate() -> Address:
        try:
            found = await asked(handle)
            try:
                address: Address = await found.address.remote(key.service)
            except ActorDiedError:
                discard(found)  # the actor left for good: its name is free, and the next use creates one
                address = await (await asked(handle)).address.remote(key.service)
        except (RayError, ValueError) as problem:
            return await _published(key, problem)
        return address

    return Channel(locate, client_tls())


async def _published(key: PublishedKey, problem: Exception) -> Address:
    """Where an actor said that it listens, which could not be asked. Raises `ConnectionLost`."""
    try:
        found: Address | None = await asked(partial(published, key))
    except (RayError, ValueError):
        found = None
    if found is None:
        raise ConnectionLost(f"the actor is not there: {type(problem).__name__}") from None
    return found


def discard(handle: Any) -> None:
    """Forgets the handle of an actor that has left for good: its next use creates it anew."""
    for key in [key for key, known in list(_handles.items()) if known is handle]:
        _handles.pop(key, None)


def _version(blueprint: Blueprint) -> str:
    return f"{blueprint.agent}@{blueprint.digest}"


def requests(resources: Mapping[str, float]) -> dict[str, Any]:
    """Resources as options of an actor. Those that Ray does not know by name are custom ones, which say what
    a machine has."""
    asked = dict(resources)
    return {
        "num_cpus": asked.pop("num_cpus", cluster.A_LITTLE_CPU),
        "num_gpus": asked.pop("num_gpus", 0),
        "memory": asked.pop("memory", None),
        "resources": asked or None,
    }


def _spread() -> Any:
    return "SPREAD"


def _anywhere() -> Any:
    return "DEFAULT"


def _on_machine(of: str, replica: int) -> Any:
    """On another machine than the other replicas of the same, as long as there are as many. Ray's own
    "SPREAD" may place actors that are created in the same moment on one machine. Where the machine is gone,
    or has not enough left of what the actor asks for, it goes to another one."""
    machines = sorted(cluster.machines())
    if not machines:  # Ray waits for one that joins
        return _spread()
    machine = machines[(zlib.crc32(of.encode()) + replica) % len(machines)]
    return NodeAffinitySchedulingStrategy(machine, soft=True, _spill_on_unavailable=True)


def _handle(
    import_path: str,
    name: str,
    blueprint: Blueprint,
    placed: Callable[[], Any],
    *args: Any,
    **options: Any,
) -> Any:
    """``placed`` says where, if the actor is not there yet."""
    key = blueprint.namespace, name
    if known := _handles.get(key):
        return known
    remote: Any = ray.remote(pkgutil.resolve_name(import_path)).options(
        name=name,
        namespace=blueprint.namespace,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=_CONCURRENT_CALLS,
        scheduling_strategy=placed(),
        enable_task_events=False,  # measured: task events cost 10 to 15 % of an actor's CPU
        **{"num_cpus": cluster.A_LITTLE_CPU, **options},
    )
    _handles[key] = made = remote.remote(blueprint, *args)
    return made

"""Actors are addresses: each is got by its name, and created on first use, by whichever caller is first.

    {agent}/keeper/{number}                          KeeperActor
    {agent}@{digest}/node/{path}:{name}/{replica}    NodeActor
    {agent}@{digest}/mcp/{server}                    McpSessionActor; with replicas …/{server}/{replica}

All live in the namespace ``mesh``, detached, and Ray starts them again without limit when they die.

A handle is Ray's: it creates the actor, and calls it through Ray. A stub calls the actor's service on a
channel, and is what all but the start of a mesh uses.
"""

import pkgutil
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from deployments.blueprint import Blueprint
from deployments.channel import Address, Channel, ConnectionLost
from deployments.cluster import NAMESPACE
from deployments.services import KEEPER, NODE, TOOL_SESSION, KeeperService, NodeService, ToolSessionService
from mesh.config.model import McpServer

# The classes are named, not imported: actors call each other, so their modules import this one.
_KEEPER = "deployments.keeper:KeeperActor"
_NODE = "deployments.node:NodeActor"
_MCP_SESSION = "deployments.mcp_session:McpSessionActor"

_CONCURRENT_CALLS = 20_000
"""Ray's bound on calls at the same time. Ray would make an actor wait at 1,000; ours wait for models and
people, and the gateways bound what comes in."""

_handles: dict[str, Any] = {}


def keeper(blueprint: Blueprint, number: int) -> Any:
    """The handle of a keeper."""
    return _handle(_KEEPER, f"{blueprint.agent}/keeper/{number}", blueprint, number)


def node(blueprint: Blueprint, path: str, replica: int) -> Any:
    """The handle of a replica of a node of the tree."""
    placement = blueprint.nodes[path]
    name = f"{_version(blueprint)}/node/{path}:{placement.name}/{replica}"
    options = _requests(placement.resources)
    return _handle(_NODE, name, blueprint, path, scheduling_strategy="SPREAD", **options)


def mcp_session(blueprint: Blueprint, server: McpServer, replica: int) -> Any:
    """The handle of the session with a replica of an MCP server."""
    name = f"{_version(blueprint)}/mcp/{session_name(server, replica)}"
    strategy = "SPREAD" if server.replicas > 1 else "DEFAULT"
    options = _requests(server.resources)
    return _handle(
        _MCP_SESSION, name, blueprint, server.name, replica, scheduling_strategy=strategy, **options
    )


def session_name(server: McpServer, replica: int) -> str:
    """The name of the session with a replica, for people and in addresses."""
    return f"{server.name}/{replica}" if server.replicas > 1 else server.name


def keeper_stubs(blueprint: Blueprint) -> list[KeeperService]:
    """The keeper of each shard."""
    stubs = [
        KEEPER.stub(_channel(partial(keeper, blueprint, number)), f"keeper {number}")
        for number in range(blueprint.keepers)
    ]
    return [stubs[blueprint.keeper_of(shard)] for shard in range(blueprint.shards)]


def node_stub(blueprint: Blueprint, path: str, replica: int) -> NodeService:
    """A replica of a node of the tree."""
    name = f"node {path} of {blueprint.agent}"
    return NODE.stub(_channel(lambda: node(blueprint, path, replica)), name)


def mcp_session_stub(blueprint: Blueprint, server: McpServer, replica: int) -> ToolSessionService:
    """The session with a replica of an MCP server."""
    return TOOL_SESSION.stub(
        _channel(lambda: mcp_session(blueprint, server, replica)), session_name(server, replica)
    )


def _channel(handle: Callable[[], Any]) -> Channel:
    """A channel to an actor whose handle is got anew for each connection: the actor may have been created
    again since the last one."""

    async def locate() -> Address:
        try:
            try:
                address: Address = await handle().address.remote()
            except ActorDiedError:
                _handles.clear()  # the actor left for good: its name is free, and the next use creates one
                address = await handle().address.remote()
        except (ActorDiedError, ActorUnavailableError) as problem:
            raise ConnectionLost(f"the actor is not there: {type(problem).__name__}") from None
        return address

    return Channel(locate)


def _version(blueprint: Blueprint) -> str:
    return f"{blueprint.agent}@{blueprint.digest}"


def _requests(resources: Mapping[str, float]) -> dict[str, Any]:
    """Resources as options of an actor. Those that Ray does not know by name are custom ones, which say what
    a machine has."""
    asked = dict(resources)
    return {
        "num_cpus": asked.pop("num_cpus", 0),
        "num_gpus": asked.pop("num_gpus", 0),
        "memory": asked.pop("memory", None),
        "resources": asked or None,
    }


def _handle(import_path: str, name: str, *args: Any, **options: Any) -> Any:
    if name in _handles:
        return _handles[name]
    remote: Any = ray.remote(pkgutil.resolve_name(import_path)).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=_CONCURRENT_CALLS,
        enable_task_events=False,  # measured: task events cost 10 to 15 % of an actor's CPU
        **{"num_cpus": 0, **options},
    )
    _handles[name] = remote.remote(*args)
    return _handles[name]

"""Actors are addresses: each is got by its name, and made on first use, by whoever asks first.

    {agent}/keeper/{shard}                      KeeperActor
    {agent}@{digest}/node/{path}:{name}/{replica}
                                                NodeActor
    {agent}@{digest}/mcp/{server}               McpSessionActor

All live in the namespace ``mesh``, detached, and are started again for ever when they die.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError

from deployments.blueprint import Blueprint
from deployments.cluster import NAMESPACE
from deployments.line import Address, Gone, Line

_CONCURRENT_CALLS = 20_000
_log = logging.getLogger("mesh.actors")
_handles: dict[str, Any] = {}


def keeper(blueprint: Blueprint, shard: int) -> Any:
    """The keeper of a shard."""
    from deployments.keeper import KeeperActor

    return _actor(KeeperActor, f"{blueprint.agent}/keeper/{shard}", blueprint, shard)


def node(blueprint: Blueprint, path: str, replica: int) -> Any:
    """A replica of a node of the tree."""
    from deployments.node import NodeActor

    placement = blueprint.nodes[path]
    asked = dict(placement.resources)
    options: dict[str, Any] = {
        "num_cpus": asked.pop("num_cpus", 0),
        "num_gpus": asked.pop("num_gpus", 0),
        "memory": asked.pop("memory", None),
        "resources": asked or None,
        "scheduling_strategy": "SPREAD",
    }
    name = f"{_version(blueprint)}/node/{path}:{placement.name}/{replica}"
    return _actor(NodeActor, name, blueprint, path, **options)


def mcp_session(blueprint: Blueprint, server: str) -> Any:
    """The session with an MCP server."""
    from deployments.mcp_session import McpSessionActor

    return _actor(McpSessionActor, f"{_version(blueprint)}/mcp/{server}", blueprint, server)


async def note_restart() -> None:
    """Logs it if this actor died before and Ray started it again. To be called once, in the actor."""
    context = ray.get_runtime_context()
    if await asyncio.to_thread(lambda: context.was_current_actor_reconstructed):
        _log.warning("event=actor_restarted actor=%s", context.get_actor_name())


def host_of_lines(blueprint: Blueprint) -> str:
    """The host on which an actor in this process takes calls."""
    return blueprint.lines or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def line_to(actor: Callable[[], Any]) -> Line:
    """A line to an actor that is got anew for each connection: it may have been made again since."""

    async def locate() -> Address:
        try:
            try:
                address: Address = await actor().address.remote()
            except ActorDiedError:
                _handles.clear()  # it is gone for good: the next use makes one
                address = await actor().address.remote()
        except (ActorDiedError, ActorUnavailableError) as problem:
            raise Gone(f"the actor is not there: {type(problem).__name__}") from None
        return address

    return Line(locate)


def _version(blueprint: Blueprint) -> str:
    return f"{blueprint.agent}@{blueprint.digest}"


def _actor(cls: type, name: str, *args: Any, **options: Any) -> Any:
    if name in _handles:
        return _handles[name]
    remote: Any = ray.remote(cls).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=_CONCURRENT_CALLS,
        enable_task_events=False,
        **{"num_cpus": 0, **options},
    )
    _handles[name] = remote.remote(*args)
    return _handles[name]

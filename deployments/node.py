"""A node of the tree as an actor, or several that share one.

An actor has an endpoint for each of its nodes: who calls a node need not know which others are there.
"""

import asyncio
from collections.abc import Sequence

from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.idle import Idle
from deployments.remote import RemoteNode, RemoteRecorder, as_one, replicas_of
from deployments.services import NODE
from mesh.config.model import Config
from mesh.core.events import Preview, ToolCall, ToolResult
from mesh.core.verdict import Verdict
from mesh.llm.routing import provider_for
from mesh.mcp.port import ToolSession
from mesh.policy.grants import Grant
from mesh.store.chosen import store_of
from mesh.tree.build import Environment, build_node, reach
from mesh.tree.plan import PlannedNode, all_nodes
from mesh.tree.ready_node import ReadyNode
from mesh.tree.turn import (
    AbandonedTask,
    Activation,
    Hearing,
    News,
    PassInput,
    PassOutput,
    Recorder,
    UnsettledCall,
)

_SPREADING = ("parallel", "map")
"""The types of nodes whose children work at the same time."""


class NodeActor(Actor):
    """Nodes of the tree, one as a rule. It carries thousands of waiting turns."""

    async def __init__(  # type: ignore[misc]  # Ray awaits it
        self, blueprint: Blueprint, paths: Sequence[str]
    ) -> None:
        await self._begin()
        config = blueprint.config()
        self._stays = all(blueprint.nodes[path].replicas != 0 for path in paths)
        self._idle = Idle(blueprint.idle_timeout_s, leaves=blueprint.leaves or not self._stays)
        planned = {each.path: each for each in all_nodes(config)}
        # One for all nodes of this process: each has connections, to the store among others.
        sessions = [as_one(replicas_of(blueprint, server, server.timeout_s)) for server in config.servers]
        recorder = RemoteRecorder(blueprint, store_of(config, blueprint.data_dir).shards)
        self._nodes = {
            path: _Node(blueprint, config, planned[path], sessions, recorder, self._idle) for path in paths
        }
        self._serve_each(NODE, self._nodes, blueprint)
        self._publish_soon(blueprint)

    async def ready(self) -> None:
        """Returns when the tools are known. Raises what went wrong with them; the next call tries again."""
        await asyncio.gather(*(node.ready() for node in self._nodes.values()))

    async def leave_when_idle(self) -> None:
        """Another version has taken the place of this one: it stays for turns that are open."""
        self._idle.leave()

    async def stay(self) -> None:
        """Its version is the one that is deployed, again or for the first time."""
        if self._stays:
            self._idle.stay()


class _Node:
    """A `NodeService`. ``idle`` is told of each use."""

    def __init__(
        self,
        blueprint: Blueprint,
        config: Config,
        planned: PlannedNode,
        sessions: Sequence[ToolSession],
        recorder: Recorder,
        idle: Idle,
    ) -> None:
        children: list[RemoteNode] = []

        def child(path: str) -> RemoteNode:
            children.append(RemoteNode(blueprint, path, spreads=planned.node.type in _SPREADING))
            return children[-1]

        environment = Environment(sessions, provider_for, reach, child)
        self._node = ReadyNode(build_node(config, planned, environment), recorder)
        self._node.begin()
        self._finding = [asyncio.create_task(child.find()) for child in children]
        self._idle = idle

    async def ready(self) -> None:
        """See `NodeActor.ready`."""
        await self._node.ready()

    async def run(self, turn: PassInput) -> PassOutput:
        with self._idle:
            return await self._node.run(turn)

    async def hear(self, activation: Activation, news: News, is_durable: bool) -> Hearing:
        with self._idle:
            return await self._node.hear(activation, news, is_durable)

    async def problems(self, call: ToolCall) -> str:
        with self._idle:
            return await self._node.problems(call)

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        with self._idle:
            return await self._node.verdict(call, grants)

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        with self._idle:
            return await self._node.preview(call, offset)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        with self._idle:
            return await self._node.settle(call)

    async def cancel(self, task: AbandonedTask) -> None:
        with self._idle:
            await self._node.cancel(task)

    async def alive(self) -> None:
        """See `NodeService.alive`."""

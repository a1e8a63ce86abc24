"""The tree, as keepers and composite nodes see it: calls to the actors of its nodes."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from deployments.addresses import node_stub
from deployments.blueprint import Blueprint, placements
from deployments.channel import CallFailed
from deployments.services import NodeService
from mesh.core.errors import ConfigError, ToolSessionError, Unavailable
from mesh.core.events import ToolCall, ToolResult
from mesh.core.places import ROOT, Place
from mesh.disk import atomic as durable
from mesh.tree.turn import AbandonedTask, TurnInput, TurnOutput, UnsettledCall


class RemoteNode:
    """`NodeService` by calls to the actors of one node, its replicas in turn."""

    def __init__(self, blueprint: Blueprint, path: str) -> None:
        replicas = max(1, blueprint.nodes[path].replicas)
        self._replicas = [node_stub(blueprint, path, replica) for replica in range(replicas)]
        self._calls = count()

    async def run(self, turn: TurnInput) -> TurnOutput:
        return await self._next().run(turn)

    async def problems(self, call: ToolCall) -> str:
        return await self._next().problems(call)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        try:
            return await self._next().settle(call)
        except (ToolSessionError, CallFailed) as problem:
            # The node does not know its tools yet, or has a defect. The turn is about to end, and the call
            # may have run: the keeper asks again for a while before it gives up on the result.
            raise Unavailable(str(problem)) from problem

    async def cancel(self, task: AbandonedTask) -> None:
        await self._next().cancel(task)

    def _next(self) -> NodeService:
        return self._replicas[next(self._calls) % len(self._replicas)]


class RemoteTree:
    """`Tree`: each conversation runs on the version that it began on, as long as that is known."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._versions = {blueprint.digest: blueprint}
        self._nodes: dict[tuple[str, str], RemoteNode] = {}

    async def run(self, turn: TurnInput) -> TurnOutput:
        try:
            root = self._node(turn.digest, ROOT.path)
        except ConfigError as problem:
            return TurnOutput("failed", str(problem))
        return await root.run(turn)

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        try:
            asking = self._node(digest, Place(node).path)
        except ConfigError as problem:
            return str(problem)
        return await asking.problems(ToolCall(id="", name=tool, arguments=arguments))

    async def cancel(self, task: AbandonedTask) -> None:
        try:
            node = self._node(task.digest, Place(task.node).path)
        except ConfigError as problem:
            raise Unavailable(str(problem)) from None
        await node.cancel(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        try:
            node = self._node(call.digest, call.intent.place.path)
        except ConfigError as problem:
            raise Unavailable(str(problem)) from None
        return await node.settle(call)

    def _node(self, digest: str, path: str) -> RemoteNode:
        if (digest, path) not in self._nodes:
            self._nodes[digest, path] = RemoteNode(self._version(digest), path)
        return self._nodes[digest, path]

    def _version(self, digest: str) -> Blueprint:
        """Raises `ConfigError` when it is not known any more, or cannot run here."""
        if digest not in self._versions:
            path = _source_path(self._blueprint.data_dir, digest)
            if not path.exists():
                raise ConfigError(
                    [
                        f"this conversation began with version {digest} of agent {self._blueprint.agent}, "
                        f"which is not known here any more; start a new conversation"
                    ]
                )
            version = replace(
                self._blueprint, digest=digest, source=path.read_text(), origin=path.name, leaves=True
            )
            self._versions[digest] = replace(version, nodes=placements(version.config()))
        return self._versions[digest]


def keep_source(blueprint: Blueprint) -> None:
    """Keeps the config's text under its digest, so that a conversation can go on with it. As durable as the
    conversations: one that waits for a person cannot go on without it."""
    path, source = _source_path(blueprint.data_dir, blueprint.digest), blueprint.source.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_bytes() != source:
        durable.replace(path, source, synced=True)
        durable.sync_folder(path.parent)
        durable.sync_folder(blueprint.data_dir)


def _source_path(data_dir: Path, digest: str) -> Path:
    return data_dir / "configs" / f"{digest}.yaml"

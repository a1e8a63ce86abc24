"""The tree as actors: `RunNode` by a call to a node's actor, and `Tree` over every version of an agent."""

from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from deployments import actors
from deployments.blueprint import Blueprint, placements
from deployments.line import Failed, Gone, Line
from mesh.core.conversation import ROOT
from mesh.core.errors import ConfigError, Unavailable
from mesh.core.events import ToolCall, ToolResult
from mesh.disk import atomic as durable
from mesh.tree.children import path_of
from mesh.tree.turn import (
    LeftOver,
    TurnInput,
    TurnOutput,
    UnsettledCall,
    decode_output,
    decode_settled,
    encode_input,
    encode_left_over,
    encode_unsettled,
)

_pack_call = msgspec.msgpack.Encoder().encode
unpack_call = msgspec.msgpack.Decoder(ToolCall).decode


class RemoteNode:
    """`RunNode` by calls to the actors of one node, one after the other."""

    def __init__(self, blueprint: Blueprint, path: str) -> None:
        self._what = f"node {path} of {blueprint.agent}"
        replicas = max(1, blueprint.nodes[path].replicas)
        self._lines = [actors.line_to(partial(actors.node, blueprint, path, i)) for i in range(replicas)]
        self._turns = count()

    async def __call__(self, turn: TurnInput) -> TurnOutput:
        return decode_output(await self._call("run", encode_input(turn), call_off=True))

    async def problems(self, call: ToolCall) -> str:
        """What is wrong with a tool call that this node is about to make."""
        return (await self._call("problems", _pack_call(call))).decode()

    async def call_off(self, task: LeftOver) -> None:
        """See `Tree.call_off`."""
        await self._call("call_off", encode_left_over(task))

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`."""
        try:
            return decode_settled(await self._call("settle", encode_unsettled(call)))
        except Failed as problem:  # the node has no tools yet, or its session cannot say now
            raise Unavailable(f"{self._what}: {problem}") from None

    async def _call(self, method: str, packed: bytes, *, call_off: bool = False) -> bytes:
        line: Line = self._lines[next(self._turns) % len(self._lines)]
        try:
            return await line.call(method, packed, call_off=call_off)
        except Gone as problem:
            raise Unavailable(f"{self._what}: {problem}") from None


class RemoteTree:
    """`Tree`: each conversation runs on the version that it began on, as long as that is known."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._versions = {blueprint.digest: blueprint}
        self._nodes: dict[tuple[str, str], RemoteNode] = {}

    async def run(self, turn: TurnInput) -> TurnOutput:
        try:
            root = self._node(turn.digest, ROOT)
        except ConfigError as problem:
            return TurnOutput("failed", str(problem))
        return await root(turn)

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        try:
            asking = self._node(digest, path_of(node))
        except ConfigError as problem:
            return str(problem)
        return await asking.problems(ToolCall(id="", name=tool, arguments=arguments))

    async def call_off(self, task: LeftOver) -> None:
        try:
            node = self._node(task.digest, path_of(task.node))
        except ConfigError as problem:
            raise Unavailable(str(problem)) from None
        await node.call_off(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        try:
            node = self._node(call.digest, path_of(call.intent.node))
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

"""A tree node as an actor, and how a keeper runs a turn on it."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import msgspec

from deployments import actors
from deployments.blueprint import Blueprint
from deployments.line import Address, Desk, Gone, Line
from deployments.mcp_session import RemoteSession
from mesh.errors import ToolSessionError, Unavailable
from mesh.events import AnyEvent
from mesh.llm.routing import provider_for
from mesh.logs import set_up
from mesh.mcp.toolbox import Toolbox
from mesh.tree.llm import LlmNode
from mesh.tree.turn import TurnInput, TurnOutput, decode_input, decode_output, encode_input, encode_output

_ACK_WITHIN_S = 30.0


class Ahead(msgspec.Struct, frozen=True):
    """Events that a pass sends before it returns."""

    conversation_id: str
    turn: int
    run: int
    events: Sequence[AnyEvent]


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whether they were taken. ``problem``: they are not durable, and may be sent again."""

    taken: bool
    problem: str = ""


pack_ahead = msgspec.msgpack.Encoder().encode
unpack_ahead = msgspec.msgpack.Decoder(Ahead).decode
_unpack_ack = msgspec.msgpack.Decoder(Ack).decode


class NodeActor:
    """One node of the tree; carries thousands of waiting turns."""

    async def __init__(self, blueprint: Blueprint, path: str) -> None:  # type: ignore[misc]  # Ray awaits it
        set_up()
        self._blueprint = blueprint
        config = blueprint.config()
        sessions = [RemoteSession(blueprint, server.name, server.timeout_s) for server in config.servers]
        self._toolbox = Toolbox(sessions)
        self._node = LlmNode(
            path=path,
            system=config.prompt,
            model=config.llm.model,
            llm=provider_for(config.llm.model),
            toolbox=self._toolbox,
            max_iterations=config.limits.max_tool_iterations,
            max_tokens=config.llm.max_tokens,
            timeout_s=config.llm.timeout_s,
            max_result_bytes=config.limits.max_result_bytes,
        )
        self._desk = Desk({"run": self._run})  # packed `TurnInput`s and `TurnOutput`s
        self._host = actors.host_of_lines(blueprint)
        self._keepers = [
            actors.line_to(partial(actors.keeper, blueprint, k)) for k in range(blueprint.keepers)
        ]
        self._started = asyncio.create_task(self._toolbox.start())

    async def address(self) -> Address:
        """Where it takes calls."""
        return await self._desk.listen(self._host)

    async def _run(self, packed: bytes) -> bytes:
        try:
            await self.ready()
        except ToolSessionError as problem:
            return encode_output(TurnOutput("interrupted", str(problem)))
        turn = decode_input(packed)
        return encode_output(await self._node.run(turn, self._append))

    async def ready(self) -> None:
        """Returns when the tools are known. Raises what went wrong with them; the next call tries again."""
        if self._started.done() and self._started.exception():
            self._started = asyncio.create_task(self._toolbox.start())
        await asyncio.shield(self._started)

    async def _append(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> bool:
        """Sends events ahead. An append may be repeated, so that a keeper that restarts is waited for."""
        packed = pack_ahead(Ahead(conversation_id, turn, run, events))
        shard = self._blueprint.shard_of(conversation_id)
        try:
            async with asyncio.timeout(_ACK_WITHIN_S):
                while True:
                    try:
                        ack = _unpack_ack(await self._keepers[shard].call("append", packed))
                        if ack.problem:
                            raise Unavailable(ack.problem)
                        return ack.taken
                    except Gone:
                        await asyncio.sleep(0.2)
        except TimeoutError:
            raise Unavailable(f"keeper {shard} does not answer") from None


class RemoteRoot:
    """`RunTurn` by a call to a replica of the root, of the version that the conversation began on."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._versions = {blueprint.digest: blueprint}
        self._blueprint = blueprint
        self._turns = count()
        self._lines: dict[tuple[str, int], Line] = {}

    async def __call__(self, turn: TurnInput) -> TurnOutput:
        version = self._version(turn.digest)
        if version is None:
            return TurnOutput(
                "failed",
                f"this conversation began with version {turn.digest} of agent {self._blueprint.agent}, "
                f"which is not known here any more; start a new conversation",
            )
        replica = next(self._turns) % version.nodes
        try:
            return decode_output(await self._line(version, replica).call("run", encode_input(turn)))
        except Gone as problem:
            raise Unavailable(f"node {replica} of {version.agent}: {problem}") from None

    def _line(self, version: Blueprint, replica: int) -> Line:
        key = (version.digest, replica)
        if key not in self._lines:
            self._lines[key] = actors.line_to(partial(actors.node, version, replica=replica))
        return self._lines[key]

    def _version(self, digest: str) -> Blueprint | None:
        if digest not in self._versions:
            path = _source_path(self._blueprint.data_dir, digest)
            if not path.exists():
                return None
            self._versions[digest] = replace(self._blueprint, digest=digest, source=path.read_text())
        return self._versions[digest]


def keep_source(blueprint: Blueprint) -> None:
    """Keeps the config's text under its digest, so that a conversation can go on with it."""
    path = _source_path(blueprint.data_dir, blueprint.digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(blueprint.source)
        draft.replace(path)


def _source_path(data_dir: Path, digest: str) -> Path:
    return data_dir / "configs" / f"{digest}.yaml"

"""A tree node as an actor."""

import asyncio

from deployments import actors
from deployments.blueprint import Blueprint
from deployments.idle import Idle
from deployments.line import Address, Desk
from deployments.mcp_session import RemoteSession
from deployments.recorder import RemoteRecorder
from deployments.tree import RemoteNode, unpack_call
from mesh.config.model import Config
from mesh.core.errors import ToolSessionError
from mesh.llm.routing import provider_for
from mesh.mcp.toolbox import Toolbox
from mesh.runtime.logs import set_up
from mesh.tree.build import a2a_node, composite_node, llm_node, reach, remote_of, toolbox_of, tools_of
from mesh.tree.node import Node
from mesh.tree.plan import Spot, tree_of
from mesh.tree.tools import Calls
from mesh.tree.turn import (
    TurnOutput,
    decode_input,
    decode_left_over,
    decode_unsettled,
    encode_output,
    encode_settled,
)


class NodeActor:
    """One node of the tree; carries thousands of waiting turns."""

    async def __init__(self, blueprint: Blueprint, path: str) -> None:  # type: ignore[misc]  # Ray awaits it
        set_up()
        await actors.note_restart()
        config = blueprint.config()
        spot = next(spot for spot in tree_of(config).walk() if spot.path == path)
        self._recorder = RemoteRecorder(blueprint)
        self._toolbox = Toolbox((), ())
        self._calls: Calls | None = None
        self._node = self._built(blueprint, config, spot)
        # "run": packed `TurnInput`s and `TurnOutput`s; "problems": a packed `ToolCall`, and a text.
        # "call_off": a packed `LeftOver`, and nothing. "settle": a packed `UnsettledCall`, and its result.
        self._desk = Desk(
            {
                "run": self._run,
                "problems": self._problems,
                "call_off": self._call_off,
                "settle": self._settle,
            }
        )
        self._host = actors.host_of_lines(blueprint)
        self._started = asyncio.create_task(self._toolbox.start())
        leaves = blueprint.leaves or not spot.node.replicas
        self._idle = Idle(blueprint.idle_timeout_s if leaves else None)

    async def address(self) -> Address:
        """Where it takes calls."""
        return await self._desk.listen(self._host)

    async def ready(self) -> None:
        """Returns when the tools are known. Raises what went wrong with them; the next call tries again."""
        if self._started.done() and self._started.exception():
            self._started = asyncio.create_task(self._toolbox.start())
        await asyncio.shield(self._started)

    def _built(self, blueprint: Blueprint, config: Config, spot: Spot) -> Node:
        if spot.children:
            return composite_node(spot, lambda path: RemoteNode(blueprint, path))
        if spot.node.type == "a2a":
            self._calls = remote = remote_of(config, spot, reach)
            return a2a_node(spot, remote)
        sessions = [RemoteSession(blueprint, server.name, server.timeout_s) for server in config.servers]
        self._toolbox = toolbox_of(config, spot, sessions)
        self._calls = tools = tools_of(config, spot, self._toolbox, reach)
        llm = provider_for(spot.node.model or config.llm.model)
        return llm_node(config, spot, llm, tools)

    async def _run(self, packed: bytes) -> bytes:
        with self._idle:
            try:
                await self.ready()
            except ToolSessionError as problem:
                return encode_output(TurnOutput("interrupted", str(problem)))
            return encode_output(await self._node.run(decode_input(packed), self._recorder))

    async def _call_off(self, packed: bytes) -> bytes:
        with self._idle:
            if self._calls is not None:
                await self._calls.call_off(decode_left_over(packed))
            return b""

    async def _settle(self, packed: bytes) -> bytes:
        with self._idle:
            await self.ready()
            return encode_settled(await self._calls.settle(decode_unsettled(packed)) if self._calls else None)

    async def _problems(self, packed: bytes) -> bytes:
        with self._idle:
            await self.ready()
            found = self._calls.problems(unpack_call(packed)) if self._calls else "this node has no tools"
            return found.encode()

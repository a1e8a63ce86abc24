"""A node of the tree as an actor."""

import asyncio

from deployments.actor import Actor
from deployments.blueprint import Blueprint
from deployments.idle import Idle
from deployments.recorder import RemoteRecorder
from deployments.services import NODE
from deployments.tool_session import RemoteSession
from deployments.tree import RemoteNode
from mesh.config.model import Config
from mesh.core.errors import ToolSessionError
from mesh.core.events import ToolCall, ToolResult
from mesh.llm.routing import provider_for
from mesh.mcp.toolbox import Toolbox
from mesh.tree.build import a2a_node, composite_node, llm_node, reach, remote_of, toolbox_of, tools_of
from mesh.tree.node import Node
from mesh.tree.plan import PlannedNode, tree_of
from mesh.tree.tools import Calls
from mesh.tree.turn import AbandonedTask, TurnInput, TurnOutput, UnsettledCall


class NodeActor(Actor):
    """One node of the tree, which carries thousands of waiting turns; a `NodeService`."""

    async def __init__(self, blueprint: Blueprint, path: str) -> None:  # type: ignore[misc]  # Ray awaits it
        await self._begin()
        config = blueprint.config()
        planned = next(planned for planned in tree_of(config).walk() if planned.path == path)
        self._recorder = RemoteRecorder(blueprint)
        self._toolbox = Toolbox((), ())
        self._calls: Calls | None = None
        self._node = self._built(blueprint, config, planned)
        self._started = asyncio.create_task(self._toolbox.start())
        leaves = blueprint.leaves or not planned.node.replicas
        self._idle = Idle(blueprint.idle_timeout_s if leaves else None)
        self._serve(NODE, self, blueprint)

    async def run(self, turn: TurnInput) -> TurnOutput:
        with self._idle:
            try:
                await self.ready()
            except ToolSessionError as problem:
                return TurnOutput("interrupted", str(problem))
            return await self._node.run(turn, self._recorder)

    async def problems(self, call: ToolCall) -> str:
        with self._idle:
            await self.ready()
            return self._calls.problems(call) if self._calls else "this node has no tools"

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        with self._idle:
            await self.ready()
            return await self._calls.settle(call) if self._calls else None

    async def cancel(self, task: AbandonedTask) -> None:
        with self._idle:
            if self._calls is not None:
                await self._calls.cancel(task)

    async def ready(self) -> None:
        """Returns when the tools are known. Raises what went wrong with them; the next call tries again."""
        if self._started.done() and self._started.exception():
            self._started = asyncio.create_task(self._toolbox.start())
        # Shielded: one caller that leaves must not stop the start that others wait for.
        await asyncio.shield(self._started)

    def _built(self, blueprint: Blueprint, config: Config, planned: PlannedNode) -> Node:
        if planned.children:
            return composite_node(planned, lambda path: RemoteNode(blueprint, path).run)
        if planned.node.type == "a2a":
            self._calls = remote = remote_of(config, planned, reach)
            return a2a_node(planned, remote)
        sessions = [RemoteSession(blueprint, server.name, server.timeout_s) for server in config.servers]
        self._toolbox = toolbox_of(config, planned, sessions)
        self._calls = tools = tools_of(config, planned, self._toolbox, reach)
        llm = provider_for(planned.node.model or config.llm.model)
        return llm_node(config, planned, llm, tools)

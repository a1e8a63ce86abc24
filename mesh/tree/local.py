"""A whole tree in this process: `Tree` without actors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mesh.a2a.client.port import RemoteAgent
from mesh.config.model import A2aAgent, Config
from mesh.core.events import ToolCall, ToolResult
from mesh.core.places import Place
from mesh.llm.port import Llm
from mesh.mcp.port import ToolSession
from mesh.mcp.toolbox import Toolbox
from mesh.tree.build import (
    AgentFor,
    a2a_node,
    composite_node,
    llm_node,
    reach,
    remote_of,
    toolbox_of,
    tools_of,
)
from mesh.tree.node import Node
from mesh.tree.plan import PlannedNode, tree_of
from mesh.tree.tools import Calls
from mesh.tree.turn import (
    AbandonedTask,
    Recorder,
    TurnInput,
    TurnOutput,
    UnsettledCall,
    decode_abandoned,
    decode_input,
    decode_output,
    decode_settled,
    decode_unsettled,
    encode_abandoned,
    encode_input,
    encode_output,
    encode_settled,
    encode_unsettled,
)


class LocalTree:
    """The tree of one config. Calls between nodes have their wire form, as between actors."""

    def __init__(
        self,
        config: Config,
        sessions: Sequence[ToolSession],
        llm_for: Callable[[str], Llm],
        recorder: Recorder,
        agent_for: AgentFor = reach,
    ) -> None:
        self._recorder = recorder
        self._agents: list[RemoteAgent] = []
        self._agent_for = partial(self._reached, agent_for)
        self._toolboxes: list[Toolbox] = []
        self._callable: dict[str, Calls] = {}
        self._nodes: dict[str, Node] = {}
        for planned in tree_of(config).walk():
            self._nodes[planned.path] = self._node(config, planned, sessions, llm_for)

    async def start(self) -> None:
        """Learns the tools."""
        for toolbox in self._toolboxes:
            await toolbox.start()

    async def close(self) -> None:
        """Stops watching the tools, and lets go of other agents."""
        for toolbox in self._toolboxes:
            await toolbox.close()
        for agent in self._agents:
            await agent.close()

    async def run(self, turn: TurnInput) -> TurnOutput:
        node = self._nodes[turn.place.path]
        output = await node.run(decode_input(encode_input(turn)), self._recorder)
        return decode_output(encode_output(output))

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        return self._callable[Place(node).path].problems(ToolCall(id="", name=tool, arguments=arguments))

    async def cancel(self, task: AbandonedTask) -> None:
        await self._callable[Place(task.node).path].cancel(decode_abandoned(encode_abandoned(task)))

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        calls = self._callable[call.intent.place.path]
        return decode_settled(encode_settled(await calls.settle(decode_unsettled(encode_unsettled(call)))))

    def _reached(self, agent_for: AgentFor, config: A2aAgent) -> RemoteAgent:
        self._agents.append(agent_for(config))
        return self._agents[-1]

    def _node(
        self,
        config: Config,
        planned: PlannedNode,
        sessions: Sequence[ToolSession],
        llm_for: Callable[[str], Llm],
    ) -> Node:
        if planned.children:
            return composite_node(planned, lambda _: self.run)
        if planned.node.type == "a2a":
            self._callable[planned.path] = remote = remote_of(config, planned, self._agent_for)
            return a2a_node(planned, remote)
        toolbox = toolbox_of(config, planned, sessions)
        self._toolboxes.append(toolbox)
        self._callable[planned.path] = tools = tools_of(config, planned, toolbox, self._agent_for)
        llm = llm_for(planned.node.model or config.llm.model)
        return llm_node(config, planned, llm, tools)

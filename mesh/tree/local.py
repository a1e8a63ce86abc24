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
from mesh.tree.plan import Spot, tree_of
from mesh.tree.tools import Calls
from mesh.tree.turn import (
    LeftOver,
    Recorder,
    TurnInput,
    TurnOutput,
    UnsettledCall,
    decode_input,
    decode_left_over,
    decode_output,
    decode_settled,
    decode_unsettled,
    encode_input,
    encode_left_over,
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
        for spot in tree_of(config).walk():
            self._nodes[spot.path] = self._node(config, spot, sessions, llm_for)

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

    async def call_off(self, task: LeftOver) -> None:
        await self._callable[Place(task.node).path].call_off(decode_left_over(encode_left_over(task)))

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        calls = self._callable[call.intent.place.path]
        return decode_settled(encode_settled(await calls.settle(decode_unsettled(encode_unsettled(call)))))

    def _reached(self, agent_for: AgentFor, config: A2aAgent) -> RemoteAgent:
        self._agents.append(agent_for(config))
        return self._agents[-1]

    def _node(
        self, config: Config, spot: Spot, sessions: Sequence[ToolSession], llm_for: Callable[[str], Llm]
    ) -> Node:
        if spot.children:
            return composite_node(spot, lambda _: self.run)
        if spot.node.type == "a2a":
            self._callable[spot.path] = remote = remote_of(config, spot, self._agent_for)
            return a2a_node(spot, remote)
        toolbox = toolbox_of(config, spot, sessions)
        self._toolboxes.append(toolbox)
        self._callable[spot.path] = tools = tools_of(config, spot, toolbox, self._agent_for)
        llm = llm_for(spot.node.model or config.llm.model)
        return llm_node(config, spot, llm, tools)

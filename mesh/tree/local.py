"""A whole tree in this process: `Tree` without actors."""

from collections.abc import Callable, Sequence
from typing import Any

from mesh.config import Config
from mesh.events import ToolCall
from mesh.llm.port import Llm
from mesh.mcp.port import ToolSession
from mesh.mcp.toolbox import Toolbox
from mesh.tree.build import composite_node, llm_node, tool_step
from mesh.tree.children import path_of
from mesh.tree.node import Node
from mesh.tree.plan import Spot, tree_of
from mesh.tree.tool_call import ToolStep
from mesh.tree.turn import (
    Recorder,
    TurnInput,
    TurnOutput,
    decode_input,
    decode_output,
    encode_input,
    encode_output,
)


class LocalTree:
    """The tree of one config. Calls between nodes have their wire form, as between actors."""

    def __init__(
        self,
        config: Config,
        sessions: Sequence[ToolSession],
        llm_for: Callable[[str], Llm],
        recorder: Recorder,
    ) -> None:
        self._recorder = recorder
        self._toolboxes: list[Toolbox] = []
        self._tools: dict[str, ToolStep] = {}
        self._nodes: dict[str, Node] = {}
        for spot in tree_of(config).walk():
            self._nodes[spot.path] = self._node(config, spot, sessions, llm_for)

    async def start(self) -> None:
        """Learns the tools."""
        for toolbox in self._toolboxes:
            await toolbox.start()

    async def close(self) -> None:
        """Stops watching the tools."""
        for toolbox in self._toolboxes:
            await toolbox.close()

    async def run(self, turn: TurnInput) -> TurnOutput:
        node = self._nodes[path_of(turn.at)]
        output = await node.run(decode_input(encode_input(turn)), self._recorder)
        return decode_output(encode_output(output))

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        return self._tools[path_of(node)].problems(ToolCall(id="", name=tool, arguments=arguments))

    def _node(
        self, config: Config, spot: Spot, sessions: Sequence[ToolSession], llm_for: Callable[[str], Llm]
    ) -> Node:
        if spot.children:
            return composite_node(spot, lambda _: self.run)
        toolbox = Toolbox(sessions, offered=spot.node.tools)
        self._toolboxes.append(toolbox)
        self._tools[spot.path] = tool_step(config, spot, toolbox)
        llm = llm_for(spot.node.model or config.llm.model)
        return llm_node(config, spot, llm, self._tools[spot.path])

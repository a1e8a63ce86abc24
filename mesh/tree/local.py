"""A whole tree in this process: `Tree` without actors."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from mesh.a2a.client.port import RemoteAgent
from mesh.config.model import A2aAgent, Config
from mesh.core.errors import ToolSessionError, Unavailable
from mesh.core.events import Preview, ToolCall, ToolResult
from mesh.core.places import Place
from mesh.core.verdict import Verdict
from mesh.llm.port import Llm
from mesh.mcp.port import ToolSession
from mesh.mcp.toolbox import Toolbox
from mesh.policy.grants import Grant
from mesh.tree.build import AgentFor, BuiltNode, Environment, build_node, reach
from mesh.tree.plan import all_nodes
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

T = TypeVar("T")


class LocalTree:
    """The tree of one config. Calls between nodes are encoded and decoded as between actors, so that tests
    meet what actors would."""

    def __init__(
        self,
        config: Config,
        sessions: Sequence[ToolSession],
        llm_for: Callable[[str], Llm],
        recorder: Recorder,
        agent_for: AgentFor = reach,
    ) -> None:
        self._agents: list[RemoteAgent] = []
        self._llms: list[Llm] = []

        def kept_agent(agent: A2aAgent) -> RemoteAgent:
            self._agents.append(agent_for(agent))
            return self._agents[-1]

        def kept_llm(model: str) -> Llm:
            self._llms.append(llm_for(model))
            return self._llms[-1]

        environment = Environment(sessions, kept_llm, kept_agent, lambda _: _NodeBelow(self))
        self._built: dict[str, BuiltNode] = {
            planned.path: build_node(config, planned, environment) for planned in all_nodes(config)
        }
        self._nodes = {path: ReadyNode(built, recorder) for path, built in self._built.items()}

    @property
    def toolboxes(self) -> list[Toolbox]:
        """Those of its nodes that have one."""
        return [built.toolbox for built in self._built.values() if built.toolbox is not None]

    async def start(self) -> None:
        """Learns the tools. Raises what went wrong with them; what needs them tries again."""
        outcomes = await asyncio.gather(
            *(node.ready() for node in self._nodes.values()), return_exceptions=True
        )
        for problem in outcomes:
            if problem is not None:
                raise problem

    async def close(self) -> None:
        """Stops watching the tools, and closes the clients of models and of other agents."""
        for node in self._nodes.values():
            await node.close()
        for agent in self._agents:
            await agent.close()
        for llm in self._llms:
            await llm.close()

    async def run(self, turn: PassInput) -> PassOutput:
        return _received(await self._nodes[turn.place.path].run(_received(turn)))

    async def hear(self, digest: str, activation: Activation, news: News, is_durable: bool) -> Hearing:
        node = self._nodes[activation.place.path]
        return await node.hear(_received(activation), _received(news), is_durable)

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        call = ToolCall(id="", name=tool, arguments=arguments)
        try:
            return await self._nodes[Place(node).path].problems(call)
        except ToolSessionError as problem:
            raise Unavailable(str(problem)) from problem

    async def verdict(self, digest: str, node: str, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        try:
            return await self._nodes[Place(node).path].verdict(call, grants)
        except ToolSessionError as problem:
            raise Unavailable(str(problem)) from problem

    async def preview(self, digest: str, node: str, call: ToolCall, offset: int) -> Preview | None:
        try:
            return await self._nodes[Place(node).path].preview(call, offset)
        except ToolSessionError as problem:
            raise Unavailable(str(problem)) from problem

    async def cancel(self, task: AbandonedTask) -> None:
        await self._nodes[Place(task.node).path].cancel(_received(task))

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        try:
            return _received(await self._nodes[call.intent.place.path].settle(_received(call)))
        except ToolSessionError as problem:
            raise Unavailable(str(problem)) from problem


class _NodeBelow:
    """`RunNode` of any node of a tree."""

    def __init__(self, tree: LocalTree) -> None:
        self._tree = tree

    async def __call__(self, turn: PassInput) -> PassOutput:
        return await self._tree.run(turn)

    async def hear(self, activation: Activation, news: News, is_durable: bool) -> Hearing:
        return await self._tree.hear("", activation, news, is_durable)


def _received(value: T) -> T:
    """What the other end of a call gets when this value is sent to it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value))

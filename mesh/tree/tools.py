"""What a node may call: tools of MCP servers, other agents, and the person."""

from typing import Protocol

from mesh.core.events import ToolCall, ToolResult
from mesh.core.places import StepKey
from mesh.llm.port import ToolSpec
from mesh.tree.ask_user import ASK_USER, QuestionCalls
from mesh.tree.node import Outcome
from mesh.tree.remote_call import RemoteCalls
from mesh.tree.steps import Steps
from mesh.tree.tool_call import ToolCalls
from mesh.tree.turn import AbandonedTask, UnsettledCall


class _KindOfCalls(Protocol):
    """The calls of one kind that a node makes."""

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | Outcome:
        """See `mesh.tree.calls.run_call`."""
        ...

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        ...


class NodeCalls(Protocol):
    """What the keeper asks of a node about its calls, while the node does not run."""

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        ...

    async def cancel(self, task: AbandonedTask) -> None:
        """See `Tree.cancel`."""
        ...

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`."""
        ...


class _NoCalls:
    """The calls of a node that makes none."""

    def problems(self, call: ToolCall) -> str:
        return "this node has no tools"

    async def cancel(self, task: AbandonedTask) -> None:
        """It has asked no other agent."""

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return None


NO_CALLS: NodeCalls = _NoCalls()


class Tools:
    """All that one llm node may call. ``ask_user`` None: it cannot ask the person."""

    def __init__(self, mcp: ToolCalls, remote: RemoteCalls, ask_user: QuestionCalls | None) -> None:
        self._mcp = mcp
        self._remote = remote
        self._ask_user = ask_user
        self._own = tuple(tool.spec for tool in remote.agents.values()) + ((ASK_USER,) if ask_user else ())
        self._seen: tuple[ToolSpec, ...] = ()
        self._specs: tuple[ToolSpec, ...] = self._own

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them. The very same object until the tools change: providers keep what they
        made of it."""
        offered = self._mcp.toolbox.specs
        if offered is not self._seen:
            self._seen, self._specs = offered, (*offered, *self._own)
        return self._specs

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | Outcome:
        """See `mesh.tree.calls.run_call`."""
        return await self._kind_of(call).run(steps, step, call)

    def problems(self, call: ToolCall) -> str:
        return self._kind_of(call).problems(call)

    async def cancel(self, task: AbandonedTask) -> None:
        await self._remote.cancel(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return await self._mcp.settle(call)

    def _kind_of(self, call: ToolCall) -> _KindOfCalls:
        if call.name in self._remote.agents:
            return self._remote
        if self._ask_user is not None and call.name == ASK_USER.name:
            return self._ask_user
        return self._mcp  # which also says of an unknown name that there is no such tool

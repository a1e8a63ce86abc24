"""What an llm node may call: tools of MCP servers, other agents, and the person."""

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


class _Kind(Protocol):
    """One kind of what may be called."""

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | Outcome:
        """The call's result, recorded; or how the node's pass ends, if there is none yet."""
        ...

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        ...


class Calls(Protocol):
    """What the tree wants to know of a node that calls, besides running it."""

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        ...

    async def cancel(self, task: AbandonedTask) -> None:
        """See `Tree.cancel`."""
        ...

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`."""
        ...


class Tools:
    """All that one node may call. ``ask_user`` None: it cannot ask the person."""

    def __init__(self, mcp: ToolCalls, remote: RemoteCalls, ask_user: QuestionCalls | None) -> None:
        self._mcp = mcp
        self._remote = remote
        self._ask_user = ask_user
        self._own = tuple(tool.spec for tool in remote.agents.values()) + ((ASK_USER,) if ask_user else ())
        self._seen: tuple[ToolSpec, ...] = ()
        self._specs: tuple[ToolSpec, ...] = self._own

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools as models see them: the very same object until the tools change."""
        offered = self._mcp.toolbox.specs
        if offered is not self._seen:
            self._seen, self._specs = offered, (*offered, *self._own)
        return self._specs

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | Outcome:
        return await self._of(call).run(steps, step, call)

    def problems(self, call: ToolCall) -> str:
        return self._of(call).problems(call)

    async def cancel(self, task: AbandonedTask) -> None:
        await self._remote.cancel(task)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        return await self._mcp.settle(call)

    def _of(self, call: ToolCall) -> _Kind:
        if call.name in self._remote.agents:
            return self._remote
        if self._ask_user is not None and call.name == ASK_USER.name:
            return self._ask_user
        return self._mcp

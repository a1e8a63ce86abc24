"""A node as others call it, from the moment that it is built: what needs its tools waits until they are
known. If they cannot be learned, the next call tries again."""

import asyncio
from collections.abc import Sequence

from mesh.core.errors import ConfigError, ToolSessionError
from mesh.core.events import Preview, ToolCall, ToolResult
from mesh.core.verdict import Verdict
from mesh.policy.grants import Grant
from mesh.tree.build import BuiltNode
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


class ReadyNode:
    """See the module. `begin`, or the first call, begins to learn the tools."""

    def __init__(self, built: BuiltNode, recorder: Recorder) -> None:
        self._built = built
        self._recorder = recorder
        self._started: asyncio.Task[None] | None = None

    def begin(self) -> asyncio.Task[None]:
        """Begins to learn the tools, unless that is under way or was done."""
        if self._started is None or (self._started.done() and self._failed(self._started)):
            self._started = asyncio.create_task(self._start())
        return self._started

    async def run(self, turn: PassInput) -> PassOutput:
        try:
            await self.ready()
        except ToolSessionError as problem:
            return PassOutput("interrupted", str(problem))
        except ConfigError as problem:
            return PassOutput("failed", str(problem))
        return await self._built.node.run(turn, self._recorder)

    async def hear(self, activation: Activation, news: News, is_durable: bool) -> Hearing:
        """See `RunNode.hear`."""
        return await self._built.node.hear(activation, news, is_durable)

    async def problems(self, call: ToolCall) -> str:
        """What is wrong with a tool call that this node is about to make; empty if nothing. Raises
        `ToolSessionError`."""
        await self.ready()
        return self._built.calls.problems(call)

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`. Raises `ToolSessionError`, too."""
        await self.ready()
        return await self._built.calls.verdict(call, grants)

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        """See `Tree.preview`. Raises `ToolSessionError`, too."""
        await self.ready()
        return await self._built.calls.preview(call, offset)

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`. Raises `ToolSessionError`, too."""
        await self.ready()
        return await self._built.calls.settle(call)

    async def cancel(self, task: AbandonedTask) -> None:
        """See `Tree.cancel`."""
        await self._built.calls.cancel(task)

    async def ready(self) -> None:
        """Returns when the tools are known. Raises what went wrong with them."""
        # Shielded: one caller that leaves must not stop the start that others wait for.
        await asyncio.shield(self.begin())

    async def close(self) -> None:
        """Stops watching the tools."""
        if self._started is not None:
            self._started.cancel()
            await asyncio.gather(self._started, return_exceptions=True)
        if self._built.toolbox is not None:
            await self._built.toolbox.close()

    async def _start(self) -> None:
        if self._built.toolbox is not None:
            await self._built.toolbox.start()

    @staticmethod
    def _failed(started: asyncio.Task[None]) -> bool:
        return started.cancelled() or started.exception() is not None

"""The tool node makes one tool call, whose text is its response. It has no model."""

from collections.abc import Mapping
from typing import Any

from mesh.core.events import ToolCall
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.template import render_all
from mesh.tree.tool_call import ToolCalls


class ToolWork:
    """`Work` of a tool node. ``arguments`` are those of the config: what is text in them is a template."""

    def __init__(self, name: str, tool: str, arguments: Mapping[str, Any], calls: ToolCalls) -> None:
        self._name = name
        self._tool = tool
        self._arguments = arguments
        self._calls = calls

    async def __call__(self, steps: Steps) -> PassEnd:
        turn = steps.turn
        call = ToolCall("tool", self._tool, render_all(dict(self._arguments), turn))
        step = turn.place.tool_call()
        if steps.is_held and not steps.of(step):
            return PAUSED
        done = await self._calls.run(steps, step, call)
        if isinstance(done, PassEnd):
            return done
        if done.is_error:
            return PassEnd("failed", f"{self._name}: {done.content}")
        return PassEnd("completed", done.content)

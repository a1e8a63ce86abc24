"""The a2a node asks another agent, whose answer is its response."""

from mesh.core.events import ToolCall
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.remote_call import AgentTool, RemoteCalls
from mesh.tree.steps import Steps
from mesh.tree.template import render


class A2aWork:
    """`Work` of an a2a node. ``template`` is the message that it sends; empty: the user's message."""

    def __init__(self, template: str, tool: AgentTool, calls: RemoteCalls) -> None:
        self._template = template
        self._tool = tool
        self._calls = calls

    async def __call__(self, steps: Steps) -> PassEnd:
        turn = steps.turn
        message = render(self._template, turn) if self._template else turn.user_message
        call = ToolCall("a2a", self._tool.tool, {"message": message})
        step = turn.place.agent_call()
        if steps.is_held and not steps.of(step):
            return PAUSED
        done = await self._calls.run(steps, step, call)
        if isinstance(done, PassEnd):
            return done
        return PassEnd("failed" if done.is_error else "completed", done.content)

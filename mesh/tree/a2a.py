"""The a2a node: hands the work on to another agent, whose answer is its response."""

from mesh.core.events import ToolCall
from mesh.tree.node import Outcome
from mesh.tree.peer import Peer
from mesh.tree.remote_call import RemoteStep
from mesh.tree.step import Steps
from mesh.tree.template import render


class A2aWork:
    """`Work` of an a2a node. ``template``: what it says; empty: the user's message."""

    def __init__(self, template: str, peer: Peer, remote: RemoteStep) -> None:
        self._template = template
        self._peer = peer
        self._remote = remote

    async def __call__(self, steps: Steps) -> Outcome:
        turn = steps.turn
        message = render(self._template, turn) if self._template else turn.user_message
        call = ToolCall("a2a", self._peer.tool, {"message": message})
        done = await self._remote.run(steps, f"{turn.at}/a2a/0", call)
        if isinstance(done, Outcome):
            return done
        return Outcome("failed" if done.is_error else "completed", done.content)

"""What a tool asks of the node that called it: to start agents, and to wait for them.

A tool cannot wait in its process, because what it waits for may take weeks. So a call that comes to a
question which nobody has answered yet ends there (`Unanswered`), and its result says what it asked. The node
answers, journals the answers, and makes the call once more: the function runs again from its beginning, and
gets the answers as it comes to the same questions. That is why only a tool that may run twice can ask.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from mesh.core.execution import RecordedQuestion
from mesh.tools.declare import ToolError

MAY_NOT_ASK = (
    "only a tool that is read_only or idempotent may start agents and wait for them: its function runs again "
    "with the answers"
)

_MOST_WAIT_S = 1e9


class Unanswered(BaseException):
    """Unwinds a call that has asked something. Like a cancellation, it is no `Exception`: a tool must not
    take it for a failure of its own."""


class AgentFailed(ToolError):
    """An agent that was waited for has failed, or was deleted. ``handle`` says which, ``status`` how it
    ended."""

    def __init__(self, handle: int, status: str, text: str) -> None:
        super().__init__(f"the agent with handle {handle} {_ENDED[status]}: {text}")
        self.handle = handle
        self.status = status


_ENDED = {"failed": "has failed", "deleted": "was deleted"}


class Asking:
    """The questions of one run of a function. ``recorded`` are those of earlier runs with their answers;
    ``problem`` says why it may ask nothing, and is empty if it may."""

    def __init__(self, recorded: Sequence[RecordedQuestion] = (), problem: str = "") -> None:
        self.new: list[str] = []
        """What was asked in this run and is not answered yet, as JSON."""
        self._recorded = recorded
        self._problem = problem
        self._number = 0
        self._handles = 0

    def start(self, question: dict[str, Any]) -> int:
        """Asks for an agent to be started, and returns its handle. The agent starts when the function waits,
        or ends."""
        answer = self._answer(question)
        if answer is not None and "refused" in answer:
            raise ToolError(answer["refused"])
        self._handles += 1
        return self._handles

    def wait(self, handles: int | Sequence[int], *, any: bool, timeout: float | None) -> Any:
        """Waits for agents, and returns what they said."""
        several = [handles] if isinstance(handles, int) else [*handles]
        for handle in several:
            if not 1 <= handle <= self._handles:
                raise ToolError(f"No agent with handle {handle}")
        if not several:
            return []
        more: dict[str, Any] = {"any": True} if any else {}
        if timeout is not None:
            if not 0 <= timeout < _MOST_WAIT_S:
                raise ToolError("the timeout is a number of seconds, from 0")
            more["timeout"] = float(timeout)  # the spelling in which the answer repeats the question
        answer = self._answer({"wait": several, **more})
        if answer is None:
            raise Unanswered
        texts = [
            None if end is None else _said(handle, end)
            for handle, end in zip(several, answer["ended"], strict=True)
        ]
        return texts[0] if isinstance(handles, int) else texts

    def _answer(self, question: dict[str, Any]) -> Any:
        """The recorded answer to the next question; None if it is new."""
        if self._problem:
            raise ToolError(self._problem)
        asked = msgspec.json.encode(question, order="sorted").decode()
        if self._number >= len(self._recorded):
            self.new.append(asked)
            return None
        before = self._recorded[self._number]
        self._number += 1
        if before.asked != asked:
            raise ToolError(
                f"the tool asked something else than when it ran before, so it cannot go on. Question "
                f"{self._number} before: {before.asked[:500]} and now: {asked[:500]}"
            )
        return msgspec.json.decode(before.answer)


def _said(handle: int, end: dict[str, str]) -> str:
    if end["status"] != "completed":
        raise AgentFailed(handle, end["status"], end["text"])
    return end["text"]

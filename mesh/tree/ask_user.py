"""The tool by which an agent asks the person: the turn pauses, and the answer is the tool's result."""

from typing import Any

import msgspec

from mesh.core.events import ApprovalRequired, ToolCall, ToolResult
from mesh.llm.port import ToolSpec
from mesh.tree.asking import Asking
from mesh.tree.node import PAUSED, REJECTED, Outcome
from mesh.tree.result import bounded, record_result
from mesh.tree.step import Steps

_MOST = 4_000
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"question": {"type": "string"}},
    "required": ["question"],
    "additionalProperties": False,
}
ASK_USER = ToolSpec(
    "ask_user", "Asks the person a question and waits for the answer, however long it takes.", _SCHEMA
)


class AskUser(msgspec.Struct, frozen=True):
    """Runs a node's questions."""

    asking: Asking
    max_result_bytes: int

    async def run(self, steps: Steps, step: str, call: ToolCall) -> ToolResult | Outcome:
        """The answer, recorded; or how the node's pass ends, if there is none yet."""
        if done := steps.known(step, ToolResult):
            return done
        if refusal := self.problems(call):
            return self._record(steps, step, call, refusal, is_error=True)
        asked = steps.known(step, ApprovalRequired)
        if asked is None:
            self.asking.ask(steps, step, _question(call))
            return PAUSED
        decision = steps.decision(asked)
        if decision is None:
            return PAUSED
        if decision.decision == "answer":
            return self._record(steps, step, call, decision.answer)
        if not decision.reason:
            return REJECTED
        return self._record(steps, step, call, f"There is no answer: {decision.reason}", is_error=True)

    def _record(
        self, steps: Steps, step: str, call: ToolCall, content: str, *, is_error: bool = False
    ) -> ToolResult:
        return record_result(steps, step, call, content, most=self.max_result_bytes, is_error=is_error)

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made; empty if it can."""
        question = call.arguments.get("question")
        if call.malformed or not isinstance(question, str) or not question.strip():
            return f'Invalid arguments for {call.name}: expected {{"question": "…"}}'
        return ""


def _question(call: ToolCall) -> ApprovalRequired:
    return ApprovalRequired(
        uuid="",
        call_id=call.id,
        tool_name=call.name,
        tool_args=call.arguments,
        description=bounded(call.arguments["question"], _MOST),
        kind="question",
    )

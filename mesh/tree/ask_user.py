"""The tool by which an agent asks the person: the turn pauses, and the answer is the tool's result."""

from collections.abc import Sequence
from typing import Any

import msgspec

from mesh.core.durable_call import Ask, Refuse
from mesh.core.events import ApprovalRequired, LlmCall, ToolCall, ToolResult
from mesh.core.messages import ToolSpec
from mesh.core.places import StepKey
from mesh.core.verdict import Verdict
from mesh.policy.grants import Grant
from mesh.tree.calls import CallDriver, CallSettings, NotRun, bounded, run_call
from mesh.tree.node import REJECTED, PassEnd
from mesh.tree.steps import Steps

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


class QuestionCalls(msgspec.Struct, frozen=True):
    """The questions of one node: ``at_most`` so many of one run of it. Where there is a ``declined``, that is
    the answer of the turn, which ends, if the person rejects a question without a reason."""

    settings: CallSettings
    at_most: int | None = None
    declined: str = ""

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """See `run_call`."""
        if self.at_most is not None and _asked_before(steps, step) >= self.at_most:
            return steps.known(step, ToolResult) or steps.record(step, self._one_too_many(call))
        ended = await run_call(_QuestionCall(self, call), steps, step, call, self.settings)
        if ended != REJECTED or not self.declined:
            return ended
        result = ToolResult(
            call_id=call.id, tool=call.name, content=self.declined, skipped=True, ends_turn=True
        )
        await steps.end_turn(step, result)
        return PassEnd("stopped", self.declined)

    def _one_too_many(self, call: ToolCall) -> ToolResult:
        text = f"You may ask {self.at_most} times, and have done so. Go on with what you know."
        return ToolResult(call_id=call.id, tool=call.name, content=text, is_error=True)

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """No policy decides about a question."""
        return Verdict("ask", "", "A person is asked.")

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made; empty if it can."""
        question = call.arguments.get("question")
        if call.malformed or not isinstance(question, str) or not question.strip():
            return f'Invalid arguments for {call.name}: expected {{"question": "…"}}'
        return ""


class _QuestionCall(CallDriver):
    """One question. Its only effect is in the journal, so that nothing is ever claimed."""

    is_question = True

    def __init__(self, calls: QuestionCalls, call: ToolCall) -> None:
        super().__init__(call)
        self._calls = calls

    def problem(self, arguments: dict[str, Any]) -> str:
        return self._calls.problems(msgspec.structs.replace(self.call, arguments=arguments))

    def question(self, action: Ask) -> ApprovalRequired:
        return ApprovalRequired(
            uuid="",
            call_id=self.call.id,
            tool_name=self.call.name,
            tool_args=action.arguments,
            description=bounded(action.arguments["question"], _MOST),
            kind=action.kind,
        )

    def refusal(self, action: Refuse) -> NotRun:
        return NotRun(f"There is no answer: {action.reason}" if action.reason else action.problem)


def _asked_before(steps: Steps, step: StepKey) -> int:
    """How many questions the model has asked in this run of the node before a call."""
    count = 0
    for number in range(step.asked_by.number + 1):
        asked_by = step.place.model_call(number)
        answer = steps.known(asked_by, LlmCall)
        for index, call in enumerate(answer.tool_calls if answer else ()):
            if asked_by.tool_call(index) == step:
                return count
            count += call.name == ASK_USER.name
    return count

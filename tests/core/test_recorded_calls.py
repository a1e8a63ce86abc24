"""The calls of a journal: which there were, with which arguments, who decided, what came of them."""

from typing import Any

from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    LlmCall,
    ToolCall,
    ToolIntent,
    ToolResult,
)
from mesh.core.recorded_calls import RecordedCall, recorded_calls

STEP = "0/tool/0.0"
WRITE = ToolCall("c", "write", {"path": "a"})


def answer(*calls: ToolCall, seq: int = 1) -> LlmCall:
    return LlmCall(seq=seq, turn=1, step="0/llm/0", model="m", tool_calls=calls)


def asked(step: str = STEP, **more: Any) -> ApprovalRequired:
    fields = {"uuid": f"u-{step}", "call_id": "c", "tool_name": "write", "tool_args": {"path": "a"}, **more}
    return ApprovalRequired(seq=2, turn=1, step=step, description="", **fields)


def approved(step: str = STEP, **more: Any) -> ApprovalResolved:
    return ApprovalResolved(seq=3, turn=1, step=step, uuid=f"u-{step}", choice="approve", by="ann", **more)


def result(step: str = STEP, **more: Any) -> ToolResult:
    return ToolResult(seq=5, turn=1, step=step, call_id="c", tool="write", content="done", **more)


def only(*events: AnyEvent) -> RecordedCall:
    [call] = recorded_calls(events)
    return call


def test_a_call_that_ran_at_once_was_allowed() -> None:
    call = only(answer(WRITE), result(rule="docs"))
    assert (call.seq, call.tool, call.arguments, call.decision) == (1, "write", {"path": "a"}, "allowed")
    assert call.result is not None and call.result.rule == "docs"


def test_a_call_that_was_asked_about_has_the_decision_and_the_arguments_it_was_made_with() -> None:
    edited = {"path": "b"}
    claim = ToolIntent(seq=4, turn=1, step=STEP, run=1, tool="write", arguments=edited)
    for events in ([approved(edited_args=edited)], [approved(edited_args=edited), claim, result()]):
        call = only(answer(WRITE), asked(), *events)
        assert (call.decision, call.arguments) == ("ask", edited)
        assert call.resolved is not None and call.resolved.by == "ann"


def test_a_call_that_waits_or_failed_says_only_what_is_known() -> None:
    waiting = only(answer(WRITE), asked())
    assert (waiting.decision, waiting.resolved, waiting.result) == ("ask", None, None)
    assert only(answer(WRITE)).decision is None
    assert only(answer(WRITE), result(is_error=True, rule="push")).decision is None


def test_calls_of_one_answer_and_of_turns_are_told_apart() -> None:
    second = LlmCall(seq=9, turn=2, step="0/llm/0", model="m", tool_calls=(WRITE,))
    found = recorded_calls([answer(WRITE, WRITE), result("0/tool/0.1"), second])
    assert [(call.turn, call.step.text, call.decision) for call in found] == [
        (1, "0/tool/0.0", None),
        (1, "0/tool/0.1", "allowed"),
        (2, "0/tool/0.0", None),
    ]


def test_a_call_that_no_model_asked_for_is_one_too() -> None:
    call = only(result(arguments={"path": "z"}))
    assert (call.tool, call.arguments, call.decision) == ("write", {"path": "z"}, "allowed")


def test_what_is_no_call_is_none() -> None:
    malformed = ToolCall("c", "write", malformed="{")
    events = [
        answer(malformed),
        asked("0/limit/max_llm_calls", kind="limit"),
        asked("0/llm/0", kind="question"),
        asked("0/a2a/0", remote_task_id="t"),
        result("0/validation/0.0"),
        ToolIntent(seq=4, turn=1, step="0/a2a/0", run=1, tool="a", arguments={}, answers="u"),
    ]
    assert recorded_calls(events) == []


def test_what_was_to_be_remembered_counts_for_the_calls_that_begin_after_it() -> None:
    decision = approved(remember="conversation", grant={"name": "write", "decide": "allow"})
    later = LlmCall(seq=6, turn=1, step="0/llm/1", model="m", tool_calls=(WRITE,))
    first, second = recorded_calls([answer(WRITE), asked(), decision, result(), later])
    assert (first.remembered, second.remembered) == ((), ((asked(), decision),))

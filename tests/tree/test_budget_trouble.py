"""Budgets where something goes wrong: failed branches, strange reports, hostile journals."""

from typing import Any

import pytest

from mesh.core.budget import BudgetUse
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    RemoteQuestion,
    UserMessage,
)

OPENED = UserMessage(turn=1, text="go", time="2026-01-01T00:00:00.000Z")


def after(*events: AnyEvent) -> BudgetUse:
    return BudgetUse().after([OPENED, *events])


def asked(args: dict[str, Any], step: str = "0/limit/max_llm_calls", **more: Any) -> ApprovalRequired:
    return ApprovalRequired(
        turn=1,
        step=step,
        uuid="u",
        call_id="",
        tool_name="budget",
        tool_args=args,
        description="",
        kind="limit",
        **more,
    )


def decided(step: str = "0/limit/max_llm_calls", edited: dict[str, Any] | None = None) -> ApprovalResolved:
    return ApprovalResolved(turn=1, step=step, uuid="u", choice="approve", edited_args=edited)


@pytest.mark.parametrize(
    "more", ["x", None, [1], {}, True, -5, 0, float("nan"), float("inf"), 1e308], ids=repr
)
def test_what_is_no_amount_raises_no_limit(more: Any) -> None:
    args = {"max_llm_calls": more}
    assert after(asked(args), decided()).raised == {}
    assert after(asked({"max_llm_calls": 2}), decided(edited=args)).raised == {}


def test_a_limit_of_another_agent_raises_none_of_ours() -> None:
    question = RemoteQuestion("context", "q", "mesh")
    theirs = asked({"max_llm_calls": 100}, "0/tool/0.0", remote_task_id="t", remote_question=question)
    assert after(theirs, decided("0/tool/0.0")).raised == {}
    assert not after(theirs).is_asked("0", "max_llm_calls")

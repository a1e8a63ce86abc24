"""The actions of agents: what each line says, and that no cost is said twice or not at all."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.actions import ActionLog, AgentAction, actions
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    Completed,
    ConversationCreated,
    Error,
    LlmCall,
    LlmLost,
    LlmSettled,
    NodeCompleted,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
)
from mesh.core.execution import trace_id_of
from mesh.core.spending import spend_report
from tests.core.test_conversation_properties import garbled
from tests.core.test_spending import call, journals, result, started

CREATED = ConversationCreated(conversation_id="c", session_id="s", agent="shop", digest="d", seq=1)
ASKS = (ToolCall("a", "search", {"task": "cats"}), ToolCall("b", "add", {"n": 1}))
CALLED: list[AnyEvent] = [
    CREATED,
    UserMessage(turn=1, text="go", time="12:00"),
    call("0/llm/0", 123_456, tool_calls=ASKS),
    started("0.search@0-0", "main", "search"),
    call("0.search@0-0/llm/0", None, text="x" * 2000),
    result("0/tool/0.0", forced="max_llm_calls"),
    ToolIntent(turn=1, step="0/tool/0.1", run=1, tool="add", arguments={"n": 2}),
    ToolResult(turn=1, step="0/tool/0.1", call_id="b", tool="add", content="added", duration_ms=3),
    call("0/llm/1", 0),
    Completed(turn=1, response="done", time="12:01"),
]


def lines(events: list[AnyEvent]) -> list[AgentAction]:
    return list(actions(events, "main"))


def test_each_thing_that_an_agent_does_is_a_line() -> None:
    shown = [(line.agent_name, line.depth, line.turn, line.action) for line in lines(CALLED)]
    assert shown == [
        ("main", 1, 0, "agent_start"),
        ("main", 1, 1, "llm_call"),
        ("main", 1, 1, "agent_call"),
        ("search", 2, 0, "agent_start"),
        ("search", 2, 1, "llm_call"),
        ("search", 2, 1, "forced_complete"),
        ("search", 2, 1, "agent_complete"),
        ("main", 1, 1, "tool_call"),
        ("main", 1, 2, "llm_call"),
        ("main", 1, 2, "agent_complete"),
    ]


def test_a_line_has_the_names_of_the_format() -> None:
    found = [msgspec.to_builtins(line) for line in lines(CALLED)]
    keys = {"traceId", "depth", "agentName", "turn", "action", "cost", "costUsd", "timestamp", "data"}
    assert found[0].keys() == keys and found[3].keys() == {*keys, "parentTrace"}
    assert found[0]["traceId"] == trace_id_of("", "c", 1)
    assert (found[0]["timestamp"], found[0]["data"]) == ("12:00", {"input": "go"})


def test_a_cost_is_in_millicents_and_in_dollars_and_null_if_nobody_knows_it() -> None:
    costs = [(line.cost, line.cost_usd) for line in lines(CALLED) if line.action == "llm_call"]
    assert costs == [(12.3456, 0.000123456), (None, None), (0, 0)]


def test_a_called_agent_has_a_trace_below_that_of_its_caller() -> None:
    found = lines(CALLED)
    main, asked, search = found[0], found[2], found[3]
    assert search.parent_trace == main.trace_id == asked.trace_id
    assert asked.data["trace"] == search.trace_id != main.trace_id
    assert asked.data["arguments"] == search.data["input"] == {"task": "cats"}


def spawned(index: int, **more: Any) -> AgentStarted:
    step = f"0.search@0-0-{index}"
    return AgentStarted(step=step, turn=1, name="search", kind="llm", by="spawn", task="t" * 2000, **more)


def test_a_started_agent_has_a_trace_below_that_of_who_started_it_and_says_its_own_task_alone() -> None:
    end = NodeCompleted(step="0.search@0-0-1", turn=1, name="search", status="deleted", text="too late")
    model = call("0.search@0-0-1/llm/0")
    found = lines([*CALLED[:3], spawned(0), spawned(1, title="dogs", id="i"), model, end])
    main, asked, search = found[0], found[4], found[5]
    assert search.parent_trace == main.trace_id == asked.trace_id
    assert (asked.action, asked.turn, asked.data["trace"]) == ("agent_call", 1, search.trace_id)
    assert (asked.data["title"], asked.data["by"], asked.data["id"]) == ("dogs", "spawn", "i")
    assert len(asked.data["arguments"]["task"]) == len(search.data["input"]["task"]) == 1001
    assert (found[-1].action, found[-1].trace_id) == ("agent_complete", search.trace_id)
    assert found[-1].data == {"result": "too late", "isError": True, "deleted": True}


def test_who_ends_ends_the_agents_that_it_started_and_no_others() -> None:
    below = AgentStarted(step="0.search@0-0-1.web@0-0-0", turn=1, name="web", kind="llm", by="spawn")
    end = NodeCompleted(step="0.search@0-0-1", turn=1, name="search")
    found = lines([*CALLED[:3], spawned(0), spawned(1), below, end])
    ended = [line.agent_name for line in found if line.action == "agent_complete"]
    assert ended == ["web", "search"]


def test_an_item_of_a_map_is_a_part_of_the_agent_around_it() -> None:
    item = AgentStarted(step="0.0#7", turn=1, name="each", kind="llm", by="map")
    found = lines([*CALLED[:2], item, call("0.0#7/llm/0"), NodeCompleted(step="0.0#7", turn=1, name="each")])
    assert [(line.agent_name, line.action) for line in found] == [
        ("main", "agent_start"),
        ("main", "llm_call"),
    ]


def test_a_tool_is_shown_with_the_arguments_that_it_ran_with_and_a_long_text_is_cut() -> None:
    found = lines(CALLED)
    assert found[7].data == {
        "tool": "add",
        "arguments": {"n": 2},
        "result": "added",
        "isError": False,
        "durationMs": 3,
    }
    assert len(found[4].data["text"]) == 1001


def test_the_call_of_a_tool_node_is_shown_with_the_arguments_that_its_result_tells() -> None:
    told = ToolResult(turn=1, step="0/tool/0.0", call_id="", tool="look", content="5", arguments={"q": "x"})
    (line,) = lines([*CALLED[:2], told])[1:]
    assert (line.action, line.data["arguments"]) == ("tool_call", {"q": "x"})


def test_a_model_call_that_was_lost_is_told_and_its_cost_is_unknown() -> None:
    (line,) = lines([*CALLED[:2], LlmLost(turn=1, step="0/llm/0")])[1:]
    assert (line.action, line.cost, line.data) == ("llm_call", None, {"node": "0", "lost": True})


def test_a_verdict_is_an_action_of_the_agent_whose_answer_it_is_about() -> None:
    verdict = Validation(
        turn=1, step="0/validation/0.1", name="critic", kind="agent", feedback="No.", number=1, of=3
    )
    critic = started("0.critic@v0-1", "main", "critic")
    found = lines([*CALLED[:2], call("0/llm/0", 5, draft=True), critic, verdict])[2:]
    assert [(line.agent_name, line.action, line.turn) for line in found] == [
        ("main", "agent_call", 1),
        ("critic", "agent_start", 0),
        ("critic", "agent_complete", 0),
        ("main", "validation", 1),
    ]
    assert found[-1].data == {
        "node": "0", "validator": "critic", "kind": "agent", "valid": False, "feedback": "No.",
        "number": 1, "of": 3,
    }  # fmt: skip


def test_the_text_of_a_draft_is_only_in_the_journal() -> None:
    (line,) = lines([*CALLED[:2], call("0/llm/0", 5, text="not yet", draft=True)])[1:]
    assert line.data["draft"] is True and "not yet" not in str(line)


def test_an_agent_of_another_mesh_is_called_too() -> None:
    told = ToolResult(turn=1, step="0/a2a/0", call_id="", tool="a2a_stock", content="5")
    (line,) = lines([*CALLED[:2], told])[1:]
    assert (line.action, line.data["agent"], line.agent_name) == ("agent_call", "stock", "main")


@pytest.mark.parametrize("end", [Completed(turn=1, response="so"), Error(turn=1, message="no")])
def test_agents_that_have_not_answered_end_with_the_turn(end: AnyEvent) -> None:
    *_, search, main = lines([*CALLED[:4], end])
    assert (search.agent_name, search.action) == ("search", "agent_complete")
    assert search.data == {"endedWithCaller": True}
    assert (main.agent_name, main.action, main.data["isError"]) == (
        "main",
        "agent_complete",
        isinstance(end, Error),
    )


def test_the_next_turn_is_another_trace() -> None:
    found = lines([*CALLED, UserMessage(turn=2, text="more")])
    assert found[-1].trace_id == trace_id_of("", "c", 2) != found[0].trace_id


def test_without_called_agents_the_root_agent_has_the_name_that_the_journal_has() -> None:
    assert next(actions(CALLED[:3])).agent_name == "shop"
    assert next(actions(CALLED)).agent_name == "main"


@given(journals())
def test_the_costs_of_all_actions_are_what_was_spent(events: list[AnyEvent]) -> None:
    found = lines([CREATED, *events])
    assert sum(round((line.cost_usd or 0) * 10**9) for line in found) == _spent(events)
    assert sum(round((line.cost or 0) * 10**4) for line in found) == _spent(events)
    made = [event for event in events if isinstance(event, LlmCall | LlmSettled)]
    assert sum(line.action == "llm_call" for line in found) == len(made)


@given(journals())
def test_every_agent_that_starts_completes_once_and_after_those_that_it_called(
    events: list[AnyEvent],
) -> None:
    found = lines([CREATED, *events, Completed(turn=1, response="done")])
    begun: dict[str, AgentAction] = {}
    for line in found:
        if line.action == "agent_start":
            begun[line.trace_id] = line
        elif line.action == "agent_complete":
            begun.pop(line.trace_id, None)
            assert all(other.parent_trace != line.trace_id for other in begun.values())
    assert begun == {}


@given(journals())
def test_every_line_says_the_depth_of_its_agent(events: list[AnyEvent]) -> None:
    depths = {line.trace_id: line.depth for line in lines([CREATED, *events])}
    for line in lines([CREATED, *events]):
        parent = line.parent_trace
        assert (parent is msgspec.UNSET) == (line.depth == 1)
        if isinstance(parent, str) and parent in depths:
            assert depths[parent] == line.depth - 1


@given(garbled(), st.integers(0, 30))
def test_any_events_can_be_shown_one_after_the_other_as_well_as_at_once(
    events: list[AnyEvent], split: int
) -> None:
    log = ActionLog("main")
    log.learn(events)
    first = [line for event in events[:split] for line in log.add(event)]
    rest = [line for event in events[split:] for line in log.add(event)]
    assert msgspec.json.encode([*first, *rest]) == msgspec.json.encode(lines(events))


def _spent(events: list[AnyEvent]) -> int:
    return round(spend_report(events, "main").spent.cost_usd * 10**9)

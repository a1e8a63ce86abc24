"""Meters are counted, bounded, and read by Prometheus's own parser as they were written."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from mesh.core.conversation import fold
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    ConversationCreated,
    Error,
    LimitReached,
    LlmCall,
    StoreWentBack,
    ToolResult,
    Usage,
    UserMessage,
)
from mesh.core.ids import new_id
from mesh.metrics import table
from mesh.metrics.exposition import exposed
from mesh.metrics.meters import MOST_SERIES, OTHER, Meters, Metric, Series
from mesh.metrics.of_events import note_events, seconds_between

BEGUN, ENDED = "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:01.500Z"


def noted(*events: AnyEvent) -> Meters:
    """The meters after a conversation whose first turn has these events."""
    meters = Meters()
    created = ConversationCreated(
        seq=1, conversation_id=new_id(), session_id="s", agent="a", digest="d", time=BEGUN
    )
    conversation = fold([created, UserMessage(seq=2, turn=1, text="hello", time=BEGUN)])
    note_events(meters, conversation, events)
    return meters


def values(meters: Meters, name: str) -> dict[tuple[str, ...], float]:
    return {each.labels: each.value for each in meters.series() if each.metric == name}


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (Completed(response="done"), "completed"),
        (Completed(response="done", forced="max_llm_calls"), "limited"),
        (Completed(response="", stopped_by_person=True), "stopped"),
        (Completed(response="", stopped_by_person=True, cancelled_on_request=True), "cancelled"),
        (Error(message="no"), "failed"),
    ],
)
def test_a_turn_counts_by_how_it_ends(end: Completed | Error, outcome: str) -> None:
    assert values(noted(end), "mesh_turns_total") == {(outcome,): 1}


def test_a_turn_took_from_its_message_to_its_end() -> None:
    meters = noted(Completed(response="done", time=ENDED))
    assert values(meters, "mesh_turn_duration_seconds") == {("completed",): 1.5}


def test_a_model_call_counts_with_its_tokens_its_time_and_its_cost() -> None:
    usage = Usage(input=100, output=20)
    meters = noted(LlmCall(model="m", usage=usage, latency_ms=250, cost_nusd=2_000_000_000))
    assert values(meters, "gen_ai_client_token_usage") == {("m", "input"): 100, ("m", "output"): 20}
    assert values(meters, "gen_ai_client_operation_duration_seconds") == {("m",): 0.25}
    assert values(meters, "mesh_llm_cost_usd_total") == {("m",): 2.0}


@pytest.mark.parametrize(
    ("more", "outcome"), [({}, "ok"), ({"is_error": True}, "error"), ({"skipped": True}, "skipped")]
)
def test_a_tool_call_counts_by_its_outcome(more: dict[str, bool], outcome: str) -> None:
    meters = noted(ToolResult(call_id="c", tool="add", content="", duration_ms=40, **more))
    assert values(meters, "mesh_tool_calls_total") == {("add", outcome): 1}
    assert values(meters, "mesh_tool_call_duration_seconds") == {("add",): 0.04}


def test_a_call_that_the_policy_denied_is_no_error_of_the_tool() -> None:
    meters = noted(ToolResult(call_id="c", tool="add", content="", is_error=True, denied=True))
    assert values(meters, "mesh_tool_calls_total") == {("add", "denied"): 1}


def test_approvals_limits_and_losses_count() -> None:
    asked = ApprovalRequired(uuid="u", call_id="c", tool_name="add", tool_args={}, description="add")
    meters = noted(
        asked,
        ApprovalResolved(uuid="u", choice="approve"),
        LimitReached(limit="max_llm_calls", scope="0", then="answer"),
        StoreWentBack(lost_up_to=3, message="lost"),
    )
    assert values(meters, "mesh_approvals_required_total") == {("tool_call",): 1}
    assert values(meters, "mesh_approvals_resolved_total") == {("approve",): 1}
    assert values(meters, "mesh_limits_reached_total") == {("max_llm_calls",): 1}
    assert values(meters, "mesh_store_losses_total") == {(): 1}


@pytest.mark.parametrize("time", ["", "yesterday", "2026-01-01"])
def test_a_time_that_says_nothing_is_no_error(time: str) -> None:
    assert seconds_between(time, ENDED) == 0.0


def test_however_many_tools_a_model_invents_the_series_are_bounded() -> None:
    meters = Meters()
    for number in range(10 * MOST_SERIES):
        meters.add(table.TOOL_CALLS, f"tool {number}", "error")
    found = values(meters, table.TOOL_CALLS.name)
    assert len(found) == MOST_SERIES + 1
    assert found[OTHER, OTHER] == 9 * MOST_SERIES


def test_another_pipeline_is_told_the_same_at_once() -> None:
    class Copy:
        def __init__(self) -> None:
            self.meters = Meters()

        def add(self, metric: Metric, labels: Sequence[str], by: float) -> None:
            self.meters.add(metric, *labels, by=by)

        def observe(self, metric: Metric, labels: Sequence[str], value: float) -> None:
            self.meters.observe(metric, value, *labels)

    copy = Copy()
    meters = Meters(copy)
    for number in range(MOST_SERIES + 50):
        meters.add(table.TOOL_CALLS, f"tool {number}", "ok", by=number)
        meters.observe(table.TOOL_SECONDS, number / 100, f"tool {number}")
    assert sorted(copy.meters.series(), key=repr) == sorted(meters.series(), key=repr)


@given(st.lists(st.floats(0, 1e6)), st.text())
def test_prometheus_reads_a_histogram_as_it_was_measured(measured: list[float], model: str) -> None:
    meters = Meters()
    for value in measured:
        meters.observe(table.LLM_SECONDS, value, model)
    text = exposed("agent", {"keeper 1": meters.series()}).decode()
    samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
    counts = {float(each.labels["le"]): each.value for each in samples if each.name.endswith("_bucket")}
    assert counts == ({bound: sum(v <= bound for v in measured) for bound in counts} if measured else {})
    sums = [each for each in samples if each.name.endswith("_sum")]
    assert [each.value for each in sums] == [pytest.approx(sum(measured))] * bool(measured)
    labels = {"gen_ai_agent_name": "agent", "keeper": "keeper 1", "gen_ai_request_model": model}
    assert [each.labels for each in sums] == [labels] * bool(measured)


def test_each_keeper_has_series_of_its_own_and_what_nobody_measured_is_not_there() -> None:
    by_keeper = {name: [Series("mesh_shards", (), value)] for name, value in (("a", 3), ("b", 4))}
    families = [*text_string_to_metric_families(exposed("agent", by_keeper).decode())]
    assert [family.name for family in families] == ["mesh_shards"]
    assert {each.labels["keeper"]: each.value for each in families[0].samples} == {"a": 3, "b": 4}


def test_all_metrics_are_in_the_table_once_and_named_as_prometheus_wants_it() -> None:
    names = [metric.name for metric in table.ALL]
    assert len(names) == len({*names})
    for metric in table.ALL:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert [*metric.buckets] == sorted(metric.buckets)

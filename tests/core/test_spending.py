"""What a conversation has spent: sums by agent and by model, held against the calls in its journal."""

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from mesh.core.conversation import fold
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    Completed,
    ConversationCreated,
    LlmCall,
    LlmSettled,
    NodeCompleted,
    ToolResult,
    Usage,
    UserMessage,
)
from mesh.core.places import Place
from mesh.core.spending import Spent, SpentByAgent, root_agent, spend_report
from mesh.core.view import view

SUMMED = [name for name in Spent.__struct_fields__ if name != "cost_usd"]
AMOUNTS = st.integers(0, 10**6)


def call(step: str, cost: int | None = 1000, model: str = "m", **more: object) -> LlmCall:
    return LlmCall(step=step, turn=1, model=model, usage=Usage(10, 5), latency_ms=7, cost_nusd=cost, **more)  # type: ignore[arg-type]


def started(place: str, *path: str) -> AgentStarted:
    return AgentStarted(step=place, turn=1, name=path[-1], kind="llm", agent_path=path)


def result(step: str, **more: object) -> ToolResult:
    return ToolResult(step=step, turn=1, call_id="c", tool="search", content="", **more)  # type: ignore[arg-type]


CALLED: list[AnyEvent] = [
    UserMessage(turn=1, text="go"),
    call("0/llm/0", model="big"),
    started("0.search@0-0", "main", "search"),
    call("0.search@0-0/llm/0", model="small"),
    call("0.search@0-0.1/llm/0", model="big", forced="max_llm_calls"),
    result("0/tool/0.0", forced="max_llm_calls"),
    started("0.search@0-1", "main", "search"),
    call("0.search@0-1/llm/0", None, model="small"),
    result("0/tool/0.1"),
    call("0/llm/1", model="big"),
    Completed(turn=1, response="done"),
]


def test_each_agent_has_its_own_sum_over_all_its_runs() -> None:
    main, search = spend_report(CALLED, "main").by_agent
    assert (main.agent_path, main.calls, main.cost_usd, main.runs, main.forced) == (
        ("main",),
        2,
        2e-6,
        1,
        0,
    )
    assert (search.agent_path, search.calls, search.cost_usd, search.runs, search.forced) == (
        ("main", "search"),
        3,
        2e-6,
        2,
        1,
    )
    assert (search.unpriced_calls, search.total_tokens, search.time_ms) == (1, 45, 21)


def test_a_started_agent_is_a_run_that_ends_at_its_place_and_an_item_of_a_map_is_none() -> None:
    spawned = started("0.search@0-0-1", "main", "search")
    item = AgentStarted(step="0.2.0#7", turn=1, name="each", kind="llm", by="map")
    end = NodeCompleted(step="0.search@0-0-1", turn=1, name="search", forced="max_llm_calls")
    fork = started("0.self@0-1-0", "main", "self")
    events = [*CALLED[:2], spawned, item, call("0.search@0-0-1/llm/0"), call("0.2.0#7/llm/0"), end, fork]
    sums = spend_report(events, "main").by_agent
    assert [(one.agent_path, one.runs, one.calls, one.forced) for one in sums] == [
        (("main",), 1, 2, 0),
        (("main", "search"), 1, 1, 1),
        (("main", "self"), 1, 0, 0),
    ]


def test_each_model_has_its_sum_and_the_number_of_runs_that_called_it() -> None:
    big, small = spend_report(CALLED, "main").by_model
    assert (big.model, big.calls, big.runs, big.forced) == ("big", 3, 2, 1)
    assert (small.model, small.calls, small.runs, small.unpriced_calls) == ("small", 2, 2, 1)


def test_a_call_that_was_settled_without_its_answer_counts_for_the_model_of_its_node() -> None:
    lost = LlmSettled(step="0/llm/1", turn=1, cost_nusd=500, tokens=99, calls=1)
    report = spend_report([*CALLED[:2], lost], "main")
    assert (report.spent.calls, report.spent.total_tokens, report.spent.cost_usd) == (2, 114, 1.5e-6)
    assert [(found.model, found.calls) for found in report.by_model] == [("big", 2)]


def test_a_reader_with_prices_gives_the_cost_of_what_has_none_recorded() -> None:
    def cost_of(call: LlmCall) -> int | None:
        return 7 if call.cost_nusd is None else call.cost_nusd

    spent = spend_report(CALLED, "main", cost_of).spent
    assert (spent.cost_usd, spent.unpriced_calls) == (4007e-9, 0)


def test_the_root_agent_has_the_name_that_the_journal_tells() -> None:
    assert (root_agent(CALLED, "shop"), root_agent(CALLED[:2], "shop")) == ("main", "shop")


def test_the_conversation_shows_the_same_sum() -> None:
    created = ConversationCreated(conversation_id="c", session_id="s", agent="shop", digest="d")
    assert view(fold([created, *CALLED])).spent == spend_report(CALLED, "main").spent
    assert view(fold([created, CALLED[0]])).spent is None


@st.composite
def journals(draw: st.DrawFn) -> list[AnyEvent]:
    """Turns whose agents call each other, with calls of any cost."""
    places = ["0", "0.1", "0.1#2.0"]
    events: list[AnyEvent] = [UserMessage(turn=1, text="go")]
    for number in range(draw(st.integers(0, 25))):
        place = Place(draw(st.sampled_from(places)))
        kind = draw(st.sampled_from(["call", "call", "agent", "settled", "result", "end"]))
        cost = draw(st.none() | AMOUNTS)
        if kind == "agent":
            name = draw(st.sampled_from(["a", "b"]))
            asked = place.model_call(number).tool_call(0)
            at = draw(
                st.sampled_from([asked.called_agent(name), asked.started_agent(name, 1), asked.fork(0)])
            )
            places.append(at.text)
            events.append(started(at.text, "main", *at.called_agents))
        elif kind == "end" and (ended := Place(draw(st.sampled_from(places)))).is_started:
            forced = draw(st.sampled_from(["", "max_cost_usd"]))
            status = draw(st.sampled_from(["completed", "failed", "deleted"]))
            events.append(NodeCompleted(step=ended.text, turn=1, name="a", status=status, forced=forced))  # type: ignore[arg-type]
        elif kind == "settled":
            tokens = draw(AMOUNTS)
            settled = LlmSettled(step=f"{place.text}/llm/{number}", turn=1, tokens=tokens, calls=1)
            events.append(settled)
        elif kind == "result" and (calling := Place(draw(st.sampled_from(places))).call):
            events.append(result(calling.text, forced=draw(st.sampled_from(["", "max_cost_usd"]))))
        else:
            model = draw(st.sampled_from(["m", "n"]))
            events.append(call(place.model_call(number).text, cost, model))
    return events


@given(journals())
def test_the_sums_of_the_agents_and_of_the_models_are_the_sum_of_the_calls(events: list[AnyEvent]) -> None:
    report = spend_report(events, "main")
    calls = [event for event in events if isinstance(event, LlmCall)]
    assert _nusd([report.spent]) == sum(call.cost_nusd or 0 for call in calls)
    assert report.spent.unpriced_calls == sum(call.cost_nusd is None for call in calls)
    assert _sums(report.by_agent) == _sums([report.spent])
    assert _nusd(report.by_agent) == _nusd(report.by_model) == _nusd([report.spent])
    of_calls = [name for name in SUMMED if name not in ("runs", "forced")]
    by_model, whole = _sums(report.by_model), _sums([report.spent])
    assert [by_model[name] for name in of_calls] == [whole[name] for name in of_calls]


@given(journals(), st.integers(0, 10**9))
def test_other_prices_change_no_recorded_sum(events: list[AnyEvent], price: int) -> None:
    def cost_of(call: LlmCall) -> int | None:
        return price if call.cost_nusd is None else call.cost_nusd

    priced = [event for event in events if not isinstance(event, LlmCall) or event.cost_nusd is not None]
    assert spend_report(priced, "main", cost_of) == spend_report(priced, "main")


@given(journals())
def test_any_prefix_has_spent_no_more_than_the_whole(events: list[AnyEvent]) -> None:
    spent = [_sums([spend_report(events[:n], "main").spent]) for n in range(len(events) + 1)]
    for before, after in pairwise(spent):
        assert all(before[name] <= after[name] for name in SUMMED)


def test_numbers_that_nobody_can_have_meant_are_shown_within_bounds() -> None:
    report = spend_report([call("0/llm/0", 2**63 - 1), call("0/llm/1", -5)], "main")
    assert report.spent.cost_usd == 10**6
    assert report.by_agent[0] == SpentByAgent(
        **{name: getattr(report.spent, name) for name in Spent.__struct_fields__}, agent_path=("main",)
    )


def _sums(found: Iterable[Spent]) -> dict[str, int]:
    amounts = list(found)
    return {name: sum(getattr(each, name) for each in amounts) for name in SUMMED}


def _nusd(found: Iterable[Spent]) -> int:
    return sum(round(each.cost_usd * 10**9) for each in found)

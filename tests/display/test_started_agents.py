"""Started agents as people are told of them: a few one by one, many counted, none forgotten."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    LlmCall,
    NodeCompleted,
    NodeStatus,
    StartedBy,
)
from mesh.core.places import Place
from mesh.display.started_agents import StartedAgents, about


def started(place: str, by: StartedBy = "spawn", **more: str) -> AgentStarted:
    return AgentStarted(step=place, turn=1, name="search", kind="llm", by=by, **more)  # type: ignore[arg-type]


def group(size: int, call: str = "0/tool/0.0", above: str = "0") -> list[AgentStarted]:
    answer = call.rpartition("/")[2].replace(".", "-")
    return [started(f"{above}.search@{answer}-{index}") for index in range(size)]


def ended(start: AgentStarted, status: NodeStatus = "completed", text: str = "") -> NodeCompleted:
    return NodeCompleted(step=start.step, turn=1, name=start.name, status=status, text=text)


def known(starts: list[AgentStarted]) -> StartedAgents:
    agents = StartedAgents()
    for start in starts:
        agents.learn(start)
        agents.learn(start)
    return agents


def said(place: str) -> LlmCall:
    return LlmCall(step=f"{place}/llm/0", turn=1, model="m", text="x")


@pytest.mark.parametrize(("size", "folds"), [(1, False), (10, False), (11, True), (1_000, True)])
def test_many_that_start_together_are_folded_and_a_few_are_not(size: int, folds: bool) -> None:
    starts = group(size)
    agents = known(starts)
    assert all(agents.folds(said(start.step)) is folds for start in starts)
    assert not agents.folds(said("0"))


def test_what_folded_agents_start_is_folded_with_them() -> None:
    starts = group(11)
    below = group(2, above=starts[3].step)
    agents = known([*starts, *below])
    assert agents.folds(said(below[1].step))


def test_after_many_in_one_turn_even_a_few_are_folded() -> None:
    starts = [start for answer in range(6) for start in group(9, f"0/tool/{answer}.0")]
    late = group(1, "0/tool/6.0")
    agents = known([*starts, *late])
    assert not agents.folds(said(starts[-1].step))
    assert agents.folds(said(late[0].step))


def test_the_items_of_a_map_are_folded_too() -> None:
    items = [started(f"0.2.0#{number}", "map") for number in range(1, 31)]
    agents = known(items)
    assert agents.folds(said("0.2.0#7.1"))
    assert agents.told(items[0]) == "30 agents begin: search"


def test_what_a_person_is_asked_is_never_folded() -> None:
    starts = group(20)
    asked = ApprovalRequired(
        step=f"{starts[0].step}/tool/0.0",
        turn=1,
        uuid="u",
        call_id="c",
        tool_name="rm",
        tool_args={},
        description="",
    )
    assert not known(starts).folds(asked)


def test_after_each_tenth_it_is_told_how_many_have_ended_and_why_the_last_failed() -> None:
    starts = group(1_000)
    agents = known(starts)
    assert agents.told(starts[0]) == "1,000 agents begin: search"
    assert agents.told(starts[1]) == ""
    told = [agents.told(ended(start)) for start in starts[:100]]
    assert [words for words in told if words] == ["100 of 1,000 agents completed"]
    failed = [agents.told(ended(start, "failed", f"no {start.step}")) for start in starts[100:200]]
    assert failed[-1] == (
        "100 of 1,000 agents completed, 100 failed; the last that failed: no 0.search@0-0-199"
    )
    assert agents.told(ended(starts[200], "deleted")) == ""


@given(st.integers(11, 60), st.data())
def test_the_last_line_counts_all_of_them_once(size: int, data: st.DataObject) -> None:
    starts = group(size)
    agents = known(starts)
    statuses: list[NodeStatus] = ["completed", "failed", "deleted"]
    ends = [(start, data.draw(st.sampled_from(statuses))) for start in data.draw(st.permutations(starts))]
    told = [words for start, status in ends if (words := agents.told(ended(start, status)))]
    assert len(told) == 10
    counts = {status: sum(one == status for _, one in ends) for status in statuses}
    assert told[-1].startswith(f"{counts['completed']} of {size} agents completed")
    assert f", {counts['deleted']} deleted" in told[-1] or not counts["deleted"]
    assert f", {counts['failed']} failed" in told[-1] or not counts["failed"]


def test_an_agent_is_about_its_title_or_else_its_task_in_a_line() -> None:
    assert about(started("0.a@0-0-0", title="cats", task="find cats")) == "cats"
    assert "\n" not in about(started("0.a@0-0-0", task="one\ntwo" * 200))


def test_what_happens_outside_of_started_agents_is_told() -> None:
    events: list[AnyEvent] = [said("0"), said("0.1#2"), said("0.search@0-0")]
    assert not any(known(group(20)).folds(event) for event in events)
    assert Place(group(1)[0].step).is_started

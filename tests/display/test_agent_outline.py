"""Agents as rows in which a person moves: a page of them at a time, however many there are."""

from datetime import UTC, datetime

import pytest
from rich.cells import cell_len

from mesh.core.agents_of_turn import AgentView
from mesh.display.agent_outline import AgentOutline, row_text, took

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def agent(id: str, parent: str | None = None, **more: object) -> AgentView:
    known = {"agent_id": id, "parent_id": parent, "conversation_id": "c", "turn": 1, "place": "0", "name": id}
    more = {"created_at": "2026-01-01T11:58:55Z"} | more
    started = {"started_at": more["created_at"], "status": "running", "user_content": "", "subagents": []}
    return AgentView(**{**known, **started, **more})  # type: ignore[arg-type]


def outline(*agents: AgentView) -> AgentOutline:
    made = AgentOutline()
    made.show({agent.agent_id: agent for agent in agents})
    return made


def shown(made: AgentOutline, height: int = 10) -> str:
    """The ids of a page, the selected one in brackets."""
    rows = made.page(height)
    return " ".join(f"[{row.agent.agent_id}]" if chosen else row.agent.agent_id for row, chosen in rows)


LEAD = agent("lead")
TEAM = [LEAD, *(agent(f"a{n}", "lead", place=f"0.1@3-{n}") for n in range(3)), agent("deep", "a1")]


def test_an_agent_is_below_the_one_that_started_it_in_the_order_of_places() -> None:
    made = outline(*reversed(TEAM))
    assert shown(made) == "[lead] a0 a1 deep a2"
    assert [row.depth for row, _ in made.page(10)] == [0, 1, 1, 2, 1]


def test_what_is_folded_has_no_rows_and_left_goes_up() -> None:
    made = outline(*TEAM)
    made.move(2)
    made.fold()
    assert shown(made) == "lead a0 [a1] a2"
    made.fold()
    assert shown(made) == "[lead] a0 a1 a2"
    made.toggle()
    assert shown(made) == "[lead]"
    made.unfold()
    assert shown(made) == "[lead] a0 a1 a2"


def test_a_page_of_a_thousand_has_the_selected_one() -> None:
    made = outline(LEAD, *(agent(f"n{n}", "lead", place=f"0.1@3-{n}") for n in range(1_000)))
    assert len(made.page(20)) == 20
    made.move(500)
    assert shown(made, 3) == "n497 n498 [n499]"
    made.move(10_000)
    assert shown(made, 3) == "n997 n998 [n999]"
    made.move(-1)
    assert shown(made, 3) == "n997 [n998] n999"


def test_the_selected_one_stays_selected_while_others_come_and_go() -> None:
    made = outline(*TEAM)
    made.move(4)
    made.show({each.agent_id: each for each in TEAM if each.agent_id not in ("a0", "deep")})
    assert shown(made) == "lead a1 [a2]"
    made.show({"lead": LEAD})
    assert shown(made) == "[lead]"
    made.show({})
    assert (shown(made), made.selected) == ("", None)


def test_who_waits_is_found_below_what_is_folded_one_after_the_other() -> None:
    waiting = agent("deep", "a1", status="awaiting_user")
    made = outline(*TEAM[:-1], waiting)
    made.fold()
    assert shown(made) == "[lead]"
    assert made.select_waiting()
    assert shown(made) == "lead a0 a1 [deep] a2"
    assert made.select_waiting()
    assert not outline(*TEAM).select_waiting()


def test_what_goes_with_an_agent_is_what_works_below_it() -> None:
    ended = agent("old", "lead", ended_at="2026-01-01T11:59:00Z", status="completed")
    made = outline(*TEAM, ended)
    assert {each.agent_id for each in made.below(LEAD)} == {"a0", "a1", "a2", "deep"}


@pytest.mark.parametrize("width", [0, 1, 10, 80])
def test_a_row_is_as_wide_as_the_screen_at_most(width: int) -> None:
    wide = agent("lead", user_content="漢字" * 40, activity="calls search", saying="one\ntwo")
    row, _ = outline(wide).page(1)[0]
    assert sum(map(cell_len, row_text(row, width, NOON))) <= width


def test_a_row_has_the_time_the_cost_and_the_current_line() -> None:
    busy = agent("lead", title="Cities", subtree_cost_usd=0.031, activity="calls search", saying="one\ntwo")
    row, _ = outline(busy).page(1)[0]
    name, status, rest = row_text(row, 100, NOON)
    assert (name.strip(), status.strip()) == ("lead", "running")
    assert rest == "Cities  1:05  $0.0310  calls search: two"
    assert took(agent("x", created_at="2026-01-01T09:58:55Z"), NOON) == "2:01:05"
    assert took(agent("x", started_at=None), NOON) == ""

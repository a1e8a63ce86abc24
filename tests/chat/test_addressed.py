"""A line is for the agent that it names, and for none where it could be for several."""

import pytest

from mesh.chat.addressed import NotAddressed, addressed
from mesh.core.agents_of_turn import AgentView


def agent(id: str, name: str, **more: str) -> AgentView:
    known = {"conversation_id": "c", "turn": 1, "place": "0", "status": "running", "user_content": ""}
    return AgentView(
        **{
            **known,
            "parent_id": None,
            "subagents": [],
            "created_at": "",
            "agent_id": id,
            "name": name,
            **more,
        }  # type: ignore[arg-type]
    )


LEAD = agent("11110000", "lead")
WRITER = agent("22220000", "writer", title="Porto now")
FIRST = agent("33330000", "search", place="0.search@3-0-1", user_content="Lisbon")
SECOND = agent("33331111", "search", place="0.search@3-0-2", user_content="Porto")
TEAM = [LEAD, WRITER, FIRST, SECOND]


@pytest.mark.parametrize(
    ("line", "meant", "rest"),
    [
        ("@lead Only 2024.", LEAD, "Only 2024."),
        ("@Lead: Only 2024.", LEAD, "Only 2024."),
        ("@lead", LEAD, ""),
        ("@porto now, it is enough", WRITER, "it is enough"),
        ("@search@3-0-2 go on", SECOND, "go on"),
        ("@33331 go on", SECOND, "go on"),
        ("@33330000 go on", FIRST, "go on"),
    ],
)
def test_an_agent_is_named_by_its_name_title_handle_or_the_beginning_of_its_id(
    line: str, meant: AgentView, rest: str
) -> None:
    assert addressed(line, TEAM) == (meant, rest)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "@search go on",
            "2 agents @search are at work: search 33330000 (Lisbon), search 33331111 (Porto); name",
        ),
        ("@3333 go on", "2 agents @3333 are at work"),
        ("@leader go on", "no agent @leader is at work; there are: lead 11110000"),
        ("@ go on", "no agent @ is at work"),
    ],
)
def test_a_line_that_is_for_none_or_several_is_refused_with_those_there_are(line: str, said: str) -> None:
    with pytest.raises(NotAddressed) as problem:
        addressed(line, TEAM)
    assert str(problem.value).startswith(said)


def test_who_has_ended_is_not_meant() -> None:
    ended = agent("33331111", "search", ended_at="2026-01-01T00:00:00Z", status="completed")
    assert addressed("@search go on", [FIRST, ended]) == (FIRST, "go on")

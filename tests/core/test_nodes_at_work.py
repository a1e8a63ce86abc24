"""The nodes at work, of journals that a mesh did not write."""

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.agents_of_turn import AgentsOfTurn
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    Completed,
    ConversationCreated,
    LlmCall,
    NodeCompleted,
    NodeInfo,
    UserMessage,
    Validation,
)
from tests.worlds.long import as_often_as

ID = "9b2f4a8e-6c1d-4e0f-a3b5-7d9e1f2a3b4c"
PATHS = st.sampled_from(("0", "0.0", "0.1", "0.0.0", "0.1.0", "x", "x.0", "x.1", "", "~", "0.0#1"))
_PLACES = "0 0.0 0.1 0.0#1 0.0#2 0.0#x 0.0#99999999999 0.1#1.0 0.0#² 0.x@0-0 0.x@0-0.1"
PLACES = st.sampled_from(("", *_PLACES.split()))
INFOS = st.builds(
    NodeInfo,
    st.text(max_size=3),
    st.sampled_from(("llm", "sequential", "parallel", "loop", "map", "odd")),
    st.integers(-1, 4),
    st.booleans(),
)


def events(nodes: dict[str, NodeInfo]) -> st.SearchStrategy[list[AnyEvent]]:
    one_of = st.one_of(
        st.builds(UserMessage, turn=st.integers(1, 3), text=st.just("hi")),
        st.builds(AgentStarted, step=PLACES, name=st.just("x"), kind=st.just("llm"), by=st.just("spawn")),
        st.builds(
            NodeCompleted,
            step=PLACES,
            name=st.just("n"),
            status=st.sampled_from(("completed", "failed", "deleted")),
            exits=st.booleans(),
        ),
        st.builds(LlmCall, step=PLACES.map(lambda place: f"{place}/llm/0"), model=st.just("m")),
        st.builds(
            Validation,
            step=PLACES.map(lambda place: f"{place}/validation/1.0"),
            name=st.just("v"),
            kind=st.just("check"),
            number=st.integers(-1, 5),
            of=st.just(3),
            valid=st.booleans(),
        ),
        st.builds(
            AgentTold,
            step=PLACES,
            id=st.text(max_size=2),
            text=st.just("t"),
            action=st.sampled_from(("comment", "pause", "resume", "delete", "modify")),
            from_person=st.booleans(),
            copy_of=PLACES,
        ),
        st.builds(Completed, response=st.just("done")),
    )
    created = ConversationCreated(conversation_id=ID, session_id="s", agent="a", digest="d", nodes=nodes)
    return st.lists(one_of, max_size=12).map(lambda found: [created, UserMessage(turn=1, text="go"), *found])


@settings(max_examples=as_often_as(200), deadline=None)
@given(st.dictionaries(PATHS, INFOS, max_size=8).flatmap(events))
def test_any_journal_has_agents_that_can_be_shown(journal: list[AnyEvent]) -> None:
    agents = AgentsOfTurn()
    for seq, event in enumerate(journal, 1):
        agents.apply(event.__class__(**{**_fields(event), "seq": seq, "time": "2026-01-01T12:00:00.000Z"}))
        shown = {each.agent_id: each for each in agents.views()}
        assert all(each.parent_id is None or each.parent_id in shown for each in shown.values())
        assert all(below in shown for each in shown.values() for below in each.subagents)
        assert all(each.has_ended or _is_at_work(shown, each.parent_id) for each in shown.values())


def test_a_turn_has_a_bounded_number_of_nodes_whatever_an_imported_journal_says() -> None:
    nodes = {f"x.{index}": NodeInfo("n", "llm") for index in range(5_000)}
    nodes["x"] = NodeInfo("x", "parallel")
    agents = AgentsOfTurn()
    for event in _starts(nodes, 500):
        agents.apply(event)
    assert len([*agents.views()]) <= 51_000


def _starts(nodes: dict[str, NodeInfo], number: int) -> Iterator[AnyEvent]:
    yield ConversationCreated(conversation_id=ID, session_id="s", agent="a", digest="d", nodes=nodes)
    yield UserMessage(turn=1, text="go")
    for index in range(number):
        yield AgentStarted(turn=1, step=f"0.x@0-0-{index}", name="x", kind="parallel", by="spawn")


def _is_at_work(shown: dict[str, object], id: str | None) -> bool:
    return id is None or not getattr(shown[id], "has_ended", True)


def _fields(event: AnyEvent) -> dict[str, object]:
    return {name: getattr(event, name) for name in event.__struct_fields__}

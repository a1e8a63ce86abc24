"""The fold over journals of trees, and over the same events in any order, doubled, missing and changed."""

import itertools

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.conversation import Conversation, fold
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    LlmCall,
    NodeCompleted,
    Paused,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
)
from mesh.core.history import messages_of
from mesh.core.messages import Assistant, Results
from mesh.core.view import view
from tests.journal.golden.record import HERE, read
from tests.worlds.long import as_often_as

JOURNALS: list[list[AnyEvent]] = [read(path) for path in sorted(HERE.glob("v*/*.jsonl"))]
EVENTS = [event for journal in JOURNALS for event in journal]
PLACES = st.sampled_from(["", "0", "0.0", "0.1", "0.1#2", "0.1#2.0", "0.10", "0.0.0"])
STEPS = st.builds("{}{}".format, PLACES, st.sampled_from(["", "/llm/0", "/llm/1", "/tool/0.0", "/tool/0.1"]))


@st.composite
def garbled(draw: st.DrawFn) -> list[AnyEvent]:
    """Events of real journals in any order and number, in other turns and at other steps."""
    chosen = draw(st.lists(st.sampled_from(EVENTS), max_size=30))
    found: list[AnyEvent] = []
    for seq, event in enumerate(chosen, 1):
        steps = PLACES if isinstance(event, NodeCompleted) else STEPS  # the step of a node is its place
        changed = {"turn": draw(st.integers(0, 3)), "step": draw(steps)} if draw(st.booleans()) else {}
        found.append(msgspec.structs.replace(event, seq=seq, **changed))
    return found


JOURNALED = st.sampled_from(JOURNALS) | garbled()


def shown(conversation: Conversation) -> bytes:
    return msgspec.json.encode(view(conversation))


def known(conversation: Conversation) -> dict[str, object]:
    """All that a conversation knows, in a form that can be compared."""
    return {**vars(conversation)} | {
        "pending": conversation.pending,
        "outcomes": conversation.outcomes,
        "session_state": conversation.session_state,
        "needs_pass": conversation.needs_pass,
    }


@settings(max_examples=as_often_as(200), deadline=None)
@given(garbled())
def test_events_in_any_order_are_a_conversation_that_can_be_shown_after_each(events: list[AnyEvent]) -> None:
    conversation = Conversation()
    for event in events:
        conversation.apply(event)
        assert conversation.seq == event.seq
        decoded = msgspec.json.decode(shown(conversation))
        assert decoded["status"] in ("active", "waiting_approval", "completed")
        assert conversation.needs_pass <= conversation.turn_open


@settings(deadline=None)
@given(st.sampled_from(JOURNALS), st.randoms())
def test_a_shuffled_journal_never_raises(journal: list[AnyEvent], random: object) -> None:
    events = [*journal]
    random.shuffle(events)  # type: ignore[attr-defined]
    for end in range(len(events) + 1):
        shown(fold(events[:end]))


@settings(deadline=None)
@given(JOURNALED, st.integers(0, 30))
def test_a_fold_can_stop_anywhere_and_go_on(events: list[AnyEvent], cut: int) -> None:
    conversation = fold(events[:cut])
    shown(conversation), known(conversation)  # looking changes nothing
    for event in events[cut:]:
        conversation.apply(event)
    assert known(conversation) == known(fold(events))


@settings(deadline=None)
@given(JOURNALED)
def test_what_was_applied_is_known_until_its_turn_ends(events: list[AnyEvent]) -> None:
    conversation = Conversation()
    for event in events:
        conversation.apply(event)
        was_open = conversation.turn_open
        assert conversation.has(event) or not was_open
    assert all(conversation.has(event) for event in conversation.steps)


@settings(deadline=None)
@given(JOURNALED)
def test_a_turn_is_paused_until_something_happens_in_it(events: list[AnyEvent]) -> None:
    conversation = Conversation()
    for event in events:
        was_open = conversation.turn_open
        conversation.apply(event)
        match event:
            case Paused():
                assert conversation.paused == was_open
            case LlmCall() | ToolIntent() | ToolResult() | ApprovalRequired() | ApprovalResolved():
                assert not (was_open and conversation.paused)
            case UserMessage():
                assert conversation.turn_open and not conversation.paused
            case _:
                pass


@settings(deadline=None)
@given(JOURNALED)
def test_outcomes_are_the_steps_without_those_inside_of_completed_nodes_and_of_agents_that_answered(
    events: list[AnyEvent],
) -> None:
    conversation = fold(events)
    done = {event.place for event in conversation.steps if isinstance(event, NodeCompleted)}
    answered = {event.step for event in conversation.steps if isinstance(event, ToolResult | Validation)}
    called = [event.place for event in conversation.steps if isinstance(event, AgentStarted)]
    done |= {place for place in called if place.call and place.call.text in answered}
    for event in conversation.steps:
        own = {event.place} if isinstance(event, NodeCompleted) else set()
        inside = any(place.contains(event.place) for place in done - own)
        assert (event in conversation.outcomes) != inside


@settings(deadline=None)
@given(JOURNALED)
def test_what_a_turn_wrote_stays_when_it_completed_and_only_then(events: list[AnyEvent]) -> None:
    conversation = Conversation()
    for event in events:
        closes = conversation.turn_open and isinstance(event, Completed)
        expected = conversation.state | (event.state if closes else {})
        conversation.apply(event)
        assert conversation.state == expected


@settings(deadline=None)
@given(JOURNALED, PLACES)
def test_in_what_a_node_said_every_call_has_a_result(events: list[AnyEvent], place: str) -> None:
    messages = messages_of(events, place)
    for message, following in itertools.zip_longest(messages, messages[1:]):
        if isinstance(message, Assistant) and (calls := message.tool_calls):
            assert isinstance(following, Results)
            assert [result.call_id for result in following.results] == [call.id for call in calls]

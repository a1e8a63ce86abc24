"""The fold: total, and the same however often it is done."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.conversation import fold
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    LlmCall,
    Paused,
    StoreWentBack,
    TextDelta,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
    decode,
    encode,
)
from mesh.core.view import view
from tests.worlds.long import as_often_as

STEPS = st.sampled_from(["0/llm/0", "0/tool/0.0", "0/tool/0.1", "0/llm/1"])
TEXT = st.text(max_size=8)
UUIDS = st.sampled_from(["u1", "u2"])
COMMON = {"turn": st.integers(1, 3), "step": STEPS}

EVENTS: st.SearchStrategy[AnyEvent] = st.one_of(
    st.builds(
        ConversationCreated,
        conversation_id=st.just("c"),
        session_id=TEXT,
        agent=TEXT,
        digest=TEXT,
        system_prompt=TEXT,
    ),
    st.builds(UserMessage, turn=st.integers(1, 3), text=TEXT, idempotency_key=TEXT),
    st.builds(
        LlmCall,
        model=TEXT,
        text=TEXT,
        tool_calls=st.lists(st.builds(ToolCall, id=st.sampled_from("ab"), name=TEXT), max_size=2).map(tuple),
        **COMMON,
    ),
    st.builds(ToolIntent, run=st.integers(0, 3), tool=TEXT, arguments=st.just({}), **COMMON),
    st.builds(ToolResult, call_id=st.sampled_from("ab"), tool=TEXT, content=TEXT, **COMMON),
    st.builds(
        ApprovalRequired,
        uuid=UUIDS,
        call_id=TEXT,
        tool_name=TEXT,
        tool_args=st.just({}),
        description=TEXT,
        **COMMON,
    ),
    st.builds(ApprovalResolved, uuid=UUIDS, choice=st.sampled_from(["approve", "reject"]), **COMMON),
    st.builds(Completed, turn=st.integers(1, 3), response=TEXT),
    st.builds(Error, turn=st.integers(1, 3), message=TEXT),
    st.builds(StoreWentBack, turn=st.integers(1, 3), lost_up_to=st.integers(1, 9), message=TEXT),
    st.builds(ConversationCompleted),
    st.builds(TextDelta, text=TEXT),
)


def numbered(events: list[AnyEvent]) -> list[AnyEvent]:
    return [msgspec.structs.replace(event, seq=i) for i, event in enumerate(events, 1)]


@given(st.lists(EVENTS, max_size=30))
@settings(max_examples=as_often_as(300))
def test_any_sequence_of_events_is_a_conversation_that_can_be_shown(events: list[AnyEvent]) -> None:
    for end in range(len(events) + 1):
        conversation = fold(numbered(events[:end]))
        shown = view(conversation)
        assert shown.status in ("active", "waiting_approval", "completed")
        msgspec.json.encode(shown)


@given(st.lists(EVENTS, max_size=20))
def test_the_fold_of_what_was_written_is_the_fold_of_what_happened(events: list[AnyEvent]) -> None:
    events = numbered(events)
    read_back = [decode(encode(event)) for event in events]
    assert read_back == events
    assert msgspec.json.encode(view(fold(read_back))) == msgspec.json.encode(view(fold(events)))


@given(st.lists(EVENTS, max_size=30))
def test_a_models_history_always_answers_every_call(events: list[AnyEvent]) -> None:
    history = fold(numbered(events)).history
    for message, following in zip(history, [*history[1:], None], strict=False):
        if getattr(message, "tool_calls", ()):
            assert following is not None
            assert [r.call_id for r in following.results] == [c.id for c in message.tool_calls]  # type: ignore[union-attr]


@given(st.lists(EVENTS, max_size=30))
def test_what_waits_is_never_decided_and_only_in_an_open_turn(events: list[AnyEvent]) -> None:
    conversation = fold(numbered(events))
    if conversation.pending:
        assert conversation.turn_open
        assert not {e.uuid for e in conversation.pending} & conversation.decided.keys()


def test_a_pause_at_which_all_was_decided_already_answers_nobody() -> None:
    """Decisions race with the pass that pauses: the one that came last finds its answer further on."""
    where: dict[str, Any] = {"turn": 2, "step": "0/tool/0.0"}
    asked = ApprovalRequired(
        seq=5, uuid="u", call_id="a", tool_name="add", tool_args={}, description="", **where
    )
    events: list[AnyEvent] = [
        ConversationCreated(seq=1, conversation_id="c", session_id="s", agent="a", digest="d"),
        UserMessage(seq=2, turn=1, text="one"),
        Completed(seq=3, turn=1, response="first"),
        UserMessage(seq=4, turn=2, text="two"),
        asked,
        ApprovalResolved(seq=6, uuid="u", choice="approve", idempotency_key="k", **where),
        Paused(seq=7, turn=2, run=9),
    ]
    assert fold(events).answered_at("k") == 0
    assert fold([*events, Completed(seq=8, turn=2, response="second")]).answered_at("k") == 8

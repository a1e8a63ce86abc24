"""The open turn: what is kept up to date with each event is what the simple definitions say, and an event
costs the same however many came before it."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.approvals import APPROVAL_KINDS
from mesh.core.conversation import Conversation, fold
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    CodeStep,
    LlmCall,
    NodeCompleted,
    StepEvent,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
    Validation,
    as_moment,
)
from mesh.core.pending_approvals import asking_agent, may_be_covered
from mesh.core.places import ROOT, Place, StepKey
from mesh.core.view import summary
from tests.core.turns import Beginning, agents_side_by_side, in_the_middle
from tests.counted_work import allocated, opcodes
from tests.worlds.long import as_often_as

# -- the simple definitions: each of them looks at all events


def is_inside(event: StepEvent, done: set[Place]) -> bool:
    """Whether an event belongs to a node that has ended, and is neither the end of the outermost one nor the
    start of an agent that worked beside what started it."""
    lasts = isinstance(event, NodeCompleted) or (isinstance(event, AgentStarted) and event.by != "")
    return (event.place in done and not lasts) or any(outer in done for outer in event.place.enclosing)


class Simple:
    """The steps of a turn, by definition. ``decided`` are the uuids of all decided approvals."""

    def __init__(self, steps: list[StepEvent], decided: set[str]) -> None:
        self.steps = steps
        self._decided = decided
        answered = {e.step for e in steps if isinstance(e, ToolResult | Validation)}
        self.done = {e.place for e in steps if isinstance(e, NodeCompleted)}
        called = [e.place for e in steps if isinstance(e, AgentStarted)]
        self.done |= {place for place in called if place.call and place.call.text in answered}

    def has_ended(self, place: Place) -> bool:
        return not self.done.isdisjoint(place.scopes)

    @property
    def outcomes(self) -> list[StepEvent]:
        return [e for e in self.steps if not is_inside(e, self.done)]

    @property
    def unanswered(self) -> list[ApprovalRequired]:
        results = {e.step for e in self.steps if isinstance(e, ToolResult)}
        asked = [e for e in self.steps if isinstance(e, ApprovalRequired)]
        return [e for e in asked if e.uuid not in self._decided and e.step not in results]

    @property
    def pending(self) -> list[ApprovalRequired]:
        return [e for e in self.unanswered if not is_inside(e, self.done)]

    @property
    def unsettled(self) -> list[tuple[ToolIntent, ToolCall | None]]:
        last = {e.step: e for e in self.steps if not isinstance(e, ApprovalResolved)}
        claimed = [e for e in last.values() if isinstance(e, ToolIntent) and e.session]
        return [(intent, self.call_of(intent)) for intent in claimed]

    def call_of(self, outcome: ToolIntent | ToolResult) -> ToolCall | None:
        answers = [e for e in self.steps if isinstance(e, LlmCall) and e.place == outcome.place]
        calls = [(StepKey(e.step).tool_call(i).text, c) for e in answers for i, c in enumerate(e.tool_calls)]
        return next((call for step, call in reversed(calls) if step == outcome.step), None)

    def has_news(self, since: int, more: list[AnyEvent]) -> bool:
        for index, event in enumerate(self.steps):
            if isinstance(event, ApprovalResolved) and event.seq > since and not is_inside(event, self.done):
                later = (*self.steps[index + 1 :], *more)
                if not any(e.step == event.step and not isinstance(e, ApprovalResolved) for e in later):
                    return True
        return False


# -- any sequence of events

NODES = ["0", "0.0", "0.1", "0.1#2", "0.1#2.0", "0.10"]
AGENTS = [
    *("0.1.search@0-0", "0.1.search@0-0.0", "0.1.search@0-0.web@0-1", "0.1.critic@v0-0"),
    *("0.1.search@0-0-0", "0.1.search@0-0-1", "0.1.search@0-0-1.web@0-0", "0.1.self@0-1-0", "0.1.0#7"),
]
PLACES = st.sampled_from([*NODES, *AGENTS])
CALLS = st.builds("{}/{}".format, PLACES, st.sampled_from(["tool/0.0", "tool/0.1", "validation/0.0"]))
UUIDS = st.sampled_from(["u1", "u2", "u3", "u4"])
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINES = st.sampled_from(["", "2026-01-01T00:00:00.000Z", "2026-01-02T00:00:00.000Z"])

STEPS: st.SearchStrategy[StepEvent] = st.one_of(
    st.builds(
        LlmCall,
        step=st.builds("{}/llm/0".format, PLACES),
        model=st.just("m"),
        tool_calls=st.lists(st.builds(ToolCall, id=UUIDS, name=st.just("t")), max_size=2).map(tuple),
    ),
    st.builds(
        ToolIntent,
        step=CALLS,
        run=st.just(1),
        tool=st.just("t"),
        arguments=st.just({}),
        session=st.sampled_from(["", "s"]),
    ),
    st.builds(ToolResult, step=CALLS, call_id=st.just("c"), tool=st.just("t"), content=st.just("")),
    st.builds(CodeStep, step=CALLS, number=st.just(0), asked=st.just("1"), answer=st.just("2")),
    st.builds(
        Validation,
        step=CALLS,
        name=st.just("v"),
        kind=st.just("check"),
        valid=st.booleans(),
        number=st.just(1),
    ),
    st.builds(
        ApprovalRequired,
        step=CALLS,
        uuid=UUIDS,
        call_id=st.just("c"),
        tool_name=st.just("t"),
        tool_args=st.just({}),
        description=st.just(""),
        kind=st.sampled_from(["tool_call", "auth_required"]),
        expires_at=DEADLINES,
        remember=st.sampled_from(["none", "always"]),
        agent_path=st.sampled_from([(), ("a", "b")]),
    ),
    st.builds(ApprovalResolved, step=CALLS, uuid=UUIDS, choice=st.just("approve")),
    st.builds(
        AgentStarted,
        step=st.sampled_from(AGENTS),
        name=st.just("a"),
        kind=st.just("llm"),
        by=st.sampled_from(["", "spawn"]),
    ),
    st.builds(NodeCompleted, step=PLACES, name=st.just("n")),
    st.builds(
        AgentTold,
        step=PLACES,
        id=UUIDS,
        text=st.just(""),
        action=st.sampled_from(["pause", "resume"]),
        from_person=st.just(True),
    ),
)


@st.composite
def turns(draw: st.DrawFn) -> list[AnyEvent]:
    steps = draw(st.lists(STEPS, max_size=40))
    opened = UserMessage(seq=1, turn=1, text="go")
    times = [as_moment(BEGAN + timedelta(minutes=n)) for n in range(len(steps))]
    return [
        opened,
        *(
            msgspec.structs.replace(e, seq=n, turn=1, time=time)
            for n, (e, time) in enumerate(zip(steps, times, strict=True), 2)
        ),
    ]


def deadline_of(asked: ApprovalRequired, events: list[AnyEvent]) -> str:
    """When an approval expires: later by the time in which its agent, or one around it, was paused since."""
    held, paused, is_asked = set[str](), timedelta(), False
    for event, following in pairwise([*events, None]):
        assert event is not None
        if isinstance(event, AgentTold):
            (held.add if event.action == "pause" else held.discard)(event.step)
        is_asked = is_asked or event == asked
        is_held = any(place.text in held for place in asked.place.scopes)
        if is_asked and is_held and following is None:
            return ""
        if is_asked and is_held and following is not None:
            paused += datetime.fromisoformat(following.time) - datetime.fromisoformat(event.time)
    return as_moment(datetime.fromisoformat(asked.expires_at) + paused)


@settings(max_examples=as_often_as(300), deadline=None)
@given(turns(), st.integers(0, 42), st.lists(STEPS, max_size=3))
def test_after_every_event_it_is_what_the_simple_definitions_say(
    events: list[AnyEvent], since: int, more: list[AnyEvent]
) -> None:
    conversation = Conversation()
    for event in events:
        conversation.apply(event)
        simple = Simple(conversation.steps, set(conversation.decided))
        assert conversation.outcomes == simple.outcomes
        assert conversation.pending == simple.pending
        assert conversation.remote_approvals == [e for e in simple.unanswered if e.remote_task_id]
        assert conversation.has_news(since, more) == simple.has_news(since, more)
        assert sorted(conversation.unsettled, key=repr) == sorted(simple.unsettled, key=repr)
        assert [e for e in conversation.steps if isinstance(e, ApprovalResolved) and e.seq > since] == (
            conversation.decisions_after(since)
        )
        for place in map(Place, [*NODES, *AGENTS]):
            assert conversation.has_ended(place) == simple.has_ended(place)
            assert conversation.within(place) == [e for e in simple.outcomes if place.contains(e.place)]


@settings(max_examples=as_often_as(200), deadline=None)
@given(turns())
def test_what_is_told_of_pending_approvals_is_that_of_their_list(events: list[AnyEvent]) -> None:
    conversation = fold(events)
    pending = conversation.pending
    assert conversation.is_waiting == bool(pending)
    assert conversation.oldest_pending == next(iter(pending), None)
    deadlines = {e.uuid: deadline_of(e, events) for e in reversed(pending) if e.expires_at}
    all_of_them = [deadline_of(e, events) for e in pending if e.expires_at]
    assert conversation.first_deadline == min(filter(None, all_of_them), default="")
    assert conversation.needs_token == any(APPROVAL_KINDS[e.kind].needs_token for e in pending)
    asking = {asking_agent(e, "") for e in pending if may_be_covered(e, "always")}
    assert set(conversation.asking) == asking
    for uuid in ["u1", "u2", "u3", "u4"]:
        oldest = next((e for e in pending if e.uuid == uuid), None)
        assert conversation.pending_approval(uuid) == oldest
        expires = oldest is not None and oldest.expires_at
        assert conversation.deadline(uuid) == (deadlines[uuid] if expires else "")
    for event in events:
        if isinstance(event, ApprovalRequired):
            asked = [e for e in events if isinstance(e, ApprovalRequired) and e.step == event.step]
            assert conversation.times_asked(event.step) == len(asked)


def test_an_ended_agent_that_worked_beside_another_is_known_by_its_start_and_its_end() -> None:
    place = StepKey("0/tool/0.0").started_agent("search", 0)
    started = AgentStarted(seq=2, turn=1, step=place.text, name="search", kind="llm", by="spawn", title="one")
    answer = LlmCall(seq=3, turn=1, step=place.model_call(0).text, model="m", text="found")
    ended = NodeCompleted(seq=4, turn=1, step=place.text, name="search", text="found")
    conversation = fold([UserMessage(seq=1, turn=1, text="go"), started, answer, ended])
    assert conversation.outcomes == [started, ended]


# -- what an event costs


Cost = Callable[[Callable[[], Any]], int]


def cost_of_an_event(count: int, how: Beginning, asks: bool, cost: Cost) -> int:
    """The most that an event of an agent costs, with the looks at the conversation that follow every event,
    in the middle of a turn with so many agents."""
    events, conversation = agents_side_by_side(count, how, asks=asks), Conversation()

    def apply(event: AnyEvent) -> None:
        conversation.apply(event)
        summary(conversation), conversation.needs_pass, conversation.first_deadline, conversation.asking
        conversation.has_ended(event.place)
        if event.place != ROOT:
            conversation.within(event.place)

    middle = in_the_middle(events, count, how)
    for event in events[: middle.start]:
        conversation.apply(event)
    costs = [cost(partial(apply, event)) for event in events[middle]]
    steps = len(costs) // 3
    # The least for each step of an agent: now and then a dict makes room for many more entries.
    return max(min(costs[step::steps]) for step in range(steps))


@pytest.mark.parametrize("asks", [False, True])
@pytest.mark.parametrize("how", ["child", "called", "started"])
@pytest.mark.parametrize("cost", [opcodes, allocated])
def test_an_event_costs_the_same_however_many_agents_there_are(
    how: Beginning, asks: bool, cost: Cost
) -> None:
    few, many = (cost_of_an_event(count, how, asks, cost) for count in (60, 600))
    assert many <= 1.5 * few + 100

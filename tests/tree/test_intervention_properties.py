"""Whatever people do with agents at work, and whatever is lost meanwhile: what was acknowledged holds."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from mesh.core.events import AgentStarted, AgentTold, AnyEvent, LlmCall, NewsAction, NodeCompleted
from mesh.core.places import ROOT, Place
from mesh.keeper import event_feeds
from mesh.keeper.requests import AgentChanges, Intervene, ListAgents
from mesh.tree import steps
from tests.tree.test_tell_properties import CASES, LIMIT_S, TROUBLES, Case, Trouble, World, of
from tests.worlds.mesh import Caller, Create

_MOST_WAITS = 200


@dataclass(frozen=True)
class Step:
    """One intervention: after how many moments, at the agent with which number, counted around."""

    after: int
    agent: int
    action: NewsAction
    now: bool
    restarts: bool = False  # with `modify`


STEPS = st.lists(
    st.builds(
        Step,
        st.integers(0, 8),
        st.integers(0, 7),
        st.sampled_from(("comment", "modify", "pause", "pause", "resume", "delete", "spawn")),
        st.booleans(),
        st.booleans(),
    ),
    max_size=8,
).map(tuple)


@dataclass
class Steered:
    """What came of a case: the journal, and how often models had been asked when an intervention was
    ``acknowledged``, and when somebody began to resume an agent; both by the keys of the interventions."""

    events: list[AnyEvent] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    resumed: dict[str, int] = field(default_factory=dict)
    state: str = ""


class SteeredWorld(World):
    """A mesh in which a case happens, in trouble, and a person who steps in."""

    async def steered(self, planned: Sequence[Step]) -> Steered:
        found = Steered()
        async with asyncio.timeout(2 * LIMIT_S), self:
            await self._surely(
                lambda: Create(self.id, Caller(session_id="s", idempotency_key="k"), "go", False)
            )
            for number, step in enumerate(planned):
                for _ in range(step.after):
                    await asyncio.sleep(0)
                await self._step_in(found, number, step)
            found.state = await self._ended(found)
            for task in self._lost:
                task.cancel()
            await asyncio.gather(*self._lost, return_exceptions=True)
            found.events = list(await self.journal.read(self.id))
        return found

    async def _step_in(self, found: Steered, number: int, step: Step) -> None:
        agents = (await self._surely(lambda: ListAgents(self.id)))[1]["agents"]
        if not agents:
            return
        who = Caller(session_id="s", by="ann", idempotency_key=f"k{number}")
        changes = AgentChanges(task=f"task {number}") if step.action == "modify" else AgentChanges()
        asked = Intervene(
            agents[step.agent % len(agents)]["agentId"],
            who,
            step.action,
            f"words {number}",
            changes,
            step.now,
            ("one", "two", "deep")[number % 3] if step.action == "spawn" else "",
            step.restarts and step.action == "modify",
        )
        if step.action == "resume":
            found.resumed[who.idempotency_key] = len(self.model.requests)
        status, body = await self._surely(lambda: asked)
        assert status in (200, 409) or (status == 400 and asked.adds), body
        if status == 200:
            found.acknowledged[who.idempotency_key] = len(self.model.requests)

    async def _ended(self, found: Steered) -> str:
        """The state of the turn at its end; who is paused goes on."""
        for number in range(_MOST_WAITS):
            shown = (await self._surely(lambda: ListAgents(self.id)))[1]["agents"]
            state = str((await self.show(self.id))["turn"]["state"])
            if state not in ("working", "paused"):
                return state
            if state == "paused":
                for agent in shown:
                    who = Caller(session_id="s", by="ben", idempotency_key=f"r{number}{agent['place']}")
                    found.resumed[who.idempotency_key] = len(self.model.requests)
                    resumed = Intervene(agent["agentId"], who, "resume")
                    await self._surely(lambda asked=resumed: asked)  # type: ignore[misc]
            await asyncio.sleep(0.005)
        raise AssertionError(f"the turn does not end: {await self.show(self.id)}")

    async def _surely(self, asked: Any) -> tuple[int, dict[str, Any]]:
        """The reply to a request, which is made again if everything dies."""
        while True:
            found = await self._attempt(self.ask(asked()))
            if found is not None and found[0] < 500:
                return found


def steered(case: Case, trouble: Trouble, planned: Sequence[Step]) -> Steered:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_feeds, "WAIT_S", 0.01)
        if trouble.sent_at_once:
            patch.setattr(steps, "SEND_AHEAD_S", 0.0)
        return asyncio.run(SteeredWorld(case, trouble).steered(planned))


TOLD_WHILE_IT_BEGINS_AGAIN = (
    Case(told=((3, 1),), works={"boss": 1, "deep": 2, "two": 0, "one": 3}),
    Trouble(frozenset([22, 27]), frozenset(), frozenset([37]), (2, 3, 3), True),
    (
        Step(1, 7, "pause", True),
        Step(8, 4, "modify", True),
        Step(4, 6, "comment", False),
        Step(5, 4, "pause", False),
        Step(0, 0, "resume", False),
        Step(5, 3, "comment", False),
        Step(2, 2, "delete", True),
        Step(4, 0, "pause", False),
    ),
)
"""A comment for the models below an agent is journaled just when the agent begins again."""


DELETED_JUST_WHEN_IT_RETURNS = (
    Case(told=((3,), (), (), (2, 1)), works={"two": 3, "one": 0, "deep": 0, "boss": 0}),
    Trouble(frozenset([22]), frozenset([22]), frozenset([22]), (2, 2, 4), True),
    (
        Step(7, 2, "modify", True, True),
        Step(1, 2, "resume", False),
        Step(0, 3, "comment", True),
        Step(0, 2, "delete", False),
        Step(0, 7, "spawn", False),
        Step(8, 5, "resume", True),
        Step(3, 6, "modify", True, True),
        Step(6, 2, "comment", False),
    ),
)
"""What an agent brings that is deleted at this very moment is in one append with its end."""


@settings(max_examples=24, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(CASES, TROUBLES, STEPS)
@example(*TOLD_WHILE_IT_BEGINS_AGAIN)
@example(*DELETED_JUST_WHEN_IT_RETURNS)
def test_what_people_were_told_that_they_have_done_is_done(
    case: Case, trouble: Trouble, planned: Sequence[Step]
) -> None:
    found = steered(case, trouble, planned)
    # A comment about an agent without a model of its own is one for each model below it.
    told: dict[str, list[AgentTold]] = {}
    for each in (each for each in of(AgentTold, found.events) if each.from_person):
        told.setdefault(each.idempotency_key, []).append(each)
    assert all(len({news.place for news in of_one}) == len(of_one) for of_one in told.values())
    assert all(
        len(of_one) == 1 or of_one[0].action == "comment" or of_one[0].restarts for of_one in told.values()
    )
    assert {*found.acknowledged} <= {*told}
    heard = Counter(id for answer in of(LlmCall, found.events) for id in answer.heard)
    deleted = [end.place for end in of(NodeCompleted, found.events) if end.status == "deleted"]
    is_cancelled = found.state == "cancelled"
    all_told = [news for of_one in told.values() for news in of_one]
    assert is_cancelled == any(news.action == "delete" and news.place == ROOT for news in all_told)
    for news in (news for key in found.acknowledged for news in told[key]):
        of_one = [each for each in told[news.idempotency_key] if not _is_inside(each, deleted)]
        if news.is_read and not is_cancelled and of_one:
            # Of several models, one may end just when it is told.
            assert sum(heard[each.id] for each in of_one) >= 1, of_one
        if news.stops:
            _records_nothing_more(news, found.events)
        if news.restarts:
            _begins_anew(news, found.events, is_cancelled=is_cancelled)
        if news.action == "pause":
            _begins_nothing_more(news, found)
        if news.adds is not None:
            _is_added(news, found.events, is_cancelled=is_cancelled)
    assert all(number == 1 for number in heard.values())
    event(", ".join(sorted({news.action for key in found.acknowledged for news in told[key]})))
    event(f"read by several models: {any(len(of_one) > 1 for of_one in told.values())}")


def _is_added(news: AgentTold, events: Sequence[AnyEvent], *, is_cancelled: bool) -> None:
    """The agent was started with the intervention, and has ended, unless the whole turn was cancelled."""
    assert news.adds is not None
    place = f"{news.step}.{news.adds.handle}"
    (start,) = [e for e in of(AgentStarted, events) if e.step == place]
    assert start.seq == news.seq + 1
    around = {each.text for each in start.place.scopes}
    assert is_cancelled or any(e.step in around for e in of(NodeCompleted, events)), news


def _begins_anew(news: AgentTold, events: Sequence[AnyEvent], *, is_cancelled: bool) -> None:
    """The agent was started again with its end, and has ended, unless the whole turn was cancelled."""
    again = news.place.anew
    (start,) = [e for e in of(AgentStarted, events) if e.step == again.text]
    (end,) = [e for e in of(NodeCompleted, events) if e.step == news.step]
    assert start.seq == end.seq + 1
    around = {each.text for each in again.scopes} | {each.text for each in _anew_of(again)}
    assert is_cancelled or any(e.step in around for e in of(NodeCompleted, events)), news


def _anew_of(place: Place) -> Iterator[Place]:
    for _ in range(_MOST_WAITS):
        place = place.anew
        yield place


def _is_inside(news: AgentTold, places: Sequence[Place]) -> bool:
    return any(place.contains(news.place) for place in places)


def _records_nothing_more(delete: AgentTold, events: Sequence[AnyEvent]) -> None:
    """What is deleted ends by that, or with what is around it, and nothing follows there."""
    if delete.place == ROOT:
        return
    ends = [e for e in of(NodeCompleted, events) if e.place.contains(delete.place)]
    end = min(delete.seq, *(e.seq for e in ends))
    after = [e for e in events if e.seq > end and e != delete and delete.place.contains(Place(e.node))]
    assert [e for e in after if e not in ends] == [], delete


def _begins_nothing_more(pause: AgentTold, found: Steered) -> None:
    """From the acknowledgement until somebody resumes it, each node there has the answer at most that its
    model was being asked for."""
    since = found.acknowledged[pause.idempotency_key]
    resumes = [e for e in of(AgentTold, found.events) if (e.step, e.action) == (pause.step, "resume")]
    ends = [found.resumed[e.idempotency_key] for e in resumes if e.seq > pause.seq]
    until = min(ends, default=len(found.events) + since)
    answers = [e for e in of(LlmCall, found.events) if pause.place.contains(e.place)]
    begun = Counter(e.node for e in answers if since <= int(e.text.removeprefix("#")) < until)
    assert max(begun.values(), default=0) <= 1, (pause, begun)

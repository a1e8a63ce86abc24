"""Whatever the tree, the order of its branches, the decisions and the crashes: what holds of every run."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from mesh.core import agent_limits
from mesh.core.agents_of_turn import AgentsOfTurn, AgentView
from mesh.core.conversation import Conversation, fold
from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    LlmCall,
    NodeCompleted,
    ToolIntent,
    ToolResult,
    decode,
    encode,
)
from mesh.core.ids import agent_id
from mesh.core.places import StepKey
from mesh.core.view import as_they_stand, view
from mesh.keeper import event_feeds
from mesh.net.backoff import Backoff
from mesh.tree import agent_slots
from mesh.tree import steps as tree_steps
from mesh.tree.spawn_calls import NO_RESULT_YET
from tests.journal.edges import listed_wrongly
from tests.tree.causality import violations
from tests.tree.generated import MAX_ITERATIONS, VERDICTS, Case, Script, Trouble, cases, troubles
from tests.tree.world import Final, World, final
from tests.worlds.trees import llm, parallel

PEACE = Trouble()
# After a rejection without a reason, what others may still do depends on who is first.
NOT_CANCELLED = tuple(verdict for verdict in VERDICTS if verdict != "reject")
CHECKED = cases(validates=True) | cases(validates=True, calls_agents=True)
PATIENT = (
    cases(verdicts=NOT_CANCELLED)
    | cases(verdicts=NOT_CANCELLED, calls_agents=True)
    | cases(verdicts=NOT_CANCELLED, validates=True)
    | cases(verdicts=NOT_CANCELLED, spawns=True)
    | cases(verdicts=NOT_CANCELLED, maps=True)
)
MAPS = cases(maps=True) | cases(maps=True, calls_agents=True) | cases(maps=True, spawns=True)
ANY = cases() | cases(calls_agents=True) | CHECKED | cases(spawns=True) | MAPS
RACES = (
    cases(tool_nodes=True)
    | cases(calls_agents=True, races=True)
    | CHECKED
    | cases(spawns=True, races=True)
    | cases(maps=True, tool_nodes=True)
    | cases(maps=True, spawns=True, races=True)
)


def examples(count: int) -> settings:
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=count, deadline=None, suppress_health_check=slow)


class Run(msgspec.Struct):
    """A case that was lived to its end."""

    world: World
    events: list[AnyEvent]
    conversation: Conversation

    @property
    def final(self) -> Final:
        return final(self.conversation, self.events, self.world.ledger.lines)

    @property
    def order(self) -> list[str]:
        return [e.key for e in self.events if isinstance(e, LlmCall | NodeCompleted)]

    def ledger_at(self, end: int) -> list[str]:
        """What had been added by the time the first ``end`` events were there; what was claimed then, ran."""
        ran: dict[str, str] = {}
        for e in self.events[:end]:
            if isinstance(e, ToolIntent):
                ran[e.step] = f"add {e.arguments['n']}"
            elif isinstance(e, ApprovalResolved) and e.choice == "retry":
                del ran[e.step]
        return [line for line in ran.values() if line in self.world.ledger.lines]


def live(
    case: Case,
    trouble: Trouble = PEACE,
    kept: Sequence[AnyEvent] = (),
    ledger: Sequence[str] = (),
    *,
    watched: bool = False,
) -> Run:
    """The case, lived to its end; from where the events ``kept`` leave it, if there are any."""

    async def lived() -> Run:
        world = World(case, trouble, watched=watched)
        world.ledger.lines += ledger
        conversation = await world.live(kept)
        return Run(world, await world.journal.read(world.id), conversation)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_steps, "_LOST_NODES", Backoff(first_s=0.0, longest_s=0.0))
        patch.setattr(event_feeds, "WAIT_S", 0.01)  # one may be asked that died before it could answer
        patch.setattr(agent_slots, "GIVE_BACK_S", 0.01)
        # Which of several starts is refused depends on their order.
        patch.setattr(agent_limits, "OF_TURN", 10_000)
        patch.setattr(agent_limits, "OF_STARTED_AGENT", 10_000)
        if trouble.sent_at_once:
            patch.setattr(tree_steps, "SEND_AHEAD_S", 0.0)
        return asyncio.run(lived())


# -- the same end


@examples(50)
@given(ANY, troubles(eager=False))
def test_a_run_with_crashes_and_lost_passes_ends_as_the_undisturbed_one(case: Case, trouble: Trouble) -> None:
    disturbed, calm = live(case, trouble), live(case)
    event(f"passes: {disturbed.world.passes}, undisturbed: {calm.world.passes}")
    assert disturbed.final == calm.final


@pytest.mark.parametrize("moment", range(1, 25))
def test_the_late_result_of_a_lost_pass_lets_its_branch_go_on_before_anybody_decides_another(
    moment: int,
) -> None:
    case = Case(
        parallel(llm("a"), llm("b"), approvals="ask"),
        {"a": Script((("add", "add"),)), "b": Script((("add",),))},
        {"a": "approve", "b": "reject"},
    )
    assert live(case, Trouble(losses=(moment,), delays=(1,))).final == live(case).final


@examples(40)
@given(PATIENT, troubles(eager=False))
def test_who_watches_sees_each_journaled_event_once_and_in_order_and_changes_nothing(
    case: Case, trouble: Trouble
) -> None:
    watched, alone = live(case, trouble, watched=True), live(case)
    assert watched.world.seen == [event.seq for event in watched.events]
    assert watched.final == alone.final


@examples(40)
@given(PATIENT, troubles())
def test_people_who_decide_while_the_turn_runs_come_to_the_same_end(case: Case, trouble: Trouble) -> None:
    assert live(case, replace(trouble, eager=True)).final == live(case).final


@examples(40)
@given(ANY, troubles(crash=False, eager=False), st.randoms())
def test_any_interleaving_of_branches_gives_the_same_final_state(
    case: Case, trouble: Trouble, random: Random
) -> None:
    delays = [*trouble.delays]
    random.shuffle(delays)
    one, other = live(case, trouble), live(case, replace(trouble, delays=tuple(delays)))
    event(f"another order of events: {one.order != other.order}")
    assert one.final == other.final


@examples(40)
@given(RACES, troubles())
def test_nothing_is_done_twice(case: Case, trouble: Trouble) -> None:
    run = live(case, trouble)
    assert run.world.asked_again == []  # no model is asked for an answer that is journaled
    assert run.world.checked_again == []  # and no check for a verdict that is
    assert max(Counter(run.final.ledger).values(), default=1) == 1
    asked = [(e.step, e.kind, e.attempt) for e in run.events if isinstance(e, ApprovalRequired)]
    assert len(asked) == len(set(asked))
    unknown = [e for e in run.events if isinstance(e, ApprovalRequired) and e.kind == "unknown_outcome"]
    event(f"unknown outcomes: {len(unknown)}")
    disturbed = trouble.crashes or trouble.losses or trouble.node_losses or trouble.deaths
    assert bool(unknown) <= bool(disturbed)


@examples(40)
@given(ANY, troubles(eager=False))
def test_where_a_check_knows_nobody_is_asked_what_came_of_a_call(case: Case, trouble: Trouble) -> None:
    run = live(case, replace(trouble, checked=True))
    kinds = Counter(e.kind for e in run.events if isinstance(e, ApprovalRequired))
    asked_checks = [e for e in run.events if isinstance(e, ToolIntent | ToolResult) and e.found]
    event(f"checks that told: {len(asked_checks)}")
    assert kinds["unknown_outcome"] == 0
    assert max(Counter(run.final.ledger).values(), default=1) == 1
    assert run.final == live(case).final


@examples(20)
@given(cases())
def test_a_run_without_trouble_asks_each_model_once_for_each_step(case: Case) -> None:
    run = live(case)
    assert set(run.world.model_calls.values()) <= {1}
    journaled = {e.step for e in run.events if isinstance(e, LlmCall)}
    failed = run.world.model_calls.keys() - journaled
    assert len(failed) <= sum(script.fails for script in case.scripts.values()) * MAX_ITERATIONS
    assert journaled <= run.world.model_calls.keys()


# -- every journal


@examples(50)
@given(RACES, troubles())
def test_every_prefix_of_a_journal_is_closed_under_depends_on(case: Case, trouble: Trouble) -> None:
    run = live(case, trouble)
    event(f"events: {len(run.events) // 20 * 20}")
    assert violations(run.events, run.world.config) == []


@examples(30)
@given(RACES, troubles())
def test_every_prefix_of_a_journal_is_a_conversation_that_can_be_shown(case: Case, trouble: Trouble) -> None:
    events = live(case, trouble).events
    read_back = [decode(encode(e)) for e in events]
    assert read_back == events
    for end in range(len(events) + 1):
        conversation = fold(events[:end])
        assert msgspec.json.encode(view(conversation)) == msgspec.json.encode(view(fold(read_back[:end])))
        assert conversation.turn_open or not conversation.pending
        assert {e.key for e in conversation.outcomes} <= {e.key for e in conversation.steps}
        assert not end or listed_wrongly(events[:end]) == ""


@examples(30)
@given(RACES, troubles())
def test_whoever_is_told_the_agents_that_have_changed_knows_how_all_of_them_stand(
    case: Case, trouble: Trouble
) -> None:
    conversation, known = Conversation(), dict[str, AgentView]()
    for journaled in live(case, trouble).events:
        conversation.apply(journaled)
        for id in conversation.agents.take_changed():
            changed = conversation.agents.view(id)
            assert changed is not None
            (known[id],) = as_they_stand([changed], conversation)
        shown = as_they_stand(conversation.agents.views(), conversation)
        assert known == {each.agent_id: each for each in shown}


@examples(30)
@given(ANY, troubles())
def test_whoever_asks_a_model_is_shown_at_work_and_whoever_has_ended_as_it_ended(
    case: Case, trouble: Trouble
) -> None:
    agents = AgentsOfTurn()
    for journaled in live(case, trouble).events:
        before = agents.at(journaled.place) if journaled.step else None
        if isinstance(journaled, LlmCall):
            assert before is not None and not before.has_ended and before.detail != "queued"
        agents.apply(journaled)
        if isinstance(journaled, NodeCompleted):
            ended = agents.at(journaled.place)
            assert ended is not None and ended.name == journaled.name
            assert ended.status == ("error" if journaled.status == "failed" else journaled.status)
        event(f"kind: {before.kind if before else ''}")


@examples(30)
@given(ANY, troubles(), st.data())
def test_a_keeper_that_finds_any_prefix_of_a_journal_goes_on_to_the_same_end(
    case: Case, trouble: Trouble, data: st.DataObject
) -> None:
    first = live(case, replace(trouble, eager=False))
    end = data.draw(st.integers(1, len(first.events)), label="events kept")
    second = live(case, kept=first.events[:end], ledger=first.ledger_at(end))
    assert second.final == first.final
    assert violations(second.events, second.world.config) == []
    assert second.world.asked_again == second.world.checked_again == []


# -- agents that were started


@examples(15)
@given(cases(spawns=True, races=True, maps=True), troubles())
def test_the_starts_of_one_call_are_durable_in_one_append_before_anything_of_these_agents(
    case: Case, trouble: Trouble
) -> None:
    run = live(case, trouble)
    number = {e.key: i for i, append in enumerate(run.world.appends) for e in append}
    starts = [e for e in run.events if isinstance(e, AgentStarted) and e.by]
    event(f"agents: {len(starts) // 5 * 5}")
    by_call: dict[str, set[int]] = {}
    for start in starts:
        call = start.place.started_in
        assert (call is None) == (start.by == "map")
        assert start.id == agent_id(run.world.id, start.turn, start.place)
        begun_by = call.text if call else start.step.rpartition(".")[0]
        by_call.setdefault(begun_by, set()).add(number[start.key])
        inside = [e for e in run.events if start.place.contains(e.place) and e.key != start.key]
        assert all(number[e.key] > number[start.key] for e in inside)
    assert all(len(appends) == 1 for appends in by_call.values())


@examples(20)
@given(cases(spawns=True, races=True), troubles())
def test_what_a_model_was_told_of_its_agents_is_what_is_journaled(case: Case, trouble: Trouble) -> None:
    run = live(case, trouble)
    for answer in (e for e in run.events if isinstance(e, LlmCall)):
        assert told_before(StepKey(answer.step), run.events) in run.world.told[answer.step], answer.step


def told_before(step: StepKey, events: Sequence[AnyEvent]) -> list[str]:
    """By the journal, what a model had been told before this model call: results, and reports of agents. A
    fork knows what the node before it was told."""
    steps = {f"{e.step}|{type(e).__name__}": e for e in events}
    place, told = step.place, list[str]()
    if place.is_fork and (call := place.started_in) is not None:
        start = steps[f"{place.text}|AgentStarted"]
        assert isinstance(start, AgentStarted)
        told += told_before(call.asked_by, events)
        told += results(call.asked_by, steps, up_to=(call, start.task))
    for number in range(step.number):
        before = place.model_call(number)
        report = steps.get(f"{before.text}|AgentsReported")
        told += [report.text] if isinstance(report, AgentsReported) else results(before, steps)
    return told


def results(
    step: StepKey, steps: Mapping[str, AnyEvent], up_to: tuple[StepKey, str] | None = None
) -> list[str]:
    """What the calls of an answer brought; for a fork, ``up_to`` its call, which says this to it."""
    answer = steps[f"{step.text}|LlmCall"]
    assert isinstance(answer, LlmCall)
    found: list[str] = []
    is_later = False
    for index in range(len(answer.tool_calls)):
        call = step.tool_call(index)
        if up_to is not None and call == up_to[0]:
            found.append(up_to[1])
            is_later = True
            continue
        result = steps[f"{call.text}|ToolResult"] if not is_later else None
        found.append(result.content if isinstance(result, ToolResult) else NO_RESULT_YET)
    return found

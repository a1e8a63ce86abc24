"""Whatever the tree, the order of its branches, the decisions and the crashes: what holds of every run."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from mesh.core.conversation import Conversation, fold
from mesh.core.events import (
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
from mesh.core.view import view
from mesh.keeper import event_feeds
from mesh.tree import steps
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
)
ANY = cases() | cases(calls_agents=True) | CHECKED
RACES = cases(tool_nodes=True) | cases(calls_agents=True, races=True) | CHECKED


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
        patch.setattr(event_feeds, "WAIT_S", 0.01)  # one may be asked that died before it could answer
        if trouble.sent_at_once:
            patch.setattr(steps, "SEND_AHEAD_S", 0.0)
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
    assert bool(unknown) <= bool(trouble.crashes or trouble.losses or trouble.deaths)


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

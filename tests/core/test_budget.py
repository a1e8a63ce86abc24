"""Budgets, by themselves: whatever is admitted, settled and lost in whichever order, no limit is exceeded."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.budget import (
    BudgetUse,
    CallRequest,
    Granted,
    MustWait,
    Reached,
    Scope,
    admitted,
    scope_of,
    tightest,
)
from mesh.core.events import (
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    LlmCall,
    LlmReserved,
    LlmSettled,
    NewsAction,
    Paused,
    Usage,
    UserMessage,
)

BEGAN = datetime(2026, 11, 23, tzinfo=UTC)
PLACES = ("0", "0.1", "0.1.a@0-0", "0.1.a@0-0.2#1", "0.2")


def at(seconds: float) -> str:
    return (BEGAN + timedelta(seconds=seconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def began(**budget: float) -> UserMessage:
    return UserMessage(turn=1, text="go", time=at(0), budget=budget)


def request(place: str = "0", number: int = 0, *scopes: Scope, **more: object) -> CallRequest:
    asked = CallRequest(
        step=f"{place}/llm/{number}",
        model="m",
        input_bytes=100,
        max_output=1000,
        scopes=scopes,
        nusd_input=1_000_000_000,
        nusd_output=2_000_000_000,
    )
    return msgspec.structs.replace(asked, **more)


def enclosing(place: str, limits: dict[str, Scope]) -> list[Scope]:
    return [scope for where, scope in limits.items() if place == where or place.startswith(f"{where}.")]


actions = st.lists(
    st.tuples(
        st.sampled_from(["ask", "answer", "refused", "lost", "late"]),
        st.sampled_from(PLACES),
        st.integers(0, 1_500),  # tokens of the answer, if it is one
        st.integers(0, 400),  # bytes of the input
        st.sampled_from(["answer", "stop"]),
        st.booleans(),
    ),
    max_size=60,
)
limits_of_places = st.dictionaries(
    st.sampled_from(PLACES),
    st.fixed_dictionaries(
        {},
        optional={
            "max_total_tokens": st.integers(300, 20_000),
            "max_llm_calls": st.integers(1, 12),
            "max_cost_usd": st.floats(0.000_5, 0.05),
        },
    ),
    min_size=1,
)


class World:
    """Passes over a tree that ask, are answered and die, and the bill of a provider that keeps its bounds."""

    def __init__(self, limits: dict[str, dict[str, float]]) -> None:
        self.scopes = {place: scope_of(place, budget) for place, budget in limits.items()}
        self.use = BudgetUse()
        self.journal: list[AnyEvent] = []
        self.in_flight: list[LlmReserved] = []
        self.lost: list[LlmReserved] = []
        self.run = 1
        self.numbers = dict.fromkeys(PLACES, 0)
        self.bill_nusd = self.bill_tokens = self.bill_calls = 0
        self.note(began())

    def note(self, event: AnyEvent) -> None:
        self.journal.append(event)
        self.use.apply(event)

    def ask(self, place: str, size: int, on_limit: str, forced: bool) -> None:
        asked = request(place, self.numbers[place], *enclosing(place, self.scopes), input_bytes=size)
        asked = msgspec.structs.replace(asked, on_limit=on_limit, forced="x" if forced else "")
        decided = admitted(self.use, asked, self.run, at(1))
        if isinstance(decided, Granted):
            assert min(256, asked.max_output) <= decided.reserved.max_output <= asked.max_output
            self.numbers[place] += 1
            self.note(msgspec.structs.replace(decided.reserved, turn=1, time=at(1)))
            self.in_flight.append(decided.reserved)
        elif isinstance(decided, Reached):
            self.would_not_fit(decided, asked)
        else:
            assert isinstance(decided, MustWait) and self.in_flight

    def would_not_fit(self, reached: Reached, asked: CallRequest) -> None:
        """Nobody is refused while it would have fitted, had the calls in flight cost nothing."""
        fewer = BudgetUse()
        for event in self.journal:
            fewer.apply(event)
        for reserved in self.in_flight:
            fewer.apply(LlmSettled(turn=1, step=reserved.step, attempt=reserved.attempt))
        assert isinstance(admitted(fewer, asked, self.run, at(1)), Reached)

    def charge(self, reserved: LlmReserved, output: int) -> Usage:
        """What the provider charges: never more than the bound."""
        usage = Usage(reserved.tokens - reserved.max_output, min(output, reserved.max_output))
        self.bill_tokens += usage.input + usage.output
        self.bill_nusd += usage.input * 1000 + usage.output * 2000
        self.bill_calls += 1
        return usage

    def answer(self, reserved: LlmReserved, output: int) -> None:
        usage = self.charge(reserved, output)
        cost = usage.input * 1000 + usage.output * 2000
        self.note(LlmCall(turn=1, step=reserved.step, model="m", usage=usage, cost_nusd=cost))

    def act(self, kind: str, place: str, output: int, size: int, on_limit: str, forced: bool) -> None:
        if kind == "ask":
            self.ask(place, size, on_limit, forced)
        elif kind == "lost":  # the process died; some of its calls had been made
            for reserved in self.in_flight:
                self.charge(reserved, output)
            self.lost, self.in_flight, self.run = [*self.lost, *self.in_flight], [], self.run + 1
        elif kind == "late" and self.lost:
            reserved = self.lost.pop()
            usage = Usage(reserved.tokens - reserved.max_output, min(output, reserved.max_output))
            tokens, cost = usage.input + usage.output, usage.input * 1000 + usage.output * 2000
            settled = LlmSettled(turn=1, step=reserved.step, attempt=reserved.attempt, calls=1)
            self.note(msgspec.structs.replace(settled, tokens=tokens, cost_nusd=cost))
        elif self.in_flight and kind == "answer":
            self.answer(self.in_flight.pop(0), output)
        elif self.in_flight and kind == "refused":
            reserved = self.in_flight.pop(0)
            self.note(LlmSettled(turn=1, step=reserved.step, attempt=reserved.attempt))

    def check(self) -> None:
        for place, scope in self.scopes.items():
            total = self.use.use(place).total
            assert scope.max_nusd is None or total.nusd <= scope.max_nusd
            assert scope.max_tokens is None or total.tokens <= scope.max_tokens
            assert scope.max_calls is None or total.calls <= scope.max_calls


@given(limits_of_places, actions)
def test_in_every_scope_at_every_prefix_what_counts_stays_within_the_limit(
    limits: dict[str, dict[str, float]], done: list[tuple[str, str, int, int, str, bool]]
) -> None:
    world = World(limits)
    for action in done:
        world.act(*action)
        world.check()


@given(limits_of_places, actions)
def test_the_bill_is_at_most_what_counts_where_no_late_answer_said_less(
    limits: dict[str, dict[str, float]], done: list[tuple[str, str, int, int, str, bool]]
) -> None:
    world = World(limits)
    for action in done:
        if action[0] != "late":
            world.act(*action)
            flying = sum(reserved.nusd for reserved in world.in_flight)
            assert world.bill_nusd <= world.use.conversation.total.nusd - flying


@given(limits_of_places, actions)
def test_a_fold_of_the_journal_is_what_was_kept_and_can_stop_anywhere(
    limits: dict[str, dict[str, float]], done: list[tuple[str, str, int, int, str, bool]]
) -> None:
    world = World(limits)
    for action in done:
        world.act(*action)
    again = BudgetUse()
    for event in world.journal[: len(world.journal) // 2]:
        again.apply(event)
    assert again.after(world.journal[len(world.journal) // 2 :]) == world.use


@given(st.integers(1, 100), st.integers(0, 100))
def test_of_n_calls_an_ordinary_one_leaves_the_last(limit: int, made: int) -> None:
    use = BudgetUse()
    use.apply(began())
    scope = scope_of("0", {"max_llm_calls": limit})
    for number in range(made):
        use.apply(LlmReserved(turn=1, step=f"0/llm/{number}", run=1, tokens=0, max_output=0))
        use.apply(LlmCall(turn=1, step=f"0/llm/{number}", model="m"))
    ordinary = admitted(use, request("0", made, scope), 1, at(1))
    last = admitted(use, request("0", made, scope, forced="max_llm_calls"), 1, at(1))
    assert isinstance(ordinary, Granted) == (made < limit - 1)
    assert isinstance(last, Granted) == (made < limit)


def test_a_call_that_fits_only_if_another_turns_out_cheaper_waits_for_it() -> None:
    use = BudgetUse()
    use.apply(began())
    scope = scope_of("0", {"max_total_tokens": 2000})
    first = admitted(use, request("0", 0, scope), 1, at(1))
    assert isinstance(first, Granted)
    use.apply(msgspec.structs.replace(first.reserved, turn=1, time=at(1)))
    second = request("0", 1, scope, max_output=1200)
    granted = admitted(use, second, 1, at(1))
    assert isinstance(granted, Granted) and granted.reserved.max_output < 1200
    use.apply(msgspec.structs.replace(granted.reserved, turn=1, time=at(1)))
    third = request("0", 2, scope)
    assert isinstance(admitted(use, third, 1, at(1)), MustWait)
    use.apply(LlmCall(turn=1, step="0/llm/0", model="m", usage=Usage(50, 10)))
    assert isinstance(admitted(use, third, 1, at(1)), Granted)


def test_a_call_of_an_older_pass_is_not_waited_for() -> None:
    use = BudgetUse()
    use.apply(began())
    scope = scope_of("0", {"max_llm_calls": 1})
    use.apply(LlmReserved(turn=1, step="0/llm/0", run=1, tokens=10, max_output=10, time=at(1)))
    asked = request("0", 1, scope, forced="max_llm_calls")
    assert isinstance(admitted(use, asked, 1, at(2)), MustWait)
    assert isinstance(admitted(use, asked, 2, at(2)), Reached)


def test_a_model_that_charged_more_for_a_byte_is_reserved_more() -> None:
    use = BudgetUse()
    use.apply(began())
    scope = scope_of("0", {"max_total_tokens": 100_000})
    before = admitted(use, request("0", 0, scope), 1, at(1))
    assert isinstance(before, Granted) and before.reserved.tokens == 1050
    use.apply(msgspec.structs.replace(before.reserved, turn=1, time=at(1)))
    use.apply(LlmCall(turn=1, step="0/llm/0", model="m", usage=Usage(200, 1)))
    after = admitted(use, request("0", 1, scope), 1, at(1))
    assert isinstance(after, Granted) and 1220 <= after.reserved.tokens <= 1221
    assert use.overrun.tokens == 0


def test_what_a_provider_charges_beyond_the_bound_shows_as_overrun() -> None:
    use = BudgetUse()
    use.apply(began())
    use.apply(LlmReserved(turn=1, step="0/llm/0", run=1, tokens=100, max_output=50, nusd=7, time=at(1)))
    use.apply(LlmCall(turn=1, step="0/llm/0", model="m", usage=Usage(90, 50), cost_nusd=10))
    assert (use.overrun.tokens, use.overrun.nusd) == (40, 3)


def test_the_time_in_which_a_person_is_waited_for_does_not_count() -> None:
    use = BudgetUse()
    scope = scope_of("0", {"max_time_s": 100})
    use.apply(began())
    use.apply(
        ApprovalRequired(
            turn=1, step="0/tool/0.0", uuid="u", call_id="", tool_name="", tool_args={}, description=""
        )
    )
    use.apply(Paused(turn=1, run=1, time=at(30)))
    use.apply(ApprovalResolved(turn=1, step="0/tool/0.0", uuid="u", choice="approve", time=at(10_000)))
    assert use.time_s("0", at(10_010)) == pytest.approx(40)
    assert isinstance(admitted(use, request("0", 0, scope), 2, at(10_010)), Granted)
    assert isinstance(admitted(use, request("0", 0, scope), 2, at(10_065)), Reached)


def told(action: NewsAction, place: str, when: float) -> AgentTold:
    return AgentTold(
        turn=1, step=place, id=f"{when}", text="", action=action, from_person=True, time=at(when)
    )


@pytest.mark.parametrize("others_wait", [False, True])
def test_the_time_in_which_a_person_has_paused_a_run_or_what_is_around_it_counts_once_and_for_it_alone(
    others_wait: bool,
) -> None:
    use, agent, other = BudgetUse(), "0.1.search@0-0", "0.2"
    use.apply(began())
    for place in (agent, other):
        use.apply(
            LlmReserved(turn=1, step=f"{place}/llm/0", run=1, tokens=1, max_output=1, nusd=0, time=at(10))
        )
    use.apply(told("pause", agent, 20))
    assert (use.time_s(agent, at(40)), use.time_s(other, at(40))) == pytest.approx((10, 30))
    use.apply(told("resume", agent, 50))
    assert use.time_s(agent, at(60)) == pytest.approx(20)
    use.apply(told("pause", "0.1", 70))
    if others_wait:  # so that the whole turn is paused for a while
        use.apply(Paused(turn=1, run=1, time=at(75)))
    use.apply(told("pause", agent, 80))
    assert use.time_s(agent, at(84)) == pytest.approx(30)
    if others_wait:
        use.apply(ApprovalResolved(turn=1, step="0.3/tool/0.0", uuid="u", choice="approve", time=at(85)))
    use.apply(told("resume", "0.1", 90))
    use.apply(told("pause", agent, 95))  # it is paused already
    assert use.time_s(agent, at(99)) == pytest.approx(30)
    use.apply(told("resume", agent, 100))
    assert use.time_s(agent, at(110)) == pytest.approx(40)
    assert use.time_s(other, at(110)) == pytest.approx(90 if others_wait else 100)
    use.apply(
        LlmReserved(
            turn=1, step=f"{agent}.deep@0-0/llm/0", run=1, tokens=1, max_output=1, nusd=0, time=at(111)
        )
    )
    assert use.time_s(f"{agent}.deep@0-0", at(112)) == pytest.approx(1)


def test_only_a_person_raises_a_limit_and_only_that_of_the_run_asked_about() -> None:
    use = BudgetUse()
    use.apply(began())
    one, other = scope_of("0.1", {"max_llm_calls": 1}), scope_of("0.2", {"max_llm_calls": 1})
    asked = ApprovalRequired(
        turn=1,
        step="0.1/limit/max_llm_calls",
        uuid="u",
        call_id="",
        tool_name="budget",
        tool_args={"max_llm_calls": 1},
        description="",
        kind="limit",
    )
    use.apply(asked)
    assert use.is_asked("0.1", "max_llm_calls")
    use.apply(
        ApprovalResolved(
            turn=1, step=asked.step, uuid="u", choice="approve", edited_args={"max_llm_calls": 5}
        )
    )
    assert isinstance(admitted(use, request("0.1", 0, one), 1, at(1)), Granted)
    assert isinstance(admitted(use, request("0.2", 0, other), 1, at(1)), Reached)


@given(limits_of_places, limits_of_places)
def test_two_budgets_together_are_never_looser_than_one(
    one: dict[str, dict[str, float]], other: dict[str, dict[str, float]]
) -> None:
    for a in one.values():
        for b in other.values():
            both = tightest(a, b)
            assert both.keys() == a.keys() | b.keys()
            assert all(both[key] <= limits[key] for limits in (a, b) for key in limits)

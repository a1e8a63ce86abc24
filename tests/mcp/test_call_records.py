"""What a session knows of claimed calls: whatever comes late, again or never, no step runs twice."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.errors import CallRevoked, ToolSessionError
from mesh.mcp.call_records import ClaimedCalls, SessionCall
from mesh.mcp.port import Claim, ToolOutcome
from tests.worlds.long import as_often_as

STEPS = 3


class Queued(SessionCall):
    """A call in a queue of the test's."""

    is_running = False

    @property
    def has_begun(self) -> bool:
        return self.is_running


@st.composite
def orders(draw: st.DrawFn) -> list[tuple[str, int]]:
    """What happens, in its order: a message arrives (again), a pass is lost and the next one settles the
    claim, the server takes the next call, a call ends."""
    kinds = st.sampled_from(["arrive", "arrive late", "settle", "begin", "end", "other calls"])
    return draw(st.lists(st.tuples(kinds, st.integers(0, STEPS - 1)), max_size=60))


@settings(max_examples=as_often_as(300), deadline=None)
@given(orders())
def test_whatever_comes_late_or_again_each_step_runs_once(order: list[tuple[str, int]]) -> None:
    asyncio.run(_play(order))


async def _play(order: list[tuple[str, int]]) -> None:
    known: ClaimedCalls[Queued] = ClaimedCalls(most_calls=4)
    claims = {step: [Claim(known.session, str(step), 0)] for step in range(STEPS)}
    queue: list[Queued] = []
    running: list[Queued] = []
    began: list[str] = []
    settled: dict[int, asyncio.Task[ToolOutcome | None]] = {}
    others = 0

    def arrive(claim: Claim) -> None:
        try:
            if known.find(claim, "add", {}) is None:
                call = Queued("add", {}, claim)
                known.add(claim, call)
                queue.append(call)
        except CallRevoked:
            return

    for kind, step in order:
        match kind:
            case "arrive":
                arrive(claims[step][-1])
            case "arrive late":
                for claim in claims[step]:
                    arrive(claim)
            case "settle" if step not in settled:
                settled[step] = asyncio.create_task(known.settle(claims[step][-1]))
            case "begin" if queue and not running:
                call = queue.pop(0)
                if not call.answer.done():
                    call.is_running = True
                    running.append(call)
                    assert call.claim is not None
                    began.append(call.claim.step)
            case "end" if running:
                running.pop().succeed(ToolOutcome(content="done"))
            case "other calls":
                others += 1
                claim = Claim(known.session, f"other {others}", 0)
                call = Queued("add", {}, claim)
                known.add(claim, call)
                call.succeed(ToolOutcome(content="other"))
        for _ in range(3):
            await asyncio.sleep(0)
        for each, task in [*settled.items()]:
            if task.done():
                del settled[each]
                if _is_to_be_claimed_anew(task):
                    claims[each].append(Claim(known.session, str(each), len(claims[each])))
    for call in running:
        call.succeed(ToolOutcome(content="done"))
    for task in settled.values():
        await asyncio.wait({task}, timeout=5)
        _is_to_be_claimed_anew(task)
    assert sorted(began) == sorted(set(began)), began


def _is_to_be_claimed_anew(task: "asyncio.Task[ToolOutcome | None]") -> bool:
    """Whether what was asked for has certainly not begun. Where nobody knows, a person would look, and is not
    part of this."""
    try:
        return task.result() is None
    except ToolSessionError as problem:
        assert problem.may_have_run
        return False


async def test_outcomes_are_kept_within_a_bound_and_the_oldest_go_first() -> None:
    known: ClaimedCalls[Queued] = ClaimedCalls(most_bytes=100)
    claims = [Claim(known.session, str(n), 0) for n in range(3)]
    for claim in claims:
        known.add(claim, call := Queued("add", {}, claim))
        call.succeed(ToolOutcome(content="x" * 40))
        await asyncio.sleep(0)
    with pytest.raises(ToolSessionError, match="not kept any more") as raised:
        await known.settle(claims[0])
    assert raised.value.may_have_run
    assert await known.settle(claims[2]) == ToolOutcome(content="x" * 40)


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_call_that_has_not_ended_is_known_however_many_others_come(
    is_running: bool,
) -> None:
    known: ClaimedCalls[Queued] = ClaimedCalls(most_calls=2)
    claim = Claim(known.session, "slow", 0)
    known.add(claim, call := Queued("add", {}, claim))
    call.is_running = is_running
    for n in range(10):
        other = Claim(known.session, f"other {n}", 0)
        known.add(other, ended := Queued("add", {}, other))
        ended.succeed(ToolOutcome(content="other"))
        await asyncio.sleep(0)
    settling = asyncio.create_task(known.settle(claim))
    for _ in range(3):
        await asyncio.sleep(0)
    call.succeed(ToolOutcome(content="slow"))
    assert await settling == (ToolOutcome(content="slow") if is_running else None)

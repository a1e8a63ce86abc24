"""An event wakes those that it may let go on, and looks at no others."""

import asyncio
from contextlib import ExitStack
from functools import partial

from mesh.core.budget import MustWait
from mesh.core.places import Place
from mesh.keeper.waiters import Waiter, WaitingCalls
from tests.counted_work import opcodes

CALLS = MustWait("max_llm_calls", "0")
TOKENS = MustWait("max_total_tokens", "0.1")


async def is_woken(waiter: Waiter) -> bool:
    """Whether it would try again now."""
    return await waiter.wait(asyncio.get_running_loop().time())


def lined_up(calls: WaitingCalls, stack: ExitStack, places: list[str], short: MustWait) -> list[Waiter]:
    waiters = [stack.enter_context(calls.waiter(Place(place))) for place in places]
    for waiter in waiters:
        calls.line_up(waiter, short)
    return waiters


async def test_the_first_in_line_tries_and_the_next_one_when_it_has_left() -> None:
    calls = WaitingCalls()
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(calls.waiter(Place(f"0.{n}"))) for n in range(3))
        for waiter in (first, second, third):
            calls.line_up(waiter, CALLS)
        calls.free(Place("0.7.2"))
        assert [await is_woken(waiter) for waiter in (first, second, third)] == [True, False, False]
        calls.line_up(first, CALLS)  # there was no room yet: it stays the first
        calls.free(Place("0.7.2"))
        assert [await is_woken(waiter) for waiter in (first, second, third)] == [True, False, False]
        calls.line_up(first, TOKENS)  # it waits for something else now
        assert [await is_woken(waiter) for waiter in (first, second, third)] == [False, True, False]


async def test_whoever_leaves_the_line_first_lets_the_next_one_try_for_whatever_reason_it_left() -> None:
    calls = WaitingCalls()
    with ExitStack() as stack:
        with calls.waiter(Place("0.0")) as first:
            calls.line_up(first, CALLS)
            (second,) = lined_up(calls, stack, ["0.1"], CALLS)
            calls.free(Place("0"))
        assert await is_woken(second)


async def test_what_is_freed_elsewhere_concerns_no_line() -> None:
    calls = WaitingCalls()
    with ExitStack() as stack:
        (waiter,) = lined_up(calls, stack, ["0.1.3"], TOKENS)
        calls.free(Place("0.2"))
        assert not await is_woken(waiter)
        calls.free(Place("0.1.4"))
        assert await is_woken(waiter)


async def test_who_waits_inside_of_what_ends_is_woken_and_nobody_else() -> None:
    calls = WaitingCalls()
    with ExitStack() as stack:
        places = ["0.1", "0.1.search@0-0.2", "0.11"]
        outer, inner, other = lined_up(calls, stack, places, TOKENS)
        calls.wake_inside("0.1/tool/0.0")
        assert [await is_woken(each) for each in (outer, inner, other)] == [False, True, False]
        calls.wake_inside("0.1")
        assert [await is_woken(each) for each in (outer, inner, other)] == [True, True, False]
        calls.wake_all()
        assert [await is_woken(each) for each in (outer, inner, other)] == [True, True, True]


async def test_a_wake_that_comes_before_the_wait_is_not_lost() -> None:
    calls = WaitingCalls()
    with calls.waiter(Place("0")) as waiter:
        waiter.wake()
        assert await is_woken(waiter)
        assert not await is_woken(waiter)


async def test_nothing_is_kept_of_those_who_have_left() -> None:
    calls = WaitingCalls()
    with ExitStack() as stack:
        lined_up(calls, stack, ["0.1", "0.1.2", "0.3"], CALLS)
        lined_up(calls, stack, ["0.1"], TOKENS)
    assert not any(vars(calls).values())


async def test_what_is_freed_costs_the_same_however_many_wait() -> None:
    def cost(count: int) -> int:
        calls = WaitingCalls()
        with ExitStack() as stack:
            lined_up(calls, stack, [f"0.{n}" for n in range(count)], CALLS)
            return opcodes(partial(calls.free, Place("0.5"))) + opcodes(partial(calls.wake_inside, "0.5"))

    assert cost(1_000) <= cost(10) + 50

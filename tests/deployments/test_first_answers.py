"""What a list waits for: for all keepers a while, then for the first of them."""

import asyncio
from typing import Any

import pytest

from deployments.remote import first_answers
from mesh.core.errors import Conflict, JournalError, Unavailable


async def says(what: str, after: asyncio.Event | None = None) -> str:
    if after is not None:
        await after.wait()
    return what


async def away() -> str:
    raise Unavailable("a keeper does not answer")


async def cannot_read() -> str:
    raise JournalError("a journal cannot be read")


async def wrong() -> str:
    raise Conflict("that is not possible")


async def test_all_answers_are_waited_for() -> None:
    later = asyncio.Event()
    asyncio.get_running_loop().call_soon(later.set)
    answers, are_all = await first_answers([says("a"), says("b", later)], 60)
    assert (sorted(answers), are_all) == (["a", "b"], True)


async def test_one_that_is_late_or_away_is_left_out_and_no_call_of_it_goes_on() -> None:
    never = asyncio.Event()
    assert await first_answers([says("a"), says("b", never)], 0.01) == (["a"], False)
    assert await first_answers([says("a"), away(), cannot_read()], 60) == (["a"], False)
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


async def test_as_long_as_nobody_answers_it_waits_for_the_first_one() -> None:
    later, never = asyncio.Event(), asyncio.Event()
    listed: Any = asyncio.create_task(first_answers([away(), says("b", later), says("c", never)], 0.01))
    done, _ = await asyncio.wait({listed}, timeout=0.1)
    assert not done
    later.set()
    assert await listed == (["b"], False)


async def test_that_nobody_answers_is_an_error_and_so_is_what_is_wrong_with_one() -> None:
    with pytest.raises(Unavailable, match="does not answer"):
        await first_answers([away(), away()], 60)
    with pytest.raises(Conflict, match="not possible"):
        await first_answers([says("a"), wrong(), away()], 60)

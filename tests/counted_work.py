"""How much work a piece of code is, counted and not timed: the same on every machine, however busy."""

import gc
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Work:
    """``amount`` is set when the work is done."""

    amount = 0


@contextmanager
def counted_opcodes() -> Iterator[Work]:
    """Counts the instructions of Python that run in functions which are called meanwhile. A loop in C counts
    as one: see `counted_bytes`."""
    work = Work()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        work.amount += event == "opcode"
        return trace

    before = sys.gettrace()
    with _without_garbage_collection():
        sys.settrace(trace)
        try:
            yield work
        finally:
            sys.settrace(before)


@contextmanager
def counted_bytes() -> Iterator[Work]:
    """Counts the bytes that are allocated at most beside those that were there before: a copy of a long list
    is many."""
    work = Work()
    with _without_garbage_collection():
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            yield work
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    work.amount = peak - before


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """It would run finalizers of what others have left behind, and count them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def opcodes(work: Callable[[], Any]) -> int:
    """See `counted_opcodes`."""
    with counted_opcodes() as counted:
        work()
    return counted.amount


def allocated(work: Callable[[], Any]) -> int:
    """See `counted_bytes`."""
    with counted_bytes() as counted:
        work()
    return counted.amount


async def opcodes_of(work: Awaitable[Any]) -> int:
    """`opcodes`, of what is awaited and of all that runs meanwhile."""
    with counted_opcodes() as counted:
        await work
    return counted.amount


async def allocated_of(work: Awaitable[Any]) -> int:
    """`allocated`, of what is awaited and of all that runs meanwhile."""
    with counted_bytes() as counted:
        await work
    return counted.amount

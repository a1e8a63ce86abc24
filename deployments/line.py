"""Many calls between two actors in few: a `Line` at the caller, a `Desk` at the other end.

One actor call costs about 2 ms of CPU, caller and callee together, whatever it carries. So calls that
start while another is under way travel together, and so do answers that are ready together:

    Line   outbox ──exchange([(id, call), …])──►  Desk   a task for each call
           futures ◄──[(id, answer), …]─────────         answers that are ready

Of the exchanges of one line, the desk lets one wait until an answer is ready (at most `_WAIT_S`);
any other returns at once with what is ready. So a line needs two exchanges at most: one that waits,
one that brings. A single call on an idle line is one actor call, as it would be without all this.

A call has no order among others, and no deadline of its own. When the other end is gone, every call
without an answer raises what the actor call raised: it may have run, or not.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from itertools import count

import msgspec

from mesh.errors import MeshError

_WAIT_S = 20.0
_FORGET_AFTER_S = 120.0
_log = logging.getLogger("mesh.line")


class Failed(MeshError):
    """The other end raised what it should have answered: a bug there, told here."""


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    caller: str
    calls: list[tuple[int, bytes]]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    id: int
    content: bytes
    failure: str = ""


_pack = msgspec.msgpack.Encoder().encode
_unpack_batch = msgspec.msgpack.Decoder(_Batch).decode
_unpack_answers = msgspec.msgpack.Decoder(list[_Answer]).decode


class Line:
    """The caller's end. ``exchange`` is the actor call. Used by one event loop."""

    def __init__(self, exchange: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._exchange = exchange
        self._caller = secrets.token_hex(6)
        self._ids = count()
        self._outbox: list[tuple[int, bytes]] = []
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._under_way: set[asyncio.Task[None]] = set()

    async def call(self, content: bytes) -> bytes:
        """The answer to one call. Raises `Failed`, or what the actor call raised."""
        number = next(self._ids)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._outbox.append((number, content))
        self._go_on()
        try:
            return await answer
        finally:
            self._waiting.pop(number, None)

    def _go_on(self) -> None:
        """Starts an exchange if there is something to bring, or nobody waits for what is to come."""
        useful = self._outbox if self._under_way else self._waiting
        if useful and len(self._under_way) < 2:
            task = asyncio.create_task(self._one_exchange())
            self._under_way.add(task)

    async def _one_exchange(self) -> None:
        calls, self._outbox = self._outbox, []
        try:
            answers = _unpack_answers(await self._exchange(_pack(_Batch(self._caller, calls))))
        except Exception as problem:  # noqa: BLE001 - handed to every caller
            self._lost(problem)
        else:
            for answer in answers:
                self._deliver(answer)
        task = asyncio.current_task()
        assert task is not None
        self._under_way.discard(task)
        self._go_on()

    def _deliver(self, answer: _Answer) -> None:
        # Taken out here, not when its caller wakes up: what is answered asks for no further exchange.
        waiting = self._waiting.pop(answer.id, None)
        if waiting is None or waiting.done():
            return
        if answer.failure:
            waiting.set_exception(Failed(answer.failure))
        else:
            waiting.set_result(answer.content)

    def _lost(self, problem: Exception) -> None:
        self._caller = secrets.token_hex(6)
        self._outbox.clear()
        lost, self._waiting = self._waiting, {}
        for waiting in lost.values():
            if not waiting.done():
                waiting.set_exception(problem)


class _Tray:
    """The answers for one caller."""

    def __init__(self) -> None:
        self.ready: list[_Answer] = []
        self.wake: asyncio.Future[None] | None = None
        self.used = 0.0

    def put(self, answer: _Answer) -> None:
        self.ready.append(answer)
        if self.wake is not None and not self.wake.done():
            self.wake.set_result(None)

    def take(self) -> list[_Answer]:
        ready, self.ready = self.ready, []
        return ready


class Desk:
    """The callee's end: answers each call by ``answer``, in a task of its own."""

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._answer = answer
        self._trays: dict[str, _Tray] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def exchange(self, packed: bytes) -> bytes:
        """Takes calls, gives the answers that are ready: see the module's text."""
        batch = _unpack_batch(packed)
        tray = self._tray(batch.caller)
        for number, content in batch.calls:
            task = asyncio.create_task(self._run(tray, number, content))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if not tray.ready and tray.wake is None:
            await self._first(tray)
        return _pack(tray.take())

    async def _first(self, tray: _Tray) -> None:
        """Waits until an answer is ready, and a moment for those that are ready with it."""
        tray.wake = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait({tray.wake}, timeout=_WAIT_S)
            await asyncio.sleep(0)
        finally:
            tray.wake = None

    async def _run(self, tray: _Tray, number: int, content: bytes) -> None:
        try:
            tray.put(_Answer(number, await self._answer(content)))
        except Exception as problem:  # noqa: BLE001 - answered, and logged here
            _log.exception("a call failed")
            tray.put(_Answer(number, b"", f"{type(problem).__name__}: {problem}"))

    def _tray(self, caller: str) -> _Tray:
        now = asyncio.get_running_loop().time()
        if caller not in self._trays:
            gone = [c for c, t in self._trays.items() if t.wake is None and now - t.used > _FORGET_AFTER_S]
            for forgotten in gone:
                del self._trays[forgotten]
            self._trays[caller] = _Tray()
        tray = self._trays[caller]
        tray.used = now
        return tray

"""What a session knows of the calls that must not run twice.

Above: the sessions of `mesh.mcp.session` and `mesh.mcp.memory`. Nothing here talks to a server.

A call that must not run twice is claimed in the journal, in the name of one session, before it is made. So a
session can say what came of a claim that has no result, and a caller asks it before anybody else:

    never arrived        it is revoked: should it arrive late, it is refused
    waits in the queue   it is revoked
    runs                 its outcome is waited for
    ended                its outcome is told again
    other session        it is gone, and only what it wrote down (`Begun`) tells whether it began the call:
                         if so, nobody knows

Invariant: an attempt that was revoked, or superseded by a later one, never starts. A session that restarts
forgets what it revoked; that is why its id changes, and why a call that names another session is refused.

Memory is bounded by generations. The id of a session ends in its generation; after `MOST_CALLS` calls the
next one begins, and the calls of the last but one are forgotten, which is safe for the same reason.
"""

import asyncio
import secrets
from collections import deque
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mesh.core.errors import CallRevoked, ToolSessionError
from mesh.mcp.port import Claim, ToolOutcome

MOST_CALLS = 5_000
MOST_BYTES = 64 * 1024 * 1024


class Begun(Protocol):
    """What sessions write down of the calls that they begin, for those after them: see
    `mesh.mcp.session_file.SessionFile`."""

    def open_session(self, session: str) -> None: ...
    def record_begin(self, claim: Claim) -> None: ...
    def has_begun(self, claim: Claim) -> bool | None: ...


class Call:
    """A call on its way through a session. ``has_begun``: the server may have seen it."""

    def __init__(self, name: str, arguments: dict[str, Any], claim: Claim | None = None) -> None:
        self.name = name
        self.arguments = arguments
        self.claim = claim
        self.answer: asyncio.Future[ToolOutcome] = asyncio.get_running_loop().create_future()

    @property
    def has_begun(self) -> bool:
        raise NotImplementedError

    def succeed(self, outcome: ToolOutcome) -> None:
        """Ends it, unless it ended before."""
        if not self.answer.done():
            self.answer.set_result(outcome)

    def fail(self, problem: ToolSessionError) -> None:
        """Ends it without an outcome, unless it ended before."""
        if not self.answer.done():
            self.answer.set_exception(problem)
            self.answer.exception()  # Whoever waits gets it; where nobody does, asyncio need not report it.


C = TypeVar("C", bound=Call)


class _Known(Generic[C]):
    """An attempt. ``call`` None: it was revoked before it arrived, or (``is_forgotten``) ended, and its
    outcome is not kept any more."""

    def __init__(self, attempt: int, call: C | None) -> None:
        self.attempt = attempt
        self.call = call
        self.is_forgotten = False


class KnownCalls(Generic[C]):
    """The claimed calls of one session, by step: see the module. Keeps the latest attempt of each.

    `open` it with what is written down, if anything is, before the first call."""

    def __init__(self, most_calls: int = MOST_CALLS, most_bytes: int = MOST_BYTES) -> None:
        self._begun: Begun | None = None
        self._token = secrets.token_hex(8)
        self._generation = 0
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._bytes = 0
        self._ended: deque[tuple[_Known[C], int]] = deque()
        self._steps: dict[str, dict[str, _Known[C]]] = {self.session: {}}
        self._outlasting: dict[Claim, C] = {}  # the calls without an end of generations that are forgotten

    @property
    def session(self) -> str:
        """The id in whose name calls are claimed now."""
        return f"{self._token}.{self._generation}"

    @property
    def is_open(self) -> bool:
        """Whether what begins is written down."""
        return self._begun is not None

    def open(self, begun: Begun) -> None:
        """From here on what begins is written down. Again: what was written down before is lost, and a new
        generation begins."""
        if self._begun is not None:
            self._next_generation()
        begun.open_session(self.session)
        self._begun = begun

    def begin(self, call: Call) -> None:
        """The call is about to be handed to the server."""
        if self._begun is not None and call.claim is not None:
            self._begun.record_begin(call.claim)

    def find(self, claim: Claim) -> C | None:
        """The call of this attempt, if it came before; None: it may begin, and is to be `add`ed at once.

        Raises `CallRevoked` when it may not begin any more.
        """
        if claim in self._outlasting:
            return self._outlasting[claim]
        steps = self._steps.get(claim.session)
        if steps is None:
            raise CallRevoked("it was claimed for a session that has ended; it did not run")
        known = steps.get(claim.step)
        if known is not None and known.attempt == claim.attempt and known.call is not None:
            return known.call
        if known is not None and known.attempt >= claim.attempt:
            raise CallRevoked("this attempt was revoked, or a later one has taken its place")
        if any(self._still_runs(earlier.get(claim.step)) for earlier in self._steps.values()) or any(
            earlier.step == claim.step for earlier in self._outlasting
        ):
            raise CallRevoked("an earlier attempt still runs; this one did not start")
        return None

    def add(self, claim: Claim, call: C) -> None:
        """Remembers a call that is on its way."""
        known = self._steps[claim.session][claim.step] = _Known(claim.attempt, call)
        call.answer.add_done_callback(lambda answer: self._keep(known, answer))
        self._make_room()

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        """What came of an attempt; waits while it runs. None: it has not begun and never will.

        Raises `ToolSessionError` when nobody knows.
        """
        steps = self._steps.get(claim.session)
        if claim in self._outlasting:
            return await self._outcome(self._outlasting[claim])
        if steps is None and self._begun is not None and self._begun.has_begun(claim) is False:
            return None
        if steps is None:
            raise ToolSessionError("the session that may have run this call has ended", may_have_run=True)
        known = steps.get(claim.step)
        if known is None or known.attempt < claim.attempt:
            steps[claim.step] = _Known(claim.attempt, None)
            self._make_room()
            return None
        if known.is_forgotten or known.attempt > claim.attempt:
            raise ToolSessionError("the outcome of this call is not kept any more", may_have_run=True)
        if known.call is None:
            return None
        return await self._outcome(known.call)

    @staticmethod
    async def _outcome(call: C) -> ToolOutcome | None:
        if not call.has_begun:
            call.fail(CallRevoked("this attempt was revoked before it began"))
        try:
            return await asyncio.shield(call.answer)
        except ToolSessionError as problem:
            if problem.may_have_run:
                raise
            return None

    @staticmethod
    def _still_runs(known: _Known[C] | None) -> bool:
        return known is not None and known.call is not None and not known.call.answer.done()

    def _make_room(self) -> None:
        if len(self._steps[self.session]) >= self._most_calls:
            self._next_generation()
            if self._begun is not None:
                self._begun.open_session(self.session)

    def _next_generation(self) -> None:
        self._generation += 1
        self._steps[self.session] = {}
        while len(self._steps) > 2:
            self._forget(next(iter(self._steps)))

    def _forget(self, session: str) -> None:
        """Forgets a generation, but for its calls that wait or run: they are few."""
        for step, known in self._steps.pop(session).items():
            if known.call is not None and self._still_runs(known):
                claim = Claim(session, step, known.attempt)
                self._outlasting[claim] = known.call
                known.call.answer.add_done_callback(partial(self._end, claim))

    def _end(self, claim: Claim, _: "asyncio.Future[ToolOutcome]") -> None:
        del self._outlasting[claim]

    def _keep(self, known: _Known[C], answer: "asyncio.Future[ToolOutcome]") -> None:
        """Bounds what is kept of the calls that ended: the oldest outcomes go first."""
        size = 0 if answer.cancelled() or answer.exception() else _size(answer.result())
        self._ended.append((known, size))
        self._bytes += size
        while self._bytes > self._most_bytes or len(self._ended) > 2 * self._most_calls:
            oldest, freed = self._ended.popleft()
            oldest.call, oldest.is_forgotten = None, True
            self._bytes -= freed


def _size(outcome: ToolOutcome) -> int:
    return len(outcome.content) + sum(len(a.data) + len(a.url) + len(a.name) for a in outcome.artifacts)

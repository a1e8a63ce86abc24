"""What a session knows of the calls that must not run twice.

Above: the sessions of `mesh.mcp.session` and `mesh.mcp.memory`. Nothing here talks to a server.

A call that must not run twice is claimed in the journal, for one session, before it is made. A caller that
finds a claim without a result therefore asks that session first (`ClaimedCalls.settle`). What the session
answers depends on the call:

    it never arrived        revokes it: should it arrive late, it is refused
    it waits in the queue   revokes it
    it runs                 waits for its outcome
    it ended                returns its outcome again
    of another session      that session is gone; its records (`CallRecords`) say whether it began the call.
    If
                            it did, nobody knows the outcome

Invariant: an attempt that was revoked, or superseded by a later one, never begins. A session that restarts
forgets what it revoked; that is why its id changes, and why a call for another session is refused.

Memory is bounded by generations. The id of a session ends in its generation. After `MAX_CALLS` calls the next
generation begins, and the calls of the one before the last are forgotten; that is safe for the same reason.
"""

import asyncio
import secrets
from collections import deque
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from mesh.core.errors import CallRevoked, ToolSessionError
from mesh.core.execution import ExecutionContext
from mesh.mcp.port import Claim, ToolOutcome
from mesh.mcp.progress import PacedProgress

MAX_CALLS = 5_000
MAX_BYTES = 64 * 1024 * 1024
"""The most that is kept of outcomes."""


class CallRecords(Protocol):
    """Where sessions record which calls they begin, for the sessions after them:
    `mesh.mcp.session_file.SessionFile`."""

    def open_session(self, session: str) -> None: ...
    def record_begin(self, claim: Claim) -> None: ...
    def has_begun(self, claim: Claim) -> bool | None: ...


class SessionCall:
    """A call on its way through a session. ``has_begun``: the server may have received it."""

    def __init__(
        self,
        name: str,
        arguments: dict[str, Any],
        claim: Claim | None = None,
        context: ExecutionContext | None = None,
    ) -> None:
        self.name = name
        self.arguments = arguments
        self.claim = claim
        self.context = context
        self.progress = PacedProgress()
        self.answer: asyncio.Future[ToolOutcome] = asyncio.get_running_loop().create_future()
        self.answer.add_done_callback(lambda _: self.progress.end())

    @property
    def has_begun(self) -> bool:
        raise NotImplementedError

    def succeed(self, outcome: ToolOutcome) -> None:
        """Ends the call with an outcome, unless it has ended."""
        if not self.answer.done():
            self.answer.set_result(outcome)

    def fail(self, problem: ToolSessionError) -> None:
        """Ends the call without an outcome, unless it has ended."""
        if not self.answer.done():
            self.answer.set_exception(problem)
            self.answer.exception()  # marks it as seen: nobody may be waiting, and asyncio would complain


C = TypeVar("C", bound=SessionCall)


class _Attempt(Generic[C]):
    """An attempt at a step. Without a ``call``, it was revoked before it arrived; or, if ``is_forgotten``, it
    ended and its outcome is not kept any more."""

    def __init__(self, number: int, call: C | None) -> None:
        self.number = number
        self.call = call
        self.is_forgotten = False


class ClaimedCalls(Generic[C]):
    """The claimed calls of one session, by step: see the module. Keeps the latest attempt at each.

    If calls are recorded, `open` it with the records before the first call.
    """

    def __init__(self, most_calls: int = MAX_CALLS, most_bytes: int = MAX_BYTES) -> None:
        self._records: CallRecords | None = None
        self._token = secrets.token_hex(8)
        self._generation = 0
        self._most_calls = most_calls
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: deque[tuple[_Attempt[C], int]] = deque()
        self._steps: dict[str, dict[str, _Attempt[C]]] = {self.session: {}}
        self._unfinished: dict[Claim, C] = {}  # calls of forgotten generations that have not ended

    @property
    def session(self) -> str:
        """The id for which calls are claimed now."""
        return f"{self._token}.{self._generation}"

    @property
    def is_open(self) -> bool:
        """Whether calls are recorded."""
        return self._records is not None

    def open(self, records: CallRecords) -> None:
        """Records from now on which calls begin. Called again, it begins a new generation, because the
        records so far are lost."""
        if self._records is not None:
            self._next_generation()
        records.open_session(self.session)
        self._records = records

    def begin(self, call: SessionCall) -> None:
        """Records that the call is about to be handed to the server. Raises `ToolSessionError`; then it must
        not be."""
        if self._records is not None and call.claim is not None:
            self._records.record_begin(call.claim)

    def find(self, claim: Claim, name: str, arguments: dict[str, Any]) -> C | None:
        """Returns the call of this attempt if it arrived before. If it returns None, the call may begin and
        must be added (`add`) before anything else happens.

        Raises `CallRevoked` if it may not begin any more, or another call arrived in its name.
        """
        call = self._arrived(claim)
        if call is not None and (call.name, call.arguments) != (name, arguments):
            raise CallRevoked(f"another call of {call.name} was made in its name; this one did not run")
        return call

    def _arrived(self, claim: Claim) -> C | None:
        if claim in self._unfinished:
            return self._unfinished[claim]
        steps = self._steps.get(claim.session)
        if steps is None:
            raise CallRevoked("it was claimed for a session that has ended; it did not run")
        attempt = steps.get(claim.step)
        if attempt is not None and attempt.number == claim.attempt and attempt.call is not None:
            return attempt.call
        if attempt is not None and attempt.number >= claim.attempt:
            raise CallRevoked("this attempt was revoked, or a later one has taken its place")
        if any(self._still_runs(earlier.get(claim.step)) for earlier in self._steps.values()) or any(
            earlier.step == claim.step for earlier in self._unfinished
        ):
            raise CallRevoked("an earlier attempt still runs; this one did not start")
        return None

    def running(self, claim: Claim) -> C | None:
        """The call of this attempt, if it has begun and not ended."""
        attempt = self._steps.get(claim.session, {}).get(claim.step)
        call = self._unfinished.get(claim)
        if attempt is not None and attempt.number == claim.attempt:
            call = attempt.call
        return call if call is not None and call.has_begun and not call.answer.done() else None

    def add(self, claim: Claim, call: C) -> None:
        """Takes note of a call that arrived."""
        attempt = self._steps[claim.session][claim.step] = _Attempt(claim.attempt, call)
        call.answer.add_done_callback(lambda answer: self._keep(attempt, answer))
        self._make_room()

    async def settle(self, claim: Claim) -> ToolOutcome | None:
        """Returns the outcome of an attempt, and waits for it while the call runs; None if it has not begun,
        and never will.

        Raises `ToolSessionError` if nobody knows the outcome.
        """
        steps = self._steps.get(claim.session)
        if claim in self._unfinished:
            return await self._outcome(self._unfinished[claim])
        if steps is None and self._records is not None and self._records.has_begun(claim) is False:
            return None
        if steps is None:
            raise ToolSessionError("the session that may have run this call has ended", may_have_run=True)
        attempt = steps.get(claim.step)
        if attempt is None or attempt.number < claim.attempt:
            steps[claim.step] = _Attempt(claim.attempt, None)
            self._make_room()
            return None
        if attempt.is_forgotten or attempt.number > claim.attempt:
            raise ToolSessionError("the outcome of this call is not kept any more", may_have_run=True)
        if attempt.call is None:
            return None
        return await self._outcome(attempt.call)

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
    def _still_runs(attempt: _Attempt[C] | None) -> bool:
        return attempt is not None and attempt.call is not None and not attempt.call.answer.done()

    def _make_room(self) -> None:
        if len(self._steps[self.session]) >= self._most_calls:
            self._next_generation()
            if self._records is not None:
                self._records.open_session(self.session)

    def _next_generation(self) -> None:
        self._generation += 1
        self._steps[self.session] = {}
        while len(self._steps) > 2:
            self._forget(next(iter(self._steps)))

    def _forget(self, session: str) -> None:
        """Forgets a generation, except for its calls that wait or run, which are few."""
        for step, attempt in self._steps.pop(session).items():
            if attempt.call is not None and self._still_runs(attempt):
                claim = Claim(session, step, attempt.number)
                self._unfinished[claim] = attempt.call
                attempt.call.answer.add_done_callback(partial(self._remove, claim))

    def _remove(self, claim: Claim, _: "asyncio.Future[ToolOutcome]") -> None:
        del self._unfinished[claim]

    def _keep(self, attempt: _Attempt[C], answer: "asyncio.Future[ToolOutcome]") -> None:
        """Bounds what is kept of calls that ended: drops the oldest outcomes first."""
        size = 0 if answer.cancelled() or answer.exception() else _size(answer.result())
        self._kept.append((attempt, size))
        self._bytes += size
        while self._bytes > self._most_bytes or len(self._kept) > 2 * self._most_calls:
            oldest, freed = self._kept.popleft()
            oldest.call, oldest.is_forgotten = None, True
            self._bytes -= freed


def _size(outcome: ToolOutcome) -> int:
    return len(outcome.content) + sum(len(a.data) + len(a.url) + len(a.name) for a in outcome.artifacts)

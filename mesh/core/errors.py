"""The tree of errors, split by what the caller does about them.

    MeshError
    ├─ ConfigError            fix the file; carries every problem of it at once
    ├─ RequestError           the client's fault: do not send the same again
    │  ├─ BadRequest          it cannot be understood
    │  ├─ NotFound            there is no such thing
    │  ├─ Conflict            the thing is in a state that does not allow it
    │  └─ TooLarge            it is over a bound
    ├─ Unavailable            send the same again after `retry_after_s`
    │  ├─ TooManyRequests     too much of the same waits already
    │  ├─ NodeLost            a node was begun anew for so long that nobody waits for it any more
    │  └─ NotHeld             another keeper host may have the shard: look again which one has it
    ├─ LlmError               a model call failed for good (retries are spent); ends the turn
    ├─ ToolSessionError       a tool call has no outcome; `may_have_run` says what is known
    │  └─ CallRevoked         its claim does not hold any more: it did not run; claim it anew, or leave it
    └─ JournalError
       ├─ StaleEpoch          another keeper owns the shard: stop writing, leave
       ├─ WrongSequence       the writer's picture of the journal may not be the journal: read it again
       ├─ JournalRefused      the store does not take these events, and never will
       ├─ StoreAway           the store does not answer; `was_sent` says whether it may have done it
       └─ JournalDamaged      one conversation cannot be read; the others can

Every message is for a person: what is wrong, where, what to do. No message carries a secret. Which HTTP
status or which error of A2A stands for an error is said where these are spoken (`mesh.net.http_status`).
"""

from typing import Any


class MeshError(Exception):
    """The root. ``str(error)`` is fit for a person and for a JSON error."""


class ConfigError(MeshError):
    """One or more problems of a config, each "file:line: key: what is wrong, what was expected"."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type, tuple[list[str]]]:
        return type(self), (self.problems,)


class RequestError(MeshError):
    """The client's fault."""


class BadRequest(RequestError):
    """The request cannot be understood."""


class NotFound(RequestError):
    """There is no such thing here."""


class Conflict(RequestError):
    """The thing is in a state that does not allow this."""


class TooLarge(RequestError):
    """Over a bound."""


class Unavailable(MeshError):
    """Not now: the same request may succeed after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (str(self), self.retry_after_s)


class TooManyRequests(Unavailable):
    """Not now, because too much of the same waits already."""


class NodeLost(Unavailable):
    """A node of the tree was lost again and again, for as long as anybody waits for it."""


class LlmError(MeshError):
    """A model call failed and trying again would not help, or was tried often enough.

    The message names the provider, the model and the cause; never the key. ``was_free``: the provider did
    not take the request, and charges nothing for it. ``is_final`` False: another request may succeed, but
    this one may be charged. ``status``: that of the provider's HTTP response, if there was one.
    """

    def __init__(
        self, message: str, *, was_free: bool = False, is_final: bool = True, status: int | None = None
    ) -> None:
        super().__init__(message)
        self.was_free = was_free
        self.is_final = is_final
        self.status = status


class ValidatorError(MeshError):
    """A validator gave no verdict about an answer: it failed, took too long, or answered nonsense."""


class ToolSessionError(MeshError):
    """A tool call ended without an outcome: the server died, hung, or broke the protocol.

    ``may_have_run`` is False only when the request certainly never reached the server.
    """

    def __init__(self, message: str, may_have_run: bool) -> None:
        super().__init__(message)
        self.may_have_run = may_have_run

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return type(self), (str(self), self.may_have_run)


class CallRevoked(ToolSessionError):
    """A claimed call may not run any more: another pass has taken its step over, or the session that it was
    claimed for has ended. It did not run."""

    def __init__(self, message: str) -> None:
        super().__init__(message, may_have_run=False)

    def __reduce__(self) -> tuple[type, tuple[str]]:  # type: ignore[override]
        return type(self), (str(self),)


class NotHeld(Unavailable):
    """The keeper host that was asked does not have the shard, or not any more: another one may have it. What
    was asked may have been done."""


class JournalError(MeshError):
    """The journal could not do what was asked."""


class StaleEpoch(JournalError):
    """The shard was opened by another writer since."""


class WrongSequence(JournalError):
    """The append does not follow the last event of the journal, or nobody knows whether it is in it."""


class JournalRefused(JournalError):
    """The store does not take these events, and would not take them the next time."""


class StoreAway(JournalError):
    """The store did not answer in time. ``was_sent``: it may have done, or do, what was asked."""

    def __init__(self, message: str, *, was_sent: bool) -> None:
        super().__init__(message)
        self.was_sent = was_sent

    def __reduce__(self) -> tuple[Any, ...]:
        return _store_away, (str(self), self.was_sent)


def _store_away(message: str, was_sent: bool) -> StoreAway:
    return StoreAway(message, was_sent=was_sent)


class JournalDamaged(JournalError):
    """A journal holds something that is not its next event. It is left as it is."""

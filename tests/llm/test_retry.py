"""What is tried again, after how long, and what people get to read."""

import time
from collections.abc import AsyncGenerator
from email.utils import formatdate

import pytest

from mesh.core.errors import LlmError
from mesh.core.events import Event, LlmCall, TextDelta, Trace
from mesh.llm.retry import ATTEMPTS, MOST_RETRY_AFTER_S, Failure, retried, retry_after, status_failure


@pytest.mark.parametrize(
    ("status", "transient"),
    [
        (400, False),
        (401, False),
        (404, False),
        (408, True),
        (409, True),
        (429, True),
        (500, True),
        (529, True),
    ],
)
def test_which_statuses_are_tried_again(status: int, transient: bool) -> None:
    assert status_failure(status, "x", {}).transient is transient


def test_a_server_may_forbid_another_try() -> None:
    assert not status_failure(500, "x", {"x-should-retry": "false"}).transient


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("-4", 0.0),
        ("nan", 0.0),
        ("inf", MOST_RETRY_AFTER_S),
        ("99999", MOST_RETRY_AFTER_S),
    ],
)
def test_retry_after_in_seconds_is_bounded(value: str, seconds: float) -> None:
    assert retry_after({"retry-after": value}) == seconds


def test_retry_after_may_be_a_date() -> None:
    seconds = retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)})
    assert seconds is not None and 28 <= seconds <= 30


@pytest.mark.parametrize("value", ["", "soon", "Wed, 99 Foo 2026 25:00:00 GMT"])
def test_a_retry_after_that_means_nothing_is_ignored(value: str) -> None:
    assert retry_after({"retry-after": value}) is None


class Attempts:
    """Attempts that fail as told, then answer."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.made = 0

    async def __call__(self) -> AsyncGenerator[Event, None]:
        self.made += 1
        yield TextDelta(text=f"try {self.made}")
        if self.failures:
            raise self.failures.pop(0)
        yield LlmCall(model="m")


def understood(error: Exception) -> Failure | None:
    return error if isinstance(error, Failure) else None


async def run(attempts: Attempts, secret: str = "") -> list[Event]:
    return [event async for event in retried(attempts.__call__, understood, "test model m", secret)]


async def test_a_failure_that_passes_is_forgotten() -> None:
    events = await run(Attempts(*[Failure("busy", transient=True) for _ in range(ATTEMPTS - 1)]))
    assert sum(isinstance(event, LlmCall) for event in events) == 1
    again = [event.message for event in events if isinstance(event, Trace)]
    assert len(again) == ATTEMPTS - 1
    assert again[0].startswith(f"test model m: busy; attempt 2 of {ATTEMPTS} follows")


async def test_attempts_are_bounded() -> None:
    attempts = Attempts(*[Failure("busy", transient=True) for _ in range(100)])
    with pytest.raises(LlmError, match=rf"test model m: busy \(tried {ATTEMPTS} times\)"):
        await run(attempts)
    assert attempts.made == ATTEMPTS


async def test_what_is_no_failure_of_the_provider_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        await run(Attempts(ZeroDivisionError()))


@pytest.mark.parametrize("shown", ["hush-hush", "sk-abc***def", "AIzaSyD-1234567", "Bearer abcdef"])
async def test_keys_are_taken_out_of_messages(shown: str) -> None:
    with pytest.raises(LlmError) as caught:
        await run(
            Attempts(Failure(f"bad key {shown} given", transient=False, status=401)), secret="hush-hush"
        )
    assert str(caught.value) == "test model m: HTTP 401: bad key [key removed] given"

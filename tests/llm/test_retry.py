"""What is tried again, after how long, and what people get to read."""

from collections.abc import AsyncGenerator

import pytest

from mesh.core.errors import LlmError
from mesh.core.events import Event, LlmCall, TextDelta, Trace
from mesh.llm.retry import ATTEMPTS, MOST_RETRY_AFTER_S, Failure, retried, status_failure


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


def test_a_server_that_asks_for_more_than_a_minute_is_asked_again_after_one() -> None:
    assert status_failure(503, "x", {"retry-after": "99999"}).retry_after_s == MOST_RETRY_AFTER_S


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

"""Delays between tries: they grow, they are bounded, no two clients keep step, and a server is obeyed."""

import time
from email.utils import formatdate
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.net.backoff import Backoff, Patience, jittered, retry_after

POLICIES = st.builds(
    Backoff,
    first_s=st.floats(0.001, 10),
    longest_s=st.floats(0.001, 1000),
    factor=st.floats(1, 4),
    jitter=st.floats(0, 1),
)


def test_delays_double_up_to_the_bound() -> None:
    backoff = Backoff(first_s=0.5, longest_s=3.0, jitter=0)
    assert list(islice(backoff.delays(), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(backoff=POLICIES, failures=st.integers(0, 10**9))
def test_a_delay_is_never_negative_nor_over_its_bound(backoff: Backoff, failures: int) -> None:
    longest = backoff.longest_delay(failures)
    assert 0 <= longest <= backoff.longest_s
    assert longest * (1 - backoff.jitter) * 0.999 <= backoff.delay(failures) <= longest


@given(backoff=POLICIES, failures=st.integers(1, 10**6))
def test_no_delay_is_shorter_than_the_one_before_jitter_aside(backoff: Backoff, failures: int) -> None:
    assert backoff.longest_delay(failures) <= backoff.longest_delay(failures + 1)


def test_two_clients_that_failed_together_come_back_apart() -> None:
    assert len({jittered(1.0) for _ in range(20)}) > 15


@pytest.mark.parametrize("failures", [1, 5])
def test_what_a_server_asks_for_is_waited_and_little_more(failures: int) -> None:
    backoff = Backoff(first_s=0.5, longest_s=8.0)
    assert all(7.0 <= backoff.delay(failures, retry_after_s=7.0) <= 7.7 for _ in range(50))
    assert backoff.delay(failures, retry_after_s=0.0) == 0.0


def test_patience_ends_after_its_time() -> None:
    assert not Patience(Backoff(0.1, 1.0), for_s=60).is_over
    assert Patience(Backoff(0.1, 1.0), for_s=0).is_over
    assert not Patience(Backoff(0.1, 1.0)).is_over


def test_patience_waits_longer_after_each_failure() -> None:
    patience = Patience(Backoff(0.1, 1.0, jitter=0))
    assert [patience.next_delay() for _ in range(3)] == [0.1, 0.2, 0.4]
    assert patience.next_delay(retry_after_s=0.0) == 0.0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("-4", 0.0), ("nan", 0.0), ("inf", 60.0), ("99999", 60.0)],
)
def test_retry_after_in_seconds_is_bounded(value: str, seconds: float) -> None:
    assert retry_after({"retry-after": value}, 60) == seconds


def test_retry_after_may_be_a_date() -> None:
    seconds = retry_after({"retry-after": formatdate(time.time() + 30, usegmt=True)}, 60)
    assert seconds is not None and 28 <= seconds <= 30


@pytest.mark.parametrize("value", ["", "soon", "Wed, 99 Foo 2026 25:00:00 GMT"])
def test_a_retry_after_that_means_nothing_is_ignored(value: str) -> None:
    assert retry_after({"retry-after": value}, 60) is None

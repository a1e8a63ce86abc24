"""Which keys are valid while the mesh runs."""

import logging
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mesh.access import keys
from mesh.access.keyring import CHECK_INTERVAL_S, Keyring
from mesh.access.principal import Principal


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def later(self) -> None:
        self.now += CHECK_INTERVAL_S


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.yaml"


def test_a_created_or_revoked_key_counts_from_the_next_check_on(file: Path) -> None:
    clock, ann = Clock(), keys.add(file, "ann")
    ring = Keyring(file, clock)
    assert ring.principal(ann) == Principal("ann")
    bob = keys.add(file, "bob")
    assert ring.principal(bob) is None, "the file is not looked at for each request"
    clock.later()
    assert ring.principal(bob) == Principal("bob")
    keys.revoke(file, "ann")
    clock.later()
    assert (ring.principal(ann), ring.principal(bob)) == (None, Principal("bob"))
    keys.revoke(file, "bob")
    clock.later()
    assert ring.principal(bob) is None, "no key at all is no broken file"


@pytest.mark.parametrize("wrong", ["", "mk_", "mk_" + "A" * 43, "ann", "é\ud800"])
def test_nothing_else_is_a_key(file: Path, wrong: str) -> None:
    key = keys.add(file, "ann")
    ring = Keyring(file)
    assert [ring.principal(each) for each in (wrong, key[:-1], key + "A", keys.hashed(key))] == [None] * 4


@pytest.mark.parametrize("content", ["", "keys: [", "keys: 7"])
def test_a_file_that_breaks_keeps_the_keys_from_before_and_the_log_says_so_once(
    file: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock, key = Clock(), keys.add(file, "ann")
    ring = Keyring(file, clock)
    whole = file.read_text()
    caplog.clear()
    file.write_text(content)
    for _ in range(3):
        clock.later()
        assert ring.principal(key) == Principal("ann")
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "stay valid" in record.message
    file.unlink()
    clock.later()
    assert ring.principal(key) == Principal("ann")
    file.write_text(whole.replace("ann", "eve"))
    clock.later()
    assert ring.principal(key) == Principal("eve")
    assert key not in caplog.text


@pytest.mark.parametrize("content", [None, "", "keys: []\n", "keys: ["])
def test_without_a_key_at_the_start_everybody_is_refused_until_there_is_one(
    file: Path, content: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if content is not None:
        file.write_text(content)
    clock = Clock()
    ring = Keyring(file, clock)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR and "every request is refused" in record.message
    file.unlink(missing_ok=True)
    key = keys.add(file, "ann")
    clock.later()
    assert ring.principal(key) == Principal("ann")


def test_a_change_that_could_not_be_read_is_read_at_the_next_check(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, ann = Clock(), keys.add(file, "ann")
    keys.add(file, "bob")
    ring = Keyring(file, clock)
    keys.revoke(file, "ann")
    caplog.clear()
    with no_more_files():
        for _ in range(3):
            clock.later()
            assert ring.principal(ann) == Principal("ann")
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "once is enough"
    clock.later()
    assert ring.principal(ann) is None


def test_what_is_no_file_is_not_waited_for(file: Path) -> None:
    clock, ann = Clock(), keys.add(file, "ann")
    ring = Keyring(file, clock)
    file.unlink()
    os.mkfifo(file)
    clock.later()
    found: list[Principal | None] = []
    asking = threading.Thread(target=lambda: found.append(ring.principal(ann)), daemon=True)
    asking.start()
    asking.join(5)
    assert found == [Principal("ann")], "nobody writes into the pipe, and the gateway stands still"


@contextmanager
def no_more_files() -> Iterator[None]:
    """As many files are open as this process may have, as when it has very many clients."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

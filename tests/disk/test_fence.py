"""The fence of a shard by itself; what it means for journals is in `tests.journal.test_fence`."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mesh.core.errors import JournalError, StaleEpoch
from mesh.disk.fence import Fences


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Fences, Fences]]:
    """The same folder as two processes see it."""
    fences = Fences(tmp_path), Fences(tmp_path)
    yield fences
    for each in fences:
        each.close()


def test_each_opening_gets_an_epoch_greater_than_all_before(pair: tuple[Fences, Fences]) -> None:
    one, two = pair
    assert [one.raise_epoch(0), two.raise_epoch(0), one.raise_epoch(0)] == [1, 2, 3]


def test_shards_have_epochs_of_their_own(pair: tuple[Fences, Fences]) -> None:
    one, two = pair
    assert [one.raise_epoch(0), two.raise_epoch(1)] == [1, 1]


def test_a_writer_of_an_older_epoch_is_refused(pair: tuple[Fences, Fences]) -> None:
    one, two = pair
    epoch = one.raise_epoch(0)
    with one.writing(0, epoch):
        pass
    two.raise_epoch(0)
    with pytest.raises(StaleEpoch, match="shard 0 is at epoch 2; this writer has 1"), one.writing(0, epoch):
        pytest.fail("it must not get here")


def test_an_epoch_from_elsewhere_is_taken_unless_a_greater_one_is_there(pair: tuple[Fences, Fences]) -> None:
    one, two = pair
    one.set_epoch(0, 7)
    one.set_epoch(0, 7)
    with pytest.raises(StaleEpoch):
        two.set_epoch(0, 6)
    with two.writing(0, 7):
        pass


def test_a_successor_waits_for_the_writes_under_way(pair: tuple[Fences, Fences]) -> None:
    one, two = pair
    epoch, opened = one.raise_epoch(0), []
    successor = threading.Thread(target=lambda: opened.append(two.raise_epoch(0)))
    with one.writing(0, epoch):
        successor.start()
        successor.join(0.1)
        assert not opened
    successor.join(5)
    assert opened == [2]


@pytest.mark.parametrize("left", [b"", b"\0" * 21], ids=["nothing", "zeros"])
def test_what_a_crash_left_before_the_first_epoch_counts_as_none(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "shard_0.epoch").write_bytes(left)
    fences = Fences(tmp_path)
    assert fences.raise_epoch(0) == 1
    fences.close()


def test_a_damaged_epoch_is_reported_and_left_as_it_is(tmp_path: Path) -> None:
    path, fences = tmp_path / "shard_0.epoch", Fences(tmp_path)
    path.write_bytes(b"many\n")
    with pytest.raises(JournalError, match=r"shard_0\.epoch is damaged"):
        fences.raise_epoch(0)
    assert path.read_bytes() == b"many\n"
    fences.close()

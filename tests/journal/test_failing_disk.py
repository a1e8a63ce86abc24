"""What the store in files makes of a disk that fails or is full: nothing acknowledged is lost, and nothing
that failed comes back before something that was acknowledged."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.errors import JournalDamaged, JournalError, WrongSequence
from mesh.core.events import AnyEvent, UserMessage
from mesh.core.ids import new_id
from mesh.journal.files import FileJournal
from mesh.journal.port import Append
from tests.journal.disk import FailingDisk, use
from tests.worlds.long import as_often_as

IDS = [new_id() for _ in range(3)]


class Write(NamedTuple):
    """Appends that are made at once: to which conversation, and how long a text is in each of its events."""

    appends: list[tuple[int, list[int]]]
    failing: set[int]


class Kill(NamedTuple):
    """Another process takes over."""


class PowerCut(NamedTuple):
    """Another process takes over, on what the disk kept."""

    written: float


writes = st.builds(
    Write,
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 300), min_size=1, max_size=3)), max_size=5),
    st.sets(st.integers(1, 12), max_size=4),
)
histories = st.lists(
    st.one_of(writes, writes, st.builds(Kill), st.builds(PowerCut, st.sampled_from([0, 0.5, 1]))), max_size=12
)


class World:
    """A store on a failing disk, and what was acknowledged by it."""

    def __init__(self, folder: Path, disk: FailingDisk) -> None:
        self.folder, self.disk = folder, disk
        self.journal = FileJournal(folder)
        self.epoch = 0
        self.acknowledged: dict[str, list[AnyEvent]] = {i: [] for i in IDS}
        self.attempted: dict[str, list[AnyEvent]] = {i: [] for i in IDS}
        self.numbers = 0

    async def do(self, what: Write | Kill | PowerCut) -> None:
        match what:
            case Write(appends, failing):
                await self.write(appends, failing)
                await self.nothing_failed_is_there()
            case Kill():
                await self.take_over()
            case PowerCut(written):
                self.disk.power_cut(written)
                await self.take_over()

    async def write(self, appends: Iterable[tuple[int, Sequence[int]]], failing: set[int]) -> None:
        ends = {i: len(events) for i, events in self.acknowledged.items()}
        made: list[Append] = []
        for number, lengths in appends:
            i = IDS[number]
            made.append(
                Append(i, ends[i], [self.event(ends[i] + n, size) for n, size in enumerate(lengths, 1)])
            )
            self.attempted[i] += made[-1].events
            ends[i] += len(lengths)
        self.disk.fail(failing)
        outcomes = await asyncio.gather(
            *(self.journal.append(0, self.epoch, append) for append in made), return_exceptions=True
        )
        self.disk.fail(())
        for append, outcome in zip(made, outcomes, strict=True):
            if isinstance(outcome, int):
                assert append.after == len(self.acknowledged[append.conversation_id])
                self.acknowledged[append.conversation_id] += append.events
            else:
                assert isinstance(outcome, JournalError), outcome
                assert not isinstance(outcome, JournalDamaged | WrongSequence), outcome

    async def nothing_failed_is_there(self) -> None:
        for i, events in self.acknowledged.items():
            assert await self.journal.read(i) == events

    async def take_over(self) -> None:
        await self.journal.close()
        self.journal = FileJournal(self.folder)
        self.epoch = await self.journal.open(0)
        for i, events in self.acknowledged.items():
            found = await self.journal.read(i)
            assert found[: len(events)] == events
            assert all(event in self.attempted[i] for event in found)
            self.acknowledged[i] = found  # who reads it is told that it happened

    def event(self, seq: int, size: int) -> AnyEvent:
        self.numbers += 1
        return UserMessage(seq=seq, turn=self.numbers, text="x" * size)


@settings(max_examples=as_often_as(300))
@given(histories)
def test_what_was_acknowledged_outlives_every_fault_and_nothing_that_failed_precedes_it(
    history: list[Write | Kill | PowerCut],
) -> None:
    async def play(folder: Path, disk: FailingDisk) -> None:
        world = World(folder, disk)
        try:
            await world.take_over()
            for what in history:
                await world.do(what)
            before = {i: len(events) for i, events in world.acknowledged.items()}
            await world.do(Write([(0, [1]), (1, [1]), (2, [1])], set()))
            after = {i: len(events) for i, events in world.acknowledged.items()}
            assert after == {
                i: length + 1 for i, length in before.items()
            }  # the disk works: so does the store
            await world.do(PowerCut(0))
        finally:
            await world.journal.close()

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as monkeypatch:
        disk = FailingDisk(Path(name))
        use(monkeypatch, disk)
        asyncio.run(play(Path(name), disk))


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """With one event in each conversation."""
    disk = FailingDisk(tmp_path)
    use(monkeypatch, disk)
    world = World(tmp_path, disk)
    await world.take_over()
    await world.write([(0, [10]), (1, [10])], set())
    yield world
    await world.journal.close()


async def refused(world: World, number: int, failing: set[int]) -> str:
    """Why an append is not taken."""
    seq = len(world.acknowledged[IDS[number]])
    world.disk.fail(failing)
    with pytest.raises(JournalError) as caught:
        await world.journal.append(0, world.epoch, Append(IDS[number], seq, [world.event(seq + 1, 500)]))
    world.disk.fail(())
    return str(caught.value)


SYNC = 2  # the calls of an append to a journal that exists: a write, and a sync; then those that cut it back
ALL = set(range(1, 100))


async def test_after_a_sync_that_failed_the_journal_goes_on_from_the_last_event_that_is_durable(
    world: World,
) -> None:
    path = world.folder / f"conversation_{IDS[0]}.jsonl"
    before = path.read_bytes()
    assert "cannot be written: Input/output error" in await refused(world, 0, {SYNC})
    assert path.read_bytes() == before
    await world.write([(0, [10])], set())
    world.disk.power_cut(0)
    await world.take_over()
    assert len(world.acknowledged[IDS[0]]) == 2


async def test_a_journal_that_cannot_be_cut_back_takes_nothing_and_says_so_until_the_disk_works_again(
    world: World,
) -> None:
    path = world.folder / f"conversation_{IDS[0]}.jsonl"
    durable = path.read_bytes()
    await refused(world, 0, ALL - {1})
    assert path.read_bytes() != durable  # what failed is still there: nobody may build on it
    await world.nothing_failed_is_there()
    for _ in range(2):
        said = await refused(world, 0, ALL)
        assert f"conversation {IDS[0]}: a write to its journal failed" in said
        assert "Input/output error" in said and str(world.folder) in said
    await world.write([(1, [10])], set())
    assert len(world.acknowledged[IDS[1]]) == 2  # the others go on
    await world.write([(0, [10])], set())
    world.disk.power_cut(0)
    await world.take_over()
    assert len(world.acknowledged[IDS[0]]) == 2


async def test_a_successor_does_not_take_what_failed_for_what_happened(world: World) -> None:
    await refused(world, 0, ALL - {1})
    await world.take_over()
    assert len(world.acknowledged[IDS[0]]) == 1


async def test_what_another_writer_acknowledged_is_never_cut_off_with_what_failed_here(world: World) -> None:
    await refused(world, 0, ALL - {1})
    other = FileJournal(world.folder)
    epoch, i = await other.open(0), IDS[0]
    await other.append(0, epoch, Append(i, 1, [world.event(2, 700), world.event(3, 700)]))
    seen = await other.read(i)
    world.epoch = await world.journal.open(0)
    await world.journal.append(0, world.epoch, Append(i, 3, [world.event(4, 10)]))
    assert (await world.journal.read(i))[:3] == seen
    await other.close()


async def test_a_new_journal_whose_name_is_not_durable_is_not_acknowledged_until_it_is(world: World) -> None:
    folder_sync = 2  # after the file was made
    assert "Input/output error" in await refused(world, 2, {folder_sync})
    await world.write([(2, [10])], set())
    world.disk.power_cut(0)
    await world.take_over()
    assert len(world.acknowledged[IDS[2]]) == 1


async def test_of_appends_that_are_written_together_none_is_taken_if_the_disk_takes_only_some(
    world: World,
) -> None:
    await world.write([(1, [10]), (0, [10]), (0, [2000])], {2})
    assert world.disk.failures == 1
    assert [len(world.acknowledged[i]) for i in IDS] == [1, 2, 0]
    await world.nothing_failed_is_there()


FULL = """
import asyncio, resource, sys
from pathlib import Path
from mesh.core.errors import JournalError
from mesh.core.events import UserMessage
from mesh.journal.files import FileJournal
from mesh.journal.port import Append

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

async def main():
    journal, i, seq, refused = FileJournal(Path(sys.argv[1])), sys.argv[2], 0, 0
    epoch = await journal.open(0)
    limit(5_000)
    while refused < 3:
        event = UserMessage(seq=seq + 1, turn=1, text="x" * (900 - 290 * refused))
        try:
            await journal.append(0, epoch, Append(i, seq, [event]))
            seq += 1
        except JournalError as problem:
            print(problem)
            refused += 1
            assert len(await journal.read(i)) == seq
    limit(resource.RLIM_INFINITY)
    await journal.append(0, epoch, Append(i, seq, [UserMessage(seq=seq + 1, turn=1, text="last")]))
    print(seq + 1)
    await journal.close()

asyncio.run(main())
"""


async def test_a_disk_that_takes_no_more_refuses_with_its_reason_and_the_journal_stays_whole(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path), IDS[0]]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60, check=True)
    *refusals, acknowledged = done.stdout.decode().splitlines()
    assert refusals == [f"conversation {IDS[0]}: the journal cannot be written: File too large"] * 3
    journal = FileJournal(tmp_path)
    events = await journal.read(IDS[0])
    await journal.close()
    assert len(events) == int(acknowledged) > 5
    assert isinstance(events[-1], UserMessage) and events[-1].text == "last"

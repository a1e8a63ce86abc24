"""What the store in files does about torn ends, damage and other processes."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.errors import JournalDamaged, JournalError, StaleEpoch
from mesh.core.events import UserMessage, encode
from mesh.core.ids import new_id
from mesh.journal.files import FileJournal
from mesh.journal.on_disk import parse
from mesh.journal.port import Append
from tests.journal.test_conformance import created, turn
from tests.worlds.full_disk import files_of_at_most, names


async def filled(folder: Path) -> tuple[str, Path]:
    journal, i = FileJournal(folder), new_id()
    epoch = await journal.open(0)
    await journal.append(0, epoch, Append(i, 0, [created(i), *turn(2)]))
    await journal.close()
    return i, folder / f"conversation_{i}.jsonl"


async def test_a_torn_last_line_is_cut_off_at_any_byte(tmp_path: Path) -> None:
    i, path = await filled(tmp_path)
    whole = path.read_bytes()
    start_of_last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(start_of_last, len(whole)):
        path.write_bytes(whole[:end])
        journal = FileJournal(tmp_path)
        epoch = await journal.open(0)
        assert len(await journal.read(i)) == 2
        await journal.append(0, epoch, Append(i, 2, turn(2)[1:]))
        await journal.close()
        assert path.read_bytes() == whole


async def test_damage_in_the_middle_names_the_line_and_spares_the_others(tmp_path: Path) -> None:
    i, path = await filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"type":"us\xff\n' + lines[2])
    other, _ = await filled(tmp_path)
    journal = FileJournal(tmp_path)
    with pytest.raises(JournalDamaged, match=r"jsonl, line 2: "):
        await journal.read(i)
    assert len(await journal.read(other)) == 3
    await journal.close()


NEWER = b'{"type":"from_the_future","seq":3,"what":"nobody knows yet"}\n'


@pytest.mark.parametrize(
    "last",
    [
        NEWER,
        b'{"type":"completed","seq":3,"turn":1,"resp\xff',
        b"\0" * 64,
        b"",
        b'{"type":"text_delta","text":"x"}',
    ],
    ids=["a newer version", "not text", "zeros", "nothing", "an event that is never journaled"],
)
async def test_a_last_line_that_ends_in_a_newline_is_damage_and_is_never_cut_off(
    tmp_path: Path, last: bytes
) -> None:
    i, path = await filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    damaged = b"".join(lines[:2]) + last.rstrip(b"\n") + b"\n"
    path.write_bytes(damaged)
    journal = FileJournal(tmp_path)
    epoch = await journal.open(0)
    with pytest.raises(JournalDamaged, match=rf"{path.name}, line 3: "):
        await journal.read(i)
    for after in (0, 2, 3):
        with pytest.raises(JournalDamaged, match=rf"{path.name}, line 3: "):
            await journal.append(0, epoch, Append(i, after, turn(after + 1)))
    await journal.close()
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("torn", [b"\0" * 5000, b'{"type":"us' + b"\0" * 100, b"\xff\r\r"])
async def test_whatever_follows_the_last_newline_was_torn_and_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    i, path = await filled(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    journal = FileJournal(tmp_path)
    epoch = await journal.open(0)
    assert len(await journal.read(i)) == 3
    assert path.read_bytes() == whole + torn  # reading changes nothing
    await journal.append(0, epoch, Append(i, 3, turn(4)))
    assert path.read_bytes() == whole + b"".join(encode(event) + b"\n" for event in turn(4))
    assert len(await journal.read(i)) == 5
    await journal.close()


async def test_zeros_in_the_middle_are_damage_and_stay(tmp_path: Path) -> None:
    i, path = await filled(tmp_path)
    content = bytearray(path.read_bytes())
    content[100:-10] = bytes(len(content) - 110)
    path.write_bytes(content)
    journal = FileJournal(tmp_path)
    with pytest.raises(JournalDamaged, match=r"jsonl, line 1: "):
        await journal.read(i)
    await journal.close()
    assert path.read_bytes() == content


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.data())
def test_a_journal_that_was_torn_anywhere_holds_the_events_before_that(
    said: list[str], data: st.DataObject
) -> None:
    events = [
        UserMessage(seq=seq, turn=seq, text=text + "\n\r\x85\u2028") for seq, text in enumerate(said, 1)
    ]
    content = b"".join(encode(event) + b"\n" for event in events)
    cut = data.draw(st.integers(0, len(content)))
    found, size = parse(content[:cut] + bytes(data.draw(st.integers(0, 9))), "name")
    assert found == events[: content.count(b"\n", 0, cut)]
    assert size == content.rfind(b"\n", 0, cut) + 1


async def test_a_missing_line_is_damage(tmp_path: Path) -> None:
    i, path = await filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    journal = FileJournal(tmp_path)
    with pytest.raises(JournalDamaged, match="missing or doubled"):
        await journal.read(i)
    await journal.close()


async def test_a_journal_that_is_shorter_than_what_was_acknowledged_is_damage(tmp_path: Path) -> None:
    journal, i = FileJournal(tmp_path), new_id()
    epoch = await journal.open(0)
    await journal.append(0, epoch, Append(i, 0, [created(i), *turn(2)]))
    path = tmp_path / f"conversation_{i}.jsonl"
    shorter = path.read_bytes().splitlines(keepends=True)[0]
    path.write_bytes(shorter)
    for work in (journal.read(i), journal.append(0, epoch, Append(i, 3, turn(4)))):
        with pytest.raises(JournalDamaged, match=rf"{path.name}: is damaged: \d+ of \d+ bytes"):
            await work
    assert path.read_bytes() == shorter
    await journal.close()


async def test_a_journal_that_cannot_be_read_is_an_error_in_words(tmp_path: Path) -> None:
    journal, i = FileJournal(tmp_path), new_id()
    epoch = await journal.open(0)
    (tmp_path / f"conversation_{i}.jsonl").mkdir()
    with pytest.raises(JournalError, match=f"conversation {i}: its journal cannot be read: Is a directory"):
        await journal.read(i)
    other = new_id()
    await journal.append(0, epoch, Append(other, 0, [created(other)]))
    await journal.close()


async def test_an_event_that_cannot_be_written_as_text_is_refused_and_the_others_are_written(
    tmp_path: Path,
) -> None:
    journal, ids = FileJournal(tmp_path), [new_id(), new_id()]
    epoch = await journal.open(0)
    bad = Append(ids[0], 0, [UserMessage(seq=1, turn=1, text="\ud800")])
    good = Append(ids[1], 0, [created(ids[1])])
    async with asyncio.timeout(30):
        outcomes = await asyncio.gather(
            *(journal.append(0, epoch, append) for append in (bad, good)), return_exceptions=True
        )
    assert isinstance(outcomes[0], UnicodeEncodeError) and isinstance(outcomes[1], int)
    assert set(await journal.sizes()) == {ids[1]}
    await journal.close()


async def test_another_process_that_opens_the_shard_fences_this_one(tmp_path: Path) -> None:
    journal, i = FileJournal(tmp_path), new_id()
    epoch = await journal.open(0)
    await journal.append(0, epoch, Append(i, 0, [created(i)]))
    code = (
        "import asyncio, sys; from pathlib import Path; from mesh.journal.files import FileJournal\n"
        "asyncio.run(FileJournal(Path(sys.argv[1])).open(0))"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code, str(tmp_path)], check=True, timeout=30
    )
    assert done.returncode == 0
    with pytest.raises(StaleEpoch):
        await journal.append(0, epoch, Append(i, 1, turn(2)))
    await journal.close()


async def test_a_journal_is_one_json_object_a_line_and_grows_linearly(tmp_path: Path) -> None:
    journal, i = FileJournal(tmp_path), new_id()
    epoch = await journal.open(0)
    sizes = [await journal.append(0, epoch, Append(i, 0, [created(i)]))]
    sizes += [await journal.append(0, epoch, Append(i, seq - 1, turn(seq))) for seq in range(2, 42, 2)]
    steps = {b - a for a, b in itertools.pairwise(sizes)}
    assert max(steps) - min(steps) <= 4  # the digits of the sequence numbers
    await journal.close()


async def test_a_blob_that_cannot_be_replaced_stays_whole_and_keeps_no_other_from_it(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    await journal.put_blobs({"long.json": b"before"})
    with files_of_at_most(100), pytest.raises(OSError, match="File too large"):
        await journal.put_blobs({"long.json": b"x" * 200, "short.json": b"after"})
    assert [await journal.get_blob(name) for name in ("long.json", "short.json")] == [b"before", b"after"]
    assert names(tmp_path) == {"long.json", "short.json"}
    await journal.close()

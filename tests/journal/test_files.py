"""What the store in files does about torn ends, damage and other processes."""

import asyncio
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from mesh.errors import JournalDamaged, StaleEpoch
from mesh.ids import new_id
from mesh.journal.files import FileJournal
from mesh.journal.port import Append
from tests.journal.test_conformance import created, turn


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
    with pytest.raises(JournalDamaged, match=r"jsonl:2: "):
        await journal.read(i)
    assert len(await journal.read(other)) == 3
    await journal.close()


async def test_a_missing_line_is_damage(tmp_path: Path) -> None:
    i, path = await filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    journal = FileJournal(tmp_path)
    with pytest.raises(JournalDamaged, match="missing or doubled"):
        await journal.read(i)
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

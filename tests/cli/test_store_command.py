"""`mesh store copy`: from files into a database, and back."""

import asyncio
import subprocess
import sys
from pathlib import Path

from mesh.core.events import AnyEvent
from mesh.core.ids import new_id
from mesh.disk.holder import Holder, held
from mesh.journal.port import Append
from mesh.store.files import FileStore
from tests.worlds.stores import created, entry_after, turn


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("mesh")), "store", "copy", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def config_in(folder: Path) -> Path:
    path = folder / "agent.yaml"
    path.write_text("name: agent\nllm: {model: offline}\n")
    return path


async def written(folder: Path) -> dict[str, list[AnyEvent]]:
    """Two conversations in a folder."""
    store = FileStore(folder, "agent")
    await store.versions.keep("d1", "name: agent", {})
    epoch, ids = await store.journal.open(0), [new_id(), new_id()]
    events = {id: [created(id, digest="d1"), *turn(2)] for id in ids}
    for id, lines in events.items():
        await store.journal.append(0, epoch, Append(id, 0, lines, entry_after(*lines)))
    await store.close()
    return events


async def read(folder: Path, id: str) -> list[AnyEvent]:
    store = FileStore(folder, "agent")
    try:
        return await store.journal.read(id)
    finally:
        await store.close()


def test_conversations_go_from_files_into_a_database_and_back(tmp_path: Path, database_url: str) -> None:
    config, there, back = config_in(tmp_path), tmp_path / "data", tmp_path / "back"
    events = asyncio.run(written(there))
    to_database = run(config, "--from", there, "--to", database_url)
    assert to_database.returncode == 0, to_database.stderr
    assert "2 conversations are in both stores, 2 of them are new there" in to_database.stdout
    again = run(config, "--from", there, "--to", database_url)
    assert "2 conversations are in both stores, 0 of them are new there" in again.stdout
    to_files = run(config, "--from", database_url, "--to", back)
    assert to_files.returncode == 0, to_files.stderr
    for id, lines in events.items():
        assert asyncio.run(read(back, id)) == lines
    assert (back / "mesh_secret").read_text() == (there / "mesh_secret").read_text()


def test_what_cannot_be_copied_is_told_in_a_line(tmp_path: Path, database_url: str) -> None:
    config, data = config_in(tmp_path), tmp_path / "data"
    nothing = run(config, "--from", tmp_path / "typo", "--to", database_url)
    assert nothing.returncode == 1
    assert nothing.stderr.strip() == f"mesh: --from: no mesh has kept conversations in {tmp_path / 'typo'}"
    assert not (tmp_path / "typo").exists()
    asyncio.run(written(data))
    with held(data, Holder("mesh up")):
        in_use = run(config, "--from", data, "--to", database_url)
    assert in_use.returncode == 1 and "mesh up" in in_use.stderr and "Traceback" not in in_use.stderr
    gone = run(config, "--from", data, "--to", "postgres://nobody@127.0.0.1:1/nothing")
    assert gone.returncode == 1 and "Traceback" not in gone.stderr and len(gone.stderr.splitlines()) == 1

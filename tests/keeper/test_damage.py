"""A conversation whose journal is damaged says so, stays as it is, and leaves the others alone."""

from pathlib import Path

import pytest

from mesh.journal.files import FileJournal
from mesh.keeper.requests import Export, Show
from mesh.net.backoff import Backoff
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says

ADD = ("add", {"n": 1})
NEWER = b'{"type":"from_the_future","seq":6,"turn":1}\n'


async def test_it_answers_every_request_with_the_file_and_line_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = FileJournal(tmp_path)
    model = ScriptedLlm(calls(ADD), calls(ADD), says("Added."))
    async with WorldMesh(model, journal) as mesh:
        (damaged, uuid), (_, other) = [
            (body["conversation"]["id"], body["result"]["approval"]["uuid"])
            for body in [(await mesh.create("go"))[1] for _ in range(2)]
        ]
        path = tmp_path / f"conversation_{damaged}.jsonl"
        content = path.read_bytes() + NEWER
        path.write_bytes(content)
        await mesh.crash()
        where = (
            f"{path.name}, line {content.count(NEWER[-1:])}: is damaged, or was written by a newer version"
        )
        (told,) = [said for said in caplog.messages if "event=journal_damaged" in said]
        assert damaged in told and where in told
        for status, body in (
            await mesh.ask(Show(damaged)),
            await mesh.say(damaged, "and?"),
            await mesh.decide(uuid, "approve"),
            await mesh.ask(Export(damaged)),
        ):
            assert (status, where in body["error"]) == (500, True), body
        status, body = await mesh.decide(other, "approve")
        assert (status, body["result"]["response"]) == (200, "Added.")
        assert path.read_bytes() == content
    await journal.close()


async def test_a_keeper_starts_beside_a_journal_that_cannot_be_read_and_goes_on_with_it_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mesh.keeper.schedule._RETRIES", Backoff(0.05, 300, jitter=0))
    journal = FileJournal(tmp_path)
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Added.")), journal) as mesh:
        _, body = await mesh.create("go")
        uuid, conversation_id = body["result"]["approval"]["uuid"], body["conversation"]["id"]
        path = tmp_path / f"conversation_{conversation_id}.jsonl"
        aside = path.rename(tmp_path / "aside")
        path.mkdir()
        await mesh.crash()
        status, body = await mesh.ask(Show(conversation_id))
        assert (status, "cannot be read: Is a directory" in body["error"]) == (503, True)
        path.rmdir()
        aside.rename(path)
        status, body = await mesh.decide(uuid, "approve")
        assert (status, body["result"]["response"]) == (200, "Added.")
    await journal.close()


@pytest.mark.parametrize("damage", [b"\0" * 100, b'[{"entry":{"id":"\xff', b"", None], ids=repr)
async def test_an_index_that_is_damaged_or_cannot_be_read_is_made_again(
    tmp_path: Path, damage: bytes | None
) -> None:
    journal = FileJournal(tmp_path)
    async with WorldMesh(ScriptedLlm(says("Hi.")), journal) as mesh:
        _, body = await mesh.create("go")
    index = tmp_path / "index3_0.json"
    assert index.exists()
    if damage is None:
        index.unlink()
        index.mkdir()
    else:
        index.write_bytes(damage)
    async with WorldMesh(ScriptedLlm(says("Hi.")), journal) as mesh:
        assert [entry.id for entry in await mesh.keeper._shard.listing.page(9, "", "")] == [
            body["conversation"]["id"]
        ]
        if damage is None:
            index.rmdir()
    await journal.close()

"""A conversation that is deleted is gone, and nothing that waits or runs is deleted."""

import asyncio
import errno
import re
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from mesh.core.errors import JournalError
from mesh.core.events import AnyEvent, encode, now
from mesh.core.ids import new_id
from mesh.journal import on_disk
from mesh.journal.files import FileJournal
from mesh.journal.memory import MemoryJournal
from mesh.keeper.replies import FollowedAgents, JournalLines, Refusal
from mesh.keeper.requests import Delete, Export, FollowAgents, Import, SetWebhook, ShowAgent, Watch
from mesh.keeper.retention import RetentionDays
from mesh.push.webhook import Webhook
from tests.worlds.mesh import (
    SIMPLE,
    Caller,
    Complete,
    Create,
    Page,
    ScriptedLlm,
    SendMessage,
    Show,
    WorldMesh,
    calls,
    says,
)
from tests.worlds.stores import created

ADD = ("add", {"n": 1})
HOOK = Webhook("w", "http://127.0.0.1:9/hook", token="its secret")


async def listed(mesh: WorldMesh) -> list[str]:
    _, page = await mesh.ask(Page())
    return [each["id"] for each in page["conversations"]]


def left_of(id: str, folder: Path) -> list[str]:
    """The files of a conversation."""
    return [path.name for path in folder.iterdir() if id in path.name]


async def test_what_is_deleted_is_shown_once_more_and_then_gone_also_after_a_crash(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path)
    async with WorldMesh(ScriptedLlm(says("one"), says("two"), says("three")), journal) as mesh:
        ids = [(await mesh.create("Hi"))[1]["conversation"]["id"] for _ in range(2)]
        await mesh.keeper.close()  # what is derived is written
        assert len(left_of(ids[0], tmp_path)) == 2
        await mesh.crash()
        status, body = await mesh.ask(Delete(ids[0]))
        assert (status, body["conversation"]["messages"][-1]["content"]) == (200, "one")
        for _ in range(2):
            assert (await mesh.ask(Show(ids[0])))[0] == 404
            assert (await mesh.ask(Delete(ids[0])))[0] == 404
            assert (await mesh.say(ids[0], "still there?"))[0] == 404
            assert await listed(mesh) == ids[1:]
            assert left_of(ids[0], tmp_path) == []
            await mesh.crash()
        assert (await mesh.say(ids[1], "go on"))[1]["result"]["response"] == "three"
    await journal.close()


async def test_a_conversation_with_an_open_turn_is_not_deleted() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("done"))) as mesh:
        _, body = await mesh.create("Add one")
        id, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        status, refused = await mesh.ask(Delete(id))
        assert status == 409 and "cancel it first" in refused["error"]
        assert (await mesh.decide(uuid, "approve"))[1]["result"]["response"] == "done"
        assert (await mesh.ask(Delete(id)))[0] == 200
        assert (await mesh.decide(uuid, "approve"))[0] == 404


async def test_a_conversation_whose_turn_runs_is_not_deleted_and_nobody_waits_for_that() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("done"))) as mesh:
        _, body = await mesh.create("Add one")
        id, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        is_running, goes_on = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            is_running.set()
            await goes_on.wait()

        mesh.ledger.before_add = held
        deciding = asyncio.create_task(mesh.decide(uuid, "approve"))
        await is_running.wait()
        assert (await mesh.ask(Delete(id)))[0] == 409
        goes_on.set()
        assert (await deciding)[1]["result"]["response"] == "done"
        assert mesh.ledger.lines == ["add 1"]


async def test_of_a_message_and_a_deletion_at_once_one_is_refused() -> None:
    async with WorldMesh(ScriptedLlm(*(says("one") for _ in range(40)))) as mesh:
        for _ in range(10):
            _, body = await mesh.create()
            id = body["conversation"]["id"]
            said = SendMessage(id, Caller(session_id="s1"), "Hi")
            (saying, _), (deleting, _) = await asyncio.gather(mesh.ask(said), mesh.ask(Delete(id)))
            assert (saying, deleting) in ((200, 409), (404, 200))
            (deleting, _), (saying, _) = await asyncio.gather(
                mesh.ask(Delete(new := (await mesh.create())[1]["conversation"]["id"])),
                mesh.ask(SendMessage(new, Caller(session_id="s1"), "Hi")),
            )
            assert (saying, deleting) in ((200, 409), (404, 200), (409, 200))
            assert new not in await listed(mesh) or saying == 200


async def test_its_webhooks_are_gone_with_it() -> None:
    config = f"{SIMPLE}\ncard: {{push_hosts: [127.0.0.1]}}\n"
    async with WorldMesh(ScriptedLlm(says("one")), config=config) as mesh:
        _, body = await mesh.create("Hi")
        id = body["conversation"]["id"]
        assert (await mesh.ask(SetWebhook(id, HOOK)))[0] == 200
        assert (await mesh.ask(Delete(id)))[0] == 200
        assert await mesh.push_store.open(0, await mesh.journal.open(0), lambda _: True) == {}


async def test_a_webhook_that_is_set_while_its_conversation_is_deleted_does_not_stay() -> None:
    config = f"{SIMPLE}\ncard: {{push_hosts: [127.0.0.1]}}\n"
    async with WorldMesh(ScriptedLlm(*(says("one") for _ in range(10))), config=config) as mesh:
        for _ in range(10):
            id = (await mesh.create("Hi"))[1]["conversation"]["id"]
            setting, deleting = await asyncio.gather(mesh.ask(SetWebhook(id, HOOK)), mesh.ask(Delete(id)))
            assert deleting[0] == 200 and setting[0] in (200, 404, 409)
            assert mesh.keeper._push.of(id) == []


async def test_who_follows_agents_is_not_cut_off_by_a_deletion() -> None:
    async with WorldMesh(ScriptedLlm(says("one"), says("two"))) as mesh:
        first = await mesh.keeper.follow(FollowAgents())
        assert isinstance(first, FollowedAgents)
        id = (await mesh.create("Hi"))[1]["conversation"]["id"]
        await mesh.ask(Delete(id))
        other = (await mesh.create("Hi"))[1]["conversation"]["id"]
        news = await mesh.keeper.follow(FollowAgents(cursor=first.cursor))
        assert isinstance(news, FollowedAgents)
        assert {agent.conversation_id for agent in news.agents} == {other}


async def test_requests_that_a_deletion_overtakes_are_told_that_nothing_is_there() -> None:
    """Its journal is gone while they read it."""
    journal = SlowRead()
    async with WorldMesh(ScriptedLlm(says("one")), journal) as mesh:
        id = (await mesh.create("Hi"))[1]["conversation"]["id"]
        journal.goes_on = asyncio.Event()
        reads = [asyncio.create_task(mesh.ask(request)) for request in (Export(id), ShowAgent(id))]
        watch = asyncio.create_task(mesh.keeper.watch(Watch(id, watcher="w", after=0)))
        await asyncio.sleep(0.05)
        assert (await mesh.ask(Delete(id)))[0] == 200
        journal.goes_on.set()
        for read in reads:
            assert (await read)[0] == 404
        assert isinstance(await watch, Refusal)


class SlowRead(MemoryJournal):
    """Reads when it is told to go on, and not before."""

    goes_on: asyncio.Event | None = None

    async def read(self, conversation_id: str) -> list[AnyEvent]:
        if self.goes_on is not None:
            await self.goes_on.wait()
        return await super().read(conversation_id)


async def test_of_two_deletions_the_second_finds_nothing() -> None:
    async with WorldMesh(ScriptedLlm(says("one"))) as mesh:
        id = (await mesh.create("Hi"))[1]["conversation"]["id"]
        told = await asyncio.gather(*(mesh.ask(Delete(id)) for _ in range(3)))
        statuses = sorted(status for status, _ in told)
        assert statuses[0] == 200 and {*statuses[1:]} <= {404, 409}


async def test_a_conversation_may_be_created_anew_with_the_id_of_one_that_was_deleted() -> None:
    async with WorldMesh(ScriptedLlm(says("one"), says("two"))) as mesh:
        _, body = await mesh.create("Hi")
        id = body["conversation"]["id"]
        await mesh.ask(Complete(id))
        await mesh.ask(Delete(id))
        status, body = await mesh.ask(Create(id, Caller(session_id="s1"), "again"))
        assert (status, body["result"]["response"]) == (201, "two")
        assert len(body["conversation"]["messages"]) == 3


async def test_old_conversations_are_deleted_by_themselves_but_none_that_waits() -> None:
    days = RetentionDays(completed=7, idle=30)
    answers = [says("one"), says("two"), calls(ADD), says("three")]
    async with WorldMesh(ScriptedLlm(*answers), retention=days) as mesh:
        completed, idle, waiting = [(await mesh.create("Hi"))[1]["conversation"]["id"] for _ in range(3)]
        await mesh.ask(Complete(completed))
        retention = mesh.keeper._retention
        for day, left in ((6, {completed, idle, waiting}), (8, {idle, waiting}), (31, {waiting})):
            await retention.sweep(timedelta(days=day))
            assert set(await listed(mesh)) == left
        await retention.sweep(timedelta(days=3_000))
        assert await listed(mesh) == [waiting]


async def test_without_days_nothing_is_deleted_and_nobody_looks() -> None:
    async with WorldMesh(ScriptedLlm(says("one"))) as mesh:
        await mesh.create("Hi")
        retention = mesh.keeper._retention
        await retention.sweep(timedelta(days=100_000))
        assert len(await listed(mesh)) == 1 and retention._sweeping is None


async def test_what_cannot_be_deleted_keeps_nothing_else_from_it() -> None:
    journal = FailingErase()
    days = RetentionDays(idle=30)
    async with WorldMesh(ScriptedLlm(), journal, retention=days) as mesh:
        ids = [(await mesh.create())[1]["conversation"]["id"] for _ in range(3)]
        journal.fails_for = ids[:1]
        await mesh.keeper._retention.sweep(timedelta(days=31))
        assert await listed(mesh) == ids[:1]
        journal.fails_for = []
        await mesh.keeper._retention.sweep(timedelta(days=31))
        assert await listed(mesh) == []


async def test_an_old_conversation_in_which_something_happens_again_stays() -> None:
    async with WorldMesh(ScriptedLlm(says("one")), retention=RetentionDays(idle=30)) as mesh:
        _, body = await mesh.create()
        id = body["conversation"]["id"]
        before = now()
        await mesh.say(id, "Hi")
        await mesh.keeper._delete_old(id, before)  # it was listed before the message came
        assert await listed(mesh) == [id]


class FailingErase(MemoryJournal):
    """Does not erase these."""

    fails_for: Sequence[str] = ()

    async def erase(self, shard: int, epoch: int, conversation_id: str, seq: int) -> None:
        if conversation_id in self.fails_for:
            raise JournalError("the disk is gone")
        await super().erase(shard, epoch, conversation_id, seq)


async def test_when_the_storage_fails_the_conversation_is_there_as_before() -> None:
    journal = FailingErase()
    async with WorldMesh(ScriptedLlm(says("one"), says("two")), journal) as mesh:
        _, body = await mesh.create("Hi")
        id = body["conversation"]["id"]
        journal.fails_for = [id]
        assert (await mesh.ask(Delete(id)))[0] == 503
        assert await listed(mesh) == [id]
        assert (await mesh.say(id, "go on"))[1]["result"]["response"] == "two"
        journal.fails_for = []
        assert (await mesh.ask(Delete(id)))[0] == 200
        assert await listed(mesh) == []


async def test_who_has_the_shard_no_more_deletes_nothing() -> None:
    async with WorldMesh(ScriptedLlm(says("one"))) as mesh:
        _, body = await mesh.create("Hi")
        id = body["conversation"]["id"]
        await mesh.journal.open(0)
        status, _ = await mesh.ask(Delete(id))
        assert status == 503 and mesh.fenced.is_set()
        assert await mesh.journal.read(id) != []


@pytest.mark.parametrize("id", ["", "no id", "00000000-0000-0000-0000-000000000000"])
async def test_what_is_not_there_is_not_found(id: str) -> None:
    async with WorldMesh(ScriptedLlm()) as mesh:
        assert (await mesh.ask(Delete(id)))[0] == 404


async def test_a_folder_that_could_not_be_synced_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with WorldMesh(ScriptedLlm(says("one")), FileJournal(tmp_path)) as mesh:
        id = (await mesh.create("Hi"))[1]["conversation"]["id"]
        with monkeypatch.context() as patch:
            patch.setattr(on_disk, "sync_folder", _fails)
            assert (await mesh.ask(Delete(id)))[0] == 503
        assert [(await mesh.ask(request))[0] for request in (Show(id), Delete(id), Show(id))] == [404] * 3
        assert left_of(id, tmp_path) == []


async def test_a_keeper_that_was_fenced_writes_nothing_of_what_was_deleted_since(tmp_path: Path) -> None:
    async with WorldMesh(ScriptedLlm(says("one")), FileJournal(tmp_path)) as mesh:
        id = (await mesh.create("Hi"))[1]["conversation"]["id"]
        fenced, mesh.journal = mesh.keeper, FileJournal(tmp_path)
        await mesh.lose_keeper()
        assert (await mesh.ask(Delete(id)))[0] == 200
        await fenced.close()  # writes what it had not written yet
        assert left_of(id, tmp_path) == []


async def test_what_was_imported_is_as_old_as_its_import() -> None:
    days = RetentionDays(idle=30)
    async with WorldMesh(ScriptedLlm(says("one")), retention=days) as mesh:
        id = (await mesh.create("Hi"))[1]["conversation"]["id"]
        exported = await mesh.keeper.handle(Export(id))
        assert isinstance(exported, JournalLines)
        old = re.sub(rb'"time":"20\d\d', b'"time":"2020', exported.content)
        await mesh.ask(Delete(id))
        assert (await mesh.ask(Import(id, old)))[0] == 201
        await mesh.keeper._retention.sweep()
        assert (await mesh.ask(Show(id)))[0] == 200
        await mesh.keeper._retention.sweep(timedelta(days=31))
        assert (await mesh.ask(Show(id)))[0] == 404


async def test_an_import_without_messages_is_not_older_than_itself() -> None:
    async with WorldMesh(ScriptedLlm(says("one")), retention=RetentionDays(idle=30)) as mesh:
        id = new_id()
        lines = encode(created(id, "2020-01-01T00:00:00.000Z"))
        assert (await mesh.ask(Import(id, lines)))[0] == 201
        await mesh.keeper._retention.sweep()
        assert (await mesh.ask(Show(id)))[0] == 200


def _fails(folder: Path) -> None:
    raise OSError(errno.EIO, "Input/output error")

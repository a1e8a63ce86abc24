"""A store that has lost what it had acknowledged: the conversation tells it, and nothing is done twice."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from mesh.core.conversation import fold
from mesh.core.errors import JournalError
from mesh.core.events import StoreWentBack
from mesh.core.ids import new_id
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.journal.shards import AcknowledgedEnd
from mesh.keeper.requests import Caller, Create, Delete, SetWebhook, Watch
from mesh.keeper.store_losses import AcknowledgedEnds, known_of, told_of
from mesh.push.webhook import Webhook
from tests.keeper.test_watching import Watcher
from tests.worlds.mesh import ScriptedLlm, Show, WorldMesh, calls, says, until
from tests.worlds.receiver import Receiver
from tests.worlds.stores import created, turn

ADD = ("add", {"n": 1})


class Forgetful(MemoryJournal):
    """A store that goes back."""

    def forget_after(self, conversation_id: str, seq: int) -> None:
        del self._journals[conversation_id][seq:]


async def losses_of(journal: MemoryJournal, id: str) -> list[tuple[int, int]]:
    events = await journal.read(id)
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    return [(event.seq, event.lost_up_to) for event in events if isinstance(event, StoreWentBack)]


async def test_the_next_message_meets_the_loss_and_is_answered_when_it_comes_again() -> None:
    journal = Forgetful()
    async with WorldMesh(ScriptedLlm(says("one"), says("two"), says("three")), journal) as mesh:
        _, body = await mesh.create("first")
        id = body["conversation"]["id"]
        kept = len(await journal.read(id))
        await mesh.say(id, "second")
        lost_up_to = len(await journal.read(id))
        journal.forget_after(id, kept)
        status, body = await mesh.say(id, "third")
        assert (status, body["error"]) == (503, f"conversation {id} is at {kept}, not {lost_up_to}")
        _, body = await mesh.say(id, "third")
        assert body["result"]["response"] == "three"
        said = [(m["role"], m["content"]) for m in body["conversation"]["messages"][1:]]
        assert [each for each in said if each[0] == "user"] == [("user", "first"), ("user", "third")]
        (told,) = [text for _, text in said if text.startswith("The store has lost")]
        assert f"events {kept + 1} to {lost_up_to} of this conversation" in told
        assert await losses_of(journal, id) == [(kept + 1, lost_up_to)]


async def test_an_approval_whose_decision_may_be_lost_cannot_be_decided_again() -> None:
    journal = Forgetful()
    async with WorldMesh(ScriptedLlm(calls(ADD), says("added")), journal) as mesh:
        _, body = await mesh.create("please add")
        id, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        asked = len(await journal.read(id))
        assert (await mesh.decide(uuid, "approve"))[1]["result"]["response"] == "added"
        journal.forget_after(id, asked)
        await mesh.keeper.look_for_losses()
        await until(lambda: ended(mesh, id))
        assert (await mesh.decide(uuid, "approve"))[0] == 409
        assert mesh.ledger.lines == ["add 1"]
        assert len(await losses_of(journal, id)) == 1


async def test_a_watcher_who_saw_what_is_lost_sees_from_there_what_became_of_it() -> None:
    journal = Forgetful()
    async with WorldMesh(ScriptedLlm(calls(ADD), says("added")), journal) as mesh:
        _, body = await mesh.create("please add")
        id, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        asked = len(await journal.read(id))
        await mesh.decide(uuid, "approve")
        watcher = await Watcher(mesh, id, 0).until("completed")
        journal.forget_after(id, asked)
        await mesh.keeper.look_for_losses()
        await watcher.until("error")
        after = watcher.names.index("store_went_back")
        assert watcher.names[after:] == ["store_went_back", "error"]
        assert watcher.numbers[-2:] == [asked + 1, asked + 2]


async def test_a_conversation_that_is_lost_as_a_whole_is_not_there() -> None:
    journal = Forgetful()
    async with WorldMesh(ScriptedLlm(says("one")), journal) as mesh:
        id = (await mesh.create("first"))[1]["conversation"]["id"]
        journal.forget_after(id, 0)
        await mesh.keeper.look_for_losses()
        await until(lambda: is_gone(mesh, id))


async def test_nothing_is_told_where_nothing_is_lost() -> None:
    journal = Forgetful()
    async with WorldMesh(ScriptedLlm(calls(ADD)), journal) as mesh:
        id = (await mesh.create("please add"))[1]["conversation"]["id"]
        before = await journal.read(id)
        await mesh.keeper.look_for_losses()
        await mesh.keeper.watch(Watch(id, "w", 0, wait=False))
        assert await journal.read(id) == before


async def ended(mesh: WorldMesh, id: str) -> bool:
    conversation = (await mesh.ask(Show(id)))[1]["conversation"]
    return "so it ended" in conversation["messages"][-1]["content"]


async def is_gone(mesh: WorldMesh, id: str) -> bool:
    return (await mesh.ask(Show(id)))[0] == 404


async def test_a_call_of_a_turn_that_was_lost_is_not_taken_for_one_of_the_next_turn() -> None:
    journal = Forgetful()
    script = says("one"), calls(ADD), says("added 1"), calls(("add", {"n": 2})), says("added 2")
    async with WorldMesh(ScriptedLlm(*script), journal) as mesh:
        id = (await mesh.create("first"))[1]["conversation"]["id"]
        kept = len(await journal.read(id))
        await _approved(mesh, await mesh.say(id, "add 1"))
        journal.forget_after(id, kept)
        await mesh.keeper.look_for_losses()
        body = await _approved(mesh, await mesh.say(id, "add 2"))
        assert body["result"]["response"] == "added 2"
        assert mesh.ledger.lines == ["add 1", "add 2"]


async def test_a_call_of_a_conversation_that_was_deleted_is_not_taken_for_one_of_the_next_with_its_id() -> (
    None
):
    script = calls(ADD), says("added 1"), calls(("add", {"n": 2})), says("added 2")
    async with WorldMesh(ScriptedLlm(*script)) as mesh:
        create = Create(new_id(), Caller(session_id="s", idempotency_key="k", body_hash="h"), "add")
        await _approved(mesh, await mesh.ask(create))
        assert (await mesh.ask(Delete(create.id)))[0] == 200
        await _approved(mesh, await mesh.ask(create))
        assert mesh.ledger.lines == ["add 1", "add 2"]


async def test_nobody_decides_in_a_conversation_whose_loss_is_not_journaled_yet() -> None:
    journal = Flapping()
    async with WorldMesh(ScriptedLlm(calls(ADD), says("added")), journal) as mesh:
        _, body = await mesh.create("please add")
        id, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        asked = len(await journal.read(id))
        await mesh.decide(uuid, "approve")
        journal.forget_after(id, asked)
        await mesh.keeper.look_for_losses()
        await journal.is_telling.wait()
        deciding = asyncio.create_task(mesh.decide(uuid, "approve"))
        await until(lambda: is_waiting(deciding))
        journal.goes_on.set()
        assert (await deciding)[0] in (409, 503)
        await until(lambda: ended(mesh, id))
        assert (await mesh.decide(uuid, "approve"))[0] == 409
        assert (mesh.ledger.lines, len(await losses_of(journal, id))) == (["add 1"], 1)


async def test_what_was_only_read_is_missed_too() -> None:
    journal = Forgetful()
    async with WorldMesh(ScriptedLlm(calls(ADD), says("added")), journal) as mesh:
        _, body = await mesh.create("please add")
        id, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        asked = len(await journal.read(id))
        await mesh.decide(uuid, "approve")
        await mesh.crash()  # what the process knew is gone with it
        await mesh.ask(Show(id))
        journal.forget_after(id, asked)
        await mesh.keeper.look_for_losses()
        await until(lambda: ended(mesh, id))
        assert len(await losses_of(journal, id)) == 1


async def test_a_webhook_that_was_told_what_is_lost_is_told_what_follows() -> None:
    journal = Forgetful()
    config = "name: test\nllm: {model: scripted}\ncard: {push_hosts: [127.0.0.1]}\n"
    script = (says(text) for text in ("one", "two", "three", "four"))
    async with Receiver().up() as hook, WorldMesh(ScriptedLlm(*script), journal, config) as mesh:
        id = (await mesh.create("first"))[1]["conversation"]["id"]
        await mesh.ask(SetWebhook(id, Webhook("w", hook.url)))
        kept = len(await journal.read(id))
        for text in ("second", "third"):
            await mesh.say(id, text)
        await hook.until(2)
        journal.forget_after(id, kept)
        await mesh.keeper.look_for_losses()
        await mesh.say(id, "fourth")
        await hook.until(3)


async def test_a_delivery_of_what_is_lost_ends_and_the_end_of_the_turn_is_told() -> None:
    journal, is_there, goes_on = Forgetful(), asyncio.Event(), asyncio.Event()
    config = "name: test\nllm: {model: scripted}\ncard: {push_hosts: [127.0.0.1]}\n"

    async def slowly(request: web.Request) -> web.Response:
        is_there.set()
        await goes_on.wait()
        return web.Response()

    script = calls(ADD), says("added"), says("two")
    async with Receiver().up() as hook, WorldMesh(ScriptedLlm(*script), journal, config) as mesh:
        _, body = await mesh.create("please add")
        id, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        asked = len(await journal.read(id))
        hook.answers = [slowly]
        await mesh.ask(SetWebhook(id, Webhook("w", hook.url)))
        await mesh.decide(uuid, "approve")
        await mesh.say(id, "two")
        await is_there.wait()
        journal.forget_after(id, asked)
        await mesh.keeper.look_for_losses()
        await until(lambda: ended(mesh, id))
        goes_on.set()
        await hook.until(2)
        assert hook.told[-1] == "failed"


def test_what_is_known_of_a_conversation_is_not_known_of_another_one_with_its_id() -> None:
    id, ends = new_id(), AcknowledgedEnds()
    ends.note(fold([created(id), *turn(2)]))
    same, other = fold([created(id)]), fold([created(id, "2026-02-02T00:00:00.000Z")])
    imported = fold([created(id, imported_at="2026-02-02T00:00:00.000Z")])
    assert [known_of(each, ends.get(id)) for each in (same, other, imported)] == [3, 0, 0]
    ends.note(other)
    assert ends.get(id) == AcknowledgedEnd(1, other.created_at)


def test_what_is_known_to_be_lost_stays_known_until_it_is_told() -> None:
    id, ends = new_id(), AcknowledgedEnds()
    ends.note(fold([created(id), *turn(2)]))
    ends.note(fold([created(id)]))
    known = ends.get(id)
    assert known is not None and known.seq == 3
    told = told_of(fold([created(id)]), 3)
    ends.note(fold([created(id), msgspec.structs.replace(told, seq=2)]))
    assert ends.get(id) == AcknowledgedEnd(2, known.began_at)


class Flapping(Forgetful):
    """The first append that tells a loss fails, when `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_telling = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        tells = any(isinstance(event, StoreWentBack) for event in append.events)
        if tells and not self.is_telling.is_set():
            self.is_telling.set()
            await self.goes_on.wait()
            raise JournalError("the database does not answer")
        return await super().append(shard, epoch, append)


async def is_waiting(task: "asyncio.Task[Any]") -> bool:
    """Whether it has begun, and has nothing more to do by itself."""
    for _ in range(20):
        await asyncio.sleep(0)
    return not task.done()


async def _approved(mesh: WorldMesh, asked: tuple[int, dict[str, Any]]) -> dict[str, Any]:
    """The body after the approval for which a turn waits."""
    status, body = await mesh.decide(asked[1]["result"]["approval"]["uuid"], "approve")
    assert status == 200
    return body

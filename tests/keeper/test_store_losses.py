"""A store that has lost what it had acknowledged: the conversation tells it, and nothing is done twice."""

from mesh.core.events import StoreWentBack
from mesh.journal.memory import MemoryJournal
from mesh.keeper.requests import Watch
from tests.keeper.test_watching import Watcher
from tests.worlds.mesh import ScriptedLlm, Show, WorldMesh, calls, says, until

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

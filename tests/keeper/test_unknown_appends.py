"""Appends of which nobody knows whether they were made, as when a database is lost meanwhile: the
conversation is read again, nothing runs twice, and nobody is told something that is not so."""

import asyncio

from mesh.core.errors import WrongSequence
from mesh.core.events import UserMessage
from mesh.core.ids import new_id
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper.requests import Caller, Create, SendMessage
from tests.worlds.mesh import ScriptedLlm, WorldMesh, says


class ForgetfulJournal(MemoryJournal):
    """Makes appends, and then does not know whether it has, as long as ``lost`` is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0
        self.asked = asyncio.Event()

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        size = await super().append(shard, epoch, append)
        if self.lost and any(isinstance(event, UserMessage) for event in append.events):
            self.lost -= 1
            self.asked.set()
            raise WrongSequence("nobody knows whether it was journaled")
        return size


def message(conversation_id: str, text: str, key: str) -> SendMessage:
    return SendMessage(
        conversation_id, Caller(session_id="s1", idempotency_key=key, body_hash=text), text, wait=True
    )


async def test_a_message_is_not_said_to_be_refused_that_may_run_and_its_repetition_gets_the_answer() -> None:
    journal, llm = ForgetfulJournal(), ScriptedLlm(says("one"), says("two"))
    async with WorldMesh(llm, journal) as mesh:
        conversation_id = (await mesh.create("first"))[1]["conversation"]["id"]
        journal.lost = 1
        status, body = await mesh.ask(message(conversation_id, "second", "k"))
        assert status == 503
        assert "nobody knows" in body["error"]
        status, body = await mesh.ask(message(conversation_id, "second", "k"))
        assert (status, body["result"]["response"]) == (200, "two")
        said = [e.text for e in await journal.read(conversation_id) if isinstance(e, UserMessage)]
        assert said == ["first", "second"]


async def test_a_message_that_waits_meanwhile_goes_to_the_conversation_that_was_read_again() -> None:
    journal, llm = ForgetfulJournal(), ScriptedLlm(says("one"), says("two"), says("three"), says("four"))
    async with WorldMesh(llm, journal) as mesh:
        conversation_id = (await mesh.create("first"))[1]["conversation"]["id"]
        journal.lost = 1
        replies = await asyncio.gather(
            *(mesh.ask(message(conversation_id, f"message {n}", f"k{n}")) for n in range(3))
        )
        assert sorted(status for status, _ in replies) == [200, 200, 503]
        said = [e.text for e in await journal.read(conversation_id) if isinstance(e, UserMessage)]
        assert sorted(said) == ["first", "message 0", "message 1", "message 2"]
        assert mesh.passes <= 5  # one may have been lost with what was in memory


async def test_a_creation_of_which_nobody_knows_is_found_by_its_repetition() -> None:
    class Forgetful(ForgetfulJournal):
        async def append(self, shard: int, epoch: int, append: Append) -> int:
            size = await MemoryJournal.append(self, shard, epoch, append)
            if self.lost:
                self.lost -= 1
                raise WrongSequence("nobody knows whether it was journaled")
            return size

    journal = Forgetful()
    async with WorldMesh(ScriptedLlm(), journal) as mesh:
        journal.lost = 1
        create = Create(new_id(), Caller(session_id="s1", idempotency_key="k", body_hash="h"), None)
        assert (await mesh.ask(create))[0] == 503
        assert (await mesh.ask(create))[0] == 201
        assert len(await journal.read(create.id)) == 1

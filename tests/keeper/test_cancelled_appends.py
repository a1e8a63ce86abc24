"""An append goes on when its caller is cancelled, and the keeper knows what came of it."""

import asyncio
from collections.abc import Callable, Sequence

from mesh.core.conversation import Conversation
from mesh.core.errors import JournalError
from mesh.core.events import AnyEvent, ConversationCreated, Error, UserMessage
from mesh.core.ids import new_id
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper.loaded_conversation import LoadedConversation


class SlowJournal(MemoryJournal):
    """Makes appends durable while their callers still wait."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.arrived = asyncio.Event()

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        size = await super().append(shard, epoch, append)
        if self.is_slow:
            self.arrived.set()
            await asyncio.get_running_loop().create_future()
        return size


async def loaded(journal: SlowJournal, on_append: Callable[[Sequence[AnyEvent]], None]) -> LoadedConversation:
    def failed(_: LoadedConversation, problem: JournalError) -> None:
        raise problem

    epoch = await journal.open(0)
    found = LoadedConversation(
        Conversation(),
        journal,
        0,
        epoch,
        iter(range(1, 99)),
        4,
        ("d", {}),
        lambda _loaded, events, _size: on_append(events),
        failed,
    )
    await found.append([ConversationCreated(conversation_id=new_id(), session_id="s", agent="a", digest="d")])
    return found


async def test_what_a_cancelled_append_made_durable_is_known_before_the_next_one_is_written() -> None:
    journal, appended = SlowJournal(), list[AnyEvent]()
    conversation = await loaded(journal, appended.extend)
    journal.is_slow = True
    append = asyncio.create_task(conversation.append([UserMessage(turn=1, text="hi")]))
    await asyncio.wait_for(journal.arrived.wait(), 30)
    append.cancel()
    await asyncio.wait({append})
    assert append.cancelled()
    journal.is_slow = False
    await conversation.append([Error(turn=1, message="over")])
    assert [event.seq for event in await journal.read(conversation.conversation.id)] == [1, 2, 3]
    assert [event.seq for event in appended] == [1, 2, 3]
    assert conversation.conversation.seq == 3


async def test_a_message_that_is_held_meanwhile_is_not_taken_for_one_of_them() -> None:
    journal = SlowJournal()
    conversation = await loaded(journal, lambda _: None)
    await conversation.append([UserMessage(turn=1, text="hi")])
    journal.is_slow = True
    append = asyncio.create_task(conversation.append([Error(turn=1, message="over")]))
    await asyncio.wait_for(journal.arrived.wait(), 30)
    append.cancel()
    await asyncio.wait({append})
    journal.is_slow = False
    conversation.hold(UserMessage(turn=2, text="more"))
    await conversation.append(())
    kinds = [type(event) for event in await journal.read(conversation.conversation.id)]
    assert kinds == [ConversationCreated, UserMessage, Error, UserMessage]
    conversation.close()


async def test_a_watcher_is_shown_what_a_cancelled_append_made_durable() -> None:
    journal = SlowJournal()
    conversation = await loaded(journal, lambda _: None)
    shown = list[AnyEvent]()
    conversation.audience.show = shown.append  # type: ignore[method-assign]
    journal.is_slow = True
    append = asyncio.create_task(conversation.append([UserMessage(turn=1, text="hi")]))
    await asyncio.wait_for(journal.arrived.wait(), 30)
    append.cancel()
    await asyncio.wait({append})
    journal.is_slow = False
    await conversation.append([Error(turn=1, message="over")])
    assert [event.seq for event in shown] == [2, 3]


async def test_a_message_that_a_cancelled_append_may_have_journaled_is_not_said_to_be_dropped() -> None:
    journal = SlowJournal()
    conversation = await loaded(journal, lambda _: None)
    conversation.hold(UserMessage(turn=1, text="hi"))
    journal.is_slow = True
    append = asyncio.create_task(conversation.append(()))
    await asyncio.wait_for(journal.arrived.wait(), 30)
    append.cancel()
    await asyncio.wait({append})
    assert not await conversation.drop_held_message()
    journal.is_slow = False
    await conversation.append(())
    assert len(await journal.read(conversation.conversation.id)) == 2
    assert conversation.held_message is None
    conversation.close()

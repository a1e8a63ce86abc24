"""What a keeper does when its journal fails, when it forgets, and before anything is durable."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.errors import JournalError, Unavailable, WrongSequence
from mesh.core.events import Completed, Error, Event, LlmCall, ToolIntent, ToolResult, UserMessage
from mesh.core.ids import new_id
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper.replies import JournalLines, WatchedEvents
from mesh.keeper.requests import Caller, Cancel, Create, Export, Recent, SendMessage, Watch
from mesh.tree.turn import PassInput, PassOutput
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says, until

ADD = ("add", {"n": 1})


class Failing(MemoryJournal):
    """Refuses what ``refuses`` says, as a full disk does."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses: type[Event] | tuple[type[Event], ...] | None = None
        self.problem: JournalError = JournalError("the journal cannot be written: No space left on device")
        self.refused = 0

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        if self.refuses is not None and any(isinstance(event, self.refuses) for event in append.events):
            self.refused += 1
            raise self.problem
        return await super().append(shard, epoch, append)


class Slow:
    """A model that answers when it is told to."""

    def __init__(self) -> None:
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: object) -> LlmCall:
        self.asked.set()
        async with asyncio.timeout(30):
            await self.go.wait()
        return says("Late.")


async def _is_refused(journal: Failing, times: int = 1) -> bool:
    return journal.refused >= times


# -- the journal fails


@pytest.mark.parametrize("refused", [Completed, LlmCall])
async def test_a_turn_goes_on_when_the_journal_can_be_written_again(refused: type[Event]) -> None:
    journal = Failing()
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done.")), journal) as mesh:
        _, body = await mesh.create("Add one")
        journal.refuses = refused
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await until(lambda: _is_refused(journal))
        await asyncio.wait({deciding}, timeout=0.3)
        assert not deciding.done(), "whoever waits for the turn goes on waiting"
        journal.refuses = None
        _, body = await deciding
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])


async def test_a_claim_that_cannot_be_journaled_is_made_when_it_can() -> None:
    journal = Failing()
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done.")), journal) as mesh:
        _, body = await mesh.create("Add one")
        journal.refuses = ToolIntent
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await until(lambda: _is_refused(journal))
        assert mesh.ledger.lines == []
        journal.refuses = None
        _, body = await deciding
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])


async def test_a_turn_over_its_deadline_ends_with_words_once_the_journal_takes_them() -> None:
    journal = Failing()
    model = ScriptedLlm(*[says("Hello.")] * 50)
    async with WorldMesh(model, journal, turn_timeout_s=0.2) as mesh:
        request = Create(new_id(), Caller(session_id="s1"), "Hi", wait=False)
        journal.refuses = (Completed, Error)
        await mesh.ask(request)
        await until(lambda: _is_refused(journal, 4))  # the second pause alone is over the deadline
        journal.refuses = None
        turn = await until(lambda: _ended(mesh, request.id))
        assert turn["state"] == "failed"
        events = await journal.read(request.id)
        (error,) = [e for e in events if isinstance(e, Error)]
        assert "No space left on device" in error.message


async def _ended(mesh: WorldMesh, conversation: str) -> Any:
    turn = (await mesh.show(conversation))["turn"]
    return turn if turn["state"] not in ("working", "submitted") else None


async def test_a_message_that_cannot_be_journaled_is_refused_and_forgotten() -> None:
    journal = Failing()
    async with WorldMesh(ScriptedLlm(says("Hello."), says("Again.")), journal) as mesh:
        _, body = await mesh.create()
        conversation = body["conversation"]["id"]
        journal.refuses = UserMessage
        status, body = await mesh.say(conversation, "Hi")
        assert (status, "No space left" in body["error"]) == (503, True)
        journal.refuses = None
        assert [m["role"] for m in (await mesh.show(conversation))["messages"]] == ["system"]
        _, body = await mesh.say(conversation, "Hi again")
        said = [m["content"] for m in body["conversation"]["messages"] if m["role"] == "user"]
        assert said == ["Hi again"]


async def test_a_message_that_was_refused_and_comes_again_is_one_message() -> None:
    """Its journal fails for a moment, just when the promise of an answer is to be made."""
    journal = Failing()
    slow = Slow()
    async with WorldMesh(ScriptedLlm(slow, says("never")), journal) as mesh:
        _, body = await mesh.create()
        conversation = body["conversation"]["id"]
        say = SendMessage(
            conversation, Caller(session_id="s1", idempotency_key="k", body_hash="h"), "Hi", wait=False
        )
        journal.refuses = UserMessage
        assert (await mesh.ask(say))[0] == 503
        journal.refuses = None
        again = asyncio.create_task(mesh.ask(say))
        await slow.asked.wait()
        slow.go.set()
        await again
        await mesh.say(conversation, "Bye")
        events = await journal.read(conversation)
        assert [e.text for e in events if isinstance(e, UserMessage)] == ["Hi", "Bye"]


async def test_a_pass_for_a_message_that_was_refused_tells_nothing_about_the_next_one() -> None:
    async with WorldMesh(ScriptedLlm(says("never"))) as mesh:
        _, body = await mesh.create()
        loaded = await mesh.keeper._shard.get(body["conversation"]["id"])
        loaded.hold(UserMessage(turn=1, text="Refused"))
        lost = await loaded.begin_pass()
        assert await loaded.drop_held_message()
        loaded.hold(UserMessage(turn=1, text="Next"))
        late = LlmCall(turn=1, step="0/llm/0", model="scripted", text="about what was refused")
        assert not await loaded.append_from_pass(lost.activation, [late])
        assert loaded.conversation.steps == []


async def test_a_turn_whose_cell_disagrees_with_the_journal_is_read_again_and_driven_on() -> None:
    """Nobody asks about the conversation: it goes on by itself."""
    journal = Failing()
    slow = Slow()
    async with WorldMesh(ScriptedLlm(slow, says("Read again.")), journal) as mesh:
        request = Create(new_id(), Caller(session_id="s1"), "Hi", wait=False)
        await mesh.ask(request)
        await slow.asked.wait()
        journal.refuses, journal.problem = LlmCall, WrongSequence("the journal is at event 7")
        slow.go.set()
        await until(lambda: _is_refused(journal))
        journal.refuses = None
        await until(lambda: _completed(journal, request.id))


async def _completed(journal: MemoryJournal, conversation: str) -> bool:
    return any(isinstance(event, Completed) for event in await journal.read(conversation))


async def test_recovery_waits_for_a_journal_that_cannot_be_read_yet() -> None:
    class Unreadable(MemoryJournal):
        unreadable = 0

        async def read(self, conversation_id: str) -> list[Any]:
            if self.unreadable:
                self.unreadable -= 1
                raise JournalError("the store does not answer")
            return await super().read(conversation_id)

    async def _can_be_read(journal: Unreadable) -> bool:
        return journal.unreadable == 0

    journal, slow = Unreadable(), Slow()
    async with WorldMesh(ScriptedLlm(slow, says("Recovered.")), journal) as mesh:
        request = Create(new_id(), Caller(session_id="s1"), "Hi", wait=False)
        await mesh.ask(request)
        await slow.asked.wait()
        await mesh.show(request.id)
        await mesh.keeper.close()  # writes the index, so that the start reads no journal
        journal.unreadable = 3
        await mesh.crash()
        await until(lambda: _can_be_read(journal))
        await until(lambda: _completed(journal, request.id))


# -- before anything is durable


async def test_a_message_that_was_just_taken_is_in_every_view() -> None:
    slow = Slow()
    async with WorldMesh(ScriptedLlm(slow)) as mesh:
        _, body = await mesh.create()
        conversation = body["conversation"]["id"]
        views = (Recent(states=("working",)), Export(conversation), Watch(conversation, "w", 0, wait=False))
        for view in views:
            saying = asyncio.create_task(mesh.say(conversation, "Hi"))
            await slow.asked.wait()
            if isinstance(view, Watch):
                seen = await mesh.keeper.watch(view)
                assert isinstance(seen, WatchedEvents)
                assert any(isinstance(event, UserMessage) for event in seen.events)
            elif isinstance(view, Export):
                lines = await mesh.keeper.handle(view)
                assert isinstance(lines, JournalLines)
                assert b"user_message" in lines.content
            else:
                (entry,) = (await mesh.ask(view))[1]["conversations"]
                assert entry["id"] == conversation
            shown = await mesh.show(conversation)
            assert (shown["messages"][-1]["content"], shown["turn"]["state"]) == ("Hi", "working")
            await mesh.ask(Cancel(conversation))
            await saying
            slow.asked.clear()


async def test_a_turn_is_cancelled_before_its_first_append(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.keeper.loaded_conversation.SEND_AHEAD_S", 60.0)
    slow = Slow()
    async with WorldMesh(ScriptedLlm(slow)) as mesh:
        _, body = await mesh.create()
        conversation = body["conversation"]["id"]
        saying = asyncio.create_task(mesh.say(conversation, "Hi"))
        await slow.asked.wait()
        assert not any(isinstance(e, UserMessage) for e in await mesh.journal.read(conversation))
        _, body = await mesh.ask(Cancel(conversation))
        assert body["conversation"]["turn"]["state"] == "cancelled"
        await saying
        said = [m["content"] for m in (await mesh.show(conversation))["messages"]]
        assert said == ["Be kind.", "Hi", "Operation cancelled by user."]


# -- passes and what is forgotten


async def test_a_late_result_of_an_attempt_that_another_one_followed_is_not_taken() -> None:
    """The first was found not to have begun; what its pass says of it is not what the second came to."""
    async with WorldMesh(ScriptedLlm(says("never"))) as mesh:
        _, body = await mesh.create()
        loaded = await mesh.keeper._shard.get(body["conversation"]["id"])
        loaded.hold(UserMessage(turn=1, text="Hi"))
        first = await loaded.begin_pass()
        assert await loaded.append_from_pass(first.activation, [_claim(first, 0)])
        second = await loaded.begin_pass()
        assert await loaded.append_from_pass(second.activation, [_claim(second, 1)])
        late = ToolResult(turn=1, step=STEP, call_id="c", tool="add", content="not started", is_error=True)
        assert not await loaded.append_from_pass(first.activation, [late])
        told = ToolResult(turn=1, step=STEP, call_id="c", tool="add", content="added")
        assert await loaded.append_from_pass(second.activation, [told])
        results = [
            e.content for e in await mesh.journal.read(loaded.conversation.id) if isinstance(e, ToolResult)
        ]
        assert results == ["added"]


async def test_a_call_whose_result_came_late_cannot_be_claimed_again() -> None:
    async with WorldMesh(ScriptedLlm(says("never"))) as mesh:
        _, body = await mesh.create()
        loaded = await mesh.keeper._shard.get(body["conversation"]["id"])
        loaded.hold(UserMessage(turn=1, text="Hi"))
        first = await loaded.begin_pass()
        assert await loaded.append_from_pass(first.activation, [_claim(first, 0)])
        second = await loaded.begin_pass()  # a person said "retry", say
        late = ToolResult(turn=1, step=STEP, call_id="c", tool="add", content="added")
        assert not await loaded.append_from_pass(first.activation, [late])
        assert not await loaded.append_from_pass(second.activation, [_claim(second, 1)])
        assert not any(isinstance(e, ToolIntent) and e.attempt for e in loaded.conversation.steps)


async def test_who_finds_another_result_of_a_call_than_the_one_that_came_late_has_to_begin_again() -> None:
    """Both runs have asked a check what came of the call, and the world has changed between."""

    def found(text: str) -> ToolResult:
        return ToolResult(turn=1, step=STEP, call_id="c", tool="add", content=text)

    async with WorldMesh(ScriptedLlm(says("never"))) as mesh:
        _, body = await mesh.create()
        loaded = await mesh.keeper._shard.get(body["conversation"]["id"])
        loaded.hold(UserMessage(turn=1, text="Hi"))
        first = await loaded.begin_pass()
        assert await loaded.append_from_pass(first.activation, [_claim(first, 0)])
        second = await loaded.begin_pass()
        assert not await loaded.append_from_pass(first.activation, [found("added: 1")])
        asked = LlmCall(turn=1, step="0/llm/1", model="scripted", text="as there are two")
        assert not await loaded.append_from_pass(second.activation, [found("added: 1, 2"), asked])
        third = await loaded.begin_pass()
        assert await loaded.append_from_pass(third.activation, [found("added: 1"), asked])
        events = await mesh.journal.read(loaded.conversation.id)
        told = [e for e in events if isinstance(e, LlmCall | ToolResult)]
        assert [type(e) for e in told] == [ToolResult, LlmCall]


STEP = "0/tool/0.0"


def _claim(turn: PassInput, attempt: int) -> ToolIntent:
    return ToolIntent(
        turn=turn.turn,
        step=STEP,
        run=turn.run,
        tool="add",
        arguments={"n": 1},
        attempt=attempt,
        session="s.0",
    )


async def test_a_decision_that_is_being_checked_keeps_its_conversation_in_memory() -> None:
    """Else there would be two pictures of it, each of which goes its own way."""

    class Checking(WorldMesh):
        checking, go = asyncio.Event(), asyncio.Event()

        async def problems(self, *about: Any) -> str:
            self.checking.set()
            async with asyncio.timeout(30):
                await self.go.wait()
            return await super().problems(*about)

    async with Checking(ScriptedLlm(calls(ADD), says("Done.")), max_loaded=0) as mesh:
        _, body = await mesh.create("Add one")
        conversation, uuid = body["conversation"]["id"], body["result"]["approval"]["uuid"]
        deciding = asyncio.create_task(mesh.decide(uuid, "approve", edited={"n": 2}))
        await asyncio.wait_for(mesh.checking.wait(), 30)
        for _ in range(3):
            await mesh.create()
        await mesh.show(conversation)
        mesh.go.set()
        _, body = await deciding
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 2"])


class Forgetful(WorldMesh):
    """Each pass is noted; those whose number ``lost`` says are lost."""

    def __init__(self, lost: set[int], **more: Any) -> None:
        answers = [says(f"answer {n}") for n in range(100)]
        super().__init__(ScriptedLlm(*answers), max_loaded=0, **more)
        self.lost = lost
        self.runs: list[tuple[str, int]] = []

    async def run(self, turn: PassInput) -> PassOutput:
        self.runs.append((turn.conversation_id, turn.run))
        if len(self.runs) in self.lost:
            raise Unavailable("the node died", retry_after_s=0)
        return await super().run(turn)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(["first", "second", "crash", "forget"]), max_size=12),
    st.sets(st.integers(1, 20), max_size=6),
)
def test_no_two_passes_have_one_number_whatever_is_forgotten_in_between(
    order: list[str], lost: set[int]
) -> None:
    asyncio.run(_runs(order, lost))


async def _runs(order: list[str], lost: set[int]) -> None:
    async with Forgetful(lost) as mesh:
        ids = {name: (await mesh.create())[1]["conversation"]["id"] for name in ("first", "second")}
        for what in order:
            match what:
                case "crash":
                    await mesh.crash()
                case "forget":
                    mesh.keeper._shard._loaded.clear()  # as after an eviction, or a conflict of sequences
                case name:
                    status, _ = await mesh.say(ids[name], "Hi")
                    assert status == 200
        runs = [run for _, run in mesh.runs]
        assert runs == sorted(set(runs)), "each pass has a greater number than all before it"


class SupersededByNobody(WorldMesh):
    """Its passes end at once, as if others had begun."""

    async def run(self, turn: PassInput) -> PassOutput:
        self.passes += 1
        return PassOutput("superseded")


async def test_passes_that_end_without_a_reason_do_not_follow_each_other_without_a_pause() -> None:
    async with SupersededByNobody(ScriptedLlm(says("never"))) as mesh:
        saying = asyncio.create_task(mesh.create("Hi"))
        await asyncio.wait({saying}, timeout=0.3)
        assert mesh.passes <= 2
        saying.cancel()

"""The timer of all approvals of a keeper: what one conversation does is no trouble for the others."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mesh.keeper.schedule as schedule
from mesh.core.errors import JournalDamaged, JournalError, NotFound
from mesh.core.events import moment
from mesh.journal.files import FileJournal
from mesh.keeper.requests import Show
from mesh.keeper.schedule import Schedule
from mesh.net.backoff import Backoff
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says

ADD = ("add", {"n": 1})
EXPIRING = "name: test\nllm: {model: scripted}\napproval_timeout_s: 0.5\n"


class Conversations:
    """What is called when approvals of theirs expire."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.times: list[float] = []
        self.problems: dict[str, Exception] = {}
        self.blocked: set[str] = set()
        self.release = asyncio.Event()
        self.changed = asyncio.Event()

    async def expire(self, conversation_id: str) -> None:
        self.asked.append(conversation_id)
        self.times.append(asyncio.get_running_loop().time())
        self.changed.set()
        self.changed = asyncio.Event()
        if conversation_id in self.blocked:
            await self.release.wait()
        if conversation_id in self.problems:
            raise self.problems[conversation_id]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.asked) < count:
                await self.changed.wait()


def in_s(seconds: float) -> str:
    return moment(timedelta(seconds=seconds))


@pytest.mark.parametrize(
    "problem", [JournalDamaged("line 3"), JournalError("the disk is full"), KeyError("a bug")]
)
async def test_a_conversation_that_cannot_expire_holds_no_other_up(
    problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_RETRIES", Backoff(300, 300, jitter=0))
    conversations = Conversations()
    conversations.problems["bad"] = problem
    timer = Schedule(conversations.expire, "not_expired")
    timer.note(in_s(-9), "bad")
    timer.note(in_s(-8), "also bad")
    conversations.problems["also bad"] = problem
    for number in range(10):
        timer.note(in_s(0.001 * number), f"good {number}")
    await conversations.until(12)
    assert sorted(conversations.asked) == sorted(["bad", "also bad", *(f"good {n}" for n in range(10))])
    await timer.close()


async def test_it_is_tried_again_after_pauses_that_grow_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(schedule, "_RETRIES", Backoff(0.02, 0.08, jitter=0))
    conversations = Conversations()
    conversations.problems["bad"] = JournalDamaged("bad.jsonl, line 3: is damaged")
    timer = Schedule(conversations.expire, "not_expired")
    timer.note(in_s(-1), "bad")
    await conversations.until(6)
    pauses = [b - a for a, b in zip(conversations.times, conversations.times[1:], strict=False)]
    for pause, least in zip(pauses, (0.02, 0.04, 0.08, 0.08, 0.08), strict=True):
        assert pause > least - 0.002  # moments are whole milliseconds
    (told,) = [record for record in caplog.records if record.name == "mesh.keeper"]
    assert "conversation=bad" in told.getMessage() and "line 3: is damaged" in told.getMessage()
    del conversations.problems["bad"]
    await conversations.until(7)
    assert len(timer._failures) == 0
    conversations.problems["bad"] = JournalError("the disk is full")
    timer.note(in_s(0), "bad")
    await conversations.until(9)
    assert [record.levelno for record in caplog.records][1:] == [
        logging.WARNING
    ]  # another problem, told again
    await timer.close()


async def test_what_became_due_while_it_failed_waits_for_the_next_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conversations = Conversations()
    conversations.blocked, conversations.problems["bad"] = {"bad"}, JournalError("the disk is full")
    timer = Schedule(conversations.expire, "not_expired")
    timer.note(in_s(-1), "bad")
    await conversations.until(1)
    timer.note(in_s(-0.5), "bad")
    timer.note(in_s(0), "good")
    await conversations.until(2)
    conversations.release.set()
    timer.note(in_s(0.05), "better")
    await conversations.until(3)
    assert conversations.asked == ["bad", "good", "better"]
    await timer.close()


async def test_what_is_gone_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "_RETRIES", Backoff(0.001, 300, jitter=0))
    conversations = Conversations()
    conversations.problems["gone"] = NotFound("there is no conversation gone")
    timer = Schedule(conversations.expire, "not_expired")
    timer.note(in_s(0), "gone")
    timer.note(in_s(0.1), "good")
    await conversations.until(2)
    assert conversations.asked == ["gone", "good"]
    await timer.close()


async def test_conversations_that_take_long_hold_no_other_up_and_their_number_is_bounded() -> None:
    conversations = Conversations()
    slow = [f"slow {number}" for number in range(schedule._MAX_CONCURRENT - 1)]
    conversations.blocked = {*slow, "slowest"}
    timer = Schedule(conversations.expire, "not_expired")
    for name in slow:
        timer.note(in_s(-1), name)
    timer.note(in_s(-0.5), "good")
    await conversations.until(len(slow) + 1)
    assert conversations.asked[-1] == "good"
    timer.note(in_s(0), "slowest")
    await conversations.until(len(slow) + 2)
    timer.note(in_s(0), "waits for room")
    timer.note(in_s(0), slow[0])  # is at work: is asked once more, not twice at once
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(conversations.asked) == len(slow) + 2
    conversations.release.set()
    await conversations.until(len(slow) + 4)
    assert sorted(conversations.asked[-2:]) == sorted(["waits for room", slow[0]])
    await timer.close()


async def test_closing_stops_what_expires_and_what_would() -> None:
    conversations = Conversations()
    conversations.blocked = {"slow"}
    timer = Schedule(conversations.expire, "not_expired")
    timer.note(in_s(-1), "slow")
    await conversations.until(1)
    timer.note(in_s(0), "slow")
    async with asyncio.timeout(30):
        await timer.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def until(what: Callable[[], Awaitable[Any]]) -> None:
    async with asyncio.timeout(30):
        while True:
            if await what():
                return
            await asyncio.sleep(0.01)


async def ended(mesh: WorldMesh, conversation_id: str) -> Any:
    conversation = await mesh.show(conversation_id)
    return conversation["messages"][-1]["content"] == "Nothing was added."


async def test_approvals_expire_on_time_beside_a_conversation_that_cannot_be_read_and_there_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_RETRIES", Backoff(0.1, 300, jitter=0))
    journal = FileJournal(tmp_path)
    model = ScriptedLlm(calls(ADD), calls(ADD), says("Nothing was added."), says("Nothing was added."))
    async with WorldMesh(model, journal, EXPIRING, max_loaded=0) as mesh:
        damaged, whole = [(await mesh.create("go"))[1]["conversation"]["id"] for _ in range(2)]
        path = tmp_path / f"conversation_{damaged}.jsonl"
        content = path.read_bytes()
        path.write_bytes(content + b"not an event\n")
        await until(lambda: ended(mesh, whole))
        assert (await mesh.ask(Show(damaged)))[0] == 500
        path.write_bytes(content)
        await until(lambda: ended(mesh, damaged))
    await journal.close()


async def test_what_could_not_be_read_when_the_keeper_started_expires_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "_RETRIES", Backoff(0.1, 300, jitter=0))
    journal = FileJournal(tmp_path)
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Nothing was added.")), journal, EXPIRING) as mesh:
        conversation_id = (await mesh.create("go"))[1]["conversation"]["id"]
        path = tmp_path / f"conversation_{conversation_id}.jsonl"
        content = path.read_bytes()
        path.write_bytes(content + b"not an event\n")
        await mesh.crash()
        assert (await mesh.ask(Show(conversation_id)))[0] == 500
        path.write_bytes(content)
        await until(lambda: shown(mesh, conversation_id))
        await until(lambda: ended(mesh, conversation_id))
        assert [entry.id for entry in await mesh.keeper._shard.listing.page(9, "", "")] == [conversation_id]
    await journal.close()


async def shown(mesh: WorldMesh, conversation_id: str) -> bool:
    return (await mesh.ask(Show(conversation_id)))[0] == 200

"""What watchers of a conversation see, and what it costs when there are none."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from mesh.core.events import Completed, CutOff, LlmCall, TextDelta
from mesh.http.streams import event_frame
from mesh.keeper import recent_events
from mesh.keeper.replies import Refusal, TurnAccepted, WatchedEvents
from mesh.keeper.requests import Caller, Cancel, Create, Follow, SendMessage, Watch
from mesh.llm.port import LlmRequest
from mesh.tree.turn import Ack, PassInput, PassOutput
from tests.worlds.live import Spoken
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says

WITHIN_S = 30.0
CALLER = Caller(session_id="s1")


class Watcher:
    """A client that reads a stream."""

    def __init__(self, mesh: WorldMesh, conversation_id: str, after: int | None = None, **more: Any) -> None:
        self._mesh = mesh
        self.request = Watch(conversation_id, "w", after, wait=False, **more)
        self.events: list[dict[str, Any]] = []

    async def read(self) -> WatchedEvents:
        """One answer."""
        seen = await asyncio.wait_for(self._mesh.keeper.watch(self.request), WITHIN_S)
        assert isinstance(seen, WatchedEvents), seen
        self.request = msgspec.structs.replace(self.request, after=seen.after, cursor=seen.cursor, wait=True)
        self.events += as_watched(seen, self.request.id)
        return seen

    async def until(self, name: str) -> "Watcher":
        """Reads until an event of that name came."""
        async with asyncio.timeout(WITHIN_S):
            while not any(event["type"] == name for event in self.events):
                await self.read()
        return self

    def first(self, name: str) -> dict[str, Any]:
        return next(event for event in self.events if event["type"] == name)

    @property
    def names(self) -> list[str]:
        return [event["type"] for event in self.events]

    @property
    def numbers(self) -> list[int]:
        return [event["seq"] for event in self.events if "seq" in event]


def as_watched(seen: WatchedEvents | Refusal, conversation_id: str) -> list[dict[str, Any]]:
    """What a client of the stream sees."""
    assert isinstance(seen, WatchedEvents), seen
    return frames(b"".join(event_frame(event, conversation_id) for event in seen.events))


def frames(raw: bytes) -> list[dict[str, Any]]:
    """The data of a stream's events; what stands around it must agree with it."""
    found = []
    for block in raw.decode().split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            data = msgspec.json.decode(lines["data"])
            assert lines["event"] == data["type"]
            assert lines.get("id", "") == str(data.get("seq", ""))
            found.append(data)
    return found


@asynccontextmanager
async def conversation(llm: ScriptedLlm, **more: Any) -> AsyncIterator[tuple[WorldMesh, str]]:
    async with WorldMesh(llm, **more) as mesh:
        _, body = await mesh.create()
        yield mesh, body["conversation"]["id"]


async def test_a_watcher_sees_a_turn_as_it_happens() -> None:
    async with conversation(Spoken(calls(("look", {})), says("one two three"))) as (mesh, cid):
        watcher = Watcher(mesh, cid)
        await watcher.read()
        await mesh.say(cid, "go")
        await watcher.until("completed")
        assert list(dict.fromkeys(watcher.names)) == [
            "user_message",
            "node_started",
            "tool_call",
            "llm_call",
            "tool_result",
            "text_delta",
            "completed",
        ]
        assert watcher.numbers == list(range(2, 7))
        for event in watcher.events:
            assert event["conversation_id"] == cid
            assert event["turn"] == 1
            assert event["time"]
            assert {"node", "step"} <= event.keys()
        text = ""
        for event in watcher.events:
            if event["type"] == "text_delta":
                text = text[: event.get("offset", 0)] + event["text"]
        assert text == "one two three"


async def test_with_nobody_watching_no_delta_is_produced_or_sent() -> None:
    llm = Spoken(says("one two three"))
    async with conversation(llm) as (mesh, cid):
        passes: list[PassOutput] = []
        run = mesh.run

        async def seen(turn: PassInput) -> PassOutput:
            passes.append(await run(turn))
            return passes[-1]

        mesh.run = seen  # type: ignore[method-assign]
        await mesh.crash()  # the next keeper runs passes by this
        await mesh.say(cid, "go")
        assert not llm.requests[0].deltas
        assert [type(event) for event in passes[0].events] == [LlmCall]


async def test_a_watcher_that_leaves_is_noticed_and_stops_nothing() -> None:
    llm = Spoken(says("one two three"))
    async with conversation(llm) as (mesh, cid):
        watcher = Watcher(mesh, cid)
        await watcher.read()
        reading = asyncio.create_task(watcher.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        status, body = await mesh.say(cid, "go")
        assert (status, body["result"]["response"]) == (200, "one two three")
        assert not llm.requests[0].deltas


async def test_who_comes_in_the_middle_of_a_turn_sees_the_deltas_of_its_next_model_call() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(_: LlmRequest) -> LlmCall:
        asked.set()
        await go_on.wait()
        return calls(("look", {}), ("add", {"n": 1}))

    llm = Spoken(slow, says("one two"))
    async with conversation(llm) as (mesh, cid):
        saying = asyncio.create_task(mesh.say(cid, "go"))
        await asyncio.wait_for(asked.wait(), WITHIN_S)
        watcher = Watcher(mesh, cid, 0)
        await watcher.read()
        go_on.set()
        await saying
        await watcher.until("approval_required")
        await mesh.decide(watcher.first("approval_required")["uuid"], "approve")
        await watcher.until("completed")
        assert "text_delta" in watcher.names


@pytest.mark.parametrize("slower", range(5))
async def test_no_piece_of_text_is_lost_while_others_are_on_their_way(slower: int) -> None:
    words = " ".join(f"word{i}" for i in range(30))
    llm = Spoken(says(words))

    async def pause(_: str) -> None:
        await asyncio.sleep(0)

    llm.between = pause
    async with conversation(llm) as (mesh, cid):
        append = mesh.append

        async def slow(*arguments: Any) -> Ack:
            for _ in range(slower):
                await asyncio.sleep(0)
            return await append(*arguments)

        mesh.append = slow  # type: ignore[method-assign]
        watcher = Watcher(mesh, cid)
        await watcher.read()
        await mesh.say(cid, "go")
        await watcher.until("completed")
        pieces = [event for event in watcher.events if event["type"] == "text_delta"]
        assert "".join(piece["text"] for piece in pieces) == words
        # Where an append takes as long as the model for a word, there may be one for each word.
        assert 1 < len(pieces) < (30 if slower > 1 else 31)


async def test_several_watchers_see_the_same() -> None:
    async with conversation(Spoken(says("one two three"))) as (mesh, cid):
        watchers = [Watcher(mesh, cid) for _ in range(5)]
        for watcher in watchers:
            await watcher.read()
        await mesh.say(cid, "go")
        for watcher in watchers:
            await watcher.until("completed")
            assert watcher.events == watchers[0].events


@pytest.mark.parametrize("after", [0, 1, 2, 5, 6, 99])
async def test_what_came_after_an_event_is_replayed_from_the_journal(after: int) -> None:
    async with conversation(ScriptedLlm(calls(("look", {})), says("done"))) as (mesh, cid):
        await mesh.say(cid, "go")
        watcher = Watcher(mesh, cid, after)
        await watcher.read()
        assert watcher.numbers == list(range(after + 1, 7))


async def test_every_journaled_event_comes_once_and_in_order_whatever_crashes_in_between() -> None:
    async with conversation(ScriptedLlm(calls(("look", {})), says("done"))) as (mesh, cid):
        watcher = Watcher(mesh, cid, 0)
        for _ in range(5):
            await mesh.say(cid, "go")
            await watcher.read()
            await mesh.crash()
        await mesh.say(cid, "last")
        shown = as_watched(await mesh.keeper.watch(Watch(cid, "other", 0, wait=False)), cid)
        last = max(event["seq"] for event in shown)
        async with asyncio.timeout(WITHIN_S):
            while watcher.numbers[-1] < last:
                await watcher.read()
        assert watcher.numbers == list(range(1, last + 1))


async def test_a_slow_watcher_is_cut_off_says_so_and_can_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "MOST_ITEMS", 3)
    async with conversation(ScriptedLlm(says("done"))) as (mesh, cid):
        watcher, quick = Watcher(mesh, cid), Watcher(mesh, cid)
        await watcher.read()
        await quick.read()
        for _ in range(4):
            await mesh.say(cid, "go")
            quick.events.clear()
            await quick.until("completed")
        seen = await watcher.read()
        assert seen.ended
        (cut,) = watcher.events
        assert (cut["type"], cut["after"]) == ("cut_off", 1)
        assert "Last-Event-ID" in cut["message"]
        again = Watcher(mesh, cid, cut["after"])
        await again.until("completed")
        assert again.numbers == list(range(2, 14))


async def test_a_large_journal_comes_in_bounded_pieces() -> None:
    async with conversation(ScriptedLlm(says("x" * 100_000))) as (mesh, cid):
        for _ in range(6):
            await mesh.say(cid, "go")
        watcher = Watcher(mesh, cid, 0)
        first = await watcher.read()
        assert 0 < len(msgspec.msgpack.encode(first)) < 700_000
        async with asyncio.timeout(WITHIN_S):
            while watcher.numbers[-1] < 19:
                await watcher.read()
        assert watcher.numbers == list(range(1, 20))


async def test_the_stream_of_a_turn_ends_with_it_and_shows_no_other() -> None:
    async with conversation(Spoken(calls(("add", {"n": 1})), says("done"))) as (mesh, cid):
        told = await mesh.keeper.handle(SendMessage(cid, CALLER, "go", wait=False, watched=True))
        assert isinstance(told, TurnAccepted)
        assert told.turn == 1
        watcher = Watcher(mesh, cid, told.seq, turn=told.turn)
        while not (await watcher.read()).ended:
            pass
        assert watcher.names[0] == "user_message"
        assert watcher.names[-2:] == ["approval_required", "paused"]
        assert "tool_call" in watcher.names


async def test_the_stream_of_a_turn_goes_on_past_a_pause_that_is_over_already() -> None:
    async with conversation(Spoken(calls(("add", {"n": 1})), says("done"))) as (mesh, cid):
        told = await mesh.keeper.handle(SendMessage(cid, CALLER, "go", wait=False, watched=True))
        assert isinstance(told, TurnAccepted)
        watcher = Watcher(mesh, cid, told.seq, turn=told.turn)
        asked = await Watcher(mesh, cid, 0).until("paused")
        await mesh.decide(asked.first("approval_required")["uuid"], "approve")
        while not (await watcher.read()).ended:
            pass
        assert "paused" in watcher.names
        assert watcher.names[-1] == "completed"


async def test_an_exclusive_stream_is_had_by_one_and_free_again_when_that_one_leaves() -> None:
    async with conversation(ScriptedLlm(says("done"))) as (mesh, cid):
        first = Watcher(mesh, cid, exclusive=True)
        await first.read()
        refused = await mesh.keeper.watch(Watch(cid, "other", exclusive=True, wait=False))
        assert isinstance(refused, Refusal)
        assert refused.kind == "conflict"
        reading = asyncio.create_task(first.read())
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        taken = await mesh.keeper.watch(Watch(cid, "other", exclusive=True, wait=False))
        assert isinstance(taken, WatchedEvents)


async def test_nobody_watches_what_is_not_there() -> None:
    async with WorldMesh(ScriptedLlm(says("done"))) as mesh:
        seen = await mesh.keeper.watch(Watch("nothing", "w"))
        assert isinstance(seen, Refusal)
        assert seen.kind == "not_found"


async def test_a_follower_sees_all_conversations_and_can_choose() -> None:
    async with WorldMesh(ScriptedLlm(says("done"))) as mesh:
        begun = await mesh.keeper.follow(Follow())
        ids = [(await mesh.create("go"))[1]["conversation"]["id"] for _ in range(3)]
        seen = await mesh.keeper.follow(Follow(begun.cursor))
        completed = [each.conversation_id for each in seen.events if isinstance(each.event, Completed)]
        assert completed == ids
        chosen = await mesh.keeper.follow(Follow(begun.cursor, types=("completed",)))
        assert len(chosen.events) == 3
        assert not (await mesh.keeper.follow(Follow(begun.cursor, session_id="other"))).events
        missed = await mesh.keeper.follow(Follow(17))
        assert isinstance(missed.events[0].event, CutOff)


# -- a turn is cancelled


async def test_a_waiting_turn_is_cancelled_and_its_approval_not_needed_any_more() -> None:
    async with conversation(ScriptedLlm(calls(("add", {"n": 1})), says("next"))) as (mesh, cid):
        _, body = await mesh.say(cid, "go")
        status, body_after = await mesh.ask(Cancel(cid))
        assert (status, body_after["result"]["response"]) == (200, "Operation cancelled by user.")
        status, _ = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert status == 409
        assert not mesh.ledger.lines
        assert (await mesh.say(cid, "and now"))[1]["result"]["response"] == "next"


async def test_a_running_turn_is_cancelled_before_its_next_step() -> None:
    asked = asyncio.Event()

    async def endless(_: LlmRequest) -> LlmCall:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with conversation(ScriptedLlm(endless, says("next"))) as (mesh, cid):
        saying = asyncio.create_task(mesh.say(cid, "go"))
        await asyncio.wait_for(asked.wait(), WITHIN_S)
        status, body = await mesh.ask(Cancel(cid))
        assert status == 200
        assert body["conversation"]["messages"][-1]["content"] == "Operation cancelled by user."
        assert (await saying)[1]["result"]["response"] == "Operation cancelled by user."
        assert (await mesh.say(cid, "again"))[1]["result"]["response"] == "next"


async def test_a_destructive_tool_that_runs_is_waited_for_when_its_turn_is_cancelled() -> None:
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        reached.set()
        await release.wait()

    async with conversation(ScriptedLlm(calls(("add", {"n": 1})), says("more"))) as (mesh, cid):
        mesh.ledger.before_add = slow
        _, body = await mesh.say(cid, "go")
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(reached.wait(), WITHIN_S)
        cancelling = asyncio.create_task(mesh.ask(Cancel(cid)))
        done, _ = await asyncio.wait({cancelling}, timeout=0.05)
        assert not done
        release.set()
        await asyncio.wait_for(cancelling, WITHIN_S)
        await deciding
        names = [m["content"] for m in (await mesh.show(cid))["messages"] if m["role"] != "system"]
        assert names == ["go", '{"added": 1}', "Operation cancelled by user."]
        assert mesh.ledger.lines == ["add 1"]


async def test_nothing_is_cancelled_where_nothing_runs() -> None:
    async with conversation(ScriptedLlm(says("done"))) as (mesh, cid):
        await mesh.say(cid, "go")
        status, body = await mesh.ask(Cancel(cid))
        assert (status, body["result"]["response"]) == (200, "done")
        assert (await mesh.ask(Create(cid, CALLER)))[0] == 409


def test_offsets_make_a_repeated_delta_harmless() -> None:
    pieces = [TextDelta(text="ab"), TextDelta(text="cd", offset=2), TextDelta(text="cd", offset=2)]
    text = ""
    for piece in [*pieces, TextDelta(text="again")]:
        text = text[: piece.offset] + piece.text
    assert text == "again"


async def test_a_cancelled_wait_ends_even_if_something_happens_at_the_same_moment() -> None:
    news = recent_events.RecentEvents()
    waiting = asyncio.create_task(news.wait(news.end, 10))
    await asyncio.sleep(0)
    news.add(Completed(seq=1, response="x"))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_watchers_see_what_a_budget_has_left_after_each_grant_and_each_answer() -> None:
    config = (
        "name: test\nllm: {model: scripted, prices: {scripted: {input: 1, output: 2}}}\n"
        "budget: {max_llm_calls: 5, max_cost_usd: 1}\n"
    )
    async with WorldMesh(ScriptedLlm(calls(("look", {})), says("done")), config=config) as mesh:
        _, body = await mesh.create()
        watcher = Watcher(mesh, body["conversation"]["id"])
        await watcher.read()
        await mesh.say(body["conversation"]["id"], "go")
        await watcher.until("completed")
    spends = [event for event in watcher.events if event["type"] == "spend"]
    assert [event["node"] for event in spends] == ["0"] * len(spends)
    calls_used = [
        tuple(event[part]["max_llm_calls"] for part in ("spent", "reserved", "unsettled")) for event in spends
    ]
    assert calls_used[0] == (0, 1, 0) and calls_used[-1] == (2, 0, 0)
    assert spends[0]["limits"] == {"max_cost_usd": 1.0, "max_llm_calls": 5}

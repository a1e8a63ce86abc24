"""A node is lost, and its place begins a new run: what the keeper takes from whom after that."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mesh.core.budget import CallRequest, scope_of
from mesh.core.events import (
    AgentStarted,
    AnyEvent,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    NodeCompleted,
    ToolIntent,
    ToolResult,
    UserMessage,
)
from mesh.core.places import Place
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper.loaded_conversation import LoadedConversation
from mesh.tree.turn import Activation
from tests.counted_work import opcodes
from tests.worlds.mesh import ScriptedLlm, WorldMesh, says


@asynccontextmanager
async def turn(journal: MemoryJournal | None = None) -> AsyncIterator[tuple[LoadedConversation, Activation]]:
    """A conversation in which a turn is open, and the root of the pass that runs."""
    async with WorldMesh(ScriptedLlm(says("never")), journal) as mesh:
        _, body = await mesh.create()
        loaded = await mesh.keeper._shard.get(body["conversation"]["id"])
        loaded.hold(UserMessage(turn=1, text="Hi"))
        yield loaded, (await loaded.begin_pass()).activation


def at(root: Activation, place: str, run: int | None = None) -> Activation:
    return replace(root, at=place, run=root.run if run is None else run)


def answer(place: str, number: int = 0) -> LlmCall:
    return LlmCall(turn=1, step=f"{place}/llm/{number}", model="scripted", text=place)


def claim(activation: Activation, attempt: int = 0) -> ToolIntent:
    return ToolIntent(
        turn=1,
        step=f"{activation.at}/tool/0.0",
        run=activation.run,
        tool="add",
        arguments={"n": 1},
        attempt=attempt,
        session="s.0",
    )


def result(place: str, content: str = "added") -> ToolResult:
    return ToolResult(turn=1, step=f"{place}/tool/0.0", call_id="c", tool="add", content=content)


def request(place: str) -> CallRequest:
    scopes = [scope_of("0", {"max_llm_calls": 999})]
    return CallRequest(step=f"{place}/llm/0", model="m", input_bytes=9, max_output=9, scopes=scopes)


async def takes_all_from(loaded: LoadedConversation, node: Activation) -> bool:
    """Whether a node may do what it likes; it is all or nothing."""
    recorded = await loaded.append_from_pass(node, [answer(node.at)])
    claimed = await loaded.append_from_pass(node, [claim(node)])
    reserved = (await loaded.reserve(node, [], replace(request(node.at), attempt=node.run), 1)).ack.taken
    assert recorded == claimed == reserved
    return recorded


async def test_what_is_left_of_a_lost_node_and_of_those_below_it_may_do_nothing_more() -> None:
    async with turn() as (loaded, root):
        restarted = await loaded.restart(at(root, "0.1"))
        assert restarted.ack.taken and restarted.run > root.run
        for place in ("0.1", "0.1.0", "0.1.0.a@0-0", "0.1.a@0-0-1.3"):
            assert not await takes_all_from(loaded, at(root, place))
        assert loaded.conversation.steps == []
        assert await takes_all_from(loaded, at(root, "0.1", restarted.run))
        assert await takes_all_from(loaded, at(root, "0.1.0", restarted.run))


async def test_the_nodes_around_a_lost_one_and_beside_it_go_on_as_before() -> None:
    async with turn() as (loaded, root):
        await loaded.restart(at(root, "0.1"))
        for place in ("0", "0.0", "0.10", "0.2.a@0-0"):
            assert await takes_all_from(loaded, at(root, place))


async def test_a_node_is_restarted_by_its_own_parent_and_by_nobody_that_was_lost_itself() -> None:
    async with turn() as (loaded, root):
        outer = await loaded.restart(at(root, "0.1"))
        assert not (await loaded.restart(at(root, "0.1.0"))).ack.taken  # by what is left of 0.1
        inner = await loaded.restart(at(root, "0.1.0", outer.run))
        assert inner.ack.taken and inner.run > outer.run
        assert not (await loaded.restart(root)).ack.taken  # the driver begins its runs
        again = await loaded.restart(at(root, "0.1"))
        assert not await takes_all_from(loaded, at(root, "0.1.0", inner.run))
        assert await takes_all_from(loaded, at(root, "0.1.0", again.run))
        await loaded.begin_pass()
        assert not (await loaded.restart(at(root, "0.1"))).ack.taken


async def test_a_restart_that_is_asked_for_twice_begins_two_runs_of_which_the_later_counts() -> None:
    async with turn() as (loaded, root):
        first = await loaded.restart(at(root, "0.1"))
        second = await loaded.restart(at(root, "0.1"))
        assert not await takes_all_from(loaded, at(root, "0.1", first.run))
        assert await takes_all_from(loaded, at(root, "0.1", second.run))


async def test_a_new_run_is_told_what_is_journaled_at_its_place_and_below_it() -> None:
    async with turn() as (loaded, root):
        places = ("0", "0.1", "0.1.0", "0.10", "0.1.a@0-0", "0.2", "0.1.1", "0.1.1.0")
        await loaded.append_from_pass(root, [answer(place) for place in places])
        await loaded.append_from_pass(root, [NodeCompleted(turn=1, step="0.1.1", name="n")])
        told = (await loaded.restart(at(root, "0.1"))).events
        assert [event.step for event in told] == ["0.1/llm/0", "0.1.0/llm/0", "0.1.a@0-0/llm/0", "0.1.1"]


async def test_the_result_of_a_tool_that_a_lost_node_claimed_is_taken_and_nothing_else_of_it() -> None:
    async with turn() as (loaded, root):
        lost = at(root, "0.1")
        assert await loaded.append_from_pass(lost, [claim(lost)])
        new = at(root, "0.1", (await loaded.restart(lost)).run)
        assert not await loaded.append_from_pass(lost, [answer("0.1"), result("0.1")])
        assert [type(e) for e in loaded.conversation.steps] == [ToolIntent, ToolResult]
        # The new run did not know of it when it began, so that it has to begin again before it goes on.
        assert not await loaded.append_from_pass(new, [claim(new, 1)])
        assert await loaded.append_from_pass(new, [answer("0.1")])


async def test_the_result_of_an_attempt_that_the_new_run_followed_with_another_is_not_taken() -> None:
    async with turn() as (loaded, root):
        lost = at(root, "0.1")
        assert await loaded.append_from_pass(lost, [claim(lost)])
        new = at(root, "0.1", (await loaded.restart(lost)).run)
        assert await loaded.append_from_pass(new, [claim(new, 1)])
        assert not await loaded.append_from_pass(lost, [result("0.1", "not begun")])
        assert "0.1/tool/0.0" not in loaded.conversation.results


class _Slow(MemoryJournal):
    """Its appends wait until they may ``go``."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = asyncio.Event(), asyncio.Event()
        self.go.set()

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        self.asked.set()
        async with asyncio.timeout(30):
            await self.go.wait()
        return await super().append(shard, epoch, append)


async def test_a_claim_that_is_being_journaled_when_its_node_is_lost_is_known_to_the_new_run() -> None:
    journal = _Slow()
    async with turn(journal) as (loaded, root):
        lost = at(root, "0.1")
        journal.go.clear()
        journal.asked.clear()
        claiming = asyncio.create_task(loaded.append_from_pass(lost, [claim(lost)]))
        await journal.asked.wait()
        restarting = asyncio.create_task(loaded.restart(lost))
        journal.go.set()
        assert await claiming
        assert [type(event) for event in (await restarting).events] == [ToolIntent]


async def test_what_a_lost_node_had_reserved_is_lost_and_what_others_have_is_not() -> None:
    async with turn() as (loaded, root):
        for place in ("0.1", "0.1.0", "0.2"):
            await loaded.reserve(at(root, place), [], request(place), 1)
        new = at(root, "0.1", (await loaded.restart(at(root, "0.1"))).run)
        lost = [event.step for event in loaded.conversation.steps if isinstance(event, LlmLost)]
        assert lost == ["0.1/llm/0", "0.1.0/llm/0"]
        granted = (await loaded.reserve(new, [], replace(request("0.1"), attempt=1), 1)).event
        assert isinstance(granted, LlmReserved)
        assert (granted.run, granted.pass_run) == (new.run, root.run)
        use = loaded.conversation.budget_use
        in_flight = use.in_flight(Place("0"), root.run)
        assert {(each.step, each.attempt) for each in in_flight} == {("0.2/llm/0", 0), ("0.1/llm/0", 1)}
        assert use.run == root.run


async def test_a_call_that_waits_for_the_calls_of_a_lost_node_goes_on() -> None:
    async with turn() as (loaded, root):
        two = [scope_of("0", {"max_llm_calls": 2, "max_total_tokens": 3000})]
        large = replace(request("0.1"), scopes=two, input_bytes=2000, max_output=1900)
        first = await loaded.reserve(at(root, "0.1"), [], large, 30)
        assert isinstance(first.event, LlmReserved)
        waiting = asyncio.create_task(
            loaded.reserve(at(root, "0.2"), [], replace(large, step="0.2/llm/0"), 30)
        )
        await asyncio.sleep(0)
        await loaded.restart(at(root, "0.1"))
        assert (await asyncio.wait_for(waiting, 30)).event is not None


def _ended(how: str) -> list[AnyEvent]:
    called = AgentStarted(turn=1, step="0.1.a@0-0", name="a", kind="llm", agent_path=("main", "a"))
    match how:
        case "completed" | "deleted":
            return [NodeCompleted(turn=1, step="0.1.a@0-0", name="a", status=how)]
        case _:
            return [called, ToolResult(turn=1, step="0.1/tool/0.0", call_id="c", tool="a", content="")]


@settings(deadline=None)
@given(st.sampled_from(["completed", "deleted", "answered"]), st.sampled_from(["", ".2", ".b@0-0-1"]))
def test_nothing_is_added_to_a_place_that_has_ended_but_what_is_true_of_its_calls(
    how: str, below: str
) -> None:
    async def lived() -> None:
        async with turn() as (loaded, root):
            place = f"0.1.a@0-0{below}"
            node = at(root, place)
            before = [answer(place), claim(node)]
            assert await loaded.append_from_pass(node, before)
            assert await loaded.append_from_pass(root, _ended(how))
            told = len(loaded.conversation.steps)
            for late in (answer(place, 1), replace(claim(node), attempt=1), NodeCompleted(name="n")):
                event = replace(late, turn=1, step=late.step or f"{place}.9")
                assert not await loaded.append_from_pass(root, [event])
            assert not (await loaded.reserve(node, [], request(place), 1)).ack.taken
            assert not (await loaded.restart(node)).ack.taken
            assert len(loaded.conversation.steps) == told
            assert await loaded.append_from_pass(root, [*before, *_ended(how)])  # told twice, as often
            settled = LlmSettled(turn=1, step=f"{place}/llm/0", cost_nusd=1)
            assert await loaded.append_from_pass(root, [settled, result(place)])
            assert await loaded.append_from_pass(root, [answer("0.1")])

    asyncio.run(lived())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["0.1", "0.1.0", "0.1.0.0", "0.2"]), st.booleans()), max_size=12))
def test_in_any_order_of_losses_a_node_counts_until_it_or_one_around_it_is_lost(
    history: Sequence[tuple[str, bool]],
) -> None:
    async def lived() -> None:
        async with turn() as (loaded, root):
            runs = dict.fromkeys(("0", "0.1", "0.1.0", "0.1.0.0", "0.2"), root.run)
            left: list[Activation] = []
            for place, by_lost in history:
                parent = place.rpartition(".")[0]
                asks = left[-1].run if by_lost and left else runs[parent]
                left += [
                    at(root, each, run) for each, run in runs.items() if Place(place).contains(Place(each))
                ]
                restarted = await loaded.restart(at(root, place, asks))
                assert restarted.ack.taken == (asks == runs[parent])
                if restarted.ack.taken:
                    runs |= {each: restarted.run for each in runs if Place(place).contains(Place(each))}
                for each, run in runs.items():
                    assert loaded.is_current(at(root, each, run))
                stale = [node for node in left if node.run != runs[node.at]]
                assert not any(loaded.is_current(node) for node in stale)

    asyncio.run(lived())


async def test_a_restart_costs_what_happened_at_its_place_however_large_the_turn_is() -> None:
    async def cost(agents: int) -> int:
        async with turn() as (loaded, root):
            places = [f"0.a@0-0-{i}" for i in range(agents)]
            starts: list[AnyEvent] = [
                AgentStarted(turn=1, step=place, name="a", kind="llm", agent_path=("m", "a"), by="spawn")
                for place in places
            ]
            await loaded.append_from_pass(root, starts + [answer(place) for place in places])
            for place in places:
                await loaded.reserve(at(root, place), [], replace(request(place), step=f"{place}/llm/1"), 1)
            for place in places[1:]:
                await loaded.restart(at(root, place))
            restart = loaded.restart(at(root, places[0]))

            def last() -> None:
                # Nothing in it waits: the journal is in memory, and the lock is free.
                try:
                    restart.send(None)
                except StopIteration as done:
                    assert len(done.value.events) == 4
                else:
                    raise AssertionError("it waits")

            return opcodes(last)

    assert await cost(200) < 1.5 * await cost(10)

"""What a keeper does for an event of a turn, for a reservation and for a decision does not depend on how many
agents the turn has."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.core.budget import CallRequest, Scope
from mesh.core.events import AnyEvent, ApprovalRequired, LlmReserved, ToolIntent
from mesh.keeper.requests import NoteApprovalShown
from mesh.tree.turn import Activation, PassInput, PassOutput
from tests.core.turns import Beginning, agents_side_by_side, in_the_middle, place_of
from tests.counted_work import allocated_of, opcodes_of
from tests.worlds.mesh import WorldMesh
from tests.worlds.trees import ByNode, config, llm

Cost = Callable[[Awaitable[Any]], Awaitable[int]]
WHOLE = Scope("0", max_nusd=10**15, max_calls=10**6, max_tokens=10**9, max_time_s=1e6)


class Parked(WorldMesh):
    """A mesh whose passes do nothing: a test says what its nodes tell the keeper."""

    def __init__(self) -> None:
        super().__init__(ByNode(), config=config(llm("main")))
        self.began = asyncio.Queue[PassInput]()

    async def run(self, turn: PassInput) -> PassOutput:
        self.began.put_nowait(turn)
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


class OpenTurn:
    """An open turn of a keeper, with the events of its agents that are still to come."""

    def __init__(self, world: WorldMesh, turn: PassInput, to_come: Sequence[AnyEvent]) -> None:
        self.world = world
        self.at = Activation(turn.conversation_id, turn.turn, turn.run, "0")
        self.to_come = [_of_run(event, turn.run) for event in to_come]

    async def append(self, *events: AnyEvent) -> None:
        assert (await self.world.keeper.append(self.at, events)).taken

    async def shown(self, asked: ApprovalRequired) -> None:
        """A client has been shown an approval."""
        await self.world.keeper.handle(NoteApprovalShown(self.at.conversation_id, asked.uuid))

    async def reserve(self, place: str, *events: AnyEvent) -> None:
        """Reserves the next model call at a place, after these events."""
        request = CallRequest(
            step=f"{place}/llm/7",
            model="m",
            input_bytes=100,
            max_output=100,
            scopes=[WHOLE, Scope(place, max_calls=10)],
            nusd_input=1,
            nusd_output=1,
            warn_at=0.8,
        )
        reply = await self.world.keeper.reserve(self.at, events, request)
        assert isinstance(reply.event, LlmReserved)


def _of_run(event: AnyEvent, run: int) -> AnyEvent:
    made = {"run": run} if isinstance(event, LlmReserved | ToolIntent) else {}
    return replace(event, seq=0, **made)


@asynccontextmanager
async def open_turn(count: int, how: Beginning, *, asks: bool) -> AsyncIterator[OpenTurn]:
    """A turn in which so many agents are at work, as many at each of their steps."""
    events = agents_side_by_side(count, how, asks=asks)
    middle = in_the_middle(events, count, how)
    world = Parked()
    async with world, asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        client = tasks.create_task(world.create("go"))
        turn = OpenTurn(world, await world.began.get(), events)
        before, turn.to_come = turn.to_come[2 : middle.start], turn.to_come[middle]
        await turn.append(*before)
        yield turn
        client.cancel()


def least_by_step(costs: list[int]) -> int:
    """The most that a step of an agent costs, where each is there three times: now and then a dict makes room
    for many more entries, or a task of the keeper runs beside it."""
    steps = len(costs) // 3
    return max(min(costs[step::steps]) for step in range(steps))


@pytest.mark.parametrize("how", ["child", "called", "started"])
@pytest.mark.parametrize("cost", [opcodes_of, allocated_of])
async def test_an_append_costs_the_same_however_many_agents_there_are(how: Beginning, cost: Cost) -> None:
    async def most(count: int) -> int:
        async with open_turn(count, how, asks=True) as turn:
            return least_by_step([await cost(turn.append(event)) for event in turn.to_come])

    few, many = await most(60), await most(600)
    assert many <= 1.3 * few + 1_000


@pytest.mark.parametrize("how", ["child", "called", "started"])
@pytest.mark.parametrize("cost", [opcodes_of, allocated_of])
async def test_a_reservation_costs_the_same_however_many_agents_there_are(how: Beginning, cost: Cost) -> None:
    async def most(count: int) -> int:
        async with open_turn(count, how, asks=True) as turn:
            places = (place_of(count + n, how).text for n in range(len(turn.to_come)))
            reserved = [
                await cost(turn.reserve(place, event))
                for place, event in zip(places, turn.to_come, strict=True)
            ]
            return least_by_step(reserved)

    few, many = await most(60), await most(600)
    assert many <= 1.3 * few + 1_000


@pytest.mark.parametrize("cost", [opcodes_of, allocated_of])
async def test_to_note_that_an_approval_was_shown_costs_the_same_however_many_wait(cost: Cost) -> None:
    async def least(count: int) -> int:
        async with open_turn(count, "started", asks=True) as turn:
            asked = [event for event in turn.to_come if isinstance(event, ApprovalRequired)]
            await turn.append(*asked)
            return min([await cost(turn.shown(each)) for each in asked])

    few, many = await least(60), await least(600)
    assert many <= 1.3 * few + 1_000

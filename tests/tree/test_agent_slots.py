"""Slots, from the nodes to the keeper: whatever starts what, waits for what and is repeated, nobody waits for
ever, and never do more agents work than there are slots."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mesh.core.errors import Unavailable
from mesh.core.places import ROOT, Place
from mesh.keeper.turn_slots import TurnSlots
from mesh.tree import agent_slots
from mesh.tree.agent_slots import AgentSlots
from mesh.tree.turn import Activation, SlotReply, SlotRequest
from tests.worlds.mesh import until


@pytest.fixture(autouse=True)
def _give_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_slots, "GIVE_BACK_S", 0.001)


class _Keeper:
    """The slots of a keeper, as a `Recorder` behind a wire: calls take a while, and some arrive twice."""

    def __init__(self, at_once: int, seed: int = 0) -> None:
        self.slots_of_turn = TurnSlots(at_once)
        self.random = random.Random(seed)
        self.calls = 0
        self.is_over = False
        self.fails = False

    async def pause(self) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        self.calls += 1
        await self.pause()
        if self.fails:
            raise Unavailable("the keeper does not answer")
        if self.is_over:
            return None
        is_repeated = self.random.random() < 0.2
        if not request.number:
            reply = await self.slots_of_turn.news(request)
        else:
            reply = self.slots_of_turn.change(request)
            await self.pause()
            reply = self.slots_of_turn.change(request) if is_repeated else reply
        await self.pause()
        return None if self.is_over else reply


def _slots(keeper: _Keeper, place: Place, own: str = "") -> AgentSlots:
    return AgentSlots(Activation("c", 1, 1, place.text), keeper, own)  # type: ignore[arg-type]


async def _until(what: Callable[[], bool]) -> None:
    async def asked() -> bool:
        return what()

    await until(asked)


@dataclass
class _Plan:
    """What an agent does: numbers are steps of work, None is a wait for all that it has started, and lists
    of plans are agents that it starts; those in a tuple are done side by side in its own slot."""

    acts: list[Any] = field(default_factory=list)


def _plans(depth: int, *, beside: bool = False) -> st.SearchStrategy[_Plan]:
    act = st.one_of(st.integers(0, 2), st.none())
    if depth:
        several = st.lists(_plans(depth - 1, beside=beside), min_size=1, max_size=4)
        act = st.one_of(act, several, several.map(tuple)) if beside else st.one_of(act, several)
    return st.builds(_Plan, st.lists(act, max_size=5))


class _World:
    """Agents that do what their plans say. ``is_strict``: they do it alone in their slots, so that never more
    of them work than there are slots."""

    def __init__(self, keeper: _Keeper, at_once: int, *, is_strict: bool = True) -> None:
        self.keeper = keeper
        self.at_once = at_once
        self.is_strict = is_strict
        self.working: set[str] = set()
        self.most = self.ended = 0

    def begins(self, place: Place) -> None:
        self.working.add(place.text)
        self.most = max(self.most, len(self.working))
        assert len(self.working) <= self.at_once or not self.is_strict

    async def run(self, place: Place, plan: _Plan, own: str | None = None) -> None:
        own = ("" if place == ROOT else place.text) if own is None else own
        slots, running = _slots(self.keeper, place, own), list[asyncio.Task[None]]()
        for number, act in enumerate([*plan.acts, None]):
            if isinstance(act, int):
                for _ in range(act):
                    await asyncio.sleep(0)
            elif act is None:
                self.working.discard(place.text)
                slots.rest()
                await asyncio.gather(*running)
                assert await slots.work()
                if own:
                    self.begins(place)
            elif isinstance(act, tuple):
                children = (place.child(index, number) for index in range(len(act)))
                beside = (self.run(child, one, own) for child, one in zip(children, act, strict=True))
                await asyncio.gather(*beside)
            else:
                running += await self.start(slots, place, number, act)
        await slots.close()

    async def start(
        self, slots: AgentSlots, place: Place, number: int, plans: Sequence[_Plan]
    ) -> list[asyncio.Task[None]]:
        call = place.model_call(number).tool_call(0)
        places = [call.started_agent("x", index) for index in range(len(plans))]
        texts = [each.text for each in places]
        await self.keeper.pause()
        granted = self.keeper.slots_of_turn.start(slots.asker, texts)
        is_short = self.keeper.slots_of_turn.is_short
        await self.keeper.pause()
        slots.started(texts, granted, is_short=is_short)
        return [
            asyncio.create_task(self.agent(slots, one, plan)) for one, plan in zip(places, plans, strict=True)
        ]

    async def agent(self, slots: AgentSlots, place: Place, plan: _Plan) -> None:
        assert await slots.take(place.text)
        self.begins(place)
        await self.run(place, plan)
        self.working.discard(place.text)
        self.ended += 1
        is_told = self.keeper.random.random() < 0.5
        slots.give_back(place.text, is_told=is_told)
        if is_told:
            slots.ended(place.text)
            await self.keeper.pause()
            self.keeper.slots_of_turn.end(place, is_leaf=False)


def _chain(length: int) -> _Plan:
    """An agent that waits for one that waits for one, and so on."""
    plan = _Plan()
    for _ in range(length):
        plan = _Plan([[plan], None])
    return plan


def _count(plan: _Plan) -> int:
    several = (act for act in plan.acts if isinstance(act, list | tuple))
    return sum(isinstance(act, list) + _count(one) for act in several for one in act)


@settings(max_examples=60)
@given(_plans(3), st.integers(1, 4), st.integers(0, 1_000))
async def test_any_tree_of_agents_that_start_and_wait_for_agents_ends_with_any_number_of_slots(
    plan: _Plan, at_once: int, seed: int
) -> None:
    keeper = _Keeper(at_once, seed)
    world = _World(keeper, at_once)
    async with asyncio.timeout(60):
        await world.run(ROOT, plan)
    assert world.ended == _count(plan)
    assert not keeper.slots_of_turn.waiting and not world.working


@settings(max_examples=60)
@given(_plans(3, beside=True), st.integers(1, 4), st.integers(0, 1_000))
@example(_Plan([[_Plan([(_chain(1), _chain(3), _chain(2))])]]), 1, 0)
async def test_so_does_any_tree_whose_agents_do_several_things_side_by_side(
    plan: _Plan, at_once: int, seed: int
) -> None:
    keeper = _Keeper(at_once, seed)
    world = _World(keeper, at_once, is_strict=False)
    async with asyncio.timeout(60):
        await world.run(ROOT, plan)
    assert world.ended == _count(plan)
    assert not keeper.slots_of_turn.waiting


async def test_agents_that_wait_for_agents_that_wait_end_with_one_slot() -> None:
    plan = _Plan([])
    for _ in range(30):
        plan = _Plan([1, [plan, _Plan([1])], None, 1])
    world = _World(_Keeper(1), 1)
    async with asyncio.timeout(60):
        await world.run(ROOT, plan)
    assert world.ended == 60 and world.most == 1


async def test_agents_for_which_there_are_slots_cost_no_call() -> None:
    keeper = _Keeper(32)
    slots = _slots(keeper, ROOT)
    texts = [f"0.x@0-0-{index}" for index in range(32)]
    slots.started(texts, keeper.slots_of_turn.start(slots.asker, texts), is_short=False)
    for text in texts:
        assert await slots.take(text)
    for text in texts:
        slots.give_back(text, is_told=False)
        slots.ended(text)
    await slots.close()
    assert keeper.calls == 0


async def test_a_thousand_agents_in_a_row_of_slots_cost_far_fewer_calls_than_agents() -> None:
    keeper = _Keeper(32)
    world = _World(keeper, 32)
    async with asyncio.timeout(60):
        await world.run(ROOT, _Plan([[_Plan([2]) for _ in range(1_000)]]))
    assert world.ended == 1_000 and world.most == 32
    assert keeper.calls < 700


async def test_a_slot_that_comes_before_the_reply_to_the_start_is_not_lost() -> None:
    keeper, texts = _Keeper(1), ["0.x@0-0-0", "0.x@0-0-1", "0.x@0-0-2"]
    slots = _slots(keeper, ROOT)
    async with asyncio.timeout(30):
        slots.started(texts[:1], keeper.slots_of_turn.start(slots.asker, texts[:1]), is_short=False)
        assert await slots.take(texts[0])
        granted = keeper.slots_of_turn.start(slots.asker, texts[1:])
        assert not granted
        # The reply is on its way; meanwhile the slot of the first goes to the second.
        slots.give_back(texts[0], is_told=False)
        await _until(lambda: keeper.slots_of_turn.held == {texts[1]})
        await asyncio.sleep(0.01)
        slots.started(texts[1:], granted, is_short=True)
        assert await slots.take(texts[1])
        slots.give_back(texts[1], is_told=False)
        assert await slots.take(texts[2])
        await slots.close()


async def test_an_agent_that_waits_for_nothing_longer_gives_nothing_back() -> None:
    keeper = _Keeper(1)
    keeper.slots_of_turn.start("other", ["0.x@0-0-0"])
    slots = _slots(keeper, Place("0.x@0-0-0"), "0.x@0-0-0")
    slots.rest()
    assert await slots.work()
    await slots.close()
    assert keeper.calls == 0 and keeper.slots_of_turn.held == {"0.x@0-0-0"}


async def test_whoever_waits_for_a_slot_hears_that_a_newer_pass_runs() -> None:
    keeper = _Keeper(1)
    slots = _slots(keeper, ROOT)
    async with asyncio.timeout(30):
        assert await slots.take("0.x@0-0-0")
        waits = asyncio.create_task(slots.take("0.x@0-0-1"))
        await asyncio.sleep(0.01)
        keeper.is_over = True
        keeper.slots_of_turn.lose_all()
        assert await waits is False
        await slots.close()


async def test_whoever_waits_for_a_slot_hears_that_the_keeper_does_not_answer() -> None:
    keeper = _Keeper(1)
    keeper.fails = True
    slots = _slots(keeper, ROOT)
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable):
            await slots.take("0.x@0-0-0")
        keeper.fails = False
        assert await slots.take("0.x@0-0-0")
        await slots.close()


async def test_an_agent_that_is_ended_while_it_waits_waits_no_more() -> None:
    keeper = _Keeper(1)
    slots = _slots(keeper, ROOT)
    async with asyncio.timeout(30):
        assert await slots.take("0.x@0-0-0")
        ended = asyncio.create_task(slots.take("0.x@0-0-1"))
        waits = asyncio.create_task(slots.take("0.x@0-0-2"))
        await _until(lambda: len(keeper.slots_of_turn.waiting) == 2)
        assert slots.is_queued("0.x@0-0-1") and slots.is_queued("0.x@0-0-2")
        ended.cancel()
        await asyncio.gather(ended, return_exceptions=True)
        slots.give_back("0.x@0-0-1", is_told=False)
        slots.give_back("0.x@0-0-0", is_told=False)
        assert await waits
        assert keeper.slots_of_turn.held == {"0.x@0-0-2"} and not slots.is_queued("0.x@0-0-1")
        await slots.close()


async def test_an_agent_that_is_ended_before_it_began_to_run_is_waited_for_no_more() -> None:
    keeper, texts = _Keeper(1), ["0.x@0-0-0", "0.x@0-0-1"]
    slots = _slots(keeper, ROOT)
    slots.started(texts, keeper.slots_of_turn.start(slots.asker, texts), is_short=True)
    assert slots.is_queued(texts[1])
    slots.ended(texts[1])
    assert not slots.is_queued(texts[1])
    await slots.close()


async def test_an_own_slot_that_nobody_wants_any_more_is_given_back_when_it_comes() -> None:
    keeper, own = _Keeper(1), "0.x@0-0-0"
    keeper.slots_of_turn.start("other", [own, "0.x@0-0-1"])
    slots = _slots(keeper, Place(own), own)
    slots.rest()
    async with asyncio.timeout(30):
        await _until(lambda: own not in keeper.slots_of_turn.held)
        wants = asyncio.create_task(slots.work())
        await _until(lambda: own in keeper.slots_of_turn.waiting)
        wants.cancel()
        await asyncio.gather(wants, return_exceptions=True)
        keeper.slots_of_turn.end(Place("0.x@0-0-1"), is_leaf=True)
        await _until(lambda: not keeper.slots_of_turn.held)
        assert await slots.work() and keeper.slots_of_turn.held == {own}
        await slots.close()


async def test_what_runs_again_after_its_process_was_gone_has_a_slot() -> None:
    keeper, place = _Keeper(1), "0.x@0-0-0"
    slots = _slots(keeper, ROOT)
    async with asyncio.timeout(30):
        assert await slots.take(place)
        below = _slots(keeper, Place(place), place)
        below.rest()
        await _until(lambda: not keeper.slots_of_turn.held)
        below.abandon()
        assert await slots.keep(place) and keeper.slots_of_turn.held == {place}
        assert await slots.keep(place)
        await slots.close()


@pytest.mark.parametrize("rests", [False, True])
async def test_what_is_given_back_while_the_keeper_does_not_answer_is_given_back_later(rests: bool) -> None:
    keeper = _Keeper(1)
    own = "0.x@0-0-0"
    slots, others = _slots(keeper, Place(own), own if rests else ""), _slots(keeper, Place("0.1"))
    async with asyncio.timeout(30):
        if rests:
            keeper.slots_of_turn.start("parent", [own])
        else:
            assert await slots.take(f"{own}.y@0-0-0")
        keeper.fails = True
        slots.rest() if rests else slots.give_back(f"{own}.y@0-0-0", is_told=False)
        before = keeper.calls

        async def has_failed() -> bool:
            return keeper.calls > before

        await until(has_failed)
        keeper.fails = False
        assert await others.take("0.1.z@0-0-0")
        await others.close()
        await slots.close()


async def test_whoever_may_have_given_its_slot_back_asks_for_it_again() -> None:
    own = "0.x@0-0-0"

    class _Deaf(_Keeper):
        """Carries a request out, and its reply is lost."""

        async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
            reply = await super().slots(activation, request)
            if request.rests:
                raise Unavailable("the keeper does not answer")
            return reply

    keeper = _Deaf(1)
    keeper.slots_of_turn.start("parent", [own])
    slots = _slots(keeper, Place(own), own)
    async with asyncio.timeout(30):
        slots.rest()

        async def has_rested() -> bool:
            return own not in keeper.slots_of_turn.held

        await until(has_rested)
        assert await slots.work()
        assert own in keeper.slots_of_turn.held
        await slots.close()

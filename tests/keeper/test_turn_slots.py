"""The slots of a turn in the keeper: who works, who waits in which order, and what the nodes hear of it."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.core.places import Place
from mesh.keeper.turn_slots import TurnSlots
from mesh.tree.turn import SlotReply, SlotRequest, SlotTake


class Node:
    """A node that asks, and remembers what it was granted."""

    def __init__(self, slots: TurnSlots, name: str = "n") -> None:
        self.slots = slots
        self.name = name
        self.number = self.tickets = 0
        self.granted: list[str] = []

    def ask(
        self, take: Sequence[str] = (), free: Sequence[str] = (), rests: str = "", times: int = 1
    ) -> SlotReply:
        takes = [SlotTake(place, ticket) for ticket, place in enumerate(take, self.tickets + 1)]
        self.tickets += len(takes)
        self.number += 1
        request = SlotRequest(self.name, len(self.granted), self.number, take=takes, free=free, rests=rests)
        for _ in range(times):
            reply = self.slots.change(request)
        self.hear(reply)
        return reply

    def hear(self, reply: SlotReply) -> None:
        assert reply.before <= len(self.granted)
        self.granted += [take.place for take in reply.granted[len(self.granted) - reply.before :]]

    def again(self) -> SlotRequest:
        return SlotRequest(self.name, len(self.granted))


def places(count: int, prefix: str = "0.x@0-0-") -> list[str]:
    return [f"{prefix}{index}" for index in range(count)]


def test_those_that_start_get_the_free_slots_and_the_others_wait_in_their_order() -> None:
    slots = TurnSlots(2)
    assert slots.start("n", places(4)) == tuple(places(4)[:2])
    assert slots.waiting == tuple(places(4)[2:]) and slots.is_short
    node = Node(slots)
    assert node.ask(free=[places(4)[0]]).is_short
    assert node.granted == [places(4)[2]]
    assert not node.ask(free=[places(4)[1]]).is_short
    assert node.granted == places(4)[2:]


def test_a_start_that_is_repeated_changes_nothing_and_says_the_same() -> None:
    slots = TurnSlots(2)
    first = slots.start("n", places(4))
    assert slots.start("n", places(4)) == first and slots.waiting == tuple(places(4)[2:])


def test_a_slot_that_becomes_free_goes_to_whoever_waited_first_whichever_node_it_is() -> None:
    slots = TurnSlots(1)
    one, other = Node(slots, "one"), Node(slots, "other")
    one.ask(take=["a"])
    other.ask(take=["b"])
    one.ask(take=["c"])
    one.ask(free=["a"])
    assert one.granted == ["a"] and slots.held == {"b"}
    other.ask(free=["b"])
    assert other.granted == ["b"] and slots.held == {"c"}


def test_the_end_of_an_agent_frees_its_slot_and_those_below_it() -> None:
    slots = TurnSlots(3)
    Node(slots).ask(
        take=["0.x@0-0-0", "0.x@0-0-0.y@0-0-0", "0.x@0-0-0.y@0-0-1", "0.x@0-0-0.y@0-0-2", "0.x@0-0-1"]
    )
    slots.end(Place("0.x@0-0-0"), is_leaf=False)
    assert slots.held == {"0.x@0-0-1"} and not slots.waiting


def test_an_agent_that_rests_gives_its_slot_up_and_waits_at_the_end_of_the_queue_for_another() -> None:
    slots = TurnSlots(1)
    node = Node(slots)
    node.ask(take=["a", "b"])
    node.ask(rests="a")
    node.ask(take=["a"])
    assert slots.held == {"b"} and slots.waiting == ("a",)
    node.ask(rests="a")  # it has none to give
    assert slots.waiting == ("a",)
    node.ask(free=["b"])
    assert node.granted == ["a", "b", "a"]


def test_whoever_has_a_slot_and_asks_for_it_again_has_it() -> None:
    slots = TurnSlots(1)
    one, other = Node(slots, "one"), Node(slots, "other")
    one.ask(take=["a"])
    other.ask(take=["a"])
    assert one.granted == other.granted == ["a"] and slots.held == {"a"}


def test_two_that_wait_for_the_slot_of_one_agent_both_hear_of_it() -> None:
    slots = TurnSlots(1)
    one, other = Node(slots, "one"), Node(slots, "other")
    one.ask(take=["a"])
    one.ask(take=["b"])
    other.ask(take=["b"])
    one.ask(free=["a"])
    other.hear(slots.change(other.again()))
    assert one.granted == ["a", "b"] and other.granted == ["b"]


def test_a_request_that_arrives_again_after_a_newer_one_is_not_carried_out() -> None:
    slots = TurnSlots(1)
    node = Node(slots)
    node.ask(take=["a"])
    node.ask(free=["a"])
    slots.change(SlotRequest("n", 0, 1, take=[SlotTake("a", 1)]))
    assert not slots.held


def test_what_a_lost_reply_said_is_said_again() -> None:
    slots = TurnSlots(2)
    slots.change(SlotRequest("n", 0, 1, take=[SlotTake("a", 1)]))
    assert slots.change(SlotRequest("n", 0, 2, take=[SlotTake("b", 2)])).granted == (
        SlotTake("a", 1),
        SlotTake("b", 2),
    )


def test_a_subtree_that_restarts_begins_without_the_slots_below_it() -> None:
    slots = TurnSlots(3)
    node = Node(slots)
    node.ask(take=["0.x@0-0-0", "0.x@0-0-0.y@0-0-0", "0.x@0-0-10", "0.x@0-0-0.y@0-0-1", "0.x@0-0-2"])
    slots.lose_below(Place("0.x@0-0-0"))
    assert slots.held == {"0.x@0-0-0", "0.x@0-0-10", "0.x@0-0-2"} and not slots.waiting


async def test_who_waits_for_news_hears_of_a_grant_and_of_the_end_of_the_pass() -> None:
    slots = TurnSlots(1)
    one, other = Node(slots, "one"), Node(slots, "other")
    one.ask(take=["a"])
    other.ask(take=["b"])
    other.ask(take=["c"])
    async with asyncio.timeout(30):
        news = asyncio.create_task(slots.news(other.again()))
        await asyncio.sleep(0)
        one.ask(free=["a"])
        other.hear(await news)
        assert other.granted == ["b"]
        news = asyncio.create_task(slots.news(other.again()))
        await asyncio.sleep(0)
        slots.lose_all()
        assert (await news).granted == () and not slots.held and not slots.waiting


acts = st.lists(
    st.tuples(
        st.sampled_from(["start", "take", "free", "rest", "end", "restart"]),
        st.integers(0, 2),  # which node
        st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),  # which places
        st.integers(1, 2),  # how often the request arrives
    ),
    max_size=60,
)


@given(st.integers(1, 4), acts)
def test_never_more_than_there_are_have_one_and_none_is_left_free_while_somebody_waits(
    at_once: int, actions: list[tuple[str, int, list[int], int]]
) -> None:
    slots = TurnSlots(at_once)
    nodes = [Node(slots, name) for name in "abc"]
    names = [f"0.x@0-0-{i}" if i < 4 else f"0.x@0-0-{i - 4}.y@0-0-0" for i in range(8)]
    for what, who, which, times in actions:
        node, chosen = nodes[who], [names[index] for index in which]
        before = slots.waiting
        match what:
            case "start":
                for _ in range(times):
                    assert set(slots.start(node.name, chosen)) == slots.held & set(chosen)
            case "take":
                node.ask(take=chosen, times=times)
                assert all(place in slots.held or place in slots.waiting for place in chosen)
            case "free":
                node.ask(free=chosen, times=times)
                assert slots.held.isdisjoint(chosen) and not set(chosen) & set(slots.waiting)
            case "rest":
                node.ask(rests=chosen[0], times=times)
            case "end":
                slots.end(Place(chosen[0]), is_leaf=False)
                assert not any(each.startswith(chosen[0]) for each in (*slots.held, *slots.waiting))
            case _:
                slots.lose_below(Place(chosen[0]))
        assert len(slots.held) <= at_once and slots.held.isdisjoint(slots.waiting)
        assert len(slots.held) == at_once or not slots.waiting
        # Who waits on does so in the order of before.
        stays = [place for place in before if place in slots.waiting]
        if what != "free" and what != "take":
            assert [place for place in slots.waiting if place in stays] == stays


@pytest.mark.parametrize("count", [1_000, 4_000])
def test_many_agents_wait_in_one_queue(count: int) -> None:
    slots = TurnSlots(32)
    node = Node(slots)
    assert len(slots.start("n", places(count))) == 32
    for place in places(count):
        node.ask(free=[place])
    assert node.granted == places(count)[32:] and not slots.held

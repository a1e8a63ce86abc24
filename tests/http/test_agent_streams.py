"""Agents at work as streams: all of them with what changes, and what happens in one of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from mesh.keeper import changed_agents
from mesh.keeper.changed_agents import ChangedAgents
from mesh.keeper.requests import FollowAgents
from tests.http.test_agent_routes import World, ended, search_of, world

__all__ = ["world"]  # the fixture
WITHIN_S = 30.0
LIVE = {"Accept": "text/event-stream"}


class Frames:
    """What a client reads of a stream: the name and the data of each event. ``last`` is the newest id."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.aiter_lines()
        self.last = ""

    async def next(self) -> tuple[str, dict[str, Any]]:
        """The next event."""
        name, data = "message", None
        async with asyncio.timeout(WITHIN_S):
            async for line in self._lines:
                key, _, value = line.partition(": ")
                if key == "event":
                    name = value
                elif key == "data":
                    data = msgspec.json.decode(value)
                elif key == "id":
                    self.last = value
                elif not line and data is not None:
                    return name, data
        raise AssertionError("the stream ended")

    async def states(self, *ids: str, **fields: str) -> dict[str, Any]:
        """The newest state of each of these agents, once they all have these fields."""
        found: dict[str, Any] = {}
        while not all({**found.get(id, {}), **fields} == found.get(id) for id in ids):
            name, state = await self.next()
            assert name == "agent_state"
            found[state["agentId"]] = state
        return found


@asynccontextmanager
async def stream(world: World, path: str = "/agent/tree", last: str = "") -> AsyncIterator[Frames]:
    headers = {**LIVE, **({"Last-Event-ID": last} if last else {})}
    async with world.http.stream("GET", path, headers=headers, timeout=WITHIN_S) as response:
        assert response.status_code == 200, await response.aread()
        yield Frames(response)


async def test_the_stream_of_the_tree_is_a_snapshot_and_then_what_changes(world: World) -> None:
    tree = await world.tree()
    agent = search_of(tree, "cats")
    async with stream(world) as frames:
        assert await frames.next() == ("snapshot", {"agents": tree})
        await world.http.post(f"/agent/{agent}/intervene", json={"action": "pause"})
        assert set(await frames.states(agent, detail="paused")) <= {agent, world.conversation}
        await world.http.post(f"/agent/{agent}/intervene", json={"action": "resume"})
        await frames.states(agent, status="running")
        await ended(world)
        states = await frames.states(*tree, status="completed")
    assert states == await world.tree(conversation=world.conversation, all="true")
    assert states[agent]["model"] == "scripted" and states[agent]["saying"]


async def test_who_comes_back_gets_what_has_changed_meanwhile_and_no_snapshot(world: World) -> None:
    agent, other = search_of(await world.tree(), "cats"), search_of(await world.tree(), "dogs")
    async with stream(world) as frames:
        await frames.next()
        last = frames.last
    await world.http.post(f"/agent/{agent}/intervene", json={"action": "comment", "text": "only tabbies"})
    async with stream(world, last=last) as frames:
        states = await frames.states(agent, userComment="only tabbies")
    assert other not in states


@pytest.mark.parametrize("last", ["17", "1.2", "0"])
async def test_who_comes_back_with_an_id_that_nobody_knows_gets_a_snapshot(world: World, last: str) -> None:
    async with stream(world, last=last) as frames:
        assert await frames.next() == ("snapshot", {"agents": await world.tree()})


async def test_what_is_no_id_of_the_stream_is_refused(world: World) -> None:
    answer = await world.http.get("/agent/tree", headers={**LIVE, "Last-Event-ID": "x"})
    assert (answer.status_code, answer.json()) == (
        400,
        {"error": "Last-Event-ID is not one that this stream gave"},
    )


@pytest.mark.parametrize(
    ("query", "status"),
    [("conversation=x", 400), ("conversation=00000000-0000-4000-8000-000000000000", 404), ("all=maybe", 400)],
)
async def test_a_stream_of_what_is_not_there_is_refused(world: World, query: str, status: int) -> None:
    answer = await world.http.get(f"/agent/tree?{query}", headers=LIVE)
    assert answer.status_code == status and answer.json()["error"]


async def test_agents_of_a_turn_that_another_one_followed_at_once_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_agents, "_GATHERS_S", 1.0)
    tree = await world.tree()
    async with stream(world) as frames:
        await frames.next()
        await ended(world)
        await world.http.post(f"/conversations/{world.conversation}/messages", json={"message": "again"})
        agents = [id for id in tree if id != world.conversation]
        states = await frames.states(*agents, status="completed")
    assert {states[id]["turn"] for id in agents} == {1}


async def test_a_stream_of_one_conversation_has_nothing_of_the_others(world: World) -> None:
    async with stream(world, f"/agent/tree?conversation={world.conversation}") as frames:
        await frames.next()
        async with stream(world) as all_frames:
            await all_frames.next()
            await world.http.post(
                "/conversations", json={"message": "another"}, headers={"Prefer": "respond-async"}
            )
            _, state = await all_frames.next()
            assert state["conversationId"] != world.conversation
        agent = search_of(await world.tree(conversation=world.conversation), "dogs")
        await world.http.post(f"/agent/{agent}/intervene", json={"action": "comment", "text": "only poodles"})
        _, state = await frames.next()
        assert state["conversationId"] == world.conversation


async def test_a_keeper_that_begins_anew_makes_the_stream_begin_anew(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_agents, "WAIT_S", 0.1)  # the one that is lost is asked until then
    async with stream(world) as frames:
        await frames.next()
        tree = await world.tree()
        world.live.run(world.live.mesh.lose_keeper())
        await world.http.post(f"/agent/{search_of(tree, 'cats')}/intervene", json={"action": "pause"})
        while (found := await frames.next())[0] != "snapshot":
            continue
        assert set(found[1]["agents"]) == set(tree)


async def test_the_events_of_an_agent_are_those_of_its_subtree(world: World) -> None:
    tree = await world.tree()
    agent = tree[search_of(tree, "cats")]
    await ended(world)
    async with stream(world, f"/agent/{agent['agentId']}/events") as frames:
        events = [await frames.next() for _ in range(3)]
        assert [name for name, _ in events] == ["agent_started", "llm_call", "node_completed"]
        assert {event["step"].partition("/")[0] for _, event in events} == {agent["place"]}
        last = str(events[1][1]["seq"])
    async with stream(world, f"/agent/{agent['agentId']}/events", last) as frames:
        assert (await frames.next())[0] == "node_completed"


async def test_the_events_of_an_agent_that_nobody_knows_are_not_found(world: World) -> None:
    answer = await world.http.get("/agent/no-such-agent/events", headers=LIVE)
    assert (answer.status_code, answer.json()) == (404, {"error": "Not found"})


# -- what a keeper keeps


async def test_an_agent_that_changes_often_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed_agents, "_GATHERS_S", 0.0)
    changes = ChangedAgents()
    _, cursor = await changes.since(FollowAgents())
    for _ in range(5):
        changes.changed("c", ["a", "b"])
    changes.changed("d", ["a"])
    found, cursor = await changes.since(FollowAgents(cursor))
    assert found == [("c", "a"), ("c", "b"), ("d", "a")]
    changes.changed("c", ["b"])
    assert (await changes.since(FollowAgents(cursor)))[0] == [("c", "b")]


async def test_many_changes_come_in_parts_and_too_many_are_told_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("_GATHERS_S", 0.0), ("_MOST_AT_ONCE", 3), ("MOST_KEPT", 8)):
        monkeypatch.setattr(changed_agents, name, value)
    changes = ChangedAgents()
    _, begun = await changes.since(FollowAgents())
    changes.changed("c", [str(n) for n in range(8)])
    seen: list[str] = []
    cursor = begun
    while len(seen) < 8:
        found, cursor = await changes.since(FollowAgents(cursor))
        assert found is not None and 0 < len(found) <= 3
        seen += [agent for _, agent in found]
    assert seen == [str(n) for n in range(8)]
    changes.changed("c", ["8"])
    assert (await changes.since(FollowAgents(cursor)))[0] == [("c", "8")]
    assert (await changes.since(FollowAgents(begun)))[0] is None


async def test_while_nobody_follows_nothing_is_kept() -> None:
    changes = ChangedAgents()
    changes.changed("c", ["a"])
    assert changes._changed == {}
    found, cursor = await changes.since(FollowAgents(1))
    assert found is None
    changes._until = 0.0  # nobody has asked for a while
    changes.changed("c", ["a"])
    assert (await changes.since(FollowAgents(cursor)))[0] is None

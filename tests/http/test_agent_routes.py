"""Agents at work over HTTP: who looks at them, tells them something, or deletes one."""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from typer.testing import CliRunner, Result

from mesh.cli import app
from mesh.client.rest import MeshClient, RequestRefused
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import calls, says, until
from tests.worlds.trees import ByNode, config, llm

SPAWN = calls(
    ("spawn", {"agents": [{"agent": "search", "task": "cats"}, {"agent": "search", "task": "dogs"}]})
)
WAIT = calls(("wait", {}))
TREE = llm("main", agents=["search"], spawn={})
CONFIG = config(TREE, agents=[llm("search", "find {task}", description="Finds facts.")])


class World:
    """A mesh whose searches wait until they are `let`."""

    def __init__(self, live: LiveMesh, model: ByNode, http: httpx.AsyncClient, conversation: str) -> None:
        self.live = live
        self.model = model
        self.http = http
        self.conversation = conversation

    async def tree(self, **query: str) -> dict[str, Any]:
        answer = await self.http.get("/agent/tree", params=query)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def let(self) -> None:
        self.live.call(self.model.gates["search"].set)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    model = ByNode(main=[SPAWN, WAIT, says("done")])
    with LiveMesh(model, CONFIG) as live:
        model.gates["search"] = asyncio.Event()
        async with httpx.AsyncClient(base_url=live.url) as http:
            begun = await http.post(
                "/conversations", json={"message": "go"}, headers={"Prefer": "respond-async"}
            )
            found = World(live, model, http, begun.json()["conversation"]["id"])

            async def are_there() -> bool:
                return len(await found.tree()) == 3

            await until(are_there)
            yield found


async def ended(world: World) -> dict[str, Any]:
    world.let()

    async def has_ended() -> Any:
        shown = (await world.http.get(f"/conversations/{world.conversation}")).json()["conversation"]
        return shown if shown["turn"]["state"] == "completed" else None

    return dict(await until(has_ended))


def search_of(tree: dict[str, Any], task: str) -> str:
    (found,) = [
        id for id, agent in tree.items() if agent["userContent"] == task and agent["name"] == "search"
    ]
    return str(found)


async def test_the_tree_has_the_agents_at_work_by_id_and_who_started_whom(world: World) -> None:
    async def is_waiting() -> bool:
        return (await world.tree())[world.conversation]["activity"] == "calls wait"

    await until(is_waiting)  # from then on nothing changes by itself
    tree = await world.tree()
    root = tree[world.conversation]
    assert (root["name"], root["parentId"], root["status"], root["userContent"]) == (
        "main",
        None,
        "running",
        "go",
    )
    assert {tree[id]["userContent"] for id in root["subagents"]} == {"cats", "dogs"}
    assert {tree[id]["parentId"] for id in root["subagents"]} == {world.conversation}
    assert all(id == agent["agentId"] and "messages" not in agent for id, agent in tree.items())
    assert await world.tree(conversation=world.conversation) == tree
    await ended(world)
    assert await world.tree() == {}
    shown = await world.tree(conversation=world.conversation, all="true")
    assert {agent["status"] for agent in shown.values()} == {"completed"}


async def test_the_tree_comes_in_pages(world: World) -> None:
    first = await world.http.get("/agent/tree?limit=2")
    following = first.links["next"]["url"]
    second = await world.http.get(following)
    assert (len(first.json()), len(second.json()), second.links) == (2, 1, {})
    assert {**first.json(), **second.json()} == await world.tree()


async def test_a_comment_is_acknowledged_and_the_agent_is_shown_with_it_and_its_messages(
    world: World,
) -> None:
    agent = search_of(await world.tree(), "cats")
    answer = await world.http.post(
        f"/agent/{agent}/intervene",
        json={"action": "comment", "text": "only tabbies"},
        headers={"X-User": "ann", "Idempotency-Key": "k1"},
    )
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert answer.json()["agent"]["userComment"] == "only tabbies"
    again = await world.http.post(
        f"/agent/{agent}/intervene",
        json={"action": "comment", "text": "only tabbies"},
        headers={"X-User": "ann", "Idempotency-Key": "k1"},
    )
    assert again.status_code == 200
    await ended(world)
    shown = (await world.http.get(f"/agent/{agent}")).json()
    assert [(m["role"], m["content"]) for m in shown["messages"]] == [
        ("assistant", "search says find cats"),
        ("user", "[ann tells you, while you work:]\nonly tabbies"),
        ("assistant", "search says find cats"),
    ]


@pytest.mark.parametrize(
    "body", [{"action": "delete", "reason": "no cats"}, {"status": "deleted"}, {"userComment": "delete"}]
)
async def test_an_agent_is_deleted_in_the_form_of_older_clients_too(
    world: World, body: dict[str, str]
) -> None:
    agent = search_of(await world.tree(), "cats")
    answer = await world.http.post(f"/agent/{agent}/intervene", json=body)
    assert (answer.status_code, answer.json()["agent"]["status"]) == (200, "deleted")
    late = await world.http.post(f"/agent/{agent}/intervene", json={"userComment": "hello?"})
    assert late.status_code == 409
    assert late.json()["error"].startswith("agent search was deleted at 20")
    await ended(world)


@pytest.mark.parametrize(
    ("pause", "resume"),
    [({"action": "pause"}, {"action": "resume"}), ({"action": "pause"}, {"status": "running"})],
)
async def test_a_paused_agent_is_shown_as_that_until_it_is_resumed(
    world: World, pause: dict[str, str], resume: dict[str, str]
) -> None:
    agent = search_of(await world.tree(), "cats")
    answer = await world.http.post(f"/agent/{agent}/intervene", json=pause)
    assert (answer.status_code, answer.json()["agent"]["detail"]) == (200, "paused")
    world.let()

    async def is_paused() -> Any:
        shown = (await world.http.get(f"/conversations/{world.conversation}")).json()["conversation"]
        return shown if shown["turn"]["state"] == "paused" else None

    await until(is_paused)
    refused = await world.http.post(f"/conversations/{world.conversation}/messages", json={"message": "more"})
    assert (refused.status_code, f"paused search ({agent})" in refused.json()["error"]) == (409, True)
    answer = await world.http.post(f"/agent/{agent}/intervene", json=resume)
    assert (answer.status_code, "detail" in answer.json()["agent"]) == (200, False)
    await ended(world)


async def test_the_task_of_an_agent_is_changed_in_the_form_of_older_clients_too(world: World) -> None:
    agent = search_of(await world.tree(), "cats")
    body = {"userComment": "modify", "userContent": "horses", "status": "running"}
    answer = await world.http.post(f"/agent/{agent}/intervene", json=body, headers={"X-User": "ann"})
    shown = answer.json()["agent"]
    assert (answer.status_code, shown["status"], shown["userContent"]) == (200, "modified", "horses")
    await ended(world)
    messages = (await world.http.get(f"/agent/{agent}")).json()["messages"]
    assert "[ann gives you another task, while you work:]\nhorses" in [m["content"] for m in messages]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, 'say {"action": "comment"'),
        ({"action": "explode"}, 'say {"action": "comment"'),
        ({"userComment": "unchanged"}, 'say {"action": "comment"'),
        ({"action": "comment"}, 'the body must have a "text", a string'),
        ({"action": "comment", "text": "  "}, '"text" is empty'),
        ({"userComment": 3}, 'the body must have a "userComment", a string'),
        ({"action": "delete", "reason": 3}, '"reason" must be a text'),
        ({"action": "delete", "reason": "x" * 5000}, '"reason" must be a text'),
        ({"action": "pause", "reason": []}, '"reason" must be a text'),
        ({"action": "pause", "now": "yes"}, '"now" must be true or false'),
        ({"action": "modify"}, '"changes": Expected `object`'),
        ({"action": "modify", "changes": {}}, '"changes" must have one of task, prompt'),
        ({"action": "modify", "changes": {"tasks": "x"}}, "unknown field `tasks`"),
        ({"action": "modify", "changes": {"tools": "add"}}, "Expected `array`"),
        ({"action": "modify", "changes": {"task": " "}}, "a task must not be empty"),
        ({"action": "modify", "changes": {"timeout_s": 0}}, "`float` > 0"),
        ({"action": "modify", "changes": {"budget": {}}}, "must have one of max_cost_usd"),
        ({"action": "modify", "changes": {"budget": {"max_llm_calls": 0}}}, "`int` >= 1"),
        ({"action": "modify", "changes": {"budget": {"max_calls": 1}}}, "max_calls"),
        ({"action": "modify", "changes": {"model": "gpt-0"}}, "no node has the model gpt-0"),
        ({"action": "modify", "restart": "yes"}, '"restart" must be true or false'),
        ({"action": "modify", "restarts": True, "changes": {"task": "x"}}, '"restarts" is unknown; expected'),
        ({"action": "pause", "restart": True}, '"restart" goes with {"action": "modify"}'),
        ({"action": "modify", "restart": True, "changes": {}}, '"changes" must have one of task, prompt'),
        ({"action": "modify", "changes": {"prompt": "x" * 999_999}}, '"changes" has more than'),
        ({"userComment": "modify"}, '"changes": Expected `str`, got `null` - at `$.task`'),
    ],
)
async def test_what_is_unclear_is_refused(world: World, body: dict[str, Any], said: str) -> None:
    answer = await world.http.post(f"/agent/{world.conversation}/intervene", json=body)
    assert (answer.status_code, said in answer.json()["error"]) == (400, True)
    await ended(world)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"task": "birds"}, 400, 'the body must have a "agent", a string'),
        ({"agent": "search", "task": " "}, 400, '"task" is empty'),
        ({"agent": "x" * 300, "task": "birds"}, 400, f"starts no agent {'x' * 64}, but: search"),
        ({"agent": "main", "task": "birds"}, 400, "agent main starts no agent main, but: search"),
    ],
)
async def test_no_agent_is_added_by_an_unclear_request(
    world: World, body: dict[str, Any], status: int, said: str
) -> None:
    answer = await world.http.post(f"/agent/{world.conversation}/spawn", json=body)
    assert (answer.status_code, said in answer.json()["error"]) == (status, True), answer.text
    await ended(world)


async def test_an_agent_is_added_and_is_in_the_tree(world: World) -> None:
    search_of(await world.tree(), "cats")
    added = {"agent": "search", "task": "birds"}
    url = f"/agent/{world.conversation}/spawn"
    answer = await world.http.post(url, json=added, headers={"X-User": "ann", "Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["success"]) == (200, True)
    assert answer.json()["agent"]["userContent"] == "birds"
    again = await world.http.post(url, json=added, headers={"X-User": "ann", "Idempotency-Key": "k"})
    assert again.status_code == 200
    tree = await world.tree()
    birds = tree[search_of(tree, "birds")]
    assert (birds["parentId"], birds["place"].startswith("0.search@u")) == (world.conversation, True)
    assert len(tree) == 4
    async with MeshClient(world.live.url) as client:
        assert (await client.add_agent(world.conversation, "search", "fish")).user_content == "fish"
    await ended(world)


async def test_an_agent_begins_anew_and_the_answer_is_about_that_one(world: World) -> None:
    agent = search_of(await world.tree(), "cats")
    asked = {"action": "modify", "restart": True, "changes": {"task": "birds"}, "reason": "no cats"}
    answer = await world.http.post(f"/agent/{agent}/intervene", json=asked, headers={"X-User": "ann"})
    shown = answer.json()["agent"]
    assert (answer.status_code, shown["userContent"], shown["place"]) == (200, "birds", "0.search@0-0-0~2")
    old = (await world.http.get(f"/agent/{agent}")).json()["agent"]
    assert (old["status"], old["result"]) == ("deleted", "Restarted by ann: no cats")
    refused = await world.http.post(f"/agent/{world.conversation}/intervene", json=asked)
    assert (refused.status_code, "send it again" in refused.json()["error"]) == (409, True)
    await ended(world)


async def test_unknown_agents_and_odd_queries_are_refused_in_words(world: World) -> None:
    for method, path in (("GET", "/agent/x"), ("POST", "/agent/x/intervene"), ("POST", "/agent/x/spawn")):
        answer = await world.http.request(method, path, json={"status": "deleted", "agent": "a", "task": "b"})
        assert (answer.status_code, answer.json()) == (404, {"error": "Not found"})
    for query in ("conversation=x", "all=1", "limit=0", "limit=1001", "cursor=x"):
        answer = await world.http.get(f"/agent/tree?{query}")
        assert answer.status_code == 400, query
    await ended(world)


# -- by the client, and in a terminal


async def test_the_client_looks_at_agents_and_steps_in(world: World) -> None:
    agent = search_of(await world.tree(), "cats")
    async with MeshClient(world.live.url, user="ann") as client:
        assert {each.agent_id for each in await client.agents_at_work()} == {*await world.tree()}
        assert (await client.intervene(agent, "pause")).detail == "paused"
        changed = await client.intervene(agent, "modify", changes={"task": "horses"})
        assert (changed.status, changed.user_content) == ("modified", "horses")
        assert (await client.intervene(agent, "resume", "go on")).detail == ""
        await client.intervene(agent, "comment", "only white ones")
        with pytest.raises(RequestRefused, match="Not found") as refused:
            await client.intervene(agent.replace(agent[0], "0" if agent[0] != "0" else "1", 1), "pause")
        assert refused.value.status == 404
        await ended(world)
        assert await client.agents_at_work() == []
        assert len(await client.agents_at_work(world.conversation, ended=True)) == 3
        shown = await client.agent(agent)
    assert [message.role for message in shown.messages] == ["assistant", "user", "user", "assistant"]


async def test_the_client_reads_all_pages() -> None:
    def page(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url.query, "ascii"))
        more = (
            {} if "cursor" in request.url.params else {"Link": '</agent/tree?all=true&cursor=x>; rel="next"'}
        )
        return httpx2.Response(200, json={}, headers=more)

    asked: list[str] = []
    async with MeshClient("http://localhost:8080", transport=httpx2.MockTransport(page)) as client:
        assert await client.agents_at_work(ended=True) == []
    assert asked == ["all=true", "all=true&cursor=x"]


async def in_a_terminal(*arguments: str) -> Result:
    """``mesh`` in a thread: it has a loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, app, [*arguments], catch_exceptions=False)


async def test_mesh_tree_shows_who_works_for_whom(world: World) -> None:
    agent = search_of(await world.tree(), "cats")
    await world.http.post(f"/agent/{agent}/intervene", json={"action": "pause"})
    shown = await in_a_terminal("tree", "--url", world.live.url)
    assert shown.exit_code == 0
    root, *below = shown.stdout.splitlines()
    assert root == f"main  running, calls wait  go  {world.conversation}"
    assert f"├── search  paused  cats  {agent}" in below
    assert len([line for line in below if "search  running  dogs" in line]) == 1
    one = await in_a_terminal("tree", world.conversation[:8], "--json", "--url", world.live.url)
    assert json.loads(one.stdout)[agent]["detail"] == "paused"
    await world.http.post(f"/agent/{agent}/intervene", json={"action": "resume"})
    await ended(world)
    none = await in_a_terminal("tree", "--url", world.live.url)
    assert (none.exit_code, none.stdout, none.stderr) == (0, "", "no agent is at work\n")
    ends = await in_a_terminal("tree", world.conversation, "--all", "--url", world.live.url)
    assert ends.stdout.count("completed") == 3


@pytest.mark.parametrize("as_json", [False, True])
async def test_mesh_tree_goes_on_with_what_changes(world: World, as_json: bool) -> None:
    agent = search_of(await world.tree(), "cats")
    command = [str(Path(sys.executable).with_name("mesh")), "tree", "--follow", "--url", world.live.url]
    following = await asyncio.create_subprocess_exec(
        *command, *(["--json"] if as_json else []), stdout=PIPE, stderr=PIPE
    )
    assert following.stdout is not None and following.stderr is not None
    async with asyncio.timeout(30):
        begun = [(await following.stdout.readline()).decode() for _ in range(3)]
        assert {line for line in begun if agent in line and "paused" not in line} != set()
        await world.http.post(f"/agent/{agent}/intervene", json={"action": "pause"})
        while "paused" not in (line := (await following.stdout.readline()).decode()) or agent not in line:
            assert line
        if as_json:
            assert json.loads(line)["detail"] == "paused"
        following.send_signal(signal.SIGINT)
        assert (await following.wait(), await following.stderr.read()) == (0, b"")

"""What of an open turn another version can take over: see `mesh.tree.version_bonds`."""

import asyncio
from typing import Any

import msgspec
import pytest

from mesh.core.events import NodeInfo, Paused
from mesh.keeper.requests import Import, MoveToVersion
from mesh.keeper.transfer import exported_lines, imported_events
from mesh.llm.port import Llm
from mesh.mcp.port import Tool
from tests.tree.test_interventions import Watched
from tests.tree.test_remote import TELL, Peers, agents, asks, done
from tests.worlds.mesh import SIMPLE, Ledger, ScriptedLlm, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm

NEWER = SIMPLE.replace("Be kind.", "Be brief.")
SEARCH = llm("search", "find {task}", description="Finds facts.")
WEB = llm("web", "look {task}", description="Looks.")
OTHER = llm("other", "x", description="y", agents=["search"])
ASK_DEPLOY = {"rules": [{"name": "d", "tools": ["deploy"], "decide": "ask"}]}


def pending(body: dict[str, Any]) -> str:
    return str(body["conversation"]["pending_approval"]["uuid"])


class Deploys(Ledger):
    def pairs(self) -> Any:
        schema = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
        tool = Tool(name="deploy", description="Deploys to production.", input_schema=schema, server="ledger")
        return [(tool, self.deploy)]

    async def deploy(self, arguments: dict[str, Any]) -> str:
        self.lines.append(f"DEPLOYED {arguments['task']}")
        return "ok"


def checked_by(who: str) -> str:
    tree = llm("main", validate=[{"agent": who}, {"person": True}])
    return config(tree, agents=[llm(who, "x", description="judges")])


def loop(most: int) -> str:
    act = llm("act")
    return config({"name": "lp", "type": "loop", "max_iterations": most, "approvals": "ask", "agents": [act]})


DRAFTS = llm("deploy", "draft {task}", description="Drafts a plan.")
SPAWN = calls(("spawn", {"agents": [{"agent": "search", "task": "x"}]}))
CALL = calls(("search", {"task": "x"}))
FOUND = [add(1), says("found")]
SPAWNS = config(llm("main", agents=["search"], spawn={}), agents=[SEARCH])
REFUSED: dict[str, tuple[Llm, str, str, str]] = {
    "an agent becomes a tool": (
        ByNode(main=[calls(("deploy", {"task": "x"}))]),
        config(llm("main", agents=["deploy"]), agents=[DRAFTS], policy=ASK_DEPLOY),
        config(llm("main"), policy=ASK_DEPLOY),
        "llm node main (0) differs in agent deploy",
    ),
    "there are fewer rounds": (
        ScriptedLlm(says("one"), add(1)),
        loop(3),
        loop(1),
        "loop node lp (0) has 1 rounds or items at most, and had 3",
    ),
    "it may start others": (
        ByNode(main=[SPAWN, calls(("wait", {}))], search=FOUND),
        SPAWNS,
        config(llm("main", agents=["other"], spawn={}), agents=[SEARCH, OTHER]),
        "differs in agent search",
    ),
    "it may start nobody": (
        ByNode(main=[SPAWN, calls(("wait", {}))], search=FOUND),
        SPAWNS,
        config(llm("main", agents=["search"]), agents=[SEARCH]),
        "differs in which agents it may start",
    ),
    "it calls others": (
        ByNode(main=[CALL], search=FOUND),
        config(llm("main", agents=["search"]), agents=[SEARCH]),
        config(llm("main", agents=["other"]), agents=[SEARCH, OTHER]),
        "differs in agent search",
    ),
    "another agent checks": (
        ByNode(main=[says("bad answer")], lenient=[says('{"valid": true, "feedback": ""}')]),
        checked_by("lenient"),
        checked_by("strict"),
        "differs in what checks its answers",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_what_is_open_has_to_be_there_as_it_was(what: str) -> None:
    model, old, new, problem = REFUSED[what]
    async with WorldMesh(model, config=old) as world:
        _, body = await world.create("go")
        before = body["conversation"]
        await world.upgrade(new)
        status, refused = await world.ask(MoveToVersion(before["id"]))
        assert status == 409 and problem in refused["error"]
        assert (await world.show(before["id"]))["version"] == before["version"]


async def test_a_tool_that_becomes_an_agent_is_another_thing() -> None:
    async with WorldMesh(
        ByNode(main=[calls(("deploy", {"task": "x"}))]), config=config(llm("main")), ledger=Deploys()
    ) as world:
        _, body = await world.create("go")
        world.ledger = Ledger()
        await world.upgrade(config(llm("main", agents=["deploy"]), agents=[DRAFTS]))
        status, refused = await world.ask(MoveToVersion(body["conversation"]["id"]))
        assert (status, "was a tool and is an agent" in refused["error"]) == (409, True)


@pytest.mark.parametrize(
    "new", [config(llm("a"), a2a=[{"name": "b", "url": "http://new.example"}]), config(llm("a", "x"))]
)
async def test_what_another_agent_asks_is_decided_there(new: str) -> None:
    asked = Peers(asks(), done("did it"))
    model = ByNode(a=[TELL, says("all done")])
    async with WorldMesh(model, config=config(llm("a"), a2a=agents("b")), agent_for=asked) as world:
        _, body = await world.create("go")
        await world.upgrade(new, Peers())
        status, refused = await world.ask(MoveToVersion(body["conversation"]["id"]))
        assert (status, "differs in other agent b" in refused["error"]) == (409, True)
        decided, body = await world.decide(pending(body), "approve")
        assert (decided, body["result"]["response"], len(asked.agent.sent)) == (200, "all done", 2)


NESTED = config(
    llm("main", agents=["search"]),
    agents=[SEARCH],
    policy={"rules": [{"name": "d", "tools": ["search"], "decide": "ask"}]},
)


async def test_what_answers_200_is_moved_below_an_agent_that_was_approved() -> None:
    model = ByNode(main=[calls(("search", {"task": "x"})), says("done")], search=[add(1), says("found")])
    async with WorldMesh(model, config=NESTED) as world:
        _, body = await world.create("go")
        _, body = await world.decide(pending(body), "approve")  # search may run, and now its tool waits
        await world.upgrade(NESTED.replace("find {task}", "find all of {task}"))
        status, body = await world.ask(MoveToVersion(body["conversation"]["id"]))
        assert (status, body["conversation"]["version"]) == (200, world.newest.digest)


async def test_what_answers_200_is_moved_after_a_comment() -> None:
    async with WorldMesh(ByNode(main=[add(1), says("done")]), config=config(llm("main"))) as world:
        watched = Watched(world)
        await watched.begin()

        async def waits() -> bool:
            return bool((await world.show(watched.id))["status"] == "waiting_approval")

        await until(waits)
        assert (await watched.step_in(await watched.agent_at("0"), "comment", "hurry"))[0] == 200
        await world.upgrade(config(llm("main", "new")))
        status, body = await world.ask(MoveToVersion(watched.id))
        assert (status, body["conversation"]["version"]) == (200, world.newest.digest)


async def test_an_agent_that_a_person_has_paused_has_to_be_there_too() -> None:
    spawn = calls(("spawn", {"agents": [{"agent": "search", "task": "x"}, {"agent": "web", "task": "y"}]}))
    model = ByNode(
        main=[spawn, calls(("wait", {})), says("done")],
        search=[add(1), says("found")],
        web=[calls(("look", {})), says("seen")],
    )
    model.gates["web"] = asyncio.Event()
    old = config(llm("main", agents=["search", "web"], spawn={}), agents=[SEARCH, WEB])
    async with WorldMesh(model, config=old) as world:
        watched = Watched(world)
        await watched.begin()
        await watched.step_in(await watched.agent_at("0.web@0-0-1"), "pause")
        model.gates["web"].set()

        async def waits() -> Any:
            shown = await world.show(watched.id)
            return shown if shown["turn"]["state"] == "waiting_approval" else None

        await until(waits)
        await world.upgrade(config(llm("main", agents=["search"], spawn={}), agents=[SEARCH]))
        status, _ = await world.ask(MoveToVersion(watched.id))
        assert status == 409


async def test_an_imported_conversation_has_the_nodes_of_the_version_that_it_becomes_part_of() -> None:
    async with WorldMesh(ScriptedLlm(says("hi"))) as world:
        _, body = await world.create("go")
        id = body["conversation"]["id"]
        first, *rest = await world.journal.read(id)
    nodes = {"0": NodeInfo("other", "sequential"), "0.0": NodeInfo("a", "llm")}
    lines = exported_lines([msgspec.structs.replace(first, nodes=nodes), *rest])
    async with WorldMesh(ScriptedLlm(add(1), says("ok"))) as world:
        await world.ask(Import(id, lines))
        await world.say(id, "on")
        await world.upgrade(NEWER)
        status, body = await world.ask(MoveToVersion(id))
        assert status == 200, body


async def test_who_moved_it_elsewhere_is_left_out_where_it_is_imported() -> None:
    async with WorldMesh(ScriptedLlm(add(1))) as world:
        _, body = await world.create("go")
        await world.upgrade(NEWER)
        await world.ask(MoveToVersion(body["conversation"]["id"], by="the boss"))
        lines = exported_lines(await world.journal.read(body["conversation"]["id"]))
    events = imported_events(lines, "test", "0" * 12, "2026-01-31T12:00:00.000Z", by="key")
    assert [e.by for e in events if isinstance(e, Paused) and e.by] == []

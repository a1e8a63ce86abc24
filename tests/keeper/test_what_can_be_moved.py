"""What of an open turn another version can take over: see `mesh.tree.version_bonds`."""

import asyncio
from typing import Any

import msgspec
import pytest

from mesh.core.events import NodeInfo, Paused
from mesh.keeper.requests import Cancel, Import, MoveToVersion
from mesh.keeper.transfer import exported_lines, imported_events
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


async def test_the_approval_of_an_agent_does_not_approve_a_tool_of_that_name() -> None:
    drafts = llm("deploy", "draft {task}", description="Drafts a plan.")
    old = config(llm("main", agents=["deploy"]), agents=[drafts], policy=ASK_DEPLOY)
    model = ByNode(main=[calls(("deploy", {"task": "x"})), says("done")])
    async with WorldMesh(model, config=old) as world:
        _, body = await world.create("go")
        world.ledger = Deploys()
        await world.upgrade(config(llm("main"), policy=ASK_DEPLOY))
        await world.ask(MoveToVersion(body["conversation"]["id"]))
        await world.decide(pending(body), "approve")
        assert world.ledger.lines == []


async def test_a_decision_goes_to_the_agent_that_asked() -> None:
    old, new = Peers(asks(), done("old did it")), Peers(done("new did it"))
    model = ByNode(a=[TELL, says("all done")])
    async with WorldMesh(model, config=config(llm("a"), a2a=agents("b")), agent_for=old) as world:
        _, body = await world.create("go")
        elsewhere = [{"name": "b", "url": "http://new.example"}]
        await world.upgrade(config(llm("a"), a2a=elsewhere), new)
        status, _ = await world.ask(MoveToVersion(body["conversation"]["id"]))
        await world.decide(pending(body), "approve", token="secret")

        assert status == 409 or (not new.agent.sent and len(old.agent.sent) == 2)


# 2b
async def test_a_task_is_cancelled_at_the_agent_that_has_it() -> None:
    old, new = Peers(asks()), Peers()
    model = ByNode(a=[TELL, says("all done")])
    async with WorldMesh(model, config=config(llm("a"), a2a=agents("b")), agent_for=old) as world:

        async def cancel(task: Any) -> None:  # by the version of the task, as LocalVersions and RemoteTree do
            await world._tree(task.digest).cancel(task)

        world.cancel = cancel  # type: ignore[method-assign]
        _, body = await world.create("go")
        await world.upgrade(config(llm("a"), a2a=[{"name": "b", "url": "http://new.example"}]), new)
        status, _ = await world.ask(MoveToVersion(body["conversation"]["id"]))
        await world.ask(Cancel(body["conversation"]["id"]))
        assert status == 409 or (old.agent.cancelled, new.agent.cancelled) == (["task-1"], [])


async def test_a_decision_about_an_agent_that_is_not_configured_any_more_is_no_internal_error() -> None:
    old, model = Peers(asks(), done("old did it")), ByNode(a=[TELL, says("all done")])
    async with WorldMesh(model, config=config(llm("a"), a2a=agents("b")), agent_for=old) as world:
        _, body = await world.create("go")
        await world.upgrade(config(llm("a", "x")), old)
        status, _ = await world.ask(MoveToVersion(body["conversation"]["id"]))
        decided, body = await world.decide(pending(body), "approve")
        assert status == 409 or decided == 200, body


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
        await asyncio.sleep(0.1)
        assert (await watched.step_in(await watched.agent_at("0"), "comment", "hurry"))[0] == 200
        await world.upgrade(config(llm("main", "new")))
        status, body = await world.ask(MoveToVersion(watched.id))
        assert (status, body["conversation"]["version"]) == (200, world.newest.digest)


def loop(most: int) -> str:
    act = llm("act")
    return config({"name": "lp", "type": "loop", "max_iterations": most, "approvals": "ask", "agents": [act]})


async def test_what_a_person_approves_in_a_loop_is_done() -> None:
    model = ScriptedLlm(says("one"), add(1), says("two"), says("three"))
    async with WorldMesh(model, config=loop(3)) as world:
        _, body = await world.create("go")
        await world.upgrade(loop(1))
        status, _ = await world.ask(MoveToVersion(body["conversation"]["id"]))
        decided, _ = await world.decide(pending(body), "approve")
        assert status == 409 or (decided, world.ledger.lines) == (200, ["add 1"])


SPAWN = calls(("spawn", {"agents": [{"agent": "search", "task": "x"}]}))
CALL = calls(("search", {"task": "x"}))


@pytest.mark.parametrize(
    ("old", "said", "new"),
    [
        (llm("main", agents=["search"], spawn={}), SPAWN, llm("main", agents=["other"], spawn={})),  # 502
        (llm("main", agents=["search"], spawn={}), SPAWN, llm("main", agents=["search"])),  # 200, not done
        (llm("main", agents=["search"]), CALL, llm("main", agents=["other"])),  # 200, not done
    ],
)
async def test_whoever_waits_is_still_called_by_the_node_around_it(old: Any, said: Any, new: Any) -> None:
    script = [said, says("done")] if said is CALL else [said, calls(("wait", {})), says("done")]
    model = ByNode(main=script, search=[add(1), says("found")])
    async with WorldMesh(model, config=config(old, agents=[SEARCH])) as world:
        _, body = await world.create("go")
        await world.upgrade(config(new, agents=[SEARCH, OTHER]))
        status, _ = await world.ask(MoveToVersion(body["conversation"]["id"]))
        decided, body = await world.decide(pending(body), "approve")
        assert status == 409 or (decided, world.ledger.lines) == (200, ["add 1"]), body


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

        shown = await until(waits)
        await asyncio.sleep(0.1)
        await world.upgrade(config(llm("main", agents=["search"], spawn={}), agents=[SEARCH]))
        status, _ = await world.ask(MoveToVersion(watched.id))
        if status != 409:
            decided, body = await world.decide(shown["pending_approval"]["uuid"], "approve")
            assert decided == 200, body
        assert status == 409


async def test_a_verdict_counts_for_the_validator_that_gave_it() -> None:
    def checked(who: str) -> str:
        tree = llm("main", validate=[{"agent": who}, {"person": True}])
        return config(tree, agents=[llm(who, "x", description="judges")])

    model = ByNode(
        main=[says("bad answer")],
        lenient=[says('{"valid": true, "feedback": ""}')],
        strict=[says('{"valid": false, "feedback": "bad"}')],
    )
    async with WorldMesh(model, config=checked("lenient")) as world:
        _, body = await world.create("go")
        await world.upgrade(checked("strict"))
        status, _ = await world.ask(MoveToVersion(body["conversation"]["id"]))
        await world.decide(pending(body), "approve")
        assert status == 409 or model.asked["strict"]


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


async def test_who_moved_it_elsewhere_is_marked_as_said_by_the_key_that_imports() -> None:
    async with WorldMesh(ScriptedLlm(add(1))) as world:
        _, body = await world.create("go")
        await world.upgrade(NEWER)
        await world.ask(MoveToVersion(body["conversation"]["id"], by="the boss"))
        lines = exported_lines(await world.journal.read(body["conversation"]["id"]))
    events = imported_events(lines, "test", "0" * 12, "2026-01-31T12:00:00.000Z", by="key")
    assert [e.by for e in events if isinstance(e, Paused) and e.by] in ([], ["the boss (as imported by key)"])

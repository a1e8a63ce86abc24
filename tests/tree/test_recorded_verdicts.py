"""A verdict that is in the journal stands, whatever the rules have become. Only denies of the newest config
hold for what has not been done yet."""

import asyncio
from typing import Any

import msgspec
import pytest

from mesh.config.model import parse
from mesh.core.approvals import Decision
from mesh.core.events import AnyEvent, ApprovalRequired, ApprovalResolved, ToolIntent, ToolResult
from mesh.keeper.requests import Caller, Decide
from mesh.tree.local import LocalTree
from mesh.tree.turn import PassInput, PassOutput
from tests.worlds.mesh import WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, Node, add, config, llm, parallel

RULES = [
    {"name": "small", "tools": ["add"], "args": {"n": {"max": 3}}, "decide": "allow"},
    {"name": "huge", "tools": ["add"], "args": {"n": {"min": 100}}, "decide": "deny"},
    {"name": "large", "tools": ["add"], "decide": "ask"},
]
EVERYTHING: dict[str, list[dict[str, Any]]] = {
    decision: [{"name": "everything", "tools": ["*"], "decide": decision}]
    for decision in ("allow", "ask", "deny")
}
ALL_THREE = calls(("add", {"n": 1}), ("add", {"n": 200}), ("add", {"n": 20}))


def mesh(model: ByNode, tree: Node | None = None) -> WorldMesh:
    return WorldMesh(model, config=config(tree or llm("main"), policy={"rules": RULES}))


async def change_rules(
    world: WorldMesh, where: str, rules: list[dict[str, Any]], tree: Node | None = None
) -> None:
    """The process dies, and the rules are others when it is back: in the newest config, which is what happens
    when somebody edits it; or in what replays the conversation itself, which is the worst that can happen."""
    changed = parse(config(tree or llm("main"), policy={"rules": rules}), "test.yaml", {})
    if where == "the newest config":
        world.newest = changed
        world.settings = msgspec.structs.replace(world.settings, digest=changed.digest)
    else:
        await world.tree.close()
        world.tree = LocalTree(changed, [world.ledger.session()], lambda _: world.llm, world)
        await world.tree.start()
    await world.crash()


async def events(world: WorldMesh, body: dict[str, Any]) -> list[AnyEvent]:
    return list(await world.journal.read(body["conversation"]["id"]))


def asking(body: dict[str, Any]) -> dict[str, Any]:
    approval: dict[str, Any] = body["conversation"]["pending_approval"]
    return approval


both = pytest.mark.parametrize("where", ["the newest config", "the replay itself"])


@both
@pytest.mark.parametrize("now", ["allow", "ask", "deny"])
async def test_a_recorded_verdict_stands_in_replays(where: str, now: str) -> None:
    async with mesh(ByNode(main=[ALL_THREE, says("done")])) as world:
        _, body = await world.create("go")
        asked = asking(body)
        before = await events(world, body)
        assert (asked["rule"], world.ledger.lines) == ("large", ["add 1"])
        await change_rules(world, where, EVERYTHING[now])
        shown = await world.show(body["conversation"]["id"])
        assert shown["pending_approval"] == asked  # nothing looser lets it run
        _, body = await world.decide(asked["uuid"], "approve")
        after = await events(world, body)
    assert body["result"]["response"] == "done"
    assert after[: len(before)] == before
    assert [e.uuid for e in after if isinstance(e, ApprovalRequired)] == [asked["uuid"]]
    results = [event for event in after if isinstance(event, ToolResult)]
    assert [event.rule for event in results[:2]] == ["small", "huge"]
    assert (len(results), results[2].is_error) == (3, now == "deny")
    assert world.ledger.lines == (["add 1"] if now == "deny" else ["add 1", "add 20"])


@both
async def test_what_waits_goes_on_waiting_while_another_decision_replays_the_turn(where: str) -> None:
    tree = parallel(llm("a"), llm("b"), approvals="ask")
    async with mesh(ByNode(a=[add(10), says("a")], b=[add(20), says("b")]), tree) as world:
        _, body = await world.create("go")
        first, second = body["conversation"]["pending_approvals"]
        await change_rules(world, where, EVERYTHING["allow"], tree)
        _, body = await world.decide(first["uuid"], "approve")
        assert body["conversation"]["pending_approvals"] == [second]
        assert world.ledger.lines == [f"add {first['tool_args']['n']}"]
        await world.decide(second["uuid"], "reject", reason="no")
        assert len(world.ledger.lines) == 1


@both
async def test_what_a_person_has_approved_is_not_asked_again_by_a_rule_that_asks_now(where: str) -> None:
    async with mesh(ByNode(main=[add(20), says("done")])) as world:
        _, body = await world.create("go")
        await _approved_but_not_run(world, asking(body)["uuid"])
        assert isinstance((await events(world, body))[-1], ApprovalResolved)
        await change_rules(world, where, EVERYTHING["ask"])

        async def response() -> str | None:
            turn: dict[str, Any] = (await world.show(body["conversation"]["id"]))["turn"]
            return turn.get("response")

        assert await until(response) == "done"
        made = [e for e in await events(world, body) if isinstance(e, ApprovalRequired | ToolIntent)]
    assert ([type(e) for e in made], world.ledger.lines) == ([ApprovalRequired, ToolIntent], ["add 20"])


async def _approved_but_not_run(world: WorldMesh, uuid: str) -> None:
    """Decides, and holds the pass that follows before it has done anything: the process may die then."""
    begun, run = asyncio.Event(), world.tree.run

    async def hang(turn: PassInput) -> PassOutput:
        begun.set()
        return await asyncio.wait_for(asyncio.get_running_loop().create_future(), 30)

    world.tree.run = hang  # type: ignore[method-assign]
    await world.ask(Decide(Caller(session_id="s1"), (Decision(uuid, "approve"),), wait=False))
    await asyncio.wait_for(begun.wait(), 30)
    world.tree.run = run  # type: ignore[method-assign]

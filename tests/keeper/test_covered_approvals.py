"""A decision for good settles what waits and matches in every conversation of the agent, and nothing else."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import mesh.keeper.schedule as schedule
from mesh.core.errors import Unavailable
from mesh.core.events import ApprovalResolved, now
from mesh.mcp.meta import ArgumentMeta
from mesh.mcp.port import Tool
from mesh.net.backoff import Backoff
from mesh.policy.book import GrantBook, MemoryGrantBook
from mesh.policy.book_file import FileGrantBook
from mesh.policy.grants import Grant
from mesh.policy.rules import PolicyRule
from tests.worlds.mesh import Ledger, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm, parallel

ADDS = PolicyRule(name="add", decide="allow", tools=("add",))
CURIOUS = {"name": "curious", "tools": ["look"], "decide": "ask", "remember": "none"}
BOTH = calls(("add", {"n": 1}), ("look", {}))


def granted(id: str = "g", agent: str = "main", rule: PolicyRule = ADDS) -> Grant:
    return Grant(id=id, agent=agent, rule=rule, by="ann", at=now(), approval=id, remember="always")


def mesh(
    model: ByNode, book: GrantBook | None = None, *, ledger: Ledger | None = None, **policy: Any
) -> WorldMesh:
    found = WorldMesh(model, config=config(llm("main"), policy={"grants": "always", **policy}), ledger=ledger)
    found.grant_book = book or MemoryGrantBook()
    found.keepers[0] = found._new_keeper()
    return found


def waiting(body: dict[str, Any]) -> list[str]:
    return [each["tool_name"] for each in body.get("pending_approvals", ())]


async def settled(world: WorldMesh, body: dict[str, Any], left: list[str]) -> dict[str, Any]:
    """The conversation once just these tools wait in it."""

    async def shown() -> dict[str, Any] | None:
        found = await world.show(body["conversation"]["id"])
        is_over = found["messages"][-1]["content"] == "done"
        return found if waiting(found) == left and is_over is not bool(left) else None

    return await until(shown)


async def deciders(world: WorldMesh, body: dict[str, Any]) -> list[str]:
    events = await world.journal.read(body["conversation"]["id"])
    return [event.by for event in events if isinstance(event, ApprovalResolved)]


async def test_it_settles_what_waits_and_matches_in_other_conversations_and_leaves_the_rest() -> None:
    async with mesh(ByNode(main=[BOTH, says("done")]), rules=[CURIOUS]) as world:
        _, first = await world.create("go")
        others = [(await world.create("go"))[1] for _ in range(3)]
        uuid = first["conversation"]["pending_approvals"][0]["uuid"]
        await world.decide(uuid, "approve", remember="always", by="ann")
        for other in others:
            await settled(world, other, ["look"])
            assert await deciders(world, other) == ["a grant"]
        assert await deciders(world, first) == ["ann"]
        assert world.ledger.lines == ["add 1"] * 4


async def test_it_settles_nothing_of_another_agent_and_nothing_that_the_rule_does_not_cover() -> None:
    model = ByNode(
        a=[add(1), says("a")], main=[calls(("helper", {"task": "x"})), says("m")], helper=[add(1), says("h")]
    )
    tree = parallel(llm("a"), llm("main", agents=["helper"]), approvals="ask")
    more = {"agents": [llm("helper", description="Helps.")], "policy": {"grants": "always"}}
    async with WorldMesh(model, config=config(tree, **more)) as world:
        _, one = await world.create("go")
        _, other = await world.create("go")
        model._script["a"] = [add(2), says("a")]
        _, third = await world.create("go")
        (mine,) = [each for each in one["conversation"]["pending_approvals"] if each["asked_by"] == "a"]
        only = {"tools": ["add"], "args": {"n": 1}}
        await world.decide(mine["uuid"], "approve", remember="always", rule=only)
        left = (await settled(world, other, ["add"]))["pending_approvals"]
        assert [each["asked_by"] for each in left] == ["helper"]
        # The third was looked at in the same look, and is looked at once more.
        await world.keeper._approvals.approve_covered(third["conversation"]["id"])
        assert len((await world.show(third["conversation"]["id"]))["pending_approvals"]) == 2


async def test_a_keeper_of_another_process_settles_what_waits_there_too(tmp_path: Path) -> None:
    model = ByNode(main=[add(1), says("done")])
    one, two = mesh(model, FileGrantBook(tmp_path)), mesh(model, FileGrantBook(tmp_path))
    async with one, two:
        _, here = await one.create("go")
        _, there = await two.create("go")
        await one.decide(here["result"]["approval"]["uuid"], "approve", remember="always")
        await settled(two, there, [])
        assert await deciders(two, there) == ["a grant"]
        assert two.ledger.lines == ["add 1"]


async def test_a_crash_between_the_grant_and_the_settling_loses_nothing() -> None:
    async with mesh(ByNode(main=[add(1), says("done")])) as world:
        _, body = await world.create("go")
        await world.grant_book.add(granted())
        await world.crash()  # before anybody has looked at the book
        await settled(world, body, [])
        await world.keeper._approvals.approve_covered(body["conversation"]["id"])
        assert (await deciders(world, body), world.ledger.lines) == (["a grant"], ["add 1"])


async def test_while_no_node_can_tell_it_waits_for_a_person_and_is_settled_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedule, "_RETRIES", Backoff(0.05, 300, jitter=0))
    async with mesh(ByNode(main=[add(1), says("done")])) as world:
        _, body = await world.create("go")
        verdict, tried = world.verdict, asyncio.Event()

        async def unavailable(*_: Any) -> Any:
            tried.set()
            raise Unavailable("the node starts again")

        world.verdict = unavailable  # type: ignore[assignment,method-assign]
        await world.grant_book.add(granted())
        await asyncio.wait_for(tried.wait(), 30)
        assert waiting(await world.show(body["conversation"]["id"])) == ["add"]
        world.verdict = verdict  # type: ignore[method-assign]
        await settled(world, body, [])


class Slow(Ledger):
    """The tool ``write``, which somebody allows for good while it makes its preview."""

    book: GrantBook

    def pairs(self) -> Any:
        schema = {"type": "object", "properties": {"dry_run": {}}}
        about = ArgumentMeta(preview={"dry_run": True})
        write = Tool(name="write", description="", input_schema=schema, server="ledger", about=about)
        return [(write, self.write)]

    async def write(self, arguments: dict[str, Any]) -> str:
        if not arguments.get("dry_run"):
            self.lines.append("write")
            return "written"
        await self.book.add(granted(rule=PolicyRule(name="w", decide="allow", tools=("write",))))
        return '{"kind": "text", "text": "It writes."}'


async def test_what_was_allowed_while_it_was_about_to_ask_is_settled_too() -> None:
    ledger = Slow()
    async with mesh(ByNode(main=[calls(("write", {})), says("done")]), ledger=ledger) as world:
        ledger.book = world.grant_book
        _, body = await world.create("go")
        await settled(world, body, [])
        assert (await deciders(world, body), ledger.lines) == (["a grant"], ["write"])


async def test_a_keeper_looks_at_the_book_only_while_something_waits_that_a_grant_may_settle() -> None:
    async with mesh(ByNode(main=[add(1), says("done")])) as world:
        covered = world.keeper._covered
        if covered._watch is not None:  # the first look, which finds nothing
            await asyncio.wait_for(covered._watch, 30)
        _, body = await world.create("go")
        watch = covered._watch
        assert watch is not None and not watch.done()
        await world.decide(body["result"]["approval"]["uuid"], "reject")
        covered.look()
        await asyncio.wait_for(watch, 30)

"""The policy in a turn: what it denies, asks about and allows, what decisions leave behind, and what a person
saw is what happens."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mesh.config.model import parse
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    LlmCall,
    ToolIntent,
    ToolResult,
)
from mesh.keeper.requests import Import, ShowPreview
from mesh.keeper.transfer import exported_lines
from mesh.mcp.memory import ToolFunction
from mesh.mcp.meta import ArgumentMeta
from mesh.mcp.port import Tool, ToolOutcome
from mesh.policy.grants import Grant
from mesh.policy.rules import PolicyRule
from mesh.tree.turn import UnsettledCall
from tests.worlds.mesh import Caller, Ledger, SendMessage, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, Node, add, config, llm, parallel, tool

DENY_BIG = {"name": "big", "tools": ["add"], "args": {"n": {"min": 10}}, "decide": "deny", "say": "Too much."}
SMALL = {"name": "small", "tools": ["add"], "args": {"n": {"max": 3}}, "decide": "allow"}


def mesh(
    model: ByNode, tree: Node | None = None, *, ledger: Ledger | None = None, **policy: Any
) -> WorldMesh:
    return WorldMesh(model, config=config(tree or llm("main"), policy=policy), ledger=ledger)


async def events(world: WorldMesh, body: dict[str, Any]) -> Sequence[AnyEvent]:
    return await world.journal.read(body["conversation"]["id"])


def asking(body: dict[str, Any]) -> dict[str, Any]:
    approval: dict[str, Any] = body["conversation"]["pending_approval"]
    return approval


async def test_what_a_rule_denies_does_not_run_and_the_model_is_told_which_rule_and_why() -> None:
    model = ByNode(main=[add(42), says("done")])
    async with mesh(model, rules=[DENY_BIG]) as world:
        _, body = await world.create("go")
        (result,) = [e for e in await events(world, body) if isinstance(e, ToolResult)]
        assert world.ledger.lines == []
    assert body["result"]["response"] == "done"
    assert (result.is_error, result.denied, result.rule) == (True, True, "big")
    assert result.content == "Too much. (rule big of the policy)"


async def test_what_a_rule_allows_runs_at_once_and_the_journal_says_which() -> None:
    async with mesh(ByNode(main=[add(2), says("done")]), rules=[SMALL]) as world:
        _, body = await world.create("go")
        assert world.ledger.lines == ["add 2"]
        rules = [e.rule for e in await events(world, body) if isinstance(e, ToolIntent | ToolResult)]
    assert rules == ["small", "small"]


async def test_without_a_policy_no_event_names_a_rule() -> None:
    async with WorldMesh(ByNode(main=[add(2), says("done")]), config=config(llm("main"))) as world:
        _, body = await world.create("go")
        assert not {"rule", "why", "remember", "suggested_rule"} & asking(body).keys()
        await world.decide(asking(body)["uuid"], "approve")
        assert not any(getattr(event, "rule", "") for event in await events(world, body))


async def test_a_rule_may_ask_about_what_only_reads_and_says_why() -> None:
    rule = {"name": "curious", "tools": ["look"], "decide": "ask", "say": "Do you want to see it?"}
    model = ByNode(main=[calls(("look", {})), says("done")])
    async with mesh(model, rules=[rule]) as world:
        _, body = await world.create("go")
        assert (asking(body)["rule"], asking(body)["why"]) == ("curious", "Do you want to see it?")
        assert world.ledger.lines == []
        _, body = await world.decide(asking(body)["uuid"], "approve")
        assert (body["result"]["response"], world.ledger.lines) == ("done", ["look"])


async def test_an_explicit_ask_asks_where_approvals_are_inline_too() -> None:
    rule = {"name": "always", "tools": ["add"], "decide": "ask"}
    model = ByNode(main=[add(2), says("done")])
    tree = parallel(llm("main"), approvals="inline")
    async with mesh(model, tree, rules=[rule]) as world:
        _, body = await world.create("go")
        assert asking(body)["rule"] == "always"


async def test_a_tool_that_is_denied_whatever_its_arguments_is_not_offered() -> None:
    model = ByNode(main=says("done"))
    async with mesh(model, rules=[{"name": "never", "tools": ["add"], "decide": "deny"}]) as world:
        await world.create("go")
    assert set(model.tools["main"]) == {"look"}


async def test_but_one_that_is_denied_with_some_arguments_is() -> None:
    model = ByNode(main=says("done"))
    async with mesh(model, rules=[DENY_BIG]) as world:
        await world.create("go")
    assert set(model.tools["main"]) == {"add", "look"}


async def test_arguments_that_a_person_changed_to_what_is_denied_do_not_run() -> None:
    model = ByNode(main=[add(5), says("done")])
    async with mesh(model, rules=[DENY_BIG]) as world:
        _, body = await world.create("go")
        _, body = await world.decide(asking(body)["uuid"], "approve", edited={"n": 11})
        assert (body["result"]["response"], world.ledger.lines) == ("done", [])


async def test_a_tool_node_and_a_called_agent_are_judged_as_any_other_call() -> None:
    rules = [{"name": "closed", "kinds": ["agent"], "decide": "deny"}, DENY_BIG]
    model = ByNode(main=[calls(("helper", {"task": "x"})), says("done")])
    tree = {"agents": [llm("helper", description="Helps.")], "policy": {"rules": rules}}
    async with WorldMesh(model, config=config(llm("main", agents=["helper"]), **tree)) as world:
        _, body = await world.create("go")
        results = [e for e in await events(world, body) if isinstance(e, ToolResult)]
    assert [(r.rule, r.is_error) for r in results] == [("closed", True)]
    assert "helper" not in model.asked and "helper" not in model.tools["main"]
    async with WorldMesh(ByNode(), config=config(tool("t", "add", n=99), policy={"rules": rules})) as world:
        _, body = await world.create("go")
        assert world.ledger.lines == []


# -- what is remembered


async def test_a_decision_is_remembered_for_the_conversation_and_no_other() -> None:
    three = calls(("add", {"n": 1}), ("add", {"n": 2}), ("add", {"n": 30}))
    model = ByNode(main=[three, says("done")])
    async with mesh(model, grants="conversation", rules=[DENY_BIG]) as world:
        _, body = await world.create("go")
        assert asking(body)["remember"] == "conversation"
        rule = asking(body)["suggested_rule"]
        assert rule == {"name": "add", "decide": "allow", "tools": ["add"], "servers": ["ledger"]}
        _, body = await world.decide(asking(body)["uuid"], "approve", remember="conversation")
        assert world.ledger.lines == ["add 1", "add 2"]
        assert body["result"]["response"] == "done"
        id = body["conversation"]["id"]
        world.llm._script["main"] = [three, add(3), says("again")]  # type: ignore[attr-defined]
        _, body = await world.ask(SendMessage(id, Caller(session_id="s1"), "more"))
        assert (body["result"]["response"], world.ledger.lines[-1]) == ("again", "add 3")
        _, other = await world.create("go")
        assert asking(other)["rule"] == "default"  # another conversation asks


async def test_a_decision_that_is_remembered_settles_what_waits_and_matches() -> None:
    model = ByNode(a=[add(1), says("a")], b=[add(2), says("b")], c=[calls(("look", {})), says("c")])
    curious = {"name": "curious", "tools": ["look"], "decide": "ask"}
    tree = parallel(llm("a"), llm("b"), llm("c"), approvals="ask")
    async with mesh(model, tree, grants="conversation", rules=[curious]) as world:
        _, body = await world.create("go")
        (first,) = [each for each in body["conversation"]["pending_approvals"] if each["asked_by"] == "a"]
        _, body = await world.decide(first["uuid"], "approve", remember="conversation", by="ann")
        assert asking(body)["tool_name"] == "look"
        resolved = [e for e in await events(world, body) if isinstance(e, ApprovalResolved)]
        assert [(e.remember, e.by) for e in resolved] == [("conversation", "ann"), ("none", "a grant")]
        assert sorted(world.ledger.lines) == ["add 1", "add 2"]


async def test_a_rule_that_a_person_has_edited_is_what_is_remembered() -> None:
    model = ByNode(main=[add(1), add(2), says("done")])
    async with mesh(model, grants="conversation") as world:
        _, body = await world.create("go")
        narrow = {"tools": ["add"], "args": {"n": 1}}
        _, body = await world.decide(asking(body)["uuid"], "approve", remember="conversation", rule=narrow)
        assert asking(body)["tool_args"] == {"n": 2}


@pytest.mark.parametrize(
    ("remember", "rule", "problem"),
    [
        ("always", None, "remember: conversation at most"),
        ("conversation", {"decide": "deny", "tools": ["add"]}, "only a rule with decide: allow"),
        ("conversation", {"decide": "allow", "name": "all"}, "no condition"),
        ("conversation", {"tols": ["add"]}, "unknown field"),
        ("conversation", {"tools": ["re:("]}, "tools: "),
        ("conversation", {"tools": ["a"] * 40}, "over 32 patterns"),
        ("conversation", {"tools": ["a"], "say": "x" * 9_000}, "over 8,192 bytes"),
    ],
)
async def test_what_cannot_be_remembered_is_refused_and_the_approval_still_waits(
    remember: Any, rule: dict[str, Any] | None, problem: str
) -> None:
    async with mesh(ByNode(main=[add(1), says("done")]), grants="conversation") as world:
        _, body = await world.create("go")
        status, refused = await world.decide(asking(body)["uuid"], "approve", remember=remember, rule=rule)
        assert status == 400
        assert problem in json.dumps(refused)
        shown = await world.show(body["conversation"]["id"])
        assert shown["pending_approval"] and world.ledger.lines == []


async def test_nothing_is_remembered_unless_the_config_says_so() -> None:
    async with mesh(ByNode(main=[add(1), says("done")])) as world:
        _, body = await world.create("go")
        assert "remember" not in asking(body)
        status, _ = await world.decide(asking(body)["uuid"], "approve", remember="conversation")
        assert status == 400


async def test_what_is_remembered_for_always_holds_in_other_conversations_until_it_is_revoked() -> None:
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, grants="always", rules=[DENY_BIG]) as world:
        _, body = await world.create("go")
        uuid = asking(body)["uuid"]
        await world.decide(uuid, "approve", remember="always", by="ann")
        (grant,) = await world.grant_book.grants("main")
        assert (grant.id, grant.approval, grant.by) == (uuid, uuid, "ann")
        _, other = await world.create("go")
        assert other["result"]["response"] == "done"
        rules = [e.rule for e in await events(world, other) if isinstance(e, ToolIntent)]
        assert rules == [f"grant.{uuid}"]
        await world.grant_book.revoke(uuid, "ann")
        _, third = await world.create("go")
        assert asking(third)["rule"] == "default"


async def test_no_grant_reaches_what_is_denied() -> None:
    model = ByNode(main=[add(1), add(50), says("done")])
    async with mesh(model, grants="always", rules=[DENY_BIG]) as world:
        _, body = await world.create("go")
        _, body = await world.decide(asking(body)["uuid"], "approve", remember="always")
        assert (body["result"]["response"], world.ledger.lines) == ("done", ["add 1"])


async def test_what_was_remembered_before_a_crash_is_remembered_after_it() -> None:
    model = ByNode(main=[add(1), add(2), says("done")])
    async with mesh(model, grants="conversation") as world:
        _, body = await world.create("go")
        await world.crash()
        _, body = await world.decide(asking(body)["uuid"], "approve", remember="conversation")
        assert (body["result"]["response"], world.ledger.lines) == ("done", ["add 1", "add 2"])


async def test_what_the_newest_config_denies_is_denied_in_older_conversations_too() -> None:
    async with mesh(ByNode(main=[add(42), says("done")])) as world:
        _, body = await world.create("go")
        await restarted(world, config(llm("main"), policy={"rules": [DENY_BIG]}))
        _, body = await world.decide(asking(body)["uuid"], "approve")
        (result,) = [e for e in await events(world, body) if isinstance(e, ToolResult)]
        assert (world.ledger.lines, result.rule) == ([], "big")
    assert result.content == "Too much. (rule big of the policy)\nThe call was not run."


# -- a called agent whose call is not allowed any more

CLOSED = {"name": "closed", "kinds": ["agent"], "tools": ["helper"], "decide": "deny", "say": "Not any more."}


def calling(**policy: Any) -> str:
    """An agent that calls another one, of which two nodes ask at the same time."""
    helper = parallel(llm("one"), llm("two"), name="helper", description="Helps.", approvals="ask")
    return config(llm("main", agents=["helper"]), agents=[helper], policy=policy)


async def restarted(world: WorldMesh, newest: str) -> None:
    """The process is gone, and the next one has another config."""
    world.newest = parse(newest, "test.yaml", {})
    world.settings = msgspec.structs.replace(world.settings, digest=world.newest.digest)
    await world.crash()


def helped() -> ByNode:
    call = calls(("helper", {"task": "x"}))
    return ByNode(main=[call, says("done")], one=[add(1), says("1")], two=[add(2), says("2")])


async def test_a_called_agent_that_is_denied_while_it_waits_ends_as_denied_and_without_its_effects() -> None:
    async with WorldMesh(helped(), config=calling()) as world:
        _, body = await world.create("go")
        first, second = body["conversation"]["pending_approvals"]
        await restarted(world, calling(rules=[CLOSED]))
        _, body = await world.decide(first["uuid"], "approve")
        status, refused = await world.decide(second["uuid"], "approve")
        (result,) = [e for e in await events(world, body) if isinstance(e, ToolResult)]
        assert (body["result"]["response"], world.ledger.lines) == ("done", [])
        assert (status, "is not needed any more" in json.dumps(refused)) == (409, True)
        assert (result.tool, result.rule, result.is_error) == ("helper", "closed", True)
        assert result.content.endswith("(rule closed of the policy)\nhelper had begun, and does not go on.")
        assert "pending_approval" not in await world.show(body["conversation"]["id"])


async def test_a_called_agent_whose_grant_is_revoked_while_it_waits_has_begun_and_goes_on() -> None:
    curious = {"name": "curious", "tools": ["helper"], "decide": "ask"}
    async with WorldMesh(helped(), config=calling(grants="always", rules=[curious])) as world:
        rule = PolicyRule(name="r", decide="allow", tools=("helper",))
        grant = Grant(id="g", agent="main", rule=rule, remember="always")
        await world.grant_book.add(grant)
        _, body = await world.create("go")
        await world.grant_book.revoke("g", "ann")
        for asked in body["conversation"]["pending_approvals"]:
            _, body = await world.decide(asked["uuid"], "approve")
        assert (body["result"]["response"], sorted(world.ledger.lines)) == ("done", ["add 1", "add 2"])
        _, body = await world.create("go")
        assert asking(body)["tool_name"] == "helper"


async def test_what_a_called_agent_had_claimed_when_it_was_denied_is_waited_for_and_journaled() -> None:
    running, going = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        running.set()
        await asyncio.wait_for(going.wait(), 30)

    async with WorldMesh(helped(), config=calling()) as world:
        world.ledger.before_add = slow
        _, body = await world.create("go")
        first, _ = body["conversation"]["pending_approvals"]
        deciding = asyncio.create_task(world.decide(first["uuid"], "approve"))
        await asyncio.wait_for(running.wait(), 30)
        world.newest = parse(calling(rules=[CLOSED]), "test.yaml", {})
        world.settings = msgspec.structs.replace(world.settings, digest=world.newest.digest)
        settle = world.settle

        async def settling(call: UnsettledCall) -> ToolResult | None:
            going.set()
            return await settle(call)

        world.settle = settling  # type: ignore[method-assign]
        await world.lose_keeper()

        async def is_over() -> bool:
            return isinstance((await events(world, body))[-1], Completed)

        await until(is_over)
        results = {e.tool: e.is_error for e in await events(world, body) if isinstance(e, ToolResult)}
        assert (results, world.ledger.lines) == ({"helper": True, "add": False}, ["add 1"])
        deciding.cancel()
        await asyncio.gather(deciding, return_exceptions=True)


# -- what a person saw


class Files(Ledger):
    """One file, with the tool ``write``, which previews, expects and checks."""

    def __init__(self) -> None:
        super().__init__()
        self.content = "old"
        self.knows_previews = True

    def pairs(self) -> list[tuple[Tool, ToolFunction]]:
        names = ("content", "expect", *(("dry_run", "check", "from") if self.knows_previews else ()))
        schema = {"type": "object", "properties": {key: {} for key in names}, "required": ["content"]}
        preview, check = {"dry_run": True}, {"check": True}
        write = Tool(
            name="write",
            description="",
            input_schema=schema,
            server="ledger",
            about=ArgumentMeta(preview=preview, check=check, rest="from"),
        )
        return [(write, self.write)]

    async def write(self, arguments: dict[str, Any]) -> ToolOutcome | str:
        """Writes, unless it is to preview or to check that."""
        content, expect = arguments["content"], arguments.get("expect")
        if content == "impossible":
            return ToolOutcome("it does not apply", is_error=True)
        if arguments.get("check"):
            return json.dumps({"outcome": "applied" if self.content == content else "not_applied"})
        if arguments.get("dry_run"):
            text = f"-{self.content}\n+{content}\n"[arguments.get("from", 0) :]
            return json.dumps({"kind": "diff", "text": text, "expect": self.content})
        if expect is not None and expect != self.content:
            return ToolOutcome("a.txt has changed.\nExpected: old.", is_error=True, is_conflict=True)
        self.lines.append(f"write {content} expecting {expect}")
        self.content = content
        return "written"


def write(content: str) -> LlmCall:
    return calls(("write", {"content": content}))


async def test_a_person_sees_what_a_call_would_do_and_that_is_what_happens() -> None:
    files = Files()
    async with mesh(ByNode(main=[write("new"), says("done")]), ledger=files) as world:
        _, body = await world.create("go")
        assert asking(body)["preview"] == {"kind": "diff", "text": "-old\n+new\n", "expect": "old"}
        assert files.lines == []
        _, body = await world.decide(asking(body)["uuid"], "approve")
        assert files.lines == ["write new expecting old"]
        results = [e.content for e in await events(world, body) if isinstance(e, ToolResult)]
    assert results == ["written"]


async def test_what_has_changed_while_the_approval_waited_is_not_written_and_the_new_diff_asks() -> None:
    files = Files()
    async with mesh(ByNode(main=[write("new"), says("done")]), ledger=files) as world:
        _, body = await world.create("go")
        files.content = "changed meanwhile"
        _, body = await world.decide(asking(body)["uuid"], "approve")
        assert files.lines == []
        assert asking(body)["preview"]["text"] == "-changed meanwhile\n+new\n"
        why = "Something has changed since this was decided: a.txt has changed. Decide again.\n"
        assert asking(body)["description"].startswith(why)
        assert "Expected" not in asking(body)["description"]
        await world.crash()
        _, body = await world.decide(asking(body)["uuid"], "approve")
        assert files.lines == ["write new expecting changed meanwhile"]
        asked = [e.attempt for e in await events(world, body) if isinstance(e, ApprovalRequired)]
    assert asked == [0, 1]


async def test_arguments_that_a_person_changed_are_previewed_before_they_are_written() -> None:
    files = Files()
    async with mesh(ByNode(main=[write("new"), says("done")]), ledger=files) as world:
        _, body = await world.create("go")
        _, body = await world.decide(asking(body)["uuid"], "approve", edited={"content": "other"})
        assert (files.lines, asking(body)["preview"]["text"]) == ([], "-old\n+other\n")
        assert asking(body)["tool_args"] == {"content": "other"}
        _, body = await world.decide(asking(body)["uuid"], "approve")
        assert files.lines == ["write other expecting old"]
        assert body["result"]["response"] == "done"


async def test_a_call_that_would_fail_asks_nobody() -> None:
    async with mesh(ByNode(main=[write("impossible"), says("done")]), ledger=Files()) as world:
        _, body = await world.create("go")
        (result,) = [e for e in await events(world, body) if isinstance(e, ToolResult)]
    assert (body["result"]["response"], result.content) == ("done", "it does not apply")


async def test_what_a_rule_allows_expects_what_is_there_as_well() -> None:
    files = Files()
    rule = {"name": "writes", "tools": ["write"], "decide": "allow"}
    async with mesh(ByNode(main=[write("new"), says("done")]), ledger=files, rules=[rule]) as world:
        await world.create("go")
    assert files.lines == ["write new expecting old"]


async def test_a_custom_function_is_asked_after_the_rules_and_never_overrules_a_deny(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from mesh.policy.custom import allow, deny\n\n"
        "async def judge(call, context):\n"
        "    assert context.by == 'ann'\n"
        "    return deny('Odd.') if call.arguments['n'] == 7 else allow()\n"
    )
    text = config(llm("main"), policy={"custom": "own:judge", "rules": [DENY_BIG]})
    model = ByNode(main=[add(7), add(5), add(50), says("done")])
    async with WorldMesh(model, config=text, origin=str(tmp_path / "agent.yaml")) as world:
        _, body = await world.create("go", by="ann")
        results = [e.rule for e in await events(world, body) if isinstance(e, ToolResult)]
        assert world.ledger.lines == ["add 5"]
    assert results == ["custom", "custom", "big"]


async def test_the_rest_of_a_preview_is_shown_on_request_unless_it_is_another_one_by_now() -> None:
    files = Files()
    long = "x" * 70_000
    async with mesh(ByNode(main=[write(long), says("done")]), ledger=files) as world:
        _, body = await world.create("go")
        shown, uuid = asking(body)["preview"], asking(body)["uuid"]
        assert (shown["cut"], len(shown["text"]), shown["next_offset"]) == (True, 65_536, 65_536)
        _, rest = await world.ask(ShowPreview(uuid, shown["next_offset"]))
        assert (shown["text"] + rest["preview"]["text"]).endswith("x\n")
        files.content = "changed meanwhile"
        status, problem = await world.ask(ShowPreview(uuid, shown["next_offset"]))
        assert (status, "has changed since it asked" in str(problem)) == (409, True)
        files.content = "old"
        status, _ = await world.ask(ShowPreview(uuid))
        assert status == 200
        await world.decide(uuid, "approve")
        status, _ = await world.ask(ShowPreview(uuid))
        assert status == 409


async def test_what_was_remembered_in_another_mesh_is_not_remembered_here() -> None:
    model = ByNode(main=[add(1), says("done")])
    async with mesh(model, grants="always") as world:
        _, body = await world.create("go")
        _, body = await world.decide(asking(body)["uuid"], "approve", remember="always")
        lines = exported_lines(await events(world, body))
    async with mesh(model, grants="always") as other:
        id = body["conversation"]["id"]
        status, _ = await other.ask(Import(id, lines))
        assert status == 201
        model._script["main"] = [add(1), add(2), says("again")]
        _, asked = await other.ask(SendMessage(id, Caller(session_id="s1"), "more"))
        assert asking(asked)["tool_args"] == {"n": 2}
        await other.decide(asking(asked)["uuid"], "approve")
        assert not await other.grant_book.grants("main")


async def test_a_tool_that_does_not_know_the_arguments_of_a_preview_is_not_called_for_one() -> None:
    files = Files()
    files.knows_previews = False
    async with mesh(ByNode(main=[write("new"), says("done")]), ledger=files) as world:
        _, body = await world.create("go")
        assert "preview" not in asking(body)
        assert files.lines == []


async def test_a_person_sees_a_preview_from_its_beginning_whatever_the_model_says() -> None:
    hides = calls(("write", {"content": "new", "from": 5}))
    async with mesh(ByNode(main=[hides, says("done")]), ledger=Files()) as world:
        _, body = await world.create("go")
        assert asking(body)["preview"]["text"] == "-old\n+new\n"

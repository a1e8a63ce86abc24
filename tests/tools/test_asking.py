"""Tools that start agents and wait for them: what they ask, and how they go on with the answers."""

import json
from pathlib import Path
from typing import Any

import msgspec

from mesh.core.execution import RecordedQuestion
from mesh.mcp.port import ToolOutcome
from mesh.mcp.session import McpSession
from mesh.testing import FakeContext, call
from mesh.tools import Context, tool
from tests.tools.serving import STEP, served

SURVEY = """
    @tool(read_only=True)
    def survey(ctx: Context) -> str:
        handles = [ctx.spawn("search", topic) for topic in ("cats", "dogs")]
        first = ctx.wait(handles)
        more = ctx.fork("compare", title="Both")
        return f"{first} {ctx.wait(more)}"
"""


async def asked(session: McpSession, recorded: list[tuple[Any, Any]], name: str = "survey") -> ToolOutcome:
    answered = tuple(
        RecordedQuestion(msgspec.json.encode(question, order="sorted").decode(), json.dumps(answer))
        for question, answer in recorded
    )
    return await session.call(name, {}, context=msgspec.structs.replace(STEP, recorded=answered))


def ends(*texts: str) -> dict[str, Any]:
    return {"ended": [{"status": "completed", "text": text} for text in texts]}


async def test_a_tool_ends_at_what_nobody_has_answered_and_runs_again_with_answers(
    tmp_path: Path,
) -> None:
    async with served(tmp_path, SURVEY) as session:
        first = await asked(session, [])
        assert [json.loads(each) for each in first.asks] == [
            {"spawn": "search", "task": "cats"},
            {"spawn": "search", "task": "dogs"},
            {"wait": [1, 2]},
        ]
        known = [
            ({"spawn": "search", "task": "cats"}, {"handle": 1}),
            ({"spawn": "search", "task": "dogs"}, {"handle": 2}),
            ({"wait": [1, 2]}, ends("meow", "woof")),
        ]
        second = await asked(session, known)
        assert [json.loads(each) for each in second.asks] == [
            {"fork": "compare", "title": "Both"},
            {"wait": [3]},
        ]
        known += [({"fork": "compare", "title": "Both"}, {"handle": 3}), ({"wait": [3]}, ends("alike"))]
        last = await asked(session, known)
    assert (last.asks, last.content) == ((), "['meow', 'woof'] alike")


async def test_a_tool_that_asks_something_else_than_before_fails_with_both(tmp_path: Path) -> None:
    async with served(tmp_path, SURVEY) as session:
        outcome = await asked(session, [({"spawn": "search", "task": "birds"}, {"handle": 1})])
    assert outcome.is_error
    assert "birds" in outcome.content
    assert "cats" in outcome.content


async def test_a_tool_that_swallows_the_end_of_its_run_has_asked_all_the_same(tmp_path: Path) -> None:
    code = """
    @tool(read_only=True)
    def survey(ctx: Context) -> str:
        try:
            return ctx.wait(ctx.fork("x"))
        except BaseException:
            return "never mind"
    """
    async with served(tmp_path, code) as session:
        outcome = await asked(session, [])
    assert [json.loads(each) for each in outcome.asks] == [{"fork": "x"}, {"wait": [1]}]


async def test_a_tool_that_must_not_run_twice_may_not_ask(tmp_path: Path) -> None:
    code = """
    @tool(destructive=True)
    async def survey(ctx: Context) -> str:
        return ctx.wait(ctx.fork("x"))
    """
    async with served(tmp_path, code) as session:
        outcome = await asked(session, [])
    assert (outcome.asks, outcome.is_error) == ((), True)
    assert "read_only or idempotent" in outcome.content


async def test_a_refused_start_and_a_failed_agent_are_errors_that_the_tool_may_handle(tmp_path: Path) -> None:
    code = """
    from mesh.tools import AgentFailed

    @tool(read_only=True)
    async def survey(ctx: Context) -> str:
        try:
            ctx.spawn("search", "cats")
        except ToolError as refused:
            said = str(refused)
        try:
            ctx.wait(ctx.fork("x"))
        except AgentFailed as failed:
            return f"{said} / {failed.status} / {failed}"
        return "no"
    """
    known = [
        ({"spawn": "search", "task": "cats"}, {"refused": "too many"}),
        ({"fork": "x"}, {"handle": 1}),
        ({"wait": [1]}, {"ended": [{"status": "failed", "text": "no model"}]}),
    ]
    async with served(tmp_path, code) as session:
        outcome = await asked(session, known)
    assert outcome.content == "too many / failed / the agent with handle 1 has failed: no model"


async def test_an_unknown_handle_is_an_error(tmp_path: Path) -> None:
    code = """
    @tool(read_only=True)
    def survey(ctx: Context) -> str:
        return ctx.wait(7)
    """
    async with served(tmp_path, code) as session:
        outcome = await asked(session, [])
    assert (outcome.is_error, outcome.content) == (True, "No agent with handle 7")


def test_a_test_of_a_tool_says_what_its_agents_answer() -> None:
    @tool(read_only=True)
    def both(ctx: Context) -> str:
        return " ".join(text or "" for text in ctx.wait([ctx.spawn("a", "x"), ctx.fork("y")]))

    assert call(both, FakeContext(agents=lambda name, task: f"{name}:{task}")) == "a:x self:y"

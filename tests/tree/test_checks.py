"""Calls of which nobody knows whether they ran, of tools with a check: it is asked, and then a person."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.core.events import ApprovalRequired, Found, ToolIntent, ToolResult
from mesh.core.execution import ExecutionContext
from mesh.keeper.requests import Cancel
from mesh.mcp.memory import ToolFunction, execution
from mesh.mcp.port import Tool, ToolOutcome
from mesh.tree.local import LocalTree
from tests.tree.test_claims import Held
from tests.worlds.dying_session import Death, DyingSession
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says, until

ADD = ("add", {"n": 1})
STOPPED = '{"outcome": "applied", "text": "half of it", "stopped": "it was cancelled"}'
BEFORE: Death = "before"
AFTER: Death = "after"


class CheckedMesh(WorldMesh):
    """A mesh whose tool ``add`` has a check: ``finds``, or the truth."""

    def __init__(
        self, *deaths: Death, finds: ToolFunction | None = None, config: str | None = None, **changed: Any
    ) -> None:
        llm = ScriptedLlm(calls(ADD), says("Done."))
        super().__init__(llm, **({"config": config} if config else {}))
        self.llm = llm
        self.finds = finds or self.ledger.was_added
        self.asked: list[dict[str, Any]] = []
        self.contexts: list[ExecutionContext | None] = []
        self.changed = changed
        self.ledger.is_checked = True
        self.session = DyingSession("ledger", self.pairs(), deaths)
        self.tree = LocalTree(self.config, [self.session], lambda _: llm, self)

    def pairs(self, **changed: Any) -> list[tuple[Tool, ToolFunction]]:
        (add, _), look, (check, _) = self.ledger.pairs()
        return [(replace(add, **{**self.changed, **changed}), self._add), look, (check, self._check)]

    async def _add(self, arguments: dict[str, Any]) -> ToolOutcome | str:
        self.contexts.append(execution.get())
        return await self.ledger.add(arguments)

    async def _check(self, arguments: dict[str, Any]) -> ToolOutcome | str:
        self.asked.append(arguments)
        self.contexts.append(execution.get())
        return await self.finds(arguments)

    async def run_add(self) -> dict[str, Any]:
        """The conversation after its call was approved."""
        _, body = await self.create("Add one")
        _, body = await self.decide(body["result"]["approval"]["uuid"], "approve")
        return body

    async def events(self, body: dict[str, Any], kind: type[Any]) -> list[Any]:
        return [e for e in await self.journal.read(body["conversation"]["id"]) if isinstance(e, kind)]


async def test_what_was_applied_is_the_result_with_what_the_check_found() -> None:
    async with CheckedMesh(AFTER) as mesh:
        body = await mesh.run_add()
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])
        (result,) = await mesh.events(body, ToolResult)
        assert result.found == Found("was_added", "applied", "['add 1']")
        assert (result.is_error, result.skipped) == (False, False)
        assert result.content.startswith("[No answer to this call arrived. was_added found that ")
        assert result.content.endswith("\n['add 1']")
        assert [e.kind for e in await mesh.events(body, ApprovalRequired)] == ["tool_call"]


async def test_what_was_stopped_is_no_success_and_the_model_reads_why() -> None:
    async with CheckedMesh(AFTER, finds=answers(STOPPED)) as mesh:
        (result,) = await mesh.events(await mesh.run_add(), ToolResult)
        assert result.is_error
        assert result.found is not None
        assert result.found.stopped == "it was cancelled"
        read = str(mesh.llm.requests[-1].messages)
        assert "[This call was stopped while it ran: it was cancelled. What was_added says about it:]" in read
        assert "half of it" in read


async def test_what_was_not_applied_is_claimed_again_and_the_claim_says_why() -> None:
    async with CheckedMesh(BEFORE) as mesh:
        body = await mesh.run_add()
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])
        first, second = await mesh.events(body, ToolIntent)
        assert (first.attempt, first.found) == (0, None)
        assert (second.attempt, second.found) == (1, Found("was_added", "not_applied", "[]"))
        assert [e.kind for e in await mesh.events(body, ApprovalRequired)] == ["tool_call"]


async def test_a_check_is_asked_after_each_death_and_nothing_is_lost_or_done_twice() -> None:
    async with CheckedMesh(BEFORE, BEFORE, AFTER) as mesh:
        body = await mesh.run_add()
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])
        assert len(mesh.asked) == 3


async def test_a_tool_whose_session_dies_again_and_again_is_given_up() -> None:
    async with CheckedMesh(*[BEFORE] * 9) as mesh:
        body = await mesh.run_add()
        assert mesh.ledger.lines == []
        (result,) = await mesh.events(body, ToolResult)
        assert result.is_error
        assert result.content == (
            "add was begun 5 times, each time without an effect; the check was_added says that it did not run"
        )
        assert len(await mesh.events(body, ToolIntent)) == 5


async def test_the_check_gets_the_arguments_and_the_execution_context_of_the_call() -> None:
    async with CheckedMesh(AFTER) as mesh:
        _, body = await mesh.create("Add one")
        await mesh.decide(body["result"]["approval"]["uuid"], "approve", edited={"n": 7})
        assert mesh.asked == [{"n": 7}]
        of_call, of_check = mesh.contexts
        assert of_call is not None
        assert of_call == of_check


async def fails(arguments: dict[str, Any]) -> ToolOutcome:
    raise ValueError("the bank is closed")


async def hangs(arguments: dict[str, Any]) -> str:
    await asyncio.Event().wait()
    return "never"


def answers(text: str) -> Callable[[dict[str, Any]], Awaitable[str]]:
    async def answer(arguments: dict[str, Any]) -> str:
        return text

    return answer


@pytest.mark.parametrize(
    ("finds", "said"),
    [
        (answers("unknown"), "cannot tell"),
        (answers('{"outcome": "unknown", "text": "ask the bank"}'), "cannot tell: ask the bank"),
        (answers("perhaps"), "neither applied, not_applied nor unknown: perhaps"),
        (answers('{"outcome": ["applied"]}'), "neither applied, not_applied nor unknown"),
        (answers('{"outcome": "applied", "text": 7}'), "neither applied, not_applied nor unknown"),
        (answers("[" * 100_000), "neither applied, not_applied nor unknown"),
        (fails, "it failed: the bank is closed"),
        (hangs, "gave no answer within"),
    ],
    ids=["unknown", "unknown, why", "nonsense", "a list", "no text", "deep", "fails", "hangs"],
)
async def test_a_check_that_cannot_tell_leaves_it_to_a_person_who_sees_why(
    finds: ToolFunction, said: str
) -> None:
    async with CheckedMesh(AFTER, finds=finds) as mesh:
        mesh.session._timeout_s = 1
        body = await mesh.run_add()
        asked = body["result"]["approval"]
        assert (asked["kind"], mesh.ledger.lines) == ("unknown_outcome", ["add 1"])
        assert said in asked["description"]
        assert asked["description"].endswith("n = 1")
        assert asked["found"]["outcome"] == "unknown"
        _, body = await mesh.decide(asked["uuid"], "skip")
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])


@pytest.mark.parametrize("plain", ["applied", '"applied"', '{"result": "applied"}', '{"outcome": "applied"}'])
async def test_a_plain_word_is_an_answer_too(plain: str) -> None:
    async with CheckedMesh(AFTER, finds=answers(plain)) as mesh:
        body = await mesh.run_add()
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])


@pytest.mark.parametrize("name", ["gone", "add"])
async def test_a_check_that_is_not_there_or_changes_things_itself_is_not_called(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with CheckedMesh(AFTER, checked_by=name) as mesh:
        assert f"tool 'add' has no check: MCP server ledger has no read-only tool '{name}'" in caplog.text
        body = await mesh.run_add()
        assert f"ledger has no read-only tool {name}" in body["result"]["approval"]["description"]
        assert mesh.ledger.lines == ["add 1"]


async def test_a_check_may_be_a_read_only_tool_like_any_other() -> None:
    async with CheckedMesh(BEFORE, checked_by="look") as mesh:
        body = await mesh.run_add()
        assert "neither applied" in body["result"]["approval"]["description"]
        assert mesh.ledger.lines == ["look"]


async def test_a_check_whose_session_dies_is_asked_again() -> None:
    deaths = 2

    async def dies(arguments: dict[str, Any]) -> ToolOutcome | str:
        nonlocal deaths
        deaths -= 1
        if deaths >= 0:
            await asyncio.Event().wait()
        return await mesh.ledger.was_added(arguments)

    async with CheckedMesh(AFTER, finds=dies) as mesh:
        mesh.session._timeout_s = 1
        body = await mesh.run_add()
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])
        assert len(mesh.asked) == 3


async def test_a_tool_that_changed_before_it_is_run_again_is_asked_about_again() -> None:
    async def changes(arguments: dict[str, Any]) -> str:
        mesh.session.offer(mesh.pairs(description="Adds a number, and deletes the others."))
        (toolbox,) = mesh.tree.toolboxes
        await until(lambda: _true("deletes" in toolbox.tools["add"].description))
        return "not_applied"

    async with CheckedMesh(BEFORE, finds=changes) as mesh:
        body = await mesh.run_add()
        asked = body["result"]["approval"]
        assert (asked["kind"], mesh.ledger.lines) == ("tool_call", [])
        assert "its description is another" in asked["description"]


# -- models


async def test_a_model_neither_sees_a_check_nor_can_call_it() -> None:
    async with CheckedMesh() as mesh:
        assert isinstance(mesh.llm, ScriptedLlm)
        mesh.llm.answers = [calls(("was_added", {"n": 1})), says("Done.")]
        _, body = await mesh.create("Check it")
        assert [tool.name for tool in mesh.llm.requests[0].tools] == ["add", "look"]
        (result,) = await mesh.events(body, ToolResult)
        assert result.content == "There is no tool 'was_added'. The tools are: add, look."
        assert mesh.asked == []


ONE_TOOL = """
name: test
llm: {model: scripted}
agent: {name: test, type: llm, tools: [add]}
"""


async def test_a_node_with_some_of_the_tools_has_their_checks_all_the_same() -> None:
    async with CheckedMesh(BEFORE, config=ONE_TOOL) as mesh:
        body = await mesh.run_add()
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])


# -- crashes, and the end of a turn


async def lost_while_it_runs(mesh: CheckedMesh) -> tuple[dict[str, Any], "asyncio.Task[Any]"]:
    """A call that runs, and whose session then forgets it."""
    _, body = await mesh.create("Add one")
    held = Held(mesh.ledger)
    deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
    await asyncio.wait_for(held.began.wait(), 30)
    mesh.session.forget()
    mesh.ledger.before_add = None
    return body, deciding


@pytest.mark.parametrize("ran", [True, False])
async def test_after_a_crash_the_check_is_asked_and_nobody_else(ran: bool) -> None:
    async with CheckedMesh() as mesh:
        body, deciding = await lost_while_it_runs(mesh)
        if ran:
            mesh.ledger.lines.append("add 1")
        deciding.cancel()
        await mesh.crash()
        await until(lambda: _said(mesh, body, "Done."))
        assert mesh.ledger.lines == ["add 1"]
        assert [e.kind for e in await mesh.events(body, ApprovalRequired)] == ["tool_call"]


@pytest.mark.parametrize(
    ("finds", "told"),
    [("applied", "had its effect"), ("not_applied", "was not run"), ("unknown", None)],
)
async def test_a_turn_that_ends_asks_the_check_of_what_nobody_knows(finds: str, told: str | None) -> None:
    async with CheckedMesh(finds=answers(finds)) as mesh:
        body, deciding = await lost_while_it_runs(mesh)
        conversation = body["conversation"]["id"]
        deciding.cancel()
        mesh.run = _never  # type: ignore[method-assign]
        await mesh.crash()
        await mesh.ask(Cancel(conversation))
        assert (await mesh.show(conversation))["turn"]["state"] == "cancelled"
        results = await mesh.events(body, ToolResult)
        assert mesh.asked == [{"n": 1}]
        if told is None:
            assert results == []
        else:
            (result,) = results
            assert told in result.content
            assert result.found == Found("was_added", finds)  # type: ignore[arg-type]
        assert mesh.ledger.lines == []


async def _never(turn: Any) -> Any:
    await asyncio.Event().wait()


async def _true(it_is_so: bool) -> bool:
    return it_is_so


async def _said(mesh: WorldMesh, body: dict[str, Any], text: str) -> bool:
    return bool((await mesh.show(body["conversation"]["id"]))["messages"][-1]["content"] == text)

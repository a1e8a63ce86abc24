"""Answers that are checked: by a schema, a function, an agent, a person; and what follows an objection."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from mesh.config.model import parse
from mesh.core.actions import actions
from mesh.core.conversation import fold
from mesh.core.errors import ConfigError, ToolSessionError
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    Completed,
    Error,
    Event,
    LlmCall,
    ToolResult,
    Validation,
)
from mesh.core.messages import Assistant, Results, User
from mesh.http.streams import shown
from mesh.llm.port import LlmRequest
from mesh.mcp.memory import MemorySession, ToolFunction
from mesh.mcp.port import Tool, ToolOutcome
from mesh.mcp.session import McpSession
from mesh.tree.local import LocalTree
from tests.tools.serving import served
from tests.worlds.mesh import WorldMesh, calls, says
from tests.worlds.tool_servers import Spec
from tests.worlds.trees import EXIT, config, llm, loop, parallel, sequential, tool

ORDER = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 0}},
    "required": ["total"],
    "additionalProperties": False,
}
GOOD, BAD = '{"total": 7}', '{"total": -1}'


class Answers:
    """An `Llm` that gives each node its answers, one after the other; the last one for ever."""

    def __init__(self, **script: list[str | LlmCall]) -> None:
        self.script = {name: [*answers] for name, answers in script.items()}
        self.requests: dict[str, list[LlmRequest]] = {name: [] for name in script}

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        name = request.system.partition(":")[0]
        self.requests[name].append(request)
        answers = self.script[name]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        yield says(answer) if isinstance(answer, str) else answer

    async def close(self) -> None:
        return None


class CheckedMesh(WorldMesh):
    """A mesh whose server has a check for each function."""

    def __init__(self, model: Answers, tree: dict[str, Any], *agents: dict[str, Any], **more: Any) -> None:
        self.checks: dict[str, ToolFunction] = more.pop("checks", {})
        is_foreign: bool = more.pop("is_foreign", False)
        more = {"agents": list(agents), **more} if agents else more
        super().__init__(model, config=config(tree, **more))
        pairs = [
            *self.ledger.pairs(),
            *((_check(name, is_foreign), run) for name, run in self.checks.items()),
        ]
        assert isinstance(self.ledger.offered, MemorySession)
        self.ledger.offered.offer(pairs)

    async def lived(self, message: str = "go") -> tuple[dict[str, Any], list[AnyEvent]]:
        _, body = await self.create(message)
        return body, await self.journal.read(body["conversation"]["id"])


def _check(name: str, is_foreign: bool = False) -> Tool:
    schema = {"type": "object", "properties": {"output": {}}, "required": ["output"]}
    return Tool(
        name=name,
        description="",
        input_schema=schema,
        server="ledger",
        destructive=False,
        repeatable=True,
        read_only=True,
        is_check=not is_foreign,
    )


def validations(events: list[AnyEvent]) -> list[tuple[str, bool, int]]:
    return [(e.name, e.valid, e.number) for e in events if isinstance(e, Validation)]


async def polite(arguments: dict[str, Any]) -> str:
    return "true" if "please" in str(arguments["output"]) else "Say please."


# -- the schema


async def test_an_answer_that_fits_its_schema_is_the_output_of_the_turn() -> None:
    model = Answers(main=[GOOD])
    async with CheckedMesh(model, llm("main", output_schema=ORDER)) as world:
        body, events = await world.lived()
    assert body["result"]["output"] == {"total": 7}
    assert body["result"]["response"] == GOOD
    assert "invalid" not in body["result"]
    assert validations(events) == [("schema", True, 1)]
    assert model.requests["main"][0].output_schema == ORDER
    assert [e.output for e in events if isinstance(e, Completed)] == [{"total": 7}]


@pytest.mark.parametrize("wrong", ["prose", BAD, '{"total": "7"}', "[]", '```json\n{"total": 1}\n```', ""])
async def test_the_model_is_told_what_does_not_fit_as_its_next_message(wrong: str) -> None:
    model = Answers(main=[wrong, GOOD])
    async with CheckedMesh(model, llm("main", output_schema=ORDER)) as world:
        body, events = await world.lived()
    assert body["result"]["output"] == {"total": 7}
    assert validations(events) == [("schema", False, 1), ("schema", True, 2)]
    objection = next(e.feedback for e in events if isinstance(e, Validation))
    assert model.requests["main"][1].messages[1:] == (Assistant(wrong), User(objection))


async def test_after_max_runs_the_node_fails_and_says_who_objected_to_what() -> None:
    model = Answers(main=[BAD])
    async with CheckedMesh(model, llm("main", output_schema=ORDER, max_runs=2)) as world:
        body, events = await world.lived()
    assert "main: the answer did not pass (run 2 of 2): schema: " in body["error"]
    assert "total breaks the rule minimum: 0" in body["error"]
    assert len(model.requests["main"]) == 2
    assert isinstance(events[-1], Error)


async def test_an_accepted_answer_is_marked() -> None:
    tree = llm("main", validate=[{"check": "polite"}], on_invalid="accept", max_runs=1)
    model = Answers(main=["prose"])
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, _ = await world.lived()
        shown = await world.show(body["conversation"]["id"])
    assert body["result"]["response"] == "prose"
    assert body["result"]["invalid"] == "polite: Say please."
    assert "output" not in body["result"]
    assert shown["turn"]["invalid"] == "polite: Say please."
    # The next turn sees what was answered, once.
    assert [m["content"] for m in shown["messages"]] == ["go", "prose"]


async def test_what_the_next_turn_reads_alternates_and_has_the_answer_once() -> None:
    model = Answers(main=["rude", "please", "done, please"])
    tree = llm("main", validate=[{"check": "polite"}])
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, _ = await world.lived()
        await world.say(body["conversation"]["id"], "more")
    told = model.requests["main"][-1].messages
    assert told == (User("go"), Assistant("rude"), User("Say please."), Assistant("please"), User("more"))


# -- checks


@pytest.mark.parametrize(
    "yes",
    ["true", "True\n", '{"result": true}', ToolOutcome(content="It is fine.", truth=True)],
    ids=["JSON", "a word", "a result", "structured"],
)
async def test_a_foreign_tool_that_says_true_lets_the_answer_pass(yes: str | ToolOutcome) -> None:
    async def check(arguments: dict[str, Any]) -> str | ToolOutcome:
        return yes

    tree = llm("main", validate=[{"check": "fine"}])
    async with CheckedMesh(Answers(main=["hi"]), tree, checks={"fine": check}, is_foreign=True) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "hi"
    assert validations(events) == [("fine", True, 1)]


@pytest.mark.parametrize(
    ("no", "told"),
    [
        ('"true"', "true"),
        ('{"result": "true"}', "true"),
        (ToolOutcome(content="Too long.", truth=False), "Too long."),
        (ToolOutcome(content="false", truth=False), "The check fine does not accept this answer."),
        (ToolOutcome(content="true", truth=False), "The check fine does not accept this answer."),
        (ToolOutcome(content="true", is_structured=True), "true"),
    ],
)
async def test_a_value_of_a_foreign_tool_that_is_not_true_is_an_objection(
    no: str | ToolOutcome, told: str
) -> None:
    said = [no, "true"]

    async def check(arguments: dict[str, Any]) -> str | ToolOutcome:
        return said.pop(0)

    model = Answers(main=["hi", "hello"])
    tree = llm("main", validate=[{"check": "fine"}])
    async with CheckedMesh(model, tree, checks={"fine": check}, is_foreign=True) as world:
        _, events = await world.lived()
    assert model.requests["main"][1].messages[-1] == User(told)
    assert validations(events) == [("fine", False, 1), ("fine", True, 2)]


_QUOTES = """
import sys
from mcp.server import MCPServer
from mcp_types import ToolAnnotations
server = MCPServer("quotes")
@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def quotes(output: str) -> {returns}:
    return {body}
server.run("stdio")
"""


@pytest.mark.parametrize(
    ("returns", "body", "told"),
    [
        ("bool | str", 'output if output != "better" else True', "true"),
        ("bool | int", '1 if output != "better" else True', "1"),
    ],
)
async def test_only_the_value_true_of_a_server_with_structured_content_lets_the_answer_pass(
    tmp_path: Path, returns: str, body: str, told: str
) -> None:
    file = tmp_path / "quotes.py"
    file.write_text(_QUOTES.format(returns=returns, body=body))
    model = Answers(main=["true", "better"])
    mesh = WorldMesh(model, config=config(llm("main", validate=[{"check": "quotes"}])))
    session = McpSession(Spec(command=sys.executable, args=[str(file)]))
    try:
        mesh.tree = LocalTree(mesh.config, [session], lambda _: model, mesh)
        async with mesh:
            _, turn = await mesh.create("go")
            events = await mesh.journal.read(turn["conversation"]["id"])
    finally:
        await session.close()
    assert model.requests["main"][1].messages[-1] == User(told)
    assert validations(events) == [("quotes", False, 1), ("quotes", True, 2)]


@pytest.mark.parametrize("decorator", ["check", "tool(read_only=True)"])
@pytest.mark.parametrize("told", ["true", "True", '{"result": true}'])
async def test_an_objection_of_a_function_that_reads_like_true_is_an_objection(
    tmp_path: Path, told: str, decorator: str
) -> None:
    code = f"""
        @{decorator}
        def quotes(output: str) -> bool | str:
            return output if output != "better" else True
    """
    model = Answers(main=[told, "better"])
    mesh = WorldMesh(model, config=config(llm("main", validate=[{"check": "quotes"}])))
    async with served(tmp_path, code) as session:
        mesh.tree = LocalTree(mesh.config, [session], lambda _: model, mesh)
        async with mesh:
            _, body = await mesh.create("go")
            events = await mesh.journal.read(body["conversation"]["id"])
    assert model.requests["main"][1].messages[-1] == User(told)
    assert body["result"]["response"] == "better"
    assert validations(events) == [("quotes", False, 1), ("quotes", True, 2)]


@pytest.mark.parametrize(
    ("no", "told"),
    [
        ("Too long.", "Too long."),
        ('"Too long."', "Too long."),
        ("false", "The check fine does not accept this answer."),
    ],
)
async def test_a_check_that_says_anything_else_says_what_the_model_is_told(no: str, told: str) -> None:
    answers = [no, "true"]

    async def check(arguments: dict[str, Any]) -> str:
        return answers.pop(0)

    model = Answers(main=["hi", "hello"])
    tree = llm("main", validate=[{"check": "fine"}])
    async with CheckedMesh(model, tree, checks={"fine": check}) as world:
        body, _ = await world.lived()
    assert model.requests["main"][1].messages[-1] == User(told)
    assert body["result"]["response"] == "hello"


async def test_a_check_gets_the_value_of_an_answer_with_a_schema_or_its_text_if_it_takes_only_text() -> None:
    seen: list[Any] = []

    async def check(arguments: dict[str, Any]) -> str:
        seen.append(arguments)
        return "true"

    tree = llm("main", output_schema=ORDER, validate=[{"check": "any"}, {"check": "text"}])
    async with CheckedMesh(Answers(main=[GOOD]), tree, checks={"any": check, "text": check}) as world:
        texts = {"output": {"type": "string"}, "request": {"type": "string"}}
        schema = {"type": "object", "properties": texts, "required": ["output"]}
        functions = world.ledger.offered._functions
        tools = [_check("any"), msgspec.structs.replace(_check("text"), input_schema=schema)]
        world.ledger.offered.offer([(tool, functions[tool.name]) for tool in tools])
        await world.tree.close()
        await world.tree.start()
        await world.lived()
    assert seen == [{"output": {"total": 7}}, {"output": GOOD, "request": "go"}]


async def _raises(arguments: dict[str, Any]) -> str:
    raise ZeroDivisionError("it broke")


async def _says_nothing(arguments: dict[str, Any]) -> str:
    return " "


@pytest.mark.parametrize(
    ("check", "why"),
    [(_raises, "main: the check odd failed: it broke"), (_says_nothing, "answered neither true nor why not")],
)
async def test_a_check_that_raises_or_answers_nonsense_fails_the_node_and_is_named(
    check: ToolFunction, why: str
) -> None:
    tree = llm("main", validate=[{"check": "odd"}], on_invalid="accept", show_drafts=True)
    async with CheckedMesh(Answers(main=["hi"]), tree, checks={"odd": check}) as world:
        body, events = await world.lived()
    assert why in body["error"]
    assert "odd" in body["error"]
    assert validations(events) == []


async def test_the_first_validator_that_objects_speaks_and_the_others_are_not_asked() -> None:
    asked: list[str] = []

    def check(name: str, *says: str) -> ToolFunction:
        left = [*says]

        async def run(arguments: dict[str, Any]) -> str:
            asked.append(name)
            return left.pop(0)

        return run

    checks = {"a": check("a", "true", "true"), "b": check("b", "no", "true"), "c": check("c", "true")}
    tree = llm("main", validate=[{"check": name} for name in checks])
    async with CheckedMesh(Answers(main=["x", "y"]), tree, checks=checks) as world:
        _, events = await world.lived()
    assert asked == ["a", "b", "a", "b", "c"]
    assert [e.step for e in events if isinstance(e, Validation)] == [
        "0/validation/0.0",
        "0/validation/0.1",
        "0/validation/1.0",
        "0/validation/1.1",
        "0/validation/1.2",
    ]


async def test_the_model_has_its_tools_when_it_is_told() -> None:
    model = Answers(main=["rude", calls(("look", {})), "please"])
    tree = llm("main", validate=[{"check": "polite"}])
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "please"
    assert {tool.name for tool in model.requests["main"][1].tools} == {"add", "look"}
    assert world.ledger.lines == ["look"]
    assert validations(events) == [("polite", False, 1), ("polite", True, 2)]


async def test_a_check_is_never_shown_to_a_model_and_cannot_be_called_by_it() -> None:
    model = Answers(main=[calls(("polite", {"output": "please"})), "please"])
    tree = llm("main", validate=[{"check": "polite"}])
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        _, events = await world.lived()
    assert "polite" not in {tool.name for tool in model.requests["main"][0].tools}
    assert [e.is_error for e in events if isinstance(e, ToolResult)] == [True]


# -- agents


CRITIC = llm("critic", "Be strict about {output}, an answer to {request}.")


def verdict(valid: bool, feedback: str = "") -> str:
    return json.dumps({"valid": valid, "feedback": feedback})


async def test_an_agent_that_validates_is_given_the_answer_and_a_schema_for_its_verdict() -> None:
    model = Answers(main=["v1", "v2"], critic=[verdict(False, "Too short."), verdict(True)])
    tree = llm("main", validate=[{"agent": "critic"}])
    async with CheckedMesh(model, tree, CRITIC) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "v2"
    assert model.requests["main"][1].messages[-1] == User("Too short.")
    (first, second) = model.requests["critic"]
    assert first.system == "critic: Be strict about v1, an answer to go."
    assert "The answer:\nv1" in first.messages[0].text  # type: ignore[union-attr]
    assert second.system.startswith("critic: Be strict about v2")
    assert first.output_schema is not None
    assert set(first.output_schema["properties"]) == {"valid", "feedback"}
    assert [(e.step, e.name) for e in events if isinstance(e, Validation)] == [
        ("0.critic@v0-0/validation/0.0", "schema"),
        ("0/validation/0.0", "critic"),
        ("0.critic@v1-0/validation/0.0", "schema"),
        ("0/validation/1.0", "critic"),
    ]


@pytest.mark.parametrize("said", ["fine by me", '{"ok": true}', '{"valid": "yes", "feedback": ""}'])
async def test_an_agent_that_answers_nonsense_is_told_and_then_fails_the_node_and_is_named(said: str) -> None:
    model = Answers(main=["hi"], critic=[said])
    tree = llm("main", validate=[{"agent": "critic"}], on_invalid="accept", show_drafts=True)
    async with CheckedMesh(model, tree, CRITIC) as world:
        body, _ = await world.lived()
    assert "main: the agent critic failed: critic: the answer did not pass (run 3 of 3)" in body["error"]
    assert len(model.requests["critic"]) == 3


async def test_a_tree_that_validates_has_to_end_with_a_verdict() -> None:
    critics = sequential(llm("one"), llm("two"), name="critics")
    model = Answers(main=["hi"], one=["hm"], two=[verdict(True)])
    tree = llm("main", validate=[{"agent": "critics"}])
    async with CheckedMesh(model, tree, critics) as world:
        body, _ = await world.lived()
    assert body["result"]["response"] == "hi"
    model = Answers(main=["hi"], one=["hm"], two=["looks good"])
    async with CheckedMesh(model, tree, critics) as world:
        body, _ = await world.lived()
    assert "main: the agent critics answered nonsense" in body["error"]


async def test_an_agent_is_not_asked_below_the_greatest_depth_and_nothing_passes() -> None:
    tree = llm("main", validate=[{"agent": "critic"}])
    model = Answers(main=["hi"], critic=[verdict(True)])
    async with CheckedMesh(model, tree, CRITIC, budget={"max_depth": 1}) as world:
        body, _ = await world.lived()
    assert "budget.max_depth" in body["error"]
    assert model.requests["critic"] == []


async def test_a_tool_that_a_validating_agent_calls_waits_for_a_person_as_ever() -> None:
    model = Answers(main=["hi"], critic=[calls(("add", {"n": 1})), verdict(True)])
    tree = llm("main", validate=[{"agent": "critic"}])
    async with CheckedMesh(model, tree, CRITIC) as world:
        body, _ = await world.lived()
        approval = body["result"]["approval"]
        assert (approval["kind"], approval["agent_path"]) == ("tool_call", ["main", "critic"])
        _, body = await world.decide(approval["uuid"], "approve")
    assert body["result"]["response"] == "hi"
    assert world.ledger.lines == ["add 1"]


VERDICT = {
    "type": "object",
    "properties": {"valid": {"type": "boolean"}, "feedback": {"type": "string", "minLength": 3}},
    "required": ["valid", "feedback"],
}


@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize(
    "said", ['{"valid": true, "feedback": "x"}', '{"valid": true}', verdict(True, "fine")]
)
async def test_a_verdict_that_did_not_pass_its_own_checks_lets_no_answer_pass(
    said: str, is_tree: bool
) -> None:
    inner = llm(
        "inner" if is_tree else "critic",
        output_schema=VERDICT,
        validate=[{"check": "polite"}],
        max_runs=1,
        on_invalid="accept",
    )
    critic = sequential(llm("one"), inner, name="critic") if is_tree else inner
    model = Answers(main=["hi"], one=["hm"], critic=[said], inner=[said])
    tree = llm("main", validate=[{"agent": "critic"}], on_invalid="accept")
    async with CheckedMesh(model, tree, critic, checks={"polite": polite}) as world:
        body, _ = await world.lived()
    assert body["error"] == "main: the verdict of the agent critic did not pass its own checks"


async def test_a_verdict_that_a_person_approved_against_an_objection_is_none() -> None:
    critic = llm("critic", validate=[{"check": "polite"}], max_runs=1, on_invalid="ask")
    tree = llm("main", validate=[{"agent": "critic"}])
    model = Answers(main=["hi"], critic=[verdict(True)])
    async with CheckedMesh(model, tree, critic, checks={"polite": polite}) as world:
        body, _ = await world.lived()
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
    assert body["error"] == "main: the verdict of the agent critic did not pass its own checks"


@pytest.mark.parametrize(
    "said", ['{"valid": false, "feedback": "no", "valid": true}', '{"valid": true, "valid": true}']
)
async def test_a_verdict_with_two_members_of_one_name_is_nonsense(said: str) -> None:
    tree = llm("main", validate=[{"agent": "critics"}])
    critics = sequential(llm("one"), name="critics")
    async with CheckedMesh(Answers(main=["hi"], one=[said]), tree, critics) as world:
        body, _ = await world.lived()
    assert body["error"].startswith("main: the agent critics answered nonsense")


async def test_two_results_of_one_name_from_a_server_of_texts_are_an_objection() -> None:
    async def doubtful(arguments: dict[str, Any]) -> str:
        return '{"result": false, "result": true}' if arguments["output"] == "v1" else "true"

    tree = llm("main", validate=[{"check": "doubtful"}])
    model = Answers(main=["v1", "v2"])
    async with CheckedMesh(model, tree, checks={"doubtful": doubtful}, is_foreign=True) as world:
        body, _ = await world.lived()
    assert body["result"]["response"] == "v2"


@pytest.mark.parametrize("is_tree", [False, True])
@pytest.mark.parametrize("ends_loop", [False, True])
async def test_nothing_of_a_destructive_agent_runs_as_a_validator(ends_loop: bool, is_tree: bool) -> None:
    hint = {"destructiveHint": True}
    critic = sequential(llm("one"), name="critic", **hint) if is_tree else llm("critic", **hint)
    model = Answers(main=["hi"], writer=["hi"], critic=[verdict(True)], one=[verdict(True)])
    checked = llm("main", validate=[{"agent": "critic"}], on_invalid="accept")
    tree = rounds(exit_when={"agent": "critic"}) if ends_loop else checked
    async with CheckedMesh(model, tree, critic) as world:
        body, events = await world.lived()
    assert "the agent critic is destructive, and a validator only reads" in body["error"]
    assert model.requests["critic"] == model.requests["one"] == []
    assert validations(events) == []


async def test_a_destructive_agent_that_a_validating_agent_calls_waits_for_a_person_as_ever() -> None:
    critic = llm("critic", agents=["eraser"])
    model = Answers(main=["hi"], critic=[calls(("eraser", {"task": "x"})), verdict(True)], eraser=["gone"])
    tree = llm("main", validate=[{"agent": "critic"}])
    async with CheckedMesh(model, tree, critic, llm("eraser", destructiveHint=True)) as world:
        body, _ = await world.lived()
        assert model.requests["eraser"] == []
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
    assert body["result"]["response"] == "hi"


ADDS = calls(("add", {"n": 7}))


@pytest.mark.parametrize("rule", [None, "ask", "inline"])
@pytest.mark.parametrize("around", [loop, parallel])
@pytest.mark.parametrize(
    "critic",
    [
        llm("critic"),
        sequential(tool("adds", "add", n=7), llm("last"), name="critic"),
        loop(llm("own"), name="critic", max_iterations=1),
        llm("critic", agents=["eraser"]),
    ],
    ids=["llm", "tool", "own loop", "calls another"],
)
async def test_what_a_validating_agent_calls_waits_for_a_person_unless_the_config_says_inline(
    critic: dict[str, Any], around: Any, rule: str | None
) -> None:
    script = {name: [ADDS, verdict(True)] for name in ("critic", "own", "eraser")}
    if "eraser" in critic.get("agents", ()):
        script["critic"] = [calls(("eraser", {"task": "x"})), verdict(True)]
    more = {"approvals": rule} if rule else {}
    more |= {"max_iterations": 1} if around is loop else {}
    tree = around(llm("main", validate=[{"agent": "critic"}]), **more)
    model = Answers(main=["hi"], last=[verdict(True)], **script)
    async with CheckedMesh(model, tree, critic, llm("eraser")) as world:
        body, _ = await world.lived()
        assert world.ledger.lines == (["add 7"] if rule == "inline" else [])
        if rule != "inline":
            _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
    assert (body["result"]["response"], world.ledger.lines) == ("hi", ["add 7"])


async def test_what_ends_a_loop_asks_though_the_nodes_of_the_loop_do_not() -> None:
    tree = loop(llm("main"), exit_when={"agent": "critic"}, max_iterations=3)
    model = Answers(main=[calls(("add", {"n": 1})), "hi"], critic=[ADDS, verdict(True)])
    async with CheckedMesh(model, tree, CRITIC) as world:
        body, _ = await world.lived()
        assert world.ledger.lines == ["add 1"]
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
    assert (body["result"]["response"], world.ledger.lines) == ("hi", ["add 1", "add 7"])


async def test_a_validator_of_an_agent_that_a_loop_calls_asks_though_the_agent_does_not() -> None:
    tree = loop(llm("main", agents=["helper"]), max_iterations=1)
    helper = llm("helper", validate=[{"agent": "critic"}])
    script = {"main": [calls(("helper", {"task": "x"})), "done"], "critic": [ADDS, verdict(True)]}
    model = Answers(helper=[calls(("add", {"n": 1})), "hi"], **script)
    async with CheckedMesh(model, tree, helper, CRITIC) as world:
        body, _ = await world.lived()
        assert world.ledger.lines == ["add 1"]
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
    assert (body["result"]["response"], world.ledger.lines) == ("done", ["add 1", "add 7"])


async def test_a_validating_agent_may_say_itself_that_its_tools_run_at_once() -> None:
    critic = loop(llm("own"), name="critic", max_iterations=1, approvals="inline")
    model = Answers(main=["hi"], own=[ADDS, verdict(True)])
    async with CheckedMesh(model, llm("main", validate=[{"agent": "critic"}]), critic) as world:
        body, _ = await world.lived()
    assert (body["result"]["response"], world.ledger.lines) == ("hi", ["add 7"])


@pytest.mark.parametrize("ends_loop", [False, True])
async def test_a_tool_node_that_may_change_something_is_no_validator(ends_loop: bool) -> None:
    condition = {"agent": "critic"}
    tree = rounds(exit_when=condition) if ends_loop else loop(llm("main", validate=[condition]))
    world = CheckedMesh(Answers(main=["hi"], writer=["hi"]), tree, tool("critic", "add", n=7))
    with pytest.raises(ConfigError, match="'add' of ledger may change something, so that it cannot check"):
        await world.tree.start()


async def test_a_tool_node_that_only_reads_is_a_validator() -> None:
    async def judge(arguments: dict[str, Any]) -> str:
        return verdict(True)

    tree = llm("main", validate=[{"agent": "critic"}])
    critic = tool("critic", "judge", output="{output}")
    async with CheckedMesh(
        Answers(main=["hi"]), tree, critic, checks={"judge": judge}, is_foreign=True
    ) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "hi"
    assert validations(events) == [("critic", True, 1)]


# -- people


PERSON = [{"person": True}]


async def test_a_person_is_shown_the_answer_and_approves_it() -> None:
    async with CheckedMesh(Answers(main=["hi"]), llm("main", validate=PERSON)) as world:
        body, events = await world.lived()
        approval = body["result"]["approval"]
        asked = next(e for e in events if isinstance(e, ApprovalRequired))
        shown = await world.show(body["conversation"]["id"])
        assert "hi" not in [m["content"] for m in shown["messages"]]
        _, body = await world.decide(approval["uuid"], "approve")
    assert (asked.kind, asked.step, asked.tool_args) == ("validation", "0/validation/0.0", {"output": "hi"})
    assert "output_schema" not in approval
    assert body["result"]["response"] == "hi"
    assert [m["content"] for m in body["conversation"]["messages"]] == ["go", "hi"]


async def test_a_person_puts_another_answer_in_its_place_which_has_to_fit_the_schema() -> None:
    tree = llm("main", output_schema=ORDER, validate=PERSON)
    async with CheckedMesh(Answers(main=[GOOD, '{"total": 1}']), tree) as world:
        body, _ = await world.lived()
        approval = body["result"]["approval"]
        assert approval["output_schema"] == ORDER
        for wrong in ({"output": {"total": -1}}, {"total": 8}, {"output": {"total": 8}, "x": 1}):
            status, refused = await world.decide(approval["uuid"], "approve", edited=wrong)
            assert status == 400, refused
            assert refused["error"].startswith("edited_args: ")
        _, body = await world.decide(approval["uuid"], "approve", edited={"output": {"total": 8}})
        assert body["result"]["output"] == {"total": 8}
        assert body["result"]["response"] == '{"total": 8}'
        await world.say(body["conversation"]["id"], "more")
    told = world.llm.requests["main"][-1].messages  # type: ignore[attr-defined]
    assert [type(m) for m in told] == [User, Assistant, User, Assistant, User]
    assert told[3] == Assistant('{"total": 8}')


async def test_a_rejection_with_a_reason_is_told_to_the_model_and_one_without_ends_the_turn() -> None:
    model = Answers(main=["hi", "hello"])
    async with CheckedMesh(model, llm("main", validate=PERSON)) as world:
        body, _ = await world.lived()
        _, body = await world.decide(body["result"]["approval"]["uuid"], "reject", reason="Longer.")
        assert model.requests["main"][1].messages[-1] == User("Longer.")
        _, body = await world.decide(body["result"]["approval"]["uuid"], "reject")
    assert body["result"]["response"] == "Operation cancelled by user."


async def test_a_text_has_to_be_edited_into_a_text() -> None:
    async with CheckedMesh(Answers(main=["hi"]), llm("main", validate=PERSON)) as world:
        body, _ = await world.lived()
        uuid = body["result"]["approval"]["uuid"]
        status, _ = await world.decide(uuid, "approve", edited={"output": {"a": 1}})
        assert status == 400
        _, body = await world.decide(uuid, "approve", edited={"output": "hello"})
    assert body["result"]["response"] == "hello"


async def test_what_a_person_wrote_is_checked_by_those_who_come_after() -> None:
    tree = llm("main", validate=[{"person": True}, {"check": "polite"}])
    model = Answers(main=["please", "yes please"])
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, _ = await world.lived()
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve", edited={"output": "now"})
        assert body["result"]["waiting_approval"]
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
    assert body["result"]["response"] == "yes please"


async def test_nobody_who_decides_in_time_fails_the_node() -> None:
    tree = llm("main", validate=PERSON)
    async with CheckedMesh(Answers(main=["hi"]), tree, approval_timeout_s=0.05) as world:
        body, _ = await world.lived()
        events = await world.journal.read(body["conversation"]["id"])
        while not isinstance(events[-1], Completed | Error):
            await world.show(body["conversation"]["id"])
            events = await world.journal.read(body["conversation"]["id"])
    assert isinstance(events[-1], Error)
    assert "main: no person checked the answer: nobody decided before" in events[-1].message


# -- at last


ASK = {"on_invalid": "ask", "max_runs": 1}


async def test_at_last_a_person_approves_edits_or_rejects() -> None:
    tree = llm("main", output_schema=ORDER, **ASK)
    for edited, reason, end in (
        (None, "", {"response": BAD, "invalid": "schema: "}),
        ({"output": {"total": 3}}, "", {"response": '{"total": 3}', "output": {"total": 3}}),
        (None, "no way", None),
    ):
        async with CheckedMesh(Answers(main=[BAD]), tree) as world:
            body, events = await world.lived()
            approval = body["result"]["approval"]
            assert approval["kind"] == "validation"
            assert "The answer did not pass (run 1 of 1): schema: " in approval["description"]
            choice = "reject" if reason else "approve"
            _, body = await world.decide(approval["uuid"], choice, edited=edited, reason=reason)
            events = await world.journal.read(body["conversation"]["id"])
        assert validations(events)[0] == ("schema", False, 1)
        assert validations(events)[1] == ("person", end is not None, 1)
        if end is None:
            assert "A person rejected it: no way" in body["error"]
        else:
            result = body["result"]
            assert result["response"] == end["response"]
            assert result.get("invalid", "").startswith(end.get("invalid", ""))
            assert result.get("output") == end.get("output")


async def test_a_model_that_never_comes_to_an_answer_has_not_answered() -> None:
    model = Answers(main=[calls(("look", {}))])
    tree = llm("main", validate=[{"check": "polite"}])
    limits = {"limits": {"max_tool_iterations": 3}}
    async with CheckedMesh(model, tree, checks={"polite": polite}, **limits) as world:
        body, events = await world.lived()
    assert "I stopped after 3 model calls" not in str(body.get("result"))
    assert "main: the answer did not pass" in body["error"]
    assert validations(events) == []


async def test_each_run_has_its_own_model_calls() -> None:
    look = calls(("look", {}))
    model = Answers(main=[look, "rude", look, "rude", look, "please"])
    tree = llm("main", validate=[{"check": "polite"}])
    limits = {"limits": {"max_tool_iterations": 2}}
    async with CheckedMesh(model, tree, checks={"polite": polite}, **limits) as world:
        body, _ = await world.lived()
    assert body["result"]["response"] == "please"


# -- calls that are answers


DONE = {"can_complete_task": True}


async def test_the_result_of_complete_task_has_the_schema_and_is_checked() -> None:
    def done(value: Any) -> LlmCall:
        return calls(("complete_task", {"result": value}))

    model = Answers(main=[done({"total": -1}), done({"total": 4})])
    async with CheckedMesh(model, llm("main", output_schema=ORDER, **DONE)) as world:
        body, events = await world.lived()
    offered = {tool.name: tool for tool in model.requests["main"][0].tools}
    assert offered["complete_task"].input_schema["properties"]["result"] == ORDER
    assert body["result"]["output"] == {"total": 4}
    assert validations(events) == [("schema", False, 1), ("schema", True, 2)]
    (objection,) = (e for e in events if isinstance(e, ToolResult) and e.is_error)
    assert "-1 is less than the minimum" in objection.content
    results = model.requests["main"][1].messages[-1]
    assert isinstance(results, Results)
    assert results.results[0].is_error


async def test_what_a_person_has_replaced_is_only_in_the_journal() -> None:
    model = Answers(main=[calls(("complete_task", {"result": "DRAFT"}))])
    async with CheckedMesh(model, llm("main", validate=[{"person": True}], **DONE)) as world:
        body, _ = await world.lived()
        uuid = body["result"]["approval"]["uuid"]
        _, body = await world.decide(uuid, "approve", edited={"output": "clean"})
        events = await world.journal.read(body["conversation"]["id"])
    assert body["result"]["response"] == "clean"
    assert "DRAFT" not in json.dumps(body["conversation"]["messages"])
    assert "DRAFT" not in str([*actions(events)])


async def test_a_result_that_did_not_pass_is_not_among_the_actions() -> None:
    model = Answers(main=[calls(("complete_task", {"result": text})) for text in ("DRAFT", "please")])
    tree = llm("main", validate=[{"check": "polite"}], **DONE)
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        _, events = await world.lived()
    assert "DRAFT" not in str([*actions(events)])


SECRET = '{"total": "SECRET"}'


async def _clients_see(
    tree: dict[str, Any], *answers: str | LlmCall, agents: tuple[dict[str, Any], ...] = (), **more: Any
) -> tuple[str, Answers]:
    """All that clients are told of a turn, and the model that answered in it. ``more`` are what agents
    answer, and ``checks``."""
    checks = more.pop("checks", {})
    model = Answers(main=[*answers], **more)
    async with CheckedMesh(model, tree, *agents, checks=checks) as world:
        body, events = await world.lived()
        view = await world.show(body["conversation"]["id"])
    told = [shown(event, "c") for event in events]
    assert all("shown" not in event for event in told)
    return json.dumps([body, view, told, *map(msgspec.to_builtins, actions(events))]), model


@pytest.mark.parametrize("said", [SECRET, calls(("complete_task", {"result": {"total": "SECRET"}}))])
@pytest.mark.parametrize("ends", ["passes", "fails"])
async def test_the_feedback_of_the_schema_quotes_no_draft_to_clients_and_the_whole_to_the_model(
    said: str | LlmCall, ends: str
) -> None:
    tree = llm("main", output_schema=ORDER, max_runs=2, **DONE)
    told, model = await _clients_see(tree, said, GOOD if ends == "passes" else said)
    assert "SECRET" not in told
    assert "total breaks the rule type:" in told
    assert "SECRET" in str(model.requests["main"][1].messages[-1])


@pytest.mark.parametrize("said", [SECRET, calls(("complete_task", {"result": {"total": "SECRET"}}))])
async def test_where_drafts_are_shown_the_feedback_of_the_schema_is_shown_as_the_model_gets_it(
    said: str | LlmCall,
) -> None:
    tree = llm("main", output_schema=ORDER, max_runs=1, show_drafts=True, **DONE)
    told, _ = await _clients_see(tree, said)
    assert "is not of type" in json.loads(told)[0]["error"]
    assert "SECRET" in told


async def _quoting(arguments: dict[str, Any]) -> str:
    raise ValueError(f"ValueError: no such order: {arguments['output']}")


_NARROW = {"type": "object", "properties": {"output": {"maxLength": 3}}, "required": ["output"]}
_LEAKY: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"check": "leaky"}, llm("critic"), "the check leaky failed: ValueError (the log has more)"),
    ({"agent": "critic"}, llm("critic", output_schema={}), "the agent critic answered nonsense; expected"),
    (
        {"agent": "critic"},
        llm("critic", input_schema=_NARROW),
        "the agent critic does not take this answer: output breaks the rule maxLength: 3",
    ),
    (
        {"agent": "critic"},
        llm("critic", output_schema=VERDICT, max_runs=1, show_drafts=True),
        "the agent critic failed (the log has more)",
    ),
]


@pytest.mark.parametrize(("validator", "critic", "why"), _LEAKY)
async def test_the_error_of_a_validator_quotes_no_draft_to_clients_and_the_log_has_it(
    validator: dict[str, Any], critic: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    tree = llm("main", validate=[validator])
    nonsense = '{"valid": "SECRET"}' if "output_schema" in critic else '{"valid": true, "feedback": ""}'
    told, _ = await _clients_see(
        tree, "SECRET", agents=(critic,), critic=[nonsense], checks={"leaky": _quoting}
    )
    assert why in json.loads(told)[0]["error"]
    assert "SECRET" not in told
    assert "SECRET" in caplog.text or "does not take" in why


@pytest.mark.parametrize("shows", [False, True])
async def test_the_last_words_of_a_server_that_died_are_told_as_the_draft_is(shows: bool) -> None:
    async def dies(arguments: dict[str, Any]) -> str:
        words = f"it exited with code 1; its last words: {arguments['output']}"
        raise ToolSessionError(words, may_have_run=True)

    tree = llm("main", validate=[{"check": "dies"}], show_drafts=shows)
    async with CheckedMesh(Answers(main=["SECRET"]), tree, checks={"dies": dies}) as world:
        world.ledger.offered.call = _raising(world.ledger.offered, dies)  # type: ignore[method-assign]
        error = (await world.lived())[0]["error"]
    assert "the check dies could not be made: it exited with code 1" in error
    assert ("SECRET" in error, "(the log has more)" in error) == (shows, not shows)


@pytest.mark.parametrize(("validator", "critic", "why"), _LEAKY)
async def test_where_drafts_are_shown_the_error_of_a_validator_is_told_in_full(
    validator: dict[str, Any], critic: dict[str, Any], why: str
) -> None:
    tree = llm("main", validate=[validator], show_drafts=True)
    nonsense = '{"valid": "SECRET"}' if "output_schema" in critic else '{"valid": true, "feedback": ""}'
    told, _ = await _clients_see(
        tree, "SECRET", agents=(critic,), critic=[nonsense], checks={"leaky": _quoting}
    )
    assert "SECRET" in json.loads(told)[0]["error"]


@pytest.mark.parametrize("shows", [False, True])
async def test_what_a_validating_agent_does_with_a_draft_is_shown_as_the_draft_is(shows: bool) -> None:
    looks = calls(("look", {"at": "SECRET"}), ("helper", {"task": "Is SECRET right?"}))
    critic = sequential(llm("reads", agents=["helper"]), llm("says", output_schema=VERDICT), name="critic")
    tree = llm("main", validate=[{"agent": "critic"}], show_drafts=shows)
    answers = {
        "reads": [looks, "SECRET is right"],
        "helper": ["SECRET it is"],
        "says": ['{"valid": true, "feedback": "SECRET"}'],
    }
    told, _ = await _clients_see(tree, "SECRET", agents=(critic, llm("helper")), **answers)
    body, view, events, lines = _four(told)
    assert body["result"]["response"] == "SECRET"
    inside = [event for event in events if "@v" in event["node"]]
    assert {"llm_call", "agent_started", "tool_result", "node_completed"} <= {e["type"] for e in inside}
    assert ("SECRET" in str(inside)) == shows
    assert all(event.get("concealed", False) is not shows for event in inside[1:])
    assert ("SECRET" in str([m for m in view["messages"] if m["role"] == "tool"])) == shows
    assert ("SECRET" in str([line for line in lines if line["agentName"] != "main"])) == shows


async def test_what_an_exit_condition_reads_is_no_draft() -> None:
    tree = loop(llm("main"), max_iterations=2, exit_when={"agent": "critic"})
    critic = [calls(("look", {"at": "SHOWN"})), '{"valid": true, "feedback": ""}']
    told, _ = await _clients_see(tree, "please", agents=(llm("critic"),), critic=critic)
    assert "SHOWN" in str([event for event in _four(told)[2] if "@v" in event["node"]])


def _four(told: str) -> tuple[Any, Any, list[dict[str, Any]], list[dict[str, Any]]]:
    """The body, the view, the events and the actions that clients are told."""
    body, view, *rest = json.loads(told)
    events, *lines = rest
    return body, view, events, lines


@pytest.mark.parametrize("schema", [None, {"type": "string"}])
async def test_what_a_person_puts_in_the_place_of_an_answer_is_bounded(schema: Any) -> None:
    more = {} if schema is None else {"output_schema": schema}
    model = Answers(main=['"please"'])
    async with CheckedMesh(model, llm("main", validate=[{"person": True}], **more)) as world:
        body, _ = await world.lived()
        uuid = body["result"]["approval"]["uuid"]
        status, _ = await world.decide(uuid, "approve", edited={"output": "x" * 2_000_000})
    assert status == 400


@pytest.mark.parametrize("empty", ["", " \n"])
async def test_a_person_cannot_put_nothing_in_the_place_of_an_answer(empty: str) -> None:
    tree = loop(llm("main", validate=[{"person": True}]), max_iterations=2)
    async with CheckedMesh(Answers(main=["first", "second"]), tree) as world:
        body, _ = await world.lived()
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
        uuid = body["result"]["approval"]["uuid"]
        status, refused = await world.decide(uuid, "approve", edited={"output": empty})
        assert status == 400
        assert "output: is empty; expected an answer, or a rejection" in refused["error"]
        _, body = await world.decide(uuid, "approve", edited={"output": "mine"})
    assert body["result"]["response"] == "mine"


async def test_a_result_without_a_schema_has_to_be_a_text() -> None:
    model = Answers(main=[calls(("complete_task", {"result": {"a": 1}})), "please"])
    tree = llm("main", validate=[{"check": "polite"}], **DONE)
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "please"
    assert [e.content for e in events if isinstance(e, ToolResult)] == [
        'Invalid arguments for complete_task: expected {"result": "…"} and nothing else'
    ]


async def test_of_two_results_in_one_answer_the_second_is_not_looked_at() -> None:
    both = calls(("complete_task", {"result": "rude"}), ("complete_task", {"result": "please"}))
    model = Answers(main=[both, calls(("complete_task", {"result": "yes please"}))])
    tree = llm("main", validate=[{"check": "polite"}], **DONE)
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "yes please"
    contents = [e.content for e in events if isinstance(e, ToolResult)]
    assert contents == [
        "Say please.",
        "This result was not looked at: there is another one before it. Give one at a time.",
        "yes please",
    ]


async def test_what_is_returned_to_the_user_is_checked() -> None:
    def end(text: str) -> LlmCall:
        return calls(("return_to_user", {"result": text}))

    model = Answers(main=[end("rude"), end("please")])
    tree = llm("main", validate=[{"check": "polite"}], can_return_to_user=True)
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "please"
    assert validations(events) == [("polite", False, 1), ("polite", True, 2)]


def back(result: Any) -> LlmCall:
    return calls(("return_to_user", {"result": result}))


def refusals(events: list[AnyEvent]) -> list[str]:
    return [e.step for e in events if isinstance(e, ToolResult) and "the turn cannot end here" in e.content]


@pytest.mark.parametrize("is_below", [False, True])
async def test_an_agent_that_checks_an_answer_and_all_below_it_cannot_end_the_turn(is_below: bool) -> None:
    no = {"valid": False, "feedback": "no"}
    if is_below:
        critic = {**CRITIC, "agents": ["helper"]}
        agents = [critic, llm("helper", can_return_to_user=True)]
        said = {"critic": [calls(("helper", {"task": "x"})), verdict(True)], "helper": [back("no"), "fine"]}
    else:
        agents = [{**CRITIC, "can_return_to_user": True}]
        said = {"critic": [back(no), verdict(True)]}
    model = Answers(main=[GOOD], **said)
    tree = sequential(llm("main", output_schema=ORDER, validate=[{"agent": "critic"}]))
    async with CheckedMesh(model, tree, *agents) as world:
        body, events = await world.lived()
    assert body["result"]["output"] == {"total": 7}
    assert len(refusals(events)) == 1
    offered = [spec.name for request in model.requests[[*said][-1]] for spec in request.tools]
    assert "return_to_user" not in offered


async def test_what_a_checked_node_calls_cannot_end_the_turn_and_is_told_to_answer_its_caller() -> None:
    tree = sequential(llm("main", validate=[{"check": "polite"}], agents=["middle"]), llm("after"))
    agents = [llm("middle", agents=["helper"]), llm("helper", can_return_to_user=True, **DONE)]
    done = calls(("return_to_user", {"result": "rude"}), ("complete_task", {"result": "done"}))
    model = Answers(
        main=[calls(("middle", {"task": "x"})), "please"],
        middle=[calls(("helper", {"task": "x"})), "fine"],
        helper=[done],
        after=["after"],
    )
    async with CheckedMesh(model, tree, *agents, checks={"polite": polite}) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "after"
    assert refusals(events) == ["0.0.middle@0-0.helper@0-0/tool/0.0"]
    assert [e.content for e in events if isinstance(e, ToolResult) and e.tool == "helper"] == ["done"]


async def test_an_agent_that_a_loop_asks_whether_to_end_cannot_end_the_turn() -> None:
    model = Answers(writer=["a", "b"], critic=[back({"valid": True, "feedback": ""}), verdict(True)])
    agent = {**CRITIC, "can_return_to_user": True}
    async with CheckedMesh(model, rounds(exit_when={"agent": "critic"}), agent) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "a"
    assert len(refusals(events)) == 1


async def test_a_checked_agent_whose_caller_is_not_checked_still_answers_the_user_itself() -> None:
    helper = llm("helper", can_return_to_user=True, validate=[{"check": "polite"}])
    model = Answers(main=[calls(("helper", {"task": "x"}))], helper=[back("rude"), back("please")])
    async with CheckedMesh(model, llm("main", agents=["helper"]), helper, checks={"polite": polite}) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "please"
    assert refusals(events) == []


# -- where the output goes


async def test_prompts_read_parts_of_an_output() -> None:
    tree = sequential(
        llm("one", output_key="order", output_schema=ORDER), llm("two", "{order.total} of {order}")
    )
    model = Answers(one=[GOOD], two=["done"])
    async with CheckedMesh(model, tree) as world:
        body, _ = await world.lived()
    assert model.requests["two"][0].system == f"two: 7 of {GOOD}"
    assert "output" not in body["result"]


async def test_the_output_of_the_last_child_is_that_of_a_sequential_node() -> None:
    tree = sequential(llm("one"), llm("two", output_schema=ORDER))
    async with CheckedMesh(Answers(one=["x"], two=[GOOD]), tree) as world:
        body, _ = await world.lived()
    assert body["result"]["output"] == {"total": 7}


async def test_a_called_agent_is_checked_and_its_output_is_in_the_result_of_its_call() -> None:
    shop = llm("shop", output_schema=ORDER, on_invalid="accept", max_runs=2)
    model = Answers(main=[calls(("shop", {"task": "x"})), "done"], shop=[BAD])
    async with CheckedMesh(model, llm("main", agents=["shop"]), shop) as world:
        _, events = await world.lived()
    (result,) = (e for e in events if isinstance(e, ToolResult))
    assert result.invalid.startswith("schema: ")
    assert result.output is UNSET
    assert "[This answer was accepted in spite of an objection: schema: " in result.content
    assert result.content.count("in spite of") == 1
    model = Answers(main=[calls(("shop", {"task": "x"})), "done"], shop=[GOOD])
    async with CheckedMesh(model, llm("main", agents=["shop"]), shop) as world:
        _, events = await world.lived()
    assert [e.output for e in events if isinstance(e, ToolResult)] == [{"total": 7}]


@pytest.mark.parametrize("kind", [sequential, parallel, loop])
async def test_an_answer_that_ends_the_agent_keeps_its_output_and_its_objection(kind: Any) -> None:
    def done(value: int) -> LlmCall:
        return calls(("complete_task", {"result": {"total": value}}))

    more = {"max_iterations": 3} if kind is loop else {}
    tree = kind(llm("one", output_schema=ORDER, on_invalid="accept", max_runs=1, **DONE), **more)
    async with CheckedMesh(Answers(one=[done(7)]), tree) as world:
        good, _ = await world.lived()
    async with CheckedMesh(Answers(one=[done(-1)]), tree) as world:
        bad, _ = await world.lived()
    assert good["result"]["output"] == {"total": 7}
    assert "invalid" not in good["result"]
    assert bad["result"]["invalid"].startswith("schema: ")
    assert "output" not in bad["result"]


@pytest.mark.parametrize(
    ("said", "marked"),
    [
        (("please", "please"), None),
        (("rude", "please"), "one: polite: Say please."),
        (("rude", "bad"), "one: polite: Say please.\ntwo: polite: Say please."),
    ],
)
async def test_what_parallel_branches_say_together_is_marked_with_the_objections_to_each(
    said: tuple[str, str], marked: str | None
) -> None:
    accepts = {"validate": [{"check": "polite"}], "on_invalid": "accept", "max_runs": 1}
    tree = parallel(llm("one", **accepts), llm("two", **accepts))
    model = Answers(one=[said[0]], two=[said[1]])
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, _ = await world.lived()
    assert body["result"]["response"] == "\n".join(said)
    assert body["result"].get("invalid") == marked


async def test_an_objection_to_a_branch_that_was_accepted_is_told_up_to_the_caller_of_the_agent() -> None:
    accepts = {"validate": [{"check": "polite"}], "on_invalid": "accept", "max_runs": 1}
    both = parallel(llm("one", **accepts), llm("two"), name="both")
    model = Answers(main=[calls(("both", {"task": "x"})), "done"], one=["rude"], two=["fine"])
    tree = llm("main", agents=["both"])
    async with CheckedMesh(model, tree, both, checks={"polite": polite}) as world:
        _, events = await world.lived()
    (result,) = (e for e in events if isinstance(e, ToolResult))
    assert result.invalid == "one: polite: Say please."


# -- loops


def rounds(**more: Any) -> dict[str, Any]:
    return loop(llm("writer", output_key="draft"), max_iterations=5, **more)


async def test_a_check_ends_a_loop_after_a_round() -> None:
    model = Answers(writer=["a", "b", "please", "never"])
    tree = rounds(exit_when={"check": "polite"})
    async with CheckedMesh(model, tree, checks={"polite": polite}) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "please"
    found = [(e.step, e.valid, e.number, e.of) for e in events if isinstance(e, Validation)]
    assert found == [
        ("0/validation/1.0", False, 1, 5),
        ("0/validation/2.0", False, 2, 5),
        ("0/validation/3.0", True, 3, 5),
    ]


async def test_a_schema_or_an_agent_ends_a_loop() -> None:
    model = Answers(writer=["a", GOOD])
    async with CheckedMesh(model, rounds(exit_when={"schema": ORDER})) as world:
        body, _ = await world.lived()
    assert body["result"]["response"] == GOOD
    model = Answers(writer=["a", "b", "c"], critic=[verdict(False, "no"), verdict(True)])
    async with CheckedMesh(model, rounds(exit_when={"agent": "critic"}), CRITIC) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "b"
    assert "0.critic@v2-0" in [e.step for e in events]


async def test_a_loop_whose_condition_fails_fails() -> None:
    tree = rounds(exit_when={"check": "odd"})
    async with CheckedMesh(Answers(writer=["a"]), tree, checks={"odd": _raises}) as world:
        body, _ = await world.lived()
    assert body["error"] == "rounds: the check odd failed: it broke"


CHECKED_IN_LOOP = {"output_schema": ORDER, "can_exit_loop": True}


def exits(events: list[AnyEvent]) -> list[str]:
    return [e.step for e in events if isinstance(e, ToolResult) and e.tool == "exit_loop" and not e.is_error]


async def test_a_checked_node_ends_the_loop_with_the_answer_that_passes_next() -> None:
    model = Answers(writer=[EXIT, BAD, GOOD, "never"])
    tree = loop(llm("writer", **CHECKED_IN_LOOP), max_iterations=5)
    async with CheckedMesh(model, tree) as world:
        body, events = await world.lived()
    assert body["result"]["output"] == {"total": 7}
    assert exits(events) == ["0.0#1/tool/0.0"]
    told = model.requests["writer"][1].messages[-1]
    assert isinstance(told, Results)
    assert "Give that answer now" in told.results[0].content
    assert validations(events) == [("schema", False, 1), ("schema", True, 2)]
    assert len(model.requests["writer"]) == 3


@pytest.mark.parametrize("order", [("writer", "editor"), ("editor", "writer")])
async def test_a_loop_that_a_checked_node_ends_answers_with_what_passed_there_and_nothing_of_others(
    order: tuple[str, str],
) -> None:
    model = Answers(writer=["unchecked 1", "unchecked 2"], editor=[GOOD, EXIT, BAD, '{"total": 8}'])
    nodes = {"writer": llm("writer"), "editor": llm("editor", output_key="o", **CHECKED_IN_LOOP)}
    tree = loop(sequential(*(nodes[name] for name in order)), max_iterations=5)
    async with CheckedMesh(model, tree) as world:
        body, events = await world.lived()
    assert body["result"]["output"] == {"total": 8}
    assert body["result"]["response"] == '{"total": 8}'
    assert [e.valid for e in events if isinstance(e, Validation)] == [True, False, True]


async def test_below_parallel_a_node_of_which_nothing_passed_does_not_end_the_loop() -> None:
    checked = llm("editor", max_runs=1, **CHECKED_IN_LOOP)
    tree = loop(parallel(llm("writer"), checked, on_error="continue"), max_iterations=3)
    model = Answers(writer=["1", "2", "3"], editor=[BAD, EXIT, BAD, EXIT, GOOD])
    async with CheckedMesh(model, tree) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == f"3\n{GOOD}"
    assert exits(events) == ["0.0#2.1/tool/0.0", "0.0#3.1/tool/0.0"]


async def test_what_ended_a_called_loop_is_the_result_that_its_caller_gets() -> None:
    team = loop(llm("writer"), llm("editor", **CHECKED_IN_LOOP), name="team", max_iterations=5)
    ask = calls(("team", {"task": "x"}))
    model = Answers(main=[ask, "done"], writer=["1", "2"], editor=[GOOD, EXIT, '{"total": 8}'])
    async with CheckedMesh(model, llm("main", agents=["team"]), team) as world:
        _, events = await world.lived()
    (result,) = (e for e in events if isinstance(e, ToolResult) and e.tool == "team")
    assert result.output == {"total": 8}


async def test_a_result_that_did_not_pass_ends_neither_the_loop_nor_the_agent() -> None:
    both = calls(("complete_task", {"result": {"total": -1}}), ("exit_loop", {}))
    model = Answers(writer=[both, GOOD])
    async with CheckedMesh(model, loop(llm("writer", **CHECKED_IN_LOOP, **DONE))) as world:
        body, events = await world.lived()
    assert body["result"]["output"] == {"total": 7}
    assert exits(events) == ["0.0#1/tool/0.1"]
    assert validations(events) == [("schema", False, 1), ("schema", True, 2)]


async def test_an_answer_that_was_accepted_ends_the_loop_and_is_marked() -> None:
    tree = loop(llm("writer", max_runs=1, on_invalid="accept", **CHECKED_IN_LOOP), max_iterations=3)
    async with CheckedMesh(Answers(writer=[EXIT, BAD, "never"]), tree) as world:
        body, _ = await world.lived()
    assert body["result"]["response"] == BAD
    assert body["result"]["invalid"].startswith("schema: ")


async def test_a_model_that_only_wants_to_end_the_loop_has_not_answered() -> None:
    tree = loop(llm("writer", **CHECKED_IN_LOOP))
    limits = {"limits": {"max_tool_iterations": 2}}
    async with CheckedMesh(Answers(writer=[EXIT]), tree, **limits) as world:
        body, events = await world.lived()
    assert body["error"] == "writer: the answer did not pass (run 1 of 3): there is no answer"
    assert len(exits(events)) == 2


async def test_a_loop_ends_with_what_passed_also_if_a_person_decided_in_between() -> None:
    model = Answers(writer=[calls(("exit_loop", {}), ("add", {"n": 1})), GOOD, "never"])
    tree = loop(llm("writer", **CHECKED_IN_LOOP), approvals="ask", max_iterations=3)
    async with CheckedMesh(model, tree) as world:
        body, _ = await world.lived()
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
        events = await world.journal.read(body["conversation"]["id"])
    assert body["result"]["output"] == {"total": 7}
    assert world.ledger.lines == ["add 1"]
    assert exits(events) == ["0.0#1/tool/0.0"]
    assert len(model.requests["writer"]) == 2


async def test_a_node_that_has_ended_its_loop_without_an_answer_by_an_older_mesh_stays_so() -> None:
    model = Answers(writer=[EXIT], last=[calls(("add", {"n": 1})), "done"])
    unchecked, checks = {"can_exit_loop": True}, CHECKED_IN_LOOP
    then, since = (sequential(loop(llm("writer", **more)), llm("last")) for more in (unchecked, checks))
    async with CheckedMesh(model, then) as world:
        body, _ = await world.lived()
        await world.tree.close()
        checked = parse(config(since), "test.yaml", {})
        world.tree = LocalTree(checked, [world.ledger.session()], lambda _: model, world)
        await world.tree.start()
        _, body = await world.decide(body["result"]["approval"]["uuid"], "approve")
    assert body["result"]["response"] == "done"
    assert len(model.requests["writer"]) == 1


# -- what hangs


async def _hangs(arguments: dict[str, Any]) -> str:
    await asyncio.wait_for(asyncio.Event().wait(), 30)
    raise AssertionError("it is ended before")


async def test_a_check_that_hangs_is_ended_by_the_deadline_of_its_server_and_fails_the_node() -> None:
    tree = llm("main", validate=[{"check": "slow"}], on_invalid="accept")
    async with CheckedMesh(Answers(main=["hi"]), tree, checks={"slow": _hangs}) as world:
        world.ledger.offered._timeout_s = 0.05
        body, events = await world.lived()
    assert body["error"].startswith("main: the check slow could not be made: server ledger: tool 'slow' gave")
    assert validations(events) == []


async def test_an_agent_that_hangs_is_ended_by_its_own_deadline_and_fails_the_node() -> None:
    class Slow(Answers):
        async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
            if request.system.startswith("critic"):
                await _hangs({})
            async for event in super().stream(request):
                yield event

    critic = {**CRITIC, "timeout_s": 0.05}
    tree = llm("main", validate=[{"agent": "critic"}], on_invalid="accept")
    async with CheckedMesh(Slow(main=["hi"], critic=[]), tree, critic) as world:
        body, _ = await world.lived()
    assert body["error"] == "main: the agent critic failed: critic took longer than 0.05 s (timeout_s)"


async def test_a_check_whose_server_dies_is_made_once_more_and_no_more() -> None:
    deaths = 0

    async def dies(arguments: dict[str, Any]) -> str:
        nonlocal deaths
        deaths += 1
        raise ToolSessionError("its server died", may_have_run=True)

    tree = llm("main", validate=[{"check": "fragile"}])
    async with CheckedMesh(Answers(main=["hi"]), tree, checks={"fragile": dies}) as world:
        world.ledger.offered.call = _raising(world.ledger.offered, dies)  # type: ignore[method-assign]
        body, _ = await world.lived()
    assert (deaths, body["error"]) == (2, "main: the check fragile could not be made: its server died")


def _raising(session: MemorySession, function: ToolFunction) -> Any:
    """Calls of a session, as if its server died in them."""

    async def call(name: str, arguments: dict[str, Any], *_: Any, **__: Any) -> Any:
        return await function(arguments)

    return call


# -- what audits read


async def test_an_agent_that_validates_begins_and_completes_among_the_actions() -> None:
    model = Answers(main=["a", "b"], critic=[verdict(False, "no"), verdict(True)])
    tree = llm("main", validate=[{"agent": "critic"}])
    async with CheckedMesh(model, tree, CRITIC) as world:
        _, events = await world.lived()
    found = [
        (a.action, a.agent_name, a.data.get("valid")) for a in actions(events) if a.action != "validation"
    ]
    assert found == [
        ("agent_start", "main", None),
        ("llm_call", "main", None),
        ("agent_call", "main", None),
        ("agent_start", "critic", None),
        ("llm_call", "critic", None),
        ("agent_complete", "critic", False),
        ("llm_call", "main", None),
        ("agent_call", "main", None),
        ("agent_start", "critic", None),
        ("llm_call", "critic", None),
        ("agent_complete", "critic", True),
        ("agent_complete", "main", None),
    ]


# -- what cannot be


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        ("nobody", "no MCP server offers 'nobody'; there are: look, polite"),
        ("add", "'add' of ledger may change something, so that it cannot check answers"),
    ],
)
async def test_an_unknown_check_and_one_that_changes_something_are_told_with_their_line(
    check: str, problem: str
) -> None:
    for tree in (llm("main", validate=[{"check": check}]), rounds(exit_when={"check": check})):
        world = CheckedMesh(Answers(main=["hi"]), tree, checks={"polite": polite})
        with pytest.raises(ConfigError) as caught:
            await world.tree.start()
        key = "agent.exit_when.check" if "exit_when" in tree else "agent.validate[0].check"
        line = next(n for n, text in enumerate(world.config.source.splitlines(), 1) if "check:" in text)
        assert caught.value.problems[0].startswith(f"test.yaml:{line}: {key}: {problem}")


# -- budgets


def budgeted(tree: dict[str, Any], model: Any, *agents: dict[str, Any], **budget: Any) -> CheckedMesh:
    return CheckedMesh(model, tree, *agents, budget=budget, checks={"polite": polite})


async def test_all_that_validates_counts_in_the_budget_of_the_turn() -> None:
    model = Answers(main=["a", "b"], critic=[verdict(False, "no"), verdict(True)])
    tree = llm("main", validate=[{"agent": "critic"}])
    async with budgeted(tree, model, CRITIC, max_llm_calls=10) as world:
        body, events = await world.lived()
    assert body["result"]["response"] == "b"
    use = fold(events).budget_use.use("0")
    assert (use.total.calls, fold(events).budget_use.use("0.critic@v1-0").total.calls) == (4, 1)


async def test_a_forced_last_answer_is_checked_and_no_further_run_follows() -> None:
    tree = llm("main", validate=[{"check": "polite"}])
    for on_invalid, said in (("fail", "rude"), ("accept", "rude"), ("fail", "please")):
        model = Answers(main=[calls(("look", {})), said])
        checked = {**tree, "on_invalid": on_invalid}
        async with budgeted(checked, model, max_llm_calls=2) as world:
            body, events = await world.lived()
        assert len(model.requests["main"]) == 2
        assert validations(events) == [("polite", said == "please", 1)]
        if said == "please":
            assert (body["result"]["response"], body["result"]["forced"]) == ("please", "max_llm_calls")
        elif on_invalid == "accept":
            assert (body["result"]["invalid"], body["result"]["forced"]) == (
                "polite: Say please.",
                "max_llm_calls",
            )
        else:
            assert "main: the answer did not pass (run 1 of 3): polite: Say please." in body["error"]


async def test_a_forced_answer_that_ends_the_loop_is_told_as_forced_by_the_nodes_around_it() -> None:
    tree = loop(sequential(llm("writer", **CHECKED_IN_LOOP)), max_iterations=3)
    async with budgeted(tree, Answers(writer=[EXIT, GOOD]), max_llm_calls=2) as world:
        body, _ = await world.lived()
    assert (body["result"]["output"], body["result"]["forced"]) == ({"total": 7}, "max_llm_calls")


async def test_what_is_there_at_a_limit_is_no_answer_that_passed() -> None:
    tree = llm("main", validate=[{"check": "polite"}])
    model = Answers(main=[msgspec.structs.replace(calls(("look", {})), text="please wait")])
    async with budgeted(tree, model, max_llm_calls=2, on_limit="stop") as world:
        body, _ = await world.lived()
    assert "main: the answer did not pass (run 1 of 3): there is no answer" in body["error"]


@pytest.mark.parametrize("on_invalid", ["accept", "fail"])
async def test_a_node_that_stops_at_a_limit_tells_what_was_objected_to_last(on_invalid: str) -> None:
    tree = llm("main", validate=[{"check": "polite"}], on_invalid=on_invalid)
    model = Answers(main=["rude", calls(("look", {}))])
    async with budgeted(tree, model, max_llm_calls=2, on_limit="stop") as world:
        body, _ = await world.lived()
    told = "there is no answer; the last one did not pass: polite: Say please."
    assert told in (body["error"] if on_invalid == "fail" else body["result"]["invalid"])


async def test_an_agent_that_has_no_budget_left_lets_nothing_pass() -> None:
    tree = llm("main", validate=[{"agent": "critic"}], on_invalid="accept")
    model = Answers(main=["hi"], critic=[verdict(True)])
    async with budgeted(tree, model, CRITIC, max_llm_calls=1) as world:
        body, events = await world.lived()
    assert "main: the agent critic failed" in body["error"]
    assert validations(events) == []

"""Code that a model runs, which starts forks of its node and waits for them. The code is really run, in the
sandbox that holds here."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from mesh.core.conversation import fold
from mesh.core.errors import LlmError
from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AnyEvent,
    CodeStep,
    Completed,
    LlmCall,
    NodeCompleted,
    ToolIntent,
    ToolResult,
)
from mesh.core.ids import new_id
from mesh.core.messages import Results
from mesh.journal.port import Append
from mesh.llm.port import LlmRequest
from tests.python.machine import skip_without_python
from tests.tree.causality import violations
from tests.worlds.mesh import Caller, Create, ScriptedLlm, WorldMesh, calls, says, until
from tests.worlds.trees import add, config, llm

pytestmark = pytest.mark.usefixtures("python_runs_here")


@pytest.fixture(scope="session")
def python_runs_here() -> None:
    skip_without_python()


Script = Callable[[str, int], LlmCall]
"""Takes the prompt of a fork, and how many results it has seen since."""


class Coder:
    """The model of a node that runs code first, and answers with the result of that. Forks go by a script."""

    def __init__(self, code: str, script: Script = lambda prompt, seen: says(f"about {prompt}")) -> None:
        self.code = code
        self.script = script
        self.asked: Counter[str] = Counter()
        self.requests = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.result = ""

    async def answer(self, request: LlmRequest) -> LlmCall:
        self.requests += 1
        results = [message.results for message in request.messages if isinstance(message, Results)]
        if not results:
            return calls(("python", {"code": self.code}))
        first = results[0][0].content
        if first.startswith(("Logs:", "Result:", "Error:", "(no return value)")):
            self.asked["lead"] += 1
            self.result = first
            return says("done")
        self.asked[first] += 1
        await asyncio.wait_for(self.gate.wait(), 30)
        return self.script(first, len(results) - 1)


def mesh(model: Coder, **more: Any) -> WorldMesh:
    limits = more.pop("limits", {})
    node = llm("main", python=True, **more)
    return WorldMesh(ScriptedLlm(model.answer), config=config(node, limits=limits))


async def events_of(world: WorldMesh, body: Any) -> list[AnyEvent]:
    return list(await world.journal.read(body["conversation"]["id"]))


def of(kind: type[Any], events: list[AnyEvent]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def code_processes() -> list[psutil.Process]:
    """Processes in which code runs, below this one."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "-P" in process.cmdline() and "-X" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


async def test_code_forks_its_node_and_gets_what_the_forks_answer() -> None:
    model = Coder("handles = [fork(animal) for animal in ('cats', 'dogs')]\nwait(handles)")
    async with mesh(model) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert model.result == 'Result: ["about cats", "about dogs"]'
    starts = of(AgentStarted, events)
    assert [(start.step, start.by, start.task) for start in starts] == [
        ("0.self@0-0-0", "python", "cats"),
        ("0.self@0-0-1", "python", "dogs"),
    ]
    assert [(step.number, step.asked) for step in of(CodeStep, events)] == [
        (0, '{"fork":"cats"}'),
        (1, '{"fork":"dogs"}'),
        (2, '{"wait":[1,2]}'),
    ]
    (result,) = of(ToolResult, events)
    assert result.told == ("0.self@0-0-0", "0.self@0-0-1")
    assert model.asked["lead"] == 1
    assert not of(AgentsReported, events)


async def test_the_answers_of_forks_are_journaled_once() -> None:
    model = Coder("wait(fork('cats'))", lambda prompt, seen: says("a very special answer"))
    async with mesh(model) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    told = [e for e in events if not isinstance(e, LlmCall) and "a very special answer" in repr(e)]
    assert [type(event) for event in told] == [NodeCompleted, ToolResult]


async def test_a_fork_that_failed_raises_in_the_code() -> None:
    def failing(prompt: str, seen: int) -> LlmCall:
        raise LlmError("no model today")

    waiting = "try:\n    wait(fork('x'))\nexcept ForkFailed as error:\n    "
    model = Coder(f"{waiting}found = (error.handle, error.status)\nfound", failing)
    async with mesh(model) as world:
        await world.create("go")
    assert model.result == 'Result: [1, "failed"]'


async def test_forks_that_the_code_does_not_wait_for_are_reported() -> None:
    model = Coder("fork('cats')\nNone")
    async with mesh(model) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    (report,) = of(AgentsReported, events)
    assert "about cats" in report.text
    assert body["result"]["response"] == "done"


async def test_with_unwaited_delete_they_end_with_the_answer() -> None:
    model = Coder("fork('cats')\nNone")
    model.gate.clear()
    async with mesh(model, spawn={"fork": True, "unwaited": "delete"}) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert [end.status for end in of(NodeCompleted, events)] == ["deleted"]


async def test_forks_run_code_themselves_and_wait_for_forks_of_theirs_with_one_process_in_all() -> None:
    def nested(prompt: str, seen: int) -> LlmCall:
        if prompt.isdigit() and int(prompt) > 0 and seen == 0:
            return calls(("python", {"code": f"wait(fork({str(int(prompt) - 1)!r}))"}))
        return says(f"{prompt} is done")

    model = Coder("wait([fork('1'), fork('1')])", nested)
    async with mesh(model, limits={"python_processes": 1}) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert model.result == 'Result: ["1 is done", "1 is done"]'
    assert [start.step for start in of(AgentStarted, events)].count("0.self@0-0-0.self@0-0-0") == 1
    assert len(of(AgentStarted, events)) == 4


async def test_while_all_forks_wait_for_a_person_no_process_lives_and_then_the_code_goes_on() -> None:
    code = "import random\nnumber = random.random()\nanswer = wait(fork('add'))\nprint(number)\nanswer"
    model = Coder(code, lambda prompt, seen: add(1) if seen == 0 else says("added"))
    async with mesh(model) as world:
        _, body = await world.create("go")
        assert body["conversation"]["status"] == "waiting_approval"
        assert code_processes() == []
        asked = body["conversation"]["pending_approval"]
        await world.crash()
        _, body = await world.decide(asked["uuid"], "approve")
        events = await events_of(world, body)
    assert model.result.endswith('Result: "added"')
    assert world.ledger.lines == ["add 1"]
    assert len(of(AgentStarted, events)) == 1
    assert model.asked["add"] == 2


async def test_one_fork_that_waits_for_a_person_does_not_hold_up_the_others() -> None:
    code = "a, b = fork('add'), fork('say')\nfirst = wait([a, b], any=True)\n[first, wait([a, b])]"
    script = lambda prompt, seen: add(1) if (prompt, seen) == ("add", 0) else says(prompt)  # noqa: E731
    model = Coder(code, script)
    async with mesh(model) as world:
        _, body = await world.create("go")
        assert body["conversation"]["status"] == "waiting_approval"
        _, body = await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
    assert model.result == 'Result: [[null, "say"], ["add", "say"]]'


async def test_a_wait_with_a_timeout_answers_that_nothing_has_ended() -> None:
    model = Coder("wait([fork('cats')], timeout=0.05)")
    model.gate.clear()
    async with mesh(model, spawn={"fork": True, "unwaited": "delete"}) as world:
        await world.create("go")
    assert model.result == "Result: [null]"


async def test_a_keeper_that_dies_while_the_code_waits_starts_no_fork_twice() -> None:
    model = Coder("a = fork('a')\nb = fork('b')\n[wait(a), wait(b)]")
    model.gate.clear()
    async with mesh(model) as world:
        id = new_id()
        creating = asyncio.create_task(world.ask(Create(id, Caller(session_id="s1"), "go")))

        async def both_are_asked() -> bool:
            return model.asked["a"] + model.asked["b"] == 2

        await until(both_are_asked)
        await world.crash()
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
        model.gate.set()

        async def is_done() -> bool:
            return bool(model.result)

        await until(is_done)
        events = list(await world.journal.read(id))
    assert model.result == 'Result: ["about a", "about b"]'
    assert [start.task for start in of(AgentStarted, events)] == ["a", "b"]


async def test_a_process_that_starts_others_and_is_killed_is_replaced() -> None:
    model = Coder("wait(fork('x'))")
    model.gate.clear()
    async with mesh(model) as world:
        creating = asyncio.create_task(world.create("go"))

        async def is_asked() -> bool:
            return model.asked["x"] == 1 and bool(code_processes())

        await until(is_asked)
        for launcher in psutil.Process().children():
            if "mesh.sandbox.launcher" in launcher.cmdline():
                launcher.kill()
        for process in code_processes():
            process.kill()
        model.gate.set()
        _, body = await creating
        events = await events_of(world, body)
    assert model.result == 'Result: "about x"'
    assert len(of(AgentStarted, events)) == 1


async def test_code_that_asks_something_else_when_it_runs_again_ends_with_both() -> None:
    # When its folder was made is one of the few things that are not the same each time.
    code = "import os\nwait(fork(f'at {os.stat(\".\").st_mtime_ns}'))"
    model = Coder(code, lambda prompt, seen: add(1) if seen == 0 else says("added"))
    async with mesh(model) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
        (start,) = of(AgentStarted, events)
        await world.crash()
        await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
    assert model.result.startswith("Error: the code asked something else than when it ran before")
    assert f'Question 1 before: fork("{start.task}")' in model.result
    assert 'Question 1 now: fork("at ' in model.result


async def test_with_review_a_person_agrees_to_the_code_and_may_change_it() -> None:
    model = Coder("wait(fork('cats'))")
    async with mesh(model, spawn={"fork": True, "review": "ask"}) as world:
        _, body = await world.create("go")
        asked = body["conversation"]["pending_approval"]
        assert "wait(fork('cats'))" in asked["description"]
        assert model.asked["cats"] == 0
        _, body = await world.decide(asked["uuid"], "approve", edited={"code": "wait(fork('mice'))"})
    assert model.result == 'Result: "about mice"'


async def test_forks_are_refused_in_words_where_agents_are_too_deep() -> None:
    model = Coder("try:\n    fork('x')\nexcept ForkRefused as error:\n    found = str(error)\nfound")
    node = llm("main", python=True)
    world = WorldMesh(ScriptedLlm(model.answer), config=config(node, budget={"max_depth": 1}))
    async with world:
        await world.create("go")
    assert "budget.max_depth" in model.result


async def test_arguments_that_are_no_code_are_refused_in_words() -> None:
    results: list[str] = []

    async def answer(request: LlmRequest) -> LlmCall:
        found = [message for message in request.messages if isinstance(message, Results)]
        if not found:
            return calls(("python", {"program": "1"}), ("python", {"code": "#" * 200_001}))
        results.extend(result.content for result in found[0].results)
        return says("done")

    async with WorldMesh(ScriptedLlm(answer), config=config(llm("main", python=True))) as world:
        await world.create("go")
    assert results[0].startswith("Invalid arguments for python")
    assert results[1] == "The code has 200,001 bytes; 200,000 are allowed."


async def test_a_node_without_the_key_has_no_such_tool() -> None:
    tools: list[str] = []

    async def answer(request: LlmRequest) -> LlmCall:
        tools.extend(tool.name for tool in request.tools)
        return says("done")

    async with WorldMesh(ScriptedLlm(answer), config=config(llm("main"))) as world:
        await world.create("go")
    assert "python" not in tools


async def test_a_fork_over_the_limit_raises_in_the_code_and_nothing_of_it_starts() -> None:
    code = "one = fork('a')\ntry:\n    fork('b')\nexcept Exception as error:\n    print(error)\nwait([one])"
    model = Coder(code)
    async with mesh(model, budget={"max_agents": 1}) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert "The agent was not started: this turn may start 1" in model.result
    assert model.result.endswith('Result: ["about a"]')
    assert len(of(AgentStarted, events)) == 1


async def test_forks_that_run_code_which_forks_end_with_one_slot() -> None:
    code = "wait([fork(name) for name in 'ab'])"

    def script(prompt: str, seen: int) -> LlmCall:
        return calls(("python", {"code": code})) if prompt in "ab" and not seen else says(f"about {prompt}")

    model = Coder(code, script)
    async with mesh(model, limits={"agents_at_once": 1}) as world:
        _, body = await world.create("go")
        events = await events_of(world, body)
    assert body["result"]["response"] == "done"
    assert len(of(NodeCompleted, events)) == len(of(AgentStarted, events)) == 2 + 2 * 2
    assert model.result == 'Result: ["about a", "about b"]'


async def test_from_any_moment_on_the_code_comes_to_the_same_and_nothing_is_done_twice() -> None:
    starting = "import random\na, b = fork('add'), fork(f'say {random.random()}')\n"
    code = f"{starting}first = wait(b)\n[wait([a, b]), first]"

    def script(prompt: str, seen: int) -> LlmCall:
        return add(1) if (prompt, seen) == ("add", 0) else says(f"about {prompt}")

    model = Coder(code, script)
    async with mesh(model) as world:
        _, body = await world.create("go")
        await world.decide(body["conversation"]["pending_approval"]["uuid"], "approve")
        whole = await events_of(world, body)
    result = model.result
    assert result.startswith('Result: [["about add", "about say 0.')
    assert violations(whole, world.config) == []
    for length in range(2, len(whole)):
        if isinstance(whole[length - 1], ToolIntent):
            continue  # nobody knows whether the tool ran, and a person is asked
        again = Coder(code, script)
        ended = await continued(mesh(again), whole[:length])
        assert violations(ended, world.config) == []
        assert [(e.step, e.task) for e in of(AgentStarted, ended)] == [
            (e.step, e.task) for e in of(AgentStarted, whole)
        ]
        assert {e.content for e in of(ToolResult, ended)} == {e.content for e in of(ToolResult, whole)}
        asked_before = len(of(LlmCall, whole[:length]))
        assert again.requests == len(of(LlmCall, whole)) - asked_before, length


async def test_a_question_of_code_before_what_it_was_told_is_a_violation_of_the_order() -> None:
    model = Coder("a, b = fork('a'), fork('b')\nwait(b)\nwait([a, b])")
    async with mesh(model) as world:
        _, body = await world.create("go")
        whole = await events_of(world, body)
    assert violations(whole, world.config) == []
    asked = of(CodeStep, whole)
    for earlier, later in [
        (of(AgentStarted, whole)[1], asked[1]),
        (asked[1], asked[2]),
        (next(end for end in of(NodeCompleted, whole) if end.step == "0.self@0-0-1"), asked[2]),
        (asked[3], of(ToolResult, whole)[0]),
    ]:
        moved = [event for event in whole if event is not earlier]
        moved.insert(moved.index(later) + 1, earlier)
        assert violations(moved, world.config)


async def continued(world: WorldMesh, kept: list[AnyEvent]) -> list[AnyEvent]:
    """The journal when all is decided and done, from its beginning on."""
    id = kept[0].conversation_id  # type: ignore[union-attr]
    await world.journal.append(0, await world.journal.open(0), Append(id, 0, kept))
    async with asyncio.timeout(30), world:
        while True:
            events = list(await world.journal.read(id))
            if of(Completed, events):
                return events
            for asked in fold(events).pending:
                await world.decide(asked.uuid, "approve")
            await asyncio.sleep(0.005)


async def test_code_starts_no_fork_that_the_policy_denies() -> None:
    model = Coder("try:\n    fork('x')\nexcept ForkRefused as error:\n    found = str(error)\nfound")
    policy = {"rules": [{"name": "none", "tools": ["fork"], "decide": "deny", "say": "not today"}]}
    node = llm("main", python=True)
    async with WorldMesh(ScriptedLlm(model.answer), config=config(node, policy=policy)) as world:
        _, body = await world.create("go")
        assert not of(AgentStarted, await events_of(world, body))
    assert "not today" in model.result


@pytest.mark.parametrize("asks_about", [["fork"], ["fork", "python"]])
async def test_code_starts_a_fork_that_a_person_has_to_agree_to_only_if_one_agreed_to_the_code(
    asks_about: list[str],
) -> None:
    model = Coder(
        "try:\n    found = wait(fork('x'))\nexcept ForkRefused as error:\n    found = str(error)\nfound"
    )
    policy = {"rules": [{"name": "careful", "tools": asks_about, "decide": "ask"}]}
    node = llm("main", python=True)
    async with WorldMesh(ScriptedLlm(model.answer), config=config(node, policy=policy)) as world:
        _, body = await world.create("go")
        for asked in fold(await events_of(world, body)).pending:
            assert (asked.tool_name, model.requests) == ("python", 1)
            await world.decide(asked.uuid, "approve")
        starts = of(AgentStarted, await events_of(world, body))
    if "python" in asks_about:
        assert model.result == 'Result: "about x"' and len(starts) == 1
    else:
        assert "a person has to agree" in model.result and not starts


@pytest.mark.parametrize("timeout", ["1e300", "10**400", "float('nan')", "float('inf')", "-1.0"])
async def test_code_that_gets_round_the_check_of_a_timeout_ends_its_call_and_nothing_else(
    timeout: str,
) -> None:
    code = f"h = fork('x')\nwait.__self__._ask({{'wait': [h], 'any': False, 'timeout': {timeout}}})"
    model = Coder(code)
    model.gate.clear()
    async with mesh(model) as world:
        creating = asyncio.create_task(world.create("go"))

        async def is_told() -> bool:
            return bool(model.result)

        await until(is_told)
        model.gate.set()
        status, body = await creating
    assert (status, body["result"]["response"]) == (201, "done")
    assert model.result.startswith("Error: ")

"""Code of the operator's that decides about calls: when it is asked, what it may say, and what it cannot."""

import asyncio
import textwrap
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.events import ToolResult
from mesh.core.hints import Hints
from mesh.core.verdict import Part, Verdict, strictness
from mesh.journal.memory import MemoryJournal
from mesh.policy import custom_function
from mesh.policy.commands import ParsedCommand
from mesh.policy.custom import PolicyContext, allow, ask, combined, deny, verdict_after_custom
from mesh.policy.custom_function import MAX_ASKED, CustomFunction, UnusableFunction, function_of, load
from mesh.policy.decide import decide
from mesh.policy.grants import Remembered
from mesh.policy.layer import Policy
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import PolicyRule, RuleSet
from mesh.policy.shell import parse_now
from tests.policy import generated_policies as drawn
from tests.policy import judges
from tests.worlds.long import as_often_as
from tests.worlds.mesh import SIMPLE, ScriptedLlm, WorldMesh, calls, says

CALL = PolicyCall(
    agent="a", node="n", kind="mcp", tool="deploy", hints=Hints(True, False), arguments={"to": ["x"]}
)
ALLOWED = Verdict("allowed", "default", "No rule decides.")
ASKED = Verdict("ask", "prod", "Rule prod asks about it.", (Part("ls", "ask", "prod"),), "conversation")
DENIED = Verdict("denied", "never", "Rule never denies it.")


def custom(function: Any) -> CustomFunction:
    return CustomFunction("policies:judge", function)


def judged(
    function: Any, verdict: Verdict, call: PolicyCall = CALL, command: ParsedCommand | None = None
) -> Verdict:
    context = PolicyContext(verdict=verdict, command=command)
    return asyncio.run(verdict_after_custom(custom(function), call, context))


def answers(verdict: object) -> Any:
    async def judge(call: PolicyCall, context: PolicyContext) -> object:
        return verdict

    return judge


def file(tmp_path: Path, text: str) -> tuple[Path, str]:
    return tmp_path / "policies_of_test.py", textwrap.dedent(text)


@pytest.mark.parametrize("rules", [ALLOWED, ASKED, DENIED])
def test_without_an_answer_the_rules_decide(rules: Verdict) -> None:
    assert judged(answers(None), rules) == rules
    assert asyncio.run(verdict_after_custom(None, CALL, PolicyContext(verdict=rules))) == rules


@pytest.mark.parametrize(
    ("rules", "answer", "decision", "rule"),
    [
        (ALLOWED, deny("No."), "denied", "custom"),
        (ALLOWED, ask("Sure?"), "ask", "custom"),
        (ALLOWED, allow("Yes."), "allowed", "default"),
        (ASKED, allow("Yes."), "allowed", "custom"),
        (ASKED, deny(), "denied", "custom"),
        (ASKED, ask("Sure?"), "ask", "custom"),
        (DENIED, allow("Yes."), "denied", "never"),
    ],
)
def test_what_it_says_comes_after_the_rules(
    rules: Verdict, answer: Verdict, decision: str, rule: str
) -> None:
    found = judged(answers(answer), rules)
    assert (found.decision, found.rule, found.parts) == (decision, rule, rules.parts)
    assert found.why
    assert found.remember == "none" or found == rules


def test_it_is_not_asked_about_what_is_denied() -> None:
    asked: list[str] = []

    async def judge(call: PolicyCall, context: PolicyContext) -> None:
        asked.append(call.tool)

    assert judged(judge, DENIED) == DENIED
    assert asked == []
    assert judged(judge, ASKED) == ASKED
    assert asked == ["deploy"]


@pytest.mark.parametrize(
    ("call", "command"),
    [
        ({"must_ask": True}, None),
        ({}, ParsedCommand(why_ask="the name of a command is computed")),
        ({"command": "text", "arguments": {"text": "ls"}}, None),
    ],
)
def test_what_asks_whatever_the_rules_allow_still_asks(
    call: dict[str, Any], command: ParsedCommand | None
) -> None:
    whole = msgspec.structs.replace(CALL, **call)
    assert judged(answers(allow()), ASKED, whole, command) == ASKED
    assert judged(answers(deny()), ASKED, whole, command).decision == "denied"


def test_what_a_rule_might_deny_is_not_allowed() -> None:
    """The rule is about main, and nobody knows what $B is before the command runs."""
    push = PolicyRule(name="push", decide="deny", command=("git push * main",))
    policy, text = Policy(RuleSet(rules=(push,), default="ask", grants="always")), 'git push origin "$B"'
    call = msgspec.structs.replace(CALL, command="command", arguments={"command": text})
    verdict = decide(policy, call, parsed=parse_now(text))
    assert (verdict.decision, verdict.rule, verdict.must_ask) == ("ask", "push", True)
    assert judged(answers(allow()), verdict, call, parse_now(text)) == verdict


verdicts = st.builds(
    Verdict,
    st.sampled_from(("allowed", "ask", "denied")),
    st.just("r"),
    st.text(max_size=5),
    remember=st.sampled_from(("none", "conversation", "always")),
)


@settings(max_examples=as_often_as(300), deadline=None)
@given(drawn.agents, st.lists(drawn.nodes, max_size=2), drawn.calls, drawn.grants, drawn.parsed, verdicts)
def test_no_answer_turns_a_deny_into_anything_else(
    agent: RuleSet,
    nodes: list[RuleSet],
    asked: PolicyCall,
    grants: Remembered,
    parsed: ParsedCommand | None,
    answer: Verdict,
) -> None:
    rules = decide(Policy(agent, nodes), asked, grants, parsed)
    for must_ask in (False, True):
        found = combined(rules, answer, must_ask=must_ask)
        if rules.decision == "denied":
            assert found == rules
        if must_ask:
            assert strictness(found.decision) >= strictness(rules.decision)
        if found != rules:
            assert (found.decision, found.rule, found.remember) == (answer.decision, "custom", "none")


def raises(problem: BaseException) -> Any:
    async def judge(call: PolicyCall, context: PolicyContext) -> None:
        raise problem

    return judge


released = threading.Event()


async def blocks(call: PolicyCall, context: PolicyContext) -> None:
    released.wait(20)  # what no timeout of its own loop could end


async def never(call: PolicyCall, context: PolicyContext) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises(ValueError("the secret is 42")), "ValueError"),
        (raises(NameError("name 'x' is not defined")), "name 'x' is not defined"),
        (raises(TimeoutError()), "TimeoutError"),
        (raises(asyncio.CancelledError()), "CancelledError"),
        (raises(SystemExit(0)), "SystemExit"),
        (raises(RecursionError()), "RecursionError"),
        (answers("denied"), "answered str"),
        (answers(True), "answered bool"),
        (answers(Verdict("maybe", "r", "w")), "look at its fields"),  # type: ignore[arg-type]
        (answers(Verdict("allowed", "r", 7)), "look at its fields"),  # type: ignore[arg-type]
        (answers(Verdict("allowed", "r", "w", object())), "look at its fields"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("rules", [ALLOWED, ASKED])
def test_a_function_that_fails_or_answers_nonsense_asks(
    function: Any, why: str, rules: Verdict, caplog: pytest.LogCaptureFixture
) -> None:
    found = judged(function, rules)
    assert (found.decision, found.rule) == ("ask", "custom")
    assert "policies:judge" in found.why and why in found.why
    assert "42" not in found.why and "42" not in caplog.text
    assert "event=custom_policy_failed" in caplog.text
    assert judged(answers(None), rules) == rules  # the next one is asked as before


def test_a_reason_is_bounded_and_cannot_write_to_a_terminal() -> None:
    found = judged(answers(deny("\x1b[2J" + "x" * 100_000)), ALLOWED)
    assert "\x1b" not in found.why and len(found.why) <= 1_000


@pytest.mark.parametrize("function", [never, blocks])
async def test_a_function_that_does_not_answer_asks_and_holds_up_nothing_else(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    released.clear()
    ticks = 0

    async def others() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(others())
    found = await verdict_after_custom(custom(function), CALL, PolicyContext(verdict=ALLOWED))
    ticking.cancel()
    released.set()
    assert (found.decision, "did not answer within 2 s" in found.why) == ("ask", True)
    assert ticks > 1


async def test_more_calls_than_a_function_takes_ask_at_once_and_are_taken_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mesh.policy.custom_function.TIMEOUT_S", 60.0)
    begun, go, loops = threading.Semaphore(0), asyncio.Event(), set[asyncio.AbstractEventLoop]()

    async def waits(call: PolicyCall, context: PolicyContext) -> Verdict:
        loops.add(asyncio.get_running_loop())
        begun.release()
        await go.wait()
        return deny("done")

    function, context = custom(waits), PolicyContext(verdict=ALLOWED)
    waiting = [asyncio.create_task(function.answer(CALL, context)) for _ in range(MAX_ASKED)]
    for _ in range(MAX_ASKED):
        assert await asyncio.to_thread(begun.acquire, timeout=20)
    refused = await function.answer(CALL, context)
    assert refused is not None
    assert (refused.decision, f"{MAX_ASKED} other calls" in refused.why) == ("ask", True)
    [loop] = loops
    assert loop is not asyncio.get_running_loop()
    loop.call_soon_threadsafe(go.set)
    await asyncio.gather(*waiting)
    assert await function.answer(CALL, context) == deny("done")


def test_what_it_does_to_the_arguments_changes_nothing() -> None:
    async def judge(call: PolicyCall, context: PolicyContext) -> None:
        call.arguments["to"].append("y")
        call.arguments["more"] = 1  # type: ignore[index]

    assert judged(judge, ALLOWED) == ALLOWED
    assert CALL.arguments == {"to": ["x"]}


def test_it_sees_the_call_and_the_context() -> None:
    seen: list[tuple[PolicyCall, PolicyContext]] = []

    async def judge(call: PolicyCall, context: PolicyContext) -> None:
        seen.append((call, context))

    context = PolicyContext(verdict=ASKED, agent_path=("a",), conversation_id="c", turn=2, by="ann")
    asyncio.run(verdict_after_custom(custom(judge), CALL, context))
    assert seen == [(CALL, context)]


def test_a_function_is_loaded_from_the_text_that_was_kept_and_from_an_installed_module(
    tmp_path: Path,
) -> None:
    (tmp_path / "beside_of_test.py").write_text("WORD = 'beside'\n")
    path, text = file(
        tmp_path,
        """
        from beside_of_test import WORD
        from mesh.policy.custom import deny

        async def judge(call, context):
            return deny(WORD)
        """,
    )
    found = load("policies_of_test:judge", path, text)
    assert asyncio.run(found.answer(CALL, PolicyContext(verdict=ALLOWED))) == deny("beside")
    installed = load("tests.policy.test_custom:never")
    assert asyncio.run(installed.answer(CALL, PolicyContext(verdict=ALLOWED))).decision == "ask"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (
            "\n\ndef judge(call, context): ...\n",
            3,
            "judge is not async; expected async def judge(call, context)",
        ),
        ("async def judge(call): ...\n", 1, "judge takes other arguments"),
        ("async def other(call, context): ...\n", 1, "has no function judge"),
        ("judge = 7\n", 1, "has no function judge"),
        ("\nimport nothing_of_this_name\n", 2, "No module named 'nothing_of_this_name'"),
        ("\n\nraise ValueError('the secret is 42')\n", 3, "cannot be imported: ValueError"),
        ("\nraise SystemExit(0)\n", 2, "cannot be imported: SystemExit"),
        ("\ndef judge(:\n", 2, "SyntaxError: invalid syntax"),
    ],
)
def test_a_file_that_cannot_be_used_is_told_with_its_line_and_then_everything_asks(
    tmp_path: Path, text: str, line: int, problem: str
) -> None:
    path = tmp_path / "policies_of_test.py"
    with pytest.raises(UnusableFunction) as raised:
        function_of("policies_of_test:judge", path, text)
    assert (raised.value.path, raised.value.line) == (str(path), line)
    assert problem in str(raised.value)
    assert "42" not in str(raised.value)
    found = asyncio.run(
        load("policies_of_test:judge", path, text).answer(CALL, PolicyContext(verdict=ALLOWED))
    )
    assert found is not None and (found.decision, f"policies_of_test.py:{line}: " in found.why) == (
        "ask",
        True,
    )


def test_a_module_that_is_not_there_is_named() -> None:
    for reference in ("no_such_module:judge", "mesh.no_such_module:judge", "no_such.module:judge"):
        with pytest.raises(UnusableFunction, match=r"there is no module .*no_such"):
            function_of(reference)


def test_the_bound_is_two_seconds() -> None:
    assert custom_function.TIMEOUT_S == 2


@pytest.mark.parametrize(
    ("rules", "n", "ran", "rule"),
    [
        ("", 3, True, "custom"),  # destructive, so that it would ask
        ("", 13, False, "custom"),
        ("rules: [{name: never, tools: [add], decide: deny}], ", 3, False, "never"),
        ("rules: [{name: fine, tools: [add], decide: allow}], ", 13, False, "custom"),
        ("rules: [{name: fine, tools: [add], decide: allow}], ", 20, True, "fine"),
    ],
)
async def test_it_decides_about_the_calls_of_a_turn(
    rules: str, n: int, ran: bool, rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no such file is beside the config, so that the module is the installed one
    judges.SEEN.clear()
    config = f"{SIMPLE}policy: {{{rules}custom: 'tests.policy.judges:judge'}}\n"
    journal = MemoryJournal()
    async with WorldMesh(ScriptedLlm(calls(("add", {"n": n})), says("ok")), journal, config) as mesh:
        _, body = await mesh.create("add", by="ann")
        assert body["result"]["response"] == "ok", body
        assert mesh.ledger.lines == ([f"add {n}"] if ran else [])
        id = body["conversation"]["id"]
        [result] = [event for event in await journal.read(id) if isinstance(event, ToolResult)]
        assert (result.rule, result.is_error) == (rule, not ran)
    if rule == "never":
        assert judges.SEEN == []
    else:
        assert (judges.SEEN[-1].conversation_id, judges.SEEN[-1].turn, judges.SEEN[-1].by) == (id, 1, "ann")


async def test_it_leaves_to_a_person_what_the_rules_ask_about() -> None:
    config = f"{SIMPLE}policy: {{custom: 'tests.policy.judges:judge'}}\n"
    async with WorldMesh(ScriptedLlm(calls(("add", {"n": 20})), says("ok")), None, config) as mesh:
        _, body = await mesh.create("add")
        assert body["result"]["approval"]["rule"] == "default"


def test_a_module_is_imported_once_in_a_process(tmp_path: Path) -> None:
    path, text = file(tmp_path, "async def judge(call, context): ...\n")
    assert load("once:judge", path, text) is load("once:judge", path, text)
    assert load("once:judge", path, text) is not load("once:judge", path, text + "#")

"""What a decision leaves behind: the rule that an approval suggests, and for how long it holds."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given, settings

from mesh.core.hints import Hints
from mesh.policy.commands import ParsedCommand
from mesh.policy.decide import decide
from mesh.policy.grants import Grant, Remembered, in_force, problem_of, suggested
from mesh.policy.layer import Policy
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import PolicyRule, RuleSet
from mesh.policy.shell import parse_now
from tests.policy import generated_policies as drawn
from tests.worlds.long import as_often_as

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
UNLESS = {"decide": "allow", "tools": ["x"]}
ASKS = Policy(RuleSet(default="ask", grants="always"))


def call(tool: str = "write_file", **more: object) -> PolicyCall:
    fields = {"agent": "a", "node": "n", "kind": "mcp", "server": "files", "tool": tool, **more}
    return msgspec.convert({**fields, "hints": Hints(True, False)}, PolicyCall)


def remembered(rule: PolicyRule | None) -> Remembered:
    assert rule is not None
    return Remembered([Grant(id="1", agent="a", rule=rule)])


@settings(max_examples=as_often_as(300), deadline=None)
@given(drawn.calls, drawn.parsed)
def test_what_is_suggested_covers_the_call_and_can_be_remembered(
    asked: PolicyCall, parsed: ParsedCommand | None
) -> None:
    rule = suggested(asked, parsed)
    if rule is None:
        return
    assert problem_of(rule) == ""
    assert msgspec.json.decode(msgspec.json.encode(rule), type=PolicyRule) == rule
    again = msgspec.structs.replace(asked, must_ask=False)
    assert decide(ASKS, again, remembered(rule), parsed).decision == "allowed"


@pytest.mark.parametrize("path", ["docs/a.md", "a*b", "[x]", "{a,b}", "."])
def test_a_suggested_rule_covers_this_path_and_no_other(path: str) -> None:
    asked = call(arguments={"path": path}, paths=["path"])
    granted = remembered(suggested(asked))
    assert decide(ASKS, asked, granted).decision == "allowed"
    for other in ("docs/b.md", "axb", "x", "a", "sub/docs/a.md", "b/.."):
        assert decide(ASKS, call(arguments={"path": other}, paths=["path"]), granted).decision == "ask"


@pytest.mark.parametrize(("root", "others"), [("docs", ["work", "doc*", None]), (None, ["docs", ""])])
def test_a_suggested_rule_covers_a_path_in_this_root_and_in_no_other(
    root: str | None, others: list[str | None]
) -> None:
    def write(root: str | None) -> PolicyCall:
        given = {"path": "a.txt"} | ({} if root is None else {"root": root})
        asked = call(arguments=given, paths=["path"])
        return msgspec.structs.replace(asked, root_arguments=("root",))

    granted = remembered(suggested(write(root)))
    assert decide(ASKS, write(root), granted).decision == "allowed"
    assert {decide(ASKS, write(other), granted).decision for other in others} == {"ask"}


def test_a_suggested_rule_covers_these_words_and_no_others() -> None:
    granted = remembered(suggested(call("run"), parse_now("pytest -q 'tests/*' && git status")))
    for text in ("git status", "pytest -q 'tests/*'", "nice git status"):
        assert decide(ASKS, call("run"), granted, parse_now(text)).decision == "allowed"
    for text in ("git status -s", "pytest -q tests/x", "pytest", "git status; ls", "git status > x"):
        assert decide(ASKS, call("run"), granted, parse_now(text)).decision == "ask"


@pytest.mark.parametrize(("left_out", "others"), [("cwd", ["customer/prod", "."]), ("to.path", ["a"])])
def test_a_suggested_rule_covers_no_path_where_there_was_none(left_out: str, others: list[str]) -> None:
    def run(more: dict[str, object]) -> PolicyCall:
        arguments = {"command": "rm -r data", **more}
        return call("run", arguments=arguments, paths=[left_out], command="command")

    parsed = parse_now("rm -r data")
    granted = remembered(suggested(run({}), parsed))
    assert decide(ASKS, run({"timeout_s": 9}), granted, parsed).decision == "allowed"
    for other in others:
        asked = run({"cwd": other} if left_out == "cwd" else {"to": {"path": other}})
        assert decide(ASKS, asked, granted, parsed).decision == "ask"


@pytest.mark.parametrize("text", ["eval x", "$X", "echo 'two words'", "ls ''"])
def test_nothing_is_suggested_for_a_command_that_no_pattern_spells(text: str) -> None:
    assert suggested(call("run"), parse_now(text)) is None


@pytest.mark.parametrize("value", [None, [], {}])
def test_nothing_is_suggested_for_a_path_that_is_there_and_names_nothing(value: object) -> None:
    assert suggested(call(arguments={"path": value}, paths=["path"])) is None


def test_nothing_is_suggested_for_a_path_of_which_nobody_knows_where_it_leads() -> None:
    assert suggested(call(arguments={"path": "../x"}, paths=["path"])) is None


@pytest.mark.parametrize(
    ("until", "holds"),
    [("", True), ("2026-11-23T12:00:01Z", True), ("2026-11-23T12:00:00Z", False), ("soon", False)],
)
def test_a_grant_ends_at_its_moment(until: str, holds: bool) -> None:
    grant = Grant(id="1", agent="a", rule=PolicyRule(name="r", decide="allow", tools=("*",)), until=until)
    found = decide(ASKS, call(), in_force([grant], "a", NOW))
    assert (found.decision == "allowed") is holds


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"decide": "deny", "tools": ["x"]}, "only a rule with decide: allow can be remembered"),
        ({"decide": "allow"}, "it has no condition, so that it would allow everything"),
        ({"decide": "allow", "args": {"a": "re:(x"}}, "args.a: is no expression of RE2: missing )"),
        ({"decide": "allow", "paths": ["/"]}, "paths: matches nothing"),
        (UNLESS | {"unless": {"tools": ["re:("]}}, "unless.tools: is no expression of RE2: missing )"),
        (
            UNLESS | {"unless": {"args": {"a": ["x", "re:("]}}},
            "unless.args.a: is no expression of RE2: missing )",
        ),
        (UNLESS | {"unless": {"paths": [""]}}, "unless.paths: matches nothing"),
        (
            UNLESS | {"unless": {"command": [""]}},
            "unless.command: is empty; expected words, such as git push *",
        ),
        (UNLESS | {"unless": {"command": ["ls *"]}}, ""),
    ],
)
def test_a_rule_that_a_person_wrote_is_checked(rule: dict[str, object], problem: str) -> None:
    assert problem_of(msgspec.convert({"name": "r", **rule}, PolicyRule)) == problem


@pytest.mark.parametrize(
    "rule",
    [
        {"unless": {"tools": ["re:("]}},
        {"unless": {"command": [""]}},
        {"paths": [""]},
        {"paths": ["é" * 3_976]},  # beyond the bound only where it may begin anywhere
        {"args": {"a": "re:("}},
        {"command": [" "]},
        {"tools": None},
    ],
)
def test_a_grant_that_cannot_be_compiled_is_not_in_force_and_the_others_are(
    rule: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    broken = msgspec.convert({"name": "r", "decide": "allow", "tools": ["*"], **rule}, PolicyRule)
    fine = PolicyRule(name="w", decide="allow", tools=("write_file",))
    grants = [Grant(id=id, agent="a", rule=each) for id, each in (("1", broken), ("2", fine))]
    found = in_force(grants, "a", NOW)
    assert decide(ASKS, call(), found).rule == "grant.2"
    assert decide(ASKS, call("read_file"), found).decision == "ask"
    assert "event=grant_not_in_force grant=1 " in caplog.text


def test_what_is_in_force_is_compiled_once_until_it_changes() -> None:
    rule = PolicyRule(name="w", decide="allow", tools=("write_file",), args={"n": 3, "to": ("a*", 1.5)})
    ended = Grant(id="0", agent="a", rule=rule, until="2020-01-01T00:00:00Z")
    kept = [Grant(id=str(n), agent="a", rule=rule, until="2100-01-01T00:00:00Z") for n in range(3)]
    first = in_force(kept, "a", NOW)
    again = msgspec.json.decode(msgspec.json.encode(kept), type=list[Grant])
    assert in_force(again, "a", NOW) is first
    assert in_force(kept[1:], "a", NOW) is not first
    assert in_force([ended, *kept[1:]], "a", NOW) is in_force(kept[1:], "a", NOW)
    assert in_force(kept, "b", NOW).layer.rules == []
    asked = call(arguments={"n": 3, "to": "abc"})
    assert decide(ASKS, asked, first) == decide(ASKS, asked, Remembered(kept))
    assert decide(ASKS, asked, first).decision == "allowed"

"""What a policy says about calls: each has a verdict, and nothing turns a deny into a run."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.core.hints import Hints
from mesh.core.verdict import Verdict, strictness
from mesh.policy.commands import Expansion, ParsedCommand, Redirection, SimpleCommand
from mesh.policy.decide import decide
from mesh.policy.explain import explained
from mesh.policy.grants import NOTHING, Grant, Remembered
from mesh.policy.layer import Policy
from mesh.policy.parts import of_program
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import ASK_COMMANDS, ArgTest, PolicyRule, RuleConditions, RuleSet
from mesh.policy.shadowed import shadowed_by
from mesh.policy.shell import parse_now
from tests.policy import generated_policies as drawn
from tests.worlds.long import as_often_as

DESTRUCTIVE, HARMLESS = Hints(True, False), Hints(False, True, True)


def call(tool: str = "write_file", hints: Hints = DESTRUCTIVE, **more: object) -> PolicyCall:
    fields: dict[str, object] = {"agent": "a", "node": "n", "kind": "mcp", **more}
    return msgspec.convert({**fields, "tool": tool, "hints": hints}, PolicyCall)


def at(path: object, **more: object) -> PolicyCall:
    return call(arguments={"path": path}, paths=["path"], **more)


def command(*texts: str, writes: str = "", why_ask: str = "") -> ParsedCommand:
    parts = tuple(SimpleCommand(tuple(text.split()), tuple(text.split())) for text in texts)
    return ParsedCommand(parts, (Redirection(writes, True),) if writes else (), why_ask)


def rule(decide: str, name: str = "r", **more: object) -> PolicyRule:
    return msgspec.convert({"name": name, "decide": decide, **more}, PolicyRule)


def policy(*rules: PolicyRule, **more: object) -> Policy:
    return Policy(RuleSet(rules=rules, **more))  # type: ignore[arg-type]


def said(verdict: Verdict) -> tuple[str, str]:
    return verdict.decision, verdict.rule


@pytest.mark.parametrize(
    "path", ["secrets/k", "/ws/secrets/k", "../ws/secrets/k", "~/secrets/k", "a/../secrets/k"]
)
@pytest.mark.parametrize("decides", ["deny", "ask"])
def test_a_path_that_may_lead_to_what_a_rule_is_about_counts_for_it(path: str, decides: str) -> None:
    rules = (rule(decides, "closed", paths=["secrets/**"]), rule("allow", "all", tools=["*"]))
    assert said(decide(policy(*rules), at(path))) == ("denied" if decides == "deny" else "ask", "closed")
    assert decide(policy(*rules), at("/ws/docs/k")).decision == "allowed"


@pytest.mark.parametrize(
    "files", [[[".env"]], [{"path": ".env"}], {"path": ".env"}, {"a": [{"b": "sub/.env"}]}, {".env": "KEY=1"}]
)
def test_what_is_hidden_or_frozen_is_found_within_objects_and_lists(files: object) -> None:
    everything = rule("allow", paths=["**"])
    asked = call(arguments={"files": files}, paths=["files"])
    for key in ("hide", "freeze"):
        found = decide(policy(everything, **{key: (".env*",)}), asked)
        assert said(found) == ("denied", key)


@pytest.mark.parametrize("files", [[["a"]], [{"path": "a"}], {"path": "a"}, 7, [True], [["a"] * 2_000]])
def test_a_path_that_is_no_text_matches_no_allow_and_asks_where_something_is_hidden(files: object) -> None:
    everything = rule("allow", "open", paths=["**"])
    asked = call(arguments={"files": files}, paths=["files"])
    assert said(decide(policy(everything), asked)) == ("ask", "default")
    reads = msgspec.structs.replace(asked, hints=HARMLESS)
    assert said(decide(policy(everything, hide=(".env*",)), reads)) == ("ask", "hide")
    assert decide(policy(everything, freeze=(".env*",)), reads).decision == "allowed"
    closed = rule("deny", "closed", paths=["a"])
    denied = decide(policy(closed, everything), asked).decision
    assert denied == ("denied" if "a" in str(files) else "ask")


def test_an_escaped_name_is_the_name_that_is_meant() -> None:
    rules = (rule("deny", "closed", paths=["privé/**"]), rule("allow", "open", paths=["docs/**"]))
    assert said(decide(policy(*rules), at(r"priv\xc3\xa9/k"))) == ("denied", "closed")
    assert decide(policy(*rules), at(r"docs/\xc3\xa9")).decision == "ask"  # not surely this name


@pytest.mark.parametrize("exe", ["-c", "-a", "--"])
def test_a_program_that_begins_with_a_dash_asks(exe: str) -> None:
    assert of_program(exe, ["git", "push"]).why_ask


@pytest.mark.parametrize(
    ("text", "is_denied"),
    [
        ("cat .env", True),
        ("cat ./sub/.env.local", True),
        ("cat /ws/.env", True),
        ("dd if=.env of=x", True),
        ("ls; cp a --target=.env", True),
        ("env -i cat .env", True),
        ("cat env", False),
        ("ls -a", False),
    ],
)
def test_a_command_that_names_what_is_hidden_is_denied(text: str, is_denied: bool) -> None:
    everything = rule("allow", command=["* *", "*"], paths=["**"])
    asked = call("run", arguments={"command": text}, command="command")
    found = decide(policy(everything, hide=(".env*",)), asked, parsed=parse_now(text))
    assert (found.decision == "denied", found.rule == "hide") == (is_denied, is_denied)
    assert found.why.endswith(" is hidden (hide: .env*): no command may name it.") == is_denied


class TestProperties:
    @settings(max_examples=as_often_as(300), deadline=None)
    @given(drawn.agents, st.lists(drawn.nodes, max_size=2), drawn.calls, drawn.grants, drawn.parsed)
    def test_every_call_has_a_verdict_and_its_explanation_says_the_same(
        self,
        agent: RuleSet,
        nodes: list[RuleSet],
        asked: PolicyCall,
        grants: Remembered,
        parsed: ParsedCommand | None,
    ) -> None:
        whole = Policy(agent, nodes)
        verdict = decide(whole, asked, grants, parsed)
        found = explained(whole, asked, grants, parsed)
        assert found.verdict == verdict
        deciding = [note.rule for note in found.notes if not note.why]
        names = [note.rule for note in found.notes]
        assert set(deciding) == ({verdict.rule} & set(names))

    @settings(max_examples=as_often_as(300), deadline=None)
    @given(drawn.agents, st.lists(drawn.nodes, max_size=2), drawn.calls, drawn.parsed, st.data())
    def test_no_order_no_allow_no_grant_no_mode_and_no_node_turns_a_deny_into_anything_else(
        self,
        agent: RuleSet,
        nodes: list[RuleSet],
        asked: PolicyCall,
        parsed: ParsedCommand | None,
        data: st.DataObject,
    ) -> None:
        verdict = decide(Policy(agent, nodes), asked, NOTHING, parsed)
        if verdict.decision != "denied" or verdict.rule.endswith("default"):
            return
        shuffled = data.draw(st.permutations(agent.rules))
        allows = data.draw(drawn.rule("more", st.just("allow")))
        other = msgspec.structs.replace(
            agent, rules=(allows, *shuffled), default=data.draw(st.sampled_from(("hints", "ask")))
        )
        looser = [*nodes, RuleSet(owner="below", default=None, grants="always", rules=(allows,))]
        again = msgspec.structs.replace(asked, inline=not asked.inline)
        assert decide(Policy(other, looser), again, data.draw(drawn.grants), parsed).decision == "denied"

    @settings(max_examples=as_often_as(300), deadline=None)
    @given(drawn.agents, drawn.nodes, drawn.calls, drawn.parsed)
    def test_the_policy_of_a_node_only_tightens(
        self, agent: RuleSet, node: RuleSet, asked: PolicyCall, parsed: ParsedCommand | None
    ) -> None:
        without = decide(Policy(agent), asked, NOTHING, parsed).decision
        assert strictness(decide(Policy(agent, [node]), asked, NOTHING, parsed).decision) >= strictness(
            without
        )

    @settings(max_examples=as_often_as(300), deadline=None)
    @given(drawn.agents, drawn.calls, drawn.grants, drawn.parsed)
    def test_a_grant_turns_an_ask_into_a_run_and_changes_nothing_else(
        self, agent: RuleSet, asked: PolicyCall, grants: Remembered, parsed: ParsedCommand | None
    ) -> None:
        before, after = (decide(Policy(agent), asked, found, parsed) for found in (NOTHING, grants))
        if before.decision != after.decision:
            assert (before.decision, after.decision) == ("ask", "allowed")
            assert before.remember != "none"

    @settings(max_examples=as_often_as(300), deadline=None)
    @given(drawn.rules, drawn.calls)
    def test_a_rule_that_is_said_never_to_decide_does_not(
        self, rules: tuple[PolicyRule, ...], asked: PolicyCall
    ) -> None:
        never = {rules[index].name for index in range(len(rules)) if shadowed_by(rules, index)}
        assert decide(policy(*rules), asked).rule not in never

    @given(st.sampled_from((DESTRUCTIVE, HARMLESS, Hints(False, False))), st.booleans())
    def test_without_a_policy_the_hints_decide_as_they_always_did(self, hints: Hints, inline: bool) -> None:
        verdict = decide(Policy.default(), call(hints=hints, inline=inline))
        assert (verdict.decision == "ask") is (hints.destructive and not inline)
        assert (verdict.decision, verdict.remember) in {("ask", "none"), ("allowed", "none")}


class TestOrder:
    def test_a_deny_decides_wherever_it_stands(self) -> None:
        found = policy(rule("allow", "first"), rule("deny", "last", tools=["write_*"]))
        assert said(decide(found, call())) == ("denied", "last")

    def test_otherwise_the_first_rule_that_holds_decides(self) -> None:
        found = policy(rule("ask", "one"), rule("allow", "two", tools=["write_file"]))
        assert said(decide(found, call())) == ("ask", "one")

    def test_an_explicit_ask_asks_where_approvals_are_inline(self) -> None:
        assert decide(policy(rule("ask")), call(inline=True)).decision == "ask"

    def test_what_a_denied_call_is_told_is_what_its_rule_says(self) -> None:
        assert decide(policy(rule("deny", say="Never.")), call()).why == "Never."

    @pytest.mark.parametrize(
        ("default", "decision"), [("hints", "allowed"), ("ask", "ask"), ("deny", "denied")]
    )
    def test_the_default_decides_about_the_rest(self, default: str, decision: str) -> None:
        assert said(decide(policy(default=default), call(hints=HARMLESS))) == (decision, "default")


class TestConditions:
    @pytest.mark.parametrize(
        ("conditions", "holds"),
        [
            ({"tools": ["read_*", "write_*"]}, True),
            ({"tools": ["rite_file"]}, False),
            ({"servers": ["fil*"]}, True),
            ({"nodes": ["m"]}, False),
            ({"kinds": ["a2a"]}, False),
            ({"hints": {"destructive": True, "read_only": False}}, True),
            ({"hints": {"repeatable": True}}, False),
            ({"risk": ["high"]}, True),
            ({"risk": ["low", "medium"]}, False),
            ({"args": {"to.address": "*@example.com"}}, True),
            ({"args": {"to.address": "ann"}}, False),
            ({"args": {"to.address": "re:^ann"}}, True),
            ({"args": {"list.1": ["x", 7]}}, True),
            ({"args": {"list.2": "*"}}, False),
            ({"args": {"n": {"min": 3, "max": 5}}}, True),
            ({"args": {"n": {"max": 2.5}}}, False),
            ({"args": {"flag": {"max": 2}}}, False),
            ({"args": {"n": 3.0, "flag": True}}, True),
            ({"args": {"flag": 1}}, False),
            ({"args": {"gone": {"absent": True}, "n": {"absent": False}}}, True),
            ({"args": {"n": {"absent": True}}}, False),
            ({"args": {"to": "re:example"}}, True),
        ],
        ids=str,
    )
    def test_a_rule_holds_if_all_its_conditions_do(self, conditions: dict[str, object], holds: bool) -> None:
        arguments = {"to": {"address": "ann@example.com"}, "list": ["a", 7], "n": 3, "flag": True}
        asked = call(server="files", arguments=arguments)
        assert (decide(policy(rule("deny", **conditions)), asked).decision == "denied") is holds
        assert (decide(policy(rule("allow", **conditions)), asked).decision == "allowed") is holds

    def test_an_expression_takes_linear_time_and_half_characters_do_not_break_it(self) -> None:
        found = policy(rule("deny", args={"text": "re:(a+)+$|prod"}))
        assert decide(found, call(arguments={"text": "a" * 100_000 + "!"})).decision == "ask"
        assert decide(found, call(arguments={"text": "\ud800prod"})).decision == "denied"

    def test_unless_is_the_exception_of_its_own_rule_only(self) -> None:
        found = policy(rule("deny", "all", unless={"tools": ["write_file"]}), rule("allow", "rest"))
        assert said(decide(found, call())) == ("allowed", "rest")
        assert said(decide(found, call("remove"))) == ("denied", "all")


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "holds"),
        [
            ("docs/a.md", True),
            ("./docs//b/c.md", True),
            ("/docs/a.md", False),
            ("/ws/docs/a.md", False),
            ("docs", False),
            ("docs/../src/a.py", False),
            ("../docs/a.md", False),
            ("docs/a.md/..", False),
            ("~/docs/a.md", False),
            ("docs/\0", False),
            (["docs/a.md", "docs/b.md"], True),
            (["docs/a.md", "src/b.md"], False),
            ([], False),
            (7, False),
        ],
        ids=repr,
    )
    def test_a_rule_allows_only_if_every_path_is_surely_below(self, path: object, holds: bool) -> None:
        found = policy(rule("allow", paths=["docs/**"]))
        assert (decide(found, at(path)).decision == "allowed") is holds

    @pytest.mark.parametrize("path", ["prod/a", "x/../prod/a", ["docs/a", "prod/a"], "/ws/prod/a"])
    def test_a_rule_denies_if_any_path_may_be_below(self, path: object) -> None:
        assert decide(policy(rule("deny", paths=["prod/**"])), at(path)).decision == "denied"

    @pytest.mark.parametrize(
        ("path", "rule_name"),
        [
            (".env", "hide"),
            ("a/b/.env.local/c", "hide"),
            ("../other/.env", "hide"),
            (".git/config", "freeze"),
            (".git", "freeze"),
            ("x/../.git/config", "freeze"),
            ("/else/.git/config", "freeze"),
        ],
    )
    def test_what_is_hidden_or_frozen_is_denied_whatever_rules_allow(self, path: str, rule_name: str) -> None:
        found = policy(rule("allow"), hide=(".env*",), freeze=(".git/config",))
        assert said(decide(found, at(path))) == ("denied", rule_name)

    @pytest.mark.parametrize(
        ("path", "why"),
        [
            ("a/.env.local", "a/.env.local is hidden (hide: .env*): no tool may read or write it."),
            (".git/config", ".git/config is frozen (freeze: .git/config): no tool may write it."),
            (
                f"{'x' * 300}/.env",
                f"…{'x' * 195}/.env is hidden (hide: .env*): no tool may read or write it.",
            ),
        ],
    )
    def test_it_is_said_what_is_hidden_or_frozen_and_by_which_glob(self, path: str, why: str) -> None:
        assert decide(policy(hide=(".env*",), freeze=(".git/config",)), at(path)).why == why

    def test_what_is_frozen_can_be_read(self) -> None:
        found = policy(freeze=(".git/config",))
        assert decide(found, at(".git/config", hints=HARMLESS)).decision == "allowed"


class TestCommands:
    RULES = (
        rule("allow", "tests", command=["pytest *", "git status *"]),
        rule("deny", "push", command=["git push *"], unless={"command": ["git push origin agent/*"]}),
    )

    @pytest.mark.parametrize(
        ("parts", "expected"),
        [
            (["pytest"], ("allowed", "tests")),
            (["pytest -q", "git status"], ("allowed", "tests")),
            (["pytest", "rm -r ."], ("ask", "ask_commands")),
            (["pytest", "/bin/rm x"], ("ask", "ask_commands")),
            (["pytest", "git push origin main"], ("denied", "push")),
            (["git push origin agent/x"], ("ask", "default")),
            (["git statusx"], ("ask", "default")),
        ],
    )
    def test_each_part_is_judged_and_the_strictest_counts(
        self, parts: list[str], expected: tuple[str, str]
    ) -> None:
        found = policy(*self.RULES, ask_commands=ASK_COMMANDS)
        verdict = decide(found, call("run"), parsed=command(*parts))
        assert said(verdict) == expected
        assert [part.words for part in verdict.parts] == parts

    def test_a_wrapped_command_is_denied_by_what_is_inside_and_allowed_by_nothing_else(self) -> None:
        words = ("git", "push")
        wrapped = ParsedCommand((SimpleCommand(("xargs", *words), ("xargs", *words), (words,)),))
        assert decide(policy(*self.RULES), call("run"), parsed=wrapped).decision == "denied"
        as_written = policy(rule("allow", command=["git push *"]))
        assert decide(as_written, call("run"), parsed=wrapped).decision == "ask"

    def test_what_a_deny_may_match_asks(self) -> None:
        words = ("git", Expansion("$X"))
        found = policy(rule("allow", command=["git *"]), rule("deny", "push", command=["git push *"]))
        parsed = ParsedCommand((SimpleCommand(words, words),))
        assert said(decide(found, call("run"), parsed=parsed)) == ("ask", "push")

    def test_what_is_unclear_asks_and_nobody_can_remember_it(self) -> None:
        found = policy(rule("allow"), grants="always")
        verdict = decide(found, call("run"), parsed=command("ls", why_ask="eval"))
        assert (verdict.decision, verdict.rule, verdict.remember) == ("ask", "unclear_command", "none")
        assert decide(found, call("run", command="c", arguments={"c": "ls"})).decision == "ask"

    def test_a_command_that_writes_files_needs_a_rule_with_their_paths(self) -> None:
        allows = policy(rule("allow", command=["ls *"]))
        assert decide(allows, call("run"), parsed=command("ls", writes="x")).decision == "ask"
        assert decide(allows, call("run"), parsed=command("ls", writes="/dev/null")).decision == "allowed"
        below = policy(rule("allow", command=["ls *"], paths=["out/**"]))
        assert decide(below, call("run"), parsed=command("ls", writes="out/x")).decision == "allowed"
        hidden = policy(rule("allow"), hide=(".env",))
        assert decide(hidden, call("run"), parsed=command("ls", writes=".env")).decision == "denied"

    def test_a_redirection_is_relative_to_the_folder_in_which_the_command_starts(self) -> None:
        found = policy(rule("allow", command=["ls *"]), freeze=(".git/config",))
        inside = call("run", arguments={"cwd": ".git/.."}, paths=["cwd"])
        assert decide(found, inside, parsed=command("ls", writes=".git/config")).decision != "allowed"
        below = call("run", arguments={"cwd": "sub"}, paths=["cwd"])
        frozen = policy(rule("allow", paths=["sub", "sub/out/**"]))
        assert decide(frozen, below, parsed=command("ls", writes="out/x")).decision == "allowed"

    def test_a_default_that_denies_also_denies_the_programs_that_ask(self) -> None:
        found = policy(default="deny", ask_commands=("rm",))
        assert decide(found, call("run"), parsed=command("rm x")).decision == "denied"

    def test_a_tool_that_wants_to_be_asked_about_always_asks(self) -> None:
        assert said(decide(policy(rule("allow")), call(must_ask=True))) == ("ask", "tool")


class TestNodes:
    def test_a_rule_of_a_node_has_its_name_and_tightens(self) -> None:
        node = RuleSet(owner="reader", default="deny", rules=(rule("allow", "look", tools=["read_*"]),))
        found = Policy(RuleSet(rules=(rule("allow", "all"),)), [node])
        assert said(decide(found, call())) == ("denied", "reader.default")
        assert decide(found, call("read_file")).decision == "allowed"

    def test_a_tool_that_is_denied_whatever_its_arguments_is_known_as_such(self) -> None:
        found = policy(rule("deny", tools=["write_*"]), rule("deny", "p", tools=["read_*"], paths=["x"]))
        assert found.denies_always(call())
        assert not found.denies_always(call("read_file"))
        assert policy(default="deny").denies_always(call())
        excepted = RuleConditions(args={"n": ArgTest(max=3)})
        some = PolicyRule(name="r", decide="deny", unless=excepted)
        assert not policy(some).denies_always(call())


class TestRemembered:
    def test_a_grant_holds_for_its_agent_alone(self) -> None:
        granted = Remembered([Grant(id="1", agent="a", rule=rule("allow", tools=["write_file"]))])
        found = policy(grants="conversation")
        assert said(decide(found, call(), granted)) == ("allowed", "grant.1")
        assert decide(found, call(agent="b"), granted).decision == "ask"

    @pytest.mark.parametrize("bound", ["none", "conversation"])
    def test_a_grant_reaches_no_further_than_the_policy_lets_it(self, bound: str) -> None:
        always = Grant(id="1", agent="a", rule=rule("allow", tools=["*"]), remember="always")
        assert decide(policy(grants=bound), call(), Remembered([always])).decision == "ask"

    def test_what_any_rule_does_not_let_anybody_remember_is_asked_about(self) -> None:
        granted = Remembered([Grant(id="1", agent="a", rule=rule("allow", tools=["*"]))])
        found = policy(rule("ask", "one"), rule("ask", "two", remember="none"), grants="always")
        assert decide(found, call(), granted).decision == "ask"

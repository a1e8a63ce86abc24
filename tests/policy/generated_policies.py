"""Policies and calls, drawn at random from few names, so that rules often hold."""

from typing import Any

from hypothesis import strategies as st

from mesh.core.hints import Hints
from mesh.policy.commands import Expansion, ParsedCommand, Redirection, SimpleCommand, Word
from mesh.policy.grants import Grant, Remembered
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import ArgTest, PolicyRule, RuleConditions, RuleSet

TOOLS = ("read_file", "write_file", "run")
PATHS = (
    "docs/a.md",
    "docs/b/c.md",
    "src/x.py",
    ".env",
    ".git/config",
    "../out",
    "/etc/passwd",
    "a/../docs/a.md",
    "",
)
COMMANDS = ("ls", "git status", "git push origin main", "git push origin agent/x", "rm -r .", "pytest -q")
NAMES = ("r0", "r1", "r2", "r3", "r4", "r5")


def some(values: Any, least: int = 1) -> Any:
    return st.lists(st.sampled_from(values), min_size=least, max_size=2, unique=True).map(tuple)


def maybe(strategy: Any) -> Any:
    return st.one_of(st.none(), st.none(), strategy)


FIELDS: dict[str, Any] = {
    "tools": maybe(some(("read_*", "write_file", "run", "*", "nothing"))),
    "servers": maybe(some(("s1", "s*"))),
    "nodes": maybe(some(("n1", "n*"))),
    "kinds": maybe(some(("mcp", "a2a"))),
    "hints": maybe(st.sampled_from(({"destructive": True}, {"read_only": True}))),
    "risk": maybe(some(("low", "medium", "high"))),
    "args": maybe(
        st.dictionaries(
            st.sampled_from(("text", "to.0")),
            st.sampled_from(("a*", "re:prod", 3, ("x", 3), ArgTest(min=2), ArgTest(absent=True))),
            min_size=1,
            max_size=2,
        )
    ),
    "paths": maybe(some(("docs/**", "*.md", "**", "../**", "/etc/**"))),
    "command": maybe(some(("git *", "git push *", "git push origin agent/*", "ls", "pytest *", "* *"))),
}
conditions = st.builds(RuleConditions, **FIELDS)
decisions = st.sampled_from(("allow", "ask", "deny"))


def rule(name: str, decide: Any = decisions) -> Any:
    scopes = st.sampled_from((None, "none", "conversation"))
    return st.builds(
        PolicyRule, name=st.just(name), decide=decide, unless=maybe(conditions), remember=scopes, **FIELDS
    )


rules = st.integers(0, len(NAMES)).flatmap(lambda n: st.tuples(*(rule(name) for name in NAMES[:n])))
hidden = st.sampled_from(((), (".env*",)))
frozen = st.sampled_from(((), (".git/config",)))
scopes = st.sampled_from(("none", "conversation", "always"))
agents = st.builds(
    RuleSet,
    default=st.sampled_from(("hints", "ask", "deny")),
    hide=hidden,
    freeze=frozen,
    grants=scopes,
    rules=rules,
    ask_commands=st.sampled_from(((), ("rm",))),
)
nodes = st.builds(
    RuleSet,
    owner=st.just("n1"),
    default=st.sampled_from((None, None, "hints", "ask", "deny")),
    hide=hidden,
    freeze=frozen,
    grants=scopes,
    rules=rules,
)
grant_lists = st.lists(rule("g", st.just("allow")), max_size=3).map(
    lambda found: [Grant(id=f"g{i}", agent="a", rule=each) for i, each in enumerate(found)]
)
grants = grant_lists.map(Remembered)
hints = st.sampled_from((Hints(True, False), Hints(False, False), Hints(False, True, True)))
texts = st.sampled_from(("abc", "to prod", "x", "\ud800prod", ""))
values = st.one_of(texts, st.integers(0, 4), st.booleans(), st.none(), st.lists(texts, max_size=2))
calls = st.builds(
    PolicyCall,
    agent=st.just("a"),
    node=st.sampled_from(("n1", "n2")),
    kind=st.sampled_from(("mcp", "a2a")),
    server=st.sampled_from(("s1", "other", "")),
    tool=st.sampled_from(TOOLS),
    hints=hints,
    risk=st.sampled_from((None, "low", "high")),
    arguments=st.fixed_dictionaries(
        {}, optional={"text": values, "to": values, "path": st.one_of(st.sampled_from(PATHS), values)}
    ),
    paths=st.sampled_from(((), ("path",))),
    must_ask=st.booleans(),
    inline=st.booleans(),
)


def _part(text: str, wrapper: str, computed: bool) -> SimpleCommand:
    words: tuple[Word, ...] = tuple(text.split())
    if computed:
        words = (*words, Expansion("$X"))
    return SimpleCommand((wrapper, *words), words, (words,)) if wrapper else SimpleCommand(words, words)


parts = st.builds(_part, st.sampled_from(COMMANDS), st.sampled_from(("", "nice", "env")), st.booleans())
redirections = st.builds(
    Redirection, st.one_of(st.sampled_from(PATHS), st.just(Expansion("$Y"))), st.booleans()
)
parsed = st.one_of(
    st.none(),
    st.builds(
        ParsedCommand,
        st.lists(parts, max_size=3).map(tuple),
        st.lists(redirections, max_size=1).map(tuple),
        st.sampled_from(("", "", "it does not parse")),
    ),
)

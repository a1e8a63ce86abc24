"""Why an agent below asks and what it would change are shown at the top; what is remembered stays below."""

from typing import Any

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from mesh.a2a.client.foreign_policy import MAX_TEXT_BYTES, asked_why
from mesh.core.events import ApprovalRequired
from mesh.display.policies import reason_of
from tests.a2a.server.test_chain import Person, asking, chain, conversations, node, tool
from tests.worlds.edits import POLICY, Edits
from tests.worlds.live import Spoken
from tests.worlds.mesh import calls, says

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
KEYS = ["rule", "why", "parts", "remember", "suggested_rule", "suggested_rule_json", "preview"]


def write(path: str, content: str) -> Any:
    return calls(("write_file", {"path": path, "content": content}))


def under(*answers: Any) -> Any:
    """An agent whose tools are asked about by a policy, below one that has a policy of its own: everything
    else of it would ask."""
    top = Spoken(asking("b"), asking("b"), says("all is done"))
    return chain(tool("b"), lambda _: POLICY, models=[top, Spoken(*answers, says("written"))])


def shown(body: Any) -> Any:
    return body["result"]["approval"]


@pytest.fixture
def edits() -> Edits:
    return Edits(**{"a.txt": "old\n"})


def test_the_diff_of_an_agent_below_and_its_rule_are_shown_at_the_top(edits: Edits) -> None:
    with under(write("a.txt", "new\n")) as (top, below):
        edits.offered_by(below)
        asked = shown(Person(top).say("go"))
        assert (asked["remote_agent_name"], asked["rule"], asked["remember"]) == ("b", "edits", "always")
        assert asked["why"] == "Changes are looked at first."
        assert asked["preview"]["text"].endswith("-old\n+new\n")
        assert asked["preview"]["files"][0]["added"] == 1
        assert asked["suggested_rule"]["paths"] == ["/a.txt"]


def test_each_part_of_a_command_below_has_its_verdict_at_the_top(edits: Edits) -> None:
    with under(calls(("RunCommand", {"command": "git status -s; make"}))) as (top, below):
        edits.offered_by(below)
        asked = shown(Person(top).say("go"))
        assert asked["parts"] == [
            {"words": "git status -s", "verdict": "allowed", "rule": "look"},
            {"words": "make", "verdict": "ask", "rule": "commands"},
        ]


@pytest.mark.parametrize("is_node", [False, True], ids=["tool", "node"])
def test_what_is_cut_of_a_preview_from_below_is_shown_there_and_whoever_asks_here_is_told_so(
    is_node: bool,
) -> None:
    long = "".join(f"line {number} {'x' * 800}\n" for number in range(100))
    above, top = (node, Spoken(says(""))) if is_node else (tool("b"), Spoken(asking("b"), says("done")))
    edits = Edits(**{"a.txt": long})
    models = [top, Spoken(write("a.txt", "new\n"), says("written"))]
    with chain(above, lambda _: POLICY, models=models) as live:
        edits.offered_by(live[1])
        person = Person(live[0])
        body = person.say("go")
        asked, (task,) = shown(body), conversations(live[1])
        preview = asked["preview"]
        assert (preview["cut"], "next_offset" in preview, len(preview["text"])) == (True, False, 64 << 10)
        path = f"{live[0].url}/approvals/{asked['uuid']}/preview"
        assert httpx.get(path).json() == preview
        for offset in (1, 64 << 10):
            refused = httpx.get(path, params={"offset": offset}, timeout=20)
            assert refused.status_code == 404
            told = f"agent b; that agent shows the rest, in its task {task['id']}"
            assert refused.json()["error"].endswith(told)
        there = httpx.get(f"{live[1].url}/conversations/{task['id']}").json()["conversation"]
        own = there["pending_approval"]
        rest = f"{live[1].url}/approvals/{own['uuid']}/preview"
        more = httpx.get(rest, params={"offset": own["preview"]["next_offset"]}).json()
        assert (preview["text"] + more["text"]).endswith(f"-line 99 {'x' * 800}\n+new\n")
        person.decide(body, {"approved": True})
        assert edits.files["a.txt"] == "new\n"


@pytest.mark.parametrize("scope", ["conversation", "always"])
def test_what_is_remembered_is_remembered_by_the_agent_that_asked_and_by_no_other(
    edits: Edits, scope: str
) -> None:
    with under(write("a.txt", "new\n"), write("b.txt", "other\n"), write("c.md", "no\n")) as (top, below):
        edits.offered_by(below)
        person = Person(top)
        body = person.say("go")
        rule = {"tools": ["write_file"], "paths": ["*.txt"]}
        end = {"until": "2100-01-31T18:00:00+01:00"} if scope == "always" else {}
        body = person.decide(body, {"approved": True, "remember": scope, "rule": rule, **end})
        assert edits.files == {"a.txt": "new\n", "b.txt": "other\n"}
        assert shown(body)["tool_args"]["path"] == "c.md"
        kept = [[*live.run(live.mesh.grant_book.listed()).values()] for live in (top, below)]
        ends = [[grant.until for grant in grants] for grants in kept]
        assert ends == [[], ["2100-01-31T17:00:00.000Z"] if scope == "always" else []]


def test_what_may_not_be_remembered_below_may_not_be_at_the_top(edits: Edits) -> None:
    with under(calls(("RunCommand", {"command": "git push origin main"}))) as (top, below):
        edits.offered_by(below)
        person = Person(top)
        body = person.say("go")
        assert "remember" not in shown(body) and "suggested_rule" not in shown(body)
        person.decide(body, {"approved": True})
        assert edits.ran == ["git push origin main"]


def test_a_rule_of_the_top_approves_nothing_that_the_agent_below_asks(edits: Edits) -> None:
    own = Edits(**{"mine.txt": "old\n"})
    one = {"path": "mine.txt", "content": "new\n"}
    models = [
        Spoken(calls(("write_file", one)), says("done")),
        Spoken(write("a.txt", "new\n"), says("written")),
    ]
    with chain(_with_policy, lambda _: POLICY, models=models) as (top, below):
        own.offered_by(top), edits.offered_by(below)
        person = Person(top)
        body = person.say("go")
        waiting = {each["remote_agent_name"]: each for each in body["conversation"]["pending_approvals"]}
        decision = {"approved": True, "remember": "conversation", "rule": {"tools": ["write_file"]}}
        body = person.decide({"result": {"approval": waiting[None]}}, decision)
        assert own.files == {"mine.txt": "new\n"}
        assert shown(body)["uuid"] == waiting["b"]["uuid"]
        assert edits.files == {"a.txt": "old\n"}


def _with_policy(url: str) -> str:
    branches = [{"name": "own", "type": "llm"}, {"name": "b", "type": "a2a", "url": url}]
    tree = {"name": "coder", "type": "parallel", "approvals": "ask", "agents": branches}
    return f"{POLICY}{yaml.safe_dump({'agent': tree})}"


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_whatever_another_agent_says_is_bounded_and_can_be_journaled(one: dict[str, Any]) -> None:
    why = asked_why(one)
    assert why.remember == "none" or why.suggested_rule is not None
    assert len(why.rule) <= 256 and len(why.why) <= 2_000 and len(why.parts) <= 100
    assert why.preview is None or why.preview.next_offset is None


def test_a_preview_of_another_agent_is_cut_at_64_kib_and_says_so() -> None:
    found = asked_why({"preview": {"kind": "diff", "text": "é" * MAX_TEXT_BYTES, "next_offset": 5.0}}).preview
    assert found is not None
    assert (len(found.text.encode()), found.cut, found.next_offset) == (MAX_TEXT_BYTES, True, None)


def test_a_rule_of_another_agent_is_told_to_be_its() -> None:
    asked = ApprovalRequired(
        uuid="u", call_id="c", tool_name="t", tool_args={}, description="", rule="r", remote_agent_name="b"
    )
    assert reason_of(asked) == "agent b says that its rule r asks"

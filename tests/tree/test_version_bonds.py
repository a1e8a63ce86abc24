"""What of a node another version has to have as it was, and what may differ."""

from typing import Any

import pytest

from mesh.config.environment import Unchecked
from mesh.config.model import parse
from mesh.tree.version_bonds import bonds_of, broken_bonds
from tests.worlds.trees import config, llm, loop, parallel, sequential

SEARCH = llm("search", "find {task}", description="Finds facts.")
JUDGE = llm("judge", "x", description="Judges.")
PEER = {"name": "b", "url": "http://b.example"}
SERVER = {"name": "s", "command": "mcp-resources", "args": ["--db", "${DB:-./x.db}"]}
MAP = {"name": "m", "type": "map", "over": "items", "most": 9, "agents": [llm("item")]}


def told(before: str, after: str, path: str = "0") -> list[str]:
    """How a version differs in what is bound of a node."""
    old, new = (bonds_of(parse(text, "a.yaml", env)) for text, env in ((before, Unchecked({})), (after, {})))
    return [*broken_bonds(path, old[path], new.get(path))]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            {"tree": sequential(llm("a"), name="r")},
            {"tree": sequential(loop(llm("a")), name="r")},
            "what it consists of",
        ),
        (
            {"tree": llm("a", agents=["search"], spawn={"fork": True})},
            {"tree": llm("a", agents=["search"], spawn={})},
            "which agents it may start",
        ),
        (
            {"tree": llm("a", python=True, spawn={"fork": True})},
            {"tree": llm("a", agents=["search"], spawn={"fork": True})},
            "may run code",
        ),
        ({"tree": llm("a", validate=[{"agent": "judge"}])}, {"tree": llm("a")}, "what checks its answers"),
        (
            {"tree": llm("a", output_schema={"type": "object"})},
            {"tree": llm("a")},
            "the schema of its answers",
        ),
        ({"tree": MAP}, {"tree": {**MAP, "over": "others"}}, "what it goes through"),
        ({"tree": llm("a", tools=["x"])}, {"tree": llm("a")}, "which tools it may use"),
        ({"tree": llm("a", agents=["search"])}, {"tree": llm("a")}, "agent search"),
        (
            {"tree": llm("a"), "a2a": [PEER]},
            {"tree": llm("a"), "a2a": [{**PEER, "url": "http://c.example"}]},
            "other agent b",
        ),
        (
            {"tree": llm("a"), "mcp_servers": [SERVER]},
            {"tree": llm("a"), "mcp_servers": [{**SERVER, "args": []}]},
            "MCP server s",
        ),
        (
            {"tree": {"type": "a2a", **PEER}},
            {"tree": {"type": "a2a", **PEER, "url": "http://c.example"}},
            "hands its work to",
        ),
        ({"tree": MAP}, {"tree": {**MAP, "most": 8}}, "8 rounds or items at most, and had 9"),
        ({"tree": llm("a")}, {"tree": llm("b")}, "llm node a (0) is llm node b"),
        (
            {"tree": sequential(llm("a"), name="r")},
            {"tree": parallel(llm("a"), name="r")},
            "is parallel node r",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_bound_has_to_be_the_same(before: dict[str, Any], after: dict[str, Any], words: str) -> None:
    texts = []
    for each in (before, after):
        more = {key: value for key, value in each.items() if key != "tree"}
        texts.append(config(each["tree"], agents=[SEARCH, JUDGE], **more))
    assert any(words in line for line in told(*texts)), told(*texts)
    assert told(texts[0], texts[0]) == told(texts[1], texts[1]) == []


def test_how_an_agent_that_it_calls_is_described_is_bound() -> None:
    before = config(llm("a", agents=["search"]), agents=[SEARCH])
    (line,) = told(before, before.replace("Finds facts", "Pays invoices"))
    assert line == "llm node a (0) differs in agent search"


def test_a_node_that_is_not_there_is_told() -> None:
    before = config(sequential(llm("a"), llm("b"), name="r"))
    assert told(before, config(sequential(llm("a"), name="r")), "0.1") == ["llm node b (0.1) is not there"]


def test_prompts_models_budgets_bounds_and_places_may_differ_and_there_may_be_more() -> None:
    before = config(llm("a", "Be kind."), mcp_servers=[SERVER], a2a=[PEER])
    placed = {**SERVER, "timeout_s": 90, "start_timeout_s": 5, "replicas": 2, "labels": {"disk": "ssd"}}
    node = llm("a", "Be brief.", agents=["search"], budget={"max_llm_calls": 9}, timeout_s=5)
    more = [placed, {"name": "t", "command": "mcp-resources"}]
    after = config(
        node, agents=[SEARCH], mcp_servers=more, a2a=[{**PEER, "timeout_s": 5}], budget={"max_llm_calls": 9}
    )
    assert told(before, after) == []


def test_a_variable_that_is_not_set_any_more_stands_for_itself_and_a_default_for_its_value() -> None:
    gone = config(llm("a", "${GONE}"), mcp_servers=[SERVER])
    assert told(gone, config(llm("a"), mcp_servers=[SERVER])) == []

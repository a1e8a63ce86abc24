"""The tree of a config: where its nodes are, who asks, which placeholders nothing can have set."""

import re
from typing import Any

import pytest

from mesh.config.model import Config, parse
from mesh.core.places import Place
from mesh.tree.plan import PlannedNode, likely_mistakes, tree_of
from mesh.tree.template import BUILT_IN
from mesh.tree.turn import PassInput
from tests.worlds.trees import Node, config, llm, loop, parallel, sequential

ROOT_PASS = PassInput(conversation_id="", session_id="", digest="", turn=1, run=1, user_message="")


def read(tree: Node, **more: Any) -> Config:
    return parse(config(tree, **more), "agent.yaml", {})


def planned_nodes(tree: Node) -> dict[str, PlannedNode]:
    return {planned.node.name: planned for planned in tree_of(read(tree)).walk()}


def asking(tree: Node) -> set[str]:
    """The llm nodes that ask before they act."""
    models = [planned for planned in planned_nodes(tree).values() if planned.node.type == "llm"]
    return {planned.node.name for planned in models if planned.approvals.asks_in(ROOT_PASS)}


def unset(tree: Node, **more: Any) -> set[tuple[str, str]]:
    """The nodes and placeholders that are warned of."""
    found = [re.search(r"sets \{(\w+)\} before (\w+) ", hint) for hint in likely_mistakes(read(tree, **more))]
    assert all(found)
    return {(match[2], match[1]) for match in found if match}


# -- paths


def test_the_path_of_a_node_is_the_indices_of_agents_from_the_root() -> None:
    tree = sequential(llm("a"), parallel(llm("b"), loop(llm("c"), llm("d"))))
    paths = {name: planned.path for name, planned in planned_nodes(tree).items()}
    assert paths == {
        "steps": "0",
        "a": "0.0",
        "branches": "0.1",
        "b": "0.1.0",
        "rounds": "0.1.1",
        "c": "0.1.1.0",
        "d": "0.1.1.1",
    }
    assert all(Place(path).path == path for path in paths.values())


def test_a_tree_is_walked_from_the_root_down_and_in_the_order_of_the_file() -> None:
    tree = sequential(parallel(llm("a"), llm("b")), llm("c"))
    assert list(planned_nodes(tree)) == ["steps", "branches", "a", "b", "c"]


def test_an_agent_without_a_tree_is_one_llm_node_with_the_prompt_of_the_config() -> None:
    root = tree_of(parse("name: me\nprompt: Be {kind}.\n", "agent.yaml", {}))
    assert (root.path, root.node.name, root.prompt, root.approvals.asks_in(ROOT_PASS), root.children) == (
        "0",
        "me",
        "Be {kind}.",
        True,
        (),
    )


def test_an_llm_node_without_a_prompt_has_that_of_the_config_and_others_have_none() -> None:
    tree = sequential({"name": "bare", "type": "llm"}, llm("own", "mine"))
    found = {planned.node.name: planned.prompt for planned in tree_of(read(tree, prompt="shared")).walk()}
    assert found == {"steps": "", "bare": "shared", "own": "own: mine"}


@pytest.mark.parametrize("around", [sequential, parallel, loop])
def test_history_is_read_by_what_has_it_in_its_prompt_and_by_all_above(around: Any) -> None:
    found = planned_nodes(
        sequential(around(llm("in", "{history}"), llm("beside"), name="around"), llm("after"))
    )
    assert {name for name, planned in found.items() if planned.reads_history} == {"steps", "around", "in"}


# -- who asks


def test_without_parallel_or_loop_above_all_ask() -> None:
    assert asking(sequential(llm("a"), sequential(llm("b"), name="inner"))) == {"a", "b"}


@pytest.mark.parametrize("around", [parallel, loop])
def test_under_parallel_and_loop_nobody_asks_unless_they_say_so(around: Any) -> None:
    assert asking(sequential(around(llm("in"), name="around"), llm("after"))) == {"after"}
    assert asking(around(llm("in"), approvals="inline")) == set()
    assert asking(around(llm("in"), approvals="ask")) == {"in"}


@pytest.mark.parametrize("outer", ["ask", "inline", None])
@pytest.mark.parametrize("inner", ["ask", "inline", None])
def test_the_nearest_that_says_so_decides_however_deep_the_node_is(
    outer: str | None, inner: str | None
) -> None:
    def saying(approvals: str | None) -> Node:
        return {"approvals": approvals} if approvals else {}

    deep = sequential(sequential(llm("deep"), name="below"), name="in")
    tree = parallel(llm("beside"), loop(deep, **saying(inner)), **saying(outer))
    expected = {"beside"} if outer == "ask" else set()
    expected |= {"deep"} if (inner or outer) == "ask" else set()
    assert asking(tree) == expected


# -- placeholders that nothing sets


def test_what_an_earlier_node_of_a_sequence_wrote_is_set_and_what_a_later_one_writes_is_not() -> None:
    tree = sequential(llm("a", "{ka} {kb}", output_key="ka"), llm("b", "{ka} {kb}", output_key="kb"))
    assert unset(tree) == {("a", "ka"), ("a", "kb"), ("b", "kb")}


def test_branches_do_not_see_what_their_siblings_write_and_what_follows_sees_all() -> None:
    tree = sequential(
        llm("first", output_key="k1"),
        parallel(llm("a", "{k1} {kb}", output_key="ka"), llm("b", "{k1} {ka}", output_key="kb")),
        llm("last", "{k1} {ka} {kb}"),
    )
    assert unset(tree) == {("a", "kb"), ("b", "ka")}


def test_in_a_loop_every_key_of_the_loop_may_come_from_the_round_before() -> None:
    tree = sequential(
        llm("before", "{ka} {kb}"),
        loop(llm("a", "{kb} {later}", output_key="ka"), llm("b", "{ka}", output_key="kb")),
        llm("later", "{ka} {kb}", output_key="later"),
    )
    assert unset(tree) == {("before", "ka"), ("before", "kb"), ("a", "later")}


def test_branches_in_a_loop_see_one_another_from_the_second_round_on() -> None:
    branches = parallel(llm("a", "{kb}", output_key="ka"), llm("b", "{ka} {nobody}", output_key="kb"))
    assert unset(loop(branches)) == {("b", "nobody")}


def test_the_key_of_a_node_with_children_is_set_for_what_follows_it_and_not_inside() -> None:
    tree = sequential(sequential(llm("in", "{all}"), name="inner", output_key="all"), llm("after", "{all}"))
    assert unset(tree) == {("in", "all")}


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_is_always_there_is_not_warned_of(name: str) -> None:
    assert unset(sequential(llm("a", f"{{{name}}}"))) == set()


def test_braces_that_are_no_placeholder_are_not_warned_of() -> None:
    assert unset(sequential(llm("a", '{"json": 1} {} {1st} {a b} {x.y} { x }'))) == set()


def test_a_hint_names_the_file_the_line_and_the_key() -> None:
    text = (
        "agent:\n  name: top\n  type: sequential\n  agents:\n  - name: a\n    type: llm\n    prompt: '{x}'\n"
    )
    (hint,) = likely_mistakes(parse(text, "agent.yaml", {}))
    assert hint.startswith("agent.yaml:7: agent.agents[0].prompt: nothing sets {x} before a runs")
    assert all(name in hint for name in BUILT_IN)


def test_a_config_without_a_tree_has_no_hints() -> None:
    assert likely_mistakes(parse("prompt: 'As {JSON} in {braces}'\n", "agent.yaml", {})) == []


def test_of_an_agent_for_several_machines_a_server_that_may_keep_files_anywhere_is_a_likely_mistake() -> None:
    servers = """
mcp: {command: mcp-resources}
mcp_servers:
  - {name: placed, command: mcp-resources, labels: {disk: ssd}}
  - {name: bound, command: mcp-resources, resources: {files: 1}}
  - {name: remote, url: "http://tools.example/mcp"}
"""
    text = f"name: a\nllm: {{model: offline}}\n{servers}"
    (warning,) = likely_mistakes(parse(f"{text}store: postgres://db/x\n", "a.yaml", {}))
    assert warning.startswith("a.yaml:4: mcp: files that mcp writes stay on the machine")
    assert likely_mistakes(parse(text, "a.yaml", {})) == []

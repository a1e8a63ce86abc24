"""The keys of a map: what they accept, and what they say when they do not."""

import pytest

from mesh.config.model import Config, parse
from mesh.core.errors import ConfigError
from mesh.tree.placeholder_checks import placeholder_problems
from mesh.tree.plan import likely_mistakes, tree_of

_MAP = "agent:\n  name: each\n  type: map\n"
_CHILD = "  agents: [{name: one, type: llm}]\n"


def read(text: str) -> Config:
    return parse(text, "agent.yaml", {})


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    (found,) = caught.value.problems
    return found


def listed(prompt: str, *, more: str = "") -> str:
    """A list, a map over it, and a node after that."""
    return (
        "agent:\n  name: all\n  type: sequential\n  agents:\n"
        "  - {name: plan, type: llm, output_key: files}\n"
        f"  - name: each\n    type: map\n    over: files\n{more}"
        f"    agents: [{{name: one, type: llm, prompt: '{prompt}', output_key: found}}]\n"
        "  - {name: sum, type: llm, prompt: done}\n"
    )


def test_a_map_takes_up_to_a_hundred_items_and_fails_with_any_of_them() -> None:
    node = read(f"{_MAP}  over: files\n{_CHILD}").tree
    assert (node.over, node.most, node.on_error, node.approvals) == ("files", 100, "fail", None)


def test_it_may_take_more_than_a_thousand_and_go_on_without_some() -> None:
    node = read(f"{_MAP}  over: files\n  most: 5000\n  on_error: continue\n{_CHILD}").tree
    assert (node.most, node.on_error) == (5000, "continue")


@pytest.mark.parametrize(
    ("keys", "key", "words"),
    [
        (_CHILD, "agent.over", "is missing; a map node needs the key of the session state"),
        (f"  over: 'a b'\n{_CHILD}", "agent.over", "expected text that matches"),
        (f"  over: '{{files}}'\n{_CHILD}", "agent.over", "}$ (without the braces: files)"),
        (f"  over: files\n  most: 0\n{_CHILD}", "agent.most", "1 or more"),
        (f"  over: files\n  most: 10001\n{_CHILD}", "agent.most", "10000 or less"),
        ("  over: files\n", "agent.agents", "needs at least one child"),
        (
            "  over: files\n  agents: [{name: one, type: llm}, {name: two, type: llm}]",
            "agent.agents[1]",
            "a map node has one child",
        ),
        (f"  over: files\n  max_iterations: 3\n{_CHILD}", "agent.max_iterations", "expected type: loop"),
        ("  over: files\n  agents: [one]\n", "agent.agents[0]", "only an llm node calls agents"),
    ],
)
def test_a_map_that_cannot_run_is_refused_at_its_key(keys: str, key: str, words: str) -> None:
    found = problem(f"{_MAP}{keys}")
    assert f": {key}: " in found
    assert words in found


@pytest.mark.parametrize("key", ["over: files", "most: 3"])
def test_the_keys_of_a_map_go_with_no_other_node(key: str) -> None:
    found = problem(f"agent:\n  name: x\n  type: loop\n  {key}\n{_CHILD}")
    assert found.endswith("does not go with type: loop; expected type: map")


def test_destructive_tools_below_a_map_ask_unless_it_says_otherwise() -> None:
    def asks(more: str, around: str = "") -> bool | None:
        text = listed("x", more=more)
        if around:
            text = text.replace("type: sequential", f"type: loop\n  approvals: {around}")
        return tree_of(read(text)).children[1].children[0].approvals.asks

    assert asks("") is True
    assert asks("    approvals: inline\n") is False
    assert asks("", around="inline") is True


def test_the_item_and_its_number_are_placeholders_below_a_map_and_nowhere_else() -> None:
    assert likely_mistakes(read(listed("{item} {index} {item.path}"))) == []
    (warning,) = likely_mistakes(read(listed("x").replace("prompt: done", "prompt: '{item}'")))
    assert "nothing sets {item} before sum runs" in warning
    assert warning.endswith("only nodes below a map have it")


def test_what_items_write_is_not_there_after_the_map() -> None:
    (warning,) = likely_mistakes(read(listed("x").replace("prompt: done", "prompt: '{found}'")))
    assert "nothing sets {found} before sum runs" in warning


def test_a_list_that_nothing_writes_is_a_likely_mistake() -> None:
    (warning,) = likely_mistakes(read(listed("x").replace("output_key: files", "output_key: file")))
    assert warning.startswith("agent.yaml:8: agent.agents[1].over: nothing sets files before each runs")


@pytest.mark.parametrize(
    "more, budget, at_end",
    [
        ("", "", ""),  # nobody has said that it goes over a hundred
        ("    most: 64\n", "", ""),
        (
            "    most: 65\n",
            "",
            "a turn may start no more agents; expected budget: {max_agents: 65} or more at the",
        ),
        ("    most: 500\n", "budget: {max_agents: 500}\n", ""),
        ("    most: 500\n", "budget: {max_agents: 499}\n", "budget: {max_agents: 500} or more at the top of"),
        (
            "    most: 9\n    budget: {max_agents: 8}\n",
            "budget: {max_agents: 500}\n",
            "8 items, as each may start no more agents; expected budget: {max_agents: 9} or more in each",
        ),
    ],
)
def test_a_map_that_may_have_more_items_than_may_start_is_a_likely_mistake(
    more: str, budget: str, at_end: str
) -> None:
    found = likely_mistakes(read(listed("{item}", more=more) + budget))
    assert len(found) == bool(at_end)
    assert all(warning.startswith("agent.yaml:9: agent.agents[1].most: each fails with") for warning in found)
    assert all(at_end in warning for warning in found)


def test_a_map_in_an_item_may_start_what_an_item_may_start() -> None:
    inner = "{name: inner, type: map, over: item, most: 9, agents: [{name: one, type: llm}]}"
    (warning,) = likely_mistakes(read(f"agent: {{name: m, type: map, over: x, agents: [{inner}]}}"))[:1]
    assert "inner fails with more than 8 items, as inner may start no more agents" in warning


def test_what_an_item_is_is_not_known_before() -> None:
    schema = "{type: object, properties: {name: {type: string}}}"
    text = listed("{item.path}").replace("output_key: files", f"output_key: item, output_schema: {schema}")
    assert placeholder_problems(read(text)) == []


def test_two_maps_beside_each_other_may_write_the_same_keys_inside() -> None:
    one = "{name: m%d, type: map, over: x, agents: [{name: n%d, type: llm, output_key: k}]}"
    read(f"agent: {{name: p, type: parallel, agents: [{one % (1, 1)}, {one % (2, 2)}]}}")

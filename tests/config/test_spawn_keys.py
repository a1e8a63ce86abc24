"""The keys by which a node starts agents: what they accept, and what they say when they do not."""

import pytest

from mesh.config.cross_checks import SPAWN_TOOLS
from mesh.config.model import Config, Spawn, parse
from mesh.core.errors import ConfigError
from mesh.tree.plan import likely_mistakes

_LEAD = "agent:\n  name: lead\n  type: llm\n"


def read(text: str) -> Config:
    return parse(text, "agent.yaml", {})


def problem(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text)
    (found,) = caught.value.problems
    return found


def test_a_node_starts_its_agents_by_default_without_review_and_hears_of_all_of_them() -> None:
    config = read(f"agents: [{{name: web, type: llm}}]\n{_LEAD}  agents: [web]\n  spawn: {{}}")
    assert config.tree.spawn == Spawn(fork=False, review="none", unwaited="report")


def test_a_node_that_forks_needs_no_agents() -> None:
    spawn = read(f"{_LEAD}  spawn: {{fork: true, review: ask, unwaited: delete}}").tree.spawn
    assert spawn == Spawn(fork=True, review="ask", unwaited="delete")


def test_a_node_without_the_key_starts_nothing() -> None:
    assert read(_LEAD).tree.spawn is None


@pytest.mark.parametrize(
    ("spawn", "key", "words"),
    [
        ("{}", "agent.spawn", "starts nothing; expected agents: in this node, with those that it"),
        ("{fork: false}", "agent.spawn", "starts nothing"),
        ("", "agent.spawn", "is nothing; expected its keys"),
        ("true", "agent.spawn", "expected a mapping"),
        ("{fork: 1}", "agent.spawn.fork", "expected true or false"),
        ("{fork: true, review: always}", "agent.spawn.review", "expected 'none' or 'ask'"),
        ("{fork: true, unwaited: keep}", "agent.spawn.unwaited", "expected 'report' or 'delete'"),
        ("{fork: true, unwaitd: delete}", "agent.spawn.unwaitd", "did you mean unwaited?"),
    ],
)
def test_what_starts_nothing_or_is_misspelled_is_refused_at_its_line(
    spawn: str, key: str, words: str
) -> None:
    found = problem(f"{_LEAD}  spawn: {spawn}")
    assert found.startswith(f"agent.yaml:4: {key}: ")
    assert words in found


@pytest.mark.parametrize("kind", ["sequential", "parallel", "loop"])
def test_only_a_node_with_a_model_starts_agents(kind: str) -> None:
    found = problem(
        f"agent:\n  name: x\n  type: {kind}\n  spawn: {{fork: true}}\n  agents: [{{name: y, type: llm}}]"
    )
    assert found == f"agent.yaml:4: agent.spawn: does not go with type: {kind}; expected type: llm"


@pytest.mark.parametrize("name", SPAWN_TOOLS)
def test_an_agent_has_the_name_of_such_a_tool_only_where_no_node_that_spawns_calls_it(name: str) -> None:
    agents = f"agents: [{{name: {name}, type: llm}}]\n"
    assert read(f"{agents}{_LEAD}  agents: [{name}]").callable_agents.keys() == {name}
    found = problem(f"{agents}{_LEAD}  agents: [{name}]\n  spawn: {{fork: true}}")
    assert found.startswith("agent.yaml:5: agent.agents[0]: is the name of a tool that spawn gives")
    found = problem(f"{_LEAD}  spawn: {{fork: true}}\n  agents: [{{name: {name}, type: llm}}]")
    assert found.startswith("agent.yaml:5: agent.agents[0].name: is the name of a tool that spawn gives")


def test_no_agent_is_named_like_a_fork() -> None:
    found = problem(f"agents:\n- {{name: self, type: llm}}\n{_LEAD}")
    assert found.startswith("agent.yaml:2: agents[0].name: stands for an agent that forks itself")
    assert read("agent: {name: self, type: llm}").tree.name == "self"  # the root is nobody's agent


def test_a_check_warns_of_an_agent_that_needs_more_than_the_task_that_it_is_started_with() -> None:
    schema = "{type: object, properties: {amount: {type: number}}, required: [amount]}"
    agents = f"agents: [{{name: convert, type: llm, input_schema: {schema}}}]\n"
    (warning,) = likely_mistakes(read(f"{agents}{_LEAD}  agents: [convert]\n  spawn: {{}}"))
    assert warning.startswith("agent.yaml:5: agent.agents[0]: ")
    assert "convert" in warning
    assert "amount" in warning
    assert likely_mistakes(read(f"{agents}{_LEAD}  agents: [convert]")) == []


def test_how_many_agents_start_and_run_can_be_raised_beyond_a_thousand() -> None:
    config = read("budget: {max_agents: 5000}\nlimits: {agents_at_once: 2000}")
    assert (config.budget.max_agents, config.limits.agents_at_once) == (5000, 2000)
    assert read("").limits.agents_at_once == 32


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("budget:\n  max_agents: 0", "budget.max_agents"),
        ("budget:\n  max_agents: 1.5", "budget.max_agents"),
        ("limits:\n  agents_at_once: 0", "limits.agents_at_once"),
        ("limits:\n  agents_at_onec: 2", "limits.agents_at_onec"),
    ],
)
def test_a_bound_of_agents_that_makes_no_sense_is_refused_at_its_line(text: str, key: str) -> None:
    assert problem(text).startswith(f"agent.yaml:2: {key}: ")

"""``GET /tools``: all that the agent may call, and where each comes from."""

import httpx

from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, says

TREE = """
name: test
llm: {model: scripted}
a2a: [{name: billing, url: "http://user:pa55@billing.test/?key=s3cret", description: Knows all invoices.}]
agent:
  name: team
  type: sequential
  agents:
    - {name: asker, type: llm, can_ask_user: true, tools: [look]}
    - name: rounds
      type: loop
      agents:
        - name: refiner
          type: llm
          can_exit_loop: true
          a2a: [{name: payroll, url: "http://payroll.test", destructiveHint: true}]
    - {name: archive, type: a2a, url: "http://archive.test"}
"""


def listed(config: str) -> dict[str, dict[str, object]]:
    with LiveMesh(Spoken(says("done")), config) as live:
        answer = httpx.get(f"{live.url}/tools")
    assert answer.status_code == 200, answer.text
    assert "pa55" not in answer.text and "s3cret" not in answer.text
    tools = answer.json()["tools"]
    assert all(
        {"name", "description", "inputSchema", "destructiveHint", "server"} <= tool.keys() for tool in tools
    )
    return {tool["name"]: tool for tool in tools}


def test_tools_of_servers_other_agents_and_built_ins_are_listed_with_where_they_come_from() -> None:
    found = {
        name: (tool["source"], tool["server"], tool["nodes"], tool["destructiveHint"])
        for name, tool in listed(TREE).items()
    }
    assert found == {
        "add": ("mcp", "ledger", ["refiner"], True),
        "look": ("mcp", "ledger", ["asker", "refiner"], False),
        "a2a_billing": ("a2a", "billing", ["refiner"], False),
        "a2a_payroll": ("a2a", "payroll", ["refiner"], True),
        "a2a_archive": ("a2a", "archive", ["archive"], False),
        "ask_user": ("built_in", "", ["asker"], False),
        "exit_loop": ("built_in", "", ["refiner"], False),
    }


def test_other_agents_and_built_ins_are_shown_as_models_see_them() -> None:
    tools = listed(TREE)
    assert tools["a2a_billing"]["description"] == "Knows all invoices."
    assert tools["a2a_payroll"]["description"] == "Asks the agent payroll."
    for name, required in (("a2a_billing", ["message"]), ("ask_user", ["question"])):
        schema = tools[name]["inputSchema"]
        assert isinstance(schema, dict) and schema["required"] == required


CALLED = """
name: test
llm: {model: scripted}
agents:
  - {name: search, type: llm, description: Finds facts., tools: [], can_complete_task: true}
  - name: pair
    type: sequential
    destructiveHint: true
    input_schema: {type: object, properties: {topic: {type: string}}, required: [topic]}
    agents:
      - {name: draft, type: llm, model: other, agents: [search]}
      - {name: review, type: llm, can_return_to_user: true}
  - {name: unused, type: llm}
agent: {name: main, type: llm, agents: [search, pair]}
"""


def test_agents_that_are_called_and_the_tools_that_end_them_are_listed_with_their_callers() -> None:
    found = {
        name: (tool["source"], tool["nodes"], tool["destructiveHint"])
        for name, tool in listed(CALLED).items()
        if tool["source"] != "mcp"
    }
    assert found == {
        "search": ("agent", ["main", "draft"], False),
        "pair": ("agent", ["main"], True),
        "complete_task": ("built_in", ["search"], False),
        "return_to_user": ("built_in", ["review"], False),
    }


def test_the_agents_of_a_config_are_listed_with_what_they_take_and_who_may_call_them() -> None:
    with LiveMesh(Spoken(says("done")), CALLED) as live:
        root, search, pair, unused = httpx.get(f"{live.url}/agents").json()["agents"]
    assert root == {"name": "main", "type": "llm", "path": "0", "model": "scripted"}
    assert search.pop("input_schema")["required"] == ["task"]
    assert search == {
        "name": "search",
        "type": "llm",
        "path": "search",
        "description": "Finds facts.",
        "model": "scripted",
        "callers": ["main", "draft"],
    }
    assert (pair["type"], pair["input_schema"]["required"], pair["callers"]) == (
        "sequential",
        ["topic"],
        ["main"],
    )
    assert "model" not in pair and "callers" not in unused


def test_the_trees_of_called_agents_stand_beside_the_tree() -> None:
    with LiveMesh(Spoken(says("done")), CALLED) as live:
        body = httpx.get(f"{live.url}/tree").json()
    main = {"name": "main", "type": "llm", "path": "0", "model": "scripted", "calls": ["search", "pair"]}
    assert body["tree"] == main
    assert [agent["path"] for agent in body["agents"]] == ["search", "pair", "unused"]
    assert [node["path"] for node in body["agents"][1]["agents"]] == ["pair.0", "pair.1"]


def test_an_agent_with_nothing_but_servers_lists_their_tools() -> None:
    assert {name: tool["nodes"] for name, tool in listed(SIMPLE).items()} == {
        "add": ["test"],
        "look": ["test"],
    }


def test_the_card_advertises_no_built_ins() -> None:
    with LiveMesh(Spoken(says("done")), TREE) as live:
        card = httpx.get(f"{live.url}/.well-known/agent-card.json").json()
    assert {skill["id"] for skill in card["skills"]} == {
        "add",
        "look",
        "a2a_billing",
        "a2a_payroll",
        "a2a_archive",
    }

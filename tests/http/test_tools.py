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

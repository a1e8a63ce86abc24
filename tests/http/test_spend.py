"""What a conversation has spent and what its agents did, as REST shows both."""

import json
from typing import Any

import httpx

from mesh.core.events import LlmCall, ToolCall, Usage
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import calls
from tests.worlds.trees import ByNode, config, llm

USAGE = Usage(input=1000, output=100)
PRICES = {"scripted": {"input": 3, "output": 15}}
TREE = config(
    llm("main", agents=["search"]),
    agents=[llm("search")],
    llm={"model": "scripted", "prices": PRICES},
)


def dear(text: str = "", *asked: ToolCall) -> LlmCall:
    return LlmCall(model="scripted", text=text, tool_calls=asked, usage=USAGE)


def ask(*tasks: str) -> LlmCall:
    return dear("", *calls(*(("search", {"task": task}) for task in tasks)).tool_calls)


def start(*agents: str) -> LlmCall:
    return dear(
        "", *calls(("spawn", {"agents": [{"agent": one, "task": "go"} for one in agents]})).tool_calls
    )


def shown(model: ByNode, *paths: str) -> tuple[dict[str, Any], list[httpx.Response]]:
    """A conversation with one turn, and the answers to these requests about it."""
    with LiveMesh(model, TREE) as live, httpx.Client(base_url=live.url) as http:
        body = http.post("/conversations", json={"message": "go"}).json()
        conversation = f"/conversations/{body['conversation']['id']}"
        return body["conversation"], [http.get(f"{conversation}{path}") for path in paths]


def test_the_sums_by_agent_and_by_model_are_those_of_the_conversation() -> None:
    model = ByNode(main=[ask("cats", "dogs"), dear("done")], search=[dear("two"), dear("three")])
    conversation, (answer,) = shown(model, "/spend")
    report = answer.json()
    assert report["spent"] == conversation["spent"]
    assert (report["spent"]["calls"], report["spent"]["cost_usd"], report["spent"]["runs"]) == (4, 0.018, 3)
    by_agent = {tuple(each["agent_path"]): (each["calls"], each["cost_usd"]) for each in report["by_agent"]}
    assert by_agent == {("main",): (2, 0.009), ("main", "search"): (2, 0.009)}
    assert [(each["model"], each["runs"]) for each in report["by_model"]] == [("scripted", 3)]


def test_the_actions_are_json_lines_whose_costs_add_up_to_that_sum() -> None:
    model = ByNode(main=[ask("cats"), dear("done")], search=[dear("two")])
    conversation, (answer,) = shown(model, "/actions")
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["x-session-id"] == conversation["session_id"]
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [(line["agentName"], line["action"], line["turn"], line["cost"]) for line in lines] == [
        ("main", "agent_start", 0, 0),
        ("main", "llm_call", 1, 450),
        ("main", "agent_call", 1, 0),
        ("search", "agent_start", 0, 0),
        ("search", "llm_call", 1, 450),
        ("search", "agent_complete", 1, 0),
        ("main", "llm_call", 2, 450),
        ("main", "agent_complete", 2, 0),
    ]
    spent = conversation["spent"]["cost_usd"]
    assert round(sum(line["costUsd"] for line in lines), 9) == spent == 0.0135


def test_what_the_newest_turn_has_used_of_its_limits_says_which_turn_and_up_to_which_event() -> None:
    limited = config(llm("main"), llm={"model": "scripted"}, budget={"max_llm_calls": 5})
    with LiveMesh(ByNode(main=[dear("one"), dear("two")]), limited) as live, httpx.Client() as http:
        body = http.post(f"{live.url}/conversations", json={"message": "go"}).json()
        conversation = f"{live.url}/conversations/{body['conversation']['id']}"
        http.post(f"{conversation}/messages", json={"message": "on"})
        turn = http.get(f"{conversation}/spend").json()["turn"]
        journal = http.get(f"{conversation}/log").text.splitlines()
    assert (turn["number"], turn["seq"]) == (2, len(journal))
    assert (turn["limits"], turn["spent"]) == ({"max_llm_calls": 5}, {"max_llm_calls": 1})


def test_each_run_with_a_budget_of_its_own_says_what_it_has_used() -> None:
    limited = config(
        llm("main", agents=["search"]),
        agents=[llm("search", budget={"max_llm_calls": 3})],
        llm={"model": "scripted"},
    )
    model = ByNode(main=[ask("cats", "dogs"), dear("done")], search=[dear("two"), dear("three")])
    with LiveMesh(model, limited) as live, httpx.Client() as http:
        body = http.post(f"{live.url}/conversations", json={"message": "go"}).json()
        turn = http.get(f"{live.url}/conversations/{body['conversation']['id']}/spend").json()["turn"]
    assert (turn["place"], turn["limits"]) == ("0", {})
    assert [(run["place"], run["limits"], run["spent"]) for run in turn["runs"]] == [
        (place, {"max_llm_calls": 3}, {"max_llm_calls": 1}) for place in ("0.search@0-0", "0.search@0-1")
    ]


def test_the_agents_that_were_started_count_in_the_limits_of_each_run_around_them() -> None:
    lead = llm("lead", agents=["search"], spawn={}, budget={"max_agents": 3})
    limited = config(
        llm("main", agents=["lead", "search"], spawn={}),
        agents=[lead, llm("search")],
        llm={"model": "scripted"},
        budget={"max_agents": 20},
    )
    model = ByNode(
        main=[start("lead", "search"), dear("", *calls(("wait", {})).tool_calls), dear("done")],
        lead=[start("search", "search"), dear("", *calls(("wait", {})).tool_calls), dear("found")],
    )
    with LiveMesh(model, limited) as live, httpx.Client(base_url=live.url) as http:
        body = http.post("/conversations", json={"message": "go"}).json()
        conversation = f"/conversations/{body['conversation']['id']}"
        turn = http.get(f"{conversation}/spend").json()["turn"]
    assert (turn["limits"], turn["spent"]) == ({"max_agents": 20}, {"max_agents": 4})
    assert [(run["place"], run["limits"], run["spent"]) for run in turn["runs"]] == [
        ("0.lead@0-0-0", {"max_agents": 3}, {"max_agents": 2})
    ]


def test_what_the_start_of_an_agent_allows_it_is_shown_as_its_limit() -> None:
    one = {"agent": "search", "task": "go", "budget": {"max_llm_calls": 2, "max_agents": 1}}
    model = ByNode(main=[dear("", *calls(("spawn", {"agents": [one]})).tool_calls), dear("done")])
    limited = config(
        llm("main", agents=["search"], spawn={}), agents=[llm("search", budget={"max_llm_calls": 9})]
    )
    with LiveMesh(model, limited) as live, httpx.Client(base_url=live.url) as http:
        body = http.post("/conversations", json={"message": "go"}).json()
        turn = http.get(f"/conversations/{body['conversation']['id']}/spend").json()["turn"]
    (run,) = turn["runs"]
    assert (turn["limits"], run["place"]) == ({}, "0.search@0-0-0")
    assert run["limits"] == {"max_llm_calls": 2, "max_agents": 1}
    assert run["spent"] == {"max_llm_calls": 1, "max_agents": 0}


def test_a_conversation_that_is_not_there_has_neither() -> None:
    _, answers = shown(ByNode(main=[dear("done")]), "x/spend", "x/actions")
    assert [answer.status_code for answer in answers] == [404, 404]

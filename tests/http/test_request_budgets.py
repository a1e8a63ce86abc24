"""The budget of a request tightens that of the agent, and nothing else."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from mesh.core.events import LlmReserved, Usage, UserMessage
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.trees import config, llm, sequential

WITHIN_S = 30.0
PRICES = {"scripted": {"input": 1.0, "output": 2.0}}
BUDGET = {"max_cost_usd": 0.5, "max_llm_calls": 4}


def paid(**more: Any) -> str:
    tree = sequential(llm("main"), budget={"max_llm_calls": 8, "max_total_tokens": 5000})
    return config(tree, **{"llm": {"model": "scripted", "prices": PRICES}, "budget": BUDGET, **more})


@pytest.fixture
def live() -> Iterator[LiveMesh]:
    answers = [*(calls(("look", {})) for _ in range(3)), says("done"), says("again")]
    # A model that does not say what it used is taken to have used all that was reserved.
    used = [msgspec.structs.replace(answer, usage=Usage(50, 10)) for answer in answers]
    with LiveMesh(Spoken(*used), paid()) as mesh:
        yield mesh


@pytest.fixture
def http(live: LiveMesh) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=WITHIN_S) as client:
        yield client


def post(http: httpx.Client, budget: Any, path: str = "/conversations") -> httpx.Response:
    return http.post(path, json={"message": "go", "budget": budget})


def test_the_limits_of_a_request_hold_for_its_turn_and_not_for_the_next(
    http: httpx.Client, live: LiveMesh
) -> None:
    body = post(http, {"max_llm_calls": 2, "max_cost_usd": 0.25}).json()
    cid = body["conversation"]["id"]
    assert http.post(f"/conversations/{cid}/messages", json={"message": "go"}).status_code == 200
    journal = live.run(live.mesh.journal.read(cid))
    first, second = (event for event in journal if isinstance(event, UserMessage))
    assert (first.budget, second.budget) == ({"max_llm_calls": 2, "max_cost_usd": 0.25}, {})
    reserved = [event for event in journal if isinstance(event, LlmReserved)]
    assert [(event.turn, event.forced) for event in reserved] == [
        (1, ""),
        (1, "max_llm_calls"),
        (2, ""),
        (2, ""),
    ]


def test_an_answer_that_a_limit_forced_says_so_and_no_other_does(http: httpx.Client) -> None:
    body = post(http, {"max_llm_calls": 1}).json()
    assert body["result"]["forced"] == body["conversation"]["turn"]["forced"] == "max_llm_calls"
    cid = body["conversation"]["id"]
    assert http.get(f"/conversations/{cid}").json()["conversation"]["turn"]["forced"] == "max_llm_calls"
    body = http.post(f"/conversations/{cid}/messages", json={"message": "go on"}).json()
    assert "forced" not in body["conversation"]["turn"]
    assert "forced" not in body["result"]


@pytest.mark.parametrize("path", ["conversations/{}/messages", "api/sessions/{}/chat"])
def test_a_later_message_may_have_a_budget_too(http: httpx.Client, live: LiveMesh, path: str) -> None:
    cid = http.post("/conversations").json()["conversation"]["id"]
    assert post(http, {"max_time_s": 60}, path.format(cid)).is_success
    journal = live.run(live.mesh.journal.read(cid))
    assert next(e for e in journal if isinstance(e, UserMessage)).budget == {"max_time_s": 60}
    assert post(http, {"max_time_s": -1}, path.format(cid)).status_code == 400


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (None, "must be an object"),
        (5, "must be an object"),
        ([], "must be an object"),
        ("max_cost_usd", "must be an object"),
        ({"max_cost_usd": None}, "must be an object of limits"),
        ({"max_cost_usd": "0.1"}, '"budget.max_cost_usd" is text; expected a number'),
        ({"max_cost_usd": True}, '"budget.max_cost_usd" is true or false; expected a number'),
        ({"max_cost_usd": 0}, '"budget.max_cost_usd" is too small; expected more than 0'),
        ({"max_cost_usd": -1}, '"budget.max_cost_usd" is too small'),
        ({"max_total_tokens": 0}, '"budget.max_total_tokens" is too small; expected 1 or more'),
        ({"max_total_tokens": 1.5}, '"budget.max_total_tokens" is a number with a fraction'),
        ({"max_agents": 0}, '"budget.max_agents" is too small; expected 1 or more'),
        ({"max_llm_calls": [1]}, '"budget.max_llm_calls" is a list'),
        ({"max_time_s": {}}, '"budget.max_time_s" is a mapping'),
        ({"max_time_s": 1e300}, '"budget.max_time_s" is too large'),
        ({"max_costs_usd": 1}, '"budget.max_costs_usd" unknown key; did you mean max_cost_usd?'),
        ({"on_limit": "fail"}, '"budget.on_limit" unknown key'),
        ({"max_conversation_cost_usd": 1}, "unknown key"),
        ({"y" * 5000: 1}, "unknown key"),
    ],
)
def test_a_budget_that_is_not_understood_is_refused_and_begins_nothing(
    http: httpx.Client, budget: Any, why: str
) -> None:
    refused = post(http, budget)
    assert refused.status_code == 400, refused.text
    assert why in refused.json()["error"]
    assert len(refused.text) < 1000
    assert http.get("/conversations").json()["summary"]["total"] == 0


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_limit_that_json_does_not_have_is_refused(http: httpx.Client, number: str) -> None:
    body = f'{{"message": "go", "budget": {{"max_cost_usd": {number}}}}}'
    refused = http.post("/conversations", content=body)
    assert refused.status_code == 400, refused.text


@pytest.mark.parametrize(
    ("budget", "both"),
    [
        ({"max_cost_usd": 0.51}, ("max_cost_usd", "0.51", "0.5 ")),
        ({"max_llm_calls": 5}, ("max_llm_calls", "5", "4 ")),  # the root node's own would be 8
        ({"max_total_tokens": 5001}, ("max_total_tokens", "5001", "5000 ")),
        ({"max_agents": 65}, ("max_agents", "65", "64 ")),  # the default of a turn
    ],
)
def test_a_limit_over_that_of_the_agent_is_refused_and_both_are_named(
    http: httpx.Client, budget: dict[str, float], both: tuple[str, ...]
) -> None:
    refused = post(http, budget)
    assert refused.status_code == 400
    assert all(each in refused.json()["error"] for each in both), refused.text
    (key,) = budget
    assert post(http, {key: budget[key] - (0.01 if key == "max_cost_usd" else 1)}).status_code == 201


def test_a_budget_without_a_message_is_refused(http: httpx.Client) -> None:
    refused = http.post("/conversations", json={"budget": {"max_llm_calls": 1}})
    assert refused.status_code == 400
    assert '"message" is missing' in refused.json()["error"]


def test_a_money_limit_needs_a_price_of_every_model_that_the_turn_may_call() -> None:
    llm_options = {"model": "scripted", "prices": PRICES}
    agents = [llm("search", model="ollama:own"), llm("unused", model="ollama:other")]
    tree = llm("main", agents=["search"])
    text = config(tree, agents=agents, llm=llm_options)
    with LiveMesh(Spoken(says("done")), text) as mesh, httpx.Client(base_url=mesh.url) as http:
        refused = post(http, {"max_cost_usd": 1})
        assert refused.status_code == 400
        assert "ollama:own" in refused.text
        assert "llm.prices" in refused.text
        assert "ollama:other" not in refused.text
        assert post(http, {"max_llm_calls": 3}).status_code == 201


def test_one_key_with_another_budget_is_another_request(http: httpx.Client) -> None:
    key = {"Idempotency-Key": "k1"}
    body = {"message": "go", "budget": {"max_llm_calls": 2}}
    first = http.post("/conversations", json=body, headers=key)
    assert first.status_code == 201
    assert http.post("/conversations", json=body, headers=key).json() == first.json()
    other = {"message": "go", "budget": {"max_llm_calls": 3}}
    assert http.post("/conversations", json=other, headers=key).status_code == 409
    assert http.post("/conversations", json={"message": "go"}, headers=key).status_code == 409

"""REST on the real stack: edge, gateway, keeper, node, a model over HTTP, an MCP server in a subprocess."""

import asyncio
import json
import re
import socket
import time
import uuid
from collections import Counter

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster.rest import Body, contents, created, problem, shown, until
from tests.cluster.test_lifecycle import listening
from tests.cluster.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


# -- what is there


def test_health_and_ready_answer(api: httpx.Client) -> None:
    assert api.get("/health").json() == {"status": "ok"}
    assert api.get("/ready").status_code == 200


def test_tools_have_their_schema_hint_and_server(api: httpx.Client) -> None:
    tools = {tool["name"]: tool for tool in api.get("/tools").json()["tools"]}
    assert {name: tool["destructiveHint"] for name, tool in tools.items()} == {
        "ledger_append": True,
        "ledger_read": False,
    }
    assert tools["ledger_append"]["inputSchema"]["required"] == ["line"]
    assert {tool["server"] for tool in tools.values()} == {"mcp"}


def test_what_is_measured_is_also_at_rays_own_port_of_metrics(world: World, api: httpx.Client) -> None:
    created(api, message="hello")
    ports = [port for name, _, port in listening(world.mesh) if name.startswith("ray::DashboardAgent")]

    def measured() -> dict[str, float]:
        families = [each for port in ports for each in text_string_to_metric_families(scraped(port))]
        ours = [s for each in families if each.name.startswith("ray_mesh") for s in each.samples]
        return {each.name: each.value for each in ours if each.labels["gen_ai_agent_name"] == "ledger-agent"}

    # Ray collects them every ten seconds.
    found = until(lambda: (m := measured()).get("ray_mesh_turns_total", 0) and m.get("ray_mesh_shards") and m)
    assert found["ray_mesh_turn_duration_seconds_count"] >= 1
    assert found["ray_mesh_keeper_start_time_seconds"] > time.time() - 3600


def scraped(port: int) -> str:
    """The metrics at a port of Ray's agent, none if it has another purpose."""
    try:
        page = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30)
    except httpx.RemoteProtocolError:
        return ""
    return page.text if page.status_code == 200 else ""


def test_the_docs_load_everything_from_this_server(api: httpx.Client) -> None:
    page = api.get("/docs")
    assert page.status_code == 200
    assert re.findall(r"""(?:https?:)?//[^\s"'<>]+""", page.text) == []
    assets = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(assets) >= 2
    for asset in assets:
        found = api.get(asset)
        assert (found.status_code, len(found.content) > 0) == (200, True), asset


def test_the_openapi_document_has_every_route_with_summary_answers_and_examples(api: httpx.Client) -> None:
    document = api.get("/openapi.json").json()
    routes = {(m, path): spec for path, methods in document["paths"].items() for m, spec in methods.items()}
    assert set(routes) == {
        ("get", "/health"),
        ("get", "/ready"),
        ("get", "/tools"),
        ("get", "/agents"),
        ("post", "/conversations"),
        ("get", "/conversations"),
        ("get", "/conversations/{conversation_id}"),
        ("delete", "/conversations/{conversation_id}"),
        ("post", "/conversations/{conversation_id}/messages"),
        ("post", "/conversations/{conversation_id}/complete"),
        ("post", "/conversations/{conversation_id}/cancel"),
        ("post", "/conversations/{conversation_id}/version"),
        ("get", "/versions"),
        ("get", "/conversations/{conversation_id}/events"),
        ("get", "/conversations/{conversation_id}/log"),
        ("get", "/conversations/{conversation_id}/spend"),
        ("get", "/conversations/{conversation_id}/actions"),
        ("post", "/conversations/import"),
        ("post", "/approvals/{uuid}"),
        ("get", "/approvals/{uuid}/preview"),
        ("get", "/agent/tree"),
        ("get", "/agent/{agent_id}"),
        ("get", "/agent/{agent_id}/events"),
        ("post", "/agent/{agent_id}/intervene"),
        ("post", "/agent/{agent_id}/spawn"),
        ("get", "/agent/stream"),
        ("post", "/agent/stream"),
        ("get", "/metrics"),
        ("get", "/status"),
        ("get", "/policy/grants"),
        ("delete", "/policy/grants/{grant_id}"),
        ("get", "/events"),
        ("get", "/tree"),
        ("post", "/api/sessions"),
        ("get", "/api/sessions/{session_id}/stream"),
        ("post", "/api/sessions/{session_id}/chat"),
        ("post", "/api/sessions/{session_id}/approvals/{call_id}"),
        ("post", "/api/sessions/{session_id}/resume"),
    }
    for route, spec in routes.items():
        assert spec["summary"], route
        good = [s for s in spec["responses"] if s.startswith("2")]
        assert good, route
        for status in good:
            content = spec["responses"][status]["content"]
            for media_type in content:
                assert content[media_type]["schema"], route
                assert media_type != "application/json" or content[media_type]["examples"], route
    for name in re.findall(r'"\$ref": ?"#/components/schemas/([^"]+)"', json.dumps(document)):
        assert name in document["components"]["schemas"]


# -- conversations


def test_a_conversation_without_a_message_waits_for_one(api: httpx.Client) -> None:
    body = created(api)
    assert "result" not in body
    conversation = body["conversation"]
    assert uuid.UUID(conversation["id"]).version == 4
    assert conversation["status"] == "active"
    assert contents(conversation, "system") == ["You keep a ledger."]


def test_a_message_is_answered_and_stays(api: httpx.Client) -> None:
    body = created(api, "Grüß Gott 🌍")
    assert body["result"] == {
        "response": "echo: Grüß Gott 🌍",
        "waiting_approval": False,
        "auth_required": False,
    }
    conversation_id = body["conversation"]["id"]
    response = api.post(f"/conversations/{conversation_id}/messages", json={"message": "and again"})
    assert response.status_code == 200
    assert shown(api, conversation_id) == response.json()["conversation"]
    assert contents(shown(api, conversation_id), "assistant") == ["echo: Grüß Gott 🌍", "echo: and again"]


def test_a_read_only_tool_runs_at_once(api: httpx.Client) -> None:
    body = created(api, "read")
    tool = next(m for m in body["conversation"]["messages"] if m["role"] == "tool")
    assert tool["tool_call"]["name"] == "ledger_read"
    assert body["result"]["response"].startswith('done: {"lines"')


def test_messages_to_one_conversation_are_answered_in_their_order(api: httpx.Client) -> None:
    path = f"/conversations/{created(api)['conversation']['id']}"
    for i in range(5):
        sent = api.post(
            f"{path}/messages", json={"message": f"number {i}"}, headers={"Prefer": "respond-async"}
        )
        assert sent.status_code == 202
    conversation_id = path.rpartition("/")[2]
    until(lambda: len(contents(shown(api, conversation_id), "assistant")) == 5)
    assert contents(shown(api, conversation_id), "assistant") == [f"echo: number {i}" for i in range(5)]


def test_a_completed_conversation_takes_no_more_messages(api: httpx.Client) -> None:
    path = f"/conversations/{created(api, 'hello')['conversation']['id']}"
    assert api.post(f"{path}/complete").json()["conversation"]["status"] == "completed"
    assert api.post(f"{path}/complete").status_code == 200
    assert "completed" in problem(api.post(f"{path}/messages", json={"message": "more"}), 409)


# -- approvals


@pytest.mark.parametrize(
    "decision",
    [
        {"approved": True},
        {"action": "approve"},
        {"answer": "yes"},
        {"answer": "Y"},
        {"answer": " OK "},
        {"answer": "Confirm"},
        {"answer": "TRUE"},
        {"answer": "approved"},
    ],
)
def test_an_approval_in_any_form_runs_the_tool_once(api: httpx.Client, world: World, decision: Body) -> None:
    line = str(uuid.uuid4())
    asked = created(api, f"append {line}")["result"]["approval"]
    assert asked["tool_args"] == {"line": line}
    assert all(word in asked["description"] for word in ("ledger_append", "mcp", line))
    response = api.post(f"/approvals/{asked['uuid']}", json=decision)
    assert response.status_code == 200
    assert response.json()["result"]["response"] == f'done: {{"appended": "{line}"}}'
    assert world.lines()[line] == 1


@pytest.mark.parametrize("decision", [{"approved": False}, {"action": "reject"}, {"answer": "no"}])
def test_a_rejection_in_any_form_runs_nothing(api: httpx.Client, world: World, decision: Body) -> None:
    line = str(uuid.uuid4())
    asked = created(api, f"append {line}")["result"]["approval"]
    body = api.post(f"/approvals/{asked['uuid']}", json=decision).json()
    assert body["result"]["response"] == "Operation cancelled by user."
    assert body["conversation"]["status"] == "active"
    assert world.lines()[line] == 0


@pytest.mark.parametrize(
    "unclear",
    [
        {},
        {"approved": "true"},
        {"approved": 1},
        {"approved": None},
        {"action": "yes, do it"},
        {"action": True},
        {"answer": "maybe"},
        {"answer": "no yes"},
        {"answer": ""},
        {"answer": ["yes"]},
        {"approved": True, "action": "reject"},
        {"action": "retry"},
        {"decision": "approve"},
    ],
)
def test_what_is_unclear_is_no_approval(api: httpx.Client, world: World, unclear: Body) -> None:
    line = str(uuid.uuid4())
    body = created(api, f"append {line}")
    asked = body["result"]["approval"]
    problem(api.post(f"/approvals/{asked['uuid']}", json=unclear), 400)
    assert shown(api, body["conversation"]["id"])["status"] == "waiting_approval"
    assert world.lines()[line] == 0


def test_two_calls_of_one_answer_are_asked_for_one_after_the_other(api: httpx.Client, world: World) -> None:
    a, b = str(uuid.uuid4()), str(uuid.uuid4())
    first = created(api, f"append {a}, {b}")["result"]["approval"]
    second = api.post(f"/approvals/{first['uuid']}", json={"approved": True}).json()["result"]["approval"]
    assert second["tool_args"] == {"line": b}
    assert (world.lines()[a], world.lines()[b]) == (1, 0)
    api.post(f"/approvals/{second['uuid']}", json={"approved": True})
    assert (world.lines()[a], world.lines()[b]) == (1, 1)


def test_a_message_while_an_approval_waits_is_not_processed(api: httpx.Client) -> None:
    body = created(api, f"append {uuid.uuid4()}")
    path = f"/conversations/{body['conversation']['id']}"
    again = api.post(f"{path}/messages", json={"message": "hurry up"})
    assert again.status_code == 200
    assert again.json()["result"]["waiting_approval"] is True
    assert again.json()["result"]["approval"] == body["result"]["approval"]
    assert "hurry up" not in contents(again.json()["conversation"], "user")
    assert "waits for approval" in problem(api.post(f"{path}/complete"), 409)


def test_a_late_decision_is_told_what_was_decided_by_whom_and_when(api: httpx.Client) -> None:
    asked = created(api, f"append {uuid.uuid4()}")["result"]["approval"]
    api.post(f"/approvals/{asked['uuid']}", json={"approved": True}, headers={"X-User": "ann"})
    said = problem(api.post(f"/approvals/{asked['uuid']}", json={"approved": False}), 409)
    assert re.search(r"approve by ann at 20\d\d-", said)


def test_of_a_hundred_racing_decisions_one_wins(api: httpx.Client, world: World) -> None:
    line = str(uuid.uuid4())
    asked = created(api, f"append {line}")["result"]["approval"]

    async def race() -> list[tuple[bool, int]]:
        async with httpx.AsyncClient(base_url=world.mesh.url, timeout=30) as client:

            async def decide(is_yes: bool) -> tuple[bool, int]:
                response = await client.post(f"/approvals/{asked['uuid']}", json={"approved": is_yes})
                return is_yes, response.status_code

            return await asyncio.gather(*(decide(i % 2 == 0) for i in range(100)))

    outcomes = asyncio.run(race())
    assert Counter(status for _, status in outcomes) == {200: 1, 409: 99}
    was_approved = (True, 200) in outcomes
    assert world.lines()[line] == (1 if was_approved else 0)


# -- headers


def test_the_session_id_is_taken_stored_and_returned(api: httpx.Client) -> None:
    response = api.post("/conversations", json={}, headers={"X-Session-ID": "my-session.1"})
    assert response.headers["x-session-id"] == "my-session.1"
    conversation_id = response.json()["conversation"]["id"]
    assert shown(api, conversation_id)["session_id"] == "my-session.1"
    assert api.get(f"/conversations/{conversation_id}").headers["x-session-id"] == "my-session.1"


def test_a_session_id_is_made_of_eight_hex_digits_where_none_came(api: httpx.Client) -> None:
    response = api.post("/conversations", json={})
    made = response.headers["x-session-id"]
    assert re.fullmatch("[0-9a-f]{8}", made)
    assert response.json()["conversation"]["session_id"] == made


@pytest.mark.parametrize("bad", ["a b", "x" * 129, "a/b"])
def test_a_bad_session_id_is_refused(api: httpx.Client, bad: str) -> None:
    problem(api.post("/conversations", json={}, headers={"X-Session-ID": bad}), 400)


def test_a_repeated_create_gives_the_first_answer(api: httpx.Client) -> None:
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = api.post("/conversations", json={"message": "once"}, headers=key)
    api.post(f"/conversations/{first.json()['conversation']['id']}/messages", json={"message": "later"})
    second = api.post("/conversations", json={"message": "once"}, headers=key)
    assert (second.status_code, second.json()) == (201, first.json())
    assert "another body" in problem(api.post("/conversations", json={"message": "two"}, headers=key), 409)


def test_a_repeated_message_and_a_repeated_decision_give_their_first_answers(
    api: httpx.Client, world: World
) -> None:
    line = str(uuid.uuid4())
    say = f"/conversations/{created(api)['conversation']['id']}/messages"
    key = {"Idempotency-Key": str(uuid.uuid4())}
    first = api.post(say, json={"message": f"append {line}"}, headers=key)
    decide = f"/approvals/{first.json()['result']['approval']['uuid']}"
    yes = {"Idempotency-Key": str(uuid.uuid4())}
    done = api.post(decide, json={"approved": True}, headers=yes)
    assert api.post(say, json={"message": f"append {line}"}, headers=key).json() == first.json()
    again = api.post(decide, json={"approved": True}, headers=yes)
    assert (again.status_code, again.json()) == (200, done.json())
    problem(api.post(decide, json={"approved": False}, headers=yes), 409)
    assert world.lines()[line] == 1


def test_respond_async_answers_when_the_message_is_durable_and_the_turn_goes_on(
    api: httpx.Client, world: World
) -> None:
    response = api.post("/conversations", json={"message": "sleep 2"}, headers={"Prefer": "respond-async"})
    assert response.status_code == 202
    assert contents(response.json()["conversation"], "assistant") == []
    conversation_id = response.json()["conversation"]["id"]
    assert response.headers["location"] == f"/conversations/{conversation_id}"
    journal = world.mesh.data_dir / f"conversation_{conversation_id}.jsonl"
    assert "sleep 2" in journal.read_text()
    until(lambda: contents(shown(api, conversation_id), "assistant") == ["slept 2"])


def test_a_client_that_hangs_up_loses_nothing(api: httpx.Client, world: World) -> None:
    conversation_id = created(api)["conversation"]["id"]
    body = b'{"message": "sleep 0.8"}'
    path = f"/conversations/{conversation_id}/messages"
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", world.mesh.port)) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: contents(shown(api, conversation_id), "user"))
    until(lambda: contents(shown(api, conversation_id), "assistant") == ["slept 0.8"])


# -- what is written, and what is not


def test_a_bearer_token_is_written_nowhere(api: httpx.Client, world: World) -> None:
    token = f"secret-{uuid.uuid4()}"
    headers = {"Authorization": f"Bearer {token}"}
    body = created(api, f"append {uuid.uuid4()}", **headers)
    api.post(f"/approvals/{body['result']['approval']['uuid']}", json={"approved": True}, headers=headers)
    api.post("/conversations", content=b"{", headers=headers)
    api.get("/conversations/nope", headers=headers)
    until((world.mesh.data_dir / f"conversation_{body['conversation']['id']}.json").exists)
    files = [p for top in (world.mesh.folder, world.mesh.logs()) for p in top.rglob("*") if p.is_file()]
    assert len(files) > 20
    assert [str(p) for p in files if token.encode() in p.read_bytes()] == []


def test_every_log_line_of_a_conversation_has_its_session(api: httpx.Client, world: World) -> None:
    sid = uuid.uuid4().hex[:8]
    conversation_id = created(api, "read", **{"X-Session-ID": sid})["conversation"]["id"]

    def lines() -> list[str]:
        logs = (p.read_text(errors="replace") for p in world.mesh.logs().glob("worker-*"))
        return [line for log in logs for line in log.splitlines() if conversation_id in line]

    until(lambda: any("event=completed" in line for line in lines()))
    assert all(f"sid={sid}" in line for line in lines())


def test_the_conversation_is_soon_a_file(api: httpx.Client, world: World) -> None:
    body = created(api, "hello")
    path = world.mesh.data_dir / f"conversation_{body['conversation']['id']}.json"
    until(path.exists)
    assert json.loads(path.read_bytes()) == body["conversation"]
    journal = path.with_suffix(".jsonl").read_text().splitlines()
    assert [json.loads(line)["seq"] for line in journal] == list(range(1, len(journal) + 1))


# -- listing


def test_a_listing_pages_through_all_conversations_newest_first(api: httpx.Client) -> None:
    mine = [created(api, f"listed {i}")["conversation"]["id"] for i in range(5)]
    found: list[Body] = []
    cursor = ""
    for _ in range(500):
        page = api.get("/conversations", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        assert 1 <= len(page["conversations"]) <= 2
        found += page["conversations"]
        cursor = page.get("next_cursor", "")
        if not cursor:
            break
    ids = [entry["id"] for entry in found]
    assert ids[:5] == mine[::-1]
    assert len(ids) == len(set(ids)) == page["summary"]["total"]
    assert [e["created_at"] for e in found] == sorted((e["created_at"] for e in found), reverse=True)


def test_a_listing_filters_by_status_and_counts_all(api: httpx.Client) -> None:
    waiting = created(api, f"append {uuid.uuid4()}")["conversation"]["id"]
    page = api.get("/conversations", params={"status": "waiting_approval", "limit": 500}).json()
    assert waiting in [entry["id"] for entry in page["conversations"]]
    assert {entry["status"] for entry in page["conversations"]} == {"waiting_approval"}
    summary = page["summary"]
    assert summary["waiting_approval"] == len(page["conversations"])
    assert summary["total"] == summary["active"] + summary["waiting_approval"] + summary["completed"]

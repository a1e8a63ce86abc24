"""``GET /metrics``, as Prometheus asks it."""

import time
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mesh.access import keys
from mesh.gateway.app import http_app
from tests.http.test_keys import config_of
from tests.worlds.live import LocalBackend, Spoken
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says


async def test_what_was_measured_is_there_for_prometheus() -> None:
    async with WorldMesh(Spoken(calls(("add", {"n": 3})), says("done"))) as mesh:
        app = http_app(LocalBackend(mesh), mesh.config, b"secret")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            body = (await http.post("/conversations", json={"message": "add"})).json()
            waits = await http.get("/metrics")
            await http.post(f"/approvals/{body['result']['approval']['uuid']}", json={"approved": True})
            answer = await http.get("/metrics")
    (since,) = [
        line.split()[1] for line in waits.text.splitlines() if line.startswith("mesh_approvals_waiting_since")
    ]
    assert float(since) == pytest.approx(time.time(), abs=60)
    assert "mesh_approvals_waiting_since" not in answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [each for family in text_string_to_metric_families(answer.text) for each in family.samples]
    assert {each.labels["gen_ai_agent_name"] for each in samples} == {mesh.config.name}
    found = {(each.name, *sorted(each.labels.items())): each.value for each in samples}

    def value(name: str, keeper: str = "local", **labels: str) -> float:
        named = {"gen_ai_agent_name": mesh.config.name, "keeper": keeper, **labels}
        return found[name, *sorted(named.items())]

    assert value("mesh_turns_total", outcome="completed") == 1
    assert value("mesh_tool_calls_total", gen_ai_tool_name="add", outcome="ok") == 1
    assert value("mesh_approvals_resolved_total", decision="approve") == 1
    assert value("mesh_conversations", "", status="active") == 1
    assert value("gen_ai_client_operation_duration_seconds_count", gen_ai_request_model="scripted") == 2


@pytest.mark.parametrize("path", ["/metrics", "/status"])
async def test_who_has_no_key_is_told_nothing(tmp_path: Path, path: str) -> None:
    key, config = keys.add(tmp_path / "keys.yaml", "ann"), config_of(tmp_path)
    async with WorldMesh(ScriptedLlm(says("fine"))) as mesh:
        transport = httpx.ASGITransport(http_app(LocalBackend(mesh), config, b"secret"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get(path)).status_code == 401
            assert (await http.get(path, headers={"X-API-Key": key})).status_code == 200

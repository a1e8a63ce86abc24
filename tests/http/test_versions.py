"""``GET /versions``, ``POST /conversations/{id}/version`` and ``mesh versions``."""

from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from mesh.cli import app as command
from mesh.gateway.app import http_app
from tests.worlds.live import LiveMesh, LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, WorldMesh, calls, says

NEEDY = SIMPLE.replace("Be kind.", "${SECRET_OF_TEST}")
NO_PROGRAM = f"{SIMPLE}mcp: {{command: no-such-program-anywhere}}\n"
ADD = calls(("add", {"n": 3}))


def rest_of(mesh: WorldMesh) -> httpx.AsyncClient:
    app = http_app(LocalBackend(mesh), mesh.newest, b"secret")
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


async def test_it_lists_the_newest_first_with_the_conversations_of_each_and_what_keeps_it_from_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    monkeypatch.setenv("SECRET_OF_TEST", "swordfish")
    async with WorldMesh(Spoken(ADD, ADD, says("done"))) as mesh:
        olds = []
        for config in (NO_PROGRAM, NEEDY):
            await mesh.upgrade(config)
            olds.append(mesh.newest.digest)
            async with rest_of(mesh) as http:
                waiting = (await http.post("/conversations", json={"message": "go"})).json()["conversation"]
            assert waiting["version"] == mesh.newest.digest
        await mesh.upgrade(SIMPLE)
        monkeypatch.delenv("SECRET_OF_TEST")
        async with rest_of(mesh) as http:
            await http.post("/conversations", json={})
            answer = await http.get("/versions")
            listed = (await http.get("/conversations", params={"version": olds[1]})).json()["conversations"]
            path = f"/conversations/{listed[0]['id']}/version"
            moved = await http.post(path)
            refused = await http.post(path, json={"version": olds[1]})
    found = {each.pop("version"): each for each in answer.json()["versions"]}
    assert found[mesh.newest.digest] == {"is_newest": True, "conversations": {"active": 1}, "problems": []}
    assert {(each["is_newest"], str(each["conversations"])) for each in map(found.get, olds)} == {
        (False, "{'waiting_approval': 1}")
    }
    assert next(iter(found)) == mesh.newest.digest
    assert "no program no-such-program-anywhere on PATH" in found[olds[0]]["problems"][0]
    assert "SECRET_OF_TEST" in found[olds[1]]["problems"][0]
    assert [each["id"] for each in listed] == [waiting["id"]]
    assert moved.json()["conversation"]["version"] == mesh.newest.digest  # from one that cannot run
    assert refused.status_code == 409 and "SECRET_OF_TEST" in refused.json()["error"]
    assert "swordfish" not in answer.text + refused.text


@pytest.mark.parametrize(
    "body",
    [{"version": 1}, {"version": "../x"}, {"version": "0" * 65}, {"dry_run": "yes"}, [], {"version": None}],
)
async def test_a_bad_body_is_refused(body: Any) -> None:
    async with WorldMesh(Spoken(ADD)) as mesh, rest_of(mesh) as http:
        conversation = (await http.post("/conversations", json={"message": "go"})).json()["conversation"]
        answer = await http.post(f"/conversations/{conversation['id']}/version", json=body)
        assert (answer.status_code, list(answer.json())) == (400, ["error"])
        shown = await http.get("/conversations", params={"version": "x y"})
        assert shown.status_code == 400


def test_the_command_lists_versions_and_moves_what_can_be_moved() -> None:
    with LiveMesh(llm=Spoken(ADD, ADD, says("done"))) as live:
        first = live.mesh.config.digest
        with httpx.Client(base_url=live.url) as http:
            ids = [
                http.post("/conversations", json={"message": "go"}).json()["conversation"]["id"]
                for _ in range(2)
            ]
        live.run(live.mesh.upgrade(SIMPLE.replace("Be kind.", "Be brief.")))
        newest = live.mesh.newest.digest
        listed = CliRunner().invoke(command, ["versions", "--url", live.url])
        assert listed.exit_code == 0, listed.output
        assert (
            f"{first}   newest   2 waiting for a person; " in listed.output
        )  # to the gateway, which is older
        as_json = CliRunner().invoke(command, ["versions", "--json", "--url", live.url])
        assert f'"version":"{first}"' in as_json.output

        dry = CliRunner().invoke(command, ["versions", "move", first, "--dry-run", "--url", live.url])
        assert (dry.exit_code, dry.stdout) == (
            0,
            f"2 could be moved, 0 not, from version {first} to the newest\n",
        )
        moved = CliRunner().invoke(command, ["versions", "move", first, newest, "--url", live.url])
        assert (moved.exit_code, moved.stdout) == (0, f"2 moved, 0 not, from version {first} to {newest}\n")
        with httpx.Client(base_url=live.url) as http:
            assert {http.get(f"/conversations/{i}").json()["conversation"]["version"] for i in ids} == {
                newest
            }
        again = CliRunner().invoke(command, ["versions", "move", first, "--url", live.url])
        assert again.stdout == f"0 moved, 0 not, from version {first} to the newest\n"

        unknown = CliRunner().invoke(command, ["versions", "move", newest, "0" * 12, "--url", live.url])
        assert unknown.exit_code == 1
        assert f"{ids[1]} stays: " in unknown.stdout and "is neither the newest" in unknown.stdout
        bad = CliRunner().invoke(command, ["versions", "move", newest, "NEW", "--url", live.url])
        assert bad.exit_code == 1 and "GET /versions" in bad.stderr

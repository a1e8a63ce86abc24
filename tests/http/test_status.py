"""``GET /status`` and ``mesh status``: how a mesh is, whatever is wrong with it."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from mesh.cli import app as command
from mesh.core.errors import StoreAway, Unavailable
from mesh.core.mesh_state import STORE_AWAY, MeshPart
from mesh.gateway.app import http_app
from mesh.keeper.requests import RequestFor
from mesh.metrics.meters import Series
from tests.worlds.live import LiveMesh, LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, WorldMesh, calls, says
from tests.worlds.ports import free_port


async def test_it_says_what_answers_and_since_when_somebody_waits() -> None:
    async with WorldMesh(Spoken(calls(("add", {"n": 3})), says("done"))) as mesh:
        app = http_app(LocalBackend(mesh), mesh.config, b"secret")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            before = (await http.get("/status")).json()
            await http.post("/conversations", json={"message": "add"})
            after = (await http.get("/status")).json()
    assert "waiting_since" not in before or before["waiting_since"] == ""
    assert (after["agent"], after["version"]) == (mesh.config.name, mesh.config.digest)
    assert after["conversations"] == {"active": 0, "waiting_approval": 1, "completed": 0}
    since = datetime.fromisoformat(after["waiting_since"])
    assert abs(datetime.now(UTC) - since) < timedelta(minutes=1)
    assert [each["kind"] for each in after["parts"]] == ["keeper"]
    assert after["problems"] == []


class Deaf(LocalBackend):
    """Its keepers do not answer."""

    async def ask_reachable(self, request: RequestFor[Any]) -> tuple[list[Any], bool]:
        raise Unavailable("keeper 0 does not answer", 5)

    async def metrics(self) -> Mapping[str, Sequence[Series]]:  # type: ignore[override]
        raise Unavailable("keeper 0 does not answer", 5)

    async def parts(self) -> list[MeshPart]:
        return [
            MeshPart(kind="keeper", name="0 of deployment 1", answers=False, generation=1, shards=self.shards)
        ]


async def test_it_is_told_also_while_no_keeper_answers() -> None:
    async with WorldMesh(Spoken(says("done"))) as mesh:
        app = http_app(Deaf(mesh), mesh.config, b"secret")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            answer = await http.get("/status")
            assert answer.status_code == 200
            state = answer.json()
            assert state["incomplete"] is True
            assert state["problems"][0].startswith("keeper 0 of deployment 1 does not answer")
            assert (await http.get("/ready")).status_code == 503


class StoreIsAway(Deaf):
    """The store does not answer."""

    async def ask_reachable(self, request: RequestFor[Any]) -> tuple[list[Any], bool]:
        raise StoreAway("db does not answer", was_sent=False)

    async def metrics(self) -> Mapping[str, Sequence[Series]]:  # type: ignore[override]
        raise StoreAway("db does not answer", was_sent=False)

    async def parts(self) -> list[MeshPart]:
        return [MeshPart(kind="keeper", name=STORE_AWAY, answers=False)]


async def test_it_is_told_also_while_the_store_is_away() -> None:
    async with WorldMesh(Spoken(says("done"))) as mesh:
        app = http_app(StoreIsAway(mesh), mesh.config, b"secret")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            answer = await http.get("/status")
    assert answer.status_code == 200
    (problem,) = answer.json()["problems"]
    assert problem.startswith("the store does not answer")


class Hanging(Deaf):
    """Its keepers take for ever."""

    async def ask_reachable(self, request: RequestFor[Any]) -> tuple[list[Any], bool]:
        return await asyncio.Event().wait(), False  # type: ignore[return-value]


async def test_it_waits_for_nobody_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mesh.http.mesh_status._WITHIN_S", 0.05)
    async with WorldMesh(Spoken(says("done"))) as mesh:
        app = http_app(Hanging(mesh), mesh.config, b"secret")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            assert (await http.get("/status")).json()["incomplete"] is True


def test_the_command_shows_it_and_ends_with_1_if_something_is_wrong() -> None:
    with LiveMesh(Spoken(says("done")), SIMPLE) as mesh:
        shown = CliRunner().invoke(command, ["status", "--url", mesh.url])
        assert shown.exit_code == 0, shown.output
        assert shown.stdout.splitlines()[-1] == "all is well"
        as_json = CliRunner().invoke(command, ["status", "--url", mesh.url, "--json"])
        assert '"problems":[]' in as_json.stdout


def test_where_no_mesh_is_the_command_says_so() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    shown = CliRunner().invoke(command, ["status", "--url", url])
    assert shown.exit_code == 1
    assert url in shown.stderr and "Traceback" not in shown.output

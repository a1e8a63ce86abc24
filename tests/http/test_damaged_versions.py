"""A kept version that cannot be read is a problem of that version, and of no other."""

from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from mesh.config.kept_versions import FileVersions, KeptVersion, MemoryVersions, kept_config
from mesh.core.errors import ConfigError, StoreAway
from mesh.gateway.app import http_app
from tests.worlds.live import LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, WorldMesh, calls

ADD = calls(("add", {"n": 3}))


def rest_of(mesh: WorldMesh) -> httpx.AsyncClient:
    app = http_app(LocalBackend(mesh), mesh.newest, b"secret")
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"name: \xff\xfe"),
        as_folder,
        lambda path: path.with_suffix(".files.json").write_bytes(b"{"),
        lambda path: path.with_suffix(".files.json").write_bytes(b'{"a": [1]}'),
    ],
)
async def test_a_damaged_version_is_told_as_its_problem(
    tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    async with WorldMesh(Spoken(ADD)) as mesh:
        mesh.versions = FileVersions(tmp_path, "test")  # type: ignore[assignment]
        await mesh.versions.keep(mesh.config.digest, mesh.config.source, mesh.config.files)
        async with rest_of(mesh) as http:
            waits = (await http.post("/conversations", json={"message": "go"})).json()["conversation"]
        old = mesh.config.digest
        await mesh.upgrade(SIMPLE.replace("kind", "brief"))
        damage(tmp_path / "configs" / f"{old}.yaml")
        async with rest_of(mesh) as http:
            path = f"/conversations/{waits['id']}/version"
            answer = await http.post(path, json={})  # nobody knows what is bound
            assert (answer.status_code, list(answer.json())) == (409, ["error"])
            assert f"version {old} cannot be read" in answer.json()["error"]
            listed = await http.get("/versions")
            told = {each["version"]: each["problems"] for each in listed.json()["versions"]}
            assert f"version {old} cannot be read" in told[old][0]


async def test_a_version_with_another_text_is_not_taken_for_it(tmp_path: Path) -> None:
    versions = FileVersions(tmp_path, "test")
    await versions.keep("0f5c2a4be8d1", "name: other\n", {})
    with pytest.raises(ConfigError, match="0f5c2a4be8d1 is kept with another text"):
        await kept_config(versions, "0f5c2a4be8d1", {})


async def test_while_the_store_is_away_clients_are_told_to_come_again() -> None:
    class Away(MemoryVersions):
        async def kept(self, digest: str) -> KeptVersion:
            raise StoreAway("the store is away", was_sent=False)

    async with WorldMesh(Spoken(ADD)) as mesh:
        async with rest_of(mesh) as http:
            await http.post("/conversations", json={"message": "go"})
        await mesh.upgrade(SIMPLE.replace("kind", "brief"))
        mesh.versions = Away()
        async with rest_of(mesh) as http:
            answer = await http.get("/versions")
            assert (answer.status_code, "retry-after" in answer.headers) == (503, True)

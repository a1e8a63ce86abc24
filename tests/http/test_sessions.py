"""Sessions are refused where their workspace is none of the agent's."""

from pathlib import Path

import httpx

from mesh.config.model import parse
from mesh.gateway.app import http_app
from tests.worlds.live import LocalBackend, Spoken
from tests.worlds.mesh import WorldMesh, says

CONFIG = "name: test\nmcp_servers: [{name: files, command: mcp-filesystem, args: ['${MESH_WORKSPACE}']}]\n"


async def test_a_workspace_outside_the_roots_is_refused(tmp_path: Path) -> None:
    inside = tmp_path / "ws"
    inside.mkdir()
    (tmp_path / "ws-2").mkdir()
    config = parse(CONFIG, "test.yaml", {"MESH_WORKSPACE": str(inside)})
    async with WorldMesh(Spoken(says("x"))) as mesh:
        transport = httpx.ASGITransport(http_app(LocalBackend(mesh), config, b"secret"))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for path in (str(inside), "src", "", None):
                answer = await http.post("/api/sessions", json={"workspacePath": path})
                assert answer.status_code == 201, (path, answer.text)
            for path in ("/", f"{inside}-2", "..", "a\0b"):
                answer = await http.post("/api/sessions", json={"workspacePath": path})
                assert answer.status_code == 400, (path, answer.text)
                assert answer.json() == {"error": '"workspacePath" is outside the roots of this agent'}

"""What stands at ``/`` beside several agents, and what agents below a path answer."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from mesh.access.rules import Rules
from mesh.http.agent_index import AgentEntry, index_app
from mesh.http.root_path import RootPathInLocation

RULES = Rules(names=frozenset({"mesh", "agents.example"}))


def entry(name: str, *missing: str) -> AgentEntry:
    async def unready() -> list[str]:
        return list(missing)

    return AgentEntry(name, f"what {name} does", unready)


def client(*entries: AgentEntry, base: str = "http://mesh:8080") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(index_app(entries, RULES)), base_url=base)


async def test_agents_are_listed_with_addresses_at_the_host_that_was_asked() -> None:
    async with client(entry("a"), entry("b"), base="http://agents.example:81") as http:
        agents = (await http.get("/")).json()["agents"]
    assert agents[1] == {
        "name": "b",
        "description": "what b does",
        "url": "http://agents.example:81/b",
        "card": "http://agents.example:81/b/.well-known/agent-card.json",
        "docs": "http://agents.example:81/b/docs",
    }
    assert [agent["name"] for agent in agents] == ["a", "b"]


async def test_a_browser_gets_a_page_of_the_agents_and_whether_they_are_up() -> None:
    async with client(entry("a"), entry("b", "mcp <tools>")) as http:
        answer = await http.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.headers["vary"] == "Accept"
    for name in ("a", "b"):
        assert f'href="http://mesh:8080/{name}/"' in answer.text
        assert f'href="http://mesh:8080/{name}/docs"' in answer.text
    assert "<p>what b does</p>" in answer.text
    assert "; not ready: mcp &lt;tools&gt;<" in answer.text and "; ready<" in answer.text


async def test_one_agent_that_is_not_ready_is_named_while_the_process_is_healthy() -> None:
    async with client(entry("a"), entry("b", "gateway", "mcp tools")) as http:
        ready = await http.get("/ready")
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
        assert ready.json() == {
            "error": "b: not ready: gateway, mcp tools",
            "agents": {"a": "ready", "b": "not ready: gateway, mcp tools"},
        }
        assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/c/x", 404), ("POST", "/ready", 405)])
async def test_anything_else_is_told_where_the_agents_are(method: str, path: str, status: int) -> None:
    async with client(entry("a"), entry("b")) as http:
        answer = await http.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].endswith("; the agents here are at /a, /b")


@pytest.mark.parametrize(
    ("root", "said", "heard"),
    [
        ("/a", "/conversations/1", "/a/conversations/1"),
        ("", "/conversations/1", "/conversations/1"),
        ("/a", "http://elsewhere/x", "http://elsewhere/x"),
        ("/a", "//elsewhere/x", "//elsewhere/x"),
    ],
)
async def test_a_location_begins_with_the_path_that_the_agent_is_below(
    root: str, said: str, heard: str
) -> None:
    async def made(_: object) -> Response:
        return Response(headers={"Location": said})

    app = RootPathInLocation(Starlette(routes=[Route("/made", made)]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app, root_path=root)) as http:
        assert (await http.get(f"http://mesh{root}/made")).headers["location"] == heard

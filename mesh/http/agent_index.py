"""The page at ``/`` when several agents are served below it: which there are, and whether they are up."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mesh.access.keyring import Keys
from mesh.access.principal import is_unauthenticated
from mesh.access.rules import Rules
from mesh.http.access_check import AccessCheck
from mesh.http.html import HEADERS, Section, page, prefers_html
from mesh.http.utf8 import Utf8Only


@dataclass(frozen=True)
class AgentEntry:
    """An agent. ``unready`` gives the names of what does not answer; empty when all is well."""

    name: str
    description: str
    unready: Callable[[], Awaitable[list[str]]]


def index_app(entries: Sequence[AgentEntry], rules: Rules, keys: Keys | None = None) -> Starlette:
    """``/``, ``/health`` and ``/ready`` for these agents. Other paths are answered with where the agents are.
    ``rules`` and ``keys``: see `AccessCheck`."""
    names = ", ".join(f"/{entry.name}" for entry in entries)

    async def index(request: Request) -> Response:
        agents = [_shown(entry, request) for entry in entries]
        if prefers_html(request.headers.get("accept", "")):
            return _page(agents, await _states(entries))
        return JSONResponse({"agents": agents}, headers=HEADERS)

    async def health(request: Request) -> JSONResponse:
        # A supervisor restarts a process that is slow to answer this, so no agent is asked.
        if is_unauthenticated(request.scope):
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "ok", "agents": [entry.name for entry in entries]})

    async def ready(request: Request) -> JSONResponse:
        states = await _states(entries)
        if is_unauthenticated(request.scope):
            return _summary(all(state == "ready" for state in states.values()))
        missing = [f"{name}: {state}" for name, state in states.items() if state != "ready"]
        if missing:
            return JSONResponse({"error": "; ".join(missing), "agents": states}, 503, {"Retry-After": "1"})
        return JSONResponse({"status": "ready", "agents": states})

    async def elsewhere(request: Request, problem: Exception) -> JSONResponse:
        assert isinstance(problem, HTTPException)
        error = f"{request.method} {request.url.path}: {problem.detail}; the agents here are at {names}"
        return JSONResponse({"error": error}, problem.status_code, problem.headers)

    routes = [Route("/", index), Route("/health", health), Route("/ready", ready)]
    middleware = [Middleware(Utf8Only), Middleware(AccessCheck, rules=rules, keys=keys)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: elsewhere})


def _summary(is_ready: bool) -> JSONResponse:
    if is_ready:
        return JSONResponse({"status": "ready"})
    return JSONResponse({"error": "not ready"}, 503, {"Retry-After": "1"})


def _page(agents: Sequence[dict[str, str]], states: Mapping[str, str]) -> Response:
    sections = []
    for agent in agents:
        name = agent["name"]
        links = (
            ("start", f"{agent['url']}/", f"what waits for a person, and all links; {states[name]}"),
            ("docs", agent["docs"], "the API, to try out"),
            ("card", agent["card"], "what other agents see of it"),
        )
        sections.append(Section(name, links, agent["description"]))
    return page("mesh", f"{len(agents)} agents at one address.", sections)


async def _states(entries: Sequence[AgentEntry]) -> dict[str, str]:
    missing = await asyncio.gather(*(entry.unready() for entry in entries))
    return {
        entry.name: f"not ready: {', '.join(of)}" if of else "ready"
        for entry, of in zip(entries, missing, strict=True)
    }


def _shown(entry: AgentEntry, request: Request) -> dict[str, str]:
    url = f"{request.base_url}{entry.name}"
    return {
        "name": entry.name,
        "description": entry.description,
        "url": url,
        "card": f"{url}/.well-known/agent-card.json",
        "docs": f"{url}/docs",
    }

"""The agent card (specification 1.0.1, section 8), made from the agent's config and its tools, and served.

For readers of 0.3 the fields of that version stand beside those of 1.0, unless the config offers 1.0 alone.
"""

import fnmatch
import hashlib
import json
from collections.abc import Sequence
from email.utils import formatdate, parsedate_to_datetime
from time import time
from typing import Any

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import VERSION_HEADER, TransportProtocol
from google.protobuf.json_format import MessageToDict, ParseDict
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mesh.a2a.extensions import BUDGET, HITL, MESH
from mesh.config.model import A2aAgent, Config
from mesh.core.errors import MeshError, Unavailable
from mesh.http.backend import Backend
from mesh.http.public_url import public_url
from mesh.tree.configured_limits import unpriced_models
from mesh.tree.plan import PlannedNode, other_agents, tree_of

ENDPOINT = "/a2a"
_CACHED_FOR_S = 60
_TEXT = "text/plain"
_DATA = "application/json"
_ANYTHING = "*/*"
_KEY = "meshApiKey"
_KEY_SCHEMES: dict[str, Any] = {
    _KEY: {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}},
    "meshBearer": {"httpAuthSecurityScheme": {"scheme": "Bearer", "bearerFormat": "mk_…"}},
}
"""How an API key of the mesh is sent (`mesh.access`)."""


def card_of(
    config: Config, tools: Sequence[dict[str, Any]], url: str, *, extended: bool = False
) -> "pb.AgentCard":
    """The card of an agent at ``url``. ``tools`` as ``GET /tools`` lists them. ``extended``: with the skills
    that the config keeps out of the public one (section 3.1.11)."""
    card = config.card
    made = pb.AgentCard(
        name=config.name,
        description=config.description or f"The agent {config.name}.",
        version=card.version or config.digest,
        supported_interfaces=_interfaces(config, url),
        capabilities=_capabilities(config),
        default_input_modes=[_TEXT, _DATA, *([_ANYTHING] if card.files == "mention" else [])],
        default_output_modes=[_TEXT],
        skills=_skills(config, tools, extended=extended),
    )
    if card.documentation_url:
        made.documentation_url = card.documentation_url
    if card.organization:
        made.provider.organization = card.organization
        made.provider.url = card.organization_url or url
    _secure(made, config)
    return made


def _secure(made: "pb.AgentCard", config: Config) -> None:
    """Says what callers need: a key of the mesh, one of the schemes that a proxy checks, or one of each."""
    schemes = dict(config.card.security)
    needs: list[tuple[str, ...]] = [(name,) for name in schemes]
    if config.auth:
        schemes = {**schemes, **_KEY_SCHEMES}
        # Where a proxy wants the Authorization header for itself, the key goes into its own.
        needs = [(*need, _KEY) for need in needs] or [(name,) for name in _KEY_SCHEMES]
    for name, scheme in schemes.items():
        ParseDict(scheme, made.security_schemes[name])
    for need in needs:
        requirement = made.security_requirements.add()
        for name in need:
            requirement.schemes[name].SetInParent()


def shown(card: "pb.AgentCard", *, only_1_0: bool = False) -> dict[str, Any]:
    """The card as JSON; ``only_1_0``: for a client that asks for that version."""
    return MessageToDict(card) if only_1_0 else agent_card_to_dict(card)


def _interfaces(config: Config, url: str) -> list["pb.AgentInterface"]:
    endpoint = url.rstrip("/") + ENDPOINT
    offered = [
        (TransportProtocol.JSONRPC, "1.0"),
        (TransportProtocol.HTTP_JSON, "1.0"),
        (TransportProtocol.JSONRPC, "0.3"),
    ]
    return [
        pb.AgentInterface(url=endpoint, protocol_binding=binding.value, protocol_version=version)
        for binding, version in offered
        if version in config.card.versions
    ]


def _capabilities(config: Config) -> "pb.AgentCapabilities":
    return pb.AgentCapabilities(
        streaming=True,
        push_notifications=True,
        extended_agent_card=config.card.public_skills is not None,
        extensions=[
            pb.AgentExtension(uri=HITL, description="Approvals of tool calls, and questions to a person"),
            pb.AgentExtension(
                uri=MESH,
                description="Approvals decided one by one, with edited arguments; message ids count once",
            ),
            pb.AgentExtension(
                uri=BUDGET,
                description="Depth and limits of the caller; what a task has spent",
                params={"priced": _is_priced(config)},
            ),
        ],
    )


def _is_priced(config: Config) -> bool:
    """Whether the cost of a task with a money limit is always known."""
    is_known = not unpriced_models(config)
    return is_known and (not other_agents(config) or config.budget.unpriced_peers == "refuse")


def _skills(config: Config, tools: Sequence[dict[str, Any]], *, extended: bool) -> list["pb.AgentSkill"]:
    tree, public = tree_of(config), config.card.public_skills
    skills = [_tool_skill(tool) for tool in tools if _is_offered(tree, tool["name"])]
    skills += [_agent_skill(agent) for agent in other_agents(config)]
    if public is not None and not extended:
        skills = [skill for skill in skills if _fits(skill.id, public)]
    if skills:
        return skills
    about = config.description or "Answers messages."
    return [pb.AgentSkill(id=config.name, name=config.name, description=about, tags=["chat"])]


def _tool_skill(tool: dict[str, Any]) -> "pb.AgentSkill":
    tags = ["tool", str(tool["server"]), *(["approval"] if tool["destructiveHint"] else [])]
    about = tool["description"] or tool["name"]
    return pb.AgentSkill(id=tool["name"], name=tool["name"], description=about, tags=tags)


def _agent_skill(agent: A2aAgent) -> "pb.AgentSkill":
    tags = ["agent", *(["approval"] if agent.destructive else [])]
    about = agent.description or f"Asks the agent {agent.name}."
    return pb.AgentSkill(id=f"a2a_{agent.name}", name=agent.name, description=about, tags=tags)


def _is_offered(tree: PlannedNode, tool: str) -> bool:
    """Whether some node of the tree may use a tool."""
    return any(
        planned.node.tools is None or _fits(tool, planned.node.tools)
        for planned in tree.walk()
        if planned.node.type == "llm"
    )


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


class AgentCards:
    """The cards of an agent, public and extended. While the servers of its tools do not answer, the cards
    show the tools that were known last."""

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._config = config
        self._tools: list[dict[str, Any]] | None = None
        self._since = _second()

    async def card(self, request: Request, *, extended: bool = False) -> "pb.AgentCard":
        """The card with the URL that this client uses. Raises `Unavailable` while no tools are known yet."""
        url = public_url(request, self._config.card)
        return card_of(self._config, await self._known_tools(), url, extended=extended)

    async def answer(self, request: Request) -> Response:
        """The response at the well-known address."""
        try:
            card = await self.card(request)
        except Unavailable as problem:
            headers = {"Retry-After": str(problem.retry_after_s)}
            return JSONResponse({"error": str(problem)}, 503, headers)
        body = json.dumps(shown(card, only_1_0=_knows_1_0(request))).encode()
        headers = {
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "Last-Modified": formatdate(self._since, usegmt=True),
            "Cache-Control": f"public, max-age={_CACHED_FOR_S}",
            "Vary": f"Host, {VERSION_HEADER}",
        }
        if self._is_known(request, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type="application/json")

    async def _known_tools(self) -> list[dict[str, Any]]:
        try:
            tools = await self._backend.tools()
        except MeshError as problem:
            if self._tools is None:
                raise Unavailable(f"the agent's tools are not known yet: {problem}", 5) from problem
            return self._tools
        if tools != self._tools:
            self._tools, self._since = tools, _second()
        return tools

    def _is_known(self, request: Request, etag: str) -> bool:
        """RFC 9110, section 13: a client that names tags is not asked for dates."""
        known = request.headers.get("if-none-match")
        if known is not None:
            tags = [tag.strip().removeprefix("W/") for tag in known.split(",")]
            return "*" in tags or etag in tags
        try:
            since = parsedate_to_datetime(request.headers.get("if-modified-since", ""))
        except ValueError:
            return False
        return since.timestamp() >= self._since


def _second() -> int:
    """The last whole second that is over: no date of ours is ahead of an HTTP server's own clock."""
    return int(time()) - 1


def _knows_1_0(request: Request) -> bool:
    return request.headers.get(VERSION_HEADER, "").startswith("1")

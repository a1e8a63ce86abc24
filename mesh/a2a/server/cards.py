"""The agent's cards: the one that everybody finds, and the one for callers behind the endpoint."""

import hashlib
import json
from email.utils import formatdate, parsedate_to_datetime
from time import time
from typing import Any

from a2a.types import a2a_pb2 as pb
from a2a.utils.constants import VERSION_HEADER
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from mesh.a2a.server.agent_card import card_of, shown
from mesh.config.model import Config
from mesh.core.errors import MeshError, Unavailable
from mesh.http.backend import Backend
from mesh.http.public_url import public_url

_AGE_S = 60


class Cards:
    """As of the agent's tools now; of those it had, while their servers do not answer."""

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._config = config
        self._tools: list[dict[str, Any]] | None = None
        self._since = _second()

    async def made(self, request: Request, *, extended: bool = False) -> "pb.AgentCard":
        """The card as who asks needs it. Raises `Unavailable` while the tools are not known yet."""
        url = public_url(request, self._config.card)
        return card_of(self._config, await self._known_tools(), url, extended=extended)

    async def answer(self, request: Request) -> Response:
        """The card at the well-known address."""
        try:
            card = await self.made(request)
        except Unavailable as problem:
            headers = {"Retry-After": str(problem.retry_after_s)}
            return JSONResponse({"error": str(problem)}, 503, headers)
        body = json.dumps(shown(card, only_1_0=_knows_1_0(request))).encode()
        headers = {
            "ETag": f'"{hashlib.sha256(body).hexdigest()[:32]}"',
            "Last-Modified": formatdate(self._since, usegmt=True),
            "Cache-Control": f"public, max-age={_AGE_S}",
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

"""The versions of an agent: which its conversations are on, and one that waits put on another.

GET  /versions                      how many conversations each has, and whether it can run here
POST /conversations/{id}/version    {"version": "…", "dry_run": false}
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.config.kept_versions import kept_config
from mesh.config.model import Config
from mesh.core.agent_versions import AgentVersion, AgentVersions
from mesh.core.errors import BadRequest, ConfigError
from mesh.http.backend import Backend
from mesh.http.parsing import caller_of, is_version, json_object, read_request
from mesh.http.responses import json_response, route, turn_response
from mesh.keeper.replies import VersionCounts
from mesh.keeper.requests import CountVersions, MoveToVersion
from mesh.tree.machine_needs import unmet_needs

_MOST_CHECKED = 50
"""Of so many versions it is found out whether they can run: their configs are read for that."""


class VersionRoutes:
    """The handlers of the routes."""

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._config = config

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route("GET", "/versions", self._list),
            route("POST", "/conversations/{conversation_id}/version", self._move),
        ]

    async def _list(self, request: Request) -> Response:
        shards, are_all = await self._backend.ask_reachable(CountVersions())
        counts = {self._config.digest: Counter[str](), **_added(shards)}
        unknown = counts.pop("", Counter[str]()).total()
        order = sorted(counts, key=lambda digest: (digest != self._config.digest, -counts[digest].total()))
        checked = {digest: await self._problems(digest) for digest in order[:_MOST_CHECKED]}
        found = [self._version(digest, counts[digest], checked.get(digest)) for digest in order]
        return json_response(AgentVersions(self._config.name, found, not are_all, unknown))

    def _version(
        self, digest: str, conversations: Mapping[str, int], problems: list[str] | None
    ) -> AgentVersion:
        return AgentVersion(
            version=digest,
            is_newest=digest == self._config.digest,
            conversations=dict(conversations),
            problems=problems,
        )

    async def _problems(self, digest: str) -> list[str]:
        """What keeps a version from running on the machine of this gateway. Raises `JournalError`."""
        try:
            config = (
                self._config
                if digest == self._config.digest
                else await kept_config(self._backend.versions, digest, os.environ)
            )
        except ConfigError as problem:
            return list(problem.problems)
        return await asyncio.to_thread(lambda: [*unmet_needs(config, os.environ)])

    async def _move(self, request: Request) -> Response:
        conversation_id = request.path_params["conversation_id"]
        raw = await read_request(request, self._config.limits.max_body_bytes)
        version, is_trial = _wanted(json_object(raw) if raw.strip() else {})
        move = MoveToVersion(conversation_id, version, caller_of(request, raw).by, is_trial)
        return turn_response(await self._backend.ask(conversation_id, move))


def _added(shards: Iterable[VersionCounts]) -> dict[str, Counter[str]]:
    """The numbers of all shards together."""
    found: dict[str, Counter[str]] = {}
    for shard in shards:
        for digest, by_status in shard.by_version.items():
            found.setdefault(digest, Counter()).update(by_status)
    return found


def _wanted(body: dict[str, Any]) -> tuple[str, bool]:
    """The version of a body, empty for the newest, and whether nothing is to be changed."""
    version, is_trial = body.get("version", ""), body.get("dry_run", False)
    if not isinstance(version, str) or (version and not is_version(version)):
        raise BadRequest('"version" is a version as GET /versions has it; without it, the newest is meant')
    if not isinstance(is_trial, bool):
        raise BadRequest('"dry_run" is true or false')
    return version, is_trial

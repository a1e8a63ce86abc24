"""``GET /status``: how the mesh is, for people who look after it."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.config.model import Config
from mesh.core.errors import JournalError, Unavailable
from mesh.core.mesh_state import MeshState, problems_of
from mesh.http.backend import Backend
from mesh.http.responses import json_response, route
from mesh.http.rest import counts_of
from mesh.keeper.requests import Page
from mesh.metrics.meters import Series
from mesh.metrics.table import WAITING_SINCE

_WITHIN_S = 5.0
"""How long it waits for keepers: longer than `Backend.ask_reachable` does where some of them answer."""


class Status:
    """The handler of the route."""

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._config = config

    def routes(self) -> list[Route]:
        """The route."""
        return [route("GET", "/status", self._show)]

    async def _show(self, request: Request) -> Response:
        parts, (conversations, are_all), since, rollout = await asyncio.gather(
            self._backend.parts(), self._conversations(), self._waiting_since(), self._backend.rollout()
        )
        state = MeshState(
            agent=self._config.name,
            version=self._config.digest,
            release=version("mesh"),
            parts=parts,
            shards=self._backend.shards,
            conversations=conversations,
            incomplete=not are_all,
            waiting_since=since,
            rollout=rollout,
            problems=problems_of(parts, self._backend.shards, rollout),
        )
        return json_response(state)

    async def _conversations(self) -> tuple[dict[str, int], bool]:
        """Their numbers by status, and whether these are of all keepers. None where no keeper answers, which
        the parts say."""
        try:
            async with asyncio.timeout(_WITHIN_S):
                shards, are_all = await self._backend.ask_reachable(Page(1, "", ""))
        except (Unavailable, JournalError, TimeoutError):
            return {}, False
        return counts_of(shards), are_all

    async def _waiting_since(self) -> str:
        try:
            async with asyncio.timeout(_WITHIN_S):
                return earliest(await self._backend.metrics())
        except (Unavailable, JournalError, TimeoutError):
            return ""


def earliest(measured: Mapping[str, Sequence[Series]]) -> str:
    """The time at which the approval was asked for that waits longest, of all keepers; empty if none does."""
    found = [
        each.value for series in measured.values() for each in series if each.metric == WAITING_SINCE.name
    ]
    return datetime.fromtimestamp(min(found), UTC).isoformat(timespec="seconds") if found else ""

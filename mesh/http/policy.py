"""The remembered decisions over HTTP: what they are, and how they end."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.http.backend import Backend
from mesh.http.body_types import GrantList, NumberedGrant
from mesh.http.parsing import caller_of
from mesh.http.responses import json_response, route


class PolicyRoutes:
    """The handlers of the routes below ``/policy``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route("GET", "/policy/grants", self._list),
            route("DELETE", "/policy/grants/{grant_id}", self._revoke),
        ]

    async def _list(self, request: Request) -> Response:
        listed = await self._backend.grant_book.listed()
        return json_response(GrantList([NumberedGrant(*each) for each in listed.items()]))

    async def _revoke(self, request: Request) -> Response:
        by = caller_of(request, b"").by
        return json_response(await self._backend.grant_book.revoke(request.path_params["grant_id"], by))

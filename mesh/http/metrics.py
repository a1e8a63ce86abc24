"""``GET /metrics``: what the keepers have measured, for Prometheus."""

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.config.model import Config
from mesh.http.backend import Backend
from mesh.http.responses import route
from mesh.http.rest import counts_of
from mesh.keeper.requests import Page
from mesh.metrics.meters import Series
from mesh.metrics.table import WAITING


class Metrics:
    """The handler of the route."""

    def __init__(self, backend: Backend, config: Config) -> None:
        self._backend = backend
        self._agent = config.name

    def routes(self) -> list[Route]:
        """The route."""
        return [route("GET", "/metrics", self._show)]

    async def _show(self, request: Request) -> Response:
        # Only where somebody asks: a chat, which has the same routes, starts without it.
        from mesh.metrics.exposition import CONTENT_TYPE, exposed

        found = dict(await self._backend.metrics())
        shards, are_all = await self._backend.ask_reachable(Page(1, "", ""))
        if are_all:  # otherwise the numbers would seem to fall
            statuses = [Series(WAITING.name, (status,), n) for status, n in counts_of(shards).items()]
            found[""] = [*found.get("", ()), *statuses]
        return Response(exposed(self._agent, found), media_type=CONTENT_TYPE)

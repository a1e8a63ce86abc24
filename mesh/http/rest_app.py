"""The REST API as an application: its routes, and errors before any of them."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from mesh.config.model import Config
from mesh.http.agent_routes import AgentRoutes
from mesh.http.agent_stream import AgentStream
from mesh.http.backend import Backend, BoundedBackend
from mesh.http.events import EventRoutes
from mesh.http.mesh_status import Status
from mesh.http.metrics import Metrics
from mesh.http.policy import PolicyRoutes
from mesh.http.rest import RestApi
from mesh.http.streams import Streams
from mesh.http.version_routes import VersionRoutes


def rest_routes(backend: Backend, streams: Streams, config: Config, secret: bytes) -> list[Route]:
    """The routes of the REST API."""
    # Those of events first: an import is not a conversation with that id.
    return [
        *EventRoutes(backend, streams, config).routes(),
        *PolicyRoutes(backend).routes(),
        *Metrics(backend, config).routes(),
        *Status(backend, config).routes(),
        *VersionRoutes(backend, config).routes(),
        *AgentStream(backend, streams, config, secret).routes(),
        *AgentRoutes(backend, streams, config.limits).routes(),
        *RestApi(backend, streams, config, secret).routes(),
    ]


def rest_app(backend: Backend, config: Config, secret: bytes) -> Starlette:
    """The REST API alone, for clients in the same process: nobody else can reach it, so nothing guards it."""
    bounded = BoundedBackend(backend, config.limits.max_ongoing_requests)
    streams = Streams(bounded, config.limits.max_streams)
    return Starlette(
        routes=rest_routes(bounded, streams, config, secret), exception_handlers={HTTPException: refused}
    )


async def refused(request: Request, problem: Exception) -> JSONResponse:
    """Unknown paths and methods, in the form of every other error."""
    assert isinstance(problem, HTTPException)
    return JSONResponse(
        {"error": f"{request.method} {request.url.path}: {problem.detail}"},
        problem.status_code,
        problem.headers,
    )

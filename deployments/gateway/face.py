"""The HTTP face: routes, documents and errors before any backend. Knows no Ray."""

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request

from deployments.gateway import openapi, rest
from deployments.gateway.bounded import Bounded
from deployments.gateway.port import Backend
from mesh.config import Config


def http_app(backend: Backend, config: Config) -> FastAPI:
    """The HTTP face before any backend."""
    app = FastAPIOffline(
        title=config.name,
        description=config.description + "\n" + openapi.DESCRIPTION,
        version=config.digest,
        redoc_url=None,
    )
    rest.add_routes(app, Bounded(backend, config.limits.max_ongoing_requests), config.limits)
    app.add_exception_handler(HTTPException, _refused)
    openapi.add_schemas(app)
    return app


async def _refused(request: Request, problem: Exception) -> JSONResponse:
    """Unknown paths and methods, in the form of every other error."""
    assert isinstance(problem, HTTPException)
    return JSONResponse(
        {"error": f"{request.method} {request.url.path}: {problem.detail}"},
        problem.status_code,
        problem.headers,
    )

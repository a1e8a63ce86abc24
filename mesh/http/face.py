"""The HTTP face: routes, documents and errors before any backend. Knows no Ray."""

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import Request

from mesh.a2a.server import routes as a2a
from mesh.access.keyring import keys_of
from mesh.access.rules import rules_of
from mesh.config.model import Config
from mesh.http import home, live, openapi, rest, sessions
from mesh.http.bounded import Bounded
from mesh.http.guard import OPEN, Guard
from mesh.http.home import Links
from mesh.http.port import Backend
from mesh.http.readable import Readable
from mesh.http.stream import Streams


def http_app(backend: Backend, config: Config, secret: bytes, links: Links = Links()) -> FastAPI:  # noqa: B008 - frozen
    """The HTTP face before any backend. ``secret`` is the mesh's (`mesh.access.secret`), ``links`` point to
    what is served beside it."""
    app = FastAPIOffline(
        title=config.name,
        description=config.description + "\n" + openapi.DESCRIPTION,
        version=config.digest,
        redoc_url=None,
    )
    bounded = Bounded(backend, config.limits.max_ongoing_requests)
    streams = Streams(bounded, config.limits.max_streams)
    live.add_routes(app, bounded, streams, config)
    home.add_routes(app, bounded, config, links)
    rest.add_routes(app, bounded, streams, config, secret)
    sessions.add_routes(app, bounded, streams, config, secret)
    a2a.add_routes(app, bounded, streams, config, secret)
    app.add_exception_handler(HTTPException, _refused)
    app.add_middleware(Readable)
    openapi.add_schemas(app)
    # A card with a public part is for everybody to see.
    open_paths = OPEN if config.card.public_skills is None else (*OPEN, *a2a.CARDS)
    app.add_middleware(Guard, rules=rules_of([config]), keys=keys_of([config]), open_paths=open_paths)
    return app


async def _refused(request: Request, problem: Exception) -> JSONResponse:
    """Unknown paths and methods, in the form of every other error."""
    assert isinstance(problem, HTTPException)
    return JSONResponse(
        {"error": f"{request.method} {request.url.path}: {problem.detail}"},
        problem.status_code,
        problem.headers,
    )

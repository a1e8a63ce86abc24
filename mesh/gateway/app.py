"""The HTTP application of an agent: routes, documents and errors before any backend. Knows no Ray."""

from functools import cache

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from mesh.a2a.server import routes as a2a
from mesh.access.keyring import keys_of
from mesh.access.rules import rules_of
from mesh.config.model import Config
from mesh.http import openapi
from mesh.http.access_check import OPEN, AccessCheck
from mesh.http.backend import Backend, BoundedBackend
from mesh.http.landing_page import LandingPage, Links
from mesh.http.rest_app import refused, rest_routes
from mesh.http.sessions import SessionApi
from mesh.http.streams import Streams
from mesh.http.utf8 import Utf8Only


def http_app(backend: Backend, config: Config, secret: bytes, links: Links = Links()) -> FastAPI:  # noqa: B008 - frozen
    """The application. ``secret`` is the mesh's (`mesh.access.secret`), ``links`` point to what is served
    beside it.

    FastAPI serves the OpenAPI document and the page that shows it, without a CDN. All other routes are
    Starlette's: a request of theirs passes through no layer of FastAPI's (docs/decisions/openapi.md).
    """
    app = FastAPIOffline(title=config.name, version=config.digest, redoc_url=None)
    # Made when somebody asks for it: it takes longer than all the rest.
    app.openapi = cache(lambda: openapi.document(config))  # type: ignore[method-assign]
    bounded = BoundedBackend(backend, config.limits.max_ongoing_requests)
    streams = Streams(bounded, config.limits.max_streams)
    app.router.routes += [
        *rest_routes(bounded, streams, config, secret),
        *LandingPage(bounded, config, links).routes(),
        *SessionApi(bounded, streams, config, secret).routes(),
        *a2a.routes(bounded, streams, config, secret),
    ]
    app.add_exception_handler(HTTPException, refused)
    app.add_middleware(Utf8Only)
    # A card with a public part is for everybody to see.
    open_paths = OPEN if config.card.public_skills is None else (*OPEN, *a2a.CARDS)
    # Added last, and so the first that sees a request.
    app.add_middleware(AccessCheck, rules=rules_of([config]), keys=keys_of([config]), open_paths=open_paths)
    return app

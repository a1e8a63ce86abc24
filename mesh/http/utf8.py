"""Refuses requests whose headers or query are not UTF-8, before anything decodes them.

Serve decodes some headers (``X-Request-ID``, a session id) before the gateway sees the request, and Starlette
decodes the query where it redirects: both would answer 500. So this middleware is in the app itself, and by
`for_serve` before Serve's own handling, in its proxies and replicas. Serve's own pages are hidden there too.
"""

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send


class Utf8Only:
    """ASGI middleware: answers 400 to a request with a header or a query that is not UTF-8."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http" and (wrong := _unreadable(scope)):
            app = JSONResponse({"error": f"{wrong} is not UTF-8 text"}, 400)
        await app(scope, receive, send)


def for_serve() -> list[Middleware]:
    """Middleware for Serve to put before its own handling: ``RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH``
    names this."""
    return [Middleware(Utf8Only)]


class ServePagesHidden:
    """ASGI middleware: answers 404 to requests for Serve's own pages, below ``/-/``. These tell everybody the
    names of the agents, without the checks of host and key."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_hidden = scope["type"] == "http" and scope["path"].startswith("/-/")
        app = JSONResponse({"error": "Not Found"}, 404) if is_hidden else self._app
        await app(scope, receive, send)


def for_serve_alone() -> list[Middleware]:
    """Middleware for Serve where its own proxy faces the network, on a Ray of our own. Not behind HAProxy,
    whose health checks ask for these pages."""
    return [*for_serve(), Middleware(ServePagesHidden)]


def _unreadable(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if not _is_text(value):
            return f"the header {name.decode('latin-1')}"
    return "" if _is_text(scope.get("query_string", b"")) else "the query (percent-encode it)"


def _is_text(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True

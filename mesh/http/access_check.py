"""The checks in front of every route: the host that was asked for, the origin of the page, the API key.

    Host ──► Origin, Sec-Fetch-Site ──► CORS ──────────────► key ──► the routes
    421      403                        204 to a preflight   401

Pure ASGI: a request of a program costs a look at its headers. `mesh.access` has the rules. The routes see
whose key it is (`mesh.access.principal`), and never the key itself.
"""

from collections.abc import Collection, Mapping

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mesh.access.keyring import Keys
from mesh.access.principal import KEY_PREFIX, bearer_in, is_key, principal_in, set_principal
from mesh.access.proxies import is_from_proxy
from mesh.access.rules import Rules
from mesh.http.revocation import RevocableRequest

_READ = frozenset(
    (
        b"accept",
        b"host",
        b"origin",
        b"sec-fetch-site",
        b"sec-fetch-mode",
        b"sec-fetch-dest",
        b"x-forwarded-host",
        b"x-api-key",
        b"authorization",
        b"access-control-request-method",
        b"access-control-request-private-network",
    )
)
_LINKED = ("/", "/docs")
"""Pages to read. A link on any page may open them, just as typing their address does."""
OPEN = ("/health", "/ready")
"""Paths that need no key. They say whether the mesh is up, and to a client without a key nothing else."""
_METHODS = "GET, POST, DELETE"
_SAFE = ("GET", "HEAD")
_NO_KEY = "this mesh asks for an API key: send it as X-API-Key, or as Authorization: Bearer mk_…"
_NOT_KNOWN = "the API key is not known here; it may have been revoked (mesh key list)"
_ACCEPTED = ", ".join(
    (
        "A2A-Extensions",
        "A2A-Version",
        "Accept",
        "Authorization",
        "Content-Type",
        "Idempotency-Key",
        "If-Modified-Since",
        "If-None-Match",
        "Last-Event-ID",
        "Prefer",
        "X-A2A-Extensions",
        "X-API-Key",
        "X-Request-ID",
        "X-Session-ID",
        "X-User",
        "traceparent",
        "tracestate",
    )
)
_EXPOSED = (
    "A2A-Extensions, ETag, Last-Modified, Location, Retry-After, WWW-Authenticate, X-Request-ID, X-Session-ID"
)
_PREFLIGHT_S = 600


class AccessCheck:
    """ASGI middleware: refuses requests with a JSON error, answers preflights, and sets the headers from
    which browsers know what pages may read. ``keys`` None: no key is needed. ``open_paths`` never need
    one."""

    def __init__(
        self, app: ASGIApp, rules: Rules, keys: Keys | None = None, open_paths: Collection[str] = OPEN
    ) -> None:
        self._app = app
        self._rules = rules
        self._keys = keys
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = _headers(scope)
            scope = _without_keys(scope, headers)
            refused, send = self._answer(scope, headers), self._headed(send, headers)
            if refused is not None:
                await refused(scope, receive, send)
            elif self._keys is None or principal_in(scope) is None:
                await self._app(scope, receive, send)
            else:
                await RevocableRequest(self._keys, _key(headers), receive, send).run(self._app, scope)
        elif scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        else:  # no route speaks WebSocket, which none of these rules would hold for
            await send({"type": "websocket.close", "code": 1008, "reason": "not spoken here"})

    def _answer(self, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """The response to a request that is refused, or answered here; None for one that passes."""
        rules, host = self._rules, self._host(scope, headers)
        if problem := rules.problem_with_host(host):
            return _problem(421, problem)
        if not (rules.allows_page(headers, host) or self._is_link(scope, headers)):
            return _problem(
                403,
                "another site asked; if its pages may use this mesh, put their origin into "
                "cors: {origins: […]} in the config",
            )
        if headers.get("origin") in rules.origins and _is_preflight(scope, headers):
            return _preflight(headers)
        return None if self._keys is None else self._unknown(self._keys, scope, headers)

    def _unknown(self, keys: Keys, scope: Scope, headers: Mapping[str, str]) -> Response | None:
        """The response to a request without a valid key. Puts the key's principal into the scope."""
        key = _key(headers)
        principal = keys.principal(key) if key else None
        set_principal(scope, principal)
        if principal is not None or (scope["method"] in _SAFE and _path(scope) in self._open_paths):
            return None
        return _problem(401, _NOT_KNOWN if key else _NO_KEY, **{"WWW-Authenticate": 'Bearer realm="mesh"'})

    def _host(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """The host that the client asked for, of this server or of a proxy that the config names."""
        forwarded = headers.get("x-forwarded-host", "").partition(",")[0].strip()
        if forwarded and is_from_proxy(scope, self._rules.proxies):
            return forwarded
        return headers.get("host", "")

    def _is_link(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Whether a person follows a link to one of the pages to read, in a window of its own."""
        return (
            scope["method"] == "GET"
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
            and "origin" not in headers
            and _path(scope) in _LINKED
        )

    def _headed(self, send: Send, headers: Mapping[str, str]) -> Send:
        """Adds the headers that browsers need; a response to a program is sent as it is."""
        origin = headers.get("origin", "")
        is_listed = origin in self._rules.origins
        # Over plain HTTP to another machine browsers say no Sec-Fetch-Site; of what they show, as frames too,
        # they say that it may be HTML.
        is_browser = bool(origin) or "sec-fetch-site" in headers or "text/html" in headers.get("accept", "")
        if not (is_browser or self._rules.origins):
            return send

        async def send_headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                response = MutableHeaders(scope=message)
                response["X-Content-Type-Options"] = "nosniff"
                response["X-Frame-Options"] = "DENY"
                if self._rules.origins:
                    response.add_vary_header("Origin")
                if is_listed:
                    response["Access-Control-Allow-Origin"] = origin
                    response["Access-Control-Expose-Headers"] = _EXPOSED
            await send(message)

        return send_headed


def _headers(scope: Scope) -> dict[str, str]:
    """The headers that are checked. A header that came several times is joined, and then matches nothing."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        if raw_name in _READ:
            name, value = raw_name.decode(), raw_value.decode("latin-1")
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _key(headers: Mapping[str, str]) -> str:
    """The API key that a request has, as X-API-Key or as a bearer token."""
    if "x-api-key" in headers:
        return headers["x-api-key"].strip()
    token = bearer_in(headers.get("authorization", ""))
    return token if is_key(token) else ""


def _without_keys(scope: Scope, headers: Mapping[str, str]) -> Scope:
    """The scope without API keys, since handlers may log headers or pass them on."""
    if not ("x-api-key" in headers or KEY_PREFIX in headers.get("authorization", "")):
        return scope
    return {**scope, "headers": [pair for pair in scope["headers"] if not _is_key_header(*pair)]}


def _is_key_header(name: bytes, value: bytes) -> bool:
    return name == b"x-api-key" or (
        name == b"authorization" and is_key(bearer_in(value.decode("latin-1").strip()))
    )


def _path(scope: Scope) -> str:
    """The path below where the app is mounted."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) or "/" if path == root or path.startswith(f"{root}/") else path


def _is_preflight(scope: Scope, headers: Mapping[str, str]) -> bool:
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def _preflight(headers: Mapping[str, str]) -> Response:
    """The response to a preflight. Credentials are not allowed: nothing here uses cookies."""
    allowed = {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": _ACCEPTED,
        "Access-Control-Max-Age": str(_PREFLIGHT_S),
    }
    if "access-control-request-private-network" in headers:
        allowed["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=204, headers=allowed)


def _problem(status: int, message: str, **headers: str) -> Response:
    return JSONResponse({"error": message}, status, headers)

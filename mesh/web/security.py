"""The security of the page in a browser: which requests are taken, and which headers every response has.

The page acts with the rights of a person, so no other site may act through that person's browser:

- *Cross-site requests* are recognized by the headers that browsers add (``Sec-Fetch-Site``, ``Origin``). A
  POST must be JSON besides, which another site cannot send without a preflight request, and those fail.
- *DNS rebinding*, a foreign name that suddenly resolves to this machine, is recognized by the name asked for
  (``Host``): an address cannot be rebound, and every other name must be in the config.
"""

from collections.abc import Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mesh.net.origin import hostname, is_address, is_cross_site

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_SAFE = ("GET", "HEAD")


class SecurityMiddleware:
    """Refuses requests, and puts `HEADERS` on every response. ``names`` are the host names that are served,
    besides addresses."""

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store" if is_api else "no-cache")
            await send(message)

        is_api = scope["path"].startswith("/api/")
        refused = self._refusal(scope["method"], Headers(scope=scope), is_api)
        app = JSONResponse({"error": refused[1]}, refused[0]) if refused else self._app
        await app(scope, receive, send_with_headers)

    def _refusal(self, method: str, headers: Headers, is_api: bool) -> tuple[int, str] | None:
        host = headers.get("host", "")
        if not self._is_served(hostname(host)):
            return 421, "this server does not go by the name you asked for (allowed_hosts in web.yaml)"
        if is_api and is_cross_site(headers, host):
            return 403, "another site asked; only the chat's own page may"
        if is_api and method not in _SAFE and not _is_json(headers):
            return 415, "send JSON, with Content-Type: application/json"
        return None

    def _is_served(self, name: str) -> bool:
        return name in self._names or is_address(name)


def _is_json(headers: Headers) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"

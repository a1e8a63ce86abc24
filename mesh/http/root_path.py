"""Agents that are served below a path, and not at ``/``.

Routes, documents and errors know the path already (ASGI's ``root_path``). A ``Location`` does not: it is
built from ids, by code that does not need to know where the agent is mounted.
"""

from collections.abc import Mapping

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BelowPaths:
    """ASGI application: passes each request on to the one of the first part of its path (``/name``), or else
    to the one at ``/``."""

    def __init__(self, apps: Mapping[str, ASGIApp], at_root: ASGIApp) -> None:
        self._apps = apps
        self._at_root = at_root

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "/" + scope.get("path", "").removeprefix("/").partition("/")[0]
        app = self._apps.get(path)
        if app is None:  # or an event of the process, in which none of ours does anything
            await self._at_root(scope, receive, send)
        else:
            await app({**scope, "root_path": scope.get("root_path", "") + path}, receive, send)


class RootPathInLocation:
    """ASGI middleware: puts ``root_path`` before each ``Location`` that is a path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "")

        async def send_with_root_path(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                location = headers.get("location", "")
                if location.startswith("/") and not location.startswith("//"):
                    headers["location"] = root + location
            await send(message)

        await self._app(scope, receive, send_with_root_path if root else send)

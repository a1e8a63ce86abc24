"""An agent that is served below a path, and not at ``/``.

Routes, documents and errors know the path already (ASGI's ``root_path``). A ``Location`` does not: it is
built from ids, by code that does not need to know where the agent is mounted.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


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

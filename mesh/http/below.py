"""An agent that is not served at ``/`` but below a path: what it answers says so.

Routes, documents and errors know the path already (ASGI's ``root_path``). Keepers, who say where a
conversation is to be found (``Location``), do not, and should not: they outlive the path.
"""

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Below:
    """ASGI middleware: puts ``root_path`` before each ``Location`` that is a path."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "")

        async def send_below(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                location = headers.get("location", "")
                if location.startswith("/") and not location.startswith("//"):
                    headers["location"] = root + location
            await send(message)

        await self._app(scope, receive, send_below if root else send)

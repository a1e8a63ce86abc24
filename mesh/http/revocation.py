"""Ends the response to a request whose API key is revoked meanwhile.

A stream may be open for days. When its key is revoked, its app is told that the client has left, and the
client that the response has ended. The client's next request is refused.
"""

import asyncio
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mesh.access.keyring import Keys

LOOK_EACH_S = 2.0
"""How often the key of an open stream is checked."""


class RevocableRequest:
    """One request. The key is checked only while the app waits for the client to leave, as streams do. So
    other requests cost nothing more, and a response that has not begun is not ended."""

    def __init__(self, keys: Keys, key: str, receive: Receive, send: Send) -> None:
        self._keys = keys
        self._key = key
        self._receive = receive
        self._send = send
        self._is_read = False
        self._has_begun = False
        self._has_ended = False
        self._is_revoked = False

    async def run(self, app: ASGIApp, scope: Scope) -> None:
        """Runs the app for it."""
        await app(scope, self._received, self._sent)
        if self._is_revoked and not self._has_ended:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _received(self) -> Message:
        if self._is_read:
            return await self._left()
        message = await self._receive()
        self._is_read = not message.get("more_body", False)
        return message

    async def _left(self) -> Message:
        """Waits until the client has left, or its key is revoked."""
        while True:
            # Awaited here and not in a task: an app that looks without waiting gets what is there already.
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EACH_S):
                    return await self._receive()
            if self._has_begun and self._keys.principal(self._key) is None:
                self._is_revoked = True
                return {"type": "http.disconnect"}

    async def _sent(self, message: Message) -> None:
        self._has_begun = True
        self._has_ended = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)

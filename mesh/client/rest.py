"""A client of a mesh's HTTP API: what a terminal, a script or another service needs to talk to an agent.

Above: whoever shows or decides things. Below: the REST routes and the event streams. It keeps no
conversation: that is the mesh's. A turn is watched and driven on two paths, so that neither loses anything:

    events(id, after)      a stream that comes back by itself where it broke (`Last-Event-ID`): every
                           journaled event once and in order, between `Up` and `Down` of the connection
    say, decide, cancel    short requests that return once the mesh has it on disk. They carry a key, so that
                           one that got no answer is sent again and counts once

Raises `Unreachable` when nobody answers, `Refused` when the mesh says no. No message has the token or key.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from mesh.client.replies import ConversationPage, ToolInfo, TreeNode
from mesh.core.approvals import Decision
from mesh.core.errors import MeshError
from mesh.core.events import AnyEvent, CutOff, decode
from mesh.core.view import ConversationView
from mesh.net.backoff import Backoff, Patience
from mesh.net.sse import data_of_events

CONNECT_S = 10.0
ANSWER_S = 30.0
SILENCE_S = 45.0
"""How long a stream may say nothing, not even a heartbeat (one each 15 s), before it counts as lost."""
CANCEL_S = 600.0
"""A cancellation waits for the destructive tool that runs."""
TRIES_FOR_S = 20.0
COMES_BACK_WITHIN_S = 60.0
_RETRIES = Backoff(first_s=0.1, longest_s=2.0)
_MOST_ERROR = 500
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NO_KEY = 401
_BUSY = (429, 502, 503, 504)

Body = TypeVar("Body")


class ClientError(MeshError):
    """The mesh did not do what it was asked."""


class Unreachable(ClientError):
    """Nobody answers there, or not in time."""


class Refused(ClientError):
    """The mesh says no, and why. ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Up(msgspec.Struct, frozen=True):
    """The stream is open: what happens from here on will be seen."""


class Down(msgspec.Struct, frozen=True):
    """The stream broke off; it will go on where it was."""

    why: str


class _TurnReply(msgspec.Struct):
    conversation: ConversationView


class _Tools(msgspec.Struct):
    tools: list[ToolInfo]


class _Tree(msgspec.Struct):
    tree: TreeNode


class _Problem(msgspec.Struct):
    error: str


class _Numbered(msgspec.Struct):
    seq: int = 0


def new_key() -> str:
    """An Idempotency-Key."""
    return secrets.token_hex(16)


class MeshClient:
    """The mesh at a URL. ``token`` goes along as a bearer token, ``user`` as the name of who asks and decides
    (where no key says that). ``key``: an API key of the mesh."""

    def __init__(self, url: str, token: str = "", user: str = "", key: str = "") -> None:
        parts = urlsplit(url)
        self._where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        headers = {"X-User": quote(user, safe="@ .-_")[:128]} if user else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if key:
            headers["X-API-Key"] = key
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
            trust_env=parts.hostname not in _LOOPBACK,
            follow_redirects=False,  # it would take the key to wherever the other side says
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def create(self) -> str:
        """A new conversation without a message; its id."""
        return self._read(await self._post("/conversations", {}), _TurnReply).conversation.id

    async def say(self, conversation_id: str, message: str, key: str = "") -> None:
        """Sends a message. Returns once it is durable; watch `events` for what comes of it."""
        await self._post(f"{_path(conversation_id)}/messages", {"message": message}, key)

    async def decide(self, decision: Decision, key: str = "") -> None:
        """Decides an approval."""
        body: dict[str, Any] = (
            {"answer": decision.answer} if decision.choice == "answer" else {"action": decision.choice}
        )
        if decision.edited_args is not None:
            body["edited_args"] = decision.edited_args
        if decision.reason:
            body["reason"] = decision.reason
        await self._post(f"/approvals/{quote(decision.uuid, safe='')}", body, key)

    async def cancel(self, conversation_id: str) -> None:
        """Ends the open turn, running or waiting. Fine when there is none."""
        await self._post(f"{_path(conversation_id)}/cancel", {}, answer_s=CANCEL_S)

    async def show(self, conversation_id: str) -> ConversationView:
        return self._read(await self._get(_path(conversation_id)), _TurnReply).conversation

    async def page(self, limit: int = 50, cursor: str = "", status: str = "") -> ConversationPage:
        """Conversations, newest first."""
        asked = {"limit": str(limit), "cursor": cursor, "status": status}
        query = {key: value for key, value in asked.items() if value}
        return self._read(await self._get("/conversations", query), ConversationPage)

    async def tools(self) -> list[ToolInfo]:
        return self._read(await self._get("/tools"), _Tools).tools

    async def tree(self) -> TreeNode:
        return self._read(await self._get("/tree"), _Tree).tree

    async def log(self, conversation_id: str) -> bytes:
        """The journal of a conversation, one JSON object a line."""
        return (await self._get(f"{_path(conversation_id)}/log")).content

    async def import_log(self, lines: bytes) -> str:
        """Makes the conversation of a journal one of this mesh; its id."""
        headers = {"Content-Type": "application/x-ndjson"}
        return self._read(
            await self._send("POST", "/conversations/import", content=lines, headers=headers), _TurnReply
        ).conversation.id

    async def events(
        self, conversation_id: str, after: int | None = None
    ) -> AsyncGenerator[AnyEvent | Up | Down, None]:
        """What happens in a conversation after event ``after`` (None: from now on), without end.

        Comes back by itself for `COMES_BACK_WITHIN_S`, and tries for `TRIES_FOR_S` at first; then raises
        `Unreachable`. An event of a type that is not known here is left out.
        """
        patience = Patience(_RETRIES, TRIES_FOR_S)
        while True:
            why = "the mesh ended the stream"
            try:
                async with aclosing(self._stream(conversation_id, after)) as stream:
                    async for item in stream:
                        if isinstance(item, _Numbered):
                            after = item.seq or after
                            continue
                        if isinstance(item, Up):
                            patience = Patience(_RETRIES, COMES_BACK_WITHIN_S)
                        yield item
                        if isinstance(item, CutOff):
                            break
            except (httpx2.TransportError, _Busy) as problem:
                why = _words(problem)
            if patience.is_over:
                raise Unreachable(f"{self._where}: {why}")
            yield Down(why)
            await asyncio.sleep(patience.next_delay())

    async def _stream(
        self, conversation_id: str, after: int | None
    ) -> AsyncGenerator[AnyEvent | Up | _Numbered, None]:
        """One connection: `Up`, then events, each followed by its number if it has one."""
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        path = f"{_path(conversation_id)}/events"
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                await response.aread()
                raise self._refusal(response)
            yield Up()
            async for data in data_of_events(response):
                number = _number(data)
                if number.seq and number.seq <= (after or 0):
                    continue
                after = number.seq or after
                if (event := _event(data)) is not None:
                    yield event
                yield number

    async def _get(self, path: str, query: dict[str, str] | None = None) -> httpx2.Response:
        return await self._send("GET", path, params=query or {})

    async def _post(
        self, path: str, body: dict[str, Any], key: str = "", answer_s: float = ANSWER_S
    ) -> httpx2.Response:
        """Sends again what got no answer, under one key."""
        headers = {"Idempotency-Key": key or new_key(), "Prefer": "respond-async"}
        patience = Patience(_RETRIES, TRIES_FOR_S)
        while True:
            try:
                return await self._send(
                    "POST",
                    path,
                    json=body,
                    headers=headers,
                    timeout=httpx2.Timeout(answer_s, connect=CONNECT_S),
                )
            except (Unreachable, _Busy):
                if patience.is_over:
                    raise
            await asyncio.sleep(patience.next_delay())

    async def _send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        try:
            response = await self._http.request(method, path, **more)
        except httpx2.TransportError as problem:
            raise Unreachable(f"{self._where}: {_words(problem)}") from problem
        if not response.is_success:
            raise self._refusal(response)
        return response

    def _refusal(self, response: httpx2.Response) -> Refused:
        try:
            message = msgspec.json.decode(response.content, type=_Problem).error
        except msgspec.DecodeError:
            message = (
                f"{self._where}: {response.request.url.path}: HTTP {response.status_code}; is this a mesh?"
            )
        if response.status_code == _NO_KEY:
            message += " (for mesh commands: --key or MESH_KEY)"
        kind = _Busy if response.status_code in _BUSY else Refused
        return kind(response.status_code, message[:_MOST_ERROR])

    def _read(self, response: httpx2.Response, kind: type[Body]) -> Body:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as problem:
            path = response.request.url.path
            raise ClientError(f"{self._where}: {path} is not what a mesh answers: {problem}") from problem


class _Busy(Refused):
    """Not now."""


def _path(conversation_id: str) -> str:
    return f"/conversations/{quote(conversation_id, safe='')}"


def _number(data: str) -> _Numbered:
    try:
        return msgspec.json.decode(data, type=_Numbered)
    except msgspec.DecodeError as problem:
        raise httpx2.SSEError(f"the stream has something that is no event: {problem}") from problem


def _event(data: str) -> AnyEvent | None:
    """The event; None: of a type that is not known here."""
    try:
        event: AnyEvent = decode(data)
    except msgspec.ValidationError:
        return None
    return event


def _words(problem: Exception) -> str:
    """What happened on the wire, for a person: some of httpx2's errors have no text."""
    if isinstance(problem, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "nobody answers"
    if isinstance(problem, httpx2.TimeoutException):
        return "no answer in time"
    return str(problem) or "the connection broke off"

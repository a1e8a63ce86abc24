"""A client of a mesh's HTTP API, for terminals, scripts and other services.

Below are the REST routes and the event streams. The client keeps no conversation: the mesh does. A turn is
watched and driven on two paths, so that neither loses anything:

    events(id, after)      a stream that reconnects by itself where it broke (`Last-Event-ID`). It yields
    every journaled event once and in order, and `Connected` and `Disconnected` say, decide, cancel    short
    requests that return once the mesh has them on disk. They carry an idempotency key, so that a request
    without an answer can be sent again and counts once

Raises `MeshUnreachable` if there is no answer, and `RequestRefused` if the mesh refuses a request. No message
contains the token or the key.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
import msgspec

from mesh.client.responses import (
    AgentAnswer,
    AgentInfo,
    AgentsSnapshot,
    ConversationPage,
    ShownAgent,
    ToolInfo,
    TreeNode,
)
from mesh.core.actions import AgentAction
from mesh.core.agent_versions import AgentVersions
from mesh.core.agents_of_turn import AgentView
from mesh.core.approvals import Decision
from mesh.core.errors import MeshError
from mesh.core.events import STORE_WENT_BACK, AnyEvent, CutOff, NewsAction, Preview, decode
from mesh.core.mesh_state import MeshState
from mesh.core.spending import SpendReport
from mesh.core.view import ConversationView
from mesh.net.backoff import Backoff, Patience
from mesh.net.sse import data_of_events, events_of

CONNECT_S = 10.0
ANSWER_S = 30.0
SILENCE_S = 45.0
"""How long a stream may be silent before it counts as lost. The mesh sends a heartbeat every 15 s."""
MOST_SNAPSHOT_BYTES = 64 * 1024 * 1024
"""How large a snapshot of all agents at work may be."""
CANCEL_S = 600.0
"""A cancellation waits for a destructive tool that is running."""
RETRY_FOR_S = 20.0
RECONNECT_FOR_S = 60.0
_RETRIES = Backoff(first_s=0.1, longest_s=2.0)
_MAX_ERROR = 500
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_UNAUTHORIZED = 401
_RETRYABLE = (429, 502, 503, 504)

Body = TypeVar("Body")
T = TypeVar("T")


class ClientError(MeshError):
    """The mesh did not do what it was asked to do."""


class MeshUnreachable(ClientError):
    """There is no answer, or not in time."""


class RequestRefused(ClientError):
    """The mesh refused a request. The message says why; ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connected(msgspec.Struct, frozen=True):
    """The stream is open: everything that happens from now on will be yielded."""


class Disconnected(msgspec.Struct, frozen=True):
    """The stream broke. It will continue where it was."""

    why: str


class _TurnResponse(msgspec.Struct):
    conversation: ConversationView


class _ToolsResponse(msgspec.Struct):
    tools: list[ToolInfo]


class _AgentsResponse(msgspec.Struct):
    agents: list[AgentInfo]


class _TreeResponse(msgspec.Struct):
    tree: TreeNode
    agents: list[TreeNode] = []  # a mesh of an earlier version has none


class _InterventionResponse(msgspec.Struct):
    agent: AgentView


class _ErrorResponse(msgspec.Struct):
    error: str


class _Numbered(msgspec.Struct):
    seq: int = 0
    type: str = ""

    @property
    def is_of_loss(self) -> bool:
        """Whether the store has lost what had this number before."""
        return self.type == STORE_WENT_BACK


def new_key() -> str:
    """Returns a new value for the Idempotency-Key header."""
    return secrets.token_hex(16)


class MeshClient:
    """A client of the mesh at a URL.

    ``token`` is sent as a bearer token. ``user`` is sent as the name of the user; a mesh with keys ignores it
    and takes the name of the key. ``key`` is an API key of the mesh. ``transport`` leads to a mesh in the
    same process, instead of the network.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        user: str = "",
        key: str = "",
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._shown_url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        headers = {"X-User": quote(user, safe="@ .-_")[:128]} if user else {}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        if key:
            headers["X-API-Key"] = key
        self._http = httpx2.AsyncClient(
            base_url=url,
            headers=headers,
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport,
            trust_env=transport is None and parts.hostname not in _LOOPBACK,
            follow_redirects=False,  # a redirect could send the key anywhere
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def create(self) -> str:
        """Creates a conversation without a message and returns its id."""
        return self._read(await self._post("/conversations", {}), _TurnResponse).conversation.id

    async def say(
        self,
        conversation_id: str,
        message: str,
        key: str = "",
        budget: Mapping[str, float] | None = None,
    ) -> None:
        """Sends a message. Returns once it is durable; `events` yields what follows.

        ``budget`` are limits of the turn, such as ``{"max_cost_usd": 0.5}``: they tighten those of the
        agent.
        """
        body: dict[str, Any] = {"message": message}
        if budget:
            body["budget"] = dict(budget)
        await self._post(f"{_path(conversation_id)}/messages", body, key)

    async def decide(self, decision: Decision, key: str = "") -> None:
        """Decides an approval."""
        body: dict[str, Any] = (
            {"answer": decision.answer} if decision.choice == "answer" else {"action": decision.choice}
        )
        if decision.edited_args is not None:
            body["edited_args"] = decision.edited_args
        if decision.reason:
            body["reason"] = decision.reason
        if decision.remember != "none":
            body["remember"] = decision.remember
        if decision.rule is not None:
            body["rule"] = decision.rule
        if decision.until:
            body["until"] = decision.until
        await self._post(f"/approvals/{quote(decision.uuid, safe='')}", body, key)

    async def preview(self, uuid: str, offset: int) -> Preview:
        """Returns the rest of the preview of an approval, from a character of its text on."""
        path = f"/approvals/{quote(uuid, safe='')}/preview"
        return self._read(await self._get(path, {"offset": str(offset)}), Preview)

    async def cancel(self, conversation_id: str) -> None:
        """Cancels the open turn, whether it works or is paused. Does nothing if there is none."""
        await self._post(f"{_path(conversation_id)}/cancel", {}, answer_s=CANCEL_S)

    async def show(self, conversation_id: str) -> ConversationView:
        return self._read(await self._get(_path(conversation_id)), _TurnResponse).conversation

    async def page(
        self, limit: int = 50, cursor: str = "", status: str = "", version: str = ""
    ) -> ConversationPage:
        """Returns some of the conversations, newest first."""
        asked = {"limit": str(limit), "cursor": cursor, "status": status, "version": version}
        query = {key: value for key, value in asked.items() if value}
        return self._read(await self._get("/conversations", query), ConversationPage)

    async def tools(self) -> list[ToolInfo]:
        return self._read(await self._get("/tools"), _ToolsResponse).tools

    async def status(self) -> MeshState:
        """How the mesh is."""
        return self._read(await self._get("/status"), MeshState)

    async def versions(self) -> AgentVersions:
        """The versions of the agent."""
        return self._read(await self._get("/versions"), AgentVersions)

    async def move(self, conversation_id: str, version: str, *, is_trial: bool) -> None:
        """Moves a conversation to a version; a trial changes nothing. Raises `RequestRefused` (409) if it
        cannot be moved."""
        body = {"version": version, "dry_run": is_trial}
        self._read(await self._post(f"{_path(conversation_id)}/version", body), _TurnResponse)

    async def tree(self) -> TreeNode:
        return self._read(await self._get("/tree"), _TreeResponse).tree

    async def trees_of_called_agents(self) -> list[TreeNode]:
        return self._read(await self._get("/tree"), _TreeResponse).agents

    async def agents(self) -> list[AgentInfo]:
        """Returns the root agent and the agents that others may call."""
        return self._read(await self._get("/agents"), _AgentsResponse).agents

    async def agents_at_work(self, conversation_id: str = "", *, ended: bool = False) -> list[AgentView]:
        """Returns the agents at work, of all conversations or of one; ``ended``: also those of the newest
        turns that have ended."""
        query = {"conversation": conversation_id} if conversation_id else {}
        response = await self._get("/agent/tree", {**query, **({"all": "true"} if ended else {})})
        found = [*self._read(response, dict[str, AgentView]).values()]
        while "next" in response.links:
            response = await self._get(response.links["next"]["url"])
            found += self._read(response, dict[str, AgentView]).values()
        return found

    async def follow_agents(
        self, conversation_id: str = ""
    ) -> AsyncGenerator[AgentsSnapshot | AgentView, None]:
        """Yields the agents at work, of all conversations or of one, and then each agent that has changed,
        without end. What it yields after a loss of the connection begins with a snapshot, too.

        Raises `MeshUnreachable` if it cannot connect within `RETRY_FOR_S`, or after a loss within
        `RECONNECT_FOR_S`.
        """
        async with aclosing(self._reconnecting(lambda: self._agent_stream(conversation_id))) as stream:
            async for item in stream:
                yield item

    async def _reconnecting(self, connect: Callable[[], AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
        """Yields what one connection after the other brings. Raises `MeshUnreachable` as `follow_agents`
        does."""
        patience = Patience(_RETRIES, RETRY_FOR_S)
        while True:
            why = "the mesh ended the stream"
            try:
                async with aclosing(connect()) as stream:
                    async for item in stream:
                        yield item
                        # From here on, as whoever has read it may have taken long.
                        patience = Patience(_RETRIES, RECONNECT_FOR_S)
            except (httpx2.TransportError, _NotNow) as problem:
                why = _described(problem)
            if patience.is_over:
                raise MeshUnreachable(f"{self._shown_url}: {why}")
            await asyncio.sleep(patience.next_delay())

    async def _agent_stream(self, conversation_id: str) -> AsyncGenerator[AgentsSnapshot | AgentView, None]:
        query = {"conversation": conversation_id} if conversation_id else None
        headers = {"Accept": "text/event-stream"}
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        async with self._http.stream(
            "GET", "/agent/tree", params=query, headers=headers, timeout=timeout
        ) as response:
            if response.status_code != 200:
                await response.aread()
                raise self._refusal(response)
            async for event in events_of(response, MOST_SNAPSHOT_BYTES):
                if event.event == "snapshot":
                    yield msgspec.json.decode(event.data, type=AgentsSnapshot)
                elif event.event == "agent_state":
                    yield msgspec.json.decode(event.data, type=AgentView)

    async def agent(self, agent_id: str) -> ShownAgent:
        """Returns one agent, of any turn, with the messages between it and its model."""
        return self._read(await self._get(f"/agent/{quote(agent_id, safe='')}"), ShownAgent)

    async def intervene(
        self,
        agent_id: str,
        action: NewsAction,
        text: str = "",
        *,
        changes: Mapping[str, Any] | None = None,
        now: bool = False,
        restart: bool = False,
        key: str = "",
    ) -> AgentView:
        """Steps in with an agent at work, as docs/steer.md says; returns how it stands then. ``text`` is what
        it is told, or the reason. ``restart``: with `modify`, it begins anew."""
        body: dict[str, Any] = {"action": action, "now": now, **({"restart": True} if restart else {})}
        if text:
            body["text" if action == "comment" else "reason"] = text
        if changes is not None:
            body["changes"] = dict(changes)
        path = f"/agent/{quote(agent_id, safe='')}/intervene"
        return self._read(await self._post(path, body, key), _InterventionResponse).agent

    async def add_agent(self, agent_id: str, name: str, task: str, *, key: str = "") -> AgentView:
        """Adds an agent to those that one at work has started, and returns the new one."""
        path = f"/agent/{quote(agent_id, safe='')}/spawn"
        body = {"agent": name, "task": task}
        return self._read(await self._post(path, body, key), _InterventionResponse).agent

    async def answers(self, prompt: str, agent_id: str = "") -> AsyncGenerator[AgentAnswer, None]:
        """Says something to an agent, whose conversation goes on if it has an id, and yields how it has
        answered: for now, each time that a person is asked or the turn is paused, and then for good. What
        people are asked is to be decided meanwhile. It reconnects by itself, and starts nothing twice.

        Raises `RequestRefused`, and `MeshUnreachable` as `events` does."""
        body = {"prompt": prompt, **({"agentId": agent_id} if agent_id else {})}
        headers = {"Accept": "text/event-stream", "Idempotency-Key": new_key()}
        async with aclosing(self._reconnecting(lambda: self._chunks(body, headers))) as stream:
            async for answer in stream:
                if answer is not None:
                    yield answer
                    if answer.is_last:
                        return

    async def _chunks(
        self, body: dict[str, Any], headers: dict[str, str]
    ) -> AsyncGenerator[AgentAnswer | None, None]:
        """Reads `/agent/stream`: yields the answers in it, and None for all else. Where it stands is in the
        headers."""
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        async with self._http.stream(
            "POST", "/agent/stream", json=body, headers=headers, timeout=timeout
        ) as response:
            if response.status_code != 200:
                await response.aread()
                raise self._refusal(response)
            async for event in events_of(response):
                if event.id:
                    headers["Last-Event-ID"] = event.id
                is_answer = event.event == "finish"
                yield msgspec.json.decode(event.data, type=AgentAnswer) if is_answer else None

    async def spend(self, conversation_id: str) -> SpendReport:
        """Returns what a conversation has spent, by agent and by model."""
        return self._read(await self._get(f"{_path(conversation_id)}/spend"), SpendReport)

    async def actions(self, conversation_id: str) -> list[AgentAction]:
        """Returns what the agents of a conversation did, oldest first."""
        lines = (await self._get(f"{_path(conversation_id)}/actions")).content.splitlines()
        return [msgspec.json.decode(line, type=AgentAction) for line in lines]

    async def log(self, conversation_id: str) -> bytes:
        """Returns the journal of a conversation, one JSON object per line."""
        return (await self._get(f"{_path(conversation_id)}/log")).content

    async def import_log(self, lines: bytes) -> str:
        """Imports the conversation of a journal and returns its id."""
        headers = {"Content-Type": "application/x-ndjson"}
        return self._read(
            await self._send("POST", "/conversations/import", content=lines, headers=headers), _TurnResponse
        ).conversation.id

    async def events(
        self, conversation_id: str, after: int | None = None
    ) -> AsyncGenerator[AnyEvent | Connected | Disconnected, None]:
        """Yields the events of a conversation after number ``after``, without end. None means from now on.

        Raises `MeshUnreachable` if it cannot connect within `RETRY_FOR_S`, or after a loss within
        `RECONNECT_FOR_S`. Events of unknown types are left out: the mesh may be newer than the client.
        """
        patience = Patience(_RETRIES, RETRY_FOR_S)
        while True:
            why = "the mesh ended the stream"
            try:
                async with aclosing(self._stream(conversation_id, after)) as stream:
                    async for item in stream:
                        if isinstance(item, _Numbered):
                            after = item.seq or after
                            continue
                        if isinstance(item, Connected):
                            patience = Patience(_RETRIES, RECONNECT_FOR_S)
                        yield item
                        if isinstance(item, CutOff):
                            break
            except (httpx2.TransportError, _NotNow) as problem:
                why = _described(problem)
            if patience.is_over:
                raise MeshUnreachable(f"{self._shown_url}: {why}")
            yield Disconnected(why)
            await asyncio.sleep(patience.next_delay())

    async def _stream(
        self, conversation_id: str, after: int | None
    ) -> AsyncGenerator[AnyEvent | Connected | _Numbered, None]:
        """Yields the items of one connection: `Connected`, then the events, each followed by its number."""
        headers = {"Accept": "text/event-stream"}
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
        path = f"{_path(conversation_id)}/events"
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                await response.aread()
                raise self._refusal(response)
            yield Connected()
            async for data in data_of_events(response):
                number = _number(data)
                if number.seq and number.seq <= (after or 0) and not number.is_of_loss:
                    continue
                after = number.seq or after
                if (event := _event(data)) is not None:
                    yield event
                yield number

    async def _get(self, path: str, query: dict[str, str] | None = None) -> httpx2.Response:
        return await self._send("GET", path, params=query or None)  # a path may have a query of its own

    async def _post(
        self, path: str, body: dict[str, Any], key: str = "", answer_s: float = ANSWER_S
    ) -> httpx2.Response:
        """Posts until there is an answer, always with the same idempotency key."""
        headers = {"Idempotency-Key": key or new_key(), "Prefer": "respond-async"}
        patience = Patience(_RETRIES, RETRY_FOR_S)
        while True:
            try:
                return await self._send(
                    "POST",
                    path,
                    json=body,
                    headers=headers,
                    timeout=httpx2.Timeout(answer_s, connect=CONNECT_S),
                )
            except (MeshUnreachable, _NotNow):
                if patience.is_over:
                    raise
            await asyncio.sleep(patience.next_delay())

    async def _send(self, method: str, path: str, **more: Any) -> httpx2.Response:
        try:
            response = await self._http.request(method, path, **more)
        except httpx2.TransportError as problem:
            raise MeshUnreachable(f"{self._shown_url}: {_described(problem)}") from problem
        if not response.is_success:
            raise self._refusal(response)
        return response

    def _refusal(self, response: httpx2.Response) -> RequestRefused:
        try:
            message = msgspec.json.decode(response.content, type=_ErrorResponse).error
        except msgspec.DecodeError:
            path = response.request.url.path
            message = f"{self._shown_url}: {path}: HTTP {response.status_code}; is this a mesh?"
        if response.status_code == _UNAUTHORIZED:
            message += " (for mesh commands: --key or MESH_KEY)"
        kind = _NotNow if response.status_code in _RETRYABLE else RequestRefused
        return kind(response.status_code, message[:_MAX_ERROR])

    def _read(self, response: httpx2.Response, kind: type[Body]) -> Body:
        try:
            return msgspec.json.decode(response.content, type=kind)
        except msgspec.DecodeError as problem:
            path = response.request.url.path
            raise ClientError(f"{self._shown_url}: {path} is not what a mesh answers: {problem}") from problem


class _NotNow(RequestRefused):
    """The mesh refused a request for now. The same request may succeed later."""


def _path(conversation_id: str) -> str:
    return f"/conversations/{quote(conversation_id, safe='')}"


def _number(data: str) -> _Numbered:
    try:
        return msgspec.json.decode(data, type=_Numbered)
    except msgspec.DecodeError as problem:
        raise httpx2.SSEError(f"the stream has something that is no event: {problem}") from problem


def _event(data: str) -> AnyEvent | None:
    """Returns the event, or None if its type is unknown."""
    try:
        event: AnyEvent = decode(data)
    except msgspec.ValidationError:
        return None
    return event


def _described(problem: Exception) -> str:
    """Describes a transport error for people. Some of httpx2's errors have no text."""
    if isinstance(problem, httpx2.ConnectError | httpx2.ConnectTimeout):
        return "nobody answers"
    if isinstance(problem, httpx2.TimeoutException):
        return "no answer in time"
    return str(problem) or "the connection broke off"

"""`/agent/stream`: a message is sent, and the answer is read, by one request.

    GET  ?prompt=…                                   for an `EventSource`
    POST {"prompt": …} or {"messages": […]}          for everybody else, such as the AI SDK's `useChat`

The ids of the events lead back to the turn: a client that comes again with `Last-Event-ID` goes on with the
same agent, and starts no second one. Each is ``<conversation>.<turn>.<last event before it>.<event>.<code
points>``, with the place of the agent behind it where that is not the root; the last one ends in ``.end``.
"""

import re
import secrets
from typing import Any

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.access.principal import principal_in
from mesh.config.model import Config
from mesh.core.errors import BadRequest, Conflict
from mesh.core.events import AnyEvent, ConversationCreated, CutOff, now
from mesh.core.ids import is_id, new_id
from mesh.core.places import ROOT, Place
from mesh.http.backend import Backend
from mesh.http.chunks import AiSdkParts, Chunk, ChunksOfTurn, FinishChunk
from mesh.http.parsing import caller_of, id_to_create, json_object, read_request, text_in
from mesh.http.responses import error_response, route, turn_headers
from mesh.http.streams import Streams, event_frame
from mesh.keeper.replies import TurnAccepted, TurnAnswer
from mesh.keeper.requests import Caller, Create, Intervene, SendMessage, Watch
from mesh.net.sse import encode
from mesh.tree.plan import infos_of_nodes

_PROTOCOLS = ("", "ai-sdk")
_ID = re.compile(r"([0-9a-f-]{36})\.(\d{1,15})\.(\d{1,15})\.(\d{1,15})\.(\d{1,15}|end)(?:@(.{1,4000}))?")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_NOT_SIMPLE = ("x-api-key", "authorization", "x-user", "x-session-id", "idempotency-key")
"""Headers that no page of another site can send without asking first."""
_USE_POST = "a GET from here may come from a page of another site: use POST, or send the header X-User"
_encode = msgspec.json.encode
_DONE = encode(b"[DONE]")


class _At(msgspec.Struct, frozen=True):
    """Where a stream stands. ``before`` is the last event before the turn, or before the agent; ``seq`` the
    newest one that the client has, ``told`` as in `ChunksOfTurn`."""

    conversation: str
    turn: int
    before: int
    place: str = ROOT.text
    seq: int = 0
    told: int = 0
    has_ended: bool = False

    @property
    def id(self) -> str:
        """As the id of an event."""
        last = "end" if self.has_ended else str(self.told)
        where = "" if self.place == ROOT.text else f"@{self.place}"
        return f"{self.conversation}.{self.turn}.{self.before}.{self.seq}.{last}{where}"


class _Asked(msgspec.Struct, frozen=True):
    """What a request asks for."""

    prompt: str
    agent_id: str = ""
    parent_id: str = ""
    agent: str = ""


class AgentStream:
    """The handlers of the routes. ``secret``: see `mesh.access.secret`."""

    def __init__(self, backend: Backend, streams: Streams, config: Config, secret: bytes) -> None:
        self._backend = backend
        self._streams = streams
        self._limits = config.limits
        self._created = ConversationCreated(
            conversation_id="",
            session_id="",
            agent=config.tree.name,
            digest=config.digest,
            nodes=infos_of_nodes(config),
        )
        self._secret = secret

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            route("GET", "/agent/stream", self._get),
            route("POST", "/agent/stream", self._post),
        ]

    async def _get(self, request: Request) -> Response:
        if (at := _at_in(request)) is not None:
            return await self._again(request, at)
        if not _is_of_this_site(request):
            return error_response(403, _USE_POST)
        query = request.query_params
        given = {name: query[name] for name in ("prompt", "agentId", "parentId", "agent") if name in query}
        return await self._begin(request, _asked_in(given, self._limits.max_message_bytes), b"")

    async def _post(self, request: Request) -> Response:
        raw = await read_request(request, self._limits.max_body_bytes)
        if (at := _at_in(request)) is not None:
            return await self._again(request, at)
        return await self._begin(request, _asked_in(json_object(raw), self._limits.max_message_bytes), raw)

    async def _begin(self, request: Request, asked: _Asked, raw: bytes) -> Response:
        _protocol_of(request)  # before anything begins
        caller = caller_of(request, raw or request.url.query.encode())
        if asked.parent_id:
            return await self._added(request, asked, caller)
        reply = await self._backend.ask(*self._message(request, asked, caller))
        conversation = reply.conversation
        if isinstance(reply, TurnAnswer) and not reply.is_taken:
            waits = reply.result.response if reply.result else ""
            raise Conflict(f"{conversation.id} takes no message while a person is asked. {waits}")
        if isinstance(reply, TurnAccepted):
            at = _At(conversation.id, reply.turn, reply.seq)
        else:  # the same request has come before, and its turn is over, or waits for a person
            at = _At(conversation.id, conversation.turn.number if conversation.turn else 0, 0)
        return await self._stream(request, at, turn_headers(reply.conversation))

    def _message(self, request: Request, asked: _Asked, caller: Caller) -> tuple[str, Create | SendMessage]:
        if asked.agent_id:
            send = SendMessage(asked.agent_id, caller, asked.prompt, wait=False, watched=True)
            return asked.agent_id, send
        if not caller.session_id:
            caller = structs.replace(caller, session_id=secrets.token_hex(4))
        id = id_to_create(request, caller, self._secret)
        return id, Create(id, caller, asked.prompt, wait=False, watched=True)

    async def _added(self, request: Request, asked: _Asked, caller: Caller) -> Response:
        adds = Intervene(asked.parent_id, caller, "spawn", asked.prompt, adds=asked.agent)
        added = (await self._backend.ask(asked.parent_id, adds)).agent
        return await self._stream(request, _At(added.conversation_id, added.turn, 0, added.place), {})

    async def _again(self, request: Request, at: _At) -> Response:
        if at.has_ended:  # an `EventSource` comes again until it is told not to
            return Response(status_code=204)
        return await self._stream(request, at, {})

    async def _stream(self, request: Request, at: _At, headers: dict[str, str]) -> Response:
        is_ai_sdk = _protocol_of(request) == "ai-sdk"
        created = structs.replace(self._created, conversation_id=at.conversation)
        teller = _AiSdk(at, created) if is_ai_sdk else _Plain(at, created)
        more = AiSdkParts.HEADERS if is_ai_sdk else {}
        # All events of the turn: those that the client has say how the agents stand by then. Who comes again
        # while a person is asked waits here for what follows.
        watch = Watch(at.conversation, new_id(), at.before, wait=False)
        return await self._streams.told(watch, teller, {**headers, **more})


class _Plain:
    """`Teller` of the chunks as they are."""

    def __init__(self, at: _At, created: ConversationCreated) -> None:
        self._at = at
        self._has = at.seq
        self._chunks = ChunksOfTurn(created, Place(at.place), at.told)
        self.is_over = False

    def begin(self) -> bytes:
        return encode(id=self._at.id)

    def told_of(self, event: AnyEvent) -> bytes:
        if event.turn != self._at.turn or self.is_over:
            return b""
        chunks = self._chunks.of(event)
        before, has_it = self._at.id, 0 < event.seq <= self._has
        self._at = structs.replace(
            self._at,
            seq=max(event.seq, self._at.seq),
            told=self._at.told if has_it else self._chunks.told,
            has_ended=self._chunks.is_over,
        )
        self.is_over = self._chunks.is_over
        if has_it or not chunks:
            return b""
        self.is_over |= isinstance(chunks[-1], FinishChunk)
        # Who was cut off in between gets all of them again.
        *first, last = chunks
        return b"".join(self._frame(chunk, before) for chunk in first) + self._frame(last, self._at.id)

    def _frame(self, chunk: Chunk, id: str) -> bytes:
        return encode(_encode(chunk), event=str(chunk.__struct_config__.tag), id=id)

    def cut_off(self, problem: str) -> bytes:
        told = CutOff(time=now(), message=problem, after=self._at.seq)
        return event_frame(told, self._at.conversation, numbered=False)


class _AiSdk(_Plain):
    """`Teller` of the parts of the AI SDK."""

    def __init__(self, at: _At, created: ConversationCreated) -> None:
        super().__init__(at, created)
        self._parts = AiSdkParts()

    def begin(self) -> bytes:
        parts = self._parts.begin(f"{self._at.conversation}.{self._at.turn}")
        return b"".join(_part(part, self._at.id) for part in parts)

    def _frame(self, chunk: Chunk, id: str) -> bytes:
        told = b"".join(_part(part, id) for part in self._parts.of(chunk))
        return told + _DONE if isinstance(chunk, FinishChunk) else told

    def cut_off(self, problem: str) -> bytes:
        return _part({"type": "error", "errorText": problem}, self._at.id) + _DONE


def _part(part: dict[str, Any], id: str) -> bytes:
    return encode(_encode(part), id=id)


def _at_in(request: Request) -> _At | None:
    """Where a stream stood, from ``Last-Event-ID``. Raises `BadRequest`."""
    last = request.headers.get("last-event-id", "")
    if not last:
        return None
    found = _ID.fullmatch(last)
    if found is None or not is_id(found[1]):
        raise BadRequest("Last-Event-ID is not one that this stream gave")
    conversation, turn, before, seq, told, place = found.groups()
    is_end = told == "end"
    return _At(
        conversation,
        int(turn),
        int(before),
        place or ROOT.text,
        int(seq),
        0 if is_end else int(told),
        is_end,
    )


def _protocol_of(request: Request) -> str:
    protocol = request.query_params.get("protocol", "")
    if protocol not in _PROTOCOLS:
        raise BadRequest("protocol must be ai-sdk, or not be there")
    return protocol


def _is_of_this_site(request: Request) -> bool:
    """Whether no page of another site can have sent a GET, which says something to an agent.

    Over plain HTTP to another machine browsers do not say who asks; to this one, and over HTTPS, they do, so
    that `AccessCheck` has refused it. What has an API key, or a header that is not simple, is no such
    request."""
    headers = request.headers
    host = headers.get("host", "")
    is_loopback = host.removesuffix(f":{host.rpartition(':')[2]}") in _LOOPBACK or host in _LOOPBACK
    says_who = is_loopback or "sec-fetch-site" in headers or "origin" in headers
    return says_who or bool(principal_in(request.scope)) or any(name in headers for name in _NOT_SIMPLE)


def _asked_in(body: dict[str, Any], limit: int) -> _Asked:
    """What a body, or a query, asks for. Raises `BadRequest`, `TooLarge`."""
    given = body if "prompt" in body or "messages" not in body else {"prompt": _newest_in(body["messages"])}
    prompt = text_in(given, "prompt", limit)
    agent_id, parent_id = _id_in(body, "agentId"), _id_in(body, "parentId")
    if agent_id and parent_id:
        raise BadRequest('"agentId" goes on with an agent, "parentId" adds one to it: say one of them')
    return _Asked(prompt, agent_id, parent_id, text_in(body, "agent", limit) if parent_id else "")


def _id_in(body: dict[str, Any], name: str) -> str:
    id = body.get(name)
    if id is None:
        return ""
    if not isinstance(id, str) or not is_id(id):
        raise BadRequest(f'"{name}" must be the id of an agent')
    return id


def _newest_in(messages: Any) -> str:
    """The text of the newest message of the user, in the form of a chat, or of the AI SDK."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadRequest('"messages" must be a list of messages, each with a "role"')
    mine = [each for each in messages if each.get("role") == "user"]
    if not mine:
        raise BadRequest('"messages" has none with the role "user"')
    if isinstance(text := mine[-1].get("content"), str):
        return text
    parts = mine[-1].get("parts", text)
    if not isinstance(parts, list):
        raise BadRequest('the newest message has neither "content" nor "parts"')
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))

"""The REST API. Each route reads a request, asks the keeper that owns the id, and renders its reply."""

import secrets
from collections.abc import Coroutine, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.access.principal import is_unauthenticated
from mesh.config.model import Config
from mesh.core.mesh_state import unready
from mesh.http.backend import Backend
from mesh.http.body_types import AgentList, ConversationPage
from mesh.http.parsing import (
    caller_of,
    decision_in,
    id_to_create,
    json_object,
    listing_query,
    message_in,
    offset_in,
    read_request,
)
from mesh.http.request_budget import RequestBudgets
from mesh.http.responses import error_response, json_response, route, turn_response
from mesh.http.streams import EventStream, Streams, wants_stream
from mesh.keeper.replies import ConversationReply, Conversations, NothingTaken, TurnReply
from mesh.keeper.requests import (
    Cancel,
    Complete,
    Create,
    Decide,
    Delete,
    SendMessage,
    Show,
    ShowPreview,
)
from mesh.tree.inventory import inventory
from mesh.tree.outline import agents

_STATUSES = ("active", "waiting_approval", "completed")


class RestApi:
    """The handlers of the routes. ``secret``: see `mesh.access.secret`."""

    def __init__(self, backend: Backend, streams: Streams, config: Config, secret: bytes) -> None:
        self._backend = backend
        self._streams = streams
        self._config = config
        self._limits = config.limits
        self._secret = secret
        self._budgets = RequestBudgets(config)

    def routes(self) -> list[Route]:
        """The routes."""
        conversation = "/conversations/{conversation_id}"
        return [
            route("GET", "/health", self._health),
            route("GET", "/ready", self._ready),
            route("GET", "/tools", self._tools),
            route("GET", "/agents", self._agents),
            route("POST", "/conversations", self._create),
            route("GET", "/conversations", self._list),
            route("GET", conversation, self._show),
            route("DELETE", conversation, self._delete),
            route("POST", f"{conversation}/messages", self._send_message),
            route("POST", f"{conversation}/complete", self._complete),
            route("POST", f"{conversation}/cancel", self._cancel),
            route("POST", "/approvals/{uuid}", self._decide),
            route("GET", "/approvals/{uuid}/preview", self._preview),
        ]

    async def _health(self, request: Request) -> Response:
        return json_response({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        missing = unready(await self._backend.parts())
        if missing:
            which = "" if is_unauthenticated(request.scope) else f": {', '.join(missing)}"
            return error_response(503, f"not ready{which}", 1)
        return json_response({"status": "ready"})

    async def _tools(self, request: Request) -> Response:
        return json_response({"tools": inventory(self._config, await self._backend.tools())})

    async def _agents(self, request: Request) -> Response:
        return json_response(AgentList(agents(self._config)))

    async def _create(self, request: Request) -> Response:
        return await self._turn(request, self._created(request), 201)

    async def _created(self, request: Request) -> TurnReply | ConversationReply:
        raw = await read_request(request, self._limits.max_body_bytes)
        caller = caller_of(request, raw)
        if not caller.session_id:
            caller = msgspec.structs.replace(caller, session_id=secrets.token_hex(4))
        body = json_object(raw) if raw.strip() else {}
        message = message_in(body, self._limits.max_message_bytes, required=False)
        conversation_id = id_to_create(request, caller, self._secret)
        wait, watched = _wait_and_watched(request)
        budget = self._budgets.limits_in(body)
        create = Create(conversation_id, caller, message, wait, watched, budget=budget)
        return await self._backend.ask(conversation_id, create)

    async def _list(self, request: Request) -> Response:
        asked = listing_query(request)
        shards, are_all = await self._backend.ask_reachable(asked)
        return json_response(conversation_page(shards, asked.limit, are_all=are_all))

    async def _show(self, request: Request) -> Response:
        conversation_id = request.path_params["conversation_id"]
        return turn_response(await self._backend.ask(conversation_id, Show(conversation_id)))

    async def _delete(self, request: Request) -> Response:
        conversation_id = request.path_params["conversation_id"]
        delete = Delete(conversation_id, caller_of(request, b"").by)
        return turn_response(await self._backend.ask(conversation_id, delete))

    async def _send_message(self, request: Request) -> Response:
        return await self._turn(request, self._sent(request))

    async def _sent(self, request: Request) -> TurnReply:
        conversation_id = request.path_params["conversation_id"]
        raw = await read_request(request, self._limits.max_body_bytes)
        body = json_object(raw)
        message = message_in(body, self._limits.max_message_bytes)
        assert message is not None  # required
        wait, watched = _wait_and_watched(request)
        budget = self._budgets.limits_in(body)
        caller = caller_of(request, raw)
        send = SendMessage(conversation_id, caller, message, wait, watched, budget=budget)
        return await self._backend.ask(conversation_id, send)

    async def _complete(self, request: Request) -> Response:
        conversation_id = request.path_params["conversation_id"]
        return turn_response(await self._backend.ask(conversation_id, Complete(conversation_id)))

    async def _cancel(self, request: Request) -> Response:
        conversation_id = request.path_params["conversation_id"]
        return turn_response(await self._backend.ask(conversation_id, Cancel(conversation_id)))

    async def _preview(self, request: Request) -> Response:
        uuid = request.path_params["uuid"]
        reply = await self._backend.ask(uuid, ShowPreview(uuid, offset_in(request)))
        return json_response(reply.preview)

    async def _decide(self, request: Request) -> Response:
        return await self._turn(request, self._decided(request))

    async def _decided(self, request: Request) -> TurnReply:
        uuid = request.path_params["uuid"]
        raw = await read_request(request, self._limits.max_body_bytes)
        decision = decision_in(json_object(raw), uuid)
        decide = Decide(caller_of(request, raw), (decision,), *_wait_and_watched(request))
        reply = await self._backend.ask(uuid, decide)
        assert not isinstance(reply, NothingTaken)  # only to a decision that says what its sender has seen
        return reply

    async def _turn(
        self, request: Request, work: Coroutine[Any, Any, TurnReply | ConversationReply], status: int = 200
    ) -> Response:
        """How the turn ends; as a stream, if the client wants that and a turn goes on."""
        reply = await (self._streams.turn(work) if wants_stream(request) else work)
        return reply if isinstance(reply, EventStream) else turn_response(reply, status)


def conversation_page(
    shards: Sequence[Conversations], limit: int, *, are_all: bool = True
) -> ConversationPage:
    """A page of the conversations of these shards, newest first, and whether they ``are_all``."""
    found = [summary for shard in shards for summary in shard.conversations]
    found.sort(key=attrgetter("created_cursor"), reverse=True)
    counts = counts_of(shards)
    page = found[:limit]
    cursor = page[-1].created_cursor if len(found) > limit else msgspec.UNSET
    summary = {"total": sum(counts.values()), **counts}
    return ConversationPage(page, summary, cursor, msgspec.UNSET if are_all else True)


def counts_of(shards: Sequence[Conversations]) -> dict[str, int]:
    """How many conversations of these shards have each status."""
    return {status: sum(shard.counts.get(status, 0) for shard in shards) for status in _STATUSES}


def _wait_and_watched(request: Request) -> tuple[bool, bool]:
    """Whether the client waits for the turn's end, and whether it watches the turn."""
    watched = wants_stream(request)
    is_async = "respond-async" in request.headers.get("prefer", "").lower()
    return not watched and not is_async, watched

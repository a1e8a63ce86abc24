"""The REST API. Each route reads a request, asks the keeper that owns the id, and renders its reply."""

import secrets
from collections.abc import Coroutine, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from mesh.access.principal import is_unauthenticated
from mesh.config.model import Config, Limits
from mesh.http import openapi
from mesh.http.body import caller_of, decision_of, id_to_create, message_of, page_of, parsed, read
from mesh.http.port import Backend
from mesh.http.responses import answered, error_response, json_response, turn_response
from mesh.http.schema import ConversationPage
from mesh.http.stream import EventStream, Streams, wants_stream
from mesh.keeper.replies import ConversationReply, Conversations, NothingTaken, TurnReply
from mesh.keeper.requests import Cancel, Complete, Create, Decide, Page, RequestFor, SendMessage, Show
from mesh.tree.inventory import inventory

_STATUSES = ("active", "waiting_approval", "completed")
_TurnWork = Coroutine[Any, Any, TurnReply | ConversationReply] | Coroutine[Any, Any, TurnReply]


def add_routes(api: FastAPI, backend: Backend, streams: Streams, config: Config, secret: bytes) -> None:
    """Adds the routes. To the app itself: a router of their own costs every request another layer.
    ``secret``: see `mesh.access.secret`."""
    limits = config.limits

    async def turn(request: Request, work: _TurnWork, status: int = 200) -> Response:
        """How the turn ends; as a stream, if the client wants that and a turn goes on."""
        return await answered(_turn(streams, request, work, status))

    async def asked(owner: str, request: RequestFor[TurnReply | ConversationReply]) -> Response:
        return turn_response(await backend.ask(owner, request))

    @api.get("/health", **openapi.HEALTH)
    async def health() -> Response:
        return json_response({"status": "ok"})

    @api.get("/ready", **openapi.READY)
    async def ready(request: Request) -> Response:
        missing = await backend.unready()
        if missing:
            which = "" if is_unauthenticated(request.scope) else f": {', '.join(missing)}"
            return error_response(503, f"not ready{which}", 1)
        return json_response({"status": "ready"})

    @api.get("/tools", **openapi.TOOLS)
    async def tools() -> Response:
        return await answered(_tools(backend, config))

    @api.post("/conversations", **openapi.CREATE)
    async def create(request: Request) -> Response:
        return await turn(request, _create(backend, limits, secret, request), 201)

    @api.get("/conversations", **openapi.LIST)
    async def page(request: Request) -> Response:
        return await answered(_page(backend, request))

    @api.get("/conversations/{conversation_id}", **openapi.SHOW)
    async def show(conversation_id: str) -> Response:
        return await answered(asked(conversation_id, Show(conversation_id)))

    @api.post("/conversations/{conversation_id}/messages", **openapi.SAY)
    async def say(conversation_id: str, request: Request) -> Response:
        return await turn(request, _say(backend, limits, conversation_id, request))

    @api.post("/conversations/{conversation_id}/complete", **openapi.FINISH)
    async def finish(conversation_id: str) -> Response:
        return await answered(asked(conversation_id, Complete(conversation_id)))

    @api.post("/conversations/{conversation_id}/cancel", **openapi.CANCEL)
    async def cancel(conversation_id: str) -> Response:
        return await answered(asked(conversation_id, Cancel(conversation_id)))

    @api.post("/approvals/{uuid}", **openapi.DECIDE)
    async def decide(uuid: str, request: Request) -> Response:
        return await turn(request, _decide(backend, limits, uuid, request))


async def _turn(streams: Streams, request: Request, work: "_TurnWork", status: int) -> Response:
    reply = await (streams.turn(work) if wants_stream(request) else work)
    return reply if isinstance(reply, EventStream) else turn_response(reply, status)


async def _create(
    backend: Backend, limits: Limits, secret: bytes, request: Request
) -> TurnReply | ConversationReply:
    raw = await read(request, limits.max_body_bytes)
    caller = caller_of(request, raw)
    if not caller.session_id:
        caller = msgspec.structs.replace(caller, session_id=secrets.token_hex(4))
    message = message_of(parsed(raw) if raw.strip() else {}, limits.max_message_bytes, required=False)
    conversation_id = id_to_create(request, caller, secret)
    return await backend.ask(conversation_id, Create(conversation_id, caller, message, *_how(request)))


async def _say(backend: Backend, limits: Limits, conversation_id: str, request: Request) -> TurnReply:
    raw = await read(request, limits.max_body_bytes)
    message = message_of(parsed(raw), limits.max_message_bytes)
    assert message is not None  # required
    return await backend.ask(
        conversation_id, SendMessage(conversation_id, caller_of(request, raw), message, *_how(request))
    )


async def _decide(backend: Backend, limits: Limits, uuid: str, request: Request) -> TurnReply:
    raw = await read(request, limits.max_body_bytes)
    decision = decision_of(parsed(raw), uuid)
    reply = await backend.ask(uuid, Decide(caller_of(request, raw), (decision,), *_how(request)))
    assert not isinstance(reply, NothingTaken)  # only a decision that says what its sender has seen
    return reply


async def _page(backend: Backend, request: Request) -> Response:
    limit, cursor, status = page_of(request)
    shards = await backend.ask_all(Page(limit, cursor, status))
    return json_response(conversation_page(shards, limit))


def conversation_page(shards: Sequence[Conversations], limit: int) -> ConversationPage:
    """A page of the conversations of all shards, newest first."""
    found = [summary for shard in shards for summary in shard.conversations]
    found.sort(key=attrgetter("created_cursor"), reverse=True)
    counts = {status: sum(shard.counts.get(status, 0) for shard in shards) for status in _STATUSES}
    page = found[:limit]
    cursor = page[-1].created_cursor if len(found) > limit else msgspec.UNSET
    return ConversationPage(page, {"total": sum(counts.values()), **counts}, cursor)


async def _tools(backend: Backend, config: Config) -> Response:
    return json_response({"tools": inventory(config, await backend.tools())})


def _how(request: Request) -> tuple[bool, bool]:
    """Whether the client waits for the turn's end, and whether it watches the turn."""
    watches = wants_stream(request)
    return not watches and "respond-async" not in request.headers.get("prefer", "").lower(), watches

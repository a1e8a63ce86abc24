"""The REST API. Each route reads, asks the keeper that owns the id, and passes its bytes on."""

import secrets
from collections.abc import Coroutine
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response

from mesh.access.principal import is_stranger
from mesh.config.model import Config, Limits
from mesh.http import openapi
from mesh.http.answered import answered, response
from mesh.http.body import caller_of, decision_of, id_to_create, message_of, page_of, parsed, read
from mesh.http.port import Backend
from mesh.http.stream import Streams, wants_stream
from mesh.keeper.answer import Listing, listing
from mesh.keeper.index import Entry
from mesh.keeper.requests import (
    Cancel,
    Create,
    Decide,
    Finish,
    Page,
    Reply,
    Say,
    Show,
    refusal,
    reply,
)
from mesh.tree.inventory import inventory

_unpack_listing = msgspec.json.Decoder(Listing).decode


def add_routes(api: FastAPI, backend: Backend, streams: Streams, config: Config, secret: bytes) -> None:
    """Adds the routes. To the app itself: a router of their own costs every request another layer.
    ``secret``: see `mesh.access.secret`."""
    limits = config.limits

    async def turn(request: Request, work: Coroutine[Any, Any, Reply]) -> Response:
        """How the turn ends; as a stream, if the client wants that and a turn goes on."""
        return await answered(streams.turn(work) if wants_stream(request) else work)

    @api.get("/health", **openapi.HEALTH)
    async def health() -> Response:
        return response(reply(200, {"status": "ok"}))

    @api.get("/ready", **openapi.READY)
    async def ready(request: Request) -> Response:
        missing = await backend.unready()
        if missing:
            which = "" if is_stranger(request.scope) else f": {', '.join(missing)}"
            return response(refusal(503, f"not ready{which}", retry_after_s=1))
        return response(reply(200, {"status": "ready"}))

    @api.get("/tools", **openapi.TOOLS)
    async def tools() -> Response:
        return await answered(_tools(backend, config))

    @api.post("/conversations", **openapi.CREATE)
    async def create(request: Request) -> Response:
        return await turn(request, _create(backend, limits, secret, request))

    @api.get("/conversations", **openapi.LIST)
    async def page(request: Request) -> Response:
        return await answered(_page(backend, request))

    @api.get("/conversations/{conversation_id}", **openapi.SHOW)
    async def show(conversation_id: str) -> Response:
        return await answered(backend.ask(conversation_id, Show(conversation_id)))

    @api.post("/conversations/{conversation_id}/messages", **openapi.SAY)
    async def say(conversation_id: str, request: Request) -> Response:
        return await turn(request, _say(backend, limits, conversation_id, request))

    @api.post("/conversations/{conversation_id}/complete", **openapi.FINISH)
    async def finish(conversation_id: str) -> Response:
        return await answered(backend.ask(conversation_id, Finish(conversation_id)))

    @api.post("/conversations/{conversation_id}/cancel", **openapi.CANCEL)
    async def cancel(conversation_id: str) -> Response:
        return await answered(backend.ask(conversation_id, Cancel(conversation_id)))

    @api.post("/approvals/{uuid}", **openapi.DECIDE)
    async def decide(uuid: str, request: Request) -> Response:
        return await turn(request, _decide(backend, limits, uuid, request))


async def _create(backend: Backend, limits: Limits, secret: bytes, request: Request) -> Reply:
    raw = await read(request, limits.max_body_bytes)
    caller = caller_of(request, raw)
    if not caller.session_id:
        caller = msgspec.structs.replace(caller, session_id=secrets.token_hex(4))
    message = message_of(parsed(raw) if raw.strip() else {}, limits.max_message_bytes, required=False)
    conversation_id = id_to_create(request, caller, secret)
    return await backend.ask(conversation_id, Create(conversation_id, caller, message, *_how(request)))


async def _say(backend: Backend, limits: Limits, conversation_id: str, request: Request) -> Reply:
    raw = await read(request, limits.max_body_bytes)
    message = message_of(parsed(raw), limits.max_message_bytes)
    assert message is not None  # required
    return await backend.ask(
        conversation_id, Say(conversation_id, caller_of(request, raw), message, *_how(request))
    )


async def _decide(backend: Backend, limits: Limits, uuid: str, request: Request) -> Reply:
    raw = await read(request, limits.max_body_bytes)
    decision = decision_of(parsed(raw), uuid)
    return await backend.ask(uuid, Decide(caller_of(request, raw), (decision,), *_how(request)))


async def _page(backend: Backend, request: Request) -> Reply:
    limit, cursor, status = page_of(request)
    replies = await backend.ask_all(Page(limit, cursor, status))
    failed = next((r for r in replies if r.status != 200), None)
    if failed:
        return failed
    pages = [_unpack_listing(r.body) for r in replies]
    entries: list[Entry] = [entry for page in pages for entry in page.conversations]
    entries.sort(key=lambda entry: (entry.created_at, entry.id), reverse=True)
    counts = {status: sum(page.summary[status] for page in pages) for status in pages[0].summary}
    merged = listing(entries, limit, counts)
    if merged.next_cursor is msgspec.UNSET and any(page.next_cursor is not msgspec.UNSET for page in pages):
        last = merged.conversations[-1]
        merged = msgspec.structs.replace(merged, next_cursor=f"{last.created_at}|{last.id}")
    return reply(200, merged)


async def _tools(backend: Backend, config: Config) -> Reply:
    return reply(200, {"tools": inventory(config, await backend.tools())})


def _how(request: Request) -> tuple[bool, bool]:
    """Whether the client waits for the turn's end, and whether it watches the turn."""
    watches = wants_stream(request)
    return not watches and "respond-async" not in request.headers.get("prefer", "").lower(), watches

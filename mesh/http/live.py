"""What happens, as it happens: streams of events, and conversations as logs."""

import re

from fastapi import FastAPI, Request, Response

from mesh.access.principal import principal_in
from mesh.config.model import Config
from mesh.core.errors import BadRequest
from mesh.core.events import NAMES
from mesh.core.ids import SESSION_IDS, is_session_id
from mesh.http import openapi_live as openapi
from mesh.http.body import read
from mesh.http.port import Backend
from mesh.http.responses import answered, json_response, turn_response
from mesh.http.stream import EventStream, Streams, last_seen
from mesh.keeper.requests import Export, Follow, Import
from mesh.keeper.transfer import created_in
from mesh.tree.outline import outline

_PLACES = re.compile(r"[0-9]{1,19}(\.[0-9]{1,19})*")
"""Where each keeper stands: nanoseconds, hence 19 digits, which 64 bits hold."""


def add_routes(api: FastAPI, backend: Backend, streams: Streams, config: Config) -> None:
    """Adds the routes."""
    tree = outline(config)

    @api.get("/tree", **openapi.TREE)
    async def show_tree() -> Response:
        return json_response({"tree": tree})

    @api.get("/conversations/{conversation_id}/events", **openapi.EVENTS)
    async def events(conversation_id: str, request: Request) -> Response:
        return await answered(_events(streams, conversation_id, request))

    @api.get("/events", **openapi.ALL_EVENTS)
    async def all_events(request: Request) -> Response:
        return await answered(_all_events(backend, streams, request))

    @api.get("/conversations/{conversation_id}/log", **openapi.LOG)
    async def log(conversation_id: str) -> Response:
        return await answered(_log(backend, conversation_id))

    @api.post("/conversations/import", **openapi.IMPORT)
    async def take_in(request: Request) -> Response:
        return await answered(_import(backend, config.limits.max_log_bytes, request))


async def _events(streams: Streams, conversation_id: str, request: Request) -> EventStream:
    return await streams.conversation(conversation_id, last_seen(request))


async def _all_events(backend: Backend, streams: Streams, request: Request) -> EventStream:
    query = request.query_params
    types = tuple(filter(None, query.get("type", "").split(",")))
    if unknown := [name for name in types if name not in NAMES]:
        raise BadRequest(f"there is no event {unknown[0][:64]!r}; there are {', '.join(sorted(NAMES))}")
    session_id = query.get("session_id", "")
    if session_id and not is_session_id(session_id):
        raise BadRequest(f"session_id must be {SESSION_IDS}")
    follow = Follow(types=types, session_id=session_id)
    return await streams.everything(follow, _cursors(request, backend.shards))


def _cursors(request: Request, shards: int) -> list[int]:
    said = request.headers.get("last-event-id", "")
    if not said:
        return [0] * shards
    if not _PLACES.fullmatch(said):
        raise BadRequest("Last-Event-ID is not one that this stream gave")
    cursors = [int(place) for place in said.split(".")]
    # Another number of keepers: it was given before the mesh was changed.
    return cursors if len(cursors) == shards else [0] * shards


async def _log(backend: Backend, conversation_id: str) -> Response:
    lines = await backend.ask(conversation_id, Export(conversation_id))
    return openapi.Lines(lines.content, headers={"X-Session-ID": lines.session_id})


async def _import(backend: Backend, limit: int, request: Request) -> Response:
    content = await read(request, limit, "limits.max_log_bytes")
    created, principal = created_in(content), principal_in(request.scope)
    by = principal.name if principal else ""
    owner = created.conversation_id
    return turn_response(await backend.ask(owner, Import(owner, content, by)), 201)

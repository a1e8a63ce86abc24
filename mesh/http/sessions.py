"""The session API: conversations for clients that know sessions. A thin face, with no state of its own.

A session is a conversation; its id is the conversation's, and a ``callId`` the uuid of an approval.
"""

import secrets

import msgspec
from fastapi import FastAPI, Request, Response

from mesh.config.model import Config
from mesh.core.errors import BadRequest, NotFound
from mesh.core.ids import tail
from mesh.http import openapi_live as openapi
from mesh.http.answered import answered
from mesh.http.body import caller_of, decision_of, id_to_create, message_of, parsed, read
from mesh.http.port import Backend
from mesh.http.stream import EventStream, Streams, last_seen
from mesh.keeper.requests import Create, Decide, Reply, Say, Show, refusal, reply
from mesh.llm.models import resolve

_TEXTS = ("provider", "model", "workspacePath")


def add_routes(api: FastAPI, backend: Backend, streams: Streams, config: Config, secret: bytes) -> None:
    """Adds the routes."""

    @api.post("/api/sessions", **openapi.SESSION)
    async def create(request: Request) -> Response:
        return await answered(_create(backend, config, secret, request))

    @api.get("/api/sessions/{session_id}/stream", **openapi.SESSION_STREAM)
    async def stream(session_id: str, request: Request) -> Response:
        return await answered(_stream(streams, session_id, request))

    @api.post("/api/sessions/{session_id}/chat", **openapi.SESSION_CHAT)
    async def chat(session_id: str, request: Request) -> Response:
        return await answered(_chat(backend, config, session_id, request))

    @api.post("/api/sessions/{session_id}/approvals/{call_id}", **openapi.SESSION_APPROVAL)
    async def decide(session_id: str, call_id: str, request: Request) -> Response:
        return await answered(_decide(backend, config, session_id, call_id, request))

    @api.post("/api/sessions/{session_id}/resume", **openapi.SESSION_RESUME)
    async def resume(session_id: str) -> Response:
        return await answered(_resume(backend, session_id))


async def _create(backend: Backend, config: Config, secret: bytes, request: Request) -> Reply:
    raw = await read(request, config.limits.max_body_bytes)
    body = parsed(raw) if raw.strip() else {}
    for name in _TEXTS:
        if not isinstance(body.get(name, ""), str | None):
            raise BadRequest(f'"{name}" must be a string')
    caller = caller_of(request, raw)
    if not caller.session_id:
        caller = msgspec.structs.replace(caller, session_id=secrets.token_hex(4))
    session_id = id_to_create(request, caller, secret)
    made = await backend.ask(session_id, Create(session_id, caller))
    if made.status != 201:
        return made
    # The agent's config chooses the model, not the client: it is told which.
    model = next((model for _, model in config.models()), config.llm.model)
    told = {"id": session_id, "provider": resolve(model, {}).provider, "model": model}
    return reply(201, told, made.session_id, location=f"/api/sessions/{session_id}")


async def _stream(streams: Streams, session_id: str, request: Request) -> Reply | EventStream:
    return await streams.conversation(session_id, last_seen(request), exclusive=True)


async def _chat(backend: Backend, config: Config, session_id: str, request: Request) -> Reply:
    raw = await read(request, config.limits.max_body_bytes)
    message = message_of(parsed(raw), config.limits.max_message_bytes)
    assert message is not None  # required
    said = await backend.ask(session_id, Say(session_id, caller_of(request, raw), message, wait=False))
    if said.status == 200 and msgspec.json.decode(said.body)["result"]["waiting_approval"]:
        return refusal(409, f"session {session_id} waits for an approval: decide it first")
    return _accepted(said, session_id)


async def _decide(backend: Backend, config: Config, session_id: str, call_id: str, request: Request) -> Reply:
    if tail(call_id) != tail(session_id):
        raise NotFound(f"session {session_id[:64]!r} has no approval {call_id[:64]!r}")
    raw = await read(request, config.limits.max_body_bytes)
    decide = Decide(caller_of(request, raw), (decision_of(parsed(raw), call_id),), wait=False)
    return _accepted(await backend.ask(call_id, decide), session_id)


async def _resume(backend: Backend, session_id: str) -> Reply:
    shown = await backend.ask(session_id, Show(session_id))
    if shown.status != 200:
        return shown
    conversation = msgspec.json.decode(shown.body)["conversation"]
    return reply(200, {"id": session_id, "conversation": conversation}, shown.session_id)


def _accepted(taken: Reply, session_id: str) -> Reply:
    if taken.status not in (200, 202):
        return taken
    return reply(202, {"id": session_id}, taken.session_id, location=f"/api/sessions/{session_id}/stream")

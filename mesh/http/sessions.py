"""The session API: conversations for clients that know sessions. A thin face, with no state of its own.

A session is a conversation; its id is the conversation's, and a ``callId`` the uuid of an approval.
"""

import secrets

import msgspec
from fastapi import FastAPI, Request, Response

from mesh.config.model import Config
from mesh.core.errors import BadRequest, Conflict, NotFound
from mesh.core.ids import tail
from mesh.http import openapi_live as openapi
from mesh.http.body import caller_of, decision_of, id_to_create, message_of, parsed, read
from mesh.http.port import Backend
from mesh.http.responses import answered, json_response, session_header, turn_response
from mesh.http.stream import EventStream, Streams, last_seen
from mesh.keeper.replies import NothingTaken, TurnAnswer, TurnReply
from mesh.keeper.requests import Create, Decide, SendMessage, Show
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


async def _create(backend: Backend, config: Config, secret: bytes, request: Request) -> Response:
    raw = await read(request, config.limits.max_body_bytes)
    body = parsed(raw) if raw.strip() else {}
    for name in _TEXTS:
        if not isinstance(body.get(name, ""), str | None):
            raise BadRequest(f'"{name}" must be a string')
    caller = caller_of(request, raw)
    if not caller.session_id:
        caller = msgspec.structs.replace(caller, session_id=secrets.token_hex(4))
    session_id = id_to_create(request, caller, secret)
    reply = await backend.ask(session_id, Create(session_id, caller))
    # The agent's config chooses the model, not the client: it is told which.
    model = next((model for _, model in config.models()), config.llm.model)
    body = {"id": session_id, "provider": resolve(model, {}).provider, "model": model}
    headers = {**session_header(reply.conversation), "Location": f"/api/sessions/{session_id}"}
    return json_response(body, 201, headers)


async def _stream(streams: Streams, session_id: str, request: Request) -> EventStream:
    return await streams.conversation(session_id, last_seen(request), exclusive=True)


async def _chat(backend: Backend, config: Config, session_id: str, request: Request) -> Response:
    raw = await read(request, config.limits.max_body_bytes)
    message = message_of(parsed(raw), config.limits.max_message_bytes)
    assert message is not None  # required
    reply = await backend.ask(
        session_id, SendMessage(session_id, caller_of(request, raw), message, wait=False)
    )
    if isinstance(reply, TurnAnswer) and reply.result and reply.result.waiting_approval:
        raise Conflict(f"session {session_id} waits for an approval: decide it first")
    return _accepted(reply, session_id)


async def _decide(
    backend: Backend, config: Config, session_id: str, call_id: str, request: Request
) -> Response:
    if tail(call_id) != tail(session_id):
        raise NotFound(f"session {session_id[:64]!r} has no approval {call_id[:64]!r}")
    raw = await read(request, config.limits.max_body_bytes)
    decide = Decide(caller_of(request, raw), (decision_of(parsed(raw), call_id),), wait=False)
    reply = await backend.ask(call_id, decide)
    assert not isinstance(reply, NothingTaken)  # only a decision that says what its sender has seen
    return _accepted(reply, session_id)


async def _resume(backend: Backend, session_id: str) -> Response:
    conversation = (await backend.ask(session_id, Show(session_id))).conversation
    body = {"id": session_id, "conversation": conversation}
    return json_response(body, headers=session_header(conversation))


def _accepted(reply: TurnReply, session_id: str) -> Response:
    """The response to what a stream will show the outcome of; a turn that failed already is told at once."""
    if isinstance(reply, TurnAnswer) and reply.result is None:
        return turn_response(reply)
    headers = {**session_header(reply.conversation), "Location": f"/api/sessions/{session_id}/stream"}
    return json_response({"id": session_id}, 202, headers)

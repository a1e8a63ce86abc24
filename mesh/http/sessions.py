"""The session API: conversations for clients that know sessions. It has no state of its own.

A session is a conversation; its id is the conversation's, and a ``callId`` the uuid of an approval.
"""

import asyncio
import secrets

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.config.model import Config
from mesh.config.roots import is_in_roots
from mesh.core.errors import BadRequest, Conflict, NotFound
from mesh.core.ids import id_suffix
from mesh.http.backend import Backend
from mesh.http.body_types import SessionBody
from mesh.http.parsing import caller_of, decision_in, id_to_create, json_object, message_in, read_request
from mesh.http.request_budget import RequestBudgets
from mesh.http.responses import json_response, route, session_header, turn_response
from mesh.http.streams import Streams, last_event_id
from mesh.keeper.replies import NothingTaken, TurnAnswer, TurnReply
from mesh.keeper.requests import Create, Decide, SendMessage, Show
from mesh.llm.models import resolve

_OPTIONS = ("provider", "model", "workspacePath")


class SessionApi:
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
        session = "/api/sessions/{session_id}"
        return [
            route("POST", "/api/sessions", self._create),
            route("GET", f"{session}/stream", self._stream),
            route("POST", f"{session}/chat", self._chat),
            route("POST", f"{session}/approvals/{{call_id}}", self._decide),
            route("POST", f"{session}/resume", self._resume),
        ]

    async def _create(self, request: Request) -> Response:
        raw = await read_request(request, self._limits.max_body_bytes)
        body = json_object(raw) if raw.strip() else {}
        for name in _OPTIONS:
            if not isinstance(body.get(name, ""), str | None):
                raise BadRequest(f'"{name}" must be a string')
        await self._check_workspace(body.get("workspacePath") or "")
        caller = caller_of(request, raw)
        if not caller.session_id:
            caller = msgspec.structs.replace(caller, session_id=secrets.token_hex(4))
        session_id = id_to_create(request, caller, self._secret)
        reply = await self._backend.ask(session_id, Create(session_id, caller))
        # The agent's config chooses the model, not the client: the response says which.
        model = next((model for _, model in self._config.models()), self._config.llm.model)
        headers = {**session_header(reply.conversation), "Location": f"/api/sessions/{session_id}"}
        return json_response(SessionBody(session_id, resolve(model, {}).provider, model), 201, headers)

    async def _check_workspace(self, path: str) -> None:
        """Raises `BadRequest` for a path that the tools of this agent do not reach."""
        # In a thread, as it looks at the disk.
        if path and not await asyncio.to_thread(is_in_roots, self._config, path):
            raise BadRequest('"workspacePath" is outside the roots of this agent')

    async def _stream(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        return await self._streams.conversation(session_id, last_event_id(request), exclusive=True)

    async def _chat(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        raw = await read_request(request, self._limits.max_body_bytes)
        body = json_object(raw)
        message = message_in(body, self._limits.max_message_bytes)
        assert message is not None  # required
        budget = self._budgets.limits_in(body)
        send = SendMessage(session_id, caller_of(request, raw), message, wait=False, budget=budget)
        reply = await self._backend.ask(session_id, send)
        if isinstance(reply, TurnAnswer) and reply.result and reply.result.waiting_approval:
            raise Conflict(f"session {session_id} waits for an approval: decide it first")
        return _accepted(reply, session_id)

    async def _decide(self, request: Request) -> Response:
        session_id, call_id = request.path_params["session_id"], request.path_params["call_id"]
        if id_suffix(call_id) != id_suffix(session_id):
            raise NotFound(f"session {session_id[:64]!r} has no approval {call_id[:64]!r}")
        raw = await read_request(request, self._limits.max_body_bytes)
        decision = decision_in(json_object(raw), call_id)
        reply = await self._backend.ask(call_id, Decide(caller_of(request, raw), (decision,), wait=False))
        assert not isinstance(reply, NothingTaken)  # only to a decision that says what its sender has seen
        return _accepted(reply, session_id)

    async def _resume(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        conversation = (await self._backend.ask(session_id, Show(session_id))).conversation
        body = SessionBody(session_id, conversation=conversation)
        return json_response(body, headers=session_header(conversation))


def _accepted(reply: TurnReply, session_id: str) -> Response:
    """The response to a request whose outcome the stream will show. A turn that has failed already is
    reported at once."""
    if isinstance(reply, TurnAnswer) and reply.result is None:
        return turn_response(reply)
    headers = {**session_header(reply.conversation), "Location": f"/api/sessions/{session_id}/stream"}
    return json_response(SessionBody(session_id), 202, headers)

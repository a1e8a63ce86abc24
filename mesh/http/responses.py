"""HTTP responses for what the keepers reply."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mesh.core.errors import MeshError
from mesh.core.view import ConversationView
from mesh.http.body_types import TurnBody
from mesh.keeper.replies import ConversationReply, TurnAccepted, TurnReply
from mesh.net.http_status import BUSY, retry_after_of, status_of
from mesh.runtime.logs import fields

_TURN_FAILED = 502
_log = logging.getLogger("mesh.gateway")
_encode = msgspec.json.Encoder().encode


Handler = Callable[[Request], Awaitable[Response]]


def route(method: str, path: str, handler: Handler) -> Route:
    """A route whose handler may raise `MeshError`. It answers this method only: Starlette would answer HEAD
    where GET is, which a stream would never end."""

    async def endpoint(request: Request) -> Response:
        return await _answered(handler(request))

    found = Route(path, endpoint, methods=[method])
    found.methods = {method}
    return found


async def _answered(work: Awaitable[Response]) -> Response:
    """The response that the work makes, or that of the error it raises. A turn does not end when the client
    hangs up: it is the keeper's, not this request's."""
    try:
        return await work
    except MeshError as problem:
        status, message = status_of(problem), str(problem)
        # Only the message of a busy mesh is free of what the client sent, so only that one is logged.
        _log_refusal(status, message=message if status in BUSY else "")
        return error_response(status, message, retry_after_of(problem))


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response with anything that msgspec can make JSON of."""
    return Response(_encode(body), status, headers, "application/json")


def error_response(status: int, message: str, retry_after_s: int = 0) -> Response:
    """A response that says what is wrong."""
    headers = {"Retry-After": str(retry_after_s)} if retry_after_s else None
    return json_response({"error": message}, status, headers)


def turn_response(reply: TurnReply | ConversationReply, status: int = 200) -> Response:
    """The response about a turn or a conversation: ``status``, unless the turn goes on or failed."""
    conversation = reply.conversation
    if isinstance(reply, ConversationReply):
        return json_response(TurnBody(conversation), status, session_header(conversation))
    if isinstance(reply, TurnAccepted):
        return json_response(TurnBody(conversation), 202, turn_headers(conversation))
    if reply.result is not None:
        return json_response(TurnBody(conversation, reply.result), status, session_header(conversation))
    _log_refusal(_TURN_FAILED, conversation.session_id)
    body = TurnBody(conversation, error=reply.error or "")
    return json_response(body, _TURN_FAILED, session_header(conversation))


def session_header(conversation: ConversationView) -> dict[str, str]:
    """The header that names the session of a conversation."""
    return {"X-Session-ID": conversation.session_id}


def turn_headers(conversation: ConversationView) -> dict[str, str]:
    """The headers of a response to a request whose turn goes on."""
    return {**session_header(conversation), "Location": f"/conversations/{conversation.id}"}


def _log_refusal(status: int, session_id: str = "", message: str = "") -> None:
    level = logging.WARNING if status in BUSY or status >= 500 else logging.INFO
    _log.log(level, "event=refused %s", fields(status=status, sid=session_id, why=message))

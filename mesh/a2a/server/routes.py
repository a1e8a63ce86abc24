"""The A2A endpoints: JSON-RPC and HTTP+JSON under ``/a2a``, and the card at the well-known address.

The SDK's dispatchers do the work. Here is what they leave out: bounded bodies, the plain form (`versions`),
and the error codes of 0.3 for invalid parameters.

    request ─► routes ─► versions ─► the SDK's dispatcher ─► handler ─► Backend
                                                                │
                               messages, task, turn_updates ◄───┘   (pure)
"""

import hashlib
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from a2a.server.routes import jsonrpc_dispatcher  # isort: skip  # first: the SDK imports itself in a circle
from a2a.server.jsonrpc_models import JSONParseError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.rest_dispatcher import RestDispatcher
from a2a.utils.constants import A2A_JSON_MEDIA_TYPE
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    InvalidRequestError,
    VersionNotSupportedError,
)
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mesh.a2a.extensions import BUDGET, HITL, MESH
from mesh.a2a.server.agent_card import ENDPOINT, AgentCards
from mesh.a2a.server.handler import Handler
from mesh.a2a.server.requests import A2aRequestBuilder
from mesh.a2a.server.versions import (
    is_method_of_0_3_in,
    is_plain,
    is_supported,
    message_id_in,
    normalize_version,
    plain_as_0_3,
    problem_in_0_3,
    with_plain_artifact,
)
from mesh.config.model import Config
from mesh.core.errors import TooLarge
from mesh.core.strict_json import BeyondBounds, parsed
from mesh.http.backend import Backend
from mesh.http.parsing import read_request
from mesh.http.streams import Streams

CARDS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
_INVALID_PARAMS = -32602
_CURL_DEFAULT = "application/x-www-form-urlencoded"
"""The Content-Type that curl sends by default. Whoever types JSON there is told what is wrong with the
JSON."""
_RETURNS_NULL = "tasks/pushNotificationConfig/delete"
"""Its result is null (0.3, section 7.8), and the SDK leaves out fields that are null."""

# Clients are told what is wrong with their requests; the SDK would log a traceback of each besides.
for _name in ("a2a.server.routes", "a2a.compat", "a2a.utils"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def routes(backend: Backend, streams: Streams, config: Config, secret: bytes) -> list[Route]:
    """The routes. ``secret``: see `mesh.access.secret`."""
    cards = AgentCards(backend, config)
    handler = Handler(backend, streams, cards, config, secret)
    rpc = _Rpc(handler, config.limits.max_body_bytes)
    return [
        *(Route(path, rpc.answer, methods=["POST"]) for path in (ENDPOINT, f"{ENDPOINT}/")),
        *(Route(path, cards.answer, methods=["GET"]) for path in CARDS),
        *_rest_routes(_Rest(handler, A2aRequestBuilder()), config.limits.max_body_bytes),
    ]


class _Rpc:
    """JSON-RPC, in all its dialects."""

    def __init__(self, handler: Handler, max_body_bytes: int) -> None:
        self._dispatcher = jsonrpc_dispatcher.JsonRpcDispatcher(
            handler, A2aRequestBuilder(), enable_v0_3_compat=True
        )
        self._max_body_bytes = max_body_bytes

    async def answer(self, request: Request) -> Response:
        version = normalize_version(request)
        try:
            raw = await read_request(request, self._max_body_bytes)
            body = _parsed(raw, request)
        except TooLarge as problem:
            return JSONResponse(build_error_response(None, InvalidRequestError(str(problem))), 413)
        except ContentTypeNotSupportedError as problem:
            return JSONResponse(build_error_response(None, problem))
        except BeyondBounds as problem:
            return JSONResponse(build_error_response(None, InvalidParamsError(f"the body: {problem}")))
        except _NotJson as problem:
            return JSONResponse(build_error_response(None, JSONParseError(message=str(problem))))
        plain, message_id = is_plain(body), message_id_in(body)
        body = plain_as_0_3(body) if plain else body
        if refused := _refused(body, version):
            return JSONResponse(refused)
        params = body.get("params") if isinstance(body, dict) else None
        _prepare(request, raw, params, message_id, plain=plain)
        request._json = body  # read and changed here: the dispatcher takes what is there
        response = await self._dispatcher.handle_requests(request)
        if not isinstance(response, JSONResponse):
            return response
        if plain:
            return JSONResponse(with_plain_artifact(json.loads(bytes(response.body))))
        if isinstance(body, dict) and body.get("method") == _RETURNS_NULL:
            return JSONResponse({"result": None, **json.loads(bytes(response.body))})
        return response


class _NotJson(Exception):
    """A body that is no JSON."""


def _parsed(raw: bytes, request: Request) -> Any:
    try:
        return parsed(raw)
    except BeyondBounds:
        raise
    except ValueError as problem:
        content_type = request.headers.get("content-type", "")
        if content_type and "json" not in content_type and content_type != _CURL_DEFAULT:
            raise ContentTypeNotSupportedError(f"{content_type[:100]}: send application/json") from None
        raise _NotJson(f"the body cannot be read: {problem}") from None


def _not_supported(version: str) -> VersionNotSupportedError:
    return VersionNotSupportedError(f"A2A version {version[:20]!r} is not spoken here: 1.0 and 0.3 are")


def _refused(body: Any, version: str) -> dict[str, Any] | None:
    """The error response to a request that the dispatcher would not refuse as its version requires."""
    if not isinstance(body, dict):
        return None
    number = body.get("id")
    if number is not None and _id(number) is None:
        return build_error_response(None, InvalidRequestError("id must be a string or a number"))
    if not isinstance(body.get("method"), str):
        return None
    if not is_supported(version):
        return build_error_response(_id(number), _not_supported(version))
    if is_method_of_0_3_in(body["method"], version):
        why = f"{body['method']} is a method of A2A 0.3, and the request says that it is of {version[:20]}"
        return build_error_response(_id(number), VersionNotSupportedError(why))
    if wrong := problem_in_0_3(body):
        error = {"code": _INVALID_PARAMS, "message": "Invalid parameters", "data": wrong}
        return {"jsonrpc": "2.0", "id": _id(number), "error": error}
    return None


def _id(number: Any) -> str | int | None:
    return number if isinstance(number, str | int) and not isinstance(number, bool) else None


def _prepare(request: Request, raw: bytes, params: Any, message_id: str, *, plain: bool = False) -> None:
    """Puts into the request's state what `A2aRequestBuilder` needs."""
    message = params.get("message") if isinstance(params, dict) else None
    fields = message if isinstance(message, dict) else {}
    request.state.a2a_raw = raw
    request.state.a2a_is_plain = plain
    request.state.a2a_message_id = message_id
    request.state.a2a_hash = _hash_of(_without_budget(fields))
    request.state.a2a_content_hash = _hash_of(_meaning(fields))


def _meaning(message: dict[str, Any]) -> list[Any]:
    """The parts of a message that a repetition has too. A client may change others, such as a time in the
    metadata."""
    metadata = message.get("metadata")
    known = metadata if isinstance(metadata, dict) else {}
    return [message.get("parts"), known.get(MESH), known.get(HITL)]


def _without_budget(message: dict[str, Any]) -> dict[str, Any]:
    """The message without what its sender has left, which is less when it sends the message again."""
    metadata = message.get("metadata")
    if not isinstance(metadata, dict) or BUDGET not in metadata:
        return message
    return {**message, "metadata": {key: value for key, value in metadata.items() if key != BUDGET}}


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


class _Rest(RestDispatcher):
    """The SDK's dispatcher. It would turn the 503 of a busy mesh into an unknown error: so the exception is
    kept in the request's state, and `_busy_or` answers with it."""

    async def _handle_non_streaming(self, request: Request, *args: Any, **more: Any) -> Any:
        return await _keeping_busy(request, super()._handle_non_streaming(request, *args, **more))

    async def _handle_streaming(self, request: Request, *args: Any, **more: Any) -> Any:
        return await _keeping_busy(request, super()._handle_streaming(request, *args, **more))


async def _keeping_busy(request: Request, work: Awaitable[Any]) -> Any:
    try:
        return await work
    except HTTPException as problem:
        request.state.a2a_busy = problem
        raise


def _busy_or(response: Response, request: Request) -> Response:
    busy: HTTPException | None = getattr(request.state, "a2a_busy", None)
    if busy is None:
        return response
    error = {"code": busy.status_code, "status": "UNAVAILABLE", "message": busy.detail}
    return JSONResponse({"error": error}, busy.status_code, busy.headers)


def _rest_routes(rest: RestDispatcher, max_body_bytes: int) -> list[Route]:
    """The HTTP+JSON binding (specification 1.0.1, section 11)."""
    task, configs = "/tasks/{id}", "/tasks/{id}/pushNotificationConfigs"
    table: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
        ("POST", "/message:send", rest.on_message_send),
        ("POST", "/message:stream", rest.on_message_send_stream),
        ("GET", "/tasks", rest.list_tasks),
        ("POST", f"{task}:cancel", rest.on_cancel_task),
        ("GET", f"{task}:subscribe", rest.on_subscribe_to_task),
        ("POST", f"{task}:subscribe", rest.on_subscribe_to_task),
        ("POST", configs, rest.set_push_notification),
        ("GET", configs, rest.list_push_notifications),
        ("GET", configs + "/{push_id}", rest.get_push_notification),
        ("DELETE", configs + "/{push_id}", rest.delete_push_notification),
        ("GET", task, rest.on_get_task),
        ("GET", "/extendedAgentCard", rest.handle_authenticated_agent_card),
    ]
    return [
        Route(ENDPOINT + path, _bounded(work, max_body_bytes), methods=[method])
        for method, path, work in table
    ]


def _bounded(
    work: Callable[[Request], Awaitable[Response]], max_body_bytes: int
) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        version = normalize_version(request)
        if not is_supported(version):
            return JSONResponse(build_rest_error_payload(_not_supported(version)), 400)
        response = await answered(request)
        # A client that sends plain JSON gets plain JSON (specification 11.1 allows both media types).
        if request.headers.get("content-type", "").startswith("application/json"):
            kind = response.headers.get("content-type", "")
            if kind.startswith(A2A_JSON_MEDIA_TYPE):
                response.headers["content-type"] = "application/json"
        return response

    async def answered(request: Request) -> Response:
        try:
            raw = await read_request(request, max_body_bytes)
            params = _parsed(raw, request) if raw else {}
        except TooLarge as problem:
            return JSONResponse(build_rest_error_payload(InvalidRequestError(str(problem))), 413)
        except ContentTypeNotSupportedError as problem:
            return JSONResponse(build_rest_error_payload(problem), 415)
        except (_NotJson, BeyondBounds) as problem:
            return JSONResponse(build_rest_error_payload(InvalidRequestError(str(problem))), 400)
        _prepare(request, raw, params, message_id_in({"params": params}))
        request._body = raw  # read here, within its bound
        return _busy_or(await work(request), request)

    return answer

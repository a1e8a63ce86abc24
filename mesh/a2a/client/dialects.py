"""The ways to speak A2A: 1.0 by JSON-RPC, 1.0 by HTTP+JSON, 0.3, and the plain form of 0.3.

    1.0    SendMessage …      parts {"text"}             role ROLE_USER   a task under "task"
    0.3    message/send …     parts {"kind", "text"}     role user        a task as it is
    plain  as 0.3             parts {"type", "text"}     `taskId` beside the message, no ids, no blocking

Pure: builds requests and interprets responses. If an agent refuses a request in a way that shows that it did
nothing, the result is `DialectRejected`, and the same message may be sent in another dialect.
"""

import http
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec

from mesh.a2a.client.input_requests import metadata_of, text_of
from mesh.a2a.client.port import OutgoingMessage, RemoteFailed
from mesh.a2a.client.transport import HttpRequest, HttpResponse, excerpt
from mesh.a2a.extensions import BUDGET, HITL, MESH
from mesh.core.ids import new_id

Version = Literal["1.0", "0.3", "plain"]

_V1 = {"send": "SendMessage", "get": "GetTask", "list": "ListTasks", "cancel": "CancelTask"}
_V03 = {"send": "message/send", "get": "tasks/get", "cancel": "tasks/cancel"}
_INVALID_PARAMS = -32602
_UNSUPPORTED = -32004
_REJECTIONS = (-32600, -32601, _INVALID_PARAMS, _UNSUPPORTED, -32009)
"""Codes that an agent answers before it does anything: invalid request, method not found, invalid parameters,
operation not supported, version not supported."""
_NO_ENDPOINT = (400, 404, 405, 415, 422, 501)
TOKEN_REQUIRED = (401, 403)
_MAX_TEXT = 4000


class DialectRejected(RemoteFailed):
    """The agent does not support the dialect or the operation, and did nothing. ``is_stale``: this
    contradicts its card, which may have changed."""

    def __init__(self, message: str, is_stale: bool) -> None:
        super().__init__(message)
        self.is_stale = is_stale

    def naming(self, agent: str) -> "DialectRejected":
        return type(self)(f"agent {agent}: {self}", self.is_stale)

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return type(self), (str(self), self.is_stale)


class ServerError(RemoteFailed):
    """HTTP 5xx without an A2A error. It may come from a proxy that lost the agent: that of Ray Serve answers
    500 when a replica dies. Hence nobody knows whether the message was received."""


class TokenRequired(RemoteFailed):
    """HTTP 401 or 403. The text is the agent's."""


class AgentEndpoint(msgspec.Struct, frozen=True):
    """A URL of an agent and the dialect to speak there. ``takes_budget``: the agent has the budget
    extension."""

    url: str
    version: Version
    rest: bool = False
    tenant: str = ""
    takes_budget: bool = False

    def send(self, message: OutgoingMessage, agent: str) -> HttpRequest | None:
        """Returns the request that sends a message, or None if the message has a decision that cannot be
        expressed here: the plain form has only a text, which does not say what it decides.

        Raises `RemoteFailed` if the agent cannot take the decision in any dialect.
        """
        metadata = metadata_of(message.decision, agent) if message.decision else {}
        if self.version == "plain":
            return None if metadata else self._rpc("send", _plain_params(message))
        if message.sender is not None and self.takes_budget:
            metadata[BUDGET] = message.sender.data
        params = _message_params(message, metadata, self.version)
        return self._http("POST", "/message:send", params) if self.rest else self._rpc("send", params)

    def get(self, task_id: str) -> HttpRequest:
        """Returns the request for a task."""
        if self.rest:
            return self._http("GET", f"/tasks/{quote(task_id, safe='')}")
        return self._rpc("get", {"id": task_id})

    def cancel(self, task_id: str) -> HttpRequest:
        """Returns the request to cancel a task."""
        if self.rest:
            return self._http("POST", f"/tasks/{quote(task_id, safe='')}:cancel", {})
        return self._rpc("cancel", {"id": task_id})

    def tasks(self, context_id: str) -> HttpRequest | None:
        """Returns the request for the newest tasks of a context, or None if the dialect has none."""
        if self.version != "1.0":
            return None
        params = {"contextId": context_id, "pageSize": 10}
        return self._http("GET", f"/tasks?{urlencode(params)}") if self.rest else self._rpc("list", params)

    def _rpc(self, operation: str, params: dict[str, Any]) -> HttpRequest:
        method = (_V1 if self.version == "1.0" else _V03)[operation]
        if self.tenant:
            params = {"tenant": self.tenant, **params}
        asked = {"jsonrpc": "2.0", "id": new_id(), "method": method, "params": params}
        return HttpRequest("POST", self.url, self._header(), msgspec.json.encode(asked), str(asked["id"]))

    def _http(self, method: str, path: str, params: dict[str, Any] | None = None) -> HttpRequest:
        tenant = f"/{quote(self.tenant, safe='')}" if self.tenant else ""
        body = b"" if params is None else msgspec.json.encode(params)
        return HttpRequest(method, self.url.rstrip("/") + tenant + path, self._header(), body)

    def _header(self) -> str:
        return "1.0" if self.version == "1.0" else "0.3"


def result_of(request: HttpRequest, response: HttpResponse) -> Any:
    """Returns the result in a response, as JSON. Raises `DialectRejected`, `TokenRequired`, `ServerError` or
    another `RemoteFailed`."""
    try:
        body = response.json()
    except ValueError:
        _raise_for(response.status, excerpt(response.text(_MAX_TEXT)))
        what = response.content_type or "no content type"
        raise RemoteFailed(f"it answered what is not JSON ({what})") from None
    error = body.get("error") if isinstance(body, dict) else None
    if response.status >= http.HTTPStatus.BAD_REQUEST or error is not None:
        _raise_error(error, response.status, is_rpc=bool(request.id), body=body)
    if not request.id:
        return body
    if not isinstance(body, dict) or body.get("id") != request.id:
        raise RemoteFailed("it answered another request than ours (wrong JSON-RPC id)")
    if "result" not in body:
        raise RemoteFailed("it answered neither a result nor an error")
    return body["result"]


def _raise_error(error: Any, status: int, *, is_rpc: bool, body: Any) -> None:
    """Always raises: ``status`` or ``error`` says that the request failed."""
    message = excerpt(_message_in(error) or _message_in(body))
    if status in TOKEN_REQUIRED:
        raise TokenRequired(message or f"HTTP {status}")
    code = error.get("code") if isinstance(error, dict) else None
    if is_rpc and isinstance(code, int):
        if code in _REJECTIONS:
            raise DialectRejected(
                f"it refused: {message} ({code})", is_stale=code not in (_INVALID_PARAMS, _UNSUPPORTED)
            )
        raise RemoteFailed(f"it failed: {message} ({code})")
    if is_rpc or not isinstance(error, dict):
        # This is not an error of A2A, so what answered may be no agent at all.
        _raise_for(status, message)
    raise RemoteFailed(f"it failed: {message or 'without a word'} (HTTP {status})")


def _raise_for(status: int, message: str) -> None:
    if status in TOKEN_REQUIRED:
        raise TokenRequired(message or f"HTTP {status}")
    if status in _NO_ENDPOINT:
        raise DialectRejected(f"it answered HTTP {status}: {message}".rstrip(": "), is_stale=True)
    if status >= http.HTTPStatus.BAD_REQUEST:
        kind = ServerError if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR else RemoteFailed
        raise kind(f"it answered HTTP {status}: {message}".rstrip(": "))


def _message_in(holder: Any) -> str:
    if isinstance(holder, str):
        return holder
    if not isinstance(holder, dict):
        return ""
    return next(
        (holder[key] for key in ("message", "detail", "error") if isinstance(holder.get(key), str)), ""
    )


def _message_params(message: OutgoingMessage, metadata: dict[str, Any], version: Version) -> dict[str, Any]:
    is_v1, text = version == "1.0", text_of(message)
    sent: dict[str, Any] = {
        "messageId": message.id,
        "role": "ROLE_USER" if is_v1 else "user",
        "parts": [{"text": text} if is_v1 else {"kind": "text", "text": text}],
        **({} if is_v1 else {"kind": "message"}),
        **({"contextId": message.context_id} if message.context_id else {}),
        **({"taskId": message.task_id} if message.task_id else {}),
    }
    if metadata:
        sent["metadata"] = metadata
        sent["extensions"] = [uri for uri in (MESH, HITL, BUDGET) if uri in metadata]
    waits = {"returnImmediately": False} if is_v1 else {"blocking": True}
    return {"message": sent, "configuration": waits}


def _plain_params(message: OutgoingMessage) -> dict[str, Any]:
    sent = {"role": "user", "parts": [{"type": "text", "text": text_of(message)}]}
    return {**({"taskId": message.task_id} if message.task_id else {}), "message": sent}

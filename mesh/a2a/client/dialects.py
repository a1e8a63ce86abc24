"""The ways to speak A2A: 1.0 by JSON-RPC, 1.0 by HTTP+JSON, 0.3, and the plain form of 0.3.

    1.0    SendMessage …      parts {"text"}             role ROLE_USER   a task under "task"
    0.3    message/send …     parts {"kind", "text"}     role user        a task as it is
    plain  as 0.3             parts {"type", "text"}     `taskId` beside the message, no ids, no blocking

Pure: makes requests and judges answers. What an agent refuses in a way that shows that nothing ran is
`NotSpoken`: another dialect may be tried with the same message.
"""

import http
from typing import Any, Literal
from urllib.parse import quote, urlencode

import msgspec

from mesh.a2a.client.port import OutgoingMessage, RemoteFailed
from mesh.a2a.client.questions import metadata_of, words_of
from mesh.a2a.client.wire import Request, Response, said
from mesh.a2a.extensions import HITL, MESH
from mesh.core.ids import new_id

Version = Literal["1.0", "0.3", "plain"]

_V1 = {"send": "SendMessage", "get": "GetTask", "list": "ListTasks", "cancel": "CancelTask"}
_V03 = {"send": "message/send", "get": "tasks/get", "cancel": "tasks/cancel"}
_INVALID_PARAMS = -32602
_UNSUPPORTED = -32004
# Invalid request, method not found, invalid parameters, operation not supported, version not supported.
_NOTHING_RAN = (-32600, -32601, _INVALID_PARAMS, _UNSUPPORTED, -32009)
_NO_SUCH_PLACE = (400, 404, 405, 415, 422, 501)
WANTS_TOKEN = (401, 403)
_MOST_READ = 4000


class NotSpoken(RemoteFailed):
    """The agent does not speak so, and did nothing. ``stale``: what its card says may have changed."""

    def __init__(self, message: str, stale: bool) -> None:
        super().__init__(message)
        self.stale = stale

    def __reduce__(self) -> tuple[type, tuple[str, bool]]:
        return type(self), (str(self), self.stale)


class NoWord(RemoteFailed):
    """HTTP 5xx, and nothing in A2A's words: maybe not the agent's own, but of something in front of it that
    lost it. Ray Serve's proxy says 500 of a replica that died."""


class NeedsToken(RemoteFailed):
    """HTTP 401 or 403; the text is the agent's."""


class Endpoint(msgspec.Struct, frozen=True):
    """One way to speak to an agent."""

    url: str
    version: Version
    rest: bool = False
    tenant: str = ""

    def send(self, message: OutgoingMessage, agent: str) -> Request | None:
        """The message; None where the words alone would not say which of several things is decided. Raises
        `RemoteFailed` when it has a decision that this agent cannot take."""
        metadata = metadata_of(message.decision, agent) if message.decision else {}
        if self.version == "plain":
            return None if metadata else self._rpc("send", _plain(message))
        params = _message(message, metadata, self.version)
        return self._http("POST", "/message:send", params) if self.rest else self._rpc("send", params)

    def get(self, task_id: str) -> Request:
        """The task as it stands."""
        if self.rest:
            return self._http("GET", f"/tasks/{quote(task_id, safe='')}")
        return self._rpc("get", {"id": task_id})

    def cancel(self, task_id: str) -> Request:
        """The wish that it stops."""
        if self.rest:
            return self._http("POST", f"/tasks/{quote(task_id, safe='')}:cancel", {})
        return self._rpc("cancel", {"id": task_id})

    def tasks(self, context_id: str) -> Request | None:
        """The newest tasks of a context, without what they made; None where nobody can ask for them."""
        if self.version != "1.0":
            return None
        params = {"contextId": context_id, "pageSize": 10}
        return self._http("GET", f"/tasks?{urlencode(params)}") if self.rest else self._rpc("list", params)

    def _rpc(self, operation: str, params: dict[str, Any]) -> Request:
        method = (_V1 if self.version == "1.0" else _V03)[operation]
        if self.tenant:
            params = {"tenant": self.tenant, **params}
        asked = {"jsonrpc": "2.0", "id": new_id(), "method": method, "params": params}
        return Request("POST", self.url, self._header(), msgspec.json.encode(asked), str(asked["id"]))

    def _http(self, method: str, path: str, params: dict[str, Any] | None = None) -> Request:
        tenant = f"/{quote(self.tenant, safe='')}" if self.tenant else ""
        body = b"" if params is None else msgspec.json.encode(params)
        return Request(method, self.url.rstrip("/") + tenant + path, self._header(), body)

    def _header(self) -> str:
        return "1.0" if self.version == "1.0" else "0.3"


def result_of(request: Request, response: Response) -> Any:
    """What a request came to: JSON. Raises `NotSpoken`, `NeedsToken`, `NoWord`, `RemoteFailed`."""
    try:
        body = response.json()
    except ValueError:
        _raise_for(response.status, said(response.text(_MOST_READ)))
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
    """Raises, always: ``status`` or ``error`` says that it failed."""
    message = said(_message_in(error) or _message_in(body))
    if status in WANTS_TOKEN:
        raise NeedsToken(message or f"HTTP {status}")
    code = error.get("code") if isinstance(error, dict) else None
    if is_rpc and isinstance(code, int):
        if code in _NOTHING_RAN:
            raise NotSpoken(
                f"it refused: {message} ({code})", stale=code not in (_INVALID_PARAMS, _UNSUPPORTED)
            )
        raise RemoteFailed(f"it failed: {message} ({code})")
    if is_rpc or not isinstance(error, dict):  # not in A2A's words: perhaps no agent is there at all
        _raise_for(status, message)
    raise RemoteFailed(f"it failed: {message or 'without a word'} (HTTP {status})")


def _raise_for(status: int, message: str) -> None:
    if status in WANTS_TOKEN:
        raise NeedsToken(message or f"HTTP {status}")
    if status in _NO_SUCH_PLACE:
        raise NotSpoken(f"it answered HTTP {status}: {message}".rstrip(": "), stale=True)
    if status >= http.HTTPStatus.BAD_REQUEST:
        kind = NoWord if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR else RemoteFailed
        raise kind(f"it answered HTTP {status}: {message}".rstrip(": "))


def _message_in(holder: Any) -> str:
    if isinstance(holder, str):
        return holder
    if not isinstance(holder, dict):
        return ""
    return next(
        (holder[key] for key in ("message", "detail", "error") if isinstance(holder.get(key), str)), ""
    )


def _message(message: OutgoingMessage, metadata: dict[str, Any], version: Version) -> dict[str, Any]:
    is_v1, words = version == "1.0", words_of(message)
    sent: dict[str, Any] = {
        "messageId": message.id,
        "role": "ROLE_USER" if is_v1 else "user",
        "parts": [{"text": words} if is_v1 else {"kind": "text", "text": words}],
        **({} if is_v1 else {"kind": "message"}),
        **({"contextId": message.context_id} if message.context_id else {}),
        **({"taskId": message.task_id} if message.task_id else {}),
    }
    if metadata:
        sent["metadata"] = metadata
        sent["extensions"] = [uri for uri in (MESH, HITL) if uri in metadata]
    waits = {"returnImmediately": False} if is_v1 else {"blocking": True}
    return {"message": sent, "configuration": waits}


def _plain(message: OutgoingMessage) -> dict[str, Any]:
    sent = {"role": "user", "parts": [{"type": "text", "text": words_of(message)}]}
    return {**({"taskId": message.task_id} if message.task_id else {}), "message": sent}

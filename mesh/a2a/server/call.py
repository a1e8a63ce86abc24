"""One call as the handler needs it: who asks, in which dialect, with which extensions."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.utils.errors import InvalidParamsError
from starlette.requests import Request

from mesh.core.errors import BadRequest
from mesh.core.ids import id_for_key, new_id
from mesh.http.parsing import caller_of
from mesh.keeper.requests import Caller

_CALL = "mesh.call"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class Call:
    """``key``: the same call counts once, however often it comes; empty: each counts. ``message_id`` is the
    client's, empty if it gave none; ``said`` is a hash of what the message says. ``is_plain``: see
    `mesh.a2a.server.plain`."""

    caller: Caller
    extensions: frozenset[str]
    key: str
    message_id: str
    said: str
    is_plain: bool
    request: Request

    def to_task(self) -> "Call":
        """The same call of a message to a task. There every id is taken at its word, together with what is
        said: some clients give all their messages one id."""
        if self.key or not self.message_id:
            return self
        key = f"a2a:{hashlib.sha256(f'{self.message_id}|{self.said}'.encode()).hexdigest()[:32]}"
        caller = msgspec.structs.replace(self.caller, idempotency_key=key, body_hash=self.said)
        return replace(self, caller=caller, key=key)

    def of_message(self, message_id: str) -> "Call":
        """The same call about the task that a message began. Raises `InvalidParamsError` for an id that says
        nothing of the kind."""
        if not (key := _unique_id(message_id)):
            raise InvalidParamsError(f"{message_id[:64]!r} names no message: a UUID does")
        return replace(self, key=key)

    def new_task(self, secret: bytes) -> str:
        """The id of the task that it begins, if it begins one. The message may come again with another
        token: its own id is enough. ``secret``: see `mesh.access.secret`."""
        return id_for_key(secret, self.key, "") if self.key else new_id()


class Calls(ServerCallContextBuilder):
    """Makes the SDK's context of a request, whose body was read before."""

    def build(self, request: Request) -> ServerCallContext:
        extensions = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        try:
            caller = caller_of(request, request.state.a2a_raw)
        except BadRequest as problem:
            raise InvalidParamsError(str(problem)) from None
        state = request.state
        key = _unique_id(state.a2a_message_id)
        if key:
            caller = msgspec.structs.replace(caller, idempotency_key=key, body_hash=state.a2a_hash)
        call = Call(
            caller,
            frozenset(extensions),
            key,
            state.a2a_message_id,
            state.a2a_said,
            state.a2a_is_plain,
            request,
        )
        headers: Mapping[str, str] = request.headers
        return ServerCallContext(
            state={"headers": dict(headers), _CALL: call}, requested_extensions=set(extensions)
        )


def call_of(context: ServerCallContext) -> Call:
    """The call of a context that `Calls` made."""
    call: Call = context.state[_CALL]
    return call


def _unique_id(message_id: str) -> str:
    """A message id that can only be meant to be unique. Others are often the same for every message."""
    return message_id if _UUID.fullmatch(message_id) else ""

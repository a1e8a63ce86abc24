"""An A2A request as the handler needs it: its caller, its idempotency, its extensions."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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

_STATE_KEY = "mesh.a2a_request"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class A2aRequest:
    """``key`` is the idempotency key: requests with one key count once. Without a key each counts.
    ``message_id`` is the client's, empty if it gave none; ``content_hash`` is of what the message says.
    ``is_plain``: the request is in the plain form (`mesh.a2a.server.versions`). ``budget`` is what the agent
    that sent it has left."""

    caller: Caller
    extensions: frozenset[str]
    key: str
    message_id: str
    content_hash: str
    is_plain: bool
    http: Request
    budget: Mapping[str, float] = field(default_factory=dict)

    def to_task(self) -> "A2aRequest":
        """This request for a message to an existing task. There any message id makes a key, together with the
        content, since some clients give all their messages one id."""
        if self.key or not self.message_id:
            return self
        key = f"a2a:{hashlib.sha256(f'{self.message_id}|{self.content_hash}'.encode()).hexdigest()[:32]}"
        caller = msgspec.structs.replace(self.caller, idempotency_key=key, body_hash=self.content_hash)
        return replace(self, caller=caller, key=key)

    def of_message(self, message_id: str) -> "A2aRequest":
        """This request for the task that a message began. Raises `InvalidParamsError` for an id that is no
        UUID."""
        if not (key := _unique_id(message_id)):
            raise InvalidParamsError(f"{message_id[:64]!r} names no message: a UUID does")
        return replace(self, key=key)

    def new_task(self, secret: bytes) -> str:
        """The id of the task that the message begins, if it begins one. A repetition may carry another token,
        so the id is made of the key alone. ``secret``: see `mesh.access.secret`."""
        return id_for_key(secret, self.key, "") if self.key else new_id()


class A2aRequestBuilder(ServerCallContextBuilder):
    """Makes the SDK's context of a request whose body was read before."""

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
        made = A2aRequest(
            caller,
            frozenset(extensions),
            key,
            state.a2a_message_id,
            state.a2a_content_hash,
            state.a2a_is_plain,
            request,
        )
        headers: Mapping[str, str] = request.headers
        return ServerCallContext(
            state={"headers": dict(headers), _STATE_KEY: made}, requested_extensions=set(extensions)
        )


def request_of(context: ServerCallContext) -> A2aRequest:
    """The request of a context that `A2aRequestBuilder` made."""
    request: A2aRequest = context.state[_STATE_KEY]
    return request


def _unique_id(message_id: str) -> str:
    """The message id if it is a UUID, and so meant to be unique. Other ids are often the same for all
    messages."""
    return message_id if _UUID.fullmatch(message_id) else ""

"""Reads requests: bounded bodies, JSON whatever the Content-Type says, and one clear error for each
mistake."""

import hashlib
import re
import secrets
from typing import Any, get_args

from starlette.exceptions import HTTPException
from starlette.requests import Request

from mesh.access.principal import principal_in
from mesh.core import strict_json
from mesh.core.approvals import YES_OR_NO, Decision
from mesh.core.errors import BadRequest, TooLarge
from mesh.core.events import Choice
from mesh.core.ids import SESSION_IDS, id_for_key, is_session_id, new_id
from mesh.core.verdict import Remember
from mesh.core.view import is_cursor
from mesh.keeper.requests import Caller, Page
from mesh.net.bodies import BodyStalled, BodyTooLarge, never_idle, read_body

_ACTIONS: dict[str, Choice] = {
    "approve": "approve",
    "reject": "reject",
    "retry": "retry",
    "skip": "skip",
}
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_VERSION = re.compile(r"[0-9a-f]{1,64}")
_MOST_DIGITS = 12
CHUNK_WITHIN_S = 30.0
"""How long the next chunk of a body is waited for."""


async def read_request(request: Request, limit: int, key: str = "limits.max_body_bytes") -> bytes:
    """The body, at most ``limit`` bytes of it; ``key`` is the limit's in the config. Raises `TooLarge`, and
    Starlette's `HTTPException` (408) when the body stalls."""
    announced = request.headers.get("content-length", "")
    # A body that announces its length is refused before any of it is read.
    if _is_number(announced) and int(announced) > limit:
        raise TooLarge(_too_large(limit, key))
    try:
        return await read_body(never_idle(CHUNK_WITHIN_S, request.stream()), limit)
    except BodyTooLarge:
        raise TooLarge(_too_large(limit, key)) from None
    except BodyStalled as problem:
        raise HTTPException(408, str(problem), {"Connection": "close"}) from None


def json_object(raw: bytes) -> dict[str, Any]:
    """The JSON object that a body must be. Of two members with one name, nobody knows which is meant."""
    try:
        body = strict_json.parsed(raw, unique_names=True)
    except ValueError as problem:
        raise BadRequest(f"the body cannot be read: {problem}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def message_in(body: dict[str, Any], limit: int, *, required: bool = True) -> str | None:
    """The ``message`` of a body."""
    if body.get("message") is None and not required:
        return None
    return text_in(body, "message", limit)


def text_in(body: dict[str, Any], name: str, limit: int) -> str:
    """A text of a body that is told to a model, of at most ``limit`` bytes."""
    text = body.get(name)
    if not isinstance(text, str):
        raise BadRequest(f'the body must have a "{name}", a string')
    if not text.strip():
        raise BadRequest(f'"{name}" is empty')
    if len(text.encode()) > limit:
        raise TooLarge(f'"{name}" is over {limit} bytes (limits.max_message_bytes)')
    return text


def decision_in(body: dict[str, Any], uuid: str) -> Decision:
    """The decision about an approval in a body, in any of its forms. Anything unclear is refused."""
    choice, edited, reason = _choice_in(body), body.get("edited_args"), body.get("reason")
    if edited is not None and (choice != "approve" or not isinstance(edited, dict)):
        raise BadRequest('"edited_args" is an object of all arguments, and goes with an approval')
    if reason is not None and (choice != "reject" or not isinstance(reason, str)):
        raise BadRequest('"reason" is a text, and goes with a rejection')
    remember, rule = _remembered_in(body, choice)
    if not isinstance(until := body.get("until", ""), str):
        raise BadRequest('"until" is a time with a zone, such as "2030-01-31T18:00:00+01:00"')
    return Decision(
        uuid,
        choice,
        edited,
        (reason or "").strip(),
        body.get("answer", "").strip(),
        remember=remember,
        rule=rule,
        until=until,
    )


def _remembered_in(body: dict[str, Any], choice: Choice) -> tuple[Remember, dict[str, Any] | None]:
    """For how long a decision is remembered, and as which rule, if it is not the suggested one."""
    remember, rule = body.get("remember", "none"), body.get("rule")
    if remember not in get_args(Remember) or (remember != "none" and choice != "approve"):
        raise BadRequest('"remember" is none, conversation or always, and goes with an approval')
    if rule is not None and (remember == "none" or not isinstance(rule, dict)):
        raise BadRequest('"rule" is a rule of a policy, and goes with "remember": "conversation" or "always"')
    return remember, rule


def offset_in(request: Request) -> int:
    """The ``offset`` of a query; 0 if there is none."""
    given = request.query_params.get("offset", "0")
    if not _is_number(given) or len(given) > _MOST_DIGITS:
        raise BadRequest('"offset" is a number of characters, such as 65536')
    return int(given)


def _choice_in(body: dict[str, Any]) -> Choice:
    given = [key for key in ("approved", "action", "answer") if key in body]
    if len(given) == 1:
        value = body[given[0]]
        if given[0] == "approved" and isinstance(value, bool):
            return "approve" if value else "reject"
        if given[0] != "approved" and isinstance(value, str):
            word = value.strip().lower()
            if given[0] == "action" and word in _ACTIONS:
                return _ACTIONS[word]
            if given[0] == "answer" and word:
                return YES_OR_NO.get(word, "answer")
    raise BadRequest(
        'say one of {"approved": true|false}, {"action": "approve"|"reject"} or {"answer": "yes"|"no"}; '
        'for an approval of kind unknown_outcome {"action": "retry"|"skip"}, of kind question {"answer": "…"}'
    )


def caller_of(request: Request, raw: bytes) -> Caller:
    """The caller, from the headers.

    Without an Idempotency-Key the request gets one here, so that the gateway itself may send it again when a
    keeper dies. With API keys, the Idempotency-Keys of each principal are their own: the same key of another
    principal is another request, and its reply is not for them.
    """
    headers = request.headers
    session_id = headers.get("x-session-id", "")
    if session_id and not is_session_id(session_id):
        raise BadRequest(f"X-Session-ID must be {SESSION_IDS}")
    key = headers.get("idempotency-key", "")
    if key and not _KEY.fullmatch(key):
        raise BadRequest("Idempotency-Key must be 1 to 200 visible ASCII characters")
    principal = principal_in(request.scope)
    if key and principal:  # no name of a principal has a colon
        key = f"{principal.name}:{key}"
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return Caller(
        session_id=session_id,
        token=token.strip() if scheme.lower() == "bearer" else "",
        traceparent=headers.get("traceparent", "")[:256],
        idempotency_key=key or f"~{secrets.token_hex(16)}",
        body_hash=_identity_of(request, raw) if key else "",
        # As the key proves it; where no keys are asked for, as the request says.
        by=principal.name if principal else headers.get("x-user", "")[:128],
    )


def id_to_create(request: Request, caller: Caller, secret: bytes) -> str:
    """The id of the conversation that a request creates: with an Idempotency-Key, always the same.
    ``secret``: see `mesh.access.secret`."""
    is_keyed = "idempotency-key" in request.headers
    return id_for_key(secret, caller.idempotency_key, caller.token) if is_keyed else new_id()


def _identity_of(request: Request, raw: bytes) -> str:
    """A hash of what makes two requests with one key the same: method, path and body. The path is that below
    the agent's root path, which may change between the two."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return hashlib.sha256(f"{request.method} {path}\0".encode() + raw).hexdigest()[:16]


def is_version(text: str) -> bool:
    """Whether this has the form of a version of an agent."""
    return _VERSION.fullmatch(text) is not None


def listing_query(request: Request) -> Page:
    """``limit``, ``cursor``, ``status`` and ``version`` of a listing."""
    limit, cursor = page_query(request, most=500, usual=50)
    status = request.query_params.get("status", "")
    if status not in ("", "active", "waiting_approval", "completed"):
        raise BadRequest("status must be active, waiting_approval or completed")
    version = request.query_params.get("version", "")
    if version and not is_version(version):
        raise BadRequest("version must be a version as GET /versions has it")
    return Page(limit, cursor, status, version)


def page_query(request: Request, *, most: int, usual: int) -> tuple[int, str]:
    """``limit`` and ``cursor`` of a listing. A page has at most so many entries, and usually so many."""
    query = request.query_params
    limit = query.get("limit", str(usual))
    if not _is_number(limit) or not 1 <= int(limit) <= most:
        raise BadRequest(f"limit must be a number from 1 to {most}")
    cursor = query.get("cursor", "")
    if cursor and not is_cursor(cursor):
        raise BadRequest("cursor must be the next_cursor of an earlier page")
    return int(limit), cursor


def _is_number(text: str) -> bool:
    """Whether this is a decimal number of reasonable size: `int` refuses thousands of digits."""
    return text.isascii() and text.isdecimal() and len(text) <= 18


def _too_large(limit: int, key: str) -> str:
    return f"the body is over {limit} bytes ({key})"

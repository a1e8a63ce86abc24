"""Export and import of conversations: a journal as JSON lines, one event a line. Pure."""

from base64 import b64decode
from collections.abc import Sequence

import msgspec

from mesh.core import strict_json
from mesh.core.conversation import fold
from mesh.core.errors import BadRequest
from mesh.core.events import (
    AgentTold,
    AnyEvent,
    ApprovalResolved,
    Completed,
    ConversationCreated,
    Error,
    LimitReached,
    Live,
    Paused,
    ToolResult,
    UserMessage,
    decode,
    encode,
    is_moment,
)
from mesh.core.ids import SESSION_IDS, is_id, is_session_id

_LONGEST_STEP, _DEEPEST_STEP = 2_000, 100
"""Much is kept by each place around a step, so that a very deep one takes very much memory."""
_LEFT_BEHIND = (
    "This conversation was carried to another mesh while this turn was open: what it waited for, or was "
    "about to do, was left behind. Ask again if it is still wanted."
)


def exported_lines(events: Sequence[AnyEvent]) -> bytes:
    """The journal as lines."""
    return b"".join(encode(event) + b"\n" for event in events)


def imported_events(content: bytes, agent: str, digest: str, at: str, by: str = "") -> list[AnyEvent]:
    """The journal that exported lines make here, for an agent in one of its versions, when they are imported
    at this time. Raises `BadRequest`.

    ``by`` is the name of the API key that imports, if keys are asked for. The names of people in the lines
    are then marked as what that key says, since nobody here has checked them.

    An open turn ends with an error: if it went on in both meshes, its effects could happen twice. Nothing is
    remembered here that somebody has decided, or says to have decided, in another mesh.
    """
    events: list[AnyEvent] = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            events.append(_attributed(_without_version(_without_grant(_event(line, number))), by))
    if not events or not isinstance(events[0], ConversationCreated):
        raise BadRequest("line 1: a conversation begins with conversation_created")
    if any(isinstance(event, ConversationCreated) for event in events[1:]):
        raise BadRequest("there is more than one conversation_created: carry one conversation at a time")
    events[0] = msgspec.structs.replace(events[0], agent=agent, digest=digest, imported_at=at)
    conversation = fold(events)
    if conversation.turn_open:
        events.append(Error(turn=conversation.turn, message=_LEFT_BEHIND))
    return events


def _without_grant(event: AnyEvent) -> AnyEvent:
    if not isinstance(event, ApprovalResolved):
        return event
    return msgspec.structs.replace(event, remember="none", grant=None)


def _without_version(event: AnyEvent) -> AnyEvent:
    """All of it becomes part of one version of the agent here."""
    if isinstance(event, Paused):
        return msgspec.structs.replace(event, digest="", nodes={}, by="")
    if isinstance(event, UserMessage):
        return msgspec.structs.replace(event, digest="", nodes={})
    if isinstance(event, Completed | Error):
        return msgspec.structs.replace(event, digest="")
    return event


def _attributed(event: AnyEvent, by: str) -> AnyEvent:
    if not (by and isinstance(event, UserMessage | ApprovalResolved | AgentTold) and event.by):
        return event
    if isinstance(event, AgentTold) and not event.from_person:  # the name of a node
        return event
    return msgspec.structs.replace(event, by=f"{event.by} (as imported by {by})")


def created_in(content: bytes) -> ConversationCreated:
    """The first event of exported lines. Raises `BadRequest`."""
    first = _event(content.lstrip().partition(b"\n")[0], 1)
    if not isinstance(first, ConversationCreated):
        raise BadRequest("line 1: a conversation begins with conversation_created")
    if not is_id(first.conversation_id):
        raise BadRequest(
            f"line 1: {first.conversation_id[:64]!r} is no conversation_id: a uuid, in small letters"
        )
    return first


def _event(line: bytes, number: int) -> AnyEvent:
    try:
        event = decode(line)
    except msgspec.DecodeError as problem:
        raise BadRequest(f"line {number} is no event: {problem}") from None
    if isinstance(event, Live):
        raise BadRequest(f"line {number}: {type(event).__name__} is never in a journal")
    if wrong := _problem_of(event):
        raise BadRequest(f"line {number}: {wrong}")
    return event


def _problem_of(event: AnyEvent) -> str:
    """What is wrong with an event; empty if nothing. Its values become headers, cursors and calls between
    processes, which the mesh makes such that they can, and another source might not."""
    if event.time and not is_moment(event.time):
        return "time must be as in 2026-01-31T12:00:00.000Z"
    scope = event.scope if isinstance(event, LimitReached) else ""
    if any(len(place) > _LONGEST_STEP or place.count(".") > _DEEPEST_STEP for place in (event.step, scope)):
        return f"a step has at most {_LONGEST_STEP} characters and {_DEEPEST_STEP} points"
    if isinstance(event, ConversationCreated | UserMessage) and not _has_valid_session(event):
        return f"session_id must be {SESSION_IDS}"
    files = event.artifacts if isinstance(event, ToolResult) else ()
    if not all(_is_base64(file.data) for file in files):
        return "the data of an artifact must be base64"
    try:
        strict_json.checked(msgspec.to_builtins(event))
    except ValueError as problem:
        return str(problem)
    return ""


def _is_base64(data: str) -> bool:
    try:
        b64decode(data, validate=True)
    except ValueError:
        return False
    return True


def _has_valid_session(event: ConversationCreated | UserMessage) -> bool:
    is_optional = isinstance(event, UserMessage)
    return is_session_id(event.session_id) or (is_optional and not event.session_id)

"""A conversation on its way from one mesh to another: its journal, one event a line. Pure."""

from collections.abc import Sequence

import msgspec

from mesh.core import strict_json
from mesh.core.conversation import fold
from mesh.core.errors import BadRequest
from mesh.core.events import (
    AnyEvent,
    ApprovalResolved,
    ConversationCreated,
    Error,
    Live,
    UserMessage,
    decode,
    encode,
    is_moment,
)
from mesh.core.ids import SESSION_IDS, is_id, is_session_id

_LEFT_BEHIND = (
    "This conversation was carried to another mesh while this turn was open: what it waited for, or was "
    "about to do, was left behind. Ask again if it is still wanted."
)


def exported(events: Sequence[AnyEvent]) -> bytes:
    """A journal as lines."""
    return b"".join(encode(event) + b"\n" for event in events)


def imported(content: bytes, agent: str, digest: str, by: str = "") -> list[AnyEvent]:
    """The journal that such lines make here: that of an agent, in one of its versions. Raises `BadRequest`.
    ``by`` names who brings it, if that was proved: what it says of others is their word, and no proof.

    An open turn ends with an error: were it to go on in two places, what it does could be done twice.
    """
    events: list[AnyEvent] = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            events.append(_on_the_word_of(by, _event(line, number)))
    if not events or not isinstance(events[0], ConversationCreated):
        raise BadRequest("line 1: a conversation begins with conversation_created")
    if any(isinstance(event, ConversationCreated) for event in events[1:]):
        raise BadRequest("there is more than one conversation_created: carry one conversation at a time")
    events[0] = msgspec.structs.replace(events[0], agent=agent, digest=digest)
    conversation = fold(events)
    if conversation.turn_open:
        events.append(Error(turn=conversation.turn, message=_LEFT_BEHIND))
    return events


def _on_the_word_of(by: str, event: AnyEvent) -> AnyEvent:
    if not (by and isinstance(event, UserMessage | ApprovalResolved) and event.by):
        return event
    return msgspec.structs.replace(event, by=f"{event.by} (as imported by {by})")


def created_in(content: bytes) -> ConversationCreated:
    """The first event of such lines. Raises `BadRequest`."""
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
    if wrong := _wrong_in(event):
        raise BadRequest(f"line {number}: {wrong}")
    return event


def _wrong_in(event: AnyEvent) -> str:
    """What an event of a journal of ours never has, and what would be a header, a cursor or a call between
    processes that cannot be made."""
    if event.time and not is_moment(event.time):
        return "time must be as in 2026-01-31T12:00:00.000Z"
    if isinstance(event, ConversationCreated | UserMessage) and not _may_be_its(event):
        return f"session_id must be {SESSION_IDS}"
    try:
        strict_json.checked(msgspec.to_builtins(event))
    except ValueError as problem:
        return str(problem)
    return ""


def _may_be_its(event: ConversationCreated | UserMessage) -> bool:
    is_optional = isinstance(event, UserMessage)
    return is_session_id(event.session_id) or (is_optional and not event.session_id)

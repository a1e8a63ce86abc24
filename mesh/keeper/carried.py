"""A conversation on its way from one mesh to another: its journal, one event a line. Pure."""

from collections.abc import Sequence

import msgspec

from mesh.conversation import fold
from mesh.errors import BadRequest
from mesh.events import AnyEvent, ConversationCreated, Error, Live, decode, encode
from mesh.ids import is_id

_LEFT_BEHIND = (
    "This conversation was carried to another mesh while this turn was open: what it waited for, or was "
    "about to do, was left behind. Ask again if it is still wanted."
)


def exported(events: Sequence[AnyEvent]) -> bytes:
    """A journal as lines."""
    return b"".join(encode(event) + b"\n" for event in events)


def imported(content: bytes, agent: str, digest: str) -> list[AnyEvent]:
    """The journal that such lines make here: that of an agent, in one of its versions. Raises `BadRequest`.

    An open turn ends with an error: were it to go on in two places, what it does could be done twice.
    """
    events: list[AnyEvent] = []
    for number, line in enumerate(content.splitlines(), 1):
        if line.strip():
            events.append(_event(line, number))
    if not events or not isinstance(events[0], ConversationCreated):
        raise BadRequest("line 1: a conversation begins with conversation_created")
    if any(isinstance(event, ConversationCreated) for event in events[1:]):
        raise BadRequest("there is more than one conversation_created: carry one conversation at a time")
    events[0] = msgspec.structs.replace(events[0], agent=agent, digest=digest)
    conversation = fold(events)
    if conversation.turn_open:
        events.append(Error(turn=conversation.turn, message=_LEFT_BEHIND))
    return events


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
    return event

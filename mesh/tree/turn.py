"""What travels down the tree with a call, and what comes back up."""

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from mesh.events import AnyEvent
from mesh.llm.port import Message


class TurnInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass over the tree for one turn.

    ``run`` numbers the pass: greater than every earlier pass of any keeper; effects are claimed in
    its name. ``known`` are the turn's step events so far, ``history`` the turns before.
    ``digest`` says which version of the agent runs it.
    ``token`` is the caller's bearer token: it lives in memory for the turn and is written nowhere.
    """

    conversation_id: str
    session_id: str
    digest: str
    turn: int
    run: int
    user_message: str
    history: Sequence[Message] = ()
    known: Sequence[AnyEvent] = ()
    token: str = ""
    traceparent: str = ""

    def __repr__(self) -> str:
        return f"TurnInput({self.conversation_id}, turn {self.turn}, run {self.run})"


Status = Literal["completed", "paused", "cancelled", "failed", "superseded", "interrupted"]


class TurnOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a pass ended.

    ``text`` is the answer, or for ``failed`` what went wrong. ``events`` are what is not journaled
    yet, in the order it happened. ``superseded``: a newer pass runs; this one counts for nothing.
    ``interrupted``: the pass broke off, because its keeper did not answer; another may follow.
    """

    status: Status
    text: str = ""
    events: Sequence[AnyEvent] = ()


encode_input = msgspec.msgpack.Encoder().encode
decode_input = msgspec.msgpack.Decoder(TurnInput).decode
encode_output = msgspec.msgpack.Encoder().encode
decode_output = msgspec.msgpack.Decoder(TurnOutput).decode


class AppendAhead(Protocol):
    """How a node sends events to the keeper before its call returns.

    True: they are durable, and claims in them are held by this run. False: a newer run has taken
    the turn over; nothing more may be done in this one's name.
    """

    async def __call__(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> bool:
        """See the class."""
        ...


class RunTurn(Protocol):
    """How a keeper runs a pass: by a call to the root's actor, or in the same process.

    Raises `Unavailable` when nobody could take the pass to its end; some of it may have happened.
    """

    async def __call__(self, turn: TurnInput) -> TurnOutput:
        """See the class."""
        ...

"""What travels down the tree with a call, what comes back up, and the ports above and below a node."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from mesh.core.events import AnyEvent, ApprovalResolved, ToolIntent, ToolResult
from mesh.core.messages import Message
from mesh.core.places import ROOT, Place


class TurnInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass over the tree for one turn, or the part of it below one node.

    ``run`` numbers the pass: greater than every earlier pass of any keeper; effects are claimed in
    its name. ``digest`` says which version of the agent runs it.

    ``at`` is the node's place: indices of children from the root, with the round of a loop where it is
    in one (``0.2#3.1``). ``known`` are the outcomes of this turn at this place and below it, ``pending``
    those of the whole turn that are not journaled yet: nothing may be journaled before them.
    ``llm_calls``: model calls of this turn so far, those in ``known`` and those that are not included.
    ``state`` is the session state as this node sees it, ``iteration`` the round of the nearest loop.
    ``history`` are the turns before, for those nodes that read them.

    ``watched``: somebody looks on, so that what happens is told at once, and deltas are wanted.

    ``token`` is the caller's bearer token: it lives in memory for the turn and is written nowhere.
    ``lost_token``: there was one, and the process that had it died.
    """

    conversation_id: str
    session_id: str
    digest: str
    turn: int
    run: int
    user_message: str
    at: str = ROOT.text
    iteration: int = 0
    state: Mapping[str, str] = {}
    message_id: str = ""
    history: Sequence[Message] = ()
    known: Sequence[AnyEvent] = ()
    pending: Sequence[AnyEvent] = ()
    llm_calls: int = 0
    token: str = ""
    lost_token: bool = False
    traceparent: str = ""
    watched: bool = False

    @property
    def place(self) -> Place:
        """``at``, as a place."""
        return Place(self.at)

    def __repr__(self) -> str:
        return f"TurnInput({self.conversation_id}, turn {self.turn}, run {self.run}, at {self.at})"


Status = Literal["completed", "paused", "cancelled", "failed", "superseded", "interrupted"]


class TurnOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a pass ended, at one node.

    ``text`` is the answer, or for ``failed`` what went wrong. ``events`` are what is not journaled
    yet, in the order it happened, with what is only for watchers; ``sent`` what this pass has journaled
    already, told when it paused.
    ``llm_calls``: how many model calls were made in this pass, here and below.
    ``state`` are the keys of the session state that it wrote. ``exits``: the loop around it is to end.
    ``superseded``: a newer pass runs; this one counts for nothing.
    ``interrupted``: the pass broke off, because its keeper did not answer; another may follow.
    """

    status: Status
    text: str = ""
    events: Sequence[AnyEvent] = ()
    sent: Sequence[AnyEvent] = ()
    state: Mapping[str, str] = {}
    exits: bool = False
    llm_calls: int = 0


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """``taken``: the events are durable, and claims in them are held by this run. Not taken: a newer run has
    taken the turn over; nothing more may be done in this one's name. ``watched`` as in `TurnInput`;
    ``llm_calls``: how many model calls of the turn are durable, by whichever node."""

    taken: bool
    watched: bool = False
    llm_calls: int = 0


class Decisions(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was decided, and the turn's `TurnInput.token` since then."""

    events: Sequence[ApprovalResolved] = ()
    token: str = ""

    def __repr__(self) -> str:
        return f"Decisions({self.events})"


class Recorder(Protocol):
    """The keeper, as a node sees it."""

    async def append(self, conversation_id: str, turn: int, run: int, events: Sequence[AnyEvent]) -> Ack:
        """Sends events ahead of the return; those of `Live` are shown to whoever watches, in their place
        among the others. Raises `Unavailable`."""
        ...

    async def decisions(self, conversation_id: str, turn: int, run: int, after: int) -> Decisions | None:
        """What was decided in this turn since event ``after``; waits for it, but not for ever (then there is
        nothing). None: a newer run has taken the turn over. Raises `Unavailable`."""
        ...


class RunNode(Protocol):
    """How a pass goes on at a node: by a call to its actor, or in the same process.

    Raises `Unavailable` when nobody could take it to its end; some of it may have happened.
    """

    def __call__(self, turn: TurnInput) -> Coroutine[Any, Any, TurnOutput]:
        """See the class."""
        ...


class AbandonedTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task of another agent that waits for an answer which nobody here will give any more. ``node`` is the
    place of the node that asked, the rest as in `TurnInput`."""

    digest: str
    node: str
    agent: str
    task_id: str
    session_id: str = ""
    traceparent: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"AbandonedTask({self.agent}, {self.task_id})"


class UnsettledCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call that a pass claimed, and that has no result yet. ``digest`` is as in `TurnInput`,
    ``call_id`` as in `ToolResult`."""

    digest: str
    conversation_id: str
    call_id: str
    intent: ToolIntent


class Tree(Protocol):
    """A whole tree, as a keeper sees it."""

    async def run(self, turn: TurnInput) -> TurnOutput:
        """`RunNode` of the root."""
        ...

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        """What is wrong with these arguments for a tool that a node is about to call; empty if nothing."""
        ...

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """What came of a claimed call, for a turn that ends; waits while it runs. One that has not begun
        never will, and its result says so. None: nobody knows. Raises `Unavailable`."""
        ...

    async def cancel(self, task: AbandonedTask) -> None:
        """Asks another agent to cancel a task; whether it does is its affair. Raises `Unavailable`."""
        ...

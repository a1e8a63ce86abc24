"""The port to other agents: sends a message to one, and finds out what came of it.

Above: a step of the tree, which journals what it is about to send before it sends it. Below: an agent that is
reached over HTTP (`mesh.a2a.client.agent`) or runs in this process (`mesh.a2a.client.memory`). The port knows
neither the journal nor our own approvals. Of the other agent's approvals it knows what that agent says.
"""

from typing import Any, Literal, Protocol

import msgspec

from mesh.a2a.budget_data import CallerContext
from mesh.core.approvals import Decision
from mesh.core.errors import MeshError
from mesh.core.events import ApprovalKindName, DecisionProtocol, Preview, SpentElsewhere
from mesh.core.verdict import Part, Remember

TaskState = Literal["completed", "failed", "canceled", "rejected", "input-required", "auth-required"]


class RemoteFailed(MeshError):
    """The message has failed: it was refused, not understood, or not answered in time. The text is for the
    model."""

    def naming(self, agent: str) -> "RemoteFailed":
        """Returns the error with the agent's name before its text."""
        return type(self)(f"agent {agent}: {self}")


class RemoteLost(MeshError):
    """The message was sent and the connection was lost. `RemoteAgent.recover` may find out what came of
    it."""


class ForwardedHeaders(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is passed on from the caller to the next agent: `X-Session-ID`, `traceparent` and the bearer
    ``token``. The repr does not show the token."""

    session_id: str = ""
    traceparent: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"ForwardedHeaders({self.session_id})"


class AskedWhy(msgspec.Struct, frozen=True, omit_defaults=True):
    """Which rule of another agent asks and why, and what its call would do: as in `ApprovalRequired`, in that
    agent's words."""

    rule: str = ""
    why: str = ""
    parts: tuple[Part, ...] = ()
    remember: Remember = "none"
    suggested_rule: dict[str, Any] | None = None
    preview: Preview | None = None


class RemoteApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that another agent wants a person to decide. ``id`` is that agent's, or empty if it gives
    none."""

    description: str
    id: str = ""
    kind: ApprovalKindName = "tool_call"
    tool_name: str = ""
    tool_args: dict[str, Any] = {}
    asked_why: AskedWhy = AskedWhy()


class InputRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task of another agent waits for. ``id`` distinguishes it from the next one of the same task.

    ``approvals`` has at least one entry. In the protocol ``hitl`` they must all be decided together, in
    ``mesh`` each can be decided by itself.
    """

    id: str
    protocol: DecisionProtocol
    approvals: tuple[RemoteApproval, ...]


class RelayedDecision(Decision, frozen=True, omit_defaults=True, kw_only=True):
    """A decision on an approval of ours, for the agent that asked: it decides the approvals with these
    ``ids`` of the input request ``request_id``."""

    request_id: str
    protocol: DecisionProtocol
    ids: tuple[str, ...]
    kind: ApprovalKindName = "tool_call"


class OutgoingMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message to another agent.

    ``id`` is a UUID that is derived from the durable step, so the message has the same id however often and
    by whichever process it is sent; so is ``context_id``. With a ``decision`` the message answers the input
    request of task ``task_id``. With a ``task_id`` and no decision it only brings
    `ForwardedHeaders.token` to a task that waits for one. ``sender`` is for agents that have the budget
    extension.
    """

    id: str
    text: str
    context_id: str
    task_id: str = ""
    decision: RelayedDecision | None = None
    sender: CallerContext | None = None


class RemoteTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task that the other agent does not work on any more. ``text`` is the answer, or what went wrong.

    ``input_request`` is set in the states input-required and auth-required. In the state auth-required
    without an input request, it was not the task but HTTP that asked for a token (401, 403). ``refused``: the
    message itself was not taken for want of a token; otherwise it is as open as before what came of it.
    ``spent`` is what the agent says that the task has cost.
    """

    state: TaskState
    text: str
    task_id: str = ""
    context_id: str = ""
    input_request: InputRequest | None = None
    refused: bool = False
    spent: SpentElsewhere = SpentElsewhere()


class RemoteAgent(Protocol):
    """Another agent.

    Promises: every call ends within the bound that the config sets for the agent, and what it returns is
    bounded in size.

    Does not promise that a message that failed had no effect, nor that a task can be cancelled.
    """

    async def send(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask:
        """Sends a message and waits while the agent works on it. Raises `RemoteFailed`, `RemoteLost`."""
        ...

    async def recover(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask | None:
        """Finds out what came of a message that was sent before, perhaps by a process that died.

        Waits for a `send` of the message that is under way in this process, asks the agent, and sends the
        message again only where that is known to be harmless. Returns None if nobody can know what came of
        it. Raises `RemoteFailed` if a message that was sent again is refused, or the agent is still working
        when the time is over.
        """
        ...

    async def is_priced(self, forwarded: ForwardedHeaders) -> bool:
        """Whether the agent promises to say what its tasks cost. Raises `RemoteFailed`, `RemoteLost`."""
        ...

    async def withdraw(self, message: OutgoingMessage, forwarded: ForwardedHeaders) -> bool:
        """Makes as sure as possible that the message has no effect any more: its task is asked to stop, and
        an agent that counts message ids will refuse the message if it arrives later. Returns False if the
        agent could not be reached."""
        ...

    async def cancel(self, task_id: str, forwarded: ForwardedHeaders) -> None:
        """Asks the agent to stop a task. Whether it does is not reported."""
        ...

    async def close(self) -> None:
        """Closes the connections."""
        ...

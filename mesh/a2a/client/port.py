"""The port to other agents: a message goes out, and sooner or later it is known what came of it.

Above: a step of the tree, which journals what it is about to say before it says it. Below: an agent
somewhere, over HTTP (`mesh.a2a.client.agent`) or in this process (`mesh.a2a.client.memory`). It knows no
journal and no approval of our own; what it knows of the other's is what that one tells.
"""

from typing import Any, Literal, Protocol

import msgspec

from mesh.core.approvals import Decision
from mesh.core.errors import MeshError
from mesh.core.events import ApprovalKindName, DecisionProtocol

State = Literal["completed", "failed", "canceled", "rejected", "input-required", "auth-required"]


class RemoteFailed(MeshError):
    """The message came to nothing that may be waited for: refused, not understood, no answer in time. For the
    model to read."""


class RemoteLost(MeshError):
    """The message was sent and the connection was lost: `RemoteAgent.recover` may tell what came of it."""


class ForwardedHeaders(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes along to the next agent: `X-Session-ID`, `traceparent`, and the caller's bearer ``token``."""

    session_id: str = ""
    traceparent: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return f"ForwardedHeaders({self.session_id})"


class RemoteApproval(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing that waits there for a person. ``id`` is the other's; empty where it names none."""

    description: str
    id: str = ""
    kind: ApprovalKindName = "tool_call"
    tool_name: str = ""
    tool_args: dict[str, Any] = {}


class InputRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent asks. ``id`` tells this question from the next one of the same task. ``asked`` has at
    least one entry; of the form ``hitl`` they must be decided together, of ``mesh`` each by itself."""

    id: str
    protocol: DecisionProtocol
    approvals: tuple[RemoteApproval, ...]


class RelayedDecision(Decision, frozen=True, omit_defaults=True, kw_only=True):
    """A decision about an approval of ours, for the agent that asked: it decides ``ids`` of its question."""

    request_id: str
    protocol: DecisionProtocol
    ids: tuple[str, ...]
    kind: ApprovalKindName = "tool_call"


class OutgoingMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message. ``id`` is a UUID made of the durable step: the same message has the same id, whoever sends
    it again. ``context_id`` likewise. With ``decision`` it answers the question of task ``task_id``; without,
    and with a ``task_id``, it only brings its `ForwardedHeaders.token` to a task that waits for one."""

    id: str
    text: str
    context_id: str
    task_id: str = ""
    decision: RelayedDecision | None = None


class RemoteTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the task stands when nothing goes on there any more. ``text`` is the answer, or what went wrong;
    ``question`` goes with input-required and auth-required.

    auth-required without a ``question``: the other's door wants a token, whatever its task wants.
    ``refused``: so the message itself was not taken; else that is as open as before.
    """

    state: State
    text: str
    task_id: str = ""
    context_id: str = ""
    input_request: InputRequest | None = None
    refused: bool = False


class RemoteAgent(Protocol):
    """Another agent.

    Promises: each call ends within the agent's configured bound, and what comes is bounded in size. Does not
    promise that a message that failed did nothing, nor that anybody can cancel it.
    """

    async def send(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask:
        """Says something, and waits while the other works on it. Raises `RemoteFailed`, `RemoteLost`."""
        ...

    async def recover(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask | None:
        """What came of a message that was sent before, perhaps by a process that died: waits for a `send` of
        it that is under way here, asks, and sends it again only where that is known to be harmless. None: it
        cannot be known. Raises `RemoteFailed` when what was sent again is refused, or the agent is still at
        work when the time is over."""
        ...

    async def withdraw(self, message: OutgoingMessage, hop: ForwardedHeaders) -> bool:
        """Makes sure, as well as that can be, that nothing comes of a message any more: its task is asked to
        stop, and an agent that counts message ids will refuse it if it has not arrived yet. False: the agent
        could not be told."""
        ...

    async def cancel(self, task_id: str, hop: ForwardedHeaders) -> None:
        """Asks it to stop; whether it does is its affair."""
        ...

    async def close(self) -> None:
        """Lets go of connections."""
        ...

"""The execution context: what a call tells its callee about where it stands. Pure.

It goes with every call to another process that works for a turn: to MCP servers in ``_meta``
(`mesh.mcp.meta`). It has no token, no header and no text of the conversation.
"""

import re
from collections.abc import Mapping
from hashlib import sha256

import msgspec

_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})(?P<trace_id>[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


class RecordedQuestion(msgspec.Struct, frozen=True):
    """What running code has asked of its node before, and what it was answered, both as JSON: see
    `CodeStep`."""

    asked: str
    answer: str


class ExecutionContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a call stands.

    ``idempotency_key`` names the step among those of all conversations. It is the same in every attempt at
    the step, also in those of other processes.

    ``trace_id`` are 32 hex digits. ``traceparent`` is the W3C trace context that came with the request, empty
    if none did.

    ``depth`` counts the agents that call each other down to this call: 1 in the root agent. ``agent_path``
    are the names of those of this mesh, the root agent's first. ``started_at`` is when the innermost of them
    began, ``deadline`` when nobody waits for the call any more, empty if that is not known; both as events
    write times.

    ``spent`` and ``left`` are amounts by the key of their budget (``max_cost_usd``, …), empty where there is
    no budget. Model calls whose cost is not known yet count with their bounds.

    ``recorded`` is what the tool has asked in earlier runs of this call: see `mesh.tools.asking`.
    """

    idempotency_key: str
    trace_id: str
    depth: int
    agent_path: tuple[str, ...]
    started_at: str = ""
    deadline: str = ""
    spent: Mapping[str, int | float] = {}
    left: Mapping[str, int | float] = {}
    traceparent: str = ""
    recorded: tuple[RecordedQuestion, ...] = ()


def step_id(conversation_id: str, turn: int, nonce: str, step: str) -> str:
    """The name of a step among those of all conversations, also those that were deleted and turns that a
    store has lost. ``nonce`` is that of the turn (`UserMessage`).

    >>> step_id("c", 2, "f00d", "0.1/tool/3.0")
    'c|2.f00d|0.1/tool/3.0'
    """
    # Turns of earlier releases have none: their claims are known by the name that they had then.
    return f"{conversation_id}|{turn}.{nonce}|{step}" if nonce else f"{conversation_id}|{turn}|{step}"


def valid_traceparent(header: str) -> str:
    """The header if it has the form of the W3C trace context, which leaves no room for anything else; or an
    empty text.

    >>> valid_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01'
    >>> valid_traceparent("Bearer secret")
    ''
    """
    return header if _TRACEPARENT.fullmatch(header) else ""


def trace_id_of(traceparent: str, conversation_id: str, turn: int) -> str:
    """The trace id of a turn: that of the request's trace context, or one that only the conversation and the
    turn decide, so that it is the same in every process.

    >>> trace_id_of("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "c", 1)
    '0af7651916cd43dd8448eb211c80319c'
    """
    found = _TRACEPARENT.fullmatch(traceparent)
    return found["trace_id"] if found else sha256(f"{conversation_id}|{turn}".encode()).hexdigest()[:32]

"""THE vocabulary: what can happen in a conversation.

One union of small frozen types serves the journal (one JSON object a line), the SSE stream, the
logs and every view. The wire name of an event is its class name in snake case, under ``type``.

An event is *journaled* when the keeper gave it a ``seq`` (1, 2, 3 … in its conversation). Those of
`Live` have none: they reach whoever watches and are gone. A node creates events with ``step`` set; the
keeper numbers them. Two events with equal ``key`` say the same thing, so appending one twice is
harmless: the first stays.

What depends on what, in one turn (arrows point to what must be journaled before):

    user_message <- llm_call <- approval_required <- approval_resolved <- tool_intent <- tool_result
                       ^------------------------------------------------------------------ llm_call
    node_completed closes a node below the root and depends on all that happened in it.
    paused says that nothing can go on before a person decides.
    answered says that a client was told so.
    completed | error closes the turn and depends on all of it.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec

from mesh.core.places import Place, StepKey

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]
Choice = Literal["approve", "reject", "retry", "skip", "answer"]
DecisionProtocol = Literal["mesh", "hitl", "text"]
"""How an agent asks and takes decisions: by an extension (`mesh.a2a.extensions`), or in words."""
ApprovalKindName = Literal["tool_call", "unknown_outcome", "question", "auth_required"]
"""See `mesh.core.approvals`: a row for each."""


def now() -> str:
    """The present moment as every event writes it: RFC 3339, UTC, milliseconds."""
    return moment(timedelta())


def moment(from_now: timedelta) -> str:
    """A moment as every event writes it. Two of them compare as texts."""
    return (datetime.now(UTC) + from_now).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_moment(text: str) -> bool:
    """Whether this is a moment as `moment` writes it."""
    return _MOMENT.fullmatch(text) is not None


_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call the model asked for. ``id`` is the provider's (or made up where it gives none).

    ``opaque`` is provider data that must go back unchanged with the call (Gemini's thought
    signature, base64). ``malformed`` is set instead of ``arguments`` when the model's arguments
    were not a JSON object: the raw text, bounded.
    """

    id: str
    name: str
    arguments: dict[str, Any] = {}
    opaque: str = ""
    malformed: str = ""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one model call. ``cached`` are those of ``input`` that were read from a cache."""

    input: int = 0
    output: int = 0
    cached: int = 0


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a tool gave: its content in ``data`` (base64), or where it is in ``url``."""

    name: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=_snake):
    """What every event carries. ``seq`` 0: not journaled. ``step`` is the durable step (``0.2/llm/1``), or
    a node's place (``0.2``, in the third round of a loop ``0.2#3``); empty for what happens to the turn."""

    seq: int = 0
    time: str = ""
    turn: int = 0
    step: str = ""

    @property
    def wire_name(self) -> str:
        """What ``type`` says."""
        return str(self.__struct_config__.tag)

    @property
    def place(self) -> Place:
        """Where in the tree it happened."""
        return StepKey(self.step).place

    @property
    def node(self) -> str:
        """The same as text, as clients see it."""
        return self.step.partition("/")[0]

    @property
    def key(self) -> str:
        """What makes two appends of one event the same event."""
        return f"{self.turn}|{self.step}|{type(self).__name__}"


class ConversationCreated(Event, frozen=True):
    """The first event of every journal. ``digest`` pins the agent's config for good. ``context_id`` is A2A's,
    when it is not the session's id."""

    conversation_id: str
    session_id: str
    agent: str
    digest: str
    system_prompt: str = ""
    context_id: str = ""
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""


class UserMessage(Event, frozen=True):
    """Opens a turn. ``session_id`` is that of the request, when it is not the conversation's.
    ``had_token``: the request had a bearer token, which is not written anywhere. ``message_id`` is the
    client's (A2A). ``by`` names who asked: the name of the API key, or what the request says."""

    text: str
    session_id: str = ""
    had_token: bool = False
    message_id: str = ""
    by: str = ""
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""


class NodeStarted(Event, frozen=True):
    """A node of the tree began a pass."""

    name: str
    kind: str


class TextDelta(Event, frozen=True):
    """A piece of the model's text. ``offset``: how many characters (code points) of the step's text are
    before it; a model call that is tried again begins at 0."""

    text: str
    offset: int = 0


class ToolCallDelta(Event, frozen=True, tag="tool_call"):
    """A tool call as the model writes it.

    ``started`` has ``name``; ``arguments`` has ``delta`` (a piece of JSON text); ``ready`` has ``call``.
    """

    phase: Literal["started", "arguments", "ready"]
    call_id: str
    name: str = ""
    delta: str = ""
    call: ToolCall | None = None


class Trace(Event, frozen=True):
    """Something to diagnose with: a model call that is tried again, a provider's event that is not known."""

    message: str
    data: dict[str, Any] = {}


class CutOff(Event, frozen=True):
    """The end of a stream that the server gave up: what comes after event ``after`` was not sent."""

    message: str
    after: int = 0


class LlmCall(Event, frozen=True):
    """The model answered: the completed event of a model's stream, and the outcome of an LLM step.

    ``text`` and ``tool_calls`` may both be present, or both empty (an empty answer).
    """

    model: str
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    latency_ms: int = 0


class ToolIntent(Event, frozen=True):
    """Somebody is about to run a tool that must not run twice; acknowledged before the tool runs.

    ``run`` is the pass over the tree that holds the claim. ``attempt`` counts a person's retries, and what
    is said to another agent in one step. ``answers`` is the approval whose decision is about to be told.
    ``session`` is the only session (with MCP server ``server``) that may run it, and so can say what came of
    it; empty where there is none to ask.
    """

    run: int
    tool: str
    arguments: dict[str, Any]
    attempt: int = 0
    answers: str = ""
    server: str = ""
    session: str = ""

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|ToolIntent|{self.attempt}"


class ToolResult(Event, frozen=True):
    """What a tool call came to, as the model sees it. ``skipped``: it did not run, by decision. ``artifacts``
    are files that it gave besides: the model sees that there are some, whoever asked gets them."""

    call_id: str
    tool: str
    content: str
    is_error: bool = False
    skipped: bool = False
    duration_ms: int = 0
    artifacts: tuple[Artifact, ...] = ()


class RemoteQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another agent asks, in its own names: see `mesh.a2a.client.port.InputRequest`."""

    context_id: str
    question_id: str
    form: DecisionProtocol
    ids: tuple[str, ...] = ()


class ApprovalRequired(Event, frozen=True):
    """A step waits for a person. ``description`` is for that person to read.

    ``asked_by`` and ``output_key`` are the name and key of the node that waits. ``expires_at``: when it
    counts as rejected. ``remote_*`` are set when another agent asks: its task, its name, its question.
    ``kind`` "question" takes a text, "auth_required" a caller with a bearer token. ``tool_fingerprint``
    says which tool was asked about: see `mesh.mcp.fingerprint`.
    """

    uuid: str
    call_id: str
    tool_name: str
    tool_args: dict[str, Any]
    description: str
    kind: ApprovalKindName = "tool_call"
    attempt: int = 0
    asked_by: str = ""
    output_key: str = ""
    expires_at: str = ""
    remote_task_id: str = ""
    remote_agent_name: str = ""
    remote_question: RemoteQuestion | None = None
    tool_fingerprint: dict[str, str] = {}

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|ApprovalRequired|{self.kind}|{self.attempt}"


class ApprovalResolved(Event, frozen=True):
    """A person decided. ``by`` names who: the name of the API key, or what the request says.

    ``edited_args`` replace what the model asked for. A rejection with a ``reason`` is told to the model,
    which goes on; one without ends the turn. ``answer`` is the text for a question. ``had_token`` as in
    `UserMessage`.
    """

    uuid: str
    decision: Choice
    by: str = ""
    edited_args: dict[str, Any] | None = None
    reason: str = ""
    answer: str = ""
    had_token: bool = False
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""

    @property
    def key(self) -> str:
        return f"{self.uuid}|ApprovalResolved"


class NodeCompleted(Event, frozen=True):
    """A node below the root is done and is not run again. ``text`` is its response, or what went wrong.

    ``state`` is what it wrote into the session state. ``exits``: it ended the loop around it.
    """

    name: str
    status: Literal["completed", "failed"] = "completed"
    text: str = ""
    state: dict[str, str] = {}
    exits: bool = False
    duration_ms: int = 0


class Paused(Event, frozen=True):
    """All that could go on without a person has; ``run`` is the pass that found it so."""

    run: int

    @property
    def key(self) -> str:
        return f"{self.turn}|Paused|{self.run}"


class Answered(Event, frozen=True):
    """An answer told a client how the turn stands. ``uuid`` is the approval that it described: from here on
    words alone may decide it. ``key`` is set for a message that came too early to decide anything: it has had
    its answer, however often it comes again."""

    uuid: str = ""
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.uuid}|{self.idempotency_key}|Answered"


class Completed(Event, frozen=True):
    """Closes the turn with the answer. ``stopped_by_person`` (``cancelled`` in JSON): a person rejected what
    the turn wanted to do without a reason, or cancelled the turn. ``cancelled_on_request`` (``called_off`` in
    JSON): the latter. ``state`` is what the turn wrote into the session state."""

    response: str
    stopped_by_person: bool = msgspec.field(default=False, name="cancelled")
    cancelled_on_request: bool = msgspec.field(default=False, name="called_off")
    state: dict[str, str] = {}


class Error(Event, frozen=True):
    """Closes the turn without an answer: what went wrong and where, for a person."""

    message: str


class ConversationCompleted(Event, frozen=True):
    """The conversation is final: it takes no more messages."""


Live = NodeStarted | TextDelta | ToolCallDelta | Trace | CutOff
"""For whoever watches; never journaled."""

AnyEvent = (
    Live
    | ConversationCreated
    | UserMessage
    | LlmCall
    | ToolIntent
    | ToolResult
    | ApprovalRequired
    | ApprovalResolved
    | NodeCompleted
    | Paused
    | Answered
    | Completed
    | Error
    | ConversationCompleted
)

NAMES = frozenset(kind.__struct_config__.tag for kind in get_args(AnyEvent))
"""The wire name of every event."""

encode = msgspec.json.Encoder().encode
"""One event as a JSON object (bytes, no newline)."""

_decode = msgspec.json.Decoder(AnyEvent).decode


def decode(raw: bytes | str) -> AnyEvent:
    """The inverse of `encode`. Raises `msgspec.DecodeError` (bytes that are no JSON) or its subclass
    `msgspec.ValidationError` (JSON that is no event)."""
    try:
        event: AnyEvent = _decode(raw)
    except UnicodeDecodeError as problem:
        raise msgspec.DecodeError(f"not UTF-8 text: {problem.reason} at byte {problem.start}") from None
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None
    return event

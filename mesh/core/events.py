"""The vocabulary: everything that can happen in a conversation.

One union of small frozen types serves the journal (one JSON object a line), the SSE streams, the logs and
every view. The wire name of an event, under ``type``, is its class name in snake case.

An event is *journaled* when the keeper has given it a ``seq`` (1, 2, 3 … in its conversation). The events of
`Live` get none: they reach the watchers of the moment and are not kept. Nodes create events with ``step``
set; the keeper numbers them. Two events with equal ``key`` are the same event, so that appending one twice is
harmless: the first one stays.

Which event depends on which, in one turn (an arrow points to what must be journaled before):

    user_message <- llm_call <- approval_required <- approval_resolved <- tool_intent <- tool_result
                       ^------------------------------------------------------------------ llm_call
    llm_call <- agent_started <- what the called agent does <- tool_result
    llm_call <- agent_started <- what the started agent does <- node_completed; <- tool_result, of the spawn
    llm_call <- agent_told, of an agent below <- llm_call of the agent; <- tool_result, of the tell
    agent_started <- agent_told, by a person <- llm_call of the agent
    node_completed, of a started agent <- tool_result, of the wait; <- agents_reported <- llm_call
    code_step <- tool_result, of the python call
    llm_call <- validation, of the validator at position 0 <- validation, at position 1 <- llm_call
    llm_reserved <- llm_call | llm_settled | llm_lost; limit_reached depends on what it counts
    node_completed closes a node below the root and depends on all that happened in it.
    paused: nothing can go on before a person decides.
    answered: a client has been told what waits.
    completed | error closes the turn and depends on all of it.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET

from mesh.core.places import Place, StepKey
from mesh.core.verdict import Part, Remember

FinishReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal"]
Choice = Literal["approve", "reject", "retry", "skip", "answer"]
NodeStatus = Literal["completed", "failed", "deleted"]
StartedBy = Literal["", "spawn", "fork", "map", "python", "tool", "person"]
"""What started an agent: a model by one of these tools, a map node, the code of a ``python`` call, a tool of
a Python file, or a person who added it. Empty: nothing started it, it was called."""
ValidatorKind = Literal["schema", "check", "agent", "person"]
DecisionProtocol = Literal["mesh", "hitl", "text"]
"""How an agent asks and takes decisions: by an extension (`mesh.a2a.extensions`), or in words."""
ApprovalKindName = Literal["tool_call", "unknown_outcome", "question", "auth_required", "limit", "validation"]
"""See `mesh.core.approvals`: a row for each."""


Outcome = Literal["applied", "not_applied", "unknown"]
"""What a check tells of a call: see `Found`."""


def now() -> str:
    """The present time as events write it: RFC 3339, UTC, in milliseconds."""
    return moment(timedelta())


def moment(from_now: timedelta) -> str:
    """A time from now, as events write it. Two such times compare as strings."""
    return as_moment(datetime.now(UTC) + from_now)


def as_moment(time: datetime) -> str:
    """A time of the zone UTC, as `moment` writes it."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_moment(text: str) -> bool:
    """Whether this is a time as `moment` writes it."""
    return _MOMENT.fullmatch(text) is not None


_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that the model asked for. ``id`` is the provider's, or made up where it gives none.

    ``opaque`` is data of the provider that must be sent back unchanged with the call (Gemini's thought
    signature, in base64). ``malformed`` is set instead of ``arguments`` when the model's arguments were not a
    JSON object: their raw text, bounded.
    """

    id: str
    name: str
    arguments: dict[str, Any] = {}
    opaque: str = ""
    malformed: str = ""


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The tokens of one model call. ``cached`` of the ``input`` tokens were read from the provider's
    cache."""

    input: int = 0
    output: int = 0
    cached: int = 0


class Artifact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a tool returned: its content in ``data`` (base64), or its location in ``url``."""

    name: str
    media_type: str = ""
    data: str = ""
    url: str = ""


class FileChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that a call would change: how many lines are ``added`` and ``removed``, and what identifies its
    content before and after (a hash; empty: there is no file)."""

    path: str
    added: int = 0
    removed: int = 0
    before: str = ""
    after: str = ""


class Preview(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call would do, as its tool says. ``cut``: there is more of the ``text``, from ``next_offset``
    on. ``expect`` identifies what is there now: the call is made only as long as it still is."""

    kind: Literal["diff", "text"]
    text: str
    files: tuple[FileChange, ...] = ()
    cut: bool = False
    expect: str = ""
    next_offset: int | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag=_snake):
    """What every event carries. ``seq`` 0: not journaled. ``step`` is a step key or a place
    (`mesh.core.places`); empty for what happens to the whole turn or conversation. ``concealed``: it is about
    a draft that is being checked, so that clients are not shown what is said in it (`mesh.core.concealed`).
    """

    seq: int = 0
    time: str = ""
    turn: int = 0
    step: str = ""
    concealed: bool = False

    @property
    def wire_name(self) -> str:
        """The value of ``type`` in JSON."""
        return str(self.__struct_config__.tag)

    @property
    def place(self) -> Place:
        """The place of the node in which it happened."""
        return StepKey(self.step).place

    @property
    def node(self) -> str:
        """`place`, as clients see it."""
        return self.step.partition("/")[0]

    @property
    def key(self) -> str:
        """Two appended events with the same key are one event."""
        return f"{self.turn}|{self.step}|{type(self).__name__}"


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node of a config: its name and type. Of a loop also how many iterations it has at ``most``, and
    whether an exit condition is asked after each (``is_checked``)."""

    name: str
    kind: str
    most: int = 0
    is_checked: bool = False


class ConversationCreated(Event, frozen=True):
    """The first event of every journal. ``digest`` is the version of the agent. ``context_id`` is
    the A2A context, if it differs from the session id. ``nodes`` are the nodes of the config by node path, if
    one of its trees has more than one: whoever reads the journal knows by it which nodes are at work.
    ``imported_at`` is when it was brought here from another mesh, empty if it began here."""

    conversation_id: str
    session_id: str
    agent: str
    digest: str
    system_prompt: str = ""
    context_id: str = ""
    nodes: dict[str, NodeInfo] = {}
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""
    imported_at: str = ""


class UserMessage(Event, frozen=True):
    """Opens a turn. ``session_id`` is the request's, if it differs from the conversation's. ``had_token``:
    the request carried a bearer token, which is not written anywhere. ``message_id`` is the client's (A2A).
    ``by`` names the caller: the name of the API key, or what the request says. ``budget`` are the limits of
    the request, by the keys of a budget, which can only tighten those of the agent. ``traceparent`` is the
    W3C trace context of the request, empty if it had no valid one: the whole turn belongs to its trace.
    ``nonce`` are random hex digits: no step of this turn is taken for one of another turn with its number, in
    a conversation with its id that was deleted, or of which a store has lost something. ``digest`` is the
    version of the agent from this turn on, with its ``nodes`` as in `ConversationCreated`; empty if it is
    the one of the turn before.

    ``depth`` and ``called_by`` are what an agent says that sent the message: how many agents call each other
    down to it, and their names. The names are only for people to read."""

    text: str
    session_id: str = ""
    had_token: bool = False
    message_id: str = ""
    by: str = ""
    budget: dict[str, float] = {}
    depth: int = 0
    called_by: tuple[str, ...] = ()
    traceparent: str = ""
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""
    nonce: str = ""
    digest: str = ""
    nodes: dict[str, NodeInfo] = {}


class NodeStarted(Event, frozen=True):
    """A pass began at a node of the tree."""

    name: str
    kind: str


class AgentStarted(Event, frozen=True):
    """An agent began; its place is the ``step``. ``agent_path`` are the names of the agents from the root
    agent down to this one.

    ``by`` is empty for an agent that was called as a tool: the place names the call (`Place.call`), and what
    the agent answers is the result of that. Otherwise it says what started it, which goes on beside it
    (`Place.started_in`), or that it is an item of a map; its end is the `NodeCompleted` at its place. ``id``
    is that of `mesh.core.ids.agent_id`, ``task`` what it was told, ``title`` a few words about it for people,
    ``metadata`` whatever the code that started it wants to find again. ``budget`` are the limits that its
    start gave it, which tighten those that it has by the config. ``changes`` is what people had changed by
    then of the node of which it is a fork, as in `AgentTold`.
    """

    name: str
    kind: str
    agent_path: tuple[str, ...] = ()
    id: str = ""
    title: str = ""
    task: str = ""
    metadata: dict[str, str] = {}
    by: StartedBy = ""
    budget: dict[str, float] = {}
    changes: Mapping[str, Any] = {}


class TextDelta(Event, frozen=True):
    """A piece of the model's text. ``offset`` is its position in the text of the step, in code points; a
    model call that is tried again begins at 0."""

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
    """A diagnostic message: a model call is tried again, a provider sent an unknown event."""

    message: str
    data: dict[str, Any] = {}


class CutOff(Event, frozen=True):
    """The server ended a stream early. What follows event ``after`` was not sent."""

    message: str
    after: int = 0


class LlmCall(Event, frozen=True):
    """The model's answer: the last event of a model's stream, and the outcome of a model call.

    ``text`` and ``tool_calls`` may both be present, or both be empty (an empty answer). ``cost_nusd`` is its
    cost in 10⁻⁹ USD at the price of that moment; None if the model had no known price. ``attempt`` is that of
    the reservation that it settles. ``forced`` names the limit for which it had to be the last one.
    ``draft``: its answer is checked before it counts, and no client is shown it before that; what passed is
    what its node or the turn completes with. ``not_offered`` are the tools that a draft calls although there
    are none of these names. ``heard`` are the ids of what the agent was told (`AgentTold`) that is new in its
    input, in this order. ``machine`` is the one on which its node runs.
    """

    model: str
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: FinishReason = "stop"
    usage: Usage = Usage()
    latency_ms: int = 0
    cost_nusd: int | None = None
    attempt: int = 0
    forced: str = ""
    draft: bool = False
    not_offered: tuple[str, ...] = ()
    heard: tuple[str, ...] = ()
    machine: str = ""


class LlmReserved(Event, frozen=True):
    """The keeper granted a model call under a budget, before it was made: at most ``tokens`` in all, of which
    ``max_output`` for the answer, at most ``nusd`` (10⁻⁹ USD). The `LlmCall` or `LlmSettled` of the same step
    and ``attempt`` settles it; while nothing does, the bound counts. ``run`` is the run that may make the
    call, ``pass_run`` that of the whole pass if it is another; ``input_bytes`` is the size of what the model
    is sent. ``forced`` as in `LlmCall`. ``warned`` are the limits (place of the run, key of the budget) of
    which the model is told with this call."""

    run: int
    tokens: int
    max_output: int
    input_bytes: int = 0
    nusd: int = 0
    attempt: int = 0
    forced: str = ""
    warned: tuple[tuple[str, str], ...] = ()
    pass_run: int = 0

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|LlmReserved|{self.attempt}"


class LlmSettled(Event, frozen=True):
    """What a reserved model call cost whose answer is not used: nothing, because the provider did not take
    it; or what its answer said that came too late."""

    cost_nusd: int = 0
    tokens: int = 0
    calls: int = 0
    attempt: int = 0

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|LlmSettled|{self.attempt}"


class LlmLost(Event, frozen=True):
    """The process that made a reserved model call died, or the call was broken off. Nobody knows what it
    cost, so its reservation counts with its bound from here on, and other calls do not wait for it. An answer
    that comes all the same settles it. ``attempt`` as in `LlmReserved`."""

    attempt: int = 0

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|LlmLost|{self.attempt}"


class LimitReached(Event, frozen=True):
    """A model call did not fit into a budget. ``limit`` is the key of the budget, ``scope`` the place at
    whose run it is measured, ``then`` what follows (``on_limit``). ``attempt`` as in `LlmReserved`."""

    limit: str
    scope: str
    then: Literal["answer", "stop", "fail"]
    attempt: int = 0

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|LimitReached|{self.attempt}"


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the tool ``check`` found of a call of which nobody knew whether it ran. ``text`` is for people and
    for the model; of an ``unknown`` outcome it says why. ``stopped`` says why a call that was ``applied`` did
    not come to its end; it is empty if it did."""

    check: str
    outcome: Outcome
    text: str = ""
    stopped: str = ""


class ToolIntent(Event, frozen=True):
    """A claim: the pass ``run`` is about to make a call that must not be made twice. The keeper acknowledges
    it before the call is made.

    ``attempt`` numbers the claims of the step. ``answers`` is the approval whose decision is about to be told
    to another agent. ``session`` is the only tool session (with MCP server ``server``) that may run the call,
    and so the one that can say what came of it; empty where there is none to ask. ``found``: a check found
    that the claim before this one had no effect. ``rule`` is the rule of the policy that lets it run; empty
    where there is no policy. ``nonce`` is a part of the name by which others know the call (`step_id`): that
    of the turn, or what the first claim of the step has.
    """

    run: int
    tool: str
    arguments: dict[str, Any]
    attempt: int = 0
    answers: str = ""
    server: str = ""
    session: str = ""
    found: Found | None = None
    rule: str = ""
    nonce: str = ""

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|ToolIntent|{self.attempt}"


class Validation(Event, frozen=True):
    """A validator's verdict about an answer of an llm node, which its ``step`` names (`StepKey.validation`);
    or about a round of a loop (`Place.exit_condition`). ``name`` is that of the function or agent, or the
    ``kind``. ``feedback`` is what the validator objects to, and what the model is told. ``number`` is the
    answer's among those of the node that were validated, from 1, or the iteration; ``of`` is how many there
    may be. ``shown`` is what clients are told in place of a ``feedback`` that quotes a draft."""

    name: str
    kind: ValidatorKind
    number: int
    of: int
    valid: bool = False
    feedback: str = ""
    shown: str = ""


class SpentElsewhere(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another agent says that it spent on a call. ``cost_nusd`` (10⁻⁹ USD) None: it does not say, or
    does not know."""

    cost_nusd: int | None = None
    tokens: int = 0
    llm_calls: int = 0


class ToolResult(Event, frozen=True):
    """The outcome of a tool call, as the model sees it. ``skipped``: a person decided that it does not run.
    ``artifacts`` are files that the tool returned: the model is told that there are some, the client gets
    them. ``forced``: the limit for which a called agent had to answer before it was done. ``ends_turn``:
    its content is the answer of the turn, which ends here. ``spent`` is set for calls of other agents.
    ``told`` are the places of the started agents of whose end it tells the model.
    ``arguments`` is set where no event before it tells them: no model asked for the call, and it was not
    claimed. ``output`` and ``invalid`` as in `Completed`, of a called agent. ``found``: the
    outcome is known from a check alone. ``shown`` is what clients are told in place of a ``content`` that
    quotes a draft. ``rule`` is the rule of the policy that let the call run, or ``denied`` it. ``machine`` is
    the one on which its node runs."""

    call_id: str
    tool: str
    content: str
    is_error: bool = False
    skipped: bool = False
    duration_ms: int = 0
    artifacts: tuple[Artifact, ...] = ()
    forced: str = ""
    ends_turn: bool = False
    spent: SpentElsewhere | None = None
    arguments: dict[str, Any] | None = None
    output: Any = UNSET
    invalid: str = ""
    found: Found | None = None
    shown: str = ""
    rule: str = ""
    denied: bool = False
    told: tuple[str, ...] = ()
    machine: str = ""


class CodeStep(Event, frozen=True):
    """What running code has asked of its node, and what it was answered: the code of a ``python`` call, or of
    a tool of a Python file. The ``step`` is the tool call, ``number`` counts from 0. Both are JSON. When the
    code runs again, it asks the same and gets the same."""

    number: int
    asked: str
    answer: str

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|CodeStep|{self.number}"


class AgentsReported(Event, frozen=True):
    """A model answered in text while agents that it had started still worked, or before it knew what they
    brought: it is asked once more, with the ``text``. The ``step`` is the model call; ``told`` as in
    `ToolResult`."""

    text: str
    told: tuple[str, ...] = ()


NewsAction = Literal["comment", "modify", "pause", "resume", "delete", "spawn"]
"""What news for an agent at work is to do."""
NEWS_ACTIONS: tuple[NewsAction, ...] = get_args(NewsAction)
SEEN_BY_MODELS = frozenset({"task", "prompt", "model", "tools"})
"""The changes of an agent that its model calls depend on; the others are ``budget``, ``timeout_s`` and
``metadata``."""


class AddedAgent(msgspec.Struct, frozen=True):
    """An agent that a person adds: ``handle`` is the last part of its place, such as ``search@u41``, ``kind``
    the type of its node, ``agent_path`` as in `AgentStarted`."""

    handle: str
    kind: str
    agent_path: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name."""
        return self.handle.partition("@")[0]


_MOST_LIMIT = 1_000_000_000
"""The largest limit of a budget, in its units, as in a config."""


class AgentTold(Event, frozen=True):
    """An agent, or a node of one, was told something while it works. The ``step`` is its place. ``id``
    identifies what it is told: it is the step of the tool call by which a node above told a started agent;
    ``by`` is the name of that node. ``text`` is what it is told, or the reason.

    The model of the agent reads a ``comment`` in its next call (`LlmCall.heard`). To ``delete`` an agent is
    for the node that started or called it. With ``pause``, the agent and all below it begin no further step
    until ``resume``. To ``spawn`` adds an agent (``adds``) to those that it has started, with the ``text`` as
    its task; the `AgentStarted` is in the same append. ``modify`` sets the ``changes``, by name; ``before``
    are their values before, as far as the journal has them. With ``restarts``, the agent ends by that, and
    begins anew at the place `Place.anew`, in the same append. If it is to act ``now``, a model call that it
    meets is broken off.

    ``from_person``: it is an intervention. A person told the agent, ``by`` is the name of the person, as in
    `ApprovalResolved`, and ``id`` is a random one. ``name`` and ``kind`` are then those of the agent, or of
    the node. A comment for a node without a model of its own is journaled for each model that is at work
    below it, as a ``copy_of`` what is for the node at that place."""

    id: str
    text: str
    by: str = ""
    action: NewsAction = "comment"
    now: bool = False
    changes: Mapping[str, Any] = {}
    before: Mapping[str, Any] = {}
    adds: AddedAgent | None = None
    restarts: bool = False
    from_person: bool = False
    name: str = ""
    kind: str = ""
    copy_of: str = ""
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|AgentTold|{self.id}"

    @property
    def is_read(self) -> bool:
        """Whether a model reads it: then the model is asked once more, if it was about to end."""
        if self.restarts:
            return False
        return self.action in ("comment", "spawn") or not SEEN_BY_MODELS.isdisjoint(self.changes)

    @property
    def is_for_all_below(self) -> bool:
        """Whether it also holds for all that works for the agent at this moment."""
        return self.action in ("pause", "resume") or "budget" in self.changes

    @property
    def lets_go_on(self) -> bool:
        """Whether an agent that has paused may go on by it: this one, one that has waited for it, or a new
        one."""
        return self.stops or self.action in ("resume", "spawn")

    def added_to(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """All changes of the agent, with those before: of a budget, each limit is one."""
        added = {**changes, **self.changes}
        if "budget" in added:
            added["budget"] = {**changes.get("budget", {}), **self.limits}
        return added

    @property
    def limits(self) -> Mapping[str, float]:
        """The limits that it sets, by the keys of a budget. An imported journal may say anything."""
        budget = self.changes.get("budget", {})
        given = budget.items() if isinstance(budget, dict) else ()
        numbers = ((key, limit) for key, limit in given if type(limit) in (int, float))
        return {key: limit for key, limit in numbers if 0 < limit <= _MOST_LIMIT}

    @property
    def stops(self) -> bool:
        """Whether it deletes the agent, or has it begin anew elsewhere."""
        return self.action == "delete" or self.restarts

    @property
    def end_text(self) -> str:
        """The text of the end of an agent that it deletes."""
        by = f" by {self.by or 'a person'}" if self.from_person else ""
        how = "Restarted" if self.restarts else "Deleted"
        return f"{how}{by}: {self.text or 'no reason was given'}"

    @property
    def addressee(self) -> Place:
        """The place of the node that acts on it."""
        return next(self.place.enclosing, self.place) if self.stops else self.place


class RemoteQuestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another agent asks, in its own names: see `mesh.a2a.client.port.InputRequest`."""

    context_id: str
    question_id: str
    form: DecisionProtocol
    ids: tuple[str, ...] = ()


class ApprovalRequired(Event, frozen=True):
    """A step waits for a person, who reads the ``description``. What a person may decide depends on the
    ``kind``: see `mesh.core.approvals`.

    ``asked_by`` and ``output_key`` are the name and key of the node that waits. At ``expires_at`` the
    approval counts as rejected. ``remote_*`` are set when another agent asks: its task, its name, its
    question. ``tool_fingerprint`` identifies the tool that the person is asked about: see
    `mesh.mcp.fingerprint`. ``agent_path`` is set where a called agent asks: the names of the agents from the
    root agent down to the one that asks. ``output_schema`` is that of the answer that is to be validated.
    ``found``: a check was asked before the person, and could not tell.

    ``rule`` is the rule of the policy that asks, ``why`` its reason, and ``parts`` are what it says about
    each command of a shell command. A decision may be remembered for as long as ``remember`` says; unless it
    is edited, ``suggested_rule`` (`mesh.policy.rules.PolicyRule`) is then the rule that allows the same.
    ``preview`` is what the call would do.
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
    agent_path: tuple[str, ...] = ()
    output_schema: dict[str, Any] | None = None
    found: Found | None = None
    rule: str = ""
    why: str = ""
    parts: tuple[Part, ...] = ()
    remember: Remember = "none"
    suggested_rule: dict[str, Any] | None = None
    preview: Preview | None = None

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.step}|ApprovalRequired|{self.kind}|{self.attempt}"


class ApprovalResolved(Event, frozen=True):
    """A person decided. ``by`` names the person: the name of the API key, or what the request says.

    ``edited_args`` replace the arguments that the model wrote. A rejection with a ``reason`` is told to the
    model, which goes on; a rejection without one ends the turn. ``answer`` is the answer to a question.
    ``had_token`` as in `UserMessage`. ``grant`` is a rule that allows the same from now on, for as long as
    ``remember`` says, and at most ``until`` this moment; the uuid identifies it.
    """

    uuid: str
    choice: Choice = msgspec.field(name="decision")
    by: str = ""
    edited_args: dict[str, Any] | None = None
    reason: str = ""
    answer: str = ""
    had_token: bool = False
    remember: Remember = "none"
    grant: dict[str, Any] | None = None
    until: str = ""
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""

    @property
    def key(self) -> str:
        return f"{self.uuid}|ApprovalResolved"


class NodeCompleted(Event, frozen=True):
    """A node below the root, or a started agent, has ended and does not run again. ``text`` is its response,
    what went wrong, or why it was ``deleted``.

    ``state`` is what it wrote into the session state. ``exits``: it ends the loop around it. ``ends_agent``:
    it ends the agent that it is a part of. ``forced``: the limit for which it had to end. ``output`` and
    ``invalid`` as in `Completed`.
    """

    name: str
    status: NodeStatus = "completed"
    text: str = ""
    state: dict[str, str] = {}
    exits: bool = False
    ends_agent: bool = False
    forced: str = ""
    duration_ms: int = 0
    output: Any = UNSET
    invalid: str = ""


class Paused(Event, frozen=True):
    """Nothing of the turn can go on before a person decides. ``run`` is the pass that ended so; 0: the turn
    was paused already, and was moved to another version by the person ``by``. ``digest`` is that version,
    with its ``nodes`` as in `ConversationCreated`; empty if the turn stays on its version.

    No event of its own, which the release before this one could not read.
    """

    run: int
    digest: str = ""
    nodes: dict[str, NodeInfo] = {}
    by: str = ""

    @property
    def is_move(self) -> bool:
        """Whether the turn was paused already, and was moved to another version."""
        return self.digest != ""

    @property
    def key(self) -> str:
        return f"{self.turn}|Paused|{self.run}" + (f"|{self.seq}|{self.digest}" if self.is_move else "")


class ApprovalShown(Event, frozen=True, tag="answered"):
    """A client was told how the turn stands. ``uuid`` is the approval that was described to it: from here on,
    a word without an id may decide that approval. ``key`` is set for a message that came too early to decide
    anything: when it is sent again, it gets the same answer."""

    uuid: str = ""
    idempotency_key: str = msgspec.field(default="", name="key")
    body_hash: str = ""

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.uuid}|{self.idempotency_key}|Answered"


class Completed(Event, frozen=True):
    """Closes the turn with the answer. ``stopped_by_person`` (``cancelled`` in JSON): a person rejected what
    the turn wanted to do without a reason, or cancelled the turn. ``cancelled_on_request`` (``called_off`` in
    JSON): the latter. ``state`` is what the turn wrote into the session state. ``forced``: the limit for
    which the turn had to end. ``output`` is the answer as a JSON value, where it has a schema. ``invalid`` is
    the objection in spite of which the answer was accepted. ``digest`` is the version of the agent, if it is
    not the one with which the conversation began: whoever lists conversations reads no more of a journal than
    its ends."""

    response: str
    stopped_by_person: bool = msgspec.field(default=False, name="cancelled")
    cancelled_on_request: bool = msgspec.field(default=False, name="called_off")
    state: dict[str, str] = {}
    forced: str = ""
    output: Any = UNSET
    invalid: str = ""
    digest: str = ""


class Error(Event, frozen=True):
    """Closes the turn without an answer: what went wrong and where, for a person. ``digest`` as in
    `Completed`."""

    message: str
    digest: str = ""


class StoreWentBack(Event, frozen=True):
    """The store has lost events that it had acknowledged, up to number ``lost_up_to``: it failed over to a
    standby that did not have them, for instance. This event has the number of the first of them. What they
    told of may have happened. An open turn ends by it. ``message`` says so, for a person."""

    lost_up_to: int
    message: str

    @property
    def key(self) -> str:
        return f"{self.turn}|{self.lost_up_to}|StoreWentBack"


class ConversationCompleted(Event, frozen=True):
    """The conversation is completed and takes no more messages."""


class Spend(Event, frozen=True):
    """What a run has spent of its limits, for watchers. ``step`` is the place of the run; amounts by the keys
    of the budget, in its units. ``unsettled`` are the bounds of model calls whose answers were lost,
    ``reserved`` those of calls under way."""

    limits: dict[str, float] = {}
    spent: dict[str, float] = {}
    unsettled: dict[str, float] = {}
    reserved: dict[str, float] = {}


class ToolProgress(Event, frozen=True):
    """How far a tool call has come, from 0 to 1; 0 also if the tool does not say of how much. ``message`` is
    the tool's, bounded. There are at most 10 a second of one step."""

    tool: str
    progress: float = 0.0
    message: str = ""


Live = NodeStarted | Spend | TextDelta | ToolCallDelta | ToolProgress | Trace | CutOff
"""Events for watchers; they are never journaled."""

StepEvent = (
    AgentStarted
    | LlmReserved
    | LlmCall
    | LlmSettled
    | LlmLost
    | LimitReached
    | ToolIntent
    | ToolResult
    | CodeStep
    | AgentsReported
    | AgentTold
    | Validation
    | ApprovalRequired
    | ApprovalResolved
    | NodeCompleted
)
"""Events about the steps of the open turn."""

AnyEvent = (
    Live
    | ConversationCreated
    | UserMessage
    | StepEvent
    | Paused
    | ApprovalShown
    | Completed
    | Error
    | StoreWentBack
    | ConversationCompleted
)

STORE_WENT_BACK = str(StoreWentBack.__struct_config__.tag)

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

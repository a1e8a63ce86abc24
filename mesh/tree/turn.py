"""What a pass hands down the tree and gets back, and the ports above and below a node."""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
from msgspec import UNSET

from mesh.core.budget import CallRequest, OnLimit, Remaining, Scope
from mesh.core.events import (
    AgentTold,
    AnyEvent,
    ApprovalResolved,
    LimitReached,
    LlmReserved,
    Preview,
    ToolCall,
    ToolIntent,
    ToolResult,
)
from mesh.core.execution import ExecutionContext, step_id, trace_id_of, valid_traceparent
from mesh.core.messages import Message
from mesh.core.places import ROOT, Place, StepKey
from mesh.core.verdict import Verdict
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.tracing.spans import TurnOfTrace, in_step


class Activation(msgspec.Struct, frozen=True):
    """In whose name a node tells the keeper something: run ``run`` of the node at place ``at``, in a turn.

    The keeper numbers runs. It takes events, claims and reservations only from the run that is in force at
    the place: the newest that it gave for the place or one around it."""

    conversation_id: str
    turn: int
    run: int
    at: str = ROOT.text

    @property
    def place(self) -> Place:
        """``at``, as a place."""
        return Place(self.at)


class PassInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One pass over the tree for one turn, or the part of it below one node.

    ``run`` is the number of the pass, greater than that of every earlier pass of any keeper; effects are
    claimed in its name. ``runs`` are those of the places below at which a process was lost in this pass.
    ``nonce`` is that of the turn. ``digest`` is the version of the agent that runs it; ``is_older``: there is
    a newer one by now, and what that denies is denied.

    ``at`` is the node's place (`mesh.core.places`). ``known`` are the events of this turn at this place and
    below it; ``pending`` are those of the whole turn that are not journaled yet, and nothing may be journaled
    before them. ``llm_calls`` counts the model calls of the turn so far, also those that are not in
    ``known``. ``state`` is the session state as this node sees it, ``iteration`` that of the nearest loop.
    ``history`` are the turns before, for nodes that read them.

    ``asks`` and ``at_once`` are set for an agent that was called: whether the config says above the call that
    destructive tools wait for a person, None if it says nothing; and whether the caller is below a parallel
    or loop node. One that checks an answer always has an ``asks``. ``may_end_turn`` is false for one that
    checks an answer, or whose caller's answer is checked, and for all below it: the turn would end past
    these checks. ``agent_path`` are the names of the agents from the root agent down to this one, empty in
    the root agent. ``started_at`` is when this agent began: the root agent with the turn. ``deadline`` is
    when nobody waits for this pass any more, ``patience_s`` how long a node whose process is lost again and
    again is begun anew.

    ``depth_above`` counts the agents of other meshes that call each other down to the root agent of this
    turn, ``called_by`` are their names, for people to read. ``by`` names who sent the message.

    ``exchange`` is set for a fork: the messages between the node that it was forked from and its model, up
    to the call that started it, with the result that only the fork sees.

    ``budget`` are the limits of the request that began the turn, which tighten those of the root.
    ``scopes`` are the budgets of the nodes around this one, and its own. For a started agent, ``budget`` are
    the limits of whoever started it. ``slot`` is the place of the started agent, or item of a map, in whose
    slot this node works; empty: it needs none.

    ``held`` are the places of the agents around this node that a person has paused: while there are any,
    nothing new begins here.

    ``conceals``: a draft is checked here, and what happens is told to nobody but the journal: see
    `mesh.core.concealed`.

    ``watched``: there are watchers, so that events are sent ahead at once and deltas are wanted.

    ``token`` is the caller's bearer token. It stays in memory while the turn is open and is written nowhere.
    ``lost_token``: there was one, and the process that had it died.
    """

    conversation_id: str
    session_id: str
    digest: str
    turn: int
    run: int
    user_message: str
    at: str = ROOT.text
    runs: Mapping[str, int] = {}
    iteration: int = 0
    state: Mapping[str, str] = {}
    message_id: str = ""
    history: Sequence[Message] = ()
    exchange: Sequence[Message] = ()
    known: Sequence[AnyEvent] = ()
    pending: Sequence[AnyEvent] = ()
    llm_calls: int = 0
    token: str = ""
    lost_token: bool = False
    traceparent: str = ""
    watched: bool = False
    asks: bool | None = None
    at_once: bool = False
    may_end_turn: bool = True
    agent_path: Sequence[str] = ()
    started_at: str = ""
    deadline: str = ""
    patience_s: float = 120.0
    depth_above: int = 0
    called_by: Sequence[str] = ()
    by: str = ""
    conceals: bool = False
    is_older: bool = False
    budget: Mapping[str, float] = {}
    scopes: Sequence[Scope] = ()
    slot: str = ""
    held: Sequence[str] = ()
    nonce: str = ""

    @property
    def activation(self) -> Activation:
        """In whose name this node tells the keeper what happens."""
        return Activation(self.conversation_id, self.turn, self.run, self.at)

    def traceparent_in(self, step: StepKey) -> str:
        """The trace context with which a step calls others."""
        given = valid_traceparent(self.traceparent)
        return in_step(TurnOfTrace(self.conversation_id, self.turn, self.nonce, given), step.text)

    def context(self, step: StepKey, nonce: str, root: str, remaining: Remaining) -> ExecutionContext:
        """What a call of this pass tells its callee. ``nonce`` is that of the step (`Steps.nonce_of`),
        ``root`` the name of the root agent, ``remaining`` says what may still be used of the budgets."""
        context = ExecutionContext(
            idempotency_key=step_id(self.conversation_id, self.turn, nonce, step.text),
            trace_id=trace_id_of(self.traceparent, self.conversation_id, self.turn),
            depth=self.depth,
            agent_path=tuple(self.agent_path) or (root,),
            started_at=self.started_at,
            deadline=self.deadline,
            traceparent=self.traceparent_in(step),
        )
        return msgspec.structs.replace(context, spent=remaining.used, left=remaining.left)

    @property
    def place(self) -> Place:
        """``at``, as a place."""
        return Place(self.at)

    @property
    def call_scopes(self) -> Sequence[Scope]:
        """Those of the ``scopes`` that bound what model calls may use."""
        return [scope for scope in self.scopes if scope.bounds_calls]

    @property
    def depth(self) -> int:
        """How many agents call each other down to this pass, those of other meshes included."""
        return self.depth_above + self.place.depth

    def __repr__(self) -> str:
        return f"PassInput({self.conversation_id}, turn {self.turn}, run {self.run}, at {self.at})"


PassStatus = Literal["completed", "paused", "stopped", "failed", "deleted", "superseded", "interrupted"]


class PassOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a pass ended at one node.

    ``text`` is the answer, or what went wrong if it ``failed``. ``events`` are those that are not journaled
    yet, in their order, with those that are only for watchers. ``sent`` are those that this pass has
    journaled already, without those inside of what has ended, and ``runs`` the numbers of those that are in
    force below, by place, where a process was lost; both are set when the pass paused.
    ``llm_calls`` counts the model calls of this pass, here and below. ``state`` is what it wrote into the
    session state. ``exits``: the loop around it is to end; ``ends_agent``: the agent that it is a part of.
    ``forced``: the limit for which it had to end. ``output`` is the answer as a JSON value, where it has a
    schema; ``invalid`` the objection in spite of which it was accepted.

    ``stopped``: a person rejected what the turn was about, and gave no reason to go on with.
    ``deleted``: a person has deleted what the node works for; ``text`` says who and why.
    ``superseded``: a newer pass runs, and this one counts for nothing. ``interrupted``: something did not
    answer, such as the keeper; another pass may follow. ``gave_up``: what did not answer was waited for as
    long as `PassInput.patience_s` says, so that nobody above waits for it once more.

    ``heard`` has the keys of the news that the run took: a reply that says so may come after this.
    """

    status: PassStatus
    text: str = ""
    events: Sequence[AnyEvent] = ()
    sent: Sequence[AnyEvent] = ()
    state: Mapping[str, str] = {}
    exits: bool = False
    ends_agent: bool = False
    forced: str = ""
    llm_calls: int = 0
    output: Any = UNSET
    invalid: str = ""
    gave_up: bool = False
    runs: Mapping[str, int] = {}
    heard: Sequence[str] = ()


class Ack(msgspec.Struct, frozen=True, omit_defaults=True):
    """``taken``: the events are durable, and this pass holds the claims among them. Otherwise a newer pass
    has taken the turn over, and nothing more may be done in the name of this one. ``watched`` as in
    `PassInput`; ``llm_calls`` counts the model calls of the turn that are durable, by whichever node."""

    taken: bool
    watched: bool = False
    llm_calls: int = 0


class ReserveReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply to a model call that asked to be admitted. ``ack`` is about the events that came with it.

    ``event`` is what was journaled: the reservation, or the limit that was reached. Without an event, a
    person has to raise a limit first (``is_paused``), or it is to be asked again. ``time_left_s`` bounds a
    call that was admitted."""

    ack: Ack
    event: LlmReserved | LimitReached | None = None
    is_paused: bool = False
    time_left_s: float | None = None


class Restarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply to a restart. ``run`` is the run that is now in force at the place and below it, ``events``
    are the step events journaled there, in their order, as in `PassInput.known`. ``done`` are the claims, and
    their results, of the same agent before it began anew at this place."""

    ack: Ack
    run: int = 0
    events: Sequence[AnyEvent] = ()
    done: Sequence[AnyEvent] = ()


class Decisions(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="type", tag="decisions"):
    """New decisions, which are journaled, and the turn's `PassInput.token` since then."""

    events: Sequence[ApprovalResolved] = ()
    token: str = ""

    def __repr__(self) -> str:
        return f"Decisions({self.events})"


class SlotTake(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request for a slot: for the agent at ``place``, in which a node counts its requests by ``ticket``. A
    start of agents is one for each of them."""

    place: str
    ticket: int = 0


class SlotRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one pass of a node, the ``asker``, wants of the slots of its turn: see `mesh.keeper.turn_slots`.

    ``seen`` is how many grants it knows. ``take`` are requests for slots, ``free`` are the places of agents
    that need none any more, ``rests`` is that of the agent which the node belongs to, if that waits. The
    requests that change something have a ``number``, which grows."""

    asker: str
    seen: int
    number: int = 0
    take: Sequence[SlotTake] = ()
    free: Sequence[str] = ()
    rests: str = ""
    leaves: str = ""


class SlotReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an asker was ``granted`` after the first ``before``, in order. ``is_short``: somebody waits for a
    slot."""

    before: int
    granted: Sequence[SlotTake] = ()
    is_short: bool = False


class StartReply(msgspec.Struct, frozen=True, omit_defaults=True):
    """The reply to agents that were to start. ``ack`` is about the events that came with them. ``refusal``
    says why none of them has started, in words for a model; empty: all of them have. ``granted`` are the
    places of those that have a slot, ``is_short`` as in `SlotReply`."""

    ack: Ack
    refusal: str = ""
    granted: Sequence[str] = ()
    is_short: bool = False


class Recorder(Protocol):
    """The port from a node to the keeper."""

    async def append(self, activation: Activation, events: Sequence[AnyEvent]) -> Ack:
        """Sends events ahead of the return of the pass. Those of `Live` are shown to the watchers, in their
        order among the others. Raises `Unavailable`."""
        ...

    async def reserve(
        self, activation: Activation, events: Sequence[AnyEvent], request: CallRequest
    ) -> ReserveReply:
        """Sends events ahead, and reserves what a model call can cost. Waits while it fits only if calls in
        flight turn out cheaper, but not for ever, and not if the reply is wanted at once. Raises
        `Unavailable`."""
        ...

    async def start(
        self, activation: Activation, events: Sequence[AnyEvent], scopes: Sequence[Scope], asker: str
    ) -> StartReply:
        """Sends events ahead, and with them, in one append, the starts of agents that are among them, unless
        that would exceed the ``max_agents`` of a run around them: then none of them starts. ``scopes`` are
        the budgets around them, ``asker`` is whose slots they take (`SlotRequest`). Raises `Unavailable`."""
        ...

    async def slots(self, activation: Activation, request: SlotRequest) -> SlotReply | None:
        """Carries out a request about slots. One that changes nothing waits until something is granted that
        its asker does not know, but not for ever. None: a newer pass has taken over. Raises
        `Unavailable`."""
        ...

    async def restart(self, lost: Activation) -> Restarted:
        """Begins a new run of a child whose process was lost, asked by its parent: ``lost`` is the place of
        the child, with the run of the parent. From the reply on, what is left of the child, and everything
        below it, can neither claim nor record nor reserve; the late result of a tool that it claimed is
        taken all the same. What it had reserved, and what was reserved below it, counts as lost, so that
        nobody waits for it; the slots below it are free. Other places are not touched.

        Asked twice, it begins two runs, of which the later one is in force. Not taken: the parent's own run
        is not in force, or the child has ended. Raises `Unavailable`."""
        ...

    async def remaining(self, conversation_id: str, scopes: Sequence[Scope], on_limit: OnLimit) -> Remaining:
        """What the newest turn may still use of these budgets, by their keys: see `remaining_of`. Raises
        `Unavailable`."""
        ...

    async def grants(self, conversation_id: str, agent: str) -> Sequence[Grant]:
        """What is remembered for an agent: in this conversation, and for always. Some may have ended. Raises
        `Unavailable`."""
        ...

    async def denial(self, conversation_id: str, call: PolicyCall) -> Verdict | None:
        """How the newest config denies a call, if it does: see `PassInput.is_older`. Raises `Unavailable`."""
        ...


News = AgentTold | Decisions
"""What comes down the calls of a pass while it goes on."""
Hearing = Literal["taken", "ended", "mute", "unknown", "full"]
"""What came of news for an agent: it is durable, and the agent will read it; the agent has ended; it has no
model of its own that could read it; no such agent is known; it may have no more agents."""


class RunNode(Protocol):
    """A node as its parent sees it: an actor, or an object in the same process."""

    def __call__(self, turn: PassInput) -> Coroutine[Any, Any, PassOutput]:
        """Continues a pass. Raises `Unavailable` when the pass was not taken to its end; some of it may have
        happened."""
        ...

    def hear(self, activation: Activation, news: News, is_durable: bool) -> Coroutine[Any, Any, Hearing]:
        """Hands news down to this activation of the node, which takes what is about its own place, and hands
        on what is about a place below it. What is not ``is_durable`` yet becomes so on the way: it is
        journaled by the innermost node that runs around the place. Waits until the activation has begun.
        Raises `Unavailable` when it is not known whether the news has arrived."""
        ...


class AbandonedTask(msgspec.Struct, frozen=True, omit_defaults=True):
    """A task of another agent that waits for an answer, in a turn that is over. ``node`` is the place of the
    node that asked, the rest as in `PassInput`."""

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
    """A claimed tool call without a result. ``digest``, ``depth_above`` and ``traceparent`` as in
    `PassInput`, ``call_id`` as in `ToolResult`."""

    digest: str
    conversation_id: str
    call_id: str
    intent: ToolIntent
    depth_above: int = 0
    traceparent: str = ""

    def context(self, root: str) -> ExecutionContext:
        """What a check of the call is told. ``root`` is the name of the root agent."""
        intent = self.intent
        return ExecutionContext(
            idempotency_key=step_id(self.conversation_id, intent.turn, intent.nonce, intent.step),
            trace_id=trace_id_of(self.traceparent, self.conversation_id, intent.turn),
            depth=self.depth_above + intent.place.depth,
            agent_path=(root, *intent.place.called_agents),
            traceparent=valid_traceparent(self.traceparent),
        )


class Tree(Protocol):
    """The port from a keeper to the tree of an agent, in all its versions."""

    async def run(self, turn: PassInput) -> PassOutput:
        """`RunNode` of the root."""
        ...

    async def problems(self, digest: str, node: str, tool: str, arguments: dict[str, Any]) -> str:
        """What is wrong with these arguments for a tool of a node; empty if nothing is."""
        ...

    async def verdict(self, digest: str, node: str, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """What the policy says about a call of a node now, if this is remembered. Raises `Unavailable`."""
        ...

    async def preview(self, digest: str, node: str, call: ToolCall, offset: int) -> Preview | None:
        """What a call would do, from an offset of the preview's text on. None: it is not known. Raises
        `Unavailable`."""
        ...

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """Finds out what came of a claimed call, for a turn that ends; waits while the call runs. A call that
        has not begun never will, and its result says so. None: nobody knows. Raises `Unavailable`."""
        ...

    async def cancel(self, task: AbandonedTask) -> None:
        """Asks another agent to cancel a task, which it may or may not do. Raises `Unavailable`."""
        ...

    async def hear(self, digest: str, activation: Activation, news: News, is_durable: bool) -> Hearing:
        """`RunNode.hear` of the root, in a pass that runs."""
        ...

"""Calls of other agents: how a message is sent, recovered and passed on. What happens when, `mesh.tree.calls`
decides.

The step of such a call may have several claims: one for the message, and one for each decision that is told
to the other agent (``ToolIntent.answers``). A claim that nothing follows was cut short: the other agent is
asked what came of it before anything is sent again, and before a person is asked. When a person says "retry"
it is asked once more, because it may be reachable by then. "Skip" withdraws the message, which may still be
on its way.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec

from mesh.a2a.budget_data import CallerContext
from mesh.a2a.client.port import (
    ForwardedHeaders,
    InputRequest,
    OutgoingMessage,
    RelayedDecision,
    RemoteAgent,
    RemoteApproval,
    RemoteFailed,
    RemoteLost,
    RemoteTask,
)
from mesh.core.budget import LimitName
from mesh.core.durable_call import MESSAGE_REFUSED, Ask, AskWhatToDo, History, MakeClaim, Refuse
from mesh.core.events import (
    ApprovalKindName,
    ApprovalRequired,
    ApprovalResolved,
    Preview,
    RemoteQuestion,
    SpentElsewhere,
    ToolCall,
    ToolIntent,
    ToolResult,
)
from mesh.core.execution import step_id
from mesh.core.messages import AGENT_TOOL_PREFIX, ToolSpec
from mesh.core.places import StepKey
from mesh.core.verdict import Verdict
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.runtime.failpoints import failpoint
from mesh.tree.calls import (
    Asks,
    CallDriver,
    CallSettings,
    Ended,
    NotBegun,
    NotRun,
    Returned,
    Stopped,
    Unknown,
    bounded,
    listed,
    run_call,
    too_deep,
)
from mesh.tree.calls_for_policies import agent_call
from mesh.tree.node import PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import AbandonedTask, UnsettledCall

_IDS = UUID("6c1c5e0e-7d1b-4b7e-9d2c-0a6a2f4b8e11")
_OUTCOME_OF_DECISION = "\n\nWhat came of the last decision: "
_MOST_DESCRIPTION = 4_000
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"message": {"type": "string", "description": "What to say to the agent, in full."}},
    "required": ["message"],
    "additionalProperties": False,
}


class AgentTool(msgspec.Struct, frozen=True):
    """Another agent, as a tool of this one."""

    name: str
    agent: RemoteAgent
    description: str = ""
    destructive: bool = False

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return f"{AGENT_TOOL_PREFIX}{self.name}"

    @property
    def spec(self) -> ToolSpec:
        """The tool as models see it."""
        return spec_of(self.name, self.description)


def spec_of(name: str, description: str) -> ToolSpec:
    """An agent as models see it: a tool that takes a message."""
    return ToolSpec(f"{AGENT_TOOL_PREFIX}{name}", description or f"Asks the agent {name}.", _SCHEMA)


class RemoteCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of other agents of one node. ``agents`` by the name of their tool. ``max_depth`` bounds how
    many agents call each other. ``refuses_unpriced``: under a money limit, only agents are asked that promise
    to say what they cost."""

    agents: Mapping[str, AgentTool]
    settings: CallSettings = CallSettings()
    max_depth: int = 5
    refuses_unpriced: bool = False

    async def run(self, steps: Steps, step: StepKey, call: ToolCall) -> ToolResult | PassEnd:
        """See `run_call`."""
        driver = _RemoteCall(self, steps, step, call, self.agents[call.name])
        return await run_call(driver, steps, step, call, self.settings)

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made; empty if it can."""
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        message = call.arguments.get("message")
        if not isinstance(message, str) or not message.strip() or len(call.arguments) > 1:
            return f'Invalid arguments for {call.name}: expected {{"message": "…"}} and nothing else'
        return ""

    def policy_call(
        self, tool: AgentTool, arguments: Mapping[str, Any], *, inline: bool = False
    ) -> PolicyCall:
        """A call, as policies see it."""
        who, node = self.settings.agent, self.settings.name
        destructive = tool.destructive
        return agent_call("a2a", who, node, tool.tool, arguments, destructive=destructive, inline=inline)

    @property
    def offered(self) -> Sequence[AgentTool]:
        """The agents that are not denied whatever the message."""
        denies = self.settings.gate.denies_always
        return [tool for tool in self.agents.values() if not denies(self.policy_call(tool, {}))]

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        return await self.settings.verdict(self.policy_call(self.agents[call.name], call.arguments), grants)

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        """See `Tree.preview`. Another agent cannot say what it would do."""
        return None

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`. What came of a message is the other agent's; its task is cancelled instead."""
        return None

    async def cancel(self, task: AbandonedTask) -> None:
        """See `Tree.cancel`."""
        tool = self.agents.get(f"{AGENT_TOOL_PREFIX}{task.agent}")
        if tool is not None:
            await tool.agent.cancel(
                task.task_id, ForwardedHeaders(task.session_id, task.traceparent, task.token)
            )


class _RemoteCall(CallDriver):
    """One call of another agent."""

    may_know_later = True

    def __init__(
        self, calls: RemoteCalls, steps: Steps, step: StepKey, call: ToolCall, tool: AgentTool
    ) -> None:
        super().__init__(call)
        self._calls = calls
        self._steps = steps
        self._step = step
        self._name = tool.name
        self._tool = tool
        self._agent = tool.agent
        self._left: dict[LimitName, float] = {}
        self.lacks_token = steps.turn.lost_token

    # -- as it describes itself

    def problem(self, arguments: dict[str, Any]) -> str:
        if is_too_deep := too_deep(self.call.name, self._steps.turn.depth, self._calls.max_depth):
            return is_too_deep
        return self._calls.problems(msgspec.structs.replace(self.call, arguments=arguments))

    def policy_call(self, arguments: dict[str, Any]) -> PolicyCall:
        inline = not self._calls.settings.asks(self._steps.turn)
        return self._calls.policy_call(self._tool, arguments, inline=inline)

    def attempt(self, kind: ApprovalKindName, history: History) -> int:
        # Journals number all questions of such a call together, whatever their kind.
        return len(history.approvals)

    # -- effects

    async def claim(self, action: MakeClaim) -> ToolIntent | NotRun:
        if why := await self._unpriced():
            return NotRun(f"{self.call.name} was not called: {why}")
        if not action.answers:  # before the claim: from there on, a failure would leave an unknown outcome
            self._left = (await self._steps.remaining(self._calls.settings.on_limit)).left
        return ToolIntent(run=0, tool=self.call.name, arguments=action.arguments, answers=action.answers)

    async def run_claimed(self, claim: ToolIntent) -> Ended:
        failpoint("a2a.claimed")
        message = self._as_sender(self._message(claim))
        try:
            return await self._ended(claim, await self._send(message))
        except RemoteFailed as problem:
            return self._failed(claim, problem)

    async def recover(self, claim: ToolIntent, *, is_retry: bool) -> Ended:
        try:
            # It may be less than the first time; an agent that has the message keeps to what it was told.
            self._left = (await self._steps.remaining(self._calls.settings.on_limit)).left
            message = self._as_sender(self._message(claim))
            task = await self._agent.recover(message, self._headers)
            return await self._ended(claim, task, is_retry=is_retry)
        except RemoteFailed as problem:
            return self._failed(claim, problem)

    async def skip(self, claim: ToolIntent) -> None:
        await self._withdraw(claim)

    async def cancel(self, task_id: str) -> None:
        await self._agent.cancel(task_id, self._headers)

    async def _send(self, message: OutgoingMessage) -> RemoteTask | None:
        try:
            return await self._agent.send(message, self._headers)
        except RemoteLost:
            return await self._agent.recover(message, self._headers)
        except RemoteFailed:
            if not message.task_id:
                raise
            # The question may not wait any more, because somebody decided it there. Ask how the task stands.
            return await self._agent.recover(message, self._headers)

    async def _withdraw(self, claim: ToolIntent) -> bool:
        return await self._agent.withdraw(self._message(claim), self._headers)

    @property
    def _headers(self) -> ForwardedHeaders:
        turn = self._steps.turn
        return ForwardedHeaders(turn.session_id, turn.traceparent_in(self._step), turn.token)

    # -- what is sent

    @property
    def _history(self) -> History:
        return History(self._steps.of(self._step))

    def _message(self, claim: ToolIntent) -> OutgoingMessage:
        """The message of a claim. Its id follows from the step, so that any process sends the same one."""
        turn = self._steps.turn
        step = step_id(turn.conversation_id, turn.turn, claim.nonce, self._step.text)
        message_id, context = str(uuid5(_IDS, f"{step}|{claim.attempt}")), str(uuid5(_IDS, step))
        asked = self._answered_by(claim)
        if asked is None or asked.remote_question is None:
            return OutgoingMessage(message_id, claim.arguments["message"], context)
        question, relayed = asked.remote_question, None
        decision = self._history.decision_on(asked)
        if decision is not None and asked.kind != "auth_required":
            relayed = _relayed(asked, decision)
        return OutgoingMessage(message_id, "", question.context_id, asked.remote_task_id, relayed)

    async def _unpriced(self) -> str:
        """Why the agent must not be asked under the money limits around this node; empty if it may."""
        has_limit = any(scope.is_money for scope in self._steps.turn.scopes)
        if not (self._calls.refuses_unpriced and has_limit):
            return ""
        try:
            is_priced = await self._agent.is_priced(self._headers)
        except (RemoteFailed, RemoteLost) as problem:
            return str(problem)
        unknown = "it does not promise to say what it costs, and budget.unpriced_peers refuses such agents"
        return "" if is_priced else unknown

    def _as_sender(self, message: OutgoingMessage) -> OutgoingMessage:
        """A message that begins a task, with where it comes from."""
        if message.task_id:
            return message
        turn = self._steps.turn
        path = (*turn.called_by, *(turn.agent_path or (self._calls.settings.root,)))
        return msgspec.structs.replace(message, sender=CallerContext(turn.depth, path, self._left))

    def _answered_by(self, claim: ToolIntent) -> ApprovalRequired | None:
        """The other agent's question whose decision a claim tells."""
        asked = self._history.approval(claim.answers)
        return asked if asked is not None and asked.remote_task_id else None

    # -- what comes of it

    async def _ended(self, claim: ToolIntent, task: RemoteTask | None, *, is_retry: bool = False) -> Ended:
        failpoint("a2a.returned")
        if task is None:
            # What may still arrive has to be withdrawn before it is sent again, or it would be done twice.
            may_repeat = is_retry and (claim.answers or await self._withdraw(claim))
            return NotBegun() if may_repeat else Unknown()
        asked = self._answered_by(claim)
        decision = self._history.decision_on(asked) if asked else None
        if decision is not None and decision.choice == "reject" and not decision.reason:
            if task.input_request is not None:  # the turn ends here: nobody will answer what it asks next
                await self.cancel(task.task_id)
            return Stopped()
        return self._taken(task)

    def _failed(self, claim: ToolIntent, problem: RemoteFailed) -> Ended:
        asked = self._answered_by(claim)
        # Nobody knows whether it did something before it failed.
        if asked is None:
            return Returned(str(problem), is_error=True, spent=SpentElsewhere())
        return self._asks_again(asked, problem)

    def _taken(self, task: RemoteTask) -> Returned | Asks:
        match task.state:
            case "completed":
                return Returned(task.text, spent=task.spent)
            case "auth-required" if task.input_request is None:
                return self._wants_token(task)
            case "input-required" | "auth-required":
                return self._asks(task)
            case state:
                text = f"Agent {self._name}: {state}: {task.text}"
                return Returned(text, is_error=True, spent=task.spent)

    def _asks(self, task: RemoteTask) -> Asks:
        """The other agent waits for a person, and so does this step."""
        request = task.input_request
        kind: ApprovalKindName = "auth_required" if task.state == "auth-required" else "tool_call"
        asked = _asked_next(request, kind) if request else ()
        if asked and kind == "tool_call":
            kind = asked[0].kind
        text = "\n".join(each.description for each in asked) or task.text
        remote = RemoteQuestion(
            context_id=task.context_id,
            question_id=request.id if request else "",
            form=request.protocol if request else "text",
            ids=tuple(each.id for each in asked if each.id),
        )
        return Asks(
            self._question(
                kind,
                asked[0].tool_args if len(asked) == 1 else _all_arguments(asked),
                f"Agent {self._name} asks: {text}",
                tool_name=", ".join(each.tool_name for each in asked if each.tool_name) or self.call.name,
                remote_task_id=task.task_id,
                remote_agent_name=self._name,
                remote_question=remote,
                **_asked_why(asked),
            )
        )

    def _wants_token(self, task: RemoteTask) -> Asks:
        """The other agent's server wants a token, whatever its task wants."""
        refused = MESSAGE_REFUSED if task.refused else ""
        return Asks(
            self._question(
                "auth_required",
                self._history.arguments(self.arguments),
                f"Agent {self._name} wants a bearer token: {task.text}",
                remote_agent_name=self._name,
                remote_question=RemoteQuestion(task.context_id, refused, form="text"),
            )
        )

    def _asks_again(self, asked: ApprovalRequired, problem: RemoteFailed) -> Asks:
        """The decision had no effect there, and nothing else will come of it: a person decides anew."""
        question = asked.description.partition(_OUTCOME_OF_DECISION)[0]
        description = bounded(f"{question}{_OUTCOME_OF_DECISION}{problem}", _MOST_DESCRIPTION)
        return Asks(
            msgspec.structs.replace(asked, seq=0, time="", description=description, tool_fingerprint={})
        )

    # -- for people

    def question(self, action: Ask) -> ApprovalRequired:
        if action.kind == "auth_required":
            description = (
                f"The bearer token of this turn was lost with the process that had it, and agent "
                f"{self._name} may need it."
            )
        else:
            about = f" ({self._tool.description})" if self._tool.description else ""
            description = f"Ask agent {self._name}{about}\n{listed(action.arguments)}"
        return self._question(action.kind, action.arguments, description)

    def question_about_unknown(self, action: AskWhatToDo) -> ApprovalRequired:
        claim = action.claim
        what = "the decision" if claim.answers else "the message"
        description = (
            f"It is not known what came of {what} to agent {self._name}: the connection was lost after "
            "it was sent, and the agent cannot be asked. Look at the real thing, then decide: retry (send "
            f"it again) or skip (go on without it).\n{listed(claim.arguments)}"
        )
        return self._question("unknown_outcome", claim.arguments, description)

    def refusal(self, action: Refuse) -> NotRun:
        if action.reason:
            return NotRun(f"This call was not run: {action.reason}", by_decision=True)
        return NotRun(action.problem)

    def skipped(self) -> str:
        return (
            f"It is not known what came of this message to {self._name}. A person looked into "
            "it and decided not to send it again."
        )

    def _question(
        self, kind: ApprovalKindName, arguments: dict[str, Any], description: str, **more: Any
    ) -> ApprovalRequired:
        fields = {"tool_name": self.call.name, **more}
        return ApprovalRequired(
            uuid="",
            call_id=self.call.id,
            tool_args=arguments,
            description=bounded(description, _MOST_DESCRIPTION),
            kind=kind,
            **fields,
        )


def _asked_next(request: InputRequest, kind: ApprovalKindName) -> Sequence[RemoteApproval]:
    """What of a request is passed on: all of it, or where each part can be decided by itself, the first."""
    if request.protocol != "mesh":
        return request.approvals
    wanted = [each for each in request.approvals if kind != "auth_required" or each.kind == kind]
    return wanted[:1] or request.approvals[:1]


def _all_arguments(asked: Sequence[RemoteApproval]) -> dict[str, Any]:
    """Those of all calls that are decided together: who decides has to see them."""
    return {f"{number}. {each.tool_name}": each.tool_args for number, each in enumerate(asked, 1)}


def _asked_why(asked: Sequence[RemoteApproval]) -> dict[str, Any]:
    """What the other agent says of a call that is decided by itself: its rule, and what would change."""
    return msgspec.structs.asdict(asked[0].asked_why) if len(asked) == 1 else {}


def _relayed(asked: ApprovalRequired, decision: ApprovalResolved) -> RelayedDecision:
    question = asked.remote_question
    assert question is not None  # it is another agent's
    return RelayedDecision(
        uuid=asked.uuid,
        choice=decision.choice,
        edited_args=decision.edited_args,
        reason=decision.reason,
        answer=decision.answer,
        remember=decision.remember,
        rule=decision.grant,
        until=decision.until,
        request_id=question.question_id,
        protocol=question.form,
        ids=question.ids,
        kind=asked.kind,
    )

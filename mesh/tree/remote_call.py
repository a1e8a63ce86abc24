"""One message to another agent as a durable step: said once, its questions passed on, its answer recorded.

What is known of the step says where it is; each line below is one event of the journal:

    tool_intent                  about to say something: the message, or (`answers`) a decision
      └ approval_required        the other asks (remote_task_id), or it is not known what came of it,
          │                      or a token is needed
          └ approval_resolved    leads to the next tool_intent, which tells the decision there
    tool_result                  the end

An intent that nothing follows was cut short: the other is asked what came of it before anything is said
again, and before a person is asked. When a person says "retry" it is asked once more, because it may be
reachable by then. "Skip" withdraws the message, which may still be on its way.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid5

import msgspec

from mesh.a2a.client.port import (
    ForwardedHeaders,
    InputRequest,
    OutgoingMessage,
    RelayedDecision,
    RemoteApproval,
    RemoteFailed,
    RemoteLost,
    RemoteTask,
)
from mesh.core.events import (
    ApprovalKindName,
    ApprovalRequired,
    ApprovalResolved,
    RemoteQuestion,
    ToolCall,
    ToolIntent,
    ToolResult,
)
from mesh.runtime.failpoints import failpoint
from mesh.tree.asking import Asking
from mesh.tree.node import PAUSED, REJECTED, Outcome
from mesh.tree.peer import PREFIX, Peer
from mesh.tree.result import bounded, record_result
from mesh.tree.step import Steps
from mesh.tree.tool_call import listed, to_its_end
from mesh.tree.turn import LeftOver, UnsettledCall

_IDS = UUID("6c1c5e0e-7d1b-4b7e-9d2c-0a6a2f4b8e11")
_REFUSED_US = "refused"
_CAME_OF_IT = "\n\nWhat came of the last decision: "


class RemoteStep(msgspec.Struct, frozen=True, kw_only=True):
    """Runs a node's calls of other agents. ``peers`` by the name of their tool."""

    peers: Mapping[str, Peer]
    asking: Asking = Asking()
    max_result_bytes: int = 65_536

    async def run(self, steps: Steps, step: str, call: ToolCall) -> ToolResult | Outcome:
        """The call's result, recorded; or how the node's pass ends, if there is none yet."""
        done = steps.known(step, ToolResult)
        return done or await _Talk(self, steps, step, call, self.peers[call.name]).run()

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made; empty if it can."""
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        message = call.arguments.get("message")
        if not isinstance(message, str) or not message.strip() or len(call.arguments) > 1:
            return f'Invalid arguments for {call.name}: expected {{"message": "…"}} and nothing else'
        return ""

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`. What was said to another agent is its own; its task is called off elsewhere."""
        return None

    async def call_off(self, task: LeftOver) -> None:
        """See `Tree.call_off`."""
        peer = self.peers.get(f"{PREFIX}{task.agent}")
        if peer is not None:
            await peer.agent.cancel(
                task.task_id, ForwardedHeaders(task.session_id, task.traceparent, task.token)
            )


class _Talk:
    """One call without a result."""

    def __init__(self, node: RemoteStep, steps: Steps, step: str, call: ToolCall, peer: Peer) -> None:
        self._node = node
        self._steps = steps
        self._step = step
        self._call = call
        self._peer = peer
        self._started = time.monotonic()

    async def run(self) -> ToolResult | Outcome:
        match self._last():
            case None:
                return await self._begin()
            case ToolIntent() as intent:
                if self._steps.turn.lost_token:
                    return self._ask_for_token()
                return await to_its_end(self._exchange(intent, is_new=False))
            case asked:
                decision = self._steps.decision(asked)
                return PAUSED if decision is None else await self._decided(asked, decision)

    def _last(self) -> ToolIntent | ApprovalRequired | None:
        """What happened last. A token that was asked for and came is as if it had always been there, unless
        the message was refused for want of it."""
        for event in reversed(self._steps.told(self._step)):
            match event:
                case ApprovalRequired(kind="auth_required", remote_task_id=""):
                    decision = self._steps.decision(event)
                    if decision is None or decision.decision != "approve" or _was_refused(event):
                        return event
                case ToolIntent() | ApprovalRequired():
                    return event
                case _:
                    pass
        return None

    async def _begin(self) -> ToolResult | Outcome:
        refusal = self._node.problems(self._call)
        if refusal:
            return self._record(refusal, is_error=True)
        if self._peer.destructive and self._node.asking.asks:
            about = f" ({self._peer.description})" if self._peer.description else ""
            return self._ask(f"Ask agent {self._peer.name}{about}\n{listed(self._call.arguments)}")
        return await self._say("")

    async def _decided(self, asked: ApprovalRequired, decision: ApprovalResolved) -> ToolResult | Outcome:
        has_no_token = asked.kind == "auth_required" and decision.decision == "reject"
        if asked.remote_task_id and has_no_token:
            await self._call_off(asked.remote_task_id)
        elif asked.remote_task_id:
            return await self._say(asked.uuid)
        match decision.decision:
            case "approve":
                intents = self._intents()
                return await self._say(intents[-1].answers if intents else "")
            case "retry":
                return await self._retry()
            case "skip":
                await self._withdraw(self._intents()[-1])
                return self._record(
                    f"It is not known what came of this message to {self._peer.name}. A person looked into "
                    "it and decided not to send it again.",
                    is_error=True,
                    skipped=True,
                )
            case _:
                return self._rejected(decision)

    async def _retry(self) -> ToolResult | Outcome:
        """Sends it again, unless the agent can tell by now what came of it."""
        if self._steps.turn.lost_token:
            return self._ask_for_token()
        return await to_its_end(self._exchange(self._intents()[-1], is_new=False, is_retry=True))

    def _rejected(self, decision: ApprovalResolved) -> ToolResult | Outcome:
        if not decision.reason:
            return REJECTED
        return self._record(f"This call was not run: {decision.reason}", is_error=True, skipped=True)

    async def _say(self, answers: str) -> ToolResult | Outcome:
        """Tells the decision on an approval, or without one the message."""
        if self._steps.turn.lost_token:
            return self._ask_for_token()
        message, intents = self._message, self._intents()
        intent = ToolIntent(
            run=self._steps.turn.run,
            tool=self._call.name,
            arguments=message,
            attempt=len(intents),
            answers=answers,
        )
        await self._steps.claim(self._step, intent)
        failpoint("a2a.claimed")
        return await to_its_end(self._exchange(intent, is_new=True))

    # -- what is said

    @property
    def _message(self) -> dict[str, Any]:
        """The call's arguments, with what a person made of them."""
        for event in self._steps.told(self._step):
            if isinstance(event, ApprovalResolved) and event.edited_args and not self._asked(event.uuid):
                return event.edited_args
        return self._call.arguments

    def _asked(self, uuid: str) -> ApprovalRequired | None:
        """The remote question with this uuid."""
        return next(
            (
                e
                for e in self._steps.told(self._step)
                if isinstance(e, ApprovalRequired) and e.uuid == uuid and e.remote_task_id
            ),
            None,
        )

    def _intents(self) -> list[ToolIntent]:
        return [e for e in self._steps.told(self._step) if isinstance(e, ToolIntent)]

    def _outgoing(self, intent: ToolIntent) -> OutgoingMessage:
        turn = self._steps.turn
        step = f"{turn.conversation_id}|{turn.turn}|{self._step}"
        message_id, context = str(uuid5(_IDS, f"{step}|{intent.attempt}")), str(uuid5(_IDS, step))
        asked = self._asked(intent.answers)
        if asked is None or asked.remote_question is None:
            return OutgoingMessage(message_id, self._message["message"], context)
        question, relayed = asked.remote_question, None
        decision = self._steps.decision(asked)
        if decision is not None and asked.kind != "auth_required":
            relayed = _relayed(asked, decision)
        return OutgoingMessage(message_id, "", question.context_id, asked.remote_task_id, relayed)

    # -- what comes of it

    async def _exchange(
        self, intent: ToolIntent, *, is_new: bool, is_retry: bool = False
    ) -> ToolResult | Outcome:
        """``is_retry``: a person wants it to be said again if nobody knows what came of it."""
        try:
            incoming = await self._came(self._outgoing(intent), self._hop, is_new=is_new)
        except RemoteFailed as problem:
            asked = self._asked(intent.answers)
            if asked is not None:
                return self._ask_again(asked, str(problem))
            return await self._end(str(problem), is_error=True)
        failpoint("a2a.returned")
        if incoming is None:
            # What may still arrive has to be withdrawn first, or it would be done twice.
            may_repeat = is_retry and (intent.answers or await self._withdraw(intent))
            return await self._say(intent.answers) if may_repeat else self._unknown(intent)
        told = self._told_rejection(intent)
        if told is not None and not told.reason:
            if incoming.input_request is not None:  # it asks on, though nobody wants anything of it any more
                await self._call_off(incoming.task_id)
            return REJECTED
        return await self._taken(incoming)

    @property
    def _hop(self) -> ForwardedHeaders:
        turn = self._steps.turn
        return ForwardedHeaders(turn.session_id, turn.traceparent, turn.token)

    async def _withdraw(self, intent: ToolIntent) -> bool:
        return await self._peer.agent.withdraw(self._outgoing(intent), self._hop)

    async def _call_off(self, task: str) -> None:
        await self._peer.agent.cancel(task, self._hop)

    async def _came(
        self, message: OutgoingMessage, hop: ForwardedHeaders, *, is_new: bool
    ) -> RemoteTask | None:
        if not is_new:
            return await self._peer.agent.recover(message, hop)
        try:
            return await self._peer.agent.send(message, hop)
        except RemoteLost:
            return await self._peer.agent.recover(message, hop)
        except RemoteFailed:
            if not message.task_id:
                raise
            # The question may be none any more, because somebody else decided it there: how does it stand?
            return await self._peer.agent.recover(message, hop)

    async def _taken(self, incoming: RemoteTask) -> ToolResult | Outcome:
        match incoming.state:
            case "completed":
                return await self._end(incoming.text)
            case "auth-required" if incoming.input_request is None:
                return self._ask_for_token_of(incoming)
            case "input-required" | "auth-required":
                return await self._pass_on(incoming)
            case state:
                return await self._end(f"Agent {self._peer.name}: {state}: {incoming.text}", is_error=True)

    async def _pass_on(self, incoming: RemoteTask) -> Outcome:
        """The other waits for a person, and so does this step."""
        question, peer = incoming.input_request, self._peer
        kind: ApprovalKindName = "auth_required" if incoming.state == "auth-required" else "tool_call"
        together = _asked_next(question, kind) if question else ()
        if together and kind == "tool_call":
            kind = together[0].kind
        text = "\n".join(each.description for each in together) or incoming.text
        self._ask(
            bounded(f"Agent {peer.name} asks: {text}", 4_000),
            kind=kind,
            tool_name=", ".join(each.tool_name for each in together if each.tool_name) or self._call.name,
            tool_args=together[0].tool_args if len(together) == 1 else {},
            remote_task_id=incoming.task_id,
            remote_agent_name=peer.name,
            remote_question=RemoteQuestion(
                context_id=incoming.context_id,
                question_id=question.id if question else "",
                form=question.protocol if question else "text",
                ids=tuple(each.id for each in together if each.id),
            ),
        )
        await self._steps.send_ahead()
        return PAUSED

    def _ask_for_token(self) -> Outcome:
        return self._ask(
            f"The bearer token of this turn was lost with the process that had it, and agent "
            f"{self._peer.name} may need it.",
            kind="auth_required",
        )

    def _ask_for_token_of(self, incoming: RemoteTask) -> Outcome:
        """The agent's door wants a token."""
        name = self._peer.name
        return self._ask(
            bounded(f"Agent {name} wants a bearer token: {incoming.text}", 4_000),
            kind="auth_required",
            remote_agent_name=name,
            remote_question=RemoteQuestion(
                context_id=incoming.context_id,
                question_id=_REFUSED_US if incoming.refused else "",
                form="text",
            ),
        )

    def _ask_again(self, asked: ApprovalRequired, problem: str) -> Outcome:
        """The decision came to nothing there that may be waited for: a person decides anew."""
        question = asked.description.partition(_CAME_OF_IT)[0]
        return self._ask(
            bounded(f"{question}{_CAME_OF_IT}{problem}", 4_000),
            kind=asked.kind,
            tool_name=asked.tool_name,
            tool_args=asked.tool_args,
            remote_task_id=asked.remote_task_id,
            remote_agent_name=asked.remote_agent_name,
            remote_question=asked.remote_question,
        )

    def _told_rejection(self, intent: ToolIntent) -> ApprovalResolved | None:
        asked = self._asked(intent.answers)
        decision = self._steps.decision(asked) if asked else None
        return decision if decision is not None and decision.decision == "reject" else None

    def _unknown(self, intent: ToolIntent) -> Outcome:
        what = "the decision" if intent.answers else "the message"
        return self._ask(
            f"It is not known what came of {what} to agent {self._peer.name}: the connection was lost after "
            "it was sent, and the agent cannot be asked. Look at the real thing, then decide: retry (send "
            f"it again) or skip (go on without it).\n{listed(self._message)}",
            kind="unknown_outcome",
        )

    # -- events

    def _ask(self, description: str, **more: Any) -> Outcome:
        asked = [e for e in self._steps.told(self._step) if isinstance(e, ApprovalRequired)]
        question: dict[str, Any] = {
            "uuid": "",
            "call_id": self._call.id,
            "tool_name": self._call.name,
            "tool_args": self._message,
            "description": description,
            "attempt": len(asked),
            **more,
        }
        self._node.asking.ask(self._steps, self._step, ApprovalRequired(**question))
        return PAUSED

    async def _end(self, text: str, *, is_error: bool = False) -> ToolResult:
        result = self._record(text, is_error=is_error)
        await self._steps.send_ahead()
        return result

    def _record(self, content: str, **more: Any) -> ToolResult:
        most, since = self._node.max_result_bytes, self._started
        return record_result(self._steps, self._step, self._call, content, most=most, since=since, **more)


def _was_refused(asked: ApprovalRequired) -> bool:
    """Whether the message was not taken for want of a token."""
    return asked.remote_question is not None and asked.remote_question.question_id == _REFUSED_US


def _asked_next(question: InputRequest, kind: ApprovalKindName) -> Sequence[RemoteApproval]:
    """What of a question is passed on: all of it, or where each can be decided by itself, the first."""
    if question.protocol != "mesh":
        return question.approvals
    wanted = [each for each in question.approvals if kind != "auth_required" or each.kind == kind]
    return wanted[:1] or question.approvals[:1]


def _relayed(asked: ApprovalRequired, decision: ApprovalResolved) -> RelayedDecision:
    question = asked.remote_question
    assert question is not None  # it is a remote one
    return RelayedDecision(
        uuid=asked.uuid,
        choice=decision.decision,
        edited_args=decision.edited_args,
        reason=decision.reason,
        answer=decision.answer,
        request_id=question.question_id,
        protocol=question.form,
        ids=question.ids,
        kind=asked.kind,
    )

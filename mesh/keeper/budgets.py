"""The decision about one model call under a budget, as the events that it adds to the journal.

`mesh.core.budget` says whether a call fits; this says what follows if it does not: a last answer, the end of
the node, or a question to a person. The decision is made under the lock of the conversation's appends, so
that no two calls are granted the same room.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

import msgspec

from mesh.core.budget import (
    CallRequest,
    Granted,
    MustWait,
    Reached,
    admitted,
    limit_question,
    time_left_s,
)
from mesh.core.conversation import Conversation
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    LimitReached,
    LlmCall,
    LlmLost,
    LlmReserved,
    LlmSettled,
    moment,
    now,
)
from mesh.core.ids import approval_id
from mesh.core.places import Place, StepKey
from mesh.tree.turn import Ack, Activation, ReserveReply


class Admission:
    """The decision about the call that a run asks for, in the pass with the run ``pass_run``.
    `LoadedConversation.append` calls it under its lock, with the events that are new; it returns those to be
    appended after them, in the same write. Then `grant` is the reply; None if the call has to wait for what
    it is ``short`` of."""

    def __init__(
        self, conversation: Conversation, activation: Activation, pass_run: int, request: CallRequest
    ) -> None:
        self._conversation = conversation
        self._turn = activation.turn
        self._run = activation.run
        self._pass_run = pass_run
        self._request = request
        self._event: AnyEvent | None = None
        self.short: MustWait | None = None

    def __call__(self, new: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
        request, budget_use = self._request, self._conversation.budget_use
        budget_use = budget_use.after(new) if new else budget_use
        known = budget_use.open.get(request.step, request.attempt)
        if known is not None and known.run == self._run:  # it asks again, because the reply was lost
            self._event = known
            return ()
        decided = admitted(budget_use, request, self._pass_run, now())
        match decided:
            case MustWait():
                self.short = decided
            case Granted():
                self._event = msgspec.structs.replace(
                    decided.reserved,
                    run=self._run,
                    pass_run=self._pass_run if self._pass_run != self._run else 0,
                )
            case Reached():
                self._event = self._limit_reached(decided)
                if self._event is None and not budget_use.is_asked(decided.scope, decided.limit):
                    return [msgspec.structs.replace(self._question(decided), turn=self._turn)]
        if self._event is None:
            return ()
        self._event = msgspec.structs.replace(self._event, turn=self._turn, time=now())
        return [self._event]

    def grant(self, ack: Ack) -> ReserveReply | None:
        """The reply; None if the call has to wait for calls in flight."""
        if self.short is not None:
            return None
        event = self._event
        if event is None:
            return ReserveReply(ack, is_paused=True)
        assert isinstance(event, LlmReserved | LimitReached)
        if isinstance(event, LimitReached):
            return ReserveReply(ack, event)
        return ReserveReply(
            ack, event, time_left_s=time_left_s(self._conversation.budget_use, self._request, now())
        )

    def _limit_reached(self, reached: Reached) -> LimitReached | None:
        """What follows at a limit; None if a person has to be asked first."""
        request = self._request
        is_refused = (reached.scope, reached.limit) in self._conversation.budget_use.refused
        if request.on_limit == "ask" and not request.forced and not is_refused:
            return None
        then: Literal["answer", "stop", "fail"] = "answer" if request.on_limit == "ask" else request.on_limit
        # The last answer is that of the agent whose limit it is: agents that it called return what they have,
        # as the tenth that is left is for one answer. If not even the last answer fits, nothing more follows.
        is_elsewhere = Place(reached.scope).agent != StepKey(request.step).place.agent
        if request.forced or (then == "answer" and is_elsewhere):
            then = "stop"
        return LimitReached(
            step=request.step, limit=reached.limit, scope=reached.scope, then=then, attempt=request.attempt
        )

    def _question(self, reached: Reached) -> ApprovalRequired:
        """Asks a person to raise a limit."""
        question = limit_question(reached, self._request)
        expires = self._request.expire_after_s
        return msgspec.structs.replace(
            question,
            uuid=approval_id(self._conversation.id),
            attempt=self._conversation.times_asked(question.step),
            expires_at="" if expires is None else moment(timedelta(seconds=expires)),
        )


def settled_late(conversation: Conversation, events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """What answers of an older pass settle: they are not used, but what they cost is known now."""
    calls = [event for event in events if isinstance(event, LlmCall)]
    is_open = conversation.budget_use.open
    return [
        LlmSettled(
            turn=call.turn,
            step=call.step,
            cost_nusd=call.cost_nusd or 0,
            tokens=call.usage.input + call.usage.output,
            calls=1,
            attempt=call.attempt,
        )
        for call in calls
        if is_open.get(call.step, call.attempt)
    ]


def lost_calls(conversation: Conversation, place: Place, pass_run: int) -> list[AnyEvent]:
    """What follows when the process of a node is lost: the answers to the calls that were being made there
    and below, in the pass with this run, are lost with it. Calls that wait for them go on."""
    in_flight = conversation.budget_use.in_flight(place, pass_run)
    return [LlmLost(turn=each.turn, step=each.step, attempt=each.attempt) for each in in_flight]

"""The calls of a conversation, as its journal tells of them: what was called, who decided, what came of it.
Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from mesh.core.approvals import kind_named
from mesh.core.events import AnyEvent, ApprovalRequired, ApprovalResolved, LlmCall, ToolIntent, ToolResult
from mesh.core.places import StepKey
from mesh.core.verdict import PolicyDecision

Decided = tuple[ApprovalRequired, ApprovalResolved]


class RecordedCall(msgspec.Struct, kw_only=True):
    """A call. ``seq`` is the event that it began with. ``arguments`` are those that it was made with, or was
    to be made with. ``asked`` and ``resolved`` are the last approval of the call itself. ``remembered`` are
    the decisions of the conversation that were to be remembered before it began."""

    seq: int
    turn: int
    step: StepKey
    tool: str
    arguments: dict[str, Any]
    asked: ApprovalRequired | None = None
    resolved: ApprovalResolved | None = None
    claim: ToolIntent | None = None
    result: ToolResult | None = None
    remembered: tuple[Decided, ...] = ()

    @property
    def decision(self) -> PolicyDecision | None:
        """What was decided about it then; None if the journal does not tell."""
        if self.asked:
            return "ask"
        if self.claim or (self.result and not self.result.is_error):
            return "allowed"
        return None


def recorded_calls(events: Iterable[AnyEvent]) -> list[RecordedCall]:
    """The calls of a journal, in their order. What is asked of a person, and what validators do, are none."""
    calls = _Calls()
    for event in events:
        calls.take(event)
    return list(calls.found.values())


class _Calls:
    """What is known of calls after some of the events."""

    def __init__(self) -> None:
        self.found: dict[tuple[int, str], RecordedCall] = {}
        self._asked: dict[str, ApprovalRequired] = {}
        self._remembered: tuple[Decided, ...] = ()

    def take(self, event: AnyEvent) -> None:
        match event:
            case LlmCall():
                for step, name, arguments in _asked_for(event):
                    self._begin(event, step, name, arguments)
            case ApprovalRequired(remote_task_id="") if kind_named(event.kind).is_call:
                self._asked[event.uuid] = event
                call = self._begin(event, event.step, event.tool_name, event.tool_args)
                call.asked, call.resolved, call.arguments = event, None, event.tool_args
            case ApprovalResolved(uuid=uuid) if uuid in self._asked:
                self._resolve(self._asked[uuid], event)
            case ToolIntent(answers=""):
                call = self._begin(event, event.step, event.tool, event.arguments)
                call.claim, call.arguments = event, event.arguments
            case ToolResult() if "/tool/" in event.step or "/a2a/" in event.step:
                self._begin(event, event.step, event.tool, event.arguments or {}).result = event
            case _:
                pass

    def _begin(self, event: AnyEvent, step: str, tool: str, arguments: dict[str, Any]) -> RecordedCall:
        """The call of a step, which is new if no event before told of it."""
        call = RecordedCall(
            seq=event.seq,
            turn=event.turn,
            step=StepKey(step),
            tool=tool,
            arguments=arguments,
            remembered=self._remembered,
        )
        return self.found.setdefault((event.turn, step), call)

    def _resolve(self, asked: ApprovalRequired, resolved: ApprovalResolved) -> None:
        call = self.found[asked.turn, asked.step]
        call.resolved = resolved
        if resolved.edited_args is not None:
            call.arguments = resolved.edited_args
        if resolved.remember == "conversation" and resolved.grant is not None:
            self._remembered = (*self._remembered, (asked, resolved))


def _asked_for(answer: LlmCall) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for index, call in enumerate(answer.tool_calls):
        if not call.malformed:
            yield StepKey(answer.step).tool_call(index).text, call.name, call.arguments

"""One tool call as a durable step: checked, approved, claimed, run once, recorded.

What is known of the step says where it is:

    tool_result                 the end
    tool_intent, unanswered     a pass claimed the call, and its result did not arrive. The session that may
      │                         have run it is asked what came of it:
      ├ it did not begin        and never will: claimed anew, and run
      ├ an outcome              recorded
      └ nobody knows            a person is asked "retry or skip?"
    approval_required           only its decision lets the call run, with the arguments that were decided,
      │                         whatever the tool's hints say by now. If the tool itself is another by now,
      │                         the person is asked again.
    nothing                     cannot be called (unknown, malformed, invalid): an error that the model sees
                                destructive: a person is asked "approve or reject?"
                                else, and where nodes do not ask: run

To run is to claim the call (unless it is repeatable), to make it, and to record its result. Refused: a person
said no and why, or nobody answered in time; the model sees that, and goes on.
"""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from mesh.core.errors import CallRevoked, ToolSessionError, Unavailable
from mesh.core.events import (
    ApprovalKindName,
    ApprovalRequired,
    Artifact,
    ToolCall,
    ToolIntent,
    ToolResult,
)
from mesh.core.history import NOT_RUN
from mesh.mcp.fingerprint import changes, fingerprint_of
from mesh.mcp.port import Claim, Tool, ToolOutcome
from mesh.mcp.schema import problems
from mesh.mcp.toolbox import Toolbox
from mesh.runtime.failpoints import failpoint
from mesh.tree.asking import Asking
from mesh.tree.node import PAUSED, REJECTED, Outcome
from mesh.tree.result import bounded, fitting, record_result, result_of
from mesh.tree.step import Steps
from mesh.tree.turn import UnsettledCall

_SHOWN = 2_000
_MOST_CLAIMS = 5
_EARLIER = "\nIt is not known whether an earlier attempt ran."

T = TypeVar("T")


class ToolStep(msgspec.Struct, frozen=True, kw_only=True):
    """Runs the tool calls of one node."""

    toolbox: Toolbox
    asking: Asking = Asking()
    max_result_bytes: int = 65_536

    async def run(self, steps: Steps, step: str, call: ToolCall) -> ToolResult | Outcome:
        """The call's result, recorded; or how the node's pass ends, if there is none yet."""
        done = steps.known(step, ToolResult)
        if done is not None:
            return done
        return await _Pending(self, steps, step, call, self.toolbox.tools.get(call.name)).run()

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        tool = self.toolbox.tools.get(call.name)
        if tool is None:
            offered = ", ".join(sorted(self.toolbox.tools)) or "none"
            return f"There is no tool {call.name[:128]!r}. The tools are: {offered}."[:_SHOWN]
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        found = problems(tool.input_schema, call.arguments)
        return f"Invalid arguments for {call.name}:\n{found}" if found else ""

    async def settle(self, call: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`."""
        intent, most = call.intent, self.max_result_bytes
        try:
            outcome = await self.outcome_of(intent, _claim(call.conversation_id, intent))
        except ToolSessionError:
            return None
        if outcome is None:
            return result_of(call.call_id, intent.tool, NOT_RUN, most=most, is_error=True, skipped=True)
        content, artifacts = _fitted("", outcome, most)
        return result_of(
            call.call_id, intent.tool, content, most=most, is_error=outcome.is_error, artifacts=artifacts
        )

    async def outcome_of(self, intent: ToolIntent, claim: Claim) -> ToolOutcome | None:
        """See `ToolSession.settle`. Raises `Unavailable` when the session cannot say yet, as while the server
        of the one before it still runs."""
        try:
            return await self.toolbox.settle(intent.server, claim)
        except ToolSessionError as problem:
            if problem.may_have_run:
                raise
            raise Unavailable(str(problem)) from None


class _Pending:
    """One call without a result. ``_note`` goes before the result, for the model."""

    def __init__(self, node: ToolStep, steps: Steps, step: str, call: ToolCall, tool: Tool | None) -> None:
        self._node = node
        self._steps = steps
        self._step = step
        self._call = call
        self._tool = tool
        self._note = ""

    async def run(self) -> ToolResult | Outcome:
        match self._last():
            case None:
                return await self._begin()
            case ToolIntent() as intent:
                self._edit(intent.arguments)
                done = await to_its_end(self._recover(intent))
                return done or await self._run_decided(self._steps.known(self._step, ApprovalRequired))
            case asked:
                return await self._decided(asked)

    def _last(self) -> ToolIntent | ApprovalRequired | None:
        """The last claim or question of this step."""
        told = reversed(self._steps.told(self._step))
        return next((event for event in told if isinstance(event, ToolIntent | ApprovalRequired)), None)

    async def _begin(self) -> ToolResult | Outcome:
        refusal = self._node.problems(self._call)
        if refusal or self._tool is None:
            return self._record(refusal, is_error=True)
        if self._tool.destructive and self._node.asking.asks:
            return self._ask("tool_call", _describe(self._tool, self._call))
        return await self._run(self._tool)

    async def _decided(self, asked: ApprovalRequired) -> ToolResult | Outcome:
        decision = self._steps.decision(asked)
        if decision is None:
            return PAUSED
        if decision.decision == "reject":
            return self._rejected(decision.reason)
        if decision.decision == "skip":
            return self._record(
                "It is not known whether this call ran. A person looked into it and decided not to run it "
                "again.",
                is_error=True,
                skipped=True,
            )
        self._edit(asked.tool_args if decision.edited_args is None else decision.edited_args)
        return await self._run_decided(asked)

    async def _run_decided(self, asked: ApprovalRequired | None) -> ToolResult | Outcome:
        """Runs what a person decided on, if the tool is still what the person was asked about."""
        refusal = self._node.problems(self._call)
        if refusal or self._tool is None:
            return self._not_run(f"{refusal}\nThe call was not run.")
        if asked is None and self._tool.destructive and self._node.asking.asks:
            return self._ask("tool_call", _describe(self._tool, self._call))
        if found := self._changes(asked):
            about = _describe(self._tool, self._call)
            why = f"The tool has changed since this was decided: {found}. Decide again.\n"
            return self._ask("tool_call", bounded(why, _SHOWN) + about)
        return await self._run(self._tool, must_claim=True)

    def _changes(self, asked: ApprovalRequired | None) -> str:
        """How the tool is another than it was when a person was asked."""
        if asked is None or not asked.tool_fingerprint or self._tool is None:
            return ""
        return "; ".join(changes(asked.tool_fingerprint, fingerprint_of(self._tool)))

    def _edit(self, arguments: dict[str, Any]) -> None:
        if arguments != self._call.arguments:
            self._call = msgspec.structs.replace(self._call, arguments=arguments)
            self._note = f"[A person changed the arguments to {json.dumps(arguments, ensure_ascii=False)}]\n"

    def _rejected(self, reason: str) -> ToolResult | Outcome:
        if not reason:
            return REJECTED
        return self._not_run(f"This call was not run: {reason}", skipped=True)

    async def _recover(self, intent: ToolIntent) -> ToolResult | Outcome | None:
        """Finds out what came of a claimed call without a result. None: it did not run, and never will."""
        started = time.monotonic()
        try:
            outcome = await self._settled(intent)
        except ToolSessionError:
            return self._ask_about_unknown(intent)
        return None if outcome is None else await self._ended(outcome, started)

    async def _settled(self, intent: ToolIntent) -> ToolOutcome | None:
        if not intent.session:
            raise ToolSessionError("the claim names no session", may_have_run=True)
        return await self._node.outcome_of(intent, self._claim_of(intent))

    def _claim_of(self, intent: ToolIntent) -> Claim:
        return _claim(self._steps.turn.conversation_id, intent)

    def _ask_about_unknown(self, intent: ToolIntent) -> Outcome:
        """A claim without a result: nobody knows whether the tool ran. A person says what to do."""
        name = self._call.name
        description = (
            f"It is not known whether {name} ran: the process died, or the connection was lost, "
            f"after it was started and before its result arrived. Look at the real thing, then decide: "
            f"retry (run it again) or skip (go on without running it).\n{listed(self._call.arguments)}"
        )
        if found := self._changes(self._steps.known(self._step, ApprovalRequired)):
            description = (
                bounded(f"The tool has changed since it was started: {found}.\n", _SHOWN) + description
            )
        return self._ask("unknown_outcome", description, intent.attempt)

    async def _run(self, tool: Tool, *, must_claim: bool = False) -> ToolResult | Outcome:
        if tool.repeatable and not must_claim:
            return await self._repeatable(tool)
        for _ in range(_MOST_CLAIMS):
            try:
                session = await self._node.toolbox.identity(tool)
            except ToolSessionError as problem:
                return self._not_run(f"{problem}; it did not run")
            intent = self._intent(tool, session)
            await self._steps.claim(self._step, intent)
            failpoint("tool.claimed")
            done = await to_its_end(self._claimed(tool, intent), partial(self._settled, intent))
            if done is not None:
                return done
            # The session has ended since it was asked, or a newer pass runs: the next claim tells which.
        return self._not_run(f"{tool.name} could not be started: its session ends again and again")

    async def _repeatable(self, tool: Tool) -> ToolResult | Outcome:
        started = time.monotonic()
        try:
            return self._returned(await self._node.toolbox.call(tool, self._call.arguments), started)
        except ToolSessionError as problem:
            return self._record(str(problem), is_error=True, since=started)

    def _intent(self, tool: Tool, session: str) -> ToolIntent:
        before = self._steps.known(self._step, ToolIntent)
        turn = self._steps.turn
        return ToolIntent(
            turn=turn.turn,
            step=self._step,
            run=turn.run,
            tool=tool.name,
            arguments=self._call.arguments,
            attempt=before.attempt + 1 if before is not None else 0,
            server=tool.server,
            session=session,
        )

    async def _claimed(self, tool: Tool, intent: ToolIntent) -> ToolResult | Outcome | None:
        """Makes a claimed call. None: it did not run, and never will in the name of this claim."""
        started, claim = time.monotonic(), self._claim_of(intent)
        try:
            outcome = await self._node.toolbox.call(tool, self._call.arguments, claim=claim)
        except CallRevoked:
            return None
        except ToolSessionError as problem:
            if problem.may_have_run:
                return await self._recover(intent)
            return self._not_run(str(problem), since=started)
        return await self._ended(outcome, started)

    async def _ended(self, outcome: ToolOutcome, started: float) -> ToolResult:
        result = self._returned(outcome, started)
        await self._steps.send_ahead()
        return result

    def _returned(self, outcome: ToolOutcome, started: float) -> ToolResult:
        failpoint("tool.returned")
        content, artifacts = _fitted(self._note, outcome, self._node.max_result_bytes)
        return self._record(content, is_error=outcome.is_error, since=started, artifacts=artifacts)

    def _ask(self, kind: ApprovalKindName, description: str, attempt: int | None = None) -> Outcome:
        """Records a question. ``attempt`` None: the next of its kind for this step."""
        earlier = [
            event
            for event in self._steps.told(self._step)
            if isinstance(event, ApprovalRequired) and event.kind == kind
        ]
        question = ApprovalRequired(
            uuid="",
            call_id=self._call.id,
            tool_name=self._call.name,
            tool_args=self._call.arguments,
            description=description,
            kind=kind,
            attempt=len(earlier) if attempt is None else attempt,
            tool_fingerprint=fingerprint_of(self._tool) if self._tool is not None else {},
        )
        self._node.asking.ask(self._steps, self._step, question)
        return PAUSED

    def _not_run(self, content: str, **more: Any) -> ToolResult:
        """Records that the call was not run; if nobody knows that of an earlier attempt, says so."""
        told = self._steps.told(self._step)
        is_unknown = any(isinstance(e, ApprovalRequired) and e.kind == "unknown_outcome" for e in told)
        return self._record(content + _EARLIER if is_unknown else content, is_error=True, **more)

    def _record(self, content: str, **more: Any) -> ToolResult:
        most = self._node.max_result_bytes
        return record_result(self._steps, self._step, self._call, content, most=most, **more)


async def to_its_end(
    call: Coroutine[Any, Any, T], settle: Callable[[], Coroutine[Any, Any, object]] | None = None
) -> T:
    """A claimed call is not broken off: whoever cancels waits until its outcome is recorded. It ends within
    the tool's own bound. ``settle`` sees to it that a call that has not begun by then does not begin."""
    task = asyncio.create_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        settling = [asyncio.create_task(settle())] if settle and not task.done() else []
        await asyncio.wait({task})
        for each in settling:
            each.cancel()
        # Nobody else asks how these ended.
        await asyncio.gather(task, *settling, return_exceptions=True)
        raise


def _claim(conversation_id: str, intent: ToolIntent) -> Claim:
    return Claim(intent.session, f"{conversation_id}|{intent.turn}|{intent.step}", intent.attempt)


def _fitted(note: str, outcome: ToolOutcome, most: int) -> tuple[str, Sequence[Artifact]]:
    """What of an outcome fits into so many bytes: its text, and the files for which there is room."""
    content = note + outcome.content
    artifacts = fitting(outcome.artifacts, most - len(content.encode()))
    if left_out := len(outcome.artifacts) - len(artifacts):
        content += f"\n[{left_out} files left out: over {most} bytes]"
    return content, artifacts


def _describe(tool: Tool, call: ToolCall) -> str:
    about = f" ({tool.description.strip().splitlines()[0]})" if tool.description.strip() else ""
    return bounded(f"Run {tool.name} on {tool.server}{about}\n{listed(call.arguments)}", _SHOWN)


def listed(arguments: Mapping[str, Any]) -> str:
    """Arguments, one a line, for a person."""
    lines = (f"  {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return bounded("\n".join(lines) or "  (no arguments)", _SHOWN)

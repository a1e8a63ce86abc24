"""One tool call as a durable step: checked, approved, claimed, run once, recorded.

known result ───────────────────────────────────────────────► result
cannot be called (unknown, malformed, invalid) ─────────────► error the model sees
claimed before, outcome unknown ── ask "retry or skip?" ────► paused | run again | skipped
destructive ── ask "approve or reject?" ────────────────────► paused | cancelled | run
run: claim unless repeatable, call, record ─────────────────► result | outcome unknown
"""

import json
import time
from enum import Enum

from mesh.errors import ToolSessionError
from mesh.events import ApprovalKind, ApprovalRequired, Decision, ToolCall, ToolIntent, ToolResult
from mesh.failpoints import failpoint
from mesh.ids import approval_id
from mesh.mcp.port import Tool
from mesh.mcp.schema import problems
from mesh.mcp.toolbox import Toolbox
from mesh.tree.step import Steps

_SHOWN = 2_000


class Halt(Enum):
    """Why a call has no result: the step waits for a person (the approval is recorded), or one said no."""

    PAUSED = "paused"
    CANCELLED = "cancelled"


class ToolStep:
    """Runs the tool calls of one node."""

    def __init__(self, toolbox: Toolbox, max_result_bytes: int) -> None:
        self._toolbox = toolbox
        self._max_result_bytes = max_result_bytes

    async def run(self, steps: Steps, step: str, call: ToolCall) -> ToolResult | Halt:
        """The call's result, recorded; or why there is none yet."""
        done = steps.known(step, ToolResult)
        if done is not None:
            return done
        intent = steps.known(step, ToolIntent)
        tool = self._toolbox.tools.get(call.name)
        if intent is not None:
            return await self._outcome_unknown(steps, step, call, intent, tool)
        refusal = self._refusal(call, tool)
        if tool is None or refusal:
            return self._record(steps, step, call, refusal, is_error=True)
        if tool.destructive:
            decision = _ask(steps, step, call, "tool_call", 0, _describe(tool, call))
            if decision is None:
                return Halt.PAUSED
            if decision == "reject":
                return Halt.CANCELLED
        return await self._call(steps, step, call, tool, attempt=0)

    def _refusal(self, call: ToolCall, tool: Tool | None) -> str:
        """Why the call cannot be made, for the model to correct itself; empty if it can."""
        if tool is None:
            offered = ", ".join(sorted(self._toolbox.tools)) or "none"
            return f"There is no tool {call.name[:128]!r}. The tools are: {offered}."[:_SHOWN]
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        found = problems(tool.input_schema, call.arguments)
        return f"Invalid arguments for {call.name}:\n{found}" if found else ""

    async def _outcome_unknown(
        self, steps: Steps, step: str, call: ToolCall, intent: ToolIntent, tool: Tool | None
    ) -> ToolResult | Halt:
        """A claim without a result: nobody knows whether the tool ran. A person says what to do."""
        description = (
            f"It is not known whether {call.name} ran: the process died, or the connection was lost, "
            f"after it was started and before its result arrived. Look at the real thing, then decide: "
            f"retry (run it again) or skip (go on without running it).\n{_arguments(call)}"
        )
        decision = _ask(steps, step, call, "unknown_outcome", intent.attempt, description)
        if decision is None:
            return Halt.PAUSED
        if decision == "retry" and tool is not None:
            return await self._call(steps, step, call, tool, intent.attempt + 1)
        said = (
            "It is not known whether this call ran. A person looked into it and decided not to run it again."
        )
        if decision == "retry":
            said = f"This call could not be run again: there is no tool {call.name!r} any more."
        return self._record(steps, step, call, said, is_error=True, skipped=True)

    async def _call(
        self, steps: Steps, step: str, call: ToolCall, tool: Tool, attempt: int
    ) -> ToolResult | Halt:
        started = time.monotonic()
        if not tool.repeatable:
            try:
                await self._toolbox.reach(tool)
            except ToolSessionError as problem:
                return self._record(steps, step, call, f"{problem}; it did not run", is_error=True)
            intent = ToolIntent(run=steps.turn.run, tool=call.name, arguments=call.arguments, attempt=attempt)
            await steps.claim(step, intent)
            failpoint("tool.claimed")
        try:
            outcome = await self._toolbox.call(tool, call.arguments)
        except ToolSessionError as problem:
            if problem.may_have_run and not tool.repeatable:
                intent_now = steps.known(step, ToolIntent)
                assert intent_now is not None  # claimed just above
                return await self._outcome_unknown(steps, step, call, intent_now, tool)
            return self._record(steps, step, call, str(problem), is_error=True, started=started)
        failpoint("tool.returned")
        result = self._record(steps, step, call, outcome.content, is_error=outcome.is_error, started=started)
        if not tool.repeatable:
            await steps.send_ahead()
        return result

    def _record(
        self,
        steps: Steps,
        step: str,
        call: ToolCall,
        content: str,
        *,
        is_error: bool,
        skipped: bool = False,
        started: float | None = None,
    ) -> ToolResult:
        return steps.record(
            step,
            ToolResult(
                call_id=call.id,
                tool=call.name,
                content=bounded(content, self._max_result_bytes),
                is_error=is_error,
                skipped=skipped,
                duration_ms=0 if started is None else round((time.monotonic() - started) * 1000),
            ),
        )


def _ask(
    steps: Steps, step: str, call: ToolCall, kind: ApprovalKind, attempt: int, description: str
) -> Decision | None:
    """What a person decided; None after the question was recorded, or while it waits."""
    asked = steps.known(step, ApprovalRequired)
    if asked is None or (asked.kind, asked.attempt) != (kind, attempt):
        steps.record(
            step,
            ApprovalRequired(
                uuid=approval_id(steps.turn.conversation_id),
                call_id=call.id,
                tool_name=call.name,
                tool_args=call.arguments,
                description=description,
                kind=kind,
                attempt=attempt,
            ),
        )
        return None
    resolved = steps.decision(step, asked)
    return resolved.decision if resolved else None


def _describe(tool: Tool, call: ToolCall) -> str:
    about = f" ({tool.description.strip().splitlines()[0]})" if tool.description.strip() else ""
    return bounded(f"Run {tool.name} on {tool.server}{about}\n{_arguments(call)}", _SHOWN)


def _arguments(call: ToolCall) -> str:
    lines = (f"  {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in call.arguments.items())
    return bounded("\n".join(lines) or "  (no arguments)", _SHOWN)


def bounded(text: str, limit: int) -> str:
    """The text, cut to a number of UTF-8 bytes, saying so where it was cut."""
    encoded = text.encode()
    if len(encoded) <= limit:
        return text
    kept = encoded[:limit].decode(errors="ignore")
    return f"{kept}\n[cut: {len(encoded)} bytes in all, {limit} kept]"

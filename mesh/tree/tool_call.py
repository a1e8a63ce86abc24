"""One tool call as a durable step: checked, approved, claimed, run once, recorded.

known result ───────────────────────────────────────────────► result
cannot be called (unknown, malformed, invalid) ─────────────► error the model sees
claimed before, outcome unknown ── ask "retry or skip?" ────► paused | run again | skipped
destructive ── ask "approve or reject?" ────────────────────► paused | cancelled | refused | run
run: claim unless repeatable, call, record ─────────────────► result | outcome unknown

Refused: a person said no and why, or nobody answered in time; the model sees that, and goes on.
"""

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from mesh.errors import ToolSessionError
from mesh.events import (
    ApprovalKind,
    ApprovalRequired,
    ApprovalResolved,
    ToolCall,
    ToolIntent,
    ToolResult,
)
from mesh.failpoints import failpoint
from mesh.mcp.port import Tool, ToolOutcome
from mesh.mcp.schema import problems
from mesh.mcp.toolbox import Toolbox
from mesh.tree.asking import Asking
from mesh.tree.node import PAUSED, REJECTED, Outcome
from mesh.tree.result import bounded, fitting, record_result
from mesh.tree.step import Steps

_SHOWN = 2_000


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
        intent = self._steps.known(self._step, ToolIntent)
        if intent is not None:
            self._edit(intent.arguments)
            return await self._outcome_unknown(intent)
        refusal = self._node.problems(self._call)
        if refusal or self._tool is None:
            return self._record(refusal, is_error=True)
        if self._tool.destructive and self._node.asking.asks:
            decision = self._ask("tool_call", 0, _describe(self._tool, self._call))
            if decision is None:
                return PAUSED
            if decision.decision == "reject":
                return self._rejected(decision.reason)
            if decision.edited_args is not None:
                self._edit(decision.edited_args)
        return await self._run(self._tool, attempt=0)

    def _edit(self, arguments: dict[str, Any]) -> None:
        if arguments != self._call.arguments:
            self._call = msgspec.structs.replace(self._call, arguments=arguments)
            self._note = f"[A person changed the arguments to {json.dumps(arguments, ensure_ascii=False)}]\n"

    def _rejected(self, reason: str) -> ToolResult | Outcome:
        if not reason:
            return REJECTED
        return self._record(f"This call was not run: {reason}", is_error=True, skipped=True)

    async def _outcome_unknown(self, intent: ToolIntent) -> ToolResult | Outcome:
        """A claim without a result: nobody knows whether the tool ran. A person says what to do."""
        name = self._call.name
        description = (
            f"It is not known whether {name} ran: the process died, or the connection was lost, "
            f"after it was started and before its result arrived. Look at the real thing, then decide: "
            f"retry (run it again) or skip (go on without running it).\n{listed(self._call.arguments)}"
        )
        resolved = self._ask("unknown_outcome", intent.attempt, description)
        if resolved is None:
            return PAUSED
        if resolved.decision == "retry" and self._tool is not None:
            return await self._run(self._tool, intent.attempt + 1)
        said = (
            "It is not known whether this call ran. A person looked into it and decided not to run it again."
        )
        if resolved.decision == "retry":
            said = f"This call could not be run again: there is no tool {name!r} any more."
        return self._record(said, is_error=True, skipped=True)

    async def _run(self, tool: Tool, attempt: int) -> ToolResult | Outcome:
        if tool.repeatable:
            started = time.monotonic()
            try:
                return self._returned(await self._node.toolbox.call(tool, self._call.arguments), started)
            except ToolSessionError as problem:
                return self._record(str(problem), is_error=True, since=started)
        try:
            await self._node.toolbox.reach(tool)
        except ToolSessionError as problem:
            return self._record(f"{problem}; it did not run", is_error=True)
        run = self._steps.turn.run
        intent = ToolIntent(run=run, tool=tool.name, arguments=self._call.arguments, attempt=attempt)
        await self._steps.claim(self._step, intent)
        failpoint("tool.claimed")
        return await to_its_end(self._claimed(tool, intent))

    async def _claimed(self, tool: Tool, intent: ToolIntent) -> ToolResult | Outcome:
        started = time.monotonic()
        try:
            outcome = await self._node.toolbox.call(tool, self._call.arguments)
        except ToolSessionError as problem:
            if problem.may_have_run:
                return await self._outcome_unknown(intent)
            return self._record(str(problem), is_error=True, since=started)
        result = self._returned(outcome, started)
        await self._steps.send_ahead()
        return result

    def _returned(self, outcome: ToolOutcome, started: float) -> ToolResult:
        failpoint("tool.returned")
        content = self._note + outcome.content
        room = self._node.max_result_bytes - len(content.encode())
        artifacts = fitting(outcome.artifacts, room)
        if left_out := len(outcome.artifacts) - len(artifacts):
            content += f"\n[{left_out} files left out: over {self._node.max_result_bytes} bytes]"
        return self._record(content, is_error=outcome.is_error, since=started, artifacts=artifacts)

    def _ask(self, kind: ApprovalKind, attempt: int, description: str) -> ApprovalResolved | None:
        """What was decided; None after the question was recorded, or while it waits."""
        asked = self._steps.known(self._step, ApprovalRequired)
        if asked is not None and (asked.kind, asked.attempt) == (kind, attempt):
            return self._steps.decision(asked)
        question = ApprovalRequired(
            uuid="",
            call_id=self._call.id,
            tool_name=self._call.name,
            tool_args=self._call.arguments,
            description=description,
            kind=kind,
            attempt=attempt,
        )
        self._node.asking.ask(self._steps, self._step, question)
        return None

    def _record(self, content: str, **more: Any) -> ToolResult:
        most = self._node.max_result_bytes
        return record_result(self._steps, self._step, self._call, content, most=most, **more)


async def to_its_end(call: Coroutine[Any, Any, ToolResult | Outcome]) -> ToolResult | Outcome:
    """A claimed call is not broken off: whoever cancels waits until its outcome is recorded. It ends within
    the tool's own bound."""
    task = asyncio.create_task(call)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()  # nobody else asks for it
        raise


def _describe(tool: Tool, call: ToolCall) -> str:
    about = f" ({tool.description.strip().splitlines()[0]})" if tool.description.strip() else ""
    return bounded(f"Run {tool.name} on {tool.server}{about}\n{listed(call.arguments)}", _SHOWN)


def listed(arguments: Mapping[str, Any]) -> str:
    """Arguments, one a line, for a person."""
    lines = (f"  {key} = {json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
    return bounded("\n".join(lines) or "  (no arguments)", _SHOWN)

"""Calls of MCP tools: how one is described, made and recovered. What happens when, `mesh.tree.calls` decides.

The session that may have run a call is asked what came of it; if it does not know, the check of the tool is,
and then a person. A tool that is another by the time a person has decided is asked about again.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from mesh.core.budget import Remaining
from mesh.core.durable_call import Ask, AskWhatToDo, History, MakeClaim, Refuse
from mesh.core.errors import CallRevoked, ToolSessionError, Unavailable
from mesh.core.events import (
    ApprovalKindName,
    ApprovalRequired,
    Artifact,
    Found,
    Preview,
    ToolCall,
    ToolIntent,
    ToolProgress,
    ToolResult,
)
from mesh.core.execution import ExecutionContext, RecordedQuestion, step_id
from mesh.core.history import NOT_RUN
from mesh.core.places import StepKey
from mesh.core.verdict import Verdict
from mesh.mcp.fingerprint import changes, fingerprint_of
from mesh.mcp.outcome_checks import found, unknown, words_of
from mesh.mcp.port import Claim, Tool, ToolOutcome
from mesh.mcp.previews import EXPECT, preview_in
from mesh.mcp.progress import OnProgress
from mesh.mcp.schema import problems
from mesh.mcp.toolbox import Toolbox
from mesh.net.backoff import Backoff
from mesh.policy.grants import Grant
from mesh.policy.policy_call import PolicyCall
from mesh.python.questions import MOST_QUESTIONS, AskedSomethingElse, BrokenProtocol, is_refusal
from mesh.runtime.failpoints import failpoint
from mesh.runtime.logs import fields
from mesh.tree.agents_of_code import AgentsOfCode
from mesh.tree.calls import (
    MOST_SHOWN,
    CallDriver,
    CallSettings,
    Ended,
    NotAsPreviewed,
    NotBegun,
    NotRun,
    Returned,
    Unknown,
    applied,
    bounded,
    first_sentence,
    fitting,
    listed,
    refused,
    result_of,
    run_call,
    run_to_completion,
)
from mesh.tree.calls_for_policies import tool_call
from mesh.tree.gate import GateSources, GrantsOnly
from mesh.tree.node import PAUSED, PassEnd
from mesh.tree.steps import Steps
from mesh.tree.turn import AbandonedTask, UnsettledCall

_log = logging.getLogger("mesh.tools")
_CHECK_WITHIN_S = 60.0
"""Bounds a check, with its repetitions."""
_MOST_CHECKS = 5
"""How often a check may end without an answer. One that does not begin is waited for."""
_BETWEEN_CHECKS = Backoff(first_s=0.1, longest_s=2.0)


class ToolCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The tool calls of one node. ``agents`` are the names under which agents are offered beside the tools.
    ``for_model``: a model reads the results, and is told in them of arguments that a person changed."""

    toolbox: Toolbox
    agents: Sequence[str] = ()
    settings: CallSettings = CallSettings()
    for_model: bool = True

    async def run(
        self, steps: Steps, step: StepKey, call: ToolCall, agents: AgentsOfCode | None = None
    ) -> ToolResult | PassEnd:
        """See `run_call`. ``agents`` are what the tool may start and wait for; None: nothing."""
        driver = _ToolCall(self, steps, step, call, self.toolbox.tools.get(call.name), agents)
        return await run_call(driver, steps, step, call, self.settings)

    def may_ask(self, call: ToolCall) -> bool:
        """Whether the tool is one that may start agents and wait for them: a function that may run twice."""
        tool = self.toolbox.tools.get(call.name)
        return tool is not None and tool.tells_truth and tool.repeatable

    def problems(self, call: ToolCall) -> str:
        """Why a call cannot be made, for whoever wrote its arguments; empty if it can."""
        tool = self.toolbox.tools.get(call.name)
        if tool is None:
            offered = ", ".join(sorted([*self.toolbox.tools, *self.agents])) or "none"
            return f"There is no tool {call.name[:128]!r}. The tools are: {offered}."[:MOST_SHOWN]
        if call.malformed:
            return f"The arguments of {call.name} were not a JSON object: {call.malformed[:200]}"
        found = problems(tool.input_schema, call.arguments)
        return f"Invalid arguments for {call.name}:\n{found}" if found else ""

    def policy_call(self, tool: Tool, arguments: dict[str, Any], *, inline: bool = False) -> PolicyCall:
        """A call, as policies see it."""
        return tool_call(self.settings.agent, self.settings.name, tool, arguments, inline=inline)

    def is_denied(self, name: str) -> bool:
        """Whether a tool is denied whatever its arguments, so that it is not offered."""
        tool = self.toolbox.tools.get(name)
        return tool is not None and self.settings.gate.denies_always(self.policy_call(tool, {}))

    async def verdict(self, call: ToolCall, grants: Sequence[Grant]) -> Verdict:
        """See `Tree.verdict`."""
        tool = self.toolbox.tools.get(call.name)
        if tool is None:
            return Verdict("ask", "", self.problems(call))
        return await self.settings.verdict(self.policy_call(tool, call.arguments), grants)

    @staticmethod
    def added_problem(tool: Tool, added: Mapping[str, Any]) -> str:
        """Why added arguments cannot be relied on: a tool that does not know them might do what it does."""
        known = tool.input_schema.get("properties")
        unknown = added.keys() - (known.keys() if isinstance(known, dict) else set())
        return f"the tool has no argument {', '.join(sorted(unknown))}" if unknown else ""

    async def preview(self, call: ToolCall, offset: int) -> Preview | None:
        """See `Tree.preview`."""
        tool = self.toolbox.tools.get(call.name)
        if tool is None:
            return None
        added, rest = tool.about.preview, tool.about.rest
        if not added or not rest or self.added_problem(tool, added):
            return None
        try:
            outcome = await self.toolbox.call(tool, call.arguments | added | {rest: offset})
        except ToolSessionError as problem:
            raise Unavailable(str(problem)) from None
        return None if outcome.is_error else preview_in(outcome)

    async def settle(self, unsettled: UnsettledCall) -> ToolResult | None:
        """See `Tree.settle`."""
        intent, most = unsettled.intent, self.settings.max_result_bytes
        call = ToolCall(unsettled.call_id, intent.tool)
        claim = _session_claim(unsettled.conversation_id, intent)
        try:
            await self.stop(self.toolbox.tools.get(intent.tool), claim)
            outcome = await self.outcome_of(intent.server, claim)
        except ToolSessionError:
            return await self._settle_by_check(unsettled, call)
        if outcome is None:
            return result_of(call, NOT_RUN, most=most, is_error=True, skipped=True)
        content, artifacts = _fitted("", outcome, most)
        return result_of(call, content, most=most, is_error=outcome.is_error, artifacts=artifacts)

    async def _settle_by_check(self, unsettled: UnsettledCall, call: ToolCall) -> ToolResult | None:
        context = unsettled.context(self.settings.root)
        tool, arguments = self.toolbox.tools.get(call.name), unsettled.intent.arguments
        told = await self.check(tool, arguments, context, GrantsOnly(()))
        if told is None or told.outcome == "unknown":
            return None
        most = self.settings.max_result_bytes
        if told.outcome == "applied":
            is_error = bool(told.stopped)
            return result_of(call, applied(told), most=most, is_error=is_error, found=told)
        return result_of(call, NOT_RUN, most=most, is_error=True, skipped=True, found=told)

    async def check(
        self,
        tool: Tool | None,
        arguments: dict[str, Any],
        context: ExecutionContext,
        sources: GateSources,
    ) -> Found | None:
        """Returns what the check of a tool finds out about a call, or None if the tool has no check. Raises
        `Unavailable`."""
        if tool is not None and tool.about.check:
            if problem := self.added_problem(tool, tool.about.check):
                return unknown(tool.name, problem)
            return await self._asked(tool, arguments | tool.about.check, context)
        if tool is None or not tool.checked_by:
            return None
        check = self.toolbox.check_of(tool)
        if check is None:
            return unknown(tool.checked_by, f"{tool.server} has no read-only tool {tool.checked_by}")
        if denial := await self.settings.denial(self.policy_call(check, arguments, inline=True), sources):
            return unknown(check.name, denial)
        told = await self._asked(check, arguments, context)
        failpoint("tool.checked")
        return told

    async def _asked(self, check: Tool, arguments: dict[str, Any], context: ExecutionContext) -> Found:
        """What a check answers. What ended the session during the call may end it during the check, too, so
        that it is asked again."""
        problem, begun = f"it gave no answer within {_CHECK_WITHIN_S:g} s", 0
        with suppress(TimeoutError):
            async with asyncio.timeout(_CHECK_WITHIN_S):
                for delay in _BETWEEN_CHECKS.delays():
                    try:
                        return found(check.name, await self.toolbox.call(check, arguments, context=context))
                    except ToolSessionError as failure:
                        problem, begun = str(failure), begun + failure.may_have_run
                    if begun == _MOST_CHECKS:
                        break
                    await asyncio.sleep(delay)
        return unknown(check.name, problem)

    async def cancel(self, task: AbandonedTask) -> None:
        """See `Tree.cancel`. A tool works on no tasks."""

    async def stop(self, tool: Tool | None, claim: Claim) -> None:
        """The turn ends: a call that runs is cancelled, if its tool can tell what came of it; otherwise it is
        waited for."""
        if tool is not None and tool.about.check:
            await self.toolbox.stop(tool.server, claim)

    async def outcome_of(self, server: str, claim: Claim) -> ToolOutcome | None:
        """See `ToolSession.settle`. Raises `Unavailable` when the session cannot say yet, as while the server
        of the session before it still runs."""
        try:
            return await self.toolbox.settle(server, claim)
        except ToolSessionError as problem:
            if problem.may_have_run:
                raise
            raise Unavailable(str(problem)) from None


class _ToolCall(CallDriver):
    """One call; ``tool`` None: there is no tool of that name."""

    leaves_doubt = True

    def __init__(
        self,
        calls: ToolCalls,
        steps: Steps,
        step: StepKey,
        call: ToolCall,
        tool: Tool | None,
        agents: AgentsOfCode | None,
    ) -> None:
        super().__init__(call)
        self._agents = agents
        self._calls = calls
        self._steps = steps
        self._step = step
        self._take(tool)
        self._remaining = Remaining()
        self.tells_arguments = not calls.for_model

    def _take(self, tool: Tool | None) -> None:
        self._tool = tool
        self.is_repeatable = tool is not None and tool.repeatable
        # A tool that waits for agents ends with its pass, as they do: see `_run_once`.
        self.may_be_broken_off = tool is not None and (tool.read_only or self._agents is not None)

    # -- as it describes itself

    def problem(self, arguments: dict[str, Any]) -> str:
        return self._calls.problems(msgspec.structs.replace(self.call, arguments=arguments))

    def policy_call(self, arguments: dict[str, Any]) -> PolicyCall:
        inline = not self._calls.settings.asks(self._steps.turn)
        return self._calls.policy_call(self._found, arguments, inline=inline)

    def changes_since(self, asked: ApprovalRequired) -> str:
        if not asked.tool_fingerprint or self._tool is None:
            return ""
        return "; ".join(changes(asked.tool_fingerprint, fingerprint_of(self._tool)))

    def attempt(self, kind: ApprovalKindName, history: History) -> int:
        # A question about an unknown outcome has the number of the claim that it is about.
        return history.last_claim.attempt if kind == "unknown_outcome" else history.next_attempt(kind)

    # -- effects

    async def preview(self, arguments: dict[str, Any]) -> Preview | Returned | None:
        """See `CallDriver`. A preview that cannot be made is none: a person is asked without it."""
        tool = self._found
        added, rest = tool.about.preview, tool.about.rest
        if not added:
            return None
        # Without an offset of the model's: a person sees the preview from its beginning.
        asked = {key: value for key, value in arguments.items() if key != rest} | added
        if problem := self._calls.added_problem(tool, added):
            _log.warning("event=no_preview tool=%s %s", tool.name, fields(message=problem))
            return None
        try:
            outcome = await self._calls.toolbox.call(tool, asked, context=self._context(self._remaining))
        except ToolSessionError as problem:
            _log.warning("event=no_preview tool=%s %s", tool.name, fields(message=problem))
            return None
        return self._returned(outcome, arguments) if outcome.is_error else preview_in(outcome)

    async def claim(self, action: MakeClaim) -> ToolIntent | NotRun | Returned:
        tool, arguments = self._found, action.arguments
        try:
            session = await self._calls.toolbox.identity(tool)
        except ToolSessionError as problem:
            return NotRun(f"{problem}; it did not run")
        previewed = await self._previewed(arguments)
        if isinstance(previewed, Returned):
            return previewed
        if previewed is not None and previewed.expect:
            arguments = arguments | {EXPECT: previewed.expect}
        # Before the claim: what cannot be found out now must not interrupt a call that is claimed.
        self._remaining = await self._steps.remaining(self._calls.settings.on_limit)
        return ToolIntent(run=0, tool=tool.name, arguments=arguments, server=tool.server, session=session)

    async def _previewed(self, arguments: dict[str, Any]) -> Preview | Returned | None:
        """What the person has seen who approved these arguments; otherwise what the call would do now."""
        asked = self._steps.known(self._step, ApprovalRequired)
        if asked is not None and asked.preview is not None and asked.tool_args == arguments:
            return asked.preview
        return await self.preview(arguments)

    async def run(self, arguments: dict[str, Any]) -> Returned | PassEnd:
        recorded = self._agents.recorded() if self._agents else []
        try:
            while True:
                outcome = await self._run_once(arguments, recorded)
                if not outcome.asks or not self._found.tells_truth:
                    return self._returned(outcome, arguments)
                if not await self._answer(outcome.asks, recorded):
                    return PAUSED
        except (ToolSessionError, AskedSomethingElse, BrokenProtocol) as problem:
            return Returned(str(problem), is_error=True)

    async def _run_once(self, arguments: dict[str, Any], recorded: Sequence[RecordedQuestion]) -> ToolOutcome:
        """One run of the tool, which is told what was answered to its questions before."""
        context = self._context(await self._steps.remaining(self._calls.settings.on_limit))
        context = msgspec.structs.replace(context, recorded=tuple(recorded))
        call = self._calls.toolbox.call(
            self._found, arguments, context=context, on_progress=self._on_progress
        )
        # What may change something is not interrupted; between its runs, the tool only waits.
        is_uninterrupted = self._agents is not None and not self._found.read_only
        return await (run_to_completion(call) if is_uninterrupted else call)

    async def _answer(self, asks: Sequence[str], recorded: list[RecordedQuestion]) -> bool:
        """Answers what a tool asks, for its next run; False if what it waits for waits for a person. Raises
        `AskedSomethingElse`, `BrokenProtocol`."""
        if self._agents is None:
            raise BrokenProtocol(
                f"{self.call.name} wants to start agents, which the node has to allow: spawn"
            )
        if len(recorded) + len(asks) > MOST_QUESTIONS:
            raise BrokenProtocol(f"{self.call.name} has asked more than {MOST_QUESTIONS:,} times for agents")
        for asked in asks:
            answered = await self._agents.answered(len(recorded), asked)
            if answered is None:
                return False
            recorded.append(answered)
            if is_refusal(answered.answer):
                break  # the tool was sure of this agent, and hears now that there is none
        return True

    async def run_claimed(self, claim: ToolIntent) -> Ended:
        failpoint("tool.claimed")
        try:
            outcome = await self._calls.toolbox.call(
                self._found,
                claim.arguments,
                claim=self._named(claim),
                context=self._context(self._remaining),
                on_progress=self._on_progress,
            )
        except CallRevoked:
            return NotBegun()
        except ToolSessionError as problem:
            if problem.may_have_run:
                return await self.recover(claim, is_retry=False)
            return NotRun(str(problem))
        return self._ended(outcome, claim)

    async def recover(self, claim: ToolIntent, *, is_retry: bool) -> Ended:
        try:
            outcome = await self._settled(claim)
        except ToolSessionError:
            return Unknown()
        return NotBegun() if outcome is None else self._ended(outcome, claim)

    def _ended(self, outcome: ToolOutcome, claim: ToolIntent) -> Returned | NotAsPreviewed:
        if outcome.is_conflict and EXPECT in claim.arguments:
            message = fields(message=outcome.content)
            _log.info("event=not_as_previewed tool=%s %s", claim.tool, message)
            # A person is told what has changed; what follows, such as hashes, is for the log.
            return NotAsPreviewed(outcome.content.partition("\n")[0].rstrip(". "))
        return self._returned(outcome, self._as_asked(claim.arguments))

    def _as_asked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a claim, as they were asked for or approved."""
        if self._tool is None or not self._tool.about.preview:
            return arguments
        own = {key: value for key, value in self.call.arguments.items() if key == EXPECT}
        return {key: value for key, value in arguments.items() if key != EXPECT} | own

    async def settle(self, claim: ToolIntent) -> None:
        await self._calls.stop(self._tool, self._named(claim))
        await self._settled(claim)

    async def _settled(self, claim: ToolIntent) -> ToolOutcome | None:
        if not claim.session:
            raise ToolSessionError("the claim names no session", may_have_run=True)
        return await self._calls.outcome_of(claim.server, self._named(claim))

    def _named(self, claim: ToolIntent) -> Claim:
        return _session_claim(self._steps.turn.conversation_id, claim)

    def _context(self, remaining: Remaining) -> ExecutionContext:
        nonce = self._steps.nonce_of(self._step)
        return self._steps.turn.context(self._step, nonce, self._calls.settings.root, remaining)

    @property
    def _on_progress(self) -> OnProgress | None:
        """Where the call says how far it has come, if anybody watches."""
        if not self._steps.watched:
            return None
        return lambda found: self._steps.show(
            self._step, ToolProgress(tool=self.call.name, progress=found.progress, message=found.message)
        )

    @property
    def _found(self) -> Tool:
        assert self._tool is not None  # a call without a tool has a `problem`, so that it is never made
        return self._tool

    def _returned(self, outcome: ToolOutcome, arguments: dict[str, Any]) -> Returned:
        failpoint("tool.returned")
        note = ""
        if self._calls.for_model and arguments != self.call.arguments:
            note = f"[A person changed the arguments to {json.dumps(arguments, ensure_ascii=False)}]\n"
        content, artifacts = _fitted(note, outcome, self._calls.settings.max_result_bytes)
        told = self._agents.told if self._agents else ()
        return Returned(content, outcome.is_error, artifacts, told=told)

    # -- for people

    def question(self, action: Ask) -> ApprovalRequired:
        description = self._description(action.arguments)
        if action.changes:
            why = f"Something has changed since this was decided: {action.changes}. Decide again.\n"
            description = bounded(why, MOST_SHOWN) + description
        return self._question(action.kind, action.arguments, description)

    async def check(self, claim: ToolIntent) -> Found | None:
        told = await self._calls.check(
            self._tool, claim.arguments, self._context(self._remaining), self._steps
        )
        # Its server may have started again, with another tool under this name.
        self._take(self._calls.toolbox.tools.get(self.call.name))
        return told

    def question_about_unknown(self, action: AskWhatToDo) -> ApprovalRequired:
        name, claim = self.call.name, action.claim
        description = (
            f"It is not known whether {name} ran: the process died, or the connection was lost, "
            f"after it was started and before its result arrived. Look at the real thing, then decide: "
            f"retry (run it again) or skip (go on without running it).\n"
        )
        if action.found is not None:
            description += bounded(f"{words_of(action.found)}\n", MOST_SHOWN)
        description += listed(claim.arguments)
        asked = self._steps.known(self._step, ApprovalRequired)
        if asked is not None and (found := self.changes_since(asked)):
            changed = bounded(f"The tool has changed since it was started: {found}.\n", MOST_SHOWN)
            description = changed + description
        question = self._question("unknown_outcome", self._as_asked(claim.arguments), description)
        return msgspec.structs.replace(question, found=action.found)

    def refusal(self, action: Refuse) -> NotRun:
        return refused(action)

    def skipped(self) -> str:
        about = "It is not known whether this call ran."
        return f"{about} A person looked into it and decided not to run it again."

    def _question(
        self, kind: ApprovalKindName, arguments: dict[str, Any], description: str
    ) -> ApprovalRequired:
        return ApprovalRequired(
            uuid="",
            call_id=self.call.id,
            tool_name=self.call.name,
            tool_args=arguments,
            description=description,
            kind=kind,
            tool_fingerprint=fingerprint_of(self._tool) if self._tool is not None else {},
        )

    def _description(self, arguments: dict[str, Any]) -> str:
        tool = self._found
        said = first_sentence(tool.description)
        about = f" ({said})" if said else ""
        return bounded(f"Run {tool.name} on {tool.server}{about}\n{listed(arguments)}", MOST_SHOWN)


def _session_claim(conversation_id: str, claim: ToolIntent) -> Claim:
    step = step_id(conversation_id, claim.turn, claim.nonce, claim.step)
    return Claim(claim.session, step, claim.attempt)


def _fitted(note: str, outcome: ToolOutcome, most: int) -> tuple[str, Sequence[Artifact]]:
    """What of an outcome fits into so many bytes: its text, and the files for which there is room."""
    content = note + outcome.content
    artifacts = fitting(outcome.artifacts, most - len(content.encode()))
    if left_out := len(outcome.artifacts) - len(artifacts):
        content += f"\n[{left_out} files left out: over {most} bytes]"
    return content, artifacts

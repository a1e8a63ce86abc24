"""Turns events into lines for people: who said what, which tools ran, who decided, how long it took. Pure.

The text of a model is shown at its model call. The answer that ends the turn is shown again only if it
differs from the last of these texts.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

from mesh.core.approvals import kind_of
from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Choice,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    LimitReached,
    LlmCall,
    LlmLost,
    LlmReserved,
    NodeCompleted,
    Paused,
    StoreWentBack,
    ToolCall,
    ToolIntent,
    ToolProgress,
    ToolResult,
    UserMessage,
    Validation,
)
from mesh.core.messages import ANSWERING_TOOLS, accepted_mark
from mesh.core.places import ROOT
from mesh.display import intervention_words
from mesh.display.approvals import description_of, subject_of
from mesh.display.outcomes import ProgressTold, denied, found_by, stopped
from mesh.display.policies import remembered, statistics_of
from mesh.display.started_agents import StartedAgents, about
from mesh.display.text import as_json, call, one_line
from mesh.display.validations import Validations, in_spite_of, objection
from mesh.llm.prices import Prices
from mesh.log.log_line import LineTone, LogLine
from mesh.log.node_names import NodeNames, depth_of, other_agent_of, short_name
from mesh.log.summary import dollars
from mesh.log.times import between, clock, day, milliseconds, span

_MAX_RESULT = 200
_DECIDED: dict[Choice, str] = {
    "approve": "approved {}",
    "reject": "rejected {}",
    "retry": "wants {} to run again",
    "skip": "wants to go on without {}",
    "answer": "answered {}",
}
_AT_LIMIT = {"answer": "one last answer follows", "stop": "it stops", "fail": "it fails"}
_WITH_TOKEN: dict[Choice, str] = {**_DECIDED, "approve": "sent {}", "reject": "did not send {}"}
_TOKEN = "with a bearer token"


class EventLines:
    """Formats one event after the other. ``names`` may learn further names in between. Unless ``folds`` is
    False, many started agents are counted, and not told one by one."""

    def __init__(self, names: NodeNames, prices: Prices, *, folds: bool = True) -> None:
        self._names = names
        self._folds = folds
        self._agents = StartedAgents()
        self._prices = prices
        self._turn_started_at = ""
        self._last_text = ""
        self._approvals: dict[str, ApprovalRequired] = {}
        self._decisions: dict[str, ApprovalResolved] = {}
        self._messages_shown: set[tuple[int, str, str]] = set()
        self._validations = Validations()
        self._progress = ProgressTold()
        self._reserved: dict[tuple[str, int], LlmReserved] = {}  # of this turn, by step and attempt

    def learn(self, events: Iterable[AnyEvent]) -> None:
        """Takes from events that are about to be told how many agents they start."""
        for event in events:
            self._agents.learn(event)

    def lines(self, event: AnyEvent) -> Iterator[LogLine]:
        """Yields the lines of an event. Some events have none."""
        self._agents.learn(event)
        if self._folds and self._agents.folds(event):
            yield from self._counted(event)
        else:
            yield from self._told(event)

    def _counted(self, event: AnyEvent) -> Iterator[LogLine]:
        """What is told of agents that are folded."""
        if words := self._agents.told(event):
            above = event.step.rpartition(".")[0]
            text = f"{self._names.of(above)}: {words}"
            yield LogLine(text, "quiet", clock(event.time), depth_of(above))

    def _told(self, event: AnyEvent) -> Iterator[LogLine]:
        match event:
            case ConversationCreated():
                yield from self._conversation_created(event)
            case UserMessage():
                yield from self._user_message(event)
            case AgentStarted() | NodeCompleted():
                yield self._node_begun_or_done(event)
            case AgentTold() | AgentsReported():
                yield self._told_while_at_work(event)
            case LlmReserved() | LlmCall() | LlmLost() | LimitReached():
                yield from self._about_model_call(event)
            case Validation():
                yield self._validation(event)
            case ToolIntent() | ToolProgress() | ToolResult():
                yield from self._about_tool(event)
            case ApprovalRequired():
                yield self._approval_required(event)
            case ApprovalResolved():
                yield self._approval_resolved(event)
            case Completed() | Error():
                yield from self._turn_ended(event)
            case ConversationCompleted() | StoreWentBack() | Paused(is_move=True):
                yield _about_conversation(event)
            case _:
                pass

    def _conversation_created(self, event: ConversationCreated) -> Iterator[LogLine]:
        yield LogLine(f"conversation {short_name(event.conversation_id)}", "head")
        parts = (("agent", event.agent), ("config", event.digest), ("session", event.session_id))
        about = ", ".join(f"{label} {short_name(value)}" for label, value in parts if value)
        yield LogLine(f"{about}; times are UTC", "quiet")

    def _user_message(self, event: UserMessage) -> Iterator[LogLine]:
        self._turn_started_at, self._last_text = event.time, ""
        self._reserved.clear()
        self._progress = ProgressTold()
        yield LogLine(f"\nturn {event.turn}, {one_line(day(event.time), 10)}", "head")
        session = f"session {short_name(event.session_id)}" if event.session_id else ""
        note = ", ".join(part for part in (session, _TOKEN if event.had_token else "") if part)
        who = f"user {short_name(event.by)}" if event.by else "user"
        yield LogLine(f"{who}: {event.text}", "person", clock(event.time), note=note)

    def _about_model_call(self, event: LlmReserved | LlmCall | LlmLost | LimitReached) -> Iterator[LogLine]:
        match event:
            case LlmReserved():
                self._reserved[event.step, event.attempt] = event
            case LlmCall():
                self._validations.answered(event.place)
                yield from self._model_call(event)
            case LlmLost():
                yield self._model_call_lost(event)
            case LimitReached():
                yield self._limit_reached(event)

    def _model_call(self, event: LlmCall) -> Iterator[LogLine]:
        asked = ", ".join(map(_requested_call, event.tool_calls))
        note = "" if asked else self._price_tag(event)
        if event.text:
            self._last_text = event.text
            yield self._node_line(event, event.text, "plain", note, " drafts:" if event.draft else ":")
        if asked or not event.text:
            # What a stream does not tell.
            hidden = "checks an answer" if event.concealed else "drafts an answer" if event.draft else ""
            says = hidden or "says nothing"
            yield self._node_line(event, f"calls {asked}" if asked else says, "plain", self._price_tag(event))

    def _price_tag(self, event: LlmCall) -> str:
        """Returns the model, the number of tokens, the time and the cost of a call."""
        usage, cost = event.usage, self._prices.cost(event)
        cached = f" ({usage.cached} cached)" if usage.cached else ""
        unusual = event.finish_reason not in ("stop", "tool_calls")
        parts = (
            short_name(event.model),
            f"{usage.input} in{cached}, {usage.output} out" if usage.input or usage.output else "",
            milliseconds(event.latency_ms),
            dollars(cost) if cost else "",
            f"ended by {event.finish_reason}" if unusual else "",
        )
        return ", ".join(part for part in parts if part)

    def _model_call_lost(self, event: LlmLost) -> LogLine:
        bound = self._reserved.get((event.step, event.attempt))
        tokens = f"{bound.tokens:,} tokens" if bound else ""
        cost = dollars(Decimal(bound.nusd) / 10**9) if bound and bound.nusd else ""
        most = ", ".join(part for part in (tokens, cost) if part)
        note = f"counts as {most}, the most that it can be" if most else ""
        return self._node_line(event, "lost a model call with the process that made it", "wrong", note)

    def _limit_reached(self, event: LimitReached) -> LogLine:
        whose = "the turn" if event.scope == ROOT.text else self._names.of(event.scope)
        text = f"reaches the limit {short_name(event.limit)} of {whose}"
        return self._node_line(event, text, "wrong", _AT_LIMIT[event.then])

    def _validation(self, event: Validation) -> LogLine:
        verdict, run = self._validations.verdict(event), self._validations.run(event)
        because = f": {why}" if (why := objection(event)) else ""
        return self._node_line(event, f"{verdict}{because}", "quiet" if event.valid else "wrong", run, ":")

    def _about_tool(self, event: ToolIntent | ToolProgress | ToolResult) -> Iterator[LogLine]:
        match event:
            case ToolIntent():
                yield self._agent_message(event) if other_agent_of(event.tool) else self._tool_run(event)
            case ToolProgress() if told := self._progress.tell(event):
                yield self._node_line(event, f"{short_name(event.tool)}: {told}", "quiet")
            case ToolResult():
                yield self._tool_result(event)

    def _tool_run(self, event: ToolIntent) -> LogLine:
        again = f"try {event.attempt + 1}" if event.attempt else ""
        note = ", ".join(part for part in (again, found_by(event.found), _rule(event.rule)) if part)
        return self._node_line(event, f"runs {call(event.tool, event.arguments)}", "plain", note)

    def _agent_message(self, event: ToolIntent) -> LogLine:
        """A message to another agent, or the decision about what it asked."""
        said, decision = event.arguments.get("message"), self._decisions.get(event.answers)
        text = said if isinstance(said, str) else call(event.tool, event.arguments)
        if event.answers:
            text = _decision_text(decision) if decision else "the decision"
        message = (event.turn, event.step, event.answers)
        again = "again" if message in self._messages_shown else ""
        self._messages_shown.add(message)
        note = ", ".join(part for part in (again, _rule(event.rule)) if part)
        return self._node_line(event, f"tells agent {other_agent_of(event.tool)}: {text}", "plain", note)

    def _tool_result(self, event: ToolResult) -> LogLine:
        how, tone = _result_arrow(event)
        answer = event.content.removesuffix(accepted_mark(event.invalid))  # the note says it
        agent, content = other_agent_of(event.tool), one_line(answer, _MAX_RESULT)
        if agent and not event.is_error:
            text = f"hears from agent {agent}: {content}"
        else:
            tool = short_name(event.tool) if event.arguments is None else call(event.tool, event.arguments)
            came = stopped(event) or denied(event) or content
            text = f"{f'agent {agent}' if agent else tool} {how} {came}".rstrip()
        accepted = "" if event.tool in ANSWERING_TOOLS else _in_spite_of(event)  # else its end says it
        found = "" if stopped(event) else found_by(event.found)
        notes = (milliseconds(event.duration_ms), found, accepted, _rule(event.rule))
        note = "" if event.denied else ", ".join(part for part in notes if part)
        return self._node_line(event, text, tone, note)

    def _approval_required(self, event: ApprovalRequired) -> LogLine:
        self._approvals[event.uuid] = event
        about = f"approval {short_name(event.uuid)}"
        task = f", task {short_name(event.remote_task_id)} there" if event.remote_task_id else ""
        until = f", until {one_line(event.expires_at, 32)}" if event.expires_at else ""
        changes = statistics_of(event.preview)
        more = "".join(f", {part}" for part in (_rule(event.rule), changes) if part)
        return self._node_line(event, _question(event), "asks", f"{about}{task}{until}{more}")

    def _approval_resolved(self, event: ApprovalResolved) -> LogLine:
        self._decisions[event.uuid] = event
        asked = self._approvals.get(event.uuid)
        what = subject_of(asked) if asked else f"approval {short_name(event.uuid)}"
        words = _WITH_TOKEN if asked and kind_of(asked).needs_token else _DECIDED
        edited = "" if event.edited_args is None else f", as {_edited(event.edited_args, asked)}"
        said = event.answer or event.reason
        why = f": {one_line(said, _MAX_RESULT)}" if said else ""
        waited = f"after {span(between(asked.time, event.time))}" if asked else ""
        notes = (waited, _TOKEN if event.had_token else "", remembered(event))
        note = ", ".join(part for part in notes if part)
        text = f"{short_name(event.by) or 'somebody'} {words[event.choice].format(what)}{edited}{why}"
        return LogLine(text, "decided", clock(event.time), depth_of(event.node), note)

    def _node_begun_or_done(self, event: AgentStarted | NodeCompleted) -> LogLine:
        if isinstance(event, AgentStarted):
            is_about = f": {about(event)}" if about(event) else ""
            return self._node_line(event, f"begins{is_about}", "quiet", f"by {event.by}" if event.by else "")
        wrote = [f"wrote {', '.join(short_name(key) for key in event.state)}"] if event.state else []
        ends = ["ends the loop"] if event.exits else []
        accepted = [_in_spite_of(event)] if event.invalid else []
        note = ", ".join([milliseconds(event.duration_ms), *wrote, *ends, *accepted])
        if event.status == "failed":
            return self._node_line(event, f"failed: {one_line(event.text, _MAX_RESULT)}", "wrong", note)
        if event.status == "deleted":
            why = one_line(event.text.removeprefix("Deleted: "), _MAX_RESULT)
            return self._node_line(event, f"is deleted: {why}", "wrong", note)
        return self._node_line(event, "is done", "quiet", note)

    def _told_while_at_work(self, event: AgentTold | AgentsReported) -> LogLine:
        """What an agent is told between two of its answers: by who started it, or of the agents that it has
        started."""
        if isinstance(event, AgentsReported):
            return self._node_line(event, f"is told: {one_line(event.text, _MAX_RESULT)}", "quiet")
        what = intervention_words.in_words(event, short_name(event.by) if event.by else "")
        return self._node_line(event, what, "wrong" if event.stops else "quiet")

    def _turn_ended(self, event: Completed | Error) -> Iterator[LogLine]:
        took = between(self._turn_started_at, event.time) if self._turn_started_at else timedelta()
        note = f"turn {event.turn} took {span(took)}"
        when = clock(event.time)
        if isinstance(event, Completed) and event.invalid:
            yield LogLine(_in_spite_of(event), "wrong", when)
        if isinstance(event, Error):
            yield LogLine(f"failed: {event.message}", "wrong", when, note=note)
        elif event.stopped_by_person:
            how = "called off" if event.cancelled_on_request else "cancelled"
            yield LogLine(f"{how}: {event.response}", "wrong", when, note=note)
        elif event.response.strip() == self._last_text.strip():
            yield LogLine("done", "quiet", when, note=note)
        else:
            yield LogLine(f"{self._names.of('0')} answers: {event.response}", "plain", when, note=note)

    def _node_line(
        self, event: AnyEvent, text: str, tone: LineTone, note: str = "", colon: str = ""
    ) -> LogLine:
        """Returns a line about something that a node did."""
        who = self._names.of(event.node)
        return LogLine(f"{who}{colon} {text}", tone, clock(event.time), depth_of(event.node), note)


def _rule(name: str) -> str:
    """Which rule of a policy decided; empty if none did."""
    return f"rule {short_name(name)}" if name and name != "default" else ""


def _about_conversation(event: ConversationCompleted | StoreWentBack | Paused) -> LogLine:
    match event:
        case StoreWentBack():
            return LogLine(event.message, "wrong", clock(event.time))
        case Paused():
            by = f" by {short_name(event.by)}" if event.by else ""
            return LogLine(f"moved to version {short_name(event.digest)}{by}", "quiet", clock(event.time))
        case ConversationCompleted():
            return LogLine("The conversation is complete.", "quiet", clock(event.time))


def _in_spite_of(event: Completed | NodeCompleted | ToolResult) -> str:
    return in_spite_of(event.invalid) if event.invalid else ""


def _requested_call(asked: ToolCall) -> str:
    if asked.malformed:
        return f"{short_name(asked.name)} with arguments that are no JSON"
    return call(asked.name, asked.arguments)


def _result_arrow(event: ToolResult) -> tuple[str, LineTone]:
    if event.skipped:
        return "was not run →", "quiet"
    if stopped(event):
        return "was stopped →", "quiet"
    if event.denied:
        return "is denied", "wrong"
    return ("failed →", "wrong") if event.is_error else ("→", "quiet")


def _edited(arguments: dict[str, Any], asked: ApprovalRequired | None) -> str:
    if asked and kind_of(asked).edits_output:
        return one_line(as_json(arguments.get("output")), _MAX_RESULT)
    return call(short_name(asked.tool_name) if asked else "it", arguments)


def _question(asked: ApprovalRequired) -> str:
    """Returns what is asked, and which other agent asks, if one does."""
    agent, what = short_name(asked.remote_agent_name), call(asked.tool_name, asked.tool_args)
    asks = f"passes on what agent {agent} asks" if agent else "asks"
    words = one_line(description_of(asked), _MAX_RESULT)
    kind = kind_of(asked)
    if kind.needs_token:
        return f"waits for a bearer token{f' for agent {agent}' if agent else ''}: {words}"
    return f"{asks}: {kind.asks.format(call=what, tool=short_name(asked.tool_name)) or words}"


def _decision_text(decision: ApprovalResolved) -> str:
    said = decision.answer or decision.reason
    edited = " with edited arguments" if decision.edited_args is not None else ""
    words = {"approve": "approved", "reject": "rejected", "answer": "the answer"}
    return f"{words.get(decision.choice, decision.choice)}{edited}{f': {said}' if said else ''}"

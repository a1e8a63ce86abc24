"""A journal for people: who said what, which tool, who decided, how long. Pure: from events to `Line`s.

A model's text is shown where it was said. The answer that closes the turn is shown again only if it is
another text than the last one said.
"""

from collections.abc import Iterator
from datetime import timedelta

from mesh.core.approvals import kind_of
from mesh.core.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Choice,
    Completed,
    ConversationCompleted,
    ConversationCreated,
    Error,
    LlmCall,
    NodeCompleted,
    ToolCall,
    ToolIntent,
    ToolResult,
    UserMessage,
)
from mesh.display.approvals import description_of, subject_of
from mesh.display.text import call, one_line
from mesh.llm.prices import Prices
from mesh.log.line import Line, Tone
from mesh.log.moments import between, clock, day, milliseconds, span
from mesh.log.names import Names, depth, peer_of, short
from mesh.log.totals import dollars

_MOST_RESULT = 200
_DONE: dict[Choice, str] = {
    "approve": "approved {}",
    "reject": "rejected {}",
    "retry": "wants {} to run again",
    "skip": "wants to go on without {}",
    "answer": "answered {}",
}
_WITH_TOKEN: dict[Choice, str] = {**_DONE, "approve": "sent {}", "reject": "did not send {}"}
_TOKEN = "with a bearer token"


class People:
    """Shows one event after the other. ``names`` may learn while it runs."""

    def __init__(self, names: Names, prices: Prices) -> None:
        self._names = names
        self._prices = prices
        self._started = ""
        self._said = ""
        self._asked: dict[str, ApprovalRequired] = {}
        self._decided: dict[str, ApprovalResolved] = {}
        self._told: set[tuple[int, str, str]] = set()

    def lines(self, event: AnyEvent) -> Iterator[Line]:
        """What to show for an event; nothing for some."""
        match event:
            case ConversationCreated():
                yield from self._created(event)
            case UserMessage():
                yield from self._user(event)
            case LlmCall():
                yield from self._model(event)
            case ToolIntent():
                yield self._tells(event) if peer_of(event.tool) else self._runs(event)
            case ToolResult():
                yield self._result(event)
            case ApprovalRequired():
                yield self._asks(event)
            case ApprovalResolved():
                yield self._decided_on(event)
            case NodeCompleted():
                yield self._done(event)
            case Completed() | Error():
                yield from self._closed(event)
            case ConversationCompleted():
                yield Line("The conversation is complete.", "quiet", clock(event.time))
            case _:
                pass

    def _created(self, event: ConversationCreated) -> Iterator[Line]:
        yield Line(f"conversation {short(event.conversation_id)}", "head")
        parts = (("agent", event.agent), ("config", event.digest), ("session", event.session_id))
        about = ", ".join(f"{label} {short(value)}" for label, value in parts if value)
        yield Line(f"{about}; times are UTC", "quiet")

    def _user(self, event: UserMessage) -> Iterator[Line]:
        self._started, self._said = event.time, ""
        yield Line(f"\nturn {event.turn}, {one_line(day(event.time), 10)}", "head")
        session = f"session {short(event.session_id)}" if event.session_id else ""
        note = ", ".join(part for part in (session, _TOKEN if event.had_token else "") if part)
        who = f"user {short(event.by)}" if event.by else "user"
        yield Line(f"{who}: {event.text}", "person", clock(event.time), note=note)

    def _model(self, event: LlmCall) -> Iterator[Line]:
        asked = ", ".join(map(_asked, event.tool_calls))
        if event.text:
            self._said = event.text
            yield self._at(event, event.text, "plain", "" if asked else self._price_tag(event), ":")
        if asked or not event.text:
            yield self._at(
                event, f"calls {asked}" if asked else "says nothing", "plain", self._price_tag(event)
            )

    def _price_tag(self, event: LlmCall) -> str:
        """Which model, how many tokens, how long, what it cost."""
        usage, cost = event.usage, self._prices.cost(event)
        cached = f" ({usage.cached} cached)" if usage.cached else ""
        unusual = event.finish_reason not in ("stop", "tool_calls")
        parts = (
            short(event.model),
            f"{usage.input} in{cached}, {usage.output} out" if usage.input or usage.output else "",
            milliseconds(event.latency_ms),
            dollars(cost) if cost else "",
            f"ended by {event.finish_reason}" if unusual else "",
        )
        return ", ".join(part for part in parts if part)

    def _runs(self, event: ToolIntent) -> Line:
        again = f"try {event.attempt + 1}" if event.attempt else ""
        return self._at(event, f"runs {call(event.tool, event.arguments)}", "plain", again)

    def _tells(self, event: ToolIntent) -> Line:
        """What is said to another agent: the message, or what a person decided of what it asked."""
        said, decision = event.arguments.get("message"), self._decided.get(event.answers)
        text = said if isinstance(said, str) else call(event.tool, event.arguments)
        if event.answers:
            text = _decision_in_words(decision) if decision else "the decision"
        told = (event.turn, event.step, event.answers)
        again = "again" if told in self._told else ""
        self._told.add(told)
        return self._at(event, f"tells agent {peer_of(event.tool)}: {text}", "plain", again)

    def _result(self, event: ToolResult) -> Line:
        how, tone = _outcome(event)
        peer, content = peer_of(event.tool), one_line(event.content, _MOST_RESULT)
        if peer and not event.is_error:
            text = f"hears from agent {peer}: {content}"
        else:
            text = f"{f'agent {peer}' if peer else short(event.tool)} {how} {content}".rstrip()
        return self._at(event, text, tone, milliseconds(event.duration_ms))

    def _asks(self, event: ApprovalRequired) -> Line:
        self._asked[event.uuid] = event
        about = f"approval {short(event.uuid)}"
        task = f", task {short(event.remote_task_id)} there" if event.remote_task_id else ""
        until = f", until {one_line(event.expires_at, 32)}" if event.expires_at else ""
        return self._at(event, _question(event), "asks", f"{about}{task}{until}")

    def _decided_on(self, event: ApprovalResolved) -> Line:
        self._decided[event.uuid] = event
        asked = self._asked.get(event.uuid)
        what = subject_of(asked) if asked else f"approval {short(event.uuid)}"
        words = _WITH_TOKEN if asked and kind_of(asked).needs_token else _DONE
        tool = short(asked.tool_name) if asked else what
        edited = f", as {call(tool, event.edited_args)}" if event.edited_args is not None else ""
        said = event.answer or event.reason
        why = f": {one_line(said, _MOST_RESULT)}" if said else ""
        waited = f"after {span(between(asked.time, event.time))}" if asked else ""
        note = ", ".join(part for part in (waited, _TOKEN if event.had_token else "") if part)
        text = f"{short(event.by) or 'somebody'} {words[event.decision].format(what)}{edited}{why}"
        return Line(text, "decided", clock(event.time), depth(event.node), note)

    def _done(self, event: NodeCompleted) -> Line:
        wrote = [f"wrote {', '.join(short(key) for key in event.state)}"] if event.state else []
        ends = ["ends the loop"] if event.exits else []
        note = ", ".join([milliseconds(event.duration_ms), *wrote, *ends])
        if event.status == "failed":
            return self._at(event, f"failed: {one_line(event.text, _MOST_RESULT)}", "wrong", note)
        return self._at(event, "is done", "quiet", note)

    def _closed(self, event: Completed | Error) -> Iterator[Line]:
        took = between(self._started, event.time) if self._started else timedelta()
        note = f"turn {event.turn} took {span(took)}"
        when = clock(event.time)
        if isinstance(event, Error):
            yield Line(f"failed: {event.message}", "wrong", when, note=note)
        elif event.stopped_by_person:
            how = "called off" if event.cancelled_on_request else "cancelled"
            yield Line(f"{how}: {event.response}", "wrong", when, note=note)
        elif event.response.strip() == self._said.strip():
            yield Line("done", "quiet", when, note=note)
        else:
            yield Line(f"{self._names.of('0')} answers: {event.response}", "plain", when, note=note)

    def _at(self, event: AnyEvent, text: str, tone: Tone, note: str = "", colon: str = "") -> Line:
        """A line of what a node did."""
        who = self._names.of(event.node)
        return Line(f"{who}{colon} {text}", tone, clock(event.time), depth(event.node), note)


def _asked(asked: ToolCall) -> str:
    if asked.malformed:
        return f"{short(asked.name)} with arguments that are no JSON"
    return call(asked.name, asked.arguments)


def _outcome(event: ToolResult) -> tuple[str, Tone]:
    if event.skipped:
        return "was not run →", "quiet"
    return ("failed →", "wrong") if event.is_error else ("→", "quiet")


def _question(asked: ApprovalRequired) -> str:
    """What is asked, and of whom it comes if it is another agent."""
    peer, what = short(asked.remote_agent_name), call(asked.tool_name, asked.tool_args)
    asks = f"passes on what agent {peer} asks" if peer else "asks"
    words = one_line(description_of(asked), _MOST_RESULT)
    kind = kind_of(asked)
    if kind.needs_token:
        return f"waits for a bearer token{f' for agent {peer}' if peer else ''}: {words}"
    return f"{asks}: {kind.asks.format(call=what) or words}"


def _decision_in_words(decision: ApprovalResolved) -> str:
    said = decision.answer or decision.reason
    edited = " with edited arguments" if decision.edited_args is not None else ""
    words = {"approve": "approved", "reject": "rejected", "answer": "the answer"}
    return f"{words.get(decision.decision, decision.decision)}{edited}{f': {said}' if said else ''}"

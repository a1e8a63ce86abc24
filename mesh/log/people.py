"""A journal for people: who said what, which tool, who decided, how long. Pure: from events to `Line`s.

A model's text is shown where it was said. The answer that closes the turn is shown again only if it is
another text than the last one said.
"""

from collections.abc import Iterator
from datetime import timedelta

from mesh.chat.words import call, one_line
from mesh.events import (
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
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
from mesh.llm.prices import Prices
from mesh.log.line import Line, Tone
from mesh.log.moments import between, clock, day, milliseconds, span
from mesh.log.names import Names, depth, short
from mesh.log.totals import dollars

_MOST_RESULT = 200


class People:
    """Shows one event after the other. ``names`` may learn while it runs."""

    def __init__(self, names: Names, prices: Prices) -> None:
        self._names = names
        self._prices = prices
        self._started = ""
        self._said = ""
        self._asked: dict[str, ApprovalRequired] = {}

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
                again = f"try {event.attempt + 1}" if event.attempt else ""
                yield self._at(event, f"runs {call(event.tool, event.arguments)}", "plain", again)
            case ToolResult():
                yield self._result(event)
            case ApprovalRequired():
                yield self._asks(event)
            case ApprovalResolved():
                yield self._decided(event)
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
        yield Line(f"user: {event.text}", "person", clock(event.time), note=session)

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

    def _result(self, event: ToolResult) -> Line:
        how, tone = _outcome(event)
        text = f"{short(event.tool)} {how} {one_line(event.content, _MOST_RESULT)}".rstrip()
        return self._at(event, text, tone, milliseconds(event.duration_ms))

    def _asks(self, event: ApprovalRequired) -> Line:
        self._asked[event.uuid] = event
        what = call(event.tool_name, event.tool_args)
        unknown = event.kind == "unknown_outcome"
        text = f"asks: nobody knows whether {what} ran; retry or skip?" if unknown else f"asks: run {what}?"
        until = f", until {one_line(event.expires_at, 32)}" if event.expires_at else ""
        return self._at(event, text, "asks", f"approval {short(event.uuid)}{until}")

    def _decided(self, event: ApprovalResolved) -> Line:
        asked = self._asked.get(event.uuid)
        tool = short(asked.tool_name) if asked else f"approval {short(event.uuid)}"
        done = {
            "approve": f"approved {tool}",
            "reject": f"rejected {tool}",
            "retry": f"wants {tool} to run again",
            "skip": f"wants to go on without {tool}",
        }[event.decision]
        edited = f", as {call(tool, event.edited_args)}" if event.edited_args is not None else ""
        reason = f": {one_line(event.reason, _MOST_RESULT)}" if event.reason else ""
        who = short(event.by) or "somebody"
        waited = f"after {span(between(asked.time, event.time))}" if asked else ""
        return Line(f"{who} {done}{edited}{reason}", "decided", clock(event.time), depth(event.node), waited)

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
        elif event.cancelled:
            yield Line(f"cancelled: {event.response}", "wrong", when, note=note)
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

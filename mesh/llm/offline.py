"""The offline model: deterministic, without network and key, for demonstrations and tests.

It calls the offered tool whose name, description and schema match the last message best (see
`mesh.llm.offline_words`), and describes the tool's result in words. A message that is addressed to another
agent or to the user is passed on, and where it may ask the user it asks about a message that leaves something
open (`mesh.llm.offline_address`). Where a schema is asked for, the answer is a value that fits it
(`mesh.llm.offline_answer`). It understands nothing.

Of the parameters it follows ``max_tokens`` and ``stop``, for its text. The others have nothing to change: its
answers are always the same, and it does not think.
"""

import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec

from mesh.core.events import Event, LlmCall, TextDelta, ToolCall, ToolCallDelta, Usage
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec, User
from mesh.llm.models import OFFLINE_NAME
from mesh.llm.offline_address import addressed, asked_about
from mesh.llm.offline_answer import answer_for
from mesh.llm.offline_fill import fill
from mesh.llm.offline_words import choose, properties, read, singular
from mesh.llm.port import LlmRequest

MOST_ROWS = 50
MOST_TEXT = 4000
_I_AM = "I am the offline demonstration model: no network, no understanding, only matching of words."


class Offline:
    """`Llm` without a model."""

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        """See `mesh.llm.port.Llm`. Tokens are words."""
        started = time.monotonic()
        whole, calls = _answer(request)
        if request.output_schema is not None and not calls:
            whole = answer_for(request.output_schema, _last(request))
        text, is_cut = _cut(whole, request)
        if request.deltas:
            for found in re.finditer(r"\s*\S+\s*", text):
                yield TextDelta(text=found[0], offset=found.start())
            for call in calls:
                for delta in _call_deltas(call):
                    yield delta
        yield LlmCall(
            model=OFFLINE_NAME,
            text=text,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "length" if is_cut else "stop",
            usage=_usage(request, text, calls),
            latency_ms=round((time.monotonic() - started) * 1000),
        )

    def takes_schema(self, request: LlmRequest) -> bool:
        """See `mesh.llm.port.TakesSchema`."""
        return True

    async def close(self) -> None:
        """See `mesh.llm.port.Llm`."""


def _answer(request: LlmRequest) -> tuple[str, tuple[ToolCall, ...]]:
    last = _last(request)
    if isinstance(last, Results):
        return _bounded("\n\n".join(_say(result) for result in last.results)), ()
    text = last.text
    if request.answer_only:
        return _bounded(f"{_I_AM} I may call no tool now. You said: {text or '(nothing)'}"), ()
    if not request.tools:
        return _bounded(f"{_I_AM} I have no tools here. You said: {text or '(nothing)'}"), ()
    if target := addressed(text, request.tools):
        return "", (ToolCall(_next_id(request.messages), target.tool.name, target.arguments),)
    reading = read(text)
    tool = choose(reading, request.tools)
    # What its instructions quote has been dealt with by whoever wrote them.
    if tool is None and text not in request.system and (asks := asked_about(text, request.tools)):
        return "", (ToolCall(_next_id(request.messages), asks.tool.name, asks.arguments),)
    if tool is None:
        return f"{_I_AM} I found no tool that fits. I can call:\n{_listed(request.tools)}", ()
    filled = fill(tool, reading)
    if filled.missing:
        return f"{_I_AM} To call {tool.name} I need: {_needed(tool, filled.missing)}.", ()
    return "", (ToolCall(_next_id(request.messages), tool.name, filled.arguments),)


def _last(request: LlmRequest) -> Message:
    return request.messages[-1] if request.messages else User("")


def _cut(text: str, request: LlmRequest) -> tuple[str, bool]:
    """Returns the text up to the first stop sequence, and of that as many words as the request allows; and
    whether there were more words."""
    ends = [at for stop in request.parameters.stop if (at := text.find(stop)) >= 0]
    text = text[: min(ends, default=len(text))]
    if request.max_tokens is None:
        return text, False
    words = list(re.finditer(r"\S+", text))
    if len(words) <= request.max_tokens:
        return text, False
    return text[: words[request.max_tokens - 1].end()], True


def _call_deltas(call: ToolCall) -> Iterator[Event]:
    arguments = msgspec.json.encode(call.arguments).decode()
    yield ToolCallDelta(phase="started", call_id=call.id, name=call.name)
    yield ToolCallDelta(phase="arguments", call_id=call.id, delta=arguments)
    yield ToolCallDelta(phase="ready", call_id=call.id, name=call.name, call=call)


def _next_id(messages: tuple[Message, ...]) -> str:
    before = sum(len(message.tool_calls) for message in messages if isinstance(message, Assistant))
    return f"offline-{before + 1}"


def _listed(tools: tuple[ToolSpec, ...]) -> str:
    lines = [
        f"- {tool.name}: {' '.join(tool.description.split())[:120]}".rstrip(": ")
        for tool in tools[:MOST_ROWS]
    ]
    return "\n".join(lines)


def _needed(tool: ToolSpec, missing: tuple[str, ...]) -> str:
    known = properties(tool.input_schema)
    kinds = {key: known.get(key, {}).get("type") for key in missing}
    return ", ".join(f"{key} ({kind})" if isinstance(kind, str) else key for key, kind in kinds.items())


def _say(result: Result) -> str:
    if result.is_error:
        return f"{result.name} failed: {result.content or 'no reason given'}"
    try:
        value = msgspec.json.decode(result.content)
    except msgspec.DecodeError:
        return f"{result.name}: {result.content or 'done, without a result'}"
    return f"{result.name}: {_rendered(value)}"


def _rendered(value: Any) -> str:
    """Returns JSON as text for people: scalars in one line, lists as rows."""
    if isinstance(value, list):
        return _rows("results", value)
    if not isinstance(value, dict):
        return _scalar(value)
    lists = {key: each for key, each in value.items() if isinstance(each, list)}
    # A field that counts the only list is left out, because the list is shown with its length.
    counts = {len(each) for each in lists.values()} if len(lists) == 1 else set()
    plain = {
        key: each
        for key, each in value.items()
        if key not in lists and not ("count" in key and isinstance(each, int) and each in counts)
    }
    parts = [_fields(plain)] if plain else []
    return "\n".join([*parts, *(_rows(key, each) for key, each in lists.items())]) or "done"


def _rows(name: str, rows: list[Any]) -> str:
    name = name.replace("_", " ")
    if not rows:
        return f"no {name}"
    lines = [f"- {_row(row)}" for row in rows[:MOST_ROWS]]
    if len(rows) > MOST_ROWS:
        lines.append(f"… and {len(rows) - MOST_ROWS} more")
    return f"{len(rows)} {singular(name) if len(rows) == 1 else name}\n" + "\n".join(lines)


def _row(row: Any) -> str:
    if not isinstance(row, dict):
        return _scalar(row)
    title = next((key for key in ("name", "title", "id") if key in row), None)
    if title is None:
        return _fields(row)
    rest = {key: each for key, each in row.items() if key != title}
    return f"{_scalar(row[title])} ({_fields(rest)})" if rest else _scalar(row[title])


def _fields(fields: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_scalar(value)}" for key, value in fields.items())


def _scalar(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _bounded(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}…"


def _usage(request: LlmRequest, text: str, calls: tuple[ToolCall, ...]) -> Usage:
    words = len(request.system.split()) + sum(_word_count(message) for message in request.messages)
    arguments = sum(len(msgspec.json.encode(call.arguments).split()) for call in calls)
    return Usage(words, len(text.split()) + arguments)


def _word_count(message: Message) -> int:
    if isinstance(message, Results):
        return sum(len(result.content.split()) for result in message.results)
    return len(message.text.split())

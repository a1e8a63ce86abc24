"""Answers that have a schema, over any provider: in the provider's own form, or as the arguments of a tool.

    request with ``output_schema``
      ├─ the provider's form can express it ──► sent in that form ── 400 ─┐
      └─ it cannot, or was refused before ──► a tool ``complete_task`` ◄──┘
                                              with this schema, forced ── 400 ──► not forced

Whichever it is, the text of the `LlmCall` is the answer's JSON, as the model wrote it. The tool is not seen
outside, neither in the answer's calls nor in its deltas. Every answer must call a tool then, and this one is
the only way to end; some models cannot be forced. Beside other calls it is dropped: they run first, and the
model is asked again. An answer in words is passed on as it is.

A 400 costs nothing, so that all requests are one call, even if its cost is reserved. It is remembered until
the process ends: for the model, with tools or without, if that never took this way; otherwise for this
schema. If the last way is refused as well, the 400 had another reason, and nothing is remembered.
"""

import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import chain, count
from typing import Any, Literal

import msgspec

from mesh.core.errors import LlmError
from mesh.core.events import Event, LlmCall, ToolCall, ToolCallDelta, Trace
from mesh.core.messages import ToolSpec
from mesh.llm.port import Llm, LlmRequest, TakesSchema
from mesh.llm.retry import BAD_REQUEST, FAILURE, kind_of
from mesh.llm.schema_forms import RESULT, as_arguments, has_object_root, with_resolved_root

Way = Literal["form", "forced", "offered"]
"""In the provider's own form; by the tool, which must be called; by the tool, which need not be."""
_INSTEAD: dict[Way, str] = {
    "form": "with a tool in place of the schema",
    "forced": "without the demand that it calls a tool",
}
ENDING_TOOL = "complete_task"
_OTHER_NAME = "give_answer"
_DESCRIPTION = "Ends your work with this answer. Call it when you are done; it is the only way to answer."
MOST_REMEMBERED = 256
MOST_TOOLS = 16

log = logging.getLogger(__name__)


class StructuredAnswers:
    """`Llm`: a provider whose answers may have a schema."""

    def __init__(self, llm: Llm) -> None:
        self._llm = llm
        self._refusals = _Refusals()
        self._tools: deque[_EndingTool] = deque(maxlen=MOST_TOOLS)

    def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        """See `mesh.llm.port.Llm`."""
        return self._llm.stream(request) if request.output_schema is None else self._answer(request)

    async def close(self) -> None:
        """See `mesh.llm.port.Llm`."""
        await self._llm.close()

    async def _answer(self, request: LlmRequest) -> AsyncIterator[Event]:
        started = time.monotonic()
        refused: list[Way] = []
        for way in self._ways(request):
            try:
                async for event in self._by(way, request):
                    if isinstance(event, LlmCall):
                        self._refusals.learn(request, refused, way)
                        yield _counted_from(started, event) if refused else event
                    else:
                        yield event
                return
            except LlmError as error:
                if error.status != BAD_REQUEST or way == "offered":
                    raise
                refused.append(way)
                follows, failed = f"{error}; asked again {_INSTEAD[way]}", kind_of(error.status)
            log.info(follows)
            yield Trace(message=follows, data={FAILURE: failed})

    def _ways(self, request: LlmRequest) -> Iterator[Way]:
        """The ways in which to ask: those that are possible and were not refused before."""
        has_form = isinstance(self._llm, TakesSchema) and self._llm.takes_schema(request)
        if has_form and not self._refusals.has("form", request):
            yield "form"
        if not self._refusals.has("forced", request):
            yield "forced"
        yield "offered"

    def _by(self, way: Way, request: LlmRequest) -> AsyncIterator[Event]:
        if way == "form":
            return self._llm.stream(request)
        return self._ending_tool(request).answer(self._llm, request, is_forced=way == "forced")

    def _ending_tool(self, request: LlmRequest) -> "_EndingTool":
        schema = request.output_schema or {}
        for known in self._tools:
            if known.beside is request.tools and known.schema is schema:
                return known
        self._tools.appendleft(_EndingTool(request.tools, schema))
        return self._tools[0]


def _counted_from(started: float, answer: LlmCall) -> LlmCall:
    return msgspec.structs.replace(answer, latency_ms=round((time.monotonic() - started) * 1000))


class _Refusals:
    """The ways that models refused, each with tools or without them."""

    def __init__(self) -> None:
        self._taken: deque[tuple[Way, str, bool]] = deque(maxlen=MOST_REMEMBERED)
        self._by_model: deque[tuple[Way, str, bool]] = deque(maxlen=MOST_REMEMBERED)
        self._by_schema: deque[tuple[tuple[Way, str, bool], bytes]] = deque(maxlen=MOST_REMEMBERED)

    def has(self, way: Way, request: LlmRequest) -> bool:
        """Whether this request would be refused again."""
        asked = _asked(way, request)
        if asked in self._by_model:
            return True
        return bool(self._by_schema) and (asked, _schema_of(request)) in self._by_schema

    def learn(self, request: LlmRequest, refused: Sequence[Way], taken: Way) -> None:
        """One way was taken, after others were refused."""
        if _asked(taken, request) not in self._taken:
            self._taken.append(_asked(taken, request))
        for way in refused:
            if self.has(way, request):  # another call was refused meanwhile
                continue
            if _asked(way, request) in self._taken:
                self._by_schema.append((_asked(way, request), _schema_of(request)))
            else:
                self._by_model.append(_asked(way, request))


def _asked(way: Way, request: LlmRequest) -> tuple[Way, str, bool]:
    return way, request.model, bool(request.tools)


def _schema_of(request: LlmRequest) -> bytes:
    return msgspec.json.encode(request.output_schema)


class _EndingTool:
    """The tool whose arguments are the answer, offered beside the tools of a node."""

    def __init__(self, tools: tuple[ToolSpec, ...], schema: dict[str, Any]) -> None:
        taken = {tool.name for tool in tools}
        numbered = (f"{_OTHER_NAME}_{number}" for number in count(2))
        self.name = next(n for n in chain((ENDING_TOOL, _OTHER_NAME), numbered) if n not in taken)
        # Kept, so that both are known by their identity: see `StructuredAnswers`.
        self.beside, self.schema = tools, schema
        # The very same object in each call: providers keep what they made of it.
        self.tools = (*tools, ToolSpec(self.name, _DESCRIPTION, as_arguments(schema)))
        self._is_wrapped = not has_object_root(with_resolved_root(schema))

    async def answer(self, llm: Llm, request: LlmRequest, *, is_forced: bool) -> AsyncIterator[Event]:
        """The answer of a request, asked for with this tool."""
        ends_with = self.name if is_forced else ""
        asked = msgspec.structs.replace(request, tools=self.tools, output_schema=None, ends_with=ends_with)
        hidden: set[str] = set()
        async for event in llm.stream(asked):
            if isinstance(event, LlmCall):
                yield self._answered(event, is_last=request.answer_only)
            elif isinstance(event, ToolCallDelta) and (event.name == self.name or event.call_id in hidden):
                hidden.add(event.call_id)
            else:
                yield event

    def _answered(self, answer: LlmCall, *, is_last: bool) -> LlmCall:
        """An answer without the calls of this tool. The first is its text, unless there are other calls that
        may still run."""
        ending = [call for call in answer.tool_calls if call.name == self.name]
        others = tuple(call for call in answer.tool_calls if call.name != self.name)
        if not ending:
            return answer
        if others and not is_last:
            return msgspec.structs.replace(answer, tool_calls=_signed(others, ending[0]))
        reason = "stop" if answer.finish_reason == "tool_calls" else answer.finish_reason
        text = self._text_of(ending[0])
        return msgspec.structs.replace(answer, text=text, tool_calls=(), finish_reason=reason)

    def _text_of(self, call: ToolCall) -> str:
        if call.malformed:
            return call.malformed
        is_result = self._is_wrapped and call.arguments.keys() == {RESULT}
        return msgspec.json.encode(call.arguments[RESULT] if is_result else call.arguments).decode()


def _signed(calls: tuple[ToolCall, ...], dropped: ToolCall) -> tuple[ToolCall, ...]:
    """Gemini signs the first call of an answer only, and refuses a history without the signature."""
    first, *rest = calls
    return (msgspec.structs.replace(first, opaque=first.opaque or dropped.opaque), *rest)

"""The tests of `mesh.testing.conformance`."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from typing import Any, ClassVar, cast

import pytest

from mesh.core.errors import LlmError
from mesh.core.events import Event, LlmCall, TextDelta, ToolCall, ToolCallDelta, Usage
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec, User
from mesh.llm import retry
from mesh.llm.models import bare_model, provider_of
from mesh.llm.parameters import Parameters
from mesh.llm.port import Llm, LlmRequest
from mesh.llm.retry import ATTEMPTS
from mesh.llm.routing import provider_for
from mesh.net.backoff import Backoff
from mesh.servers.llm_stub import LlmStub
from mesh.servers.llm_stub.script import Script
from mesh.servers.llm_stub.wire import WireFormat

KEY = "sk-test-0123456789abcdef"
WEATHER = ToolSpec(
    "get_weather",
    "The weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
DOTTED = ToolSpec("files.read", "Reads a file.", {"type": "object", "properties": {}})
CALLS = [
    {"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "id-1"},
    {"name": "get_weather", "arguments": {"city": "Århus", "days": [1, 2]}, "id": "id-2"},
]
_PARAMETERS: dict[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.75,
    "stop": ("END",),
    "seed": 7,
    "effort": "low",
}
_SCHEMA = {
    "type": "object",
    "properties": {"total": {"type": "integer"}},
    "required": ["total"],
    "additionalProperties": False,
}


def always(**answer: Any) -> dict[str, Any]:
    """A script with one answer to everything."""
    return {"rules": [{"answer": answer}]}


def first_then_text(times: int, **answer: Any) -> dict[str, Any]:
    """A script with an answer to the first calls, and a text for those after."""
    return {"rules": [{"answer": answer, "times": times}, {"answer": {"text": "Here I am"}}]}


async def events_of(llm: Llm, request: LlmRequest) -> list[Event]:
    """Returns everything that a provider yields."""
    return [event async for event in llm.stream(request)]


async def answer_of(llm: Llm, request: LlmRequest) -> LlmCall:
    """Returns the one `LlmCall` that must end the stream."""
    events = await events_of(llm, request)
    assert [type(event) for event in events].count(LlmCall) == 1
    assert isinstance(events[-1], LlmCall)
    return events[-1]


@pytest.mark.asyncio
@pytest.mark.parametrize("deltas", [False, True], ids=["plain", "stream"])
class ProviderConformance:
    """The tests, each of them with and without deltas.

    - ``model``: a model of the provider, with its prefix.
    - ``wire``, ``path``: the provider's format, and the end of the path at which the stub is to speak it.
    - ``base_path``: what follows the stub's address in the variable that names the provider's base URL.
    - ``streams``: whether the provider sends deltas. ``has_call_ids``: whether its format has ids of calls.
    """

    model: ClassVar[str]
    wire: ClassVar[WireFormat]
    path: ClassVar[str]
    base_path: ClassVar[str] = ""
    streams: ClassVar[bool] = True
    has_call_ids: ClassVar[bool] = True

    @pytest.fixture(autouse=True)
    def _quick_retries(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retry, "MODEL_CALLS", Backoff(first_s=0.01, longest_s=8.0))

    @asynccontextmanager
    async def provider(self, script: dict[str, Any] | None = None) -> AsyncIterator[tuple[LlmStub, Llm]]:
        """A stub with a script, and the provider in front of it."""
        async with LlmStub(script, formats={self.path: self.wire}) as stub, self.closing(stub.url) as llm:
            yield stub, llm

    @asynccontextmanager
    async def closing(self, url: str) -> AsyncIterator[Llm]:
        """The provider of a server."""
        declared = provider_of(self.model)
        variables = {declared.key: KEY, declared.base_url_variable: f"{url}{self.base_path}"}
        llm = provider_for(self.model, variables)
        try:
            yield llm
        finally:
            await llm.close()

    def request(self, deltas: bool, *messages: Message, **more: Any) -> LlmRequest:
        """A request; one user message when none is given."""
        said = messages or (User("Hello there"),)
        return LlmRequest(model=self.model, system="Be brief.", messages=said, deltas=deltas, **more)

    async def test_text_comes_with_its_usage(self, deltas: bool) -> None:
        usage = {"input": 12, "output": 5}
        async with self.provider(always(text="Hello, wörld! 🌍 \u2028 done", usage=usage)) as (_, llm):
            answer = await answer_of(llm, self.request(deltas))
        assert answer.text == "Hello, wörld! 🌍 \u2028 done"
        assert (answer.finish_reason, answer.tool_calls) == ("stop", ())
        assert answer.usage == Usage(12, 5)
        assert answer.model == self.model
        assert 0 <= answer.latency_ms < 5000

    async def test_deltas_join_to_the_answer_and_come_only_when_asked_for(self, deltas: bool) -> None:
        async with self.provider(always(text="one two three", tool_calls=CALLS)) as (_, llm):
            events = await events_of(llm, self.request(deltas, tools=(WEATHER,)))
        texts = [event.text for event in events if isinstance(event, TextDelta)]
        ready = [each.call for each in events if isinstance(each, ToolCallDelta) and each.phase == "ready"]
        answer = events[-1]
        assert isinstance(answer, LlmCall)
        if deltas and self.streams:
            assert "".join(texts) == answer.text == "one two three"
            assert tuple(ready) == answer.tool_calls
        else:
            assert events == [answer]

    async def test_the_conversation_and_the_tools_are_sent(self, deltas: bool) -> None:
        called = ToolCall("id-1", "get_weather", {"city": "Oslo"})
        failed = ToolCall("id-2", "get_weather", malformed="{oops")
        results = Results(
            (
                Result("id-1", "get_weather", "4 °C"),
                Result("id-2", "get_weather", "no such city", is_error=True),
            )
        )
        said = (User("Oslo?"), Assistant("Looking.", (called, failed)), results, Assistant(""), User("And?"))
        async with self.provider() as (stub, llm):
            answer = await answer_of(llm, self.request(deltas, *said, tools=(WEATHER,)))
        body = stub.calls[0].json
        assert answer.text == "echo: And?"
        for text in ("Be brief.", "Oslo?", "Looking.", "4 °C", "no such city", "And?", WEATHER.description):
            assert text in _text(body)
        assert WEATHER.input_schema in _flat(body)

    async def test_one_tool_call(self, deltas: bool) -> None:
        async with self.provider(always(tool_calls=CALLS[:1])) as (_, llm):
            answer = await answer_of(llm, self.request(deltas, tools=(WEATHER,)))
        (call,) = answer.tool_calls
        assert (call.name, call.arguments) == ("get_weather", {"city": "Oslo"})
        assert call.id == "id-1" if self.has_call_ids else call.id
        assert (answer.finish_reason, answer.text) == ("tool_calls", "")

    async def test_several_tool_calls_and_text_in_one_answer(self, deltas: bool) -> None:
        async with self.provider(always(text="Let me see.", tool_calls=CALLS)) as (_, llm):
            answer = await answer_of(llm, self.request(deltas, tools=(WEATHER,)))
        assert answer.text == "Let me see."
        assert [call.arguments for call in answer.tool_calls] == [call["arguments"] for call in CALLS]

    async def test_each_call_has_an_id_of_its_own(self, deltas: bool) -> None:
        nameless = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Rome")]
        async with self.provider(always(tool_calls=nameless)) as (_, llm):
            answer = await answer_of(llm, self.request(deltas, tools=(WEATHER,)))
        assert len({call.id for call in answer.tool_calls if call.id}) == 2

    async def test_a_tool_may_have_any_name(self, deltas: bool) -> None:
        async with self.provider() as (stub, llm):
            await answer_of(llm, self.request(deltas, tools=(DOTTED,)))
            call = stub.calls[0]
            (sent,) = self.wire.read(call.path, bytes(call.body)).tools
            stub.script = Script(always(tool_calls=[{"name": sent, "arguments": {}}]))
            answer = await answer_of(llm, self.request(deltas, tools=(DOTTED,)))
        assert answer.tool_calls[0].name == DOTTED.name

    async def test_an_answer_can_be_sent_back_as_it_came(self, deltas: bool) -> None:
        rules = [{"match": {"from": "user"}, "answer": {"tool_calls": CALLS}}, {"answer": {"text": "Cold"}}]
        async with self.provider({"rules": rules}) as (stub, llm):
            first = await answer_of(llm, self.request(deltas, tools=(WEATHER,)))
            results = Results(tuple(Result(call.id, call.name, "4 °C") for call in first.tool_calls))
            said = (User("Hello there"), Assistant(first.text, first.tool_calls), results)
            second = await answer_of(llm, self.request(deltas, *said, tools=(WEATHER,)))
        assert second.text == "Cold"
        assert "4 °C" in _text(stub.calls[1].json)

    async def test_an_answer_cut_at_the_token_limit_says_so(self, deltas: bool) -> None:
        async with self.provider(always(text="and then", finish="length")) as (stub, llm):
            answer = await answer_of(llm, self.request(deltas, max_tokens=17))
        assert (answer.finish_reason, answer.text) == ("length", "and then")
        assert 17 in _flat(stub.calls[0].json)

    async def test_every_parameter_that_is_declared_is_sent(self, deltas: bool) -> None:
        declared = provider_of(self.model).parameters
        async with self.provider() as (stub, llm):
            await answer_of(llm, self.request(deltas))
            for name in declared:
                parameters = Parameters(**{name: _PARAMETERS[name]})
                await answer_of(llm, self.request(deltas, parameters=parameters))
        plain, *others = [_text(call.json) for call in stub.calls]
        assert len({plain, *others}) == 1 + len(declared)

    async def test_an_answer_with_a_schema_is_json(self, deltas: bool) -> None:
        ends = {"tool_calls": [{"name": "complete_task", "arguments": {"total": 5}}]}
        rules = [
            {"match": {"tools": ["complete_task"]}, "answer": ends},
            {"answer": {"text": '{"total": 5}'}},
        ]
        async with self.provider({"rules": rules}) as (_, llm):
            answer = await answer_of(llm, self.request(deltas, output_schema=_SCHEMA))
        assert (json.loads(answer.text), answer.tool_calls) == ({"total": 5}, ())

    async def test_an_empty_answer_is_an_answer(self, deltas: bool) -> None:
        async with self.provider(always(empty=True)) as (stub, llm):
            answer = await answer_of(llm, self.request(deltas))
        assert (answer.text, answer.tool_calls, answer.finish_reason) == ("", (), "stop")
        assert len(stub.calls) == 1

    @pytest.mark.parametrize(
        "broken", ['{"city": Oslo', '{"n": NaN}', '{"n": 18446744073709551616}', '{"n": ' + "[" * 3000]
    )
    async def test_malformed_arguments_are_an_answer(self, deltas: bool, broken: str) -> None:
        called = [{"name": "get_weather", "malformed": broken}]
        async with self.provider(always(tool_calls=called)) as (_, llm):
            answer = await answer_of(llm, self.request(deltas, tools=(WEATHER,)))
        (call,) = answer.tool_calls
        assert (call.name, call.arguments) == ("get_weather", {})
        assert call.malformed
        assert answer.finish_reason == "tool_calls"

    async def test_a_call_of_a_tool_that_was_not_offered_comes_through(self, deltas: bool) -> None:
        async with self.provider(always(tool_calls=[{"name": "invented", "arguments": {}}])) as (_, llm):
            answer = await answer_of(llm, self.request(deltas, tools=(WEATHER,)))
        assert answer.tool_calls[0].name == "invented"

    async def test_a_429_is_tried_again_after_what_retry_after_says(self, deltas: bool) -> None:
        limited = first_then_text(1, status=429, headers={"retry-after": "0.2"}, error="slow down")
        async with self.provider(limited) as (stub, llm):
            started = time.monotonic()
            answer = await answer_of(llm, self.request(deltas))
            took = time.monotonic() - started
        assert answer.text == "Here I am"
        assert len(stub.calls) == 2
        assert took >= 0.2 and answer.latency_ms >= 200

    async def test_a_retry_after_in_the_past_means_now(self, deltas: bool) -> None:
        date = formatdate(time.time() - 3600, usegmt=True)
        async with self.provider(first_then_text(1, status=503, headers={"retry-after": date})) as (
            stub,
            llm,
        ):
            await answer_of(llm, self.request(deltas))
        assert len(stub.calls) == 2

    async def test_a_server_that_keeps_failing_ends_after_the_last_attempt(self, deltas: bool) -> None:
        async with self.provider(always(status=500, error="boom")) as (stub, llm):
            with pytest.raises(LlmError, match="boom") as caught:
                await answer_of(llm, self.request(deltas))
        assert len(stub.calls) == ATTEMPTS
        assert provider_of(self.model).name in str(caught.value)
        assert bare_model(self.model) in str(caught.value)

    @pytest.mark.parametrize("where", ["before", "middle"])
    async def test_a_lost_connection_is_tried_again(self, deltas: bool, where: str) -> None:
        lost = first_then_text(1, text="one two three four", broken=where)
        async with self.provider(lost) as (stub, llm):
            answer = await answer_of(llm, self.request(deltas))
        assert answer.text == "Here I am"
        assert len(stub.calls) == 2

    @pytest.mark.parametrize("where", ["before", "middle"])
    async def test_a_reserved_request_that_may_be_charged_is_not_repeated(
        self, deltas: bool, where: str
    ) -> None:
        lost = first_then_text(1, text="one two three four", broken=where)
        async with self.provider(lost) as (stub, llm):
            with pytest.raises(LlmError) as caught:
                await answer_of(llm, self.request(deltas, is_reserved=True))
        assert (caught.value.is_final, caught.value.was_free, len(stub.calls)) == (False, False, 1)

    async def test_a_reserved_request_that_was_refused_is_repeated_and_costs_nothing(
        self, deltas: bool
    ) -> None:
        async with self.provider(always(status=429, error="slow down")) as (stub, llm):
            with pytest.raises(LlmError) as caught:
                await answer_of(llm, self.request(deltas, is_reserved=True))
        assert (caught.value.was_free, len(stub.calls)) == (True, ATTEMPTS)

    async def test_a_reserved_request_that_reached_nobody_costs_nothing(self, deltas: bool) -> None:
        async with LlmStub() as stub:
            gone = stub.url
        async with self.closing(gone) as llm:
            with pytest.raises(LlmError) as caught:
                await answer_of(llm, self.request(deltas, is_reserved=True))
        assert caught.value.was_free

    async def test_a_server_that_hangs_ends_at_its_deadline(self, deltas: bool) -> None:
        async with self.provider(always(hang=True)) as (stub, llm):
            started = time.monotonic()
            with pytest.raises(LlmError):
                await answer_of(llm, self.request(deltas, timeout_s=0.3))
        # On a busy machine the time of an attempt may pass before the server has read its request.
        assert 1 < len(stub.calls) <= ATTEMPTS
        assert time.monotonic() - started < 10

    async def test_a_stream_that_trickles_ends_at_its_deadline(self, deltas: bool) -> None:
        trickle = always(text="a b c d e f g h i j", chunk_delay=0.05, delay=0.0 if deltas else 5.0)
        async with self.provider(trickle) as (_, llm):
            with pytest.raises(LlmError):
                await answer_of(llm, self.request(deltas, timeout_s=0.15))

    async def test_a_wrong_key_ends_at_once_and_is_not_shown(self, deltas: bool) -> None:
        refused = always(status=401, error=f"Incorrect API key provided: {KEY}.")
        async with self.provider(refused) as (stub, llm):
            with pytest.raises(LlmError, match="Incorrect API key") as caught:
                await answer_of(llm, self.request(deltas))
        assert len(stub.calls) == 1
        assert KEY not in str(caught.value) and KEY not in repr(caught.value.__context__)

    async def test_a_long_error_is_cut(self, deltas: bool) -> None:
        async with self.provider(always(status=400, error="x" * 100_000)) as (stub, llm):
            with pytest.raises(LlmError) as caught:
                await answer_of(llm, self.request(deltas))
        assert len(str(caught.value)) < 1000
        assert len(stub.calls) == 1

    async def test_many_calls_at_once_do_not_wait_for_each_other(self, deltas: bool) -> None:
        async with self.provider({"delay": 1.0}) as (_, llm):
            started = time.monotonic()
            asked = [answer_of(llm, self.request(deltas, User(f"number {n}"))) for n in range(150)]
            answers = await asyncio.gather(*asked)
            took = time.monotonic() - started
        assert [answer.text for answer in answers] == [f"echo: number {n}" for n in range(150)]
        assert took < 75  # one after the other, they would take 150 s

    async def test_a_reader_that_leaves_early_leaves_nothing_behind(self, deltas: bool) -> None:
        async with self.provider(always(text="one two three", chunk_delay=0.02)) as (_, llm):
            stream = cast(AsyncGenerator[Event, None], llm.stream(self.request(deltas)))
            await anext(stream)
            await stream.aclose()
            assert (await answer_of(llm, self.request(deltas))).text == "one two three"


def _text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, sort_keys=True)


def _flat(value: Any) -> list[Any]:
    """Returns every value inside a JSON value, and the value itself."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(each for item in inside for each in _flat(item))]

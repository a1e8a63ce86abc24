"""Every provider keeps the promises of the port: the real SDK against the scripted server."""

import asyncio
import time
from collections.abc import AsyncIterator
from email.utils import formatdate
from typing import Any

import pytest

from mesh.core.errors import LlmError
from mesh.core.events import LlmCall, TextDelta, ToolCall, ToolCallDelta, Usage
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec, User
from mesh.llm.models import provider_of
from mesh.llm.parameters import Parameters
from mesh.llm.port import LlmRequest
from mesh.llm.retry import ATTEMPTS
from mesh.servers.llm_stub import LlmStub
from tests.worlds.providers import (
    DOTTED,
    FORMATS,
    KEY,
    MODELS,
    WEATHER,
    answer_of,
    closing_provider,
    events_of,
    provider,
    request,
)

pytestmark = [
    pytest.mark.parametrize("wire", FORMATS),
    pytest.mark.parametrize("deltas", [False, True], ids=["plain", "stream"]),
]


def script(**answer: Any) -> dict[str, Any]:
    return {"rules": [{"answer": answer}]}


def first_then_text(times: int, **answer: Any) -> dict[str, Any]:
    """An answer for the first calls, text for those after."""
    return {"rules": [{"answer": answer, "times": times}, {"answer": {"text": "Here I am"}}]}


CALLS = [
    {"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "id-1"},
    {"name": "get_weather", "arguments": {"city": "Århus", "days": [1, 2]}, "id": "id-2"},
]


async def test_text_comes_with_its_usage(wire: str, deltas: bool) -> None:
    usage = {"input": 12, "output": 5, "cached": 4}
    async with provider(wire, script(text="Hello, wörld! 🌍 \u2028 done", usage=usage)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas))
    assert answer.text == "Hello, wörld! 🌍 \u2028 done"
    assert (answer.finish_reason, answer.tool_calls) == ("stop", ())
    assert answer.usage == Usage(12, 5, 4)
    assert 0 <= answer.latency_ms < 5000


async def test_deltas_join_to_the_answer_and_come_only_when_asked_for(wire: str, deltas: bool) -> None:
    async with provider(wire, script(text="one two three", tool_calls=CALLS)) as (_, llm):
        events = await events_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    texts = [event.text for event in events if isinstance(event, TextDelta)]
    ready = [event.call for event in events if isinstance(event, ToolCallDelta) and event.phase == "ready"]
    answer = events[-1]
    assert isinstance(answer, LlmCall)
    if deltas:
        assert len(texts) == 3 and "".join(texts) == answer.text
        assert tuple(ready) == answer.tool_calls
    else:
        assert events == [answer]


async def test_one_tool_call(wire: str, deltas: bool) -> None:
    async with provider(wire, script(tool_calls=CALLS[:1])) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    assert answer.tool_calls == (ToolCall("id-1", "get_weather", {"city": "Oslo"}),)
    assert (answer.finish_reason, answer.text) == ("tool_calls", "")


async def test_several_tool_calls_and_text_in_one_answer(wire: str, deltas: bool) -> None:
    async with provider(wire, script(text="Let me see.", tool_calls=CALLS)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    assert [call.id for call in answer.tool_calls] == ["id-1", "id-2"]
    assert answer.tool_calls[1].arguments == {"city": "Århus", "days": [1, 2]}
    assert answer.text == "Let me see."


async def test_calls_without_an_id_get_one_each(wire: str, deltas: bool) -> None:
    nameless = [{"name": "get_weather", "arguments": {"city": city}} for city in ("Oslo", "Rome")]
    async with provider(wire, script(tool_calls=nameless)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    assert len({call.id for call in answer.tool_calls}) == 2


async def test_a_tool_whose_name_the_provider_refuses_keeps_its_own_for_us(wire: str, deltas: bool) -> None:
    async with provider(wire, None) as (stub, llm):
        await answer_of(llm, request(wire, deltas=deltas, tools=(DOTTED,)))
        (sent,) = names_sent(wire, stub.calls[0].json)
        stub.script = type(stub.script)(script(tool_calls=[{"name": sent, "arguments": {}}]))
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(DOTTED,)))
    assert "." not in sent
    assert answer.tool_calls[0].name == DOTTED.name


def names_sent(wire: str, body: dict[str, Any]) -> list[str]:
    if wire == "openai":
        return [tool["function"]["name"] for tool in body["tools"]]
    if wire == "anthropic":
        return [tool["name"] for tool in body["tools"]]
    return [each["name"] for tool in body["tools"] for each in tool["functionDeclarations"]]


async def test_a_refusal_is_an_answer(wire: str, deltas: bool) -> None:
    async with provider(wire, script(refusal="I will not.")) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas))
    if wire == "gemini":
        # Gemini knows no refusal in words: it blocks the prompt.
        assert (answer.finish_reason, answer.text) == ("content_filter", "")
    else:
        assert (answer.finish_reason, answer.text) == ("refusal", "I will not.")


async def test_a_content_filter_is_an_answer(wire: str, deltas: bool) -> None:
    async with provider(wire, script(text="Well", content_filter=True)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas))
    assert answer.finish_reason == ("refusal" if wire == "anthropic" else "content_filter")


async def test_an_answer_cut_at_the_token_limit_says_so(wire: str, deltas: bool) -> None:
    async with provider(wire, script(text="and then", finish="length")) as (stub, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, max_tokens=17))
    assert (answer.finish_reason, answer.text) == ("length", "and then")
    assert 17 in flat(stub.calls[0].json)


PARAMETERS: dict[str, Any] = {
    "temperature": 0.0,
    "top_p": 0.9,
    "max_tokens": 17,
    "stop": ("END", "\n\n"),
    "seed": 7,
    "effort": "low",
}
SENT_PARAMETERS: dict[str, dict[str, dict[str, Any]]] = {
    "openai": {
        "temperature": {"temperature": 0.0},
        "top_p": {"top_p": 0.9},
        "max_tokens": {"max_tokens": 17},
        "stop": {"stop": ["END", "\n\n"]},
        "seed": {"seed": 7},
        "effort": {"reasoning_effort": "low"},
    },
    "anthropic": {
        "temperature": {"temperature": 0.0},
        "top_p": {"top_p": 0.9},
        "max_tokens": {"max_tokens": 17},
        "stop": {"stop_sequences": ["END", "\n\n"]},
        "effort": {"output_config": {"effort": "low"}},
    },
    "gemini": {
        "temperature": {"temperature": 0.0},
        "top_p": {"topP": 0.9},
        "max_tokens": {"maxOutputTokens": 17},
        "stop": {"stopSequences": ["END", "\n\n"]},
        "seed": {"seed": 7},
        "effort": {"thinkingConfig": {"thinkingLevel": "LOW"}},
    },
}


def asked_with(wire: str, deltas: bool, **parameters: Any) -> LlmRequest:
    max_tokens = parameters.pop("max_tokens", None)
    return request(wire, deltas=deltas, max_tokens=max_tokens, parameters=Parameters(**parameters))


def without_prompt(wire: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a request says besides the prompt: all but what one without parameters has."""
    if wire == "gemini":
        return dict(body.get("generationConfig", {}))
    plain = {"model", "messages", "system", "stream", "stream_options"}
    return {key: value for key, value in body.items() if key not in plain}


async def test_each_parameter_is_sent_in_the_providers_own_words_and_no_other(
    wire: str, deltas: bool
) -> None:
    taken = provider_of(MODELS[wire]).taken
    default = {"max_tokens": 4096} if wire == "anthropic" else {}
    async with provider(wire, None) as (stub, llm):
        await answer_of(llm, asked_with(wire, deltas))
        for key in taken:
            await answer_of(llm, asked_with(wire, deltas, **{key: PARAMETERS[key]}))
        await answer_of(llm, asked_with(wire, deltas, **{key: PARAMETERS[key] for key in taken}))
    plain, *single, together = [without_prompt(wire, call.json) for call in stub.calls]
    assert plain == default
    assert single == [{**default, **SENT_PARAMETERS[wire][key]} for key in taken]
    assert together == {name: value for key in taken for name, value in SENT_PARAMETERS[wire][key].items()}


async def test_an_empty_answer_is_an_answer(wire: str, deltas: bool) -> None:
    async with provider(wire, script(empty=True)) as (stub, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas))
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("", (), "stop")
    assert len(stub.calls) == 1


async def test_malformed_arguments_are_an_answer_that_keeps_the_raw_text(wire: str, deltas: bool) -> None:
    broken = [{"name": "get_weather", "malformed": '{"city": Oslo'}]
    async with provider(wire, script(tool_calls=broken)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    (call,) = answer.tool_calls
    assert (call.name, call.arguments) == ("get_weather", {})
    assert '{"city": Oslo' in call.malformed
    assert answer.finish_reason == "tool_calls"


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1, 10**100])
async def test_arguments_with_integers_beyond_64_bits_are_malformed(
    wire: str, deltas: bool, number: int
) -> None:
    long = [{"name": "get_weather", "arguments": {"city": "Oslo", "day": number}}]
    async with provider(wire, script(tool_calls=long)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    (call,) = answer.tool_calls
    assert (call.name, call.arguments) == ("get_weather", {})
    assert str(number) in call.malformed
    assert "beyond 64 bits" in call.malformed


@pytest.mark.parametrize("broken", ['{"n": NaN}', '{"n": 1e999}', '{"n": "\\ud800"}', '{"n": ' + "[" * 3000])
async def test_arguments_that_are_not_strictly_json_are_malformed(
    wire: str, deltas: bool, broken: str
) -> None:
    called = [{"name": "get_weather", "malformed": broken}]
    async with provider(wire, script(tool_calls=called)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    (call,) = answer.tool_calls
    assert call.arguments == {}
    assert call.malformed


async def test_a_call_of_a_tool_that_was_not_offered_comes_through(wire: str, deltas: bool) -> None:
    async with provider(wire, script(tool_calls=[{"name": "invented", "arguments": {}}])) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    assert answer.tool_calls[0].name == "invented"


CONVERSATION: tuple[Message, ...] = (
    User("Weather in Oslo and Rome?"),
    Assistant(
        "Looking.",
        (
            ToolCall("id-1", "get_weather", {"city": "Oslo"}, opaque="c2lnbmF0dXJl"),
            ToolCall("id-2", "get_weather", malformed="{oops"),
        ),
    ),
    Results(
        (Result("id-1", "get_weather", "4 °C"), Result("id-2", "get_weather", "no such city", is_error=True))
    ),
    Assistant(""),
    User("And?"),
)

SENT: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather in Oslo and Rome?"},
        {
            "role": "assistant",
            "content": "Looking.",
            "tool_calls": [
                {
                    "id": "id-1",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'},
                },
                {
                    "id": "id-2",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"malformed_arguments":"{oops"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "id-1", "content": "4 °C"},
        {"role": "tool", "tool_call_id": "id-2", "content": "Error: no such city"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "And?"},
    ],
    "anthropic": [
        {"role": "user", "content": "Weather in Oslo and Rome?"},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "id-1", "name": "get_weather", "input": {"city": "Oslo"}},
                {
                    "type": "tool_use",
                    "id": "id-2",
                    "name": "get_weather",
                    "input": {"malformed_arguments": "{oops"},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "id-1", "content": "4 °C"},
                {"type": "tool_result", "tool_use_id": "id-2", "content": "no such city", "is_error": True},
            ],
        },
        {"role": "user", "content": "And?"},
    ],
    "gemini": [
        {"role": "user", "parts": [{"text": "Weather in Oslo and Rome?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Looking."},
                {
                    "functionCall": {"name": "get_weather", "args": {"city": "Oslo"}, "id": "id-1"},
                    "thoughtSignature": "c2lnbmF0dXJl",
                },
                {
                    "functionCall": {
                        "name": "get_weather",
                        "args": {"malformed_arguments": "{oops"},
                        "id": "id-2",
                    }
                },
            ],
        },
        {
            "role": "user",
            "parts": [
                {
                    "functionResponse": {
                        "name": "get_weather",
                        "response": {"result": "4 °C"},
                        "id": "id-1",
                    }
                },
                {
                    "functionResponse": {
                        "name": "get_weather",
                        "response": {"error": "no such city"},
                        "id": "id-2",
                    }
                },
            ],
        },
        {"role": "user", "parts": [{"text": "And?"}]},
    ],
}


async def test_calls_and_results_go_back_in_the_providers_own_format(wire: str, deltas: bool) -> None:
    async with provider(wire, None) as (stub, llm):
        await answer_of(llm, request(wire, *CONVERSATION, deltas=deltas, tools=(WEATHER,)))
    body = stub.calls[0].json
    assert body["contents" if wire == "gemini" else "messages"] == SENT[wire]
    assert "Be brief." in flat(body)
    assert WEATHER.input_schema in flat(body)


async def test_an_answer_can_be_sent_back_as_it_came(wire: str, deltas: bool) -> None:
    calls = [{"name": "get_weather", "arguments": {"city": "Oslo"}, "signature": "c2ln"}]
    rules = [{"match": {"from": "user"}, "answer": {"tool_calls": calls}}, {"answer": {"text": "Cold"}}]
    async with provider(wire, {"rules": rules}) as (stub, llm):
        first = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
        results = Results(tuple(Result(call.id, call.name, "4 °C") for call in first.tool_calls))
        history = (User("Hello there"), Assistant(first.text, first.tool_calls), results)
        second = await answer_of(llm, request(wire, *history, deltas=deltas, tools=(WEATHER,)))
    assert second.text == "Cold"
    assert "4 °C" in flat(stub.calls[1].json)
    if wire == "gemini":
        assert "c2ln" in flat(stub.calls[1].json)
        assert "id" not in stub.calls[1].json["contents"][1]["parts"][0]["functionCall"]


def flat(value: Any) -> list[Any]:
    """Every value inside a JSON value, and the value itself."""
    inside = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(each for item in inside for each in flat(item))]


async def test_a_429_is_tried_again_after_what_retry_after_says(wire: str, deltas: bool) -> None:
    limited = first_then_text(1, status=429, headers={"retry-after": "0.2"}, error="slow down")
    async with provider(wire, limited) as (stub, llm):
        started = time.monotonic()
        answer = await answer_of(llm, request(wire, deltas=deltas))
        took = time.monotonic() - started
    assert answer.text == "Here I am"
    assert len(stub.calls) == 2
    assert took >= 0.2 and answer.latency_ms >= 200


async def test_a_retry_after_in_the_past_means_now(wire: str, deltas: bool) -> None:
    date = formatdate(time.time() - 3600, usegmt=True)
    async with provider(wire, first_then_text(1, status=503, headers={"retry-after": date})) as (stub, llm):
        await answer_of(llm, request(wire, deltas=deltas))
    assert len(stub.calls) == 2


async def test_a_server_that_keeps_failing_ends_after_the_last_attempt(wire: str, deltas: bool) -> None:
    async with provider(wire, script(status=500, error="boom")) as (stub, llm):
        with pytest.raises(
            LlmError, match=rf"{wire} model .*-test: HTTP 500: .*boom.*tried {ATTEMPTS} times"
        ):
            await answer_of(llm, request(wire, deltas=deltas))
    assert len(stub.calls) == ATTEMPTS


@pytest.mark.parametrize("where", ["before", "middle"])
async def test_a_lost_connection_is_tried_again(wire: str, deltas: bool, where: str) -> None:
    async with provider(wire, first_then_text(1, text="one two three four", broken=where)) as (stub, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas))
    assert answer.text == "Here I am"
    assert len(stub.calls) == 2


@pytest.mark.parametrize("where", ["before", "middle"])
async def test_a_reserved_request_that_may_be_charged_is_not_repeated(
    wire: str, deltas: bool, where: str
) -> None:
    async with provider(wire, first_then_text(1, text="one two three four", broken=where)) as (stub, llm):
        with pytest.raises(LlmError) as caught:
            await answer_of(llm, request(wire, deltas=deltas, is_reserved=True))
    assert (caught.value.is_final, caught.value.was_free, len(stub.calls)) == (False, False, 1)


async def test_a_reserved_request_that_was_refused_is_repeated_and_costs_nothing(
    wire: str, deltas: bool
) -> None:
    async with provider(wire, script(status=429, error="slow down")) as (stub, llm):
        with pytest.raises(LlmError) as caught:
            await answer_of(llm, request(wire, deltas=deltas, is_reserved=True))
    assert (caught.value.was_free, len(stub.calls)) == (True, ATTEMPTS)


async def test_a_reserved_request_that_reached_nobody_costs_nothing(wire: str, deltas: bool) -> None:
    async with LlmStub(None) as stub:
        gone = stub.url
    async with closing_provider(wire, gone) as llm:
        with pytest.raises(LlmError, match="connection lost") as caught:
            await answer_of(llm, request(wire, deltas=deltas, is_reserved=True))
    assert caught.value.was_free


NO_CALLS: dict[str, dict[str, Any]] = {
    "anthropic": {"tool_choice": {"type": "none"}},
    "openai": {"tool_choice": "none"},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "NONE"}}},
}


async def test_a_last_answer_keeps_the_tools_and_forbids_to_call_them(wire: str, deltas: bool) -> None:
    async with provider(wire, None) as (stub, llm):
        await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,), answer_only=True))
        await answer_of(llm, request(wire, deltas=deltas, answer_only=True))
    first, second = (call.json for call in stub.calls)
    assert {**first, **NO_CALLS[wire]} == first and first["tools"]
    assert not NO_CALLS[wire].keys() & second.keys()


async def test_a_server_that_hangs_ends_at_its_deadline(wire: str, deltas: bool) -> None:
    async with provider(wire, script(hang=True)) as (stub, llm):
        started = time.monotonic()
        with pytest.raises(LlmError, match="no answer in time"):
            await answer_of(llm, request(wire, deltas=deltas, timeout_s=0.1))
    assert len(stub.calls) == ATTEMPTS
    assert time.monotonic() - started < 5


async def test_a_stream_that_trickles_ends_at_its_deadline(wire: str, deltas: bool) -> None:
    trickle = script(text="a b c d e f g h i j", chunk_delay=0.05, delay=0.0 if deltas else 5.0)
    async with provider(wire, trickle) as (_, llm):
        with pytest.raises(LlmError, match="no answer in time"):
            await answer_of(llm, request(wire, deltas=deltas, timeout_s=0.15))


async def test_a_wrong_key_ends_at_once_and_is_not_shown(wire: str, deltas: bool) -> None:
    async with provider(wire, script(status=401, error=f"Incorrect API key provided: {KEY}.")) as (stub, llm):
        with pytest.raises(LlmError, match=r"HTTP 401: .*Incorrect API key") as caught:
            await answer_of(llm, request(wire, deltas=deltas))
    assert len(stub.calls) == 1
    assert KEY not in str(caught.value) and KEY not in repr(caught.value.__context__)


async def test_a_long_error_is_cut(wire: str, deltas: bool) -> None:
    async with provider(wire, script(status=400, error="x" * 100_000)) as (stub, llm):
        with pytest.raises(LlmError) as caught:
            await answer_of(llm, request(wire, deltas=deltas))
    assert len(str(caught.value)) < 1000
    assert len(stub.calls) == 1


async def test_many_calls_at_once_share_one_client(wire: str, deltas: bool) -> None:
    async with provider(wire, {"delay": 0.3}) as (_, llm):
        started = time.monotonic()
        asked = [answer_of(llm, request(wire, User(f"number {n}"), deltas=deltas)) for n in range(150)]
        answers = await asyncio.gather(*asked)
        took = time.monotonic() - started
    assert [answer.text for answer in answers] == [f"echo: number {n}" for n in range(150)]
    assert took < 10, "they waited for each other"


async def test_a_reader_that_leaves_early_leaves_nothing_behind(wire: str, deltas: bool) -> None:
    async with provider(wire, script(text="one two three", chunk_delay=0.02)) as (_, llm):
        stream: AsyncIterator[Any] = llm.stream(request(wire, deltas=deltas))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert (await answer_of(llm, request(wire, deltas=deltas))).text == "one two three"


async def test_tools_are_encoded_once(wire: str, deltas: bool) -> None:
    again = ToolSpec(WEATHER.name, WEATHER.description, dict(WEATHER.input_schema))
    async with provider(wire, None) as (stub, llm):
        for tools in ((WEATHER,), (again,), (DOTTED,)):
            await answer_of(llm, request(wire, deltas=deltas, tools=tools))
    first, second, third = [call.json["tools"] for call in stub.calls]
    assert first == second != third

"""What each of the three wire formats says, and how. `tests/llm/test_promises.py` has the rest."""

from typing import Any

import pytest

from mesh.core.events import ToolCall, Usage
from mesh.core.messages import Assistant, Message, Result, Results, ToolSpec, User
from mesh.llm.models import provider_of
from mesh.llm.parameters import Parameters
from mesh.llm.port import LlmRequest
from tests.worlds.providers import (
    DOTTED,
    FORMATS,
    MODELS,
    WEATHER,
    answer_of,
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


async def test_tokens_that_were_read_from_the_cache_are_told(wire: str, deltas: bool) -> None:
    async with provider(wire, script(text="Hi", usage={"input": 12, "output": 5, "cached": 4})) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas))
    assert answer.usage == Usage(12, 5, 4)


async def test_calls_keep_the_ids_of_the_provider(wire: str, deltas: bool) -> None:
    async with provider(wire, script(tool_calls=CALLS)) as (_, llm):
        answer = await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    assert [call.id for call in answer.tool_calls] == ["id-1", "id-2"]


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


async def test_tools_are_encoded_once(wire: str, deltas: bool) -> None:
    again = ToolSpec(WEATHER.name, WEATHER.description, dict(WEATHER.input_schema))
    async with provider(wire, None) as (stub, llm):
        for tools in ((WEATHER,), (again,), (DOTTED,)):
            await answer_of(llm, request(wire, deltas=deltas, tools=tools))
    first, second, third = [call.json["tools"] for call in stub.calls]
    assert first == second != third

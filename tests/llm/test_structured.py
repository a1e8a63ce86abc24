"""Answers that have a schema, over every wire format: the real SDKs against the scripted server."""

import asyncio
import json
from typing import Any

import pytest

from mesh.core.errors import LlmError
from mesh.core.events import LlmCall, TextDelta, ToolCall, ToolCallDelta, Trace
from mesh.core.messages import Assistant, ToolSpec, User
from mesh.llm.answer_check import checked
from mesh.llm.port import Llm
from tests.llm.test_conformance import names_sent
from tests.worlds.providers import FORMATS, WEATHER, answer_of, events_of, provider, request

pytestmark = [
    pytest.mark.parametrize("wire", FORMATS),
    pytest.mark.parametrize("deltas", [False, True], ids=["plain", "stream"]),
]

ORDER = {
    "type": "object",
    "title": "An order",
    "properties": {"total": {"type": "integer", "minimum": 1}, "note": {"type": ["string", "null"]}},
    "required": ["total"],
}
NODE = {
    "$ref": "#/$defs/Node",
    "$defs": {
        "Node": {
            "type": "object",
            "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []}},
        }
    },
}
NUMBERS = {"type": "array", "items": {"type": "integer"}}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
SENT: dict[str, Any] = {
    "openai": {
        "type": "json_schema",
        "json_schema": {
            "name": "An_order",
            "strict": True,
            "schema": {
                **ORDER,
                "required": ["total", "note"],
                "additionalProperties": False,
            },
        },
    },
    "anthropic": {
        "type": "json_schema",
        "schema": {
            **ORDER,
            "properties": {
                "total": {"type": "integer", "description": "(minimum: 1)"},
                "note": {"type": ["string", "null"]},
            },
            "additionalProperties": False,
        },
    },
    "gemini": ORDER,
}


def native(wire: str, body: dict[str, Any]) -> Any:
    """The schema of a request in the provider's own form; None if it has none."""
    if wire == "openai":
        return body.get("response_format")
    if wire == "anthropic":
        return body.get("output_config", {}).get("format")
    generation = body.get("generationConfig", {})
    assert ("responseJsonSchema" in generation) == (generation.get("responseMimeType") == "application/json")
    return generation.get("responseJsonSchema")


def refusing(*answers: dict[str, Any]) -> dict[str, Any]:
    """A script of a model that refuses every schema in its own form."""
    refusal = {"match": {"output_schema": True}, "answer": {"status": 400, "error": "no schemas here"}}
    return {"rules": [refusal, *({"answer": answer} for answer in answers)]}


def ending(name: str = "complete_task", **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments, "id": "end-1"}


async def ask(llm: Llm, wire: str, deltas: bool, schema: Any = ORDER, **more: Any) -> LlmCall:
    return await answer_of(llm, request(wire, deltas=deltas, output_schema=schema, **more))


async def test_a_schema_goes_out_in_the_providers_own_form(wire: str, deltas: bool) -> None:
    async with provider(wire, None) as (stub, llm):
        answer = await ask(llm, wire, deltas, tools=(WEATHER,))
    body = stub.calls[0].json
    assert native(wire, body) == SENT[wire]
    assert names_sent(wire, body) == ["get_weather"]
    assert json.loads(answer.text)["total"] in (0, 1)
    assert (answer.finish_reason, answer.tool_calls) == ("stop", ())


async def test_a_schema_does_not_displace_the_effort(wire: str, deltas: bool) -> None:
    if wire != "anthropic":
        return  # it is the only one that has both in one object
    from mesh.llm.parameters import Parameters

    async with provider(wire, None) as (stub, llm):
        await ask(llm, wire, deltas, parameters=Parameters(effort="low"))
    assert stub.calls[0].json["output_config"] == {"effort": "low", "format": SENT[wire]}


async def test_a_400_for_the_schema_is_answered_by_a_tool_within_the_same_call(
    wire: str, deltas: bool
) -> None:
    script = refusing({"text": "Here you are.", "tool_calls": [ending(total=3)]})
    async with provider(wire, script) as (stub, llm):
        events = await events_of(
            llm, request(wire, deltas=deltas, output_schema=ORDER, tools=(WEATHER,), is_reserved=True)
        )
    answer = events[-1]
    assert isinstance(answer, LlmCall)
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ('{"total":3}', (), "stop")
    assert [call.status for call in stub.calls] == [400, 200]
    assert native(wire, stub.calls[1].json) is None
    assert names_sent(wire, stub.calls[1].json) == ["get_weather", "complete_task"]
    assert ORDER in schemas_sent(wire, stub.calls[1].json)
    assert not any(isinstance(event, ToolCallDelta) for event in events)
    (trace,) = [event.message for event in events if isinstance(event, Trace)]
    assert "no schemas here" in trace and "asked again" in trace
    if deltas:
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Here you are."


def schemas_sent(wire: str, body: dict[str, Any]) -> list[Any]:
    if wire == "openai":
        return [tool["function"]["parameters"] for tool in body["tools"]]
    if wire == "anthropic":
        return [tool["input_schema"] for tool in body["tools"]]
    return [each["parametersJsonSchema"] for tool in body["tools"] for each in tool["functionDeclarations"]]


async def test_a_400_is_remembered_for_the_model_with_tools_or_without(wire: str, deltas: bool) -> None:
    async with provider(wire, refusing({"tool_calls": [ending(total=3)]})) as (stub, llm):
        for schema in (ORDER, ORDER, {**ORDER, "title": "Another"}):
            assert (await ask(llm, wire, deltas, schema, tools=(WEATHER,))).text == '{"total":3}'
        await ask(llm, wire, deltas)
    assert [call.status for call in stub.calls] == [400, 200, 200, 200, 400, 200]


async def test_a_model_that_takes_schemas_is_asked_again_with_another_one(wire: str, deltas: bool) -> None:
    too_large = {**ORDER, "title": "Too large"}
    script = {
        "rules": [
            {"match": {"call": 2}, "answer": {"status": 400}},
            {"match": {"tools": ["complete_task"]}, "answer": {"tool_calls": [ending(total=3)]}},
            {"answer": {"text": '{"total": 4}'}},
        ]
    }
    async with provider(wire, script) as (stub, llm):
        texts = [(await ask(llm, wire, deltas, each)).text for each in (ORDER, too_large, too_large, ORDER)]
    assert texts == ['{"total": 4}', '{"total":3}', '{"total":3}', '{"total": 4}']
    assert [call.status for call in stub.calls] == [200, 400, 200, 200, 200]


async def test_a_400_that_has_another_reason_is_an_error_and_not_remembered(wire: str, deltas: bool) -> None:
    script = {"rules": [{"answer": {"status": 400, "error": "too long"}, "times": 3}]}
    async with provider(wire, script) as (stub, llm):
        with pytest.raises(LlmError, match="HTTP 400: too long") as caught:
            await ask(llm, wire, deltas)
        await ask(llm, wire, deltas)
    assert caught.value.was_free
    assert native(wire, stub.calls[3].json) == SENT[wire]


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_another_refusal_is_not_about_the_schema(wire: str, deltas: bool, status: int) -> None:
    async with provider(wire, {"rules": [{"answer": {"status": status}}]}) as (stub, llm):
        with pytest.raises(LlmError):
            await ask(llm, wire, deltas)
    assert len(stub.calls) == 1


MUST_CALL: dict[str, dict[str, Any]] = {
    "openai": {"tool_choice": "required"},
    "anthropic": {"tool_choice": {"type": "any"}},
    "gemini": {"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}},
}
MUST_END: dict[str, dict[str, Any]] = {
    "openai": {"tool_choice": {"type": "function", "function": {"name": "complete_task"}}},
    "anthropic": {"tool_choice": {"type": "tool", "name": "complete_task"}},
    "gemini": {
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["complete_task"]}}
    },
}


async def test_the_tool_is_the_only_way_to_end_and_a_last_answer_must_call_it(
    wire: str, deltas: bool
) -> None:
    async with provider(wire, refusing({"tool_calls": [ending(total=3)]})) as (stub, llm):
        await ask(llm, wire, deltas, tools=(WEATHER,))
        await ask(llm, wire, deltas, tools=(WEATHER,), answer_only=True)
    _, first, second = (call.json for call in stub.calls)
    assert {**first, **MUST_CALL[wire]} == first
    assert {**second, **MUST_END[wire]} == second


async def test_other_calls_run_first_and_the_answer_beside_them_is_dropped(wire: str, deltas: bool) -> None:
    weather = {"name": "get_weather", "arguments": {"city": "Oslo"}, "id": "id-1"}
    first = {"tool_calls": [{**ending(total=3), "signature": "c2ln"}, weather, ending(total=4)]}
    async with provider(wire, refusing({"text": "So.", **first})) as (_, llm):
        events = await events_of(llm, request(wire, deltas=deltas, output_schema=ORDER, tools=(WEATHER,)))
    answer = events[-1]
    assert isinstance(answer, LlmCall)
    signature = "c2ln" if wire == "gemini" else ""
    assert answer.tool_calls == (ToolCall("id-1", "get_weather", {"city": "Oslo"}, opaque=signature),)
    assert (answer.text, answer.finish_reason) == ("So.", "tool_calls")
    shown = {event.name for event in events if isinstance(event, ToolCallDelta) and event.name}
    assert shown == ({"get_weather"} if deltas else set())


async def test_a_node_that_has_complete_task_gets_a_tool_of_another_name(wire: str, deltas: bool) -> None:
    own = ToolSpec("complete_task", "Ends the agent.", {"type": "object", "properties": {}})
    calls = [ending("give_answer", total=3)]
    async with provider(wire, refusing({"tool_calls": calls})) as (_, llm):
        answer = await ask(llm, wire, deltas, tools=(own,))
    assert (answer.text, answer.tool_calls) == ('{"total":3}', ())


@pytest.mark.parametrize("schema", [NUMBERS, {**NUMBERS, "$schema": "x"}], ids=["plain", "declared"])
async def test_an_answer_that_is_no_object_is_the_result_of_the_tool(
    wire: str, deltas: bool, schema: dict[str, Any]
) -> None:
    script = refusing({"tool_calls": [ending(result=[1, 2])]})
    async with provider(wire, script) as (stub, llm):
        answer = await ask(llm, wire, deltas, schema)
    assert answer.text == "[1,2]"
    # Gemini alone takes such a schema in its own form.
    assert [call.status for call in stub.calls] == ([400, 200] if wire == "gemini" else [200])
    assert schemas_sent(wire, stub.calls[-1].json)[-1]["properties"] == {"result": NUMBERS}


async def test_what_a_form_cannot_express_goes_another_way_at_once(wire: str, deltas: bool) -> None:
    async with provider(wire, None) as (stub, llm):
        for schema in (LABELS, NODE):
            assert isinstance(json.loads((await ask(llm, wire, deltas, schema)).text), dict)
    labels, node = (native(wire, call.json) for call in stub.calls)
    if wire == "openai":
        assert (labels["json_schema"]["strict"], labels["json_schema"]["schema"]) == (False, LABELS)
        assert node["json_schema"]["strict"] is True
    elif wire == "anthropic":
        assert (labels, node) == (None, None)
    else:
        assert labels == LABELS and node["type"] == "object"


@pytest.mark.parametrize(
    "text", ["I would say 3.", '{"total": ', '{"total": "three"}', "", "[[[[", '```json\n{"total": 3}\n```']
)
async def test_what_the_model_wrote_is_the_answer_even_if_it_does_not_fit(
    wire: str, deltas: bool, text: str
) -> None:
    async with provider(wire, {"rules": [{"answer": {"text": text, "empty": not text}}]}) as (_, llm):
        assert (await ask(llm, wire, deltas)).text == text
    async with provider(wire, refusing({"text": text, "empty": not text})) as (_, llm):
        assert (await ask(llm, wire, deltas)).text == text


async def test_broken_arguments_of_the_tool_are_the_text(wire: str, deltas: bool) -> None:
    call = {"name": "complete_task", "malformed": '{"total": oops'}
    async with provider(wire, refusing({"tool_calls": [call], "finish": "length"})) as (_, llm):
        answer = await ask(llm, wire, deltas)
    assert '{"total": oops' in answer.text and answer.tool_calls == ()
    assert answer.finish_reason == ("stop" if wire == "gemini" else "length")


async def test_two_members_of_one_name_in_the_arguments_of_the_tool_do_not_fit(
    wire: str, deltas: bool
) -> None:
    call = {"name": "complete_task", "malformed": '{"total": 3, "total": 4}'}
    async with provider(wire, refusing({"tool_calls": [call]})) as (_, llm):
        answer = await ask(llm, wire, deltas)
    assert '"total": 3, "total": 4' in answer.text
    assert checked(ORDER, answer.text).problem


async def test_an_objection_goes_back_as_the_next_message(wire: str, deltas: bool) -> None:
    history = (User("How much?"), Assistant('{"total":"three"}'), User("total: is not an integer"))
    script = refusing({"tool_calls": [ending(total=3)]})
    async with provider(wire, script) as (stub, llm):
        answer = await answer_of(llm, request(wire, *history, deltas=deltas, output_schema=ORDER))
    assert answer.text == '{"total":3}'
    said = json.dumps(stub.calls[1].json)
    assert "three" in said and "is not an integer" in said


async def test_a_request_without_a_schema_is_as_it_was(wire: str, deltas: bool) -> None:
    async with provider(wire, None) as (stub, llm):
        await answer_of(llm, request(wire, deltas=deltas, tools=(WEATHER,)))
    assert native(wire, stub.calls[0].json) is None
    assert not {"tool_choice", "toolConfig"} & stub.calls[0].json.keys()


async def test_the_last_answer_is_taken_even_beside_other_calls(wire: str, deltas: bool) -> None:
    weather = {"name": "get_weather", "arguments": {"city": "Oslo"}}
    async with provider(wire, refusing({"tool_calls": [weather, ending(total=3)]})) as (_, llm):
        answer = await ask(llm, wire, deltas, tools=(WEATHER,), answer_only=True)
    assert (answer.text, answer.tool_calls) == ('{"total":3}', ())


async def test_the_tool_has_a_name_that_no_other_has(wire: str, deltas: bool) -> None:
    taken = [ToolSpec(name, "", {"type": "object"}) for name in ("complete_task", "give_answer")]
    async with provider(wire, refusing({"tool_calls": [ending("give_answer_2", total=3)]})) as (stub, llm):
        answer = await ask(llm, wire, deltas, tools=tuple(taken))
    assert answer.text == '{"total":3}'
    assert names_sent(wire, stub.calls[-1].json) == ["complete_task", "give_answer", "give_answer_2"]


async def test_refusals_of_many_calls_at_once_are_one(wire: str, deltas: bool) -> None:
    async with provider(wire, refusing({"tool_calls": [ending(total=3)], "delay": 0.05})) as (stub, llm):
        answers = await asyncio.gather(*(ask(llm, wire, deltas) for _ in range(300)))
        await ask(llm, wire, deltas)
    assert {answer.text for answer in answers} == {'{"total":3}'}
    assert stub.calls[-1].status == 200


async def test_a_huge_answer_comes_through(wire: str, deltas: bool) -> None:
    names = ["x" * 90_000 for _ in range(10)]
    async with provider(wire, refusing({"tool_calls": [ending(names=names)]})) as (_, llm):
        answer = await ask(llm, wire, deltas)
    assert json.loads(answer.text) == {"names": names}
    assert checked(ORDER, answer.text).problem.endswith('"total" is a required property')


async def test_a_model_that_cannot_be_forced_to_call_a_tool_is_offered_it(wire: str, deltas: bool) -> None:
    ends = {"tool_calls": [ending(total=3)]}
    rules = [
        {"match": {"output_schema": True}, "answer": {"status": 400}},
        {"match": {"forced": True}, "answer": {"status": 400, "error": "no tool_choice here"}},
        {"answer": ends},
    ]
    async with provider(wire, {"rules": rules}) as (stub, llm):
        events = await events_of(llm, request(wire, deltas=deltas, output_schema=ORDER))
        again = await ask(llm, wire, deltas)
    assert [call.status for call in stub.calls] == [400, 400, 200, 200]
    assert again.text == '{"total":3}' == events[-1].text  # type: ignore[attr-defined]
    assert [e.message.rpartition("; ")[2] for e in events if isinstance(e, Trace)] == [
        "asked again with a tool in place of the schema",
        "asked again without the demand that it calls a tool",
    ]
    assert not {"tool_choice", "toolConfig"} & stub.calls[-1].json.keys()

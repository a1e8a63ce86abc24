"""Answers with a schema in a whole mesh: the real SDKs, and a server that speaks their formats."""

from typing import Any

import pytest

from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, LlmCall, Validation
from mesh.llm.models import bare_model
from tests.worlds.mesh import WorldMesh
from tests.worlds.providers import FORMATS, MODELS, provider
from tests.worlds.trees import config, llm

pytestmark = pytest.mark.parametrize("wire", FORMATS)

ORDER = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 1}, "note": {"type": "string", "maxLength": 5}},
    "required": ["total", "note"],
}
REFUSES = {"match": {"output_schema": True}, "answer": {"status": 400, "error": "no schemas here"}}
GOOD = {"total": 7, "note": "paid"}


def ends_with(arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"answer": {"tool_calls": [{"name": "complete_task", "arguments": arguments}], **more}}


async def lived(
    wire: str, rules: list[dict[str, Any]], **options: Any
) -> tuple[dict[str, Any], list[AnyEvent], list[int]]:
    """One turn of an agent whose answer has a schema: the response, the journal, the HTTP statuses."""
    more = {key: options.pop(key) for key in ("budget",) if key in options}
    more["llm"] = {"model": MODELS[wire], "prices": {bare_model(MODELS[wire]): {"input": 1.0, "output": 2.0}}}
    tree = llm("main", output_schema=ORDER, **options)
    async with (
        provider(wire, {"rules": rules}) as (stub, model),
        WorldMesh(model, config=config(tree, **more)) as world,
    ):
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    return body, events, [call.status for call in stub.calls]


async def test_the_form_of_the_provider_gives_the_output(wire: str) -> None:
    body, _, statuses = await lived(wire, [{"answer": {"text": '{"total": 7, "note": "paid"}'}}])
    assert (body["result"]["output"], statuses) == (GOOD, [200])


async def test_a_tool_gives_the_output_where_the_form_is_refused_and_other_tools_run_first(wire: str) -> None:
    look = {"name": "look", "arguments": {}, "id": "look-1"}
    both = {"tool_calls": [look, {"name": "complete_task", "arguments": GOOD}], "text": "I look."}
    rules = [REFUSES, {"match": {"from": "user"}, "answer": both}, ends_with(GOOD)]
    body, events, statuses = await lived(wire, rules)
    assert (body["result"]["output"], statuses) == (GOOD, [400, 200, 200])
    first, second = [event for event in events if isinstance(event, LlmCall)]
    assert [call.name for call in first.tool_calls] == ["look"]
    assert (second.text, second.tool_calls) == ('{"total":7,"note":"paid"}', ())


async def test_a_refused_form_costs_nothing_and_is_one_call_of_a_budget(wire: str) -> None:
    usage = {"input": 100, "output": 10}
    rules = [REFUSES, ends_with(GOOD, usage=usage)]
    body, events, statuses = await lived(wire, rules, budget={"max_cost_usd": 1.0, "max_llm_calls": 1})
    assert (body["result"]["output"], statuses) == (GOOD, [400, 200])
    use = fold(events).budget_use.use("0")
    assert (use.spent.calls, use.spent.nusd, use.held.nusd) == (1, 100 * 1000 + 10 * 2000, 0)


async def test_the_last_answer_of_a_budget_has_the_schema_too(wire: str) -> None:
    look = {"tool_calls": [{"name": "look", "arguments": {}}]}
    rules = [REFUSES, {"match": {"from": "user"}, "answer": look}, ends_with(GOOD)]
    body, _, _ = await lived(wire, rules, budget={"max_llm_calls": 2})
    assert body["result"]["output"] == GOOD


WRONG = {
    "prose": ("I would say seven.", "it is not JSON"),
    "a broken text": ('{"total": 7, "note": ', "it is not JSON"),
    "the wrong shape": ('{"total": "seven", "note": "paid"}', 'total: "seven" is not of type "integer"'),
    "what forms leave out": ('{"total": 7, "note": "not paid"}', 'note: "not paid" is longer than 5'),
    "several documents": ('{"total": 7, "note": "paid"} {"total": 8, "note": ""}', "Extra data"),
    "one name twice": ('{"total": 7, "total": 8, "note": "paid"}', "two members"),
    "a fence": ('```json\n{"total": 7, "note": "paid"}\n```', "it is not JSON"),
    "depth": ("[" * 100_000, "nested more than 100 levels"),
    "nothing": ("", "it is not JSON"),
}


@pytest.mark.parametrize("is_refused", [False, True], ids=["form", "tool"])
@pytest.mark.parametrize(("text", "why"), WRONG.values(), ids=WRONG)
async def test_a_model_that_is_wrong_for_ever_ends_after_max_runs_with_the_reason(
    wire: str, text: str, why: str, is_refused: bool
) -> None:
    rules = [{"answer": {"text": text, "empty": not text}}]
    body, events, statuses = await lived(wire, [REFUSES, *rules] if is_refused else rules, max_runs=3)
    assert statuses == [400] * is_refused + [200] * 3
    verdicts = [event for event in events if isinstance(event, Validation)]
    assert [(event.name, event.valid, event.number, event.of) for event in verdicts] == [
        ("schema", False, number, 3) for number in (1, 2, 3)
    ]
    assert all(why in event.feedback for event in verdicts)
    assert "(run 3 of 3): schema:" in body["error"]
    assert not text or text not in body["error"]


async def test_arguments_of_the_wrong_shape_end_after_max_runs_too(wire: str) -> None:
    body, events, statuses = await lived(wire, [REFUSES, ends_with({"total": "seven"})], max_runs=2)
    assert statuses == [400, 200, 200]
    feedback = [event.feedback for event in events if isinstance(event, Validation)]
    assert len(feedback) == 2 and 'total: "seven" is not of type "integer"' in feedback[-1]
    assert "run 2 of 2" in body["error"]


async def test_an_objection_is_enough_for_a_model_that_can_do_better(wire: str) -> None:
    rules = [
        {"match": {"last": "two members"}, "answer": {"text": '{"total": 7, "note": "paid"}'}},
        {"answer": {"text": '{"total": 7, "total": 8, "note": "paid"}'}},
    ]
    body, _, statuses = await lived(wire, rules)
    assert (body["result"]["output"], statuses) == (GOOD, [200, 200])

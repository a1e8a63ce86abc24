"""Answers that are checked, and tools that tell how far they are, as the page's state has them. Run in
Chromium."""

import json
from random import Random
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from playwright.async_api import Browser, Locator, Page, expect

from mesh.core.messages import accepted_mark
from tests.web.test_approval_kinds import CARD
from tests.web.test_reducer import FOLD, event, said
from tests.web.world import serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

DRAFT = event("llm_call", "0/llm/0", 2, model="m", draft=True)


def validated(step: str, seq: int, *, valid: bool = False, **more: Any) -> dict[str, Any]:
    fields = {"name": "schema", "kind": "schema", "number": 1, "of": 3, **more}
    return event("validation", step, seq, **({"valid": True} if valid else {}), **fields)


async def turn_of(page: Page, *events: dict[str, Any]) -> Any:
    return (await page.evaluate(FOLD, [said(), *events]))["turns"][0]


async def test_each_verdict_is_an_item_with_its_feedback_and_the_run_that_it_is_about(page: Page) -> None:
    turn = await turn_of(
        page,
        DRAFT,
        validated("0/validation/0.0", 3, valid=True),
        validated("0/validation/0.1", 4, name="is_polite", kind="check", feedback="Say please."),
        event("llm_call", "0/llm/1", 5, model="m", draft=True),
        validated("0/validation/1.0", 6, valid=True, number=2),
        event("completed", seq=7, response="x", output={"total": 5}, invalid="Say please."),
    )
    items = [item for item in turn["items"] if item["kind"] == "verdict"]
    assert [
        (item["name"], item["valid"], item["feedback"], item["number"], item["of"]) for item in items
    ] == [
        ("schema", True, "", 1, 3),
        ("is_polite", False, "Say please.", 1, 3),
        ("schema", True, "", 2, 3),
    ]
    assert (turn["output"], turn["invalid"]) == ({"total": 5}, "Say please.")
    assert [item["isDraft"] for item in turn["items"] if item["kind"] == "text"] == [True, True]


async def test_the_objection_to_what_a_called_agent_answers_is_told_apart(
    page: Page,
) -> None:
    content, about = f"3{accepted_mark('critic: Few.')}", {"call_id": "c", "tool": "critic"}
    result = event("tool_result", "0/tool/0.0", 3, content=content, invalid="critic: Few.", **about)
    (item,) = (await turn_of(page, DRAFT, result))["items"][1:]
    assert (item["result"], item["invalid"]) == ("3", "critic: Few.")


async def test_an_exit_condition_is_about_a_round(page: Page) -> None:
    turn = await turn_of(page, validated("0/validation/2.0", 3, name="enough", kind="check", number=2, of=5))
    (item,) = turn["items"]
    assert (item["isRound"], item["number"], item["of"]) == (True, 2, 5)


async def test_what_an_agent_does_that_validates_is_below_its_validation(page: Page) -> None:
    critic = "0.critic@v0-1"
    looks = event("llm_call", f"{critic}/llm/0", 3, model="m", text="Hm.")
    started = event("agent_started", critic, 4, name="critic", kind="llm", agent_path=["main", "critic"])
    verdict = validated("0/validation/0.1", 5, name="critic", kind="agent", feedback="Too long.")
    turn = await turn_of(page, DRAFT, looks, started, verdict)
    kinds = [(item["kind"], item["step"]) for item in turn["items"]]
    assert kinds == [("text", "0/llm/0"), ("verdict", "0/validation/0.1"), ("text", f"{critic}/llm/0")]
    assert turn["nodes"][critic]["status"] == "completed"


async def test_an_approval_of_an_answer_waits_until_it_is_decided_and_is_no_tool(page: Page) -> None:
    read = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { pending } = await import("/static/js/turn.js");
      const [turn] = fold(events).turns;
      const items = [...turn.items.values()];
      return [pending(turn, 9).length, items.map(({ kind, name }) => `${kind} ${name ?? ""}`)];
    }"""
    step = "0/validation/0.1"
    asked = event("approval_required", step, 3, uuid="u", kind="validation", tool_name="main", tool_args={})
    verdict = validated(step, 4, valid=True, name="person", kind="person")
    assert await page.evaluate(read, [said(), DRAFT, asked]) == [1, ["text ", "verdict person"]]
    assert await page.evaluate(read, [said(), DRAFT, asked, verdict]) == [0, ["text ", "verdict person"]]


async def test_the_progress_of_a_tool_is_known_while_it_runs(page: Page) -> None:
    calls = [{"id": "a", "name": "refund", "arguments": {}}]
    answer = event("llm_call", "0/llm/0", 2, model="m", tool_calls=calls)
    step, tells = "0/tool/0.0", {"tool": "refund", "progress": 0.5, "message": "asked the bank"}
    half = event("tool_progress", step, **tells)
    result = event("tool_result", step, 3, call_id="a", tool="refund", content="done")
    running = (await turn_of(page, answer, half))["items"][-1]
    assert running["progress"] == {"part": 0.5, "message": "asked the bank"}
    for late in ([result, half], [half, result]):
        assert (await turn_of(page, answer, *late))["items"][-1].get("progress") is None
    assert len((await turn_of(page, half))["items"]) == 0


class _Schemas:
    """Schemas and values that fit them, or nearly."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def schema(self, depth: int = 3) -> Any:
        pick, kinds = self._random.choice, [self._string, self._number, self._of, self._anything]
        deep = [self._object, self._array, self._choice, self._object, self._reference]
        return pick(kinds + deep if depth else kinds)(depth - 1)

    def value(self, depth: int = 3) -> Any:
        pick = self._random.choice
        flat = ["", "ab", "😀😀", "a" * 5, 0, 1, 1.5, -3, 2.0, 10**20, True, False, None]
        if not depth or self._random.random() < 0.4:
            return pick(flat)
        if self._random.random() < 0.3:
            return [self.value(depth - 1) for _ in range(self._random.randrange(4))]
        return {key: self.value(depth - 1) for key in "abc" if self._random.random() < 0.6}

    def _string(self, _: int) -> Any:
        return {
            "type": "string",
            "minLength": self._random.randrange(4),
            "maxLength": self._random.randrange(5),
        }

    def _number(self, _: int) -> Any:
        pick, border = self._random.choice, self._random.choice([0, 1, 1.5, -3, 10**20])
        keyword = pick(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
        border = abs(border) or 1 if keyword == "multipleOf" else border
        return {"type": pick(["integer", "number", ["number", "null"]]), keyword: border}

    def _of(self, _: int) -> Any:
        values = [self.value(1) for _ in range(3)]
        return self._random.choice([{"enum": values}, {"const": values[0]}, {"not": {"const": values[0]}}])

    def _anything(self, _: int) -> Any:
        return self._random.choice(
            [True, False, {}, {"pattern": "^a"}, {"type": "boolean"}, {"format": "date"}]
        )

    def _object(self, depth: int) -> Any:
        properties = {key: self.schema(depth) for key in "ab"}
        found = {"type": "object", "properties": properties, "required": [self._random.choice("abc")]}
        if self._random.random() < 0.5:
            found["additionalProperties"] = self.schema(depth)
        if self._random.random() < 0.2:
            found["patternProperties"] = {"c": True}
        return found | {"maxProperties": self._random.randrange(1, 4)}

    def _array(self, depth: int) -> Any:
        found = {"type": "array", "items": self.schema(depth), "minItems": self._random.randrange(3)}
        return found | ({"prefixItems": [True]} if self._random.random() < 0.3 else {})

    def _choice(self, depth: int) -> Any:
        keyword = self._random.choice(["anyOf", "oneOf", "allOf"])
        beside = self._string(0) if self._random.random() < 0.2 else {}
        return {keyword: [self.schema(depth) for _ in range(self._random.randrange(1, 4))], **beside}

    def _reference(self, _: int) -> Any:
        return {"$ref": self._random.choice(["#/$defs/one", "#/$defs/a~1b", "#/$defs/tree"])}

    def whole(self) -> Any:
        tree = {"type": "object", "additionalProperties": {"$ref": "#/$defs/tree"}}
        defs = {"one": self._number(0), "a/b": self._string(0), "tree": tree}
        body = self._random.choice([self._object, self._array, self._choice])(3)
        return {**body, "$defs": defs}


async def test_whatever_the_editor_says_is_wrong_the_schema_refuses_too(page: Page) -> None:
    drawn = _Schemas(Random(14))
    cases = [(drawn.whole(), drawn.value()) for _ in range(1500)]
    check = """async (cases) => {
      const { problemsOf } = await import("/static/js/schema.js");
      const { parse } = await import("/static/js/exact-json.js");
      return cases.map(([schema, value]) => problemsOf(parse(schema), parse(value), "output"));
    }"""
    texts = [[json.dumps(schema), json.dumps(value)] for schema, value in cases]
    found = await page.evaluate(check, texts)
    wrong = [not Draft202012Validator(schema).is_valid(value) for schema, value in cases]
    false_alarms = [
        case for case, said, is_wrong in zip(cases, found, wrong, strict=True) if said and not is_wrong
    ]
    assert not false_alarms
    assert sum(map(bool, found)) > 0.9 * sum(wrong)  # and it says most of what is wrong


async def test_the_editor_says_where_something_is_wrong_and_what(page: Page) -> None:
    schema = {
        "type": "object",
        "properties": {
            "total": {"type": "integer", "minimum": 1},
            "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
            "state": {"enum": ["new", "paid"]},
        },
        "required": ["total", "items"],
        "additionalProperties": False,
        "$defs": {
            "item": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
        },
    }
    value = {"total": 0, "items": [{"name": "a"}, {"name": 3}], "state": "lost", "more": None}
    check = """async ([schema, value]) => {
      const { problemsOf } = await import("/static/js/schema.js");
      return problemsOf(schema, value, "output");
    }"""
    assert await page.evaluate(check, [schema, value]) == [
        "output.total has to be at least 1.",
        "output.items[1].name has to be a string, and is a number.",
        'output.state has to be one of "new", "paid".',
        "output.more must not be here.",
    ]
    assert await page.evaluate(check, [schema, {"total": 1.0, "items": []}]) == []
    assert await page.evaluate(check, [{"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, 1]) == []
    assert await page.evaluate(check, [{"$ref": "https://example.com/x"}, 1]) == []


ORDER = {
    "type": "object",
    "properties": {"total": {"type": "integer", "minimum": 1}},
    "required": ["total"],
}


async def carded(browser: Browser, url: str, output: Any, **more: Any) -> Locator:
    """The card of an answer that waits, and nothing else on the page."""
    asked = {
        "uuid": "u",
        "kind": "validation",
        "step": "0/validation/0.1",
        "tool_name": "main",
        "tool_args": {"output": output},
        "description": f"Is this right?\n  output = {json.dumps(output)}",
        **more,
    }
    page = await browser.new_page()
    await page.goto(f"{url}/static/vendor/README.md")
    await page.evaluate(CARD, asked)
    return page.get_by_role("region", name="Approval: main")


async def test_an_answer_in_json_is_edited_against_its_schema_before_it_is_sent(browser: Browser) -> None:
    async with serving("http://127.0.0.1:9") as url:
        card = await carded(browser, url, {"total": 0}, output_schema=ORDER)
        await expect(card.get_by_text("Is this right?", exact=True)).to_be_visible()
        await expect(card.locator("pre")).to_have_text('{\n  "total": 0\n}')
        await card.get_by_role("button", name="Edit").click()
        answer = card.get_by_role("textbox", name="Answer, as JSON")
        approve = card.get_by_role("button", name="Approve this answer")
        for text, problem in (
            ('{"total": 0}', "output.total has to be at least 1."),
            ("{}", "output.total is missing."),
            ("{", "This is not JSON"),
        ):
            await answer.fill(text)
            await expect(card.get_by_role("status")).to_contain_text(problem)
            await expect(approve).to_be_disabled()
        await card.get_by_text("What it has to fit").click()
        await expect(card.get_by_label("Schema")).to_contain_text('"minimum": 1')
        await answer.fill('{"total": 12345678901234567890}')
        await approve.click()
        sent = await card.page.evaluate("JSON.stringify(window.decided)")
        assert sent == '[{"action":"approve","edited_args":{"output":{"total":12345678901234567890}}}]'
        await card.page.close()


async def test_an_answer_in_words_is_edited_as_words(browser: Browser) -> None:
    async with serving("http://127.0.0.1:9") as url:
        card = await carded(browser, url, 'Dear "Ann"\nHi')
        await expect(card.locator("pre")).to_have_text('Dear "Ann"\nHi')
        await card.get_by_role("button", name="Edit").click()
        answer = card.get_by_role("textbox", name="Answer", exact=True)
        await expect(answer).to_have_value('Dear "Ann"\nHi')
        await answer.fill("Dear Ann")
        await card.get_by_role("button", name="Approve this answer").click()
        sent = await card.page.evaluate("window.decided")
        assert sent == [{"action": "approve", "edited_args": {"output": "Dear Ann"}}]
        await card.page.close()

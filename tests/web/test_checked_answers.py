"""Somebody before a page whose agent's answers are checked: a real mesh, a real browser."""

import json
from typing import Any

import pytest
from playwright.async_api import expect

from mesh.core.events import LlmCall
from tests.web.conftest import OpenStage
from tests.web.world import Cast
from tests.worlds.mesh import calls, says
from tests.worlds.trees import config, llm, loop, sequential

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORDER = {"type": "object", "properties": {"total": {"type": "integer", "minimum": 1}}, "required": ["total"]}


def node(name: str, **more: Any) -> dict[str, Any]:
    """An llm node whose system prompt is its name, as `Cast` wants it."""
    return {**llm(name, **more), "prompt": name}


def order(total: int) -> LlmCall:
    return says(json.dumps({"total": total}))


def verdict(feedback: str = "") -> LlmCall:
    return says(json.dumps({"valid": not feedback, "feedback": feedback}))


CLERK = config(
    node("clerk", output_schema=ORDER, validate=[{"agent": "critic"}, {"person": True}], max_runs=4),
    agents=[node("critic")],
)


async def test_each_verdict_is_a_line_and_the_answer_is_shown_once_a_person_agrees(stage: OpenStage) -> None:
    cast = Cast(clerk=[order(0), order(5), order(50)], critic=[verdict("That is too cheap."), verdict()])
    _, person = await stage(cast, CLERK)
    await person.say("what is it?")
    await person.sees_cards(1)
    lines = person.turn.locator(".did > .validation")
    seen = [
        ["schema", "objects, run 1 of 4"],
        ["schema", "accepted, run 2 of 4"],
        ["critic", "objects, run 2 of 4"],
        ["schema", "accepted, run 3 of 4"],
        ["critic", "accepted, run 3 of 4"],
        ["person", "waits for you"],
    ]
    await expect(lines).to_have_count(len(seen))
    for index, words in enumerate(seen):
        for word in words:
            await expect(lines.nth(index)).to_contain_text(word)
    await expect(lines.nth(2)).to_contain_text("That is too cheap.")
    await expect(person.turn.locator(".did")).not_to_contain_text('"total": 5,')
    card = person.cards
    await expect(card).to_contain_text("An answer to check")
    await expect(card).to_contain_text("by clerk")
    await expect(card.get_by_label("Answer")).to_have_text('{\n  "total": 50\n}')
    await card.get_by_role("button", name="Edit").click()
    await card.get_by_role("textbox", name="Answer").fill('{"total": 49}')
    await card.get_by_role("button", name="Approve this answer").click()
    await person.sees_cards(0)
    for _ in range(2):
        answer = person.turn.get_by_label("Answer", exact=True)
        await expect(answer).to_have_text('{\n  "total": 49\n}')
        await expect(lines).to_have_count(len(seen))
        await expect(lines.last).to_contain_text("accepted, run 3 of 4")
        await lines.last.locator("summary").click()
        await expect(lines.last).to_contain_text("Approved, with another answer")
        await person.page.reload()


async def test_what_an_agent_does_to_reach_its_verdict_unfolds(stage: OpenStage) -> None:
    tree = config(node("clerk", validate=[{"agent": "critic"}]), agents=[node("critic", tools=["look"])])
    cast = Cast(clerk=[says("Fine.")], critic=[calls(("look", {})), verdict()])
    _, person = await stage(cast, tree)
    await person.say("go")
    await person.sees("Fine.")
    line = person.turn.locator("details.validation", has_text="critic")
    await line.locator("> summary").click()
    await expect(line.locator("details.tool", has_text="look")).to_be_visible()


async def test_an_answer_that_was_accepted_in_spite_of_an_objection_says_so_after_a_reload_too(
    stage: OpenStage,
) -> None:
    checked = node("second", validate=[{"agent": "critic"}], max_runs=1, on_invalid="accept")
    tree = config(sequential(node("first"), checked), agents=[node("critic")])
    cast = Cast(first=[says("one")], second=[says("two")], critic=[verdict("Three is right.")])
    _, person = await stage(cast, tree)
    await person.say("count")
    for _ in range(2):
        await person.sees("Accepted in spite of an objection: critic: Three is right.")
        last = person.turn.locator("details.node", has_text="second")
        await last.locator("> summary").click()
        await expect(last.locator(".objection")).to_be_visible()
        await expect(last.locator(".fold > .markdown")).to_have_text("two")
        await expect(last.locator(".fold > .validation").first).to_contain_text("objects, run 1 of 1")
        await person.page.reload()


async def test_a_person_is_asked_when_no_more_runs_are_left_and_told_what_was_objected_to(
    stage: OpenStage,
) -> None:
    tree = config(
        node("clerk", validate=[{"agent": "critic"}], max_runs=1, on_invalid="ask"), agents=[node("critic")]
    )
    _, person = await stage(Cast(clerk=[says("Two.")], critic=[verdict("It is three.")]), tree)
    await person.say("how many?")
    await expect(person.cards).to_contain_text("The answer did not pass (run 1 of 1): critic: It is three.")
    await person.cards.get_by_role("button", name="Reject…").click()
    await person.cards.get_by_role("textbox", name="Reason").fill("Nobody knows.")
    await person.cards.get_by_role("button", name="Reject with reason").click()
    await person.sees("The turn failed.")
    line = person.turn.locator(".did > .validation").last
    await expect(line).to_contain_text("objects, run 1 of 1")
    await expect(line).to_contain_text("Nobody knows.")


async def test_the_verdict_of_an_agent_that_is_stopped_is_missing(stage: OpenStage) -> None:
    tree = config(node("clerk", validate=[{"agent": "critic"}]), agents=[node("critic")])
    cast = Cast(clerk=[says("Two.")], critic=[calls(("add", {"n": 1}))])
    _, person = await stage(cast, tree)
    await person.say("how many?")
    await person.sees_cards(1)
    line = person.turn.locator(".did > .validation")
    await expect(line.locator("> summary")).to_contain_text("waits for you")
    await expect(person.cards).to_contain_text("in critic, called by clerk")
    await person.page.get_by_role("button", name="Stop").click()
    await expect(line.locator("> summary")).to_contain_text("stopped")


async def test_drafts_are_shown_to_those_who_want_them(stage: OpenStage) -> None:
    tree = config(node("clerk", validate=[{"agent": "critic"}], show_drafts=True), agents=[node("critic")])
    cast = Cast(clerk=[says("Go away."), says("Please go.")], critic=[verdict("Say please."), verdict()])
    _, person = await stage(cast, tree)
    await person.say("and now?")
    await person.sees("Please go.")
    await person.sees("Go away.")
    await expect(person.turn.get_by_text("Please go.")).to_have_count(1)


async def test_the_exit_condition_of_a_loop_tells_of_each_round(stage: OpenStage) -> None:
    tree = config(
        loop(node("writer"), max_iterations=3) | {"exit_when": {"agent": "critic"}}, agents=[node("critic")]
    )
    cast = Cast(writer=[says("draft"), says("better")], critic=[verdict("Not yet."), verdict()])
    _, person = await stage(cast, tree)
    await person.say("write")
    await person.sees("ends the loop, round 2 of 3")
    await person.sees("goes on, round 1 of 3")


@pytest.mark.servers_go_away  # the browser notes the 400
async def test_what_only_the_mesh_knows_to_be_wrong_is_said_in_its_words(stage: OpenStage) -> None:
    schema = {"type": "string", "pattern": "^[a-z]+$"}
    tree = config(node("clerk", output_schema=schema, validate=[{"person": True}]))
    _, person = await stage(Cast(clerk=[says('"abc"')]), tree)
    await person.say("a word?")
    await person.cards.get_by_role("button", name="Edit").click()
    await person.cards.get_by_role("textbox", name="Answer").fill('"ABC"')
    await person.cards.get_by_role("button", name="Approve this answer").click()
    await expect(person.cards.get_by_role("alert")).to_contain_text("does not match")
    await expect(person.cards.get_by_role("textbox", name="Answer")).to_have_value('"ABC"')

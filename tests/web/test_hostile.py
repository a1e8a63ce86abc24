"""What a model, a tool or a user writes is shown and never acts: no markup, no script, no request, no lie."""

import json
import re

import pytest
from playwright.async_api import Request, expect

from mesh.core.events import LlmCall
from tests.web.conftest import OpenStage
from tests.web.world import WITHIN_MS, Cast, Person
from tests.worlds.live import Spoken
from tests.worlds.mesh import calls, says

pytestmark = pytest.mark.asyncio(loop_scope="session")

MARKUP = """<script>window.hit = 1</script><img src=x onerror="window.hit = 2"><svg onload="window.hit = 3">
<iframe srcdoc="<script>parent.hit = 4</script>"></iframe><style>body { display: none }</style>
<form action="https://evil.example/"><input name="token"><button>go</button></form>

<a href="javascript:window.hit = 5">html</a> [js](javascript:window.hit=6)
[data](data:text/html,<script>hit=7</script>)
[vb](vbscript:x) [own](/api/cancel) [proto](//evil.example/) <https://fine.example/a>

![picture](https://evil.example/pixel.png) ![js](javascript:window.hit=8) <b onclick="window.hit = 9">bold</b>

<div id="message">x</div>"""


async def is_harmless(person: Person) -> None:
    """Nothing of `MARKUP` acted, and nothing that could is on the page."""
    page = person.page
    assert await page.evaluate("window.hit") is None
    inside = page.locator(".transcript")
    assert (
        await inside.locator("script, iframe, object, style, form, svg[onload], base, link, meta").count()
        == 0
    )
    assert await inside.locator(".did input, .did img, .did [id], .did [style], .did [name]").count() == 0
    for link in await inside.get_by_role("link").all():
        href = await link.evaluate("link => link.getAttribute('href')")
        assert href is None or re.match(r"https?://|mailto:", href), href
        assert href is None or await link.get_attribute("rel") == "noopener noreferrer"
    attributes = await inside.evaluate(
        "r => [...r.querySelectorAll('*')].flatMap(e => e.getAttributeNames()).filter(n => /^on/.test(n))"
    )
    assert attributes == []


async def test_markup_in_an_answer_is_text_and_its_links_lead_nowhere_bad(stage: OpenStage) -> None:
    _, person = await stage(Spoken(says(MARKUP)))
    asked: list[str] = []
    person.page.on("request", lambda request: _note(request, asked))
    await person.say(MARKUP)
    await person.sees("model call")
    await person.sees("<script>window.hit = 1</script>")
    await expect(person.turn.get_by_role("link", name="https://fine.example/a")).to_have_count(1)
    await expect(person.turn.get_by_role("link", name="picture")).to_have_attribute(
        "href", "https://evil.example/pixel.png"
    )
    await is_harmless(person)
    assert asked == []


def _note(request: Request, asked: list[str]) -> None:
    if "127.0.0.1" not in request.url:
        asked.append(request.url)


async def test_markup_in_names_arguments_results_and_titles_is_text(stage: OpenStage) -> None:
    hostile = LlmCall(
        model=MARKUP,
        tool_calls=calls(
            (MARKUP[:120], {MARKUP: MARKUP}), ("look", {"<img src=x onerror=hit=1>": [MARKUP]})
        ).tool_calls,
        finish_reason="tool_calls",
    )
    _, person = await stage(Spoken(hostile, says("done")))
    await person.say(MARKUP)
    await person.sees("done")
    for fold in await person.turn.locator("details > summary").all():
        await fold.click()
    await person.sees('onerror=\\"window.hit = 2\\"')
    await expect(person.list.get_by_role("link").first).to_contain_text(
        "<script>window.hit", timeout=WITHIN_MS
    )
    await is_harmless(person)


NAMED = """
name: test
llm: {model: scripted}
agent: {name: root, type: llm, description: "<img src=x onerror=window.hit=1><script>window.hit=2</script>"}
"""


async def test_an_approval_hides_nothing_and_reorders_nothing(stage: OpenStage) -> None:
    trick = "add\u202etrid evomer\u202c\u200b"
    _, person = await stage(Spoken(calls(("add", {"n": 1, "note": trick + MARKUP}))), NAMED)
    await expect(person.page.locator(".welcome")).to_contain_text("<script>")
    await person.say("go")
    await person.sees_cards(1)
    await expect(person.cards.get_by_label("Arguments")).to_contain_text(
        "add\\u202etrid evomer\\u202c\\u200b"
    )
    await is_harmless(person)


CHECKED = """
name: test
llm: {model: scripted}
agents: [{name: critic, type: llm, prompt: critic}]
agent: {name: root, type: llm, prompt: root, max_runs: 1, on_invalid: ask, validate: [{agent: critic}]}
"""


async def test_markup_in_objections_and_in_answers_that_wait_is_text(stage: OpenStage) -> None:
    trick = "fine\u202enif\u202c\u200b"
    objection = says(json.dumps({"valid": False, "feedback": trick + MARKUP}))
    _, person = await stage(Cast(root=[says(trick + MARKUP)], critic=[objection]), CHECKED)
    await person.say("go")
    await person.sees_cards(1)
    for shown in (person.cards.get_by_label("Answer"), person.turn.locator(".did > .validation").first):
        await expect(shown).to_contain_text("fine\\u202enif\\u202c\\u200b")
    await person.turn.locator(".did > .validation > summary").first.click()
    await is_harmless(person)
    await person.cards.get_by_role("button", name="Approve").click()
    await person.sees("Accepted in spite of an objection")
    await expect(person.turn.locator(".objection")).to_contain_text("<script>window.hit = 1</script>")
    await is_harmless(person)


async def test_huge_texts_are_bounded_and_come_in_full_when_asked_for(stage: OpenStage) -> None:
    huge = "x" * 60_000
    _, person = await stage(Spoken(calls(("look", {"huge": huge})), says("# " + "something " * 11_000)))
    await person.say("go")
    await person.sees("model calls")
    await person.turn.locator("details.tool > summary").click()
    shown = person.turn.get_by_label("Arguments")
    assert len(await shown.inner_text()) < 9_000
    await person.turn.get_by_role("button", name="Show all").first.click()
    assert huge in await shown.inner_text()
    await person.say("and on it goes")
    await expect(person.turns).to_have_count(2)


async def test_a_token_is_forwarded_and_stays_in_memory(stage: OpenStage) -> None:
    _, person = await stage(Spoken(says("fine")))
    sent: list[str] = []
    person.page.on("request", lambda request: sent.append(request.headers.get("authorization", "")))
    await person.page.get_by_role("button", name="Access token and name").click()
    await person.page.get_by_label("Access token").last.fill("s3cret-token")
    await person.page.get_by_label("Your name").fill("Ada")
    await person.page.get_by_role("button", name="Use", exact=True).click()
    await person.say("hello")
    await person.sees("fine")
    assert "Bearer s3cret-token" in sent
    kept = await person.page.evaluate(
        "[JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, location.href]"
    )
    assert "s3cret" not in str(kept)
    assert "s3cret" not in await person.page.content()
    await person.page.reload()
    await person.sees("fine")
    sent.clear()
    await person.say("again")
    await expect(person.turns).to_have_count(2)
    assert set(sent) == {""}

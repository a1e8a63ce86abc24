"""Takes the README's pictures of the web chat: python -m tests.web.screenshots [FOLDER]

A real mesh, a scripted model, the Chromium of this machine. It says which files it wrote.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright, expect

from mesh.core.events import Spend
from mesh.llm.port import Llm
from mesh.tree.turn import Activation
from tests.web import chromium
from tests.web.world import WITHIN_MS, Cast, Gate, Person, serving
from tests.worlds.edits import POLICY, Edits
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.trees import ByNode, config, llm

FOLDER = Path(__file__).parents[2] / "docs/screenshots"
DESKTOP, TALL, PHONE, DIFF = (
    {"width": w, "height": h} for w, h in ((1280, 800), (1280, 900), (390, 800), (1280, 1340))
)

ALONE = """
name: numbers
description: Keeps numbers in a ledger, and asks before it writes one down.
llm: {model: scripted}
"""
ANSWER = """The ledger has **three** numbers now:

| number | written down by |
|---|---|
| 7 | the morning run |
| 19 | you, *edited* |
| 42 | the evening run |

Their sum is `68`; see [how sums are made](https://example.com/sums)."""

TREE = """
name: release
description: Plans a release, checks it from three sides at once, and writes the report.
llm: {model: scripted}
agent:
  name: release
  description: Plans a release, checks it from three sides at once, and writes the report.
  type: sequential
  agents:
    - {name: plan, type: llm, prompt: plan}
    - name: checks
      type: parallel
      approvals: ask
      agents:
        - {name: security, type: llm, prompt: security}
        - {name: performance, type: llm, prompt: performance}
        - {name: licences, type: llm, prompt: licences}
    - {name: report, type: llm, prompt: report}
"""
PLAN = "Three checks side by side: **security**, **performance** and **licences** of version 2.4."
SECURITY = "No known weakness in any of the 61 packages. The two advisories of last week are fixed in `2.4`."
PERFORMANCE = """The p99 of the last run is `41 ms`, the one before had `43 ms`:

1. reads are a little faster,
2. writes are as they were, and the new index …"""
CALLED = """
name: research
description: Answers questions with a search specialist and a data analyst.
llm: {model: scripted}
agents:
  - {name: search, type: llm, prompt: search, description: Finds facts on the web., tools: [look]}
  - {name: analyst, type: llm, prompt: analyst, description: Reckons with what was found.}
agent: {name: research, type: llm, prompt: research, agents: [search, analyst]}
"""
TASKS = [
    ("search", "Museums"),
    ("search", "Cafés with a view"),
    ("porter", "Luggage for the hotel"),
    ("weather", "Rain on Saturday"),
    ("critic", "What would annoy a guest?"),
    ("editor", "The printed edition"),
]
WAIT = calls(("wait", {}))
AGENTS = ("search", "porter", "weather", "critic", "editor")
GUIDE = config(
    llm("guide", agents=[*AGENTS], spawn={}),
    name="guide",
    agents=[
        llm(
            name,
            "{task}",
            description="Helps.",
            **({"agents": ["search"], "spawn": {}} if name == "editor" else {}),
        )
        for name in AGENTS
    ],
)
FOUND = "The city had **1,201,000** inhabitants at the last count, 3 % more than five years before."
FINDING = "The network has 78 stations and 3 lines; the newest one …"
ASKED = calls(
    ("search", {"task": "How many people live in the city?"}),
    ("search", {"task": "How large is its underground?"}),
    ("analyst", {"task": "Write down the number of stations, and reckon inhabitants per station."}),
)
LOOK = calls(("look", {"since": "2.3", "package": "all"}))


CHECKED = """
name: orders
description: Takes orders by mail. Each is checked before it counts.
llm: {model: scripted}
agents:
  - {name: accountant, type: llm, prompt: accountant, description: Reckons again., tools: [look]}
agent:
  name: orders
  type: llm
  prompt: orders
  output_schema:
    type: object
    properties:
      customer: {type: string, minLength: 1}
      litres: {type: integer, minimum: 1}
      cents: {type: integer, minimum: 1}
    required: [customer, litres, cents]
    additionalProperties: false
  validate: [{agent: accountant}, {person: true}]
"""
WRONG_SUM = "Five litres at 9.98 each are 49.90, and the order says 39.90."


OLD_PRICES = '''"""What things cost."""

from decimal import Decimal


def price(amount: str, discount: int) -> Decimal:
	"""The price, less a discount in percent."""
	return Decimal(amount) * (100 - discount) / 100\x20
'''
NEW_PRICES = '''"""What things cost."""

from decimal import ROUND_HALF_UP, Decimal

CENT = Decimal("0.01")


def price(amount: str, discount: int) -> Decimal:
    """The price, less a discount in percent."""
    less = Decimal(amount) * (100 - discount) / 100
    return less.quantize(CENT, ROUND_HALF_UP)  # \u202e dlos era seirettaB \u202c
'''
SPENT = [
    Spend(
        turn=1,
        step="0",
        limits={"max_cost_usd": 0.5, "max_llm_calls": 20, "max_time_s": 120},
        spent={"max_cost_usd": 0.0815, "max_llm_calls": 5, "max_time_s": 14.2},
        unsettled={"max_cost_usd": 0.02, "max_llm_calls": 1},
        reserved={"max_cost_usd": 0.06, "max_llm_calls": 1},
    ),
    Spend(
        turn=1,
        step="0.search@0-1",
        limits={"max_total_tokens": 8_000},
        spent={"max_total_tokens": 3_120},
        reserved={"max_total_tokens": 4_880},
    ),
]
AT_REST = """() => {
  const ends = (animation) => animation.effect.getTiming().iterations !== Infinity;
  return Promise.all(document.getAnimations().filter(ends).map((animation) => animation.finished));
}"""


@asynccontextmanager
async def before(
    browser: Browser, llm: Llm, config: str, **options: Any
) -> AsyncIterator[tuple[LiveMesh, Person]]:
    """Somebody before the page of a mesh."""
    with LiveMesh(llm, config) as live:
        async with serving(live.url) as url:
            context = await browser.new_context(**options)
            try:
                page = await context.new_page()
                await page.goto(url)
                yield live, Person(page)
            finally:
                await context.close()


async def approval(browser: Browser, name: str, more: tuple[str, ...] = (), **options: Any) -> None:
    """A turn that was answered, and one that waits."""
    add = calls(("add", {"n": 19}))
    llm = Spoken(LOOK, says(ANSWER), *[says("Done.") for _ in more], add)
    async with before(browser, llm, ALONE, **options) as (_, person):
        await person.say("What is in the ledger?")
        await person.sees("how sums are made")
        for text in more:
            await person.page.get_by_role("button", name="New conversation").click()
            await person.say(text)
            await person.sees("Done.")
        if more:
            await person.list.get_by_role("link", name="What is in the ledger?").click()
            await person.sees("how sums are made")
        await person.say("Write down 19 as well")
        await person.sees_cards(1)
        await taken(person, name)


async def editing(browser: Browser, name: str, **options: Any) -> None:
    """A run that waits, in the hands of somebody who gives other arguments."""
    cast, gate = checks()
    gate.is_open.set()
    async with before(browser, cast, TREE, **options) as (_, person):
        await person.say("Is 2.4 ready to be released?")
        await person.sees_cards(1)
        await expect(person.panel.get_by_role("treeitem", name="performance, done")).to_have_count(
            1, timeout=WITHIN_MS
        )
        await person.cards.get_by_role("button", name="Edit").click()
        await person.cards.get_by_role("textbox", name="Arguments").fill('{\n  "n": 62\n}')
        await taken(person, name)


def checks() -> tuple[Cast, Gate]:
    """A model for `TREE` that stops in the middle of a check."""
    cast = Cast(
        plan=[says(PLAN)],
        security=[LOOK, says(SECURITY)],
        performance=[LOOK, says(PERFORMANCE)],
        licences=[calls(("add", {"n": 61}))],
        report=[says("Ready.")],
    )
    gate = Gate("…")
    cast.roles["performance"].between = gate
    return cast, gate


async def parallel(browser: Browser, name: str, **options: Any) -> None:
    """A run in the middle: one branch done, one speaking, one waiting."""
    cast, gate = checks()
    async with before(browser, cast, TREE, **options) as (live, person):
        await person.say("Is 2.4 ready to be released?")
        await person.sees("the new index")
        await person.sees_cards(1)
        await expect(person.panel.get_by_role("treeitem", name="security, done")).to_have_count(
            1, timeout=WITHIN_MS
        )
        await taken(person, name)
        live.call(gate.is_open.set)


async def called(browser: Browser, name: str, *, has_drawer: bool = False, **options: Any) -> None:
    """Agents that another one called: one has answered, one speaks, one waits; and what they spent."""
    gate = Gate("…")
    cast = Cast(
        research=[ASKED, says("One station for 15,400 people.")],
        search=[LOOK, LOOK, says(FOUND), says(FINDING)],
        analyst=[calls(("add", {"n": 78}))],
    )
    cast.roles["search"].between = gate
    async with before(browser, cast, CALLED, **options) as (live, person):
        await person.say("Is the underground of the city large enough?")
        await person.sees("the newest one")
        await person.sees_cards(1)
        live.run(live.mesh.append(Activation(person.conversation_id, 1, live.mesh.newest_run), SPENT))
        if has_drawer:
            await person.page.get_by_role("button", name="Agent and tools").click()
        await expect(person.page.locator(".limit")).to_have_count(4, timeout=WITHIN_MS)
        await taken(person, name)
        live.call(gate.is_open.set)


async def checked(browser: Browser, name: str, **options: Any) -> None:
    """An answer that two validators objected to, in the hands of somebody who gives another one."""
    orders = [{"customer": "Ada", "litres": 5, "cents": cents} for cents in ("39.90", 3990, 4990)]
    verdicts = [{"valid": False, "feedback": WRONG_SUM}, {"valid": True, "feedback": ""}]
    cast = Cast(
        orders=[says(json.dumps(each)) for each in orders],
        accountant=[says(json.dumps(each)) for each in verdicts],
    )
    async with before(browser, cast, CHECKED, **options) as (_, person):
        await person.say("Ada wants five litres of blue paint.")
        await person.sees_cards(1)
        await person.cards.get_by_role("button", name="Edit").click()
        edited = json.dumps({**orders[-1], "cents": 0}, indent=2)
        await person.cards.get_by_role("textbox", name="Answer").fill(edited)
        await taken(person, name)


async def change(browser: Browser, name: str, *, is_split: bool = False, **options: Any) -> None:
    """A call that would change a file, with its diff, in the hands of somebody who decides about it."""
    write = calls(("write_file", {"path": "src/prices.py", "content": NEW_PRICES}))
    async with before(browser, Spoken(write), POLICY, **options) as (live, person):
        Edits(**{"src/prices.py": OLD_PRICES}).offered_by(live)
        await person.say("Round prices to whole cents.")
        await person.sees_cards(1)
        if is_split:
            await person.cards.get_by_role("button", name="Side by side").click()
        else:
            await person.cards.get_by_role("button", name="Approve and remember…").click()
        await person.cards.locator(".answers").scroll_into_view_if_needed()
        await taken(person, name)


async def at_work(browser: Browser, name: str, **options: Any) -> None:
    """Agents that a lead has started, in the panel with the timeline; one is about to be told something."""
    model = ByNode(
        guide=[calls(("spawn", {"agents": [{"agent": a, "task": t, "title": t} for a, t in TASKS]})), WAIT],
        porter=[calls(("add", {"n": 42}))],
        editor=[calls(("spawn", {"agents": [{"agent": "search", "task": "Opening hours"}]})), WAIT],
    )
    model.gates["search"] = model.gates["critic"] = asyncio.Event()
    async with before(browser, model, GUIDE, **options) as (_, person):
        await person.say("Write a guide to Lisbon for a rainy weekend.")
        await person.page.get_by_role("button", name="Agents at work", exact=True).click()
        panel = person.page.get_by_role("complementary", name="Agents at work")
        await expect(panel.get_by_role("treeitem")).to_have_count(8, timeout=WITHIN_MS)
        await expect(panel).to_contain_text("1 waits", timeout=WITHIN_MS)
        await panel.get_by_role("button", name="Timeline").click()
        row = panel.get_by_role("treeitem", name="search, running, Museums")
        await row.click()
        await row.get_by_role("button", name="Comment on search").click()
        await panel.get_by_role("textbox", name="Comment").fill("Only what is open on Sundays.")
        await taken(person, name)


async def taken(person: Person, name: str) -> None:
    """The picture, when what moves has come to rest."""
    file = Path(sys.argv[1] if len(sys.argv) > 1 else FOLDER) / f"{name}.png"
    await person.page.mouse.move(0, 0)
    await person.page.evaluate(AT_REST)
    await person.page.screenshot(path=file, animations="disabled", caret="hide")
    print(file)  # noqa: T201


async def main() -> None:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium.path(), args=chromium.options())
        talks = ("Sum of last week", "Remove the numbers nobody needs", "Which number is the largest?")
        await approval(browser, "web-approval", talks, viewport=DESKTOP)
        await parallel(browser, "web-parallel", viewport=TALL)
        await approval(browser, "web-phone", viewport=PHONE)
        await called(browser, "web-agents", viewport=TALL)
        await checked(browser, "web-validation", viewport=TALL)
        await change(browser, "web-diff", viewport=DIFF)
        await at_work(browser, "web-at-work", viewport=DESKTOP)
        await change(browser, "web-diff-split", is_split=True, viewport=TALL, color_scheme="dark")
        await editing(browser, "web-dark", viewport=DESKTOP, color_scheme="dark")
        await browser.close()


if __name__ == "__main__":
    sys.exit(chromium.WANTED) if chromium.path() is None else asyncio.run(main())

"""The panel of the agents at work: two hundred of them, live, and a person who steps in."""

import asyncio
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from mesh.core.messages import Results
from mesh.llm.port import LlmRequest
from tests.web.conftest import OpenStage
from tests.web.world import WITHIN_MS, WITHIN_S, Person
from tests.worlds.mesh import calls, says
from tests.worlds.trees import ByNode, config, llm, parallel, sequential

pytestmark = pytest.mark.asyncio(loop_scope="session")

AGENTS = 200


class Crowd(ByNode):
    """A lead that starts ``number`` searches, and a team that starts one of its own. All wait until they are
    let, told something, or deleted; each says what it was told."""

    def __init__(self, number: int = AGENTS) -> None:
        super().__init__()
        self.number = number
        self.gates["search"] = self.gates["team"] = asyncio.Event()
        self.heard: list[str] = []

    async def stream(self, request: LlmRequest) -> Any:
        name = request.system.partition(":")[0]
        said = str(request.messages)
        if name == "main":
            yield self._lead(request)
            return
        self.asked[name] += 1
        if name == "team" and not isinstance(request.messages[-1], Results):
            yield calls(("spawn", {"agents": [{"agent": "search", "task": "below"}]}))
            return
        if "tells you" in said or "another task" in said:
            self.heard.append(request.system)
        elif name in self.gates:
            await asyncio.wait_for(self.gates[name].wait(), 10 * WITHIN_S)  # the whole test
        yield says(f"{name} has done {request.system.partition(': ')[2]}")

    def _lead(self, request: LlmRequest) -> Any:
        seen = sum(isinstance(message, Results) for message in request.messages)
        if seen == 0:
            tasks = [{"agent": "search", "task": f"city {number}"} for number in range(self.number)]
            return calls(("spawn", {"agents": [*tasks, {"agent": "team", "task": "all"}]}))
        return calls(("wait", {})) if seen == 1 else says("All is done.")


CONFIG = config(
    llm("main", agents=["search", "team"], spawn={}),
    agents=[
        llm("search", "{task}", description="Finds."),
        llm("team", "{task}", description="Leads.", agents=["search"], spawn={}),
    ],
    budget={"max_agents": 2_000},
    limits={"agents_at_once": 2_000, "max_llm_calls": 10_000},
)


def panel(page: Page) -> Locator:
    return page.get_by_role("complementary", name="Agents at work")


def rows(page: Page) -> Locator:
    return panel(page).get_by_role("treeitem")


def row(page: Page, about: str) -> Locator:
    return panel(page).get_by_role("treeitem", name=about)


async def opened(person: Person, total: int) -> Locator:
    await person.page.get_by_role("button", name="Agents at work", exact=True).click()
    heading = panel(person.page).get_by_role("heading", name=f"{total:,} agents")
    await expect(heading).to_be_visible(timeout=WITHIN_MS)
    return panel(person.page)


async def filtered(page: Page, text: str) -> None:
    await page.get_by_role("searchbox", name="Filter agents").fill(text)


async def test_a_node_that_has_not_begun_is_told_something_and_another_one_is_deleted(
    stage: OpenStage,
) -> None:
    model = ByNode()
    model.gates["first"] = asyncio.Event()
    tree = sequential(llm("first"), llm("second"), parallel(llm("a"), llm("b"), name="both"), name="all")
    live, person = await stage(model, config(tree))
    page = person.page
    await person.say("go")
    at_work = await opened(person, 4)
    await expect(row(page, "first, running")).to_be_visible()
    await expect(row(page, "both, queued")).to_be_visible()
    await row(page, "second, queued").hover()
    await row(page, "second").get_by_role("button", name="Comment on second").click()
    await at_work.get_by_role("textbox", name="Comment").fill("be brief")
    await at_work.get_by_role("button", name="Tell").click()
    await row(page, "both").hover()
    await row(page, "both").get_by_role("button", name="Change both").click()
    await expect(at_work.get_by_role("textbox", name="Task")).to_be_visible()
    await expect(at_work.get_by_role("checkbox")).to_have_count(0)  # it is no agent that could begin anew
    await page.keyboard.press("Escape")
    await row(page, "both").hover()
    await row(page, "both").get_by_role("button", name="Delete both").click()
    await at_work.get_by_role("button", name="Delete", exact=True).click()
    await expect(row(page, "both")).to_contain_text("Deleted by a person")
    live.call(model.gates["first"].set)
    await expect(row(page, "second, done")).to_be_visible(timeout=WITHIN_MS)
    assert "be brief" in str(model.messages["second"])
    assert model.asked == {"first": 1, "second": 1}


async def test_a_person_steers_one_of_two_hundred_agents(stage: OpenStage) -> None:
    model = Crowd()
    live, person = await stage(model, CONFIG)
    page = person.page
    await person.say("go")
    at_work = await opened(person, AGENTS + 3)
    assert await rows(page).count() < 40  # what is in view

    # The tree folds: all of them are below the lead.
    await at_work.get_by_role("button", name="Fold main").click()
    await expect(rows(page)).to_have_count(1)
    await expect(at_work).to_contain_text(f"{AGENTS + 2} agents below")
    await at_work.get_by_role("button", name="Unfold main").click()

    # A comment is read, and the agent goes on by it.
    await filtered(page, "city 7")
    await expect(row(page, "city 77")).to_be_visible()
    await row(page, "city 77").hover()
    await row(page, "city 77").get_by_role("button", name="Comment on search").click()
    await at_work.get_by_role("textbox", name="Comment").fill("only the old town")
    await at_work.get_by_role("button", name="Tell").click()
    live.call(model.gates["search"].clear)
    await filtered(page, "city 78")
    await row(page, "city 78").hover()
    await row(page, "city 78").get_by_role("button", name="Change search").click()
    await at_work.get_by_role("textbox", name="Task").fill("city 78, by night")
    await at_work.get_by_role("button", name="Change", exact=True).click()
    await expect(row(page, "by night")).to_contain_text("changed, not read yet")

    # One of two siblings is deleted; the other goes on.
    await filtered(page, "city 80")
    await row(page, "city 80").hover()
    await row(page, "city 80").get_by_role("button", name="Delete search").click()
    await at_work.get_by_role("textbox", name="Reason").fill("too far")
    await at_work.get_by_role("button", name="Delete", exact=True).click()
    await expect(row(page, "city 80")).to_contain_text("Deleted by a person: too far")
    await filtered(page, "city 81")
    await expect(row(page, "city 81")).to_contain_text("running")

    # What goes with it is said first.
    await filtered(page, "team")
    await row(page, "team").hover()
    await row(page, "team").get_by_role("button", name="Delete team").click()
    await expect(at_work.get_by_role("heading", name="Delete team and the 1 agent below it?")).to_be_visible()
    await page.keyboard.press("Escape")

    # After a reload it is as it was.
    await page.reload()
    await opened(person, AGENTS + 3)
    await filtered(page, "city 80")
    await expect(row(page, "city 80")).to_contain_text("deleted")
    live.call(model.gates["search"].set)
    await person.sees("All is done.")
    await filtered(page, "city 77")
    await expect(row(page, "city 77")).to_contain_text("done")
    assert any("city 77" in each for each in model.heard)
    assert any("city 78, by night" in each for each in model.heard)


@pytest.mark.servers_go_away  # the browser notes a 409
async def test_what_is_refused_is_said_and_nothing_typed_is_lost(stage: OpenStage) -> None:
    model = Crowd(2)
    live, person = await stage(model, CONFIG)
    page = person.page
    await person.say("go")
    at_work = await opened(person, 5)
    await row(page, "city 1").hover()
    await row(page, "city 1").get_by_role("button", name="Comment on search").click()
    await at_work.get_by_role("textbox", name="Comment").fill("too late")
    live.call(model.gates["search"].set)
    await person.sees("All is done.")
    await at_work.get_by_role("button", name="Tell").click()
    await expect(at_work.get_by_role("alert").first).to_contain_text("has answered")
    await expect(at_work.get_by_role("textbox", name="Comment")).to_have_value("too late")


async def test_the_keys_move_fold_pause_and_jump_to_what_waits(stage: OpenStage) -> None:
    model = Crowd(3)
    live, person = await stage(model, CONFIG)
    page = person.page
    await person.say("go")
    at_work = await opened(person, 6)
    await at_work.get_by_role("tree").focus()
    for key in ("ArrowDown", "ArrowDown"):
        await page.keyboard.press(key)
    selected = at_work.locator('[role="treeitem"][aria-selected="true"]')
    await expect(selected).to_have_accessible_name("search, running, city 0")
    await page.keyboard.press("p")
    await expect(selected).to_contain_text("paused")
    await page.keyboard.press("p")
    await expect(selected).to_contain_text("running")
    await page.keyboard.press("Home")
    await page.keyboard.press("ArrowLeft")
    await expect(rows(page)).to_have_count(1)
    await page.keyboard.press("ArrowRight")
    await expect(rows(page)).to_have_count(6)
    await at_work.get_by_role("button", name="Timeline").click()
    await expect(at_work.locator(".time i")).to_have_count(6)
    live.call(model.gates["search"].set)
    await person.sees("All is done.")


async def test_of_a_thousand_agents_those_in_view_are_in_the_page(stage: OpenStage) -> None:
    model = Crowd(1_000)
    live, person = await stage(model, CONFIG)
    page = person.page
    await person.say("go")
    at_work = await opened(person, 1_003)
    assert await rows(page).count() < 40
    await at_work.get_by_role("tree").focus()
    await page.keyboard.press("End")
    await expect(row(page, "below")).to_be_visible()
    assert await rows(page).count() < 40
    live.call(model.gates["search"].set)
    await person.sees("All is done.")


async def test_on_a_phone_the_panel_has_the_whole_width_and_its_buttons(stage: OpenStage) -> None:
    model = Crowd(3)
    live, person = await stage(model, CONFIG, viewport={"width": 390, "height": 800})
    page = person.page
    await person.say("go")
    at_work = await opened(person, 6)
    box = await at_work.bounding_box()
    assert box is not None and box["width"] == 390
    await row(page, "city 1").click()
    await row(page, "city 1").get_by_role("button", name="Pause search").click()
    await expect(row(page, "city 1")).to_contain_text("paused")
    await row(page, "city 1").get_by_role("button", name="Resume search").click()
    live.call(model.gates["search"].set)
    await person.sees("All is done.")

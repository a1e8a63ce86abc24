"""What a person sees and does, in a real Chromium, before a real mesh."""

import asyncio

import httpx
import pytest
from playwright.async_api import Route, expect

from mesh.core.errors import LlmError
from mesh.core.events import LlmCall, Spend
from mesh.llm.port import LlmRequest
from mesh.mcp.progress import Progress
from mesh.tree.turn import Activation
from tests.web.conftest import OpenStage
from tests.web.world import WITHIN_MS, Cast, Gate
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says

pytestmark = pytest.mark.asyncio(loop_scope="session")

SIDE_BY_SIDE = """
name: branches
llm: {model: scripted}
agent:
  name: branches
  type: parallel
  approvals: ask
  agents:
    - {name: a, type: llm, prompt: a}
    - {name: b, type: llm, prompt: b}
    - {name: c, type: llm, prompt: c}
"""
ADD_1 = calls(("add", {"n": 1}))


async def test_a_message_is_answered_in_markdown_that_streams(stage: OpenStage) -> None:
    llm, gate = Spoken(says("There is **one** and [a link](https://example.com/x)")), Gate("[a")
    llm.between = gate
    live, person = await stage(llm)
    await person.say("how many?")
    await person.sees("There is one and")
    await expect(person.turn.locator("strong")).to_have_text("one")
    assert await person.turn.get_by_role("link").count() == 0
    live.call(gate.is_open.set)
    link = person.turn.get_by_role("link", name="a link")
    await expect(link).to_have_attribute("href", "https://example.com/x")
    await expect(link).to_have_attribute("target", "_blank")
    await expect(link).to_have_attribute("rel", "noopener noreferrer")
    await expect(person.list.get_by_role("link")).to_contain_text("how many?")


async def test_an_approval_shows_what_and_where_and_the_tool_runs_when_it_is_given(stage: OpenStage) -> None:
    live, person = await stage(Spoken(ADD_1, says("Added.")))
    await person.say("add one")
    await person.sees_cards(1)
    await expect(person.cards).to_contain_text("add")
    await expect(person.cards).to_contain_text("in test")
    await expect(person.cards.get_by_label("Arguments")).to_have_text('{\n  "n": 1\n}')
    await expect(person.page).to_have_title("● add one")
    assert live.mesh.ledger.lines == []
    await person.cards.get_by_role("button", name="Approve").click()
    await person.sees("Added.")
    await person.sees_cards(0)
    assert live.mesh.ledger.lines == ["add 1"]
    await person.turn.locator("details.tool summary").click()
    await expect(person.turn.get_by_label("Result")).to_have_text('{\n  "added": 1\n}')


async def test_a_rejection_with_a_reason_reaches_the_model(stage: OpenStage) -> None:
    llm = Spoken(ADD_1, says("As you like."))
    live, person = await stage(llm)
    await person.say("add one")
    await person.cards.get_by_role("button", name="Reject…").click()
    await person.cards.get_by_role("textbox", name="Reason").fill("one is taken")
    await person.cards.get_by_role("button", name="Reject with reason").click()
    await person.sees("As you like.")
    assert live.mesh.ledger.lines == []
    assert "one is taken" in str(llm.requests[-1].messages)


async def test_a_rejection_without_a_reason_ends_the_turn(stage: OpenStage) -> None:
    live, person = await stage(Spoken(ADD_1))
    await person.say("add one")
    await person.cards.get_by_role("button", name="Reject…").click()
    await person.cards.get_by_role("button", name="Reject and stop").click()
    await person.sees("Operation cancelled by user.")
    await person.sees("stopped")
    assert live.mesh.ledger.lines == []


async def test_edited_arguments_are_checked_while_typing_and_are_what_runs(stage: OpenStage) -> None:
    live, person = await stage(Spoken(ADD_1, says("Added.")))
    await person.say("add one")
    card = person.cards
    await card.get_by_role("button", name="Edit").click()
    editor = card.get_by_role("textbox", name="Arguments")
    for wrong, words in (('{"n": ', "This is not JSON"), ("[1]", "a JSON object")):
        await editor.fill(wrong)
        await expect(card.get_by_role("status")).to_contain_text(words)
        await expect(card.get_by_role("button", name="Approve with these")).to_be_disabled()
    await editor.fill('{"n": 9007199254740993}')
    await card.get_by_role("button", name="Approve with these").click()
    await person.sees("Added.")
    assert live.mesh.ledger.lines == ["add 9007199254740993"]


@pytest.mark.servers_go_away  # the browser notes the 400
async def test_arguments_that_the_tool_does_not_take_are_refused_in_words(stage: OpenStage) -> None:
    live, person = await stage(Spoken(ADD_1, says("Added.")))
    await person.say("add one")
    await person.cards.get_by_role("button", name="Edit").click()
    await person.cards.get_by_role("textbox", name="Arguments").fill('{"n": "many"}')
    await person.cards.get_by_role("button", name="Approve with these").click()
    await expect(person.cards.get_by_role("alert")).to_contain_text("edited_args")
    await person.cards.get_by_role("textbox", name="Arguments").fill('{"n": 3}')
    await person.cards.get_by_role("button", name="Approve with these").click()
    await person.sees("Added.")
    assert live.mesh.ledger.lines == ["add 3"]


async def test_several_approvals_wait_side_by_side_and_each_is_decided_alone(stage: OpenStage) -> None:
    roles = {
        name: [calls(("add", {"n": n})), says(f"{name} is through")]
        for name, n in zip("abc", (1, 2, 3), strict=True)
    }
    live, person = await stage(Cast(**roles), config=SIDE_BY_SIDE)
    await person.say("add three")
    await person.sees_cards(3)
    second = person.cards.filter(has_text='"n": 2')
    await expect(second).to_contain_text("2 of 3")
    await second.get_by_role("button", name="Reject…").click()
    await second.get_by_role("textbox", name="Reason").fill("not two")
    await second.get_by_role("button", name="Reject with reason").click()
    await person.sees_cards(2)
    for left in (1, 0):
        await person.cards.first.get_by_role("button", name="Approve").click()
        await person.sees_cards(left)
    await person.sees("6 model calls")
    assert sorted(live.mesh.ledger.lines) == ["add 1", "add 3"]


async def test_two_tabs_show_the_same(stage: OpenStage) -> None:
    llm, gate = Spoken(says("one two three"), ADD_1, says("Added.")), Gate("three")
    llm.between = gate
    live, first = await stage(llm)
    await first.say("count")
    await first.sees("one two")
    second = await first.another_tab()
    await second.sees("count")
    live.call(gate.is_open.set)
    for person in (first, second):
        await person.sees("one two three")
        await person.sees("model call")
    await second.say("add one")
    await first.sees_cards(1)
    await second.sees_cards(1)
    await first.cards.get_by_role("button", name="Approve").click()
    await second.sees("Added.")
    await second.sees_cards(0)
    await first.sees("Added.")
    assert await first.turn.inner_text() == await second.turn.inner_text()


@pytest.mark.servers_go_away
async def test_a_mesh_that_dies_in_the_middle_is_reconnected_to_and_nothing_is_lost(stage: OpenStage) -> None:
    llm, gate = Spoken(says("before"), says("one two three"), ADD_1, says("Added.")), Gate("three")
    llm.between = gate
    live, person = await stage(llm)
    await person.say("first")
    await person.sees("before")
    await person.say("second")
    await person.sees("one two")
    live.down()
    await expect(person.page.get_by_text("Reconnecting …")).to_be_visible(timeout=WITHIN_MS)
    live.call(gate.is_open.set)
    live.run(live.mesh.crash())
    live.up()
    await person.sees("three")
    await person.sees("model call")
    await expect(person.page.get_by_text("Reconnecting …")).to_have_count(0)
    await expect(person.turns).to_have_count(2)
    await expect(person.turns.first).to_contain_text("before")
    await person.say("add one")
    await person.sees_cards(1)


@pytest.mark.servers_go_away
async def test_a_waiting_approval_outlives_the_mesh(stage: OpenStage) -> None:
    live, person = await stage(Spoken(ADD_1, says("Added.")))
    await person.say("add one")
    await person.sees_cards(1)
    live.restart()
    await expect(person.page.get_by_role("img", name="Live")).to_be_visible(timeout=WITHIN_MS)
    await person.cards.get_by_role("button", name="Approve").click()
    await person.sees("Added.")
    assert live.mesh.ledger.lines == ["add 1"]


@pytest.mark.servers_go_away
async def test_a_tool_whose_outcome_nobody_knows_is_asked_about(stage: OpenStage) -> None:
    live, person = await stage(Spoken(ADD_1, says("Added.")))
    never = asyncio.Event()
    live.mesh.ledger.before_add = never.wait  # type: ignore[assignment]
    await person.say("add one")
    await person.cards.get_by_role("button", name="Approve").click()
    await expect(person.turn.locator(".tool.running")).to_have_count(1)
    live.mesh.ledger.before_add = None
    live.restart()
    await expect(person.cards).to_contain_text("Nobody knows whether this ran", timeout=WITHIN_MS)
    await expect(person.cards.get_by_role("button", name="Skip it")).to_be_visible()
    await person.cards.get_by_role("button", name="Run it again").click()
    await person.sees("Added.")
    assert live.mesh.ledger.lines == ["add 1"]


async def test_a_question_of_another_agent_is_answered_in_a_text_field(stage: OpenStage) -> None:
    asks = calls(("ask_user", {"question": "Which colour?"}))
    painter = "name: b\nllm: {model: scripted}\nagent: {name: painter, type: llm, can_ask_user: true}\n"
    with LiveMesh(Spoken(asks, asks, says("Painted.")), painter) as b:
        config = f"name: a\nllm: {{model: scripted}}\na2a: [{{name: b, url: {b.url}}}]\n"
        tell = calls(("a2a_b", {"message": "paint it"}))
        live, person = await stage(Spoken(tell, says("It is done.")), config=config)
        await person.say("have it painted")
        await expect(person.cards).to_contain_text("agent b asks in a", timeout=WITHIN_MS)
        await expect(person.cards).to_contain_text("Which colour?")
        await person.cards.get_by_role("textbox", name="Answer").fill("yes, blue")
        await person.cards.get_by_role("button", name="Send").click()
        await expect(person.turn.locator(".decision")).to_have_count(1, timeout=WITHIN_MS)
        await person.cards.get_by_role("button", name="Skip").click()
        await person.sees("It is done.")
        await person.turn.locator("details.tool summary").click()
        await expect(person.turn.locator(".decision").first).to_contain_text(
            "agent b asked: Which colour? Answered: yes, blue"
        )
        assert "the person skipped the question" in str(b.mesh.llm.requests[-1].messages)  # type: ignore[attr-defined]
        await person.sees_cards(0)
    del live


@pytest.mark.servers_go_away
async def test_a_token_that_is_needed_can_be_set_and_sent_along(stage: OpenStage) -> None:
    with LiveMesh(Spoken(says("Painted."))) as b:
        config = f"name: a\nllm: {{model: scripted}}\na2a: [{{name: b, url: {b.url}}}]\n"
        tell = calls(("a2a_b", {"message": "paint it"}))
        live, person = await stage(Spoken(ADD_1, tell, says("It is done.")), config=config)
        async with httpx.AsyncClient(headers={"Authorization": "Bearer s3cret"}) as client:
            begun = await client.post(f"{live.url}/conversations", json={"message": "go"})
        live.restart()  # and the token is gone
        await person.page.goto(f"{person.page.url}#{begun.json()['conversation']['id']}")
        await person.cards.get_by_role("button", name="Approve").click()
        await expect(person.cards).to_contain_text("An access token is needed", timeout=WITHIN_MS)
        await expect(person.cards.get_by_role("button", name="Go on")).to_be_disabled()
        await person.cards.get_by_role("button", name="Set token…").click()
        await person.page.get_by_label("Access token", exact=False).last.fill("s3cret")
        await person.page.get_by_role("button", name="Use", exact=True).click()
        await person.cards.get_by_role("button", name="Go on").click()
        await person.sees("It is done.")


async def test_a_turn_can_be_stopped(stage: OpenStage) -> None:
    llm, gate = Spoken(says("one two three"), says("next")), Gate("three")
    llm.between = gate
    _, person = await stage(llm)
    await person.say("count")
    await person.sees("one two")
    await person.page.get_by_role("button", name="Stop").click()
    await person.sees("Operation cancelled by user.")
    await person.say("again")
    await person.sees("next")


async def test_the_agent_at_work_is_told_something_paused_and_resumed(stage: OpenStage) -> None:
    llm, gate = Spoken(says("one two three"), says("short and sweet")), Gate("three")
    llm.between = gate
    live, person = await stage(llm)
    await person.say("count")
    await person.sees("one two")
    await person.page.get_by_role("button", name="Pause").click()
    await expect(person.page.get_by_role("button", name="Resume")).to_be_visible()
    await person.message.fill("make it shorter")
    await person.page.get_by_role("button", name="Tell it now").click()
    await person.sees("make it shorter")
    live.call(gate.is_open.set)
    await person.sees("one two three")
    await expect(person.page.locator(".titles, .top").first).to_contain_text("paused", timeout=WITHIN_MS)
    await person.page.get_by_role("button", name="Resume").click()
    await person.sees("short and sweet")
    await expect(person.page.get_by_role("button", name="Pause")).to_have_count(0, timeout=WITHIN_MS)


TREE = """
name: release
llm: {model: scripted}
agent:
  name: release
  type: sequential
  agents:
    - {name: plan, type: llm, prompt: plan}
    - name: checks
      type: parallel
      agents:
        - {name: fast, type: llm, prompt: fast}
        - {name: slow, type: llm, prompt: slow}
    - {name: report, type: llm, prompt: report}
"""


async def test_the_tree_lights_up_as_the_turn_goes_through_it(stage: OpenStage) -> None:
    llm = Cast(
        plan=[says("a plan")], fast=[says("quick")], slow=[says("one two")], report=[says("**all fine**")]
    )
    gate = Gate("two")
    llm.roles["slow"].between = gate
    live, person = await stage(llm, config=TREE)
    await person.say("go")

    async def shows(**states: str) -> None:
        for name, state in states.items():
            node = person.panel.get_by_role("treeitem", name=f"{name}, {state}", exact=True)
            await expect(node).to_have_count(1, timeout=WITHIN_MS)

    await shows(
        release="running", plan="done", checks="running", fast="done", slow="running", report="not begun"
    )
    await expect(person.turn.locator("details.node")).to_have_count(3)
    live.call(gate.is_open.set)
    await shows(release="done", plan="done", checks="done", fast="done", slow="done", report="done")
    await expect(person.turn.locator(".did > .markdown strong")).to_have_text("all fine")


async def test_a_failed_turn_says_why(stage: OpenStage) -> None:
    async def fails(_: LlmRequest) -> LlmCall:
        raise LlmError("scripted: HTTP 401: <b>invalid</b> key")

    _, person = await stage(Spoken(fails))
    await person.say("hello")
    await expect(person.turn.get_by_role("alert")).to_contain_text("HTTP 401: <b>invalid</b> key")


async def test_conversations_are_listed_searched_and_opened_again(stage: OpenStage) -> None:
    _, person = await stage(Spoken(says("fine"), says("well"), ADD_1))
    for number, text in enumerate(("talk about apples", "talk about pears", "add one")):
        await person.page.get_by_role("button", name="New conversation").click()
        await expect(person.turns).to_have_count(0)
        await person.say(text)
        await expect(person.list.get_by_role("link")).to_have_count(number + 1, timeout=WITHIN_MS)
        await expect(person.list.get_by_role("link").first).to_contain_text(text, timeout=WITHIN_MS)
    await expect(person.list.get_by_role("link").first).to_contain_text("waiting", timeout=WITHIN_MS)
    search = person.page.get_by_role("searchbox")
    await search.fill("about PEARS")
    await expect(person.list.get_by_role("link")).to_have_count(1)
    await person.list.get_by_role("link").click()
    await person.sees("well")
    await expect(person.page.get_by_role("heading", level=1)).to_have_text("talk about pears")
    await search.fill("nothing like it")
    await expect(person.list).to_contain_text("Nothing found.")
    await person.list.get_by_role("button", name="Waiting").click()
    await expect(person.list.get_by_role("link")).to_contain_text("add one")
    await person.page.go_back()
    await person.sees_cards(1)


async def test_all_of_it_works_with_the_keyboard_alone(stage: OpenStage) -> None:
    roles = {name: [calls(("add", {"n": n})), says("Through.")] for name, n in zip("ab", (1, 2), strict=True)}
    live, person = await stage(Cast(**roles, c=[says("Nothing.")]), config=SIDE_BY_SIDE)
    keyboard = person.page.keyboard
    await expect(person.message).to_be_focused()
    await keyboard.type("add")
    await keyboard.press("Shift+Enter")
    await keyboard.type("two")
    await keyboard.press("Enter")
    await person.sees("add\ntwo")
    await person.sees_cards(2)
    approve = person.cards.first.get_by_role("button", name="Approve")
    for _ in range(40):
        await keyboard.press("Shift+Tab")
        if await approve.evaluate("button => button === document.activeElement"):
            break
    await keyboard.press("Tab")
    await keyboard.press("Enter")
    await expect(person.cards.first.get_by_role("textbox", name="Reason")).to_be_focused()
    await keyboard.press("Escape")
    await expect(approve).to_be_focused()
    await keyboard.press("Enter")
    await person.sees_cards(1)
    await expect(person.cards.get_by_role("button", name="Approve")).to_be_focused()
    await keyboard.press("Enter")
    await person.sees("model calls")
    await expect(person.message).to_be_focused()
    assert sorted(live.mesh.ledger.lines) == ["add 1", "add 2"]


async def test_it_fits_a_phone_and_its_drawers_open_and_close(stage: OpenStage) -> None:
    _, person = await stage(
        Spoken(calls(("add", {"n": 1})), says("Added.")),
        viewport={"width": 360, "height": 740},
        has_touch=True,
    )
    await person.say("add " + "averylongword" * 20)
    await person.sees_cards(1)
    width = await person.page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360
    await expect(person.list).to_be_hidden()
    await person.page.get_by_role("button", name="Conversations").click()
    await expect(person.list).to_be_visible()
    await person.page.keyboard.press("Escape")
    await expect(person.list).to_be_hidden()
    await person.page.get_by_role("button", name="Agent and tools").click()
    await expect(person.panel.get_by_role("treeitem", name="test, waits for you")).to_be_visible()
    await person.page.get_by_role("button", name="Close the agent's panel").click()
    await person.cards.get_by_role("button", name="Approve").tap()
    await person.sees("Added.")


async def test_dark_follows_the_system_until_a_person_chooses(stage: OpenStage) -> None:
    _, person = await stage(Spoken(says("fine")), color_scheme="dark")

    async def brightness() -> int:
        colour = await person.page.evaluate(
            "getComputedStyle(document.querySelector('main')).backgroundColor"
        )
        return int(colour.split("(")[1].split(",")[0])

    await expect(person.message).to_be_visible()
    assert await brightness() < 60
    await person.page.get_by_role("button", name="Light colours").click()
    assert await brightness() > 200
    await person.page.reload()
    await expect(person.page.get_by_role("button", name="Dark colours")).to_be_visible()
    assert await brightness() > 200


@pytest.mark.servers_go_away
async def test_a_message_that_did_not_get_through_stays_and_is_taken_once(stage: OpenStage) -> None:
    live, person = await stage(Spoken(says("fine"), says("twice")))
    await person.say("hello")
    await person.sees("fine")
    seen: list[str] = []

    async def lose_the_answer(route: Route) -> None:
        seen.append(route.request.headers["idempotency-key"])
        await route.fetch()
        await route.abort()

    await person.page.route("**/api/send", lose_the_answer, times=1)
    await person.say("once")
    await expect(person.page.get_by_role("alert")).to_contain_text("does not answer")
    await expect(person.message).to_have_value("once")
    await person.sees("twice")
    await person.page.route("**/api/send", lambda route: _pass(route, seen))
    await person.message.press("Enter")
    await expect(person.message).to_have_value("")
    await expect(person.turns).to_have_count(2)
    assert len(seen) == 2 and len(set(seen)) == 1
    live.down()
    await person.say("nobody there")
    await expect(person.page.get_by_role("alert")).to_contain_text("cannot be reached")
    await expect(person.message).to_have_value("nobody there")
    live.up()


async def _pass(route: Route, seen: list[str]) -> None:
    seen.append(route.request.headers["idempotency-key"])
    await route.continue_()


@pytest.mark.servers_go_away
async def test_a_conversation_that_is_not_there_is_said_in_words(stage: OpenStage) -> None:
    _, person = await stage(Spoken(says("fine")))
    await person.page.evaluate("location.hash = 'nowhere'")
    await expect(person.page.get_by_role("alert")).to_contain_text("no conversation")
    await person.page.get_by_role("button", name="New conversation").click()
    await person.say("hello")
    await person.sees("fine")


CALLED = """
name: main
llm: {model: scripted}
agents:
  - {name: search, type: llm, prompt: search, description: Finds facts., tools: [look]}
  - {name: analyst, type: llm, prompt: analyst}
agent: {name: main, type: llm, prompt: main, agents: [search, analyst]}
"""
BOTH = calls(("search", {"task": "find cats"}), ("analyst", {"task": "count cats"}))


async def test_called_agents_are_shown_below_their_calls_and_in_the_panel_while_they_run(
    stage: OpenStage,
) -> None:
    gate = Gate("cats")
    cast = Cast(
        main=[BOTH, says("All done.")],
        search=[calls(("look", {})), says("Many cats")],
        analyst=[ADD_1, says("One more.")],
    )
    cast.roles["search"].between = gate
    live, person = await stage(cast, config=CALLED)
    await person.say("go")
    await person.sees_cards(1)
    await person.sees("Many")
    await expect(person.cards).to_contain_text("in analyst, called by main")
    line = person.panel.get_by_role("treeitem")
    await expect(line.filter(has_text="find cats").last).to_have_accessible_name("search, running")
    await expect(line.filter(has_text="count cats").last).to_have_accessible_name("analyst, waits for you")
    search = person.turn.locator("details.agent-call", has_text="find cats")
    await expect(search.locator("details.tool", has_text="look")).to_be_visible()
    live.call(gate.is_open.set)
    await expect(search.locator("> summary")).to_contain_text("done")
    await expect(person.panel.get_by_role("treeitem", name="search, done")).to_have_count(1)
    await search.locator("> summary").click()
    await expect(search.get_by_text("Many cats")).to_have_count(1)
    await person.cards.get_by_role("button", name="Approve").click()
    await person.sees("All done.")
    await expect(line).to_have_count(1)
    assert live.mesh.ledger.lines == ["look", "add 1"]
    before = await person.turn.locator("details").count()
    await person.page.reload()
    await person.sees("All done.")
    await expect(person.turn.locator("details")).to_have_count(before)
    await expect(person.turn.locator("details.agent-call")).to_have_count(2)


async def test_each_limit_has_a_bar_that_says_its_numbers_and_without_limits_there_is_none(
    stage: OpenStage,
) -> None:
    gate, llm = Gate("three"), Spoken(says("one two three"))
    llm.between = gate
    live, person = await stage(llm)
    await person.say("count")
    await person.sees("one two")
    await expect(person.panel.get_by_role("meter")).to_have_count(0)
    spend = Spend(
        turn=1,
        step="0",
        limits={"max_cost_usd": 0.5, "max_llm_calls": 4.0},
        spent={"max_cost_usd": 0.25, "max_llm_calls": 4.0},
        unsettled={"max_cost_usd": 0.05},
        reserved={"max_cost_usd": 0.1},
    )
    live.run(live.mesh.append(Activation(person.conversation_id, 1, live.mesh.newest_run), [spend]))
    cost = person.panel.get_by_role("meter", name="cost")
    await expect(cost).to_have_attribute(
        "aria-valuetext", "$0.25 of $0.50, $0.0500 unsettled, $0.10 reserved"
    )
    widths = "(parts) => parts.map((part) => part.style.width)"
    assert await cost.locator(".bar i").evaluate_all(widths) == ["50%", "10%", "20%"]
    await expect(person.panel.get_by_role("meter", name="model calls")).to_have_class("limit full")
    live.call(gate.is_open.set)
    await person.sees("one two three")
    await expect(cost).to_be_visible()


async def test_the_limits_of_the_newest_turn_have_bars_after_a_reload_while_it_waits_and_after_its_end(
    stage: OpenStage,
) -> None:
    limited = SIMPLE + "budget: {max_llm_calls: 5, max_total_tokens: 90000}\n"
    _, person = await stage(Spoken(ADD_1, says("Added.")), limited)
    await person.say("add one")
    await person.sees_cards(1)
    calls = person.panel.get_by_role("meter", name="model calls")
    await expect(calls).to_have_attribute("aria-valuetext", "1 of 5")
    await person.page.reload()
    await person.sees_cards(1)
    await expect(calls).to_have_attribute("aria-valuetext", "1 of 5")
    await person.cards.get_by_role("button", name="Approve").click()
    await person.sees("Added.")
    await expect(calls).to_have_attribute("aria-valuetext", "2 of 5")
    await person.page.reload()
    await person.sees("Added.")
    await expect(calls).to_have_attribute("aria-valuetext", "2 of 5")
    await expect(person.panel.get_by_role("meter")).to_have_count(2)


async def test_the_started_agents_of_a_turn_have_a_bar_while_they_work_and_after_a_reload(
    stage: OpenStage,
) -> None:
    limited = CALLED.replace("agents: [search, analyst]}", "agents: [search, analyst], spawn: {}}")
    plans = [{"agent": "analyst", "task": f"count {one}"} for one in ("cats", "dogs")]
    main = [calls(("spawn", {"agents": plans})), says("Counted.")]
    asks = [ADD_1, says("one")]
    cast = Cast(main=main, analyst=asks)
    _, person = await stage(cast, limited + "budget: {max_agents: 5}\n")
    await person.say("go")
    for _ in range(2):
        started = person.panel.get_by_role("meter", name="started agents")
        await expect(started).to_have_attribute("aria-valuetext", "2 of 5", timeout=WITHIN_MS)
        await person.page.reload()


async def test_a_tool_that_says_how_far_it_is_has_a_bar_while_it_runs(stage: OpenStage) -> None:
    live, person = await stage(Spoken(calls(("look", {})), says("Seen.")))
    go = live.slow_look(Progress(0.5, "asked the bank"))
    await person.say("look")
    await person.sees("50 %, asked the bank")
    bar = person.turn.get_by_role("progressbar", name="Progress of look")
    await expect(bar).to_have_attribute("aria-valuenow", "50")
    live.call(go.set)
    await person.sees("Seen.")
    await expect(bar).to_have_count(0)


async def test_the_limits_of_a_called_agent_that_waits_have_bars_after_a_reload(stage: OpenStage) -> None:
    limited = CALLED.replace("prompt: analyst", "prompt: analyst, budget: {max_llm_calls: 3}")
    cast = Cast(main=[calls(("analyst", {"task": "count cats"}))], analyst=[ADD_1])
    _, person = await stage(cast, limited)
    await person.say("go")
    for _ in range(2):
        await person.sees_cards(1)
        limits = person.panel.get_by_role("region", name="Limits: analyst")
        await expect(limits.get_by_role("meter")).to_have_attribute("aria-valuetext", "1 of 3")
        await person.page.reload()


@pytest.mark.servers_go_away
async def test_what_was_spent_while_the_page_was_cut_off_is_shown_when_it_is_back(stage: OpenStage) -> None:
    live, person = await stage(Spoken(ADD_1, says("Added.")), f"{SIMPLE}budget: {{max_llm_calls: 5}}\n")
    await person.say("add one")
    await person.sees_cards(1)
    calls = person.panel.get_by_role("meter", name="model calls")
    await expect(calls).to_have_attribute("aria-valuetext", "1 of 5")
    async with httpx.AsyncClient() as http:
        shown = (await http.get(f"{live.url}/conversations/{person.conversation_id}")).json()
    live.down()
    await person.page.get_by_text("Reconnecting").wait_for()
    live.run(live.mesh.decide(shown["conversation"]["pending_approval"]["uuid"], "approve"))
    live.up()
    await person.sees("Added.")
    await expect(calls).to_have_attribute("aria-valuetext", "2 of 5")

"""Agents that were started, few and a thousand, as the page has them: what one event costs is counted in
operations, never by the clock. Run in Chromium."""

import json
from typing import Any

import pytest
from playwright.async_api import Browser, Page, Route, expect

from tests.web.test_called_agents import LINES, TREE
from tests.web.test_reducer import FOLD, event, said
from tests.web.world import WITHIN_MS, serving

pytestmark = pytest.mark.asyncio(loop_scope="session")

COUNTED = """
  let operations = 0;
  const count = (kind, names, costOf) => names.forEach((name) => {
    const made = kind[name];
    kind[name] = function (...given) {
      operations += costOf(this);
      return made.apply(this, given);
    };
  });
  const kinds = [Map.prototype, Set.prototype, Array.prototype];
  const original = kinds.map((one) => [one, Object.getOwnPropertyDescriptors(one)]);
  const counting = (work) => {
    const all = [Symbol.iterator, "entries", "keys", "values", "forEach"];
    for (const kind of [Map.prototype, Set.prototype]) {
      count(kind, ["get", "set", "has", "add", "delete"].filter((name) => name in kind), () => 1);
      count(kind, all, (one) => 1 + one.size);
    }
    const over = ["concat", "every", "filter", "find", "findIndex", "findLast", "flatMap", "indexOf",
      "includes", "join", "map", "reduce", "slice", "some", "sort", "splice", "toSorted", "with"];
    count(Array.prototype, [...over, ...all], (one) => 1 + one.length);
    operations = 0;
    try {
      work();
      return operations;
    } finally {
      original.forEach(([kind, were]) => Object.defineProperties(kind, were));
    }
  };
"""
FOLDED_ONE_BY_ONE = f"""async ([before, events]) => {{
  const {{ apply, fold }} = await import("/static/js/conversation.js");
  {COUNTED}
  let conversation = fold(before);
  return events.map((event) => counting(() => {{ conversation = apply(conversation, event); }}));
}}"""
PAINTED_ONE_BY_ONE = """async ([before, events, tree]) => {
  const { apply, fold } = await import("/static/js/conversation.js");
  const { html, render } = await import("/static/js/html.js");
  const { options } = await import("/static/vendor/preact.js");
  const { TurnView } = await import("/static/js/view/turn.js");
  const { AgentPanel } = await import("/static/js/view/agent-panel.js");
  const [names, decide] = [{}, () => {}];
  const place = document.createElement("div");
  document.body.append(place);
  const access = { deciding: names, decide, more: decide, identify: decide, hasToken: false };
  const panel = { tree, names, calledTrees: [], tools: [], problem: "", isOpen: false, close: decide };
  const paint = ({ turns: [turn] }) => render(html`
    <${TurnView} ...${{ turn, names, ...access }} />
    <${AgentPanel} ...${{ turn, ...panel }} />
  `, place);
  let conversation = fold(before);
  paint(conversation);
  const open = async (element) => {
    const toggled = new Promise((resolve) => element.addEventListener("toggle", resolve, { once: true }));
    element.open = true;
    await toggled;
    await new Promise((resolve) => setTimeout(resolve));
  };
  for (const one of place.querySelectorAll("details.many")) await open(one);
  let parts = 0;
  const before_ = options.vnode;
  options.vnode = (vnode) => { parts += 1; before_?.(vnode); };
  const painted = [];
  for (const event of events) {
    conversation = apply(conversation, event);
    parts = 0;
    paint(conversation);
    painted.push(parts);
  }
  options.vnode = before_;
  const texts = [...place.querySelectorAll("details.many > summary")].map((one) => one.textContent.trim());
  const lines = place.querySelectorAll(".agent-call").length;
  render(null, place);
  place.remove();
  return { painted, texts, lines };
}"""


def agent(index: int) -> str:
    return f"0.researcher@0-0-{index}"


def began(place: str, name: str = "researcher", **more: Any) -> dict[str, Any]:
    about = {"title": f"about {place}", "task": f"find {place}", "by": "spawn", **more}
    return event("agent_started", place, name=name, kind="llm", agent_path=["lead", name], **about)


def ended(place: str, status: str = "completed", text: str = "found") -> dict[str, Any]:
    return event("node_completed", place, name="researcher", status=status, text=text, duration_ms=5)


def spawned(number: int) -> list[dict[str, Any]]:
    """A turn in which a model has started agents, all of which are at work."""
    tasks = [{"agent": "researcher", "task": f"find {index}"} for index in range(number)]
    asked = [{"id": "s", "name": "spawn", "arguments": {"agents": tasks}}]
    call = event("llm_call", "0/llm/0", model="m", tool_calls=asked)
    result = event("tool_result", "0/tool/0.0", call_id="s", tool="spawn", content="{}")
    return [said(), call, *(began(agent(index)) for index in range(number)), result]


def life(index: int) -> list[dict[str, Any]]:
    """What one of the agents does from then on: every kind of event, to its end."""
    place = agent(index)
    calls = [{"id": "t", "name": "search", "arguments": {"q": "x"}}]
    asked = {"uuid": f"u{index}", "tool_name": "search", "tool_args": {}}
    delta = {"call_id": "t", "name": "search", "phase": "started"}
    return [
        event("node_started", place, name="researcher", kind="llm"),
        event("agent_told", place, id=f"0/tool/1.{index}", text="Only last year.", by="lead"),
        event("text_delta", f"{place}/llm/0", text="I look ", offset=0),
        event("tool_call", f"{place}/llm/0", **delta),
        event("llm_call", f"{place}/llm/0", model="m", text="I look", tool_calls=calls),
        event("approval_required", f"{place}/tool/0.0", **asked),
        event("paused", run=1),
        event("approval_resolved", f"{place}/tool/0.0", uuid=f"u{index}", decision="approve"),
        event("tool_intent", f"{place}/tool/0.0", run=1, tool="search", arguments={"q": "x"}),
        event("tool_progress", f"{place}/tool/0.0", tool="search", progress=0.5),
        event("tool_result", f"{place}/tool/0.0", call_id="t", tool="search", content="found"),
        event("spend", place, limits={"max_llm_calls": 9}, spent={"max_llm_calls": 1}, reserved={}),
        began(f"{place}.helper@0-0-0", "helper"),
        ended(f"{place}.helper@0-0-0"),
        ended(place),
    ]


async def test_what_an_event_costs_does_not_depend_on_the_number_of_agents(page: Page) -> None:
    few, many = [
        await page.evaluate(FOLDED_ONE_BY_ONE, [spawned(number), [*life(7), *life(11)]])
        for number in (100, 1_000)
    ]
    assert few == many
    assert max(few) < 300


async def test_starting_one_more_costs_the_same_however_many_there_are(page: Page) -> None:
    few, many = [
        await page.evaluate(FOLDED_ONE_BY_ONE, [spawned(number), [began("0.researcher@1-0-7")]])
        for number in (100, 1_000)
    ]
    assert few == many


async def test_what_is_painted_for_an_event_does_not_depend_on_the_number_of_agents(page: Page) -> None:
    # What never changes is made once for all, as the first is painted.
    _, few, many = [
        await page.evaluate(PAINTED_ONE_BY_ONE, [spawned(number), [*life(7), *life(60)], TREE])
        for number in (70, 100, 1_000)
    ]
    assert few["painted"] == many["painted"]
    assert max(many["painted"]) < 1_000
    assert few["texts"] == ["2 of 100 agents completed · 98 running"]
    assert many["texts"] == ["2 of 1,000 agents completed · 998 running"]
    assert (few["lines"], many["lines"]) == (25, 25)


async def test_agents_that_ended_are_counted_by_how(page: Page) -> None:
    ends = [ended(agent(0)), ended(agent(1), "failed", "no"), ended(agent(2), "deleted", "late")]
    asked = event("approval_required", f"{agent(3)}/tool/0.0", uuid="u", tool_name="add", tool_args={})
    counts = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { countsOf } = await import("/static/js/tree-status.js");
      const { counted } = await import("/static/js/view/words.js");
      const turn = fold(events).turns[0];
      const groups = ["0/tool/0.0", "0"].map((group) => turn.started.get(group));
      return groups.map((started) => counted(countsOf(started, turn.status === "running")));
    }"""
    words = "1 of 5 agents completed · 1 failed · 1 deleted · 1 waiting · 1 running"
    assert await page.evaluate(counts, [*spawned(5), *ends, asked]) == [words, words]
    gone = [*spawned(5), *ends, asked, ended(agent(3), "deleted", "late"), event("error", message="x")]
    words = "1 of 5 agents completed · 1 failed · 2 deleted · 1 stopped"
    assert await page.evaluate(counts, gone) == [words, words]


async def test_what_an_agent_that_was_deleted_asked_waits_no_more(page: Page) -> None:
    below = f"{agent(0)}.helper@0-0-0"
    asked = event("approval_required", f"{below}/tool/0.0", uuid="u", tool_name="add", tool_args={})
    deleted = [*spawned(2), began(below, "helper"), asked, ended(agent(0), "deleted", "late")]
    turn = (await page.evaluate(FOLD, deleted))["turns"][0]
    assert turn["pending"] == {}
    assert not any(turn["waits"].values())


async def test_a_few_started_agents_have_a_line_each_and_many_have_one(page: Page) -> None:
    one = event("text_delta", f"{agent(1)}.0/llm/0", text="hm", offset=0)
    lines = (await page.evaluate(LINES, [[*spawned(2), one, ended(agent(0))], TREE]))[4]
    first = ["researcher", f"about {agent(0)}", "completed", 0, []]
    below = ["0.researcher@0-0-1.0", "", "running", 0, []]
    second = [
        "researcher",
        f"about {agent(1)}",
        "running",
        0,
        [[f"{below[0].removeprefix('0.').replace('@0-0-1', '')}", *below[1:]]],
    ]
    assert lines == [first, second]
    assert (await page.evaluate(LINES, [spawned(50), TREE]))[4] == [["agents", "", "running", 0, []]]


async def test_a_fork_is_shown_below_its_call_by_its_title(page: Page) -> None:
    fork = "0.self@0-0-0"
    asked = [{"id": "f", "name": "fork", "arguments": {"prompt": "look"}}]
    call = event("llm_call", "0/llm/0", model="m", tool_calls=asked)
    started = began(fork, "self", by="fork", title="the other half")
    words = event("llm_call", f"{fork}/llm/1", model="m", text="half found")
    painted = await shown(page, [said(), call, started, words, ended(fork, text="half found")])
    assert "forkthe other halfdone, 5 ms" in painted
    assert "1 agent" in painted


async def test_what_an_agent_is_told_stands_where_it_was_told(page: Page) -> None:
    place = agent(1)
    before = event("llm_call", f"{place}/llm/0", model="m", text="I look")
    told = event("agent_told", place, id="0/tool/1.0", text="Only last year.\u202e", by="lead")
    again = event("agent_told", place, id="0/tool/1.1", text="And this one.", by="lead")
    after = event("llm_call", f"{place}/llm/1", model="m", text="I look again", heard=["0/tool/1.0"])
    painted = await shown(page, [*spawned(2), before, told, again, told, after])
    parts = ["I look", "Told by lead: Only last year.\\u202e", "Told by lead: And this one.", "I look again"]
    assert "".join(parts) in painted.replace(" Told", "Told").replace(" I look", "I look")


async def test_a_card_says_which_of_the_agents_asks(page: Page) -> None:
    about = {"tool_name": "add", "tool_args": {}, "agent_path": ["lead", "researcher"]}
    asked = [event("approval_required", f"{agent(i)}/tool/0.0", uuid=f"u{i}", **about) for i in range(2)]
    painted = await shown(page, [*spawned(2), *asked])
    assert all(f"in researcher (about {agent(index)}), called by lead" in painted for index in range(2))
    item = began("0.0#2", "one", by="map", title="")
    below = event(
        "approval_required", "0.0#2.1/tool/0.0", uuid="u", tool_name="add", asked_by="two", tool_args={}
    )
    assert "in two (item 2: find 0.0#2)" in await shown(page, [said(), item, below])


async def test_an_agent_that_a_node_above_stopped_says_who_did_it_and_why(page: Page) -> None:
    stopped = event("agent_told", agent(1), id="0/tool/1.0", text="Too dear.", by="lead", action="delete")
    assert "Stopped by lead: Too dear." in await shown(page, [*spawned(2), stopped])


async def test_what_is_told_in_secret_has_no_line(page: Page) -> None:
    told = event("agent_told", agent(1), id="0/tool/1.0", text="", by="lead")
    assert "Told" not in await shown(page, [*spawned(2), told])


async def test_the_items_of_a_map_are_shown_in_the_map_and_counted(page: Page) -> None:
    tree = {
        "path": "0",
        "name": "each",
        "type": "map",
        "agents": [{"path": "0.0", "name": "one", "type": "llm"}],
    }
    items = [began(f"0.0#{number}", "one", by="map", title="") for number in range(1, 31)]
    inside = event("llm_call", "0.0#3/llm/0", model="m", text="three")
    done = [ended("0.0#3", text="three"), ended("0.0#4", "failed", "no")]
    events = [said(), *items, inside, *done]
    assert await page.evaluate(LINES, [events, tree]) == [
        "each", "", "running", 0, [["one", "find 0.0#30", "running", 0, []]],
    ]  # fmt: skip
    assert "1 of 30 agents completed · 1 failed · 28 running" in await shown(page, events)


async def shown(page: Page, events: list[dict[str, Any]]) -> str:
    """The text of the turn, as it is painted."""
    read = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { html, render } = await import("/static/js/html.js");
      const { TurnView } = await import("/static/js/view/turn.js");
      const place = document.createElement("div");
      render(html`<${TurnView} turn=${fold(events).turns[0]} names=${{}} deciding=${{}} />`, place);
      return place.textContent.replace(/\\s+/g, " ");
    }"""
    text: str = await page.evaluate(read, events)
    return text


async def test_a_person_opens_one_of_a_thousand_agents(browser: Browser) -> None:
    created = {"conversation_id": "c", "session_id": "s", "agent": "lead", "digest": "d"}
    events = [event("conversation_created", **created), *spawned(1_000), *life(30)]
    for seq, one in enumerate(events, 1):
        one["seq"] = seq
    stream = "".join(f"id: {one['seq']}\ndata: {json.dumps(one)}\n\n" for one in events)

    async def answer(route: Route) -> None:
        is_first = route.request.url.endswith("after=0")
        await route.fulfill(content_type="text/event-stream", body=stream if is_first else ": still\n\n")

    async with serving("http://127.0.0.1:9") as url:
        context = await browser.new_context()
        page = await context.new_page()
        await page.route("**/api/conversation/*/events*", answer)
        await page.goto(f"{url}/#c")
        many = page.get_by_role("article").locator("details.many")
        await expect(many).to_contain_text("1 of 1,000 agents completed · 999 running", timeout=WITHIN_MS)
        agents = page.locator("details.agent-call")
        await expect(agents).to_have_count(0)
        await many.locator("> summary").click()
        await expect(agents).to_have_count(25, timeout=WITHIN_MS)
        await many.get_by_role("button", name="Later").click()
        await agents.filter(has_text=f"about {agent(30)}").locator("> summary").click()
        opened = agents.filter(has_text=f"find {agent(30)}")
        await expect(opened).to_contain_text("I look", timeout=WITHIN_MS)
        await expect(opened).to_contain_text("1 of 1 agent completed", timeout=WITHIN_MS)
        await context.close()

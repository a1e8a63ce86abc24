"""Agents that are called, and what they spend, as the page's state has them. Run in Chromium."""

from random import Random
from typing import Any

import pytest
from playwright.async_api import Page

from mesh.core.places import Place
from tests.web.test_reducer import FOLD, event, said

pytestmark = pytest.mark.asyncio(loop_scope="session")

TREE = {"path": "0", "name": "main", "type": "llm"}
LINES = """async ([events, tree, called = []]) => {
  const { fold } = await import("/static/js/conversation.js");
  const { linesOf } = await import("/static/js/tree-status.js");
  const seen = ({ name, task, status, iteration, below }) => [name, task, status, iteration, below.map(seen)];
  return seen(linesOf(tree, called, fold(events).turns[0]));
}"""
FIRST, SECOND = "0.search@0-0", "0.search@0-1"
CALLS = [
    {"id": "a", "name": "search", "arguments": {"task": "cats"}},
    {"id": "b", "name": "search", "arguments": {"task": "dogs"}},
]


def started(place: str, seq: int = 0) -> dict[str, Any]:
    return event("agent_started", place, seq, name="search", kind="sequential", agent_path=["main", "search"])


def asked_both() -> list[dict[str, Any]]:
    answer = event("llm_call", "0/llm/0", 2, model="m", tool_calls=CALLS)
    return [said(), answer, started(FIRST, 3), started(SECOND, 4)]


def place(random: Random) -> str:
    """Any place: children, iterations, called and started agents in any order."""

    def part() -> str:
        name, a, b = random.choice(["search", "a-b", "x_1"]), random.randrange(13), random.randrange(1, 13)
        begun = [f"{name}@{a}-{b}", f"{name}@v{a}-{b}", f"{name}@{a}-{b}-{a}", f"self@{a}-{b}-{a}"]
        return random.choice([f"{a}", f"{a}#{b}", *begun])

    return ".".join(["0", *(part() for _ in range(random.randrange(6)))])


async def test_places_are_read_by_the_rules_of_the_mesh(page: Page) -> None:
    random = Random(13)
    texts = [place(random) for _ in range(300)]
    read = """async (places) => {
      const { agentOf, callOf, isFork, pathOf, scopesOf, startedIn } = await import("/static/js/place.js");
      const read = [pathOf, agentOf, callOf, startedIn, isFork, scopesOf];
      return places.map((place) => read.map((one) => one(place)));
    }"""
    expected = [
        [
            place.path,
            place.agent.text,
            place.call.text if place.call else "",
            place.started_in.text if place.started_in else "",
            place.is_fork,
            [one.text for one in place.scopes],
        ]
        for place in map(Place, texts)
    ]
    assert await page.evaluate(read, texts) == expected


async def test_places_are_sorted_by_the_order_of_reading(page: Page) -> None:
    called = ["0.1#1.search@0-2", "0.1#1.search@0-10.3", "0.1#1.a@2-0", "0.1#1.a@2-1-0", "0.1#1.b@2-1-10"]
    in_order = ["0", "0.0#1", *called, "0.0#2", "0.0#10"]
    read = """async (places) => {
      const { byPlace } = await import("/static/js/place.js");
      return places.toSorted(byPlace);
    }"""
    assert await page.evaluate(read, in_order[::-1]) == in_order


async def test_called_agents_are_below_their_caller_each_call_apart_until_the_turn_ends(page: Page) -> None:
    asked = event("approval_required", f"{SECOND}.0/tool/0.0", 5, uuid="u", tool_name="add", tool_args={})
    inner = event("node_started", f"{FIRST}.1#3", name="check", kind="llm")
    events = [*asked_both(), asked, inner]
    first = ["search", "cats", "running", 0, [["check", "", "running", 3, []]]]
    second = ["search", "dogs", "waiting", 0, [["search.0", "", "waiting", 0, []]]]
    assert await page.evaluate(LINES, [events, TREE]) == ["main", "", "waiting", 0, [first, second]]
    result = event("tool_result", "0/tool/0.0", 6, call_id="a", tool="search", content="miaow")
    answered = ["search", "cats", "completed", 0, []]
    assert (await page.evaluate(LINES, [[*events, result], TREE]))[4] == [answered, second]
    ended = [*events, result, event("completed", seq=7, response="x")]
    assert await page.evaluate(LINES, [ended, TREE]) == ["main", "", "completed", 0, []]


async def test_the_tree_of_a_called_agent_is_shown_while_it_runs_with_what_has_not_begun(page: Page) -> None:
    called = {
        "path": "search",
        "name": "search",
        "type": "sequential",
        "agents": [
            {"path": "search.0", "name": "look", "type": "llm"},
            {"path": "search.1", "name": "sum up", "type": "llm"},
        ],
    }
    looks = event("text_delta", f"{FIRST}.0/llm/0", text="hm", offset=0)
    result = event("tool_result", "0/tool/0.1", 5, call_id="b", tool="search", content="x")
    (first, second) = (await page.evaluate(LINES, [[*asked_both(), looks, result], TREE, [called]]))[4]
    assert first[4] == [["look", "", "running", 0, []], ["sum up", "", "idle", 0, []]]
    assert second == ["search", "dogs", "completed", 0, []]


async def test_only_the_agents_of_the_newest_answer_are_in_the_panel(page: Page) -> None:
    events = [*asked_both(), started("0.search@3-0", 5)]
    assert [line[:3] for line in (await page.evaluate(LINES, [events, TREE]))[4]] == [
        ["search", "", "running"]
    ]


async def test_a_node_that_its_agent_left_behind_does_not_run_any_more(page: Page) -> None:
    status = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { statusOf } = await import("/static/js/tree-status.js");
      const turn = fold(events).turns[0];
      return ["0", "0.search@0-0", "0.search@0-0.1"].map((slot) => statusOf(turn, slot).status);
    }"""
    left = event("node_started", f"{FIRST}.1", name="check", kind="llm")
    result = event("tool_result", "0/tool/0.0", 5, call_id="a", tool="search", content="no", is_error=True)
    assert await page.evaluate(status, [*asked_both(), left, result]) == ["running", "failed", "stopped"]


async def test_what_an_agent_does_has_a_call_to_be_shown_below_whatever_comes_first(page: Page) -> None:
    deep = event("text_delta", "0.1.search@3-0.web@0-1/llm/0", text="hi", offset=0)
    turn = (await page.evaluate(FOLD, [said(), deep]))["turns"][0]
    assert [(item["step"], item["name"] if item["kind"] == "tool" else "") for item in turn["items"]] == [
        ("0.1/tool/3.0", "search"),
        ("0.1.search@3-0/tool/0.1", "web"),
        ("0.1.search@3-0.web@0-1/llm/0", ""),
    ]


async def test_what_is_spent_is_known_by_scope_and_the_newest_counts(page: Page) -> None:
    def spend(step: str, spent: float) -> dict[str, Any]:
        limits = {"max_cost_usd": 0.5}
        return event("spend", step, limits=limits, spent={"max_cost_usd": spent}, reserved={})

    turn = (
        await page.evaluate(
            FOLD,
            [
                said(),
                spend("0", 0.1),
                spend(FIRST, 0.05),
                event("completed", seq=2, response="x"),
                spend("0", 0.2),
            ],
        )
    )["turns"][0]
    assert {place: one["spent"]["max_cost_usd"] for place, one in turn["spend"].items()} == {
        "0": 0.2,
        FIRST: 0.05,
    }
    assert turn["spend"]["0"]["unsettled"] == {}


async def test_what_a_report_says_is_spent_counts_unless_something_newer_is_known(page: Page) -> None:
    def spend(spent: int, **more: Any) -> dict[str, Any]:
        return event("spend", "0", limits={"max_llm_calls": 9}, spent={"max_llm_calls": spent}, **more)

    async def seen(*events: dict[str, Any]) -> Any:
        turn = (await page.evaluate(FOLD, [said(), *events]))["turns"][0]
        return turn["spend"]["0"]["spent"]["max_llm_calls"]

    call = event("llm_call", "0/llm/0", 4, model="m", text="x")
    assert await seen(spend(1), call, spend(2, after=4)) == 2
    assert await seen(call, spend(2), spend(1, after=3)) == 2
    assert await seen(spend(2, after=4), call, event("completed", seq=5, response="x")) == 2


async def test_costs_are_summed_and_a_limit_is_noted_at_the_call_that_did_not_fit(page: Page) -> None:
    events = [
        said(),
        event("llm_reserved", "0/llm/0", 2, run=1, tokens=900, max_output=256, nusd=9_000),
        event("llm_call", "0/llm/0", 3, model="m", text="x", cost_nusd=4_000),
        event("llm_settled", "0/llm/1", 4, cost_nusd=500, tokens=7, calls=1),
        event("limit_reached", "0/llm/2", 5, limit="max_cost_usd", scope="0", then="answer"),
        event("llm_call", "0/llm/2", 6, model="m", text="in short", forced="max_cost_usd", cost_nusd=100),
        event("completed", seq=7, response="in short", forced="max_cost_usd"),
    ]
    turn = (await page.evaluate(FOLD, events))["turns"][0]
    assert (turn["nusd"], turn["forced"]) == (4_600, "max_cost_usd")
    last = turn["items"][-1]
    assert (last["step"], last["text"]["text"]) == ("0/llm/2", "in short")
    assert last["limit"] == {"limit": "max_cost_usd", "scope": "0", "then": "answer"}


@pytest.mark.parametrize("step", ["0/llm/2", "0/limit/max_cost_usd"])
async def test_an_approval_that_is_not_about_a_call_is_no_tool(page: Page, step: str) -> None:
    pending = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { pending } = await import("/static/js/turn.js");
      const [turn] = fold(events).turns;
      return [pending(turn, 9).length, [...turn.items.values()].map((item) => item.kind)];
    }"""
    asked = event("approval_required", step, 2, uuid="u", tool_name="budget", tool_args={})
    decided = event("approval_resolved", step, 3, uuid="u", decision="approve")
    assert await page.evaluate(pending, [said(), asked]) == [1, ["text"]]
    assert await page.evaluate(pending, [said(), asked, decided]) == [0, ["text"]]


@pytest.mark.parametrize(
    ("asked", "node", "seen"),
    [
        ({}, "main", "main"),
        ({"asked_by": "main", "agent_path": []}, "x", "main"),
        ({"asked_by": "search", "agent_path": ["main", "search"]}, "x", "search, called by main"),
        ({"agent_path": ["a", "b", "c"]}, "c", "c, called by b, called by a"),
        ({"asked_by": "first", "agent_path": ["main", "worker"]}, "x", "first of worker, called by main"),
    ],
)
async def test_an_approval_says_who_asks_on_whose_behalf(
    page: Page, asked: dict[str, Any], node: str, seen: str
) -> None:
    read = """async ([asked, node]) => (await import("/static/js/approvals.js")).askerOf(asked, node)"""
    assert await page.evaluate(read, [asked, node]) == seen

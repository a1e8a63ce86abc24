"""The page's state is fold(events): pure, whole from any journal, indifferent to repeats. Run in Chromium."""

from typing import Any

import pytest
from playwright.async_api import Page

pytestmark = pytest.mark.asyncio(loop_scope="session")

FOLD = """async (events) => {
  const { fold, empty } = await import("/static/js/conversation.js");
  const plain = (key, value) => {
    if (value instanceof Set) return [...value];
    if (!(value instanceof Map)) return value;
    return ["items", "approvals"].includes(key) ? [...value.values()] : Object.fromEntries(value);
  };
  return JSON.parse(JSON.stringify(fold(events, empty("c")), plain));
}"""


def event(kind: str, /, step: str = "", seq: int = 0, **fields: Any) -> dict[str, Any]:
    numbered = {"seq": seq} if seq else {}
    return {
        "type": kind,
        "turn": 1,
        "step": step,
        "node": step.partition("/")[0],
        "time": "t",
        **numbered,
        **fields,
    }


def said(seq: int = 1) -> dict[str, Any]:
    return event("user_message", seq=seq, text="go")


def delta(text: str, offset: int) -> dict[str, Any]:
    return event("text_delta", "0/llm/1", text=text, offset=offset)


async def text_of(page: Page, *events: dict[str, Any]) -> str:
    turn = (await page.evaluate(FOLD, [said(), *events]))["turns"][0]
    shown: str = turn["items"][0]["text"]["text"]
    return shown


async def test_pieces_of_text_are_counted_in_code_points(page: Page) -> None:
    assert await text_of(page, delta("a😀", 0), delta("b", 2)) == "a😀b"


async def test_repeated_and_retried_pieces_are_harmless(page: Page) -> None:
    assert await text_of(page, delta("one ", 0), delta("two", 4), delta("two", 4)) == "one two"
    assert await text_of(page, delta("😀 wrong", 0), delta("right", 0), delta("!", 5)) == "right!"
    assert await text_of(page, delta("😀😀x", 0), delta("y", 2)) == "😀😀y"


async def test_who_came_late_sees_the_rest_and_then_the_whole(page: Page) -> None:
    late = [delta("two ", 4), delta("three", 8)]
    assert await text_of(page, *late) == "two three"
    whole = event("llm_call", "0/llm/1", 2, model="m", text="one two three")
    assert await text_of(page, *late, whole) == "one two three"
    assert await text_of(page, *late, whole, delta("late", 3)) == "one two three"


async def test_an_event_of_the_journal_counts_once(page: Page) -> None:
    call = event("llm_call", "0/llm/1", 2, model="m", text="x", usage={"input": 3, "output": 4})
    done = event("completed", seq=3, response="x")
    once = await page.evaluate(FOLD, [said(), call, done])
    twice = await page.evaluate(FOLD, [said(), call, said(), call, done, call, done])
    assert once == twice
    assert once["turns"][0]["usage"] == {"calls": 1, "input": 3, "output": 4}


async def test_calls_of_a_retried_answer_are_replaced_by_those_of_the_answer(page: Page) -> None:
    def started(call_id: str) -> dict[str, Any]:
        return event("tool_call", "0/llm/1", phase="started", call_id=call_id, name=call_id)

    answer = event(
        "llm_call", "0/llm/1", 2, model="m", tool_calls=[{"id": "z", "name": "z", "arguments": {"n": 1}}]
    )
    turn = (await page.evaluate(FOLD, [said(), started("x"), started("y"), answer]))["turns"][0]
    tools = [(item["step"], item["name"], item["phase"]) for item in turn["items"] if item["kind"] == "tool"]
    assert tools == [("0/tool/1.0", "z", "called")]


async def test_an_approval_is_pending_until_it_is_decided_or_its_step_has_a_result(page: Page) -> None:
    asked = event("approval_required", "0/tool/1.0", 2, uuid="u", tool_name="add", tool_args={})
    pending = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { pending } = await import("/static/js/turn.js");
      return pending(fold(events).turns[0], 9).map((one) => one.uuid);
    }"""
    resolved = event("approval_resolved", "0/tool/1.0", 3, uuid="u", decision="approve")
    result = event("tool_result", "0/tool/1.0", 3, call_id="c", tool="add", content="{}")
    assert await page.evaluate(pending, [said(), asked, event("paused", seq=3, run=1)]) == ["u"]
    for end in (resolved, result, event("error", seq=3, message="x")):
        assert await page.evaluate(pending, [said(), asked, end]) == []


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, ["", True, False, "Run drop"]),
        ({"remote": "mesh"}, ["agent b", True, False, "Run drop"]),
        ({"remote": "hitl"}, ["agent b", False, False, "Run drop"]),
        ({"remote": "text"}, ["agent b", False, True, "Run drop"]),
        ({"remote": "text", "kind": "question"}, ["agent b", False, False, "Run drop\n  n = 1"]),
        ({"kind": "auth_required"}, ["", False, False, "Run drop\n  n = 1"]),
        ({"kind": "unknown_outcome"}, ["", False, False, "Run drop"]),
    ],
)
async def test_who_asks_and_what_may_be_done_about_it(
    page: Page, fields: dict[str, str], seen: list[Any]
) -> None:
    form = fields.get("remote")
    remote = {
        "remote_agent_name": "b",
        "remote_question": {"context_id": "c", "question_id": "q", "form": form},
        "description": "Agent b asks: Run drop\n  n = 1",
    }
    more = remote if form else {"description": "Run drop\n  n = 1"}
    kind = {"kind": fields["kind"]} if "kind" in fields else {}
    asked = event("approval_required", "0/tool/1.0", 2, uuid="u", tool_name="drop", tool_args={}, **more)
    asked |= kind
    read = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { descriptionOf, kindOf, remoteAgentOf } = await import("/static/js/approvals.js");
      const [one] = fold(events).turns[0].approvals.values();
      const kind = kindOf(one);
      const isInWords = kind.takesText && !kind.isQuestion;
      return [remoteAgentOf(one), kind.editsArguments, isInWords, descriptionOf(one)];
    }"""
    assert await page.evaluate(read, [said(), asked]) == seen


async def test_an_answer_is_kept_with_its_question_and_the_call_goes_on(page: Page) -> None:
    asked = event("approval_required", "0/tool/1.0", 2, uuid="u", tool_name="a", tool_args={})
    asked["kind"] = "question"
    answered = event("approval_resolved", "0/tool/1.0", 3, uuid="u", decision="answer", answer="blue")
    turn = (await page.evaluate(FOLD, [said(), asked, answered]))["turns"][0]
    assert [(one["kind"], one["answer"]) for one in turn["approvals"]] == [("question", "blue")]
    assert turn["items"][0]["phase"] == "called"


async def test_any_prefix_of_a_journal_and_any_nonsense_is_a_conversation(page: Page) -> None:
    nonsense = [
        event("unheard_of", seq=1),
        event("tool_result", "0/tool/9.9", 2, call_id="c", tool="t", content="x"),
        event("completed", seq=3, response="early"),
        said(4),
        event("approval_resolved", "0/tool/1.0", 5, uuid="unknown", decision="approve"),
        event("node_completed", "0.7#3.1", 6, name="far"),
        event("completed", seq=7, response="end"),
        delta("after the end", 0),
    ]
    for length in range(len(nonsense) + 1):
        folded = await page.evaluate(FOLD, nonsense[:length])
        assert folded["seq"] == min(length, 7)
    assert [turn["status"] for turn in folded["turns"]] == ["completed"]
    assert folded["turns"][0]["items"] == []


async def test_iterations_of_a_loop_light_the_same_node_and_are_counted(page: Page) -> None:
    lit = """async (events) => {
      const { fold } = await import("/static/js/conversation.js");
      const { statusOf } = await import("/static/js/tree-status.js");
      const turn = fold(events).turns[0];
      return Object.fromEntries(["0", "0.2", "0.2.0"].map((slot) => [slot, statusOf(turn, slot)]));
    }"""
    first = [
        event("node_completed", "0.2.0#1", 2, name="w"),
        event("llm_call", "0.2.0#2/llm/1", 3, model="m", text="x"),
    ]
    assert await page.evaluate(lit, [said(), *first]) == {
        "0": {"status": "running", "iteration": 0},
        "0.2": {"status": "running", "iteration": 0},
        "0.2.0": {"status": "running", "iteration": 2},
    }
    ended = await page.evaluate(lit, [said(), *first, event("completed", seq=4, response="x")])
    assert {state["status"] for state in ended.values()} == {"completed"}


@pytest.mark.parametrize("cut", range(1, 40, 3))
async def test_a_stream_reads_the_same_wherever_it_is_cut(page: Page, cut: int) -> None:
    first = ": hi\r\nretry: 1000\r\n\r\nevent: a\nid: 1\ndata: {\ndata: }\n\r\n"
    stream = first + ": heartbeat\n\nevent: b\rdata:x\r\r"
    read = """async ([stream, cut]) => {
      const { SseReader } = await import("/static/js/sse.js");
      const reader = new SseReader();
      const pieces = stream.match(new RegExp(`[\\\\s\\\\S]{1,${cut}}`, "g"));
      return pieces.flatMap((piece) => reader.push(piece)).concat(reader.push("\\n"));
    }"""
    assert await page.evaluate(read, [stream, cut]) == [
        {"type": "a", "id": "1", "data": "{\n}"},
        {"type": "b", "id": "", "data": "x"},
    ]


async def test_numbers_are_not_changed_on_their_way_through_the_page(page: Page) -> None:
    text = '{"n":9007199254740993,"x":1.0,"y":0.10000000000000000001,"s":"1.0","z":-7}'
    through = """async (text) => {
      const exact = await import("/static/js/exact-json.js");
      return JSON.stringify(exact.parse(text));
    }"""
    assert await page.evaluate(through, text) == text


async def test_a_call_that_was_denied_is_no_failure(page: Page) -> None:
    end = {"call_id": "c", "tool": "run", "content": "No.", "is_error": True, "rule": "push", "denied": True}
    denied = event("tool_result", "0/tool/1.0", 2, arguments={}, **end)
    (item,) = (await page.evaluate(FOLD, [said(), denied]))["turns"][0]["items"]
    assert item["phase"] == "denied"


async def test_a_call_that_was_stopped_is_neither_done_nor_failed(page: Page) -> None:
    found = {"check": "run", "outcome": "applied", "stopped": "it was cancelled"}
    ran = [
        event("tool_intent", "0/tool/1.0", 2, run=1, tool="run", arguments={}),
        event(
            "tool_result", "0/tool/1.0", 3, call_id="c", tool="run", content="…", is_error=True, found=found
        ),
    ]
    (item,) = (await page.evaluate(FOLD, [said(), *ran]))["turns"][0]["items"]
    assert item["phase"] == "stopped"
    words = await page.evaluate(
        'async (found) => (await import("/static/js/view/words.js")).foundBy(found)', item["found"]
    )
    assert words == "Stopped while it ran: it was cancelled."


async def test_an_agent_that_a_person_adds_is_shown_with_what_it_does(page: Page) -> None:
    place = "0.search@u3"
    told = event("agent_told", "0", 2, id="i", text="birds", by="ann", action="spawn")
    start = event("agent_started", place, 3, name="search", kind="llm", by="person", task="birds", id="x")
    answer = event("llm_call", f"{place}/llm/0", 4, model="m", text="two birds", tool_calls=[])
    end = event("node_completed", place, 5, name="search", status="completed", text="two birds")
    turn = (await page.evaluate(FOLD, [said(), told, start, answer, end]))["turns"][0]
    assert turn["started"]["0"]["completed"] == 1
    assert turn["nodes"][place]["name"] == "search"
    assert turn["agents"][place]["steps"] == {place: [f"{place}/llm/0"]}


async def test_what_the_store_has_lost_is_told_at_its_turn_also_when_that_has_ended(page: Page) -> None:
    loss = event("store_went_back", seq=3, lost_up_to=9, message="3 to 9 are lost")
    completed, failed = event("completed", seq=2), event("error", seq=4, message="so it ended")
    (turn,) = (await page.evaluate(FOLD, [said(), completed, loss]))["turns"]
    assert (turn["status"], turn["loss"]) == ("completed", "3 to 9 are lost")
    (turn,) = (await page.evaluate(FOLD, [said(), loss, failed]))["turns"]
    assert (turn["status"], turn["error"], turn["loss"]) == ("failed", "so it ended", "3 to 9 are lost")

"""Events become what is printed: each text once and whole, each call in a line, nothing a terminal obeys."""

from typing import Any
from unicodedata import category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mesh.chat.layout import Layout
from mesh.chat.transcript import TextChunk, Transcript
from mesh.core.events import (
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    Error,
    Found,
    LimitReached,
    LlmCall,
    LlmLost,
    NodeCompleted,
    NodeStarted,
    Paused,
    Spend,
    StoreWentBack,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    ToolIntent,
    ToolProgress,
    ToolResult,
    Trace,
    UserMessage,
    Validation,
)
from mesh.core.messages import accepted_mark
from mesh.display.text import clean

TREE = {"0": "team", "0.0": "writer", "0.1": "editor"}


def printed(events: list[AnyEvent], names: dict[str, str] | None = None, transcript: Any = None) -> str:
    """What a terminal shows of them."""
    transcript, layout = transcript or Transcript(names), Layout()
    parts = [part for event in events for part in transcript.see(event)]
    return "".join(text for part in parts for _, text in layout.put(part))


def delta(text: str, offset: int, step: str = "0/llm/1") -> TextDelta:
    return TextDelta(step=step, text=text, offset=offset)


def answer(text: str = "", *calls: ToolCall, step: str = "0/llm/1") -> LlmCall:
    return LlmCall(seq=3, step=step, model="m", text=text, tool_calls=calls)


ASKS = answer("", ToolCall("c1", "add", {"n": 1}))
ASKED = ApprovalRequired(
    seq=4,
    step="0/tool/1.0",
    uuid="u1",
    call_id="c1",
    tool_name="add",
    tool_args={"n": 1},
    description="Run add",
)
RESULT = ToolResult(seq=7, step="0/tool/1.0", call_id="c1", tool="add", content="ok", duration_ms=12)
MINE = UserMessage(seq=2, turn=1, text="hello")


def begun(names: dict[str, str] | None = None) -> Transcript:
    transcript = Transcript(names)
    transcript.expect("hello")
    transcript.see(MINE)
    return transcript


def test_text_is_printed_as_it_comes_and_not_again_when_it_is_complete() -> None:
    transcript, layout = begun(), Layout()
    pieces = [
        "".join(text for part in transcript.see(event) for _, text in layout.put(part))
        for event in (delta("Hel", 0), delta("lo", 3), answer("Hello"), Completed(response="Hello"))
    ]
    assert pieces == ["Hel", "lo", "", ""]
    assert transcript.is_settled
    assert transcript.is_answered


@settings(deadline=None)
@given(
    st.text(min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12),
)
def test_whatever_pieces_come_twice_or_never_the_text_is_printed_once(
    text: str, cuts: list[tuple[int, int]]
) -> None:
    deltas = [delta(text[start : start + length], start) for start, length in cuts if start <= len(text)]
    transcript = begun()
    parts = [part for event in [*deltas, answer(text)] for part in transcript.see(event)]
    said = "".join(part.text for part in parts if isinstance(part, TextChunk))
    assert said == clean(text)


def test_a_model_call_that_is_tried_again_and_says_something_else_begins_on_a_new_line() -> None:
    events = [delta("Goo", 0), delta("Bad", 0), answer("Bad day")]
    assert printed([*events], transcript=begun()) == "Goo\nBad day"


def test_two_branches_that_speak_at_once_are_printed_one_after_the_other() -> None:
    writer, editor = "0.0/llm/1", "0.1/llm/1"
    events = [
        delta("one ", 0, writer),
        delta("uno ", 0, editor),
        delta("two", 4, writer),
        answer("uno due", step=editor),
        answer("one two", step=writer),
    ]
    assert printed(events, TREE) == "─ writer\none two\n─ editor\nuno due"


def test_a_branch_that_dies_does_not_silence_the_others() -> None:
    events = [
        delta("one ", 0, "0.0/llm/1"),
        delta("uno", 0, "0.1/llm/1"),
        NodeCompleted(step="0.0", name="writer", status="failed", text="the model is gone"),
    ]
    assert printed(events, TREE) == "─ writer\none \n─ editor\nuno\n✗ writer: the model is gone\n"


def test_a_call_is_one_line_with_its_result_and_how_long_it_took() -> None:
    assert printed([ASKS, RESULT], transcript=begun()) == "⚙ add(n=1) ✓ 12 ms\n"


def test_a_call_is_shown_as_soon_as_the_model_has_written_it_and_not_again() -> None:
    ready = ToolCallDelta(step="0/llm/1", phase="ready", call_id="c1", call=ToolCall("c1", "add", {"n": 1}))
    assert printed([ready, ASKS, RESULT], transcript=begun()) == "⚙ add(n=1) ✓ 12 ms\n"


def test_a_failed_call_says_why_and_a_skipped_one_that_it_did_not_run() -> None:
    failed = ToolResult(
        step="0/tool/1.0", call_id="c1", tool="add", content="no\nroom", is_error=True, duration_ms=1234
    )
    skipped = ToolResult(step="0/tool/1.0", call_id="c1", tool="add", content="-", skipped=True)
    assert printed([ASKS, failed], transcript=begun()) == "⚙ add(n=1) ✗ 1.2 s  no room\n"
    assert printed([ASKS, skipped], transcript=begun()) == "⚙ add(n=1) ⊘ not run\n"


def test_the_round_of_a_loop_is_part_of_the_name() -> None:
    events = [NodeStarted(step="0.1#2", name="body", kind="llm"), answer("x", step="0.1#2/llm/1")]
    assert printed(events, {"0": "loop", "0.1": "body"}) == "─ body #2\nx"


def test_an_agent_without_a_tree_is_not_named() -> None:
    assert printed([answer("hi")], {"0": "agent"}) == "hi"


def test_an_answer_that_no_node_said_is_printed_at_the_end() -> None:
    events = [answer("a", step="0.0/llm/1"), answer("b", step="0.1/llm/1"), Completed(response="a\nb")]
    assert printed(events, TREE) == "─ writer\na\n─ editor\nb\n─ answer\na\nb\n"


def test_a_turn_that_needs_a_person_is_settled_with_what_it_asks() -> None:
    transcript = begun()
    assert printed([ASKS, ASKED], transcript=transcript) == "⚙ add(n=1) ⏸ waits for approval\n"
    assert not transcript.is_settled
    transcript.see(Paused(seq=5, run=1))
    assert transcript.is_settled
    assert transcript.is_open
    assert list(transcript.pending) == ["u1"]


def test_a_decision_is_told_with_who_and_why_and_the_turn_goes_on() -> None:
    transcript = begun()
    printed([ASKS, ASKED, Paused(run=1)], transcript=transcript)
    said = printed(
        [ApprovalResolved(uuid="u1", choice="reject", by="ann", reason="taken")], transcript=transcript
    )
    assert said == "→ add rejected by ann: taken\n"
    assert not transcript.pending
    assert not transcript.is_settled


def test_edited_arguments_are_shown_in_the_line_of_the_result() -> None:
    intent = ToolIntent(seq=6, step="0/tool/1.0", run=2, tool="add", arguments={"n": 2})
    assert printed([ASKS, ASKED, intent, RESULT], transcript=begun()).endswith("✓ add(n=2) 12 ms\n")


def test_an_approval_whose_tool_reported_after_all_is_not_asked() -> None:
    transcript = begun()
    printed([ASKS, ASKED, RESULT, Paused(run=1)], transcript=transcript)
    assert not transcript.pending


def test_a_failed_turn_and_a_cancelled_one_are_over_but_not_answered() -> None:
    failed, cancelled = begun(), begun()
    assert printed([Error(message="node 0: no key")], transcript=failed) == "✗ node 0: no key\n"
    assert (
        printed([Completed(response="Stopped.", stopped_by_person=True)], transcript=cancelled)
        == "⊘ Stopped.\n"
    )
    for transcript in (failed, cancelled):
        assert transcript.is_settled
        assert not transcript.is_open
        assert not transcript.is_answered


def test_the_end_of_somebody_elses_turn_is_not_the_end_of_mine() -> None:
    transcript = Transcript()
    transcript.expect("mine")
    theirs = [UserMessage(turn=1, text="theirs"), Completed(turn=1, response="for them")]
    assert printed(theirs, transcript=transcript) == "› theirs\nfor them\n"
    assert not transcript.is_settled
    printed([UserMessage(turn=2, text="mine"), Completed(turn=2, response="for me")], transcript=transcript)
    assert transcript.is_settled


def test_a_retry_of_the_model_is_told_once() -> None:
    again = Trace(step="0/llm/1", message="HTTP 529; again in 2 s")
    assert printed([again, again], transcript=begun()) == "· HTTP 529; again in 2 s\n"


CALLS = (ToolCall("a", "search", {"task": "cats"}), ToolCall("b", "search", {"task": "dogs"}))
FIRST, SECOND = "0.search@0-0", "0.search@0-1"


def called(place: str, name: str = "search") -> AgentStarted:
    return AgentStarted(step=place, name=name, kind="llm", agent_path=("main", name))


def answered(step: str, call: ToolCall) -> ToolResult:
    return ToolResult(step=step, call_id=call.id, tool=call.name, content="many", duration_ms=5)


def test_what_a_called_agent_says_and_does_is_indented_under_its_call_with_its_name() -> None:
    look = ToolCall("c", "look", {})
    events = [
        answer("", CALLS[0], step="0/llm/0"),
        called(FIRST),
        answer("", look, step=f"{FIRST}/llm/0"),
        answered(f"{FIRST}/tool/0.0", look),
        delta("one\n", 0, f"{FIRST}/llm/1"),
        delta("two\n\nthree", 4, f"{FIRST}/llm/1"),
        answer("one\ntwo\n\nthree", step=f"{FIRST}/llm/1"),
        answered("0/tool/0.0", CALLS[0]),
        answer("Many.", step="0/llm/1"),
        Completed(response="Many."),
    ]
    assert printed(events, {"0": "main", "search": "search"}) == (
        "─ main\n"
        '⚙ search(task="cats")\n'
        "  ─ search\n"
        "  ⚙ look() ✓ 5 ms\n"
        "  one\n"
        "  two\n"
        "\n"
        "  three\n"
        "─ main\n"
        '✓ search(task="cats") 5 ms\n'
        "Many."
    )


def test_calls_of_one_agent_are_told_apart_and_so_are_the_nodes_in_them() -> None:
    events = [
        answer("", *CALLS, step="0/llm/0"),
        called(FIRST),
        called(SECOND),
        answer("x", step=f"{FIRST}.1#2/llm/0"),
        answer("y", step=f"{SECOND}.1#2/llm/0"),
        answer("z", step=f"{SECOND}.web@3-0/llm/0"),
    ]
    shown = printed(events, {"0": "main", "search": "search", "search.1": "sum"})
    assert [line for line in shown.splitlines() if "─" in line] == [
        "─ main",
        "  ─ sum #2 in search",
        "  ─ sum #2 in search (2)",
        "    ─ web",
    ]


def test_an_answer_that_only_a_called_agent_said_is_printed_for_the_user() -> None:
    events = [called(FIRST), answer("42", step=f"{FIRST}/llm/0"), Completed(response="42")]
    assert printed(events, {"0": "main"}).endswith("─ answer\n42\n")


def test_a_called_agent_that_waits_says_on_whose_behalf() -> None:
    step = f"{FIRST}/tool/0.0"
    asked = ApprovalRequired(
        step=step,
        uuid="u",
        call_id="c",
        tool_name="add",
        tool_args={},
        description="Run add",
        agent_path=("main", "search"),
    )
    shown = printed([called(FIRST), asked], {"0": "main"})
    assert shown == "  ─ search\n  ⏸ add() waits for approval (called by main)\n"


def spawned(index: int, **more: Any) -> AgentStarted:
    step = f"0.search@0-0-{index}"
    return AgentStarted(
        step=step, name="search", kind="llm", agent_path=("main", "search"), by="spawn", **more
    )


SPAWN = ToolCall("s", "spawn", {})


def test_what_a_started_agent_says_and_does_is_indented_with_its_handle_and_its_end_is_told() -> None:
    look = ToolCall("c", "look", {})
    events = [
        answer("", SPAWN, step="0/llm/0"),
        spawned(0, title="cats"),
        spawned(1, task="find dogs"),
        answered("0/tool/0.0", SPAWN),
        answer("", look, step="0.search@0-0-0/llm/0"),
        answered("0.search@0-0-0/tool/0.0", look),
        NodeCompleted(step="0.search@0-0-0", name="search", text="many", duration_ms=7),
        NodeCompleted(step="0.search@0-0-1", name="search", status="deleted", text="too late"),
    ]
    assert printed(events, {"0": "main", "search": "search"}) == (
        "─ main\n"
        "⚙ spawn()\n"
        "  ─ search@0-0-0\n"
        "  ▸ cats\n"
        "  ─ search@0-0-1\n"
        "  ▸ find dogs\n"
        "─ main\n"
        "✓ spawn() 5 ms\n"
        "  ─ search@0-0-0\n"
        "  ⚙ look() ✓ 5 ms\n"
        "  ✓ is done 7 ms\n"
        "  ─ search@0-0-1\n"
        "  ⊘ is deleted 0 ms  too late\n"
    )


def test_what_a_started_agent_is_told_while_it_works_is_printed_under_its_handle() -> None:
    told = AgentTold(step="0.search@0-0-0", id="0/tool/1.0", text="only cats", by="main")
    shown = printed([spawned(0, title="pets"), told], {"0": "main", "search": "search"})
    assert shown == "  ─ search@0-0-0\n  ▸ pets\n  ▸ is told by main: only cats\n"
    stopped = AgentTold(step="0.search@0-0-0", id="0/tool/2.0", text="enough", by="main", action="delete")
    shown = printed([spawned(0, title="pets"), stopped], {"0": "main", "search": "search"})
    assert shown == "  ─ search@0-0-0\n  ▸ pets\n  ▸ is stopped by main: enough\n"


def test_a_fork_keeps_the_name_of_its_node() -> None:
    fork = AgentStarted(step="0.self@0-0-0", name="self", kind="llm", by="fork", title="half")
    said = answer("x", step="0.self@0-0-0/llm/1")
    shown = printed([fork, said, answer("y", step="0/llm/1")], {"0": "main", "0.1": "other"})
    assert [line for line in shown.splitlines() if "─" in line] == ["  ─ self@0-0-0", "─ main"]


def test_a_thousand_started_agents_are_counted_and_what_they_ask_is_told() -> None:
    transcript = Transcript({"0": "main"})
    starts = [spawned(index) for index in range(1_000)]
    step = f"{starts[3].step}/tool/0.0"
    asked = ApprovalRequired(
        step=step, uuid="u", call_id="c", tool_name="add", tool_args={}, description="Run add"
    )
    shown = printed([*starts, answer("hm", step=f"{starts[3].step}/llm/0"), asked], transcript=transcript)
    assert shown == "· 1,000 agents begin: search\n  ─ search@0-0-3\n  ⏸ add() waits for approval\n"
    assert [*transcript.pending] == ["u"]
    ends = [NodeCompleted(step=start.step, name="search", text="x") for start in starts]
    counted = printed(list(ends), transcript=transcript).splitlines()
    assert counted[0] == "· 100 of 1,000 agents completed"
    assert (len(counted), counted[-1]) == (10, "· 1,000 of 1,000 agents completed")
    assert transcript.pending == {}


def test_a_limit_that_is_reached_and_what_the_turn_spent_are_told() -> None:
    spend = Spend(
        step="0",
        limits={"max_cost_usd": 0.5, "max_total_tokens": 20_000.0, "max_time_s": 60.0, "max_new": 3.0},
        spent={"max_cost_usd": 0.0123, "max_total_tokens": 12_345.0, "max_time_s": 2.5},
        unsettled={"max_cost_usd": 0.25},
        reserved={"max_cost_usd": 0.0, "max_total_tokens": 256.0},
    )
    of_agent = Spend(step=FIRST, limits={"max_llm_calls": 3.0}, spent={"max_llm_calls": 3.0})
    events = [
        called(FIRST),
        LimitReached(step=f"{FIRST}/llm/3", limit="max_llm_calls", scope=FIRST, then="answer"),
        LimitReached(step="0/llm/1", limit="max_cost_usd", scope="0", then="fail"),
        spend,
        of_agent,
        Error(message="no more"),
    ]
    assert printed(events, transcript=begun()).splitlines() == [
        "⚠ the limit of model calls of search is reached: one last answer",
        "⚠ the limit of cost of this turn is reached: it fails",
        "✗ no more",
        "· cost $0.0123 of $0.50 ($0.25 unsettled) · tokens 12,345 of 20,000 (256 reserved)"
        " · time 2.5 s of 60.0 s · max_new 0 of 3",
    ]
    assert printed([MINE, Error(message="x")]) == "› hello\n✗ x\n"


def test_a_model_call_that_was_lost_is_told() -> None:
    lost = printed([LlmLost(step="0/llm/0")], transcript=begun())
    assert lost == "· a model call was lost with the process that made it; the most that it can cost counts\n"


def test_what_an_ended_turn_has_spent_is_told_when_it_is_learned() -> None:
    spend = Spend(step="0", limits={"max_llm_calls": 5.0}, spent={"max_llm_calls": 2.0})
    assert printed([answer("hi"), Completed(response="hi"), spend], transcript=begun()).splitlines() == [
        "hi",
        "· model calls 2 of 5",
    ]


def test_what_a_check_found_of_a_call_is_told() -> None:
    found = Found("was_refunded", "applied")
    result = ToolResult(seq=5, step="0/tool/1.0", call_id="c1", tool="add", content="x", found=found)
    shown = printed([ASKS, result], transcript=begun())
    assert shown == "⚙ add(n=1) ✓ 0 ms, was_refunded found that it had its effect\n"


@pytest.mark.parametrize(("ms", "after"), [(3_140, " after 3.1 s"), (0, "")])
def test_a_call_that_was_stopped_is_told_as_that(ms: int, after: str) -> None:
    found = Found("add", "applied", '{"exit_code": null}', stopped="it was cancelled")
    result = ToolResult(
        seq=5, step="0/tool/1.0", call_id="c1", tool="add", content="x", is_error=True, found=found,
        duration_ms=ms,
    )  # fmt: skip
    shown = printed([ASKS, result], transcript=begun())
    assert shown == f"⚙ add(n=1) ⊘ stopped{after}: it was cancelled\n"


def test_a_call_that_was_denied_names_its_rule() -> None:
    why = "Nothing is pushed. (rule push of the policy)"
    where: dict[str, Any] = {"seq": 5, "step": "0/tool/1.0", "call_id": "c1", "tool": "add"}
    result = ToolResult(**where, content=why, is_error=True, rule="push", denied=True)
    assert printed([ASKS, result], transcript=begun()) == "⚙ add(n=1) ⊘ denied by push: Nothing is pushed.\n"


def progress(part: float, message: str = "") -> ToolProgress:
    return ToolProgress(step="0/tool/1.0", tool="add", progress=part, message=message)


def test_how_far_a_tool_is_is_told_at_each_quarter_and_each_new_message() -> None:
    steps = [progress(n / 100) for n in range(1, 60)]
    result = ToolResult(seq=5, step="0/tool/1.0", call_id="c1", tool="add", content="x", duration_ms=3)
    shown = printed([ASKS, *steps, progress(0.6, "asked"), progress(0.61, "asked"), result])
    assert shown.splitlines() == [
        "⚙ add(n=1) … 25 %",
        "… add(n=1) 50 %",
        "… add(n=1) 60 %, asked",
        "✓ add(n=1) 3 ms",
    ]


def test_a_tool_that_tells_without_end_is_told_a_few_times() -> None:
    told = printed([ASKS, *(progress(0, f"page {n}") for n in range(1000))])
    assert told.splitlines()[:2] == ["⚙ add(n=1) … page 0", "… add(n=1) page 1"]
    assert len(told.splitlines()) == 20


def test_the_call_of_a_tool_node_is_told_with_its_arguments() -> None:
    result = ToolResult(step="0/tool/0.0", call_id="t", tool="look", content="x", arguments={"q": 1})
    assert printed([result], transcript=begun()) == "✓ look(q=1) 0 ms\n"


def draft(text: str, step: str = "0/llm/0") -> LlmCall:
    return LlmCall(step=step, model="m", text=text, draft=True)


def verdict(step: str, *, valid: bool = False, **more: Any) -> Validation:
    return Validation(
        step=step, **{"name": "critic", "kind": "agent", "number": 1, "of": 3, "valid": valid, **more}
    )


def test_an_answer_that_is_checked_is_printed_once_when_it_has_passed() -> None:
    events = [
        draft("no"),
        verdict("0/validation/0.0", valid=True, name="schema", kind="schema"),
        verdict("0/validation/0.1", feedback="Too\nlong."),
        draft("yes", "0/llm/1"),
        verdict("0/validation/1.0", valid=True, number=2, name="schema", kind="schema"),
        Completed(response="yes"),
    ]
    assert printed(events, transcript=begun()).splitlines() == [
        "✓ schema accepts, run 1 of 3",
        "✗ critic objects, run 1 of 3: Too long.",
        "✓ schema accepts, run 2 of 3",
        "yes",
    ]


def test_what_a_node_was_let_through_with_is_printed_as_its_text_and_not_again_as_the_answer() -> None:
    events = [
        draft("no", "0.1/llm/0"),
        verdict("0.1/validation/0.0", feedback="No."),
        NodeCompleted(step="0.1", name="editor", text="no", invalid="No."),
        Completed(response="no"),
    ]
    assert printed(events, TREE, begun(TREE)).splitlines() == [
        "─ editor",
        "✗ critic objects, run 1 of 3: No.",
        "no",
        "⚠ accepted in spite of an objection: No.",
    ]


def test_the_checked_answer_of_a_called_agent_is_below_its_call() -> None:
    content = f"cats{accepted_mark('Few.')}"
    result = ToolResult(step="0/tool/0.0", call_id="c", tool="search", content=content, invalid="Few.")
    events = [called(FIRST), draft("cats", f"{FIRST}/llm/0"), result]
    assert printed(events, {"0": "main"}).splitlines() == [
        "  ─ search",
        "  cats",
        "─ main",
        "✓ search 0 ms",
        "⚠ accepted in spite of an objection: Few.",
    ]


def test_an_answer_that_a_tool_brings_is_no_more_shown_than_another_draft() -> None:
    brings = ToolCall("c", "complete_task", {"result": {"total": 0}})
    refused = ToolResult(
        step=f"{FIRST}/tool/0.0", call_id="c", tool="complete_task", content="No.", is_error=True
    )
    taken = ToolResult(
        step=f"{FIRST}/tool/1.0", call_id="c", tool="complete_task", content="x", invalid="Few."
    )
    result = ToolResult(
        step="0/tool/0.0", call_id="c", tool="search", content="5 [accepted]", invalid="Few.", output=5
    )
    drafts = [LlmCall(step=f"{FIRST}/llm/{n}", model="m", tool_calls=(brings,), draft=True) for n in (0, 1)]
    shown = printed([called(FIRST), drafts[0], refused, drafts[1], taken, result], {"0": "main"})
    assert shown.splitlines() == [
        "  ─ search",
        "  ⚙ complete_task() ✗ 0 ms  No.",
        "  ⚙ complete_task() ✓ 0 ms",
        "  5",
        "─ main",
        "✓ search 0 ms",
        "⚠ accepted in spite of an objection: Few.",
    ]


def test_the_exit_condition_of_a_loop_is_about_a_round() -> None:
    events = [
        verdict("0/validation/1.0", feedback="More."),
        verdict("0/validation/2.0", valid=True, number=2),
    ]
    assert printed(events).splitlines() == [
        "✗ critic goes on, round 1 of 3: More.",
        "✓ critic ends the loop, round 2 of 3",
    ]


def test_a_person_who_gives_another_answer_is_told_to_have_done_so() -> None:
    asked = ApprovalRequired(
        step="0/validation/0.0", uuid="u", call_id="", tool_name="main", tool_args={"output": "x"},
        description="Right?", kind="validation", asked_by="main",
    )  # fmt: skip
    decided = ApprovalResolved(
        step=asked.step, uuid="u", choice="approve", by="ann", edited_args={"output": "y"}
    )
    assert printed([asked, decided]).splitlines() == [
        "⏸ the answer of main waits to be checked",
        "→ the answer of main approved with another answer by ann",
    ]


HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\rover\u202eevil\u2066\x08\x00"


@pytest.mark.parametrize(
    "event",
    [
        UserMessage(text=HOSTILE),
        delta(HOSTILE, 0),
        answer(HOSTILE, ToolCall(HOSTILE, HOSTILE, {HOSTILE: HOSTILE})),
        answer("", ToolCall("c", HOSTILE, malformed=HOSTILE)),
        ToolResult(step="0/tool/1.0", call_id="c", tool=HOSTILE, content=HOSTILE, is_error=True),
        ApprovalRequired(
            uuid="u", call_id="c", tool_name=HOSTILE, tool_args={"a": HOSTILE}, description=HOSTILE
        ),
        ApprovalResolved(uuid="u", choice="reject", by=HOSTILE, reason=HOSTILE),
        NodeCompleted(step="0.0", name=HOSTILE, status="failed", text=HOSTILE),
        Completed(response=HOSTILE),
        Completed(response=HOSTILE, stopped_by_person=True),
        Error(message=HOSTILE),
        Trace(message=HOSTILE),
        ToolResult(step="0/tool/1.0", call_id="c", tool=HOSTILE, content="", arguments={HOSTILE: HOSTILE}),
        Validation(step="0/validation/0.0", name=HOSTILE, kind="check", feedback=HOSTILE, number=1, of=3),
        Completed(response="x", invalid=HOSTILE),
        ToolProgress(step="0/tool/1.0", tool=HOSTILE, progress=float("nan"), message=HOSTILE),
        LimitReached(step="0/llm/1", limit=HOSTILE, scope=f"0.{HOSTILE}@0-0", then="stop"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_nothing_that_a_terminal_obeys_is_printed(event: AnyEvent) -> None:
    shown = printed([event], {"0": HOSTILE, "0.0": HOSTILE})
    assert shown
    assert not [c for c in shown if category(c) in ("Cc", "Cf") and c != "\n"]


def test_what_is_not_for_people_prints_nothing() -> None:
    quiet = [
        ToolCallDelta(phase="started", call_id="c", name="add"),
        NodeStarted(step="0", name="a", kind="llm"),
    ]
    assert printed([*quiet]) == ""


def test_what_the_store_has_lost_is_told_and_the_turn_ends_only_with_its_error() -> None:
    transcript = begun()
    loss = StoreWentBack(turn=1, lost_up_to=9, message="events 3 to 9 are lost")
    assert "events 3 to 9 are lost" in printed([loss], transcript=transcript)
    assert transcript.outcome is None
    printed([Error(turn=1, message="so it ended")], transcript=transcript)
    assert isinstance(transcript.outcome, Error)

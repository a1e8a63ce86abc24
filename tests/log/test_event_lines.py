"""The form for people. `golden` holds what they see of journals that are kept for ever."""

from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mesh.config.model import ModelPrice
from mesh.core.events import (
    AgentsReported,
    AgentStarted,
    AgentTold,
    AnyEvent,
    ApprovalRequired,
    ApprovalResolved,
    Completed,
    ConversationCreated,
    Error,
    FileChange,
    Found,
    LimitReached,
    LlmCall,
    LlmLost,
    LlmReserved,
    NodeCompleted,
    NodeStarted,
    Preview,
    RemoteQuestion,
    StoreWentBack,
    TextDelta,
    ToolCall,
    ToolIntent,
    ToolProgress,
    ToolResult,
    Usage,
    UserMessage,
    Validation,
)
from mesh.core.messages import accepted_mark
from mesh.llm.prices import Prices
from mesh.log.event_lines import EventLines
from mesh.log.journal_files import LogEntry
from mesh.log.node_names import NodeNames
from mesh.log.output import TextOutput
from mesh.log.summary import Summary
from tests.journal.golden.record import HERE as JOURNALS
from tests.journal.golden.record import read

SEEN = Path(__file__).parent / "golden"
HOSTILE = "\x1b[2J\x1b]0;owned\x07a\rb\x9b31m\u202etxt\u2066\x00\x7f\x08"


def shown(events: list[AnyEvent], prices: Prices | None = None, names: NodeNames | None = None) -> str:
    names = names or NodeNames()
    names.learn(events)
    people, totals = EventLines(names, prices or Prices()), Summary(names, prices or Prices())
    lines = []
    for event in events:
        totals.add(event)
        lines += people.lines(event)
    return "".join(f"{line.styled().plain}\n" for line in [*lines, *totals.lines()])


def at(second: int) -> str:
    return f"2026-11-01T10:00:{second:02}.000Z"


def asked(text: str = "Hi") -> UserMessage:
    return UserMessage(seq=2, turn=1, time=at(1), text=text)


@pytest.mark.parametrize("path", sorted(SEEN.glob("*.txt")), ids=lambda path: path.stem)
def test_a_kept_journal_is_seen_as_it_was(path: Path) -> None:
    assert shown(read(JOURNALS / "v1" / f"{path.stem}.jsonl")) == path.read_text()


@pytest.mark.parametrize("path", sorted(JOURNALS.glob("v*/*.jsonl")), ids=lambda path: path.stem)
def test_every_kept_journal_is_shown_with_its_end(path: Path) -> None:
    text = shown(read(path))
    assert "user: Go." in text
    assert "\nsummary\n" in text


class TestWhoAndWhat:
    def test_lines_of_a_text_stand_below_each_other_not_where_a_clock_stands(self) -> None:
        text = shown([asked("one\n00:00:00  ann approved rm\nthree")])
        assert "10:00:01  user: one\n            00:00:00  ann approved rm\n            three\n" in text

    def test_a_model_that_says_nothing_or_is_cut_is_told(self) -> None:
        text = shown(
            [asked(), LlmCall(turn=1, model="m", time=at(2), step="0/llm/0", finish_reason="length")]
        )
        assert "node 0 says nothing  [m, 0 ms, ended by length]" in text

    def test_arguments_that_are_no_json_are_said_to_be_none(self) -> None:
        calls = (ToolCall("c", "add", malformed="{oops"),)
        text = shown([asked(), LlmCall(turn=1, model="m", time=at(2), step="0/llm/0", tool_calls=calls)])
        assert "calls add with arguments that are no JSON" in text

    def test_an_answer_that_was_not_said_just_before_is_shown(self) -> None:
        llm = LlmCall(turn=1, model="m", text="part", time=at(2), step="0/llm/0")
        said = [asked(), llm, Completed(turn=1, response="all of it", time=at(3))]
        assert "node 0 answers: all of it  [turn 1 took 2.0 s]" in shown(said)
        assert "answers" not in shown([*said[:2], Completed(turn=1, response="part", time=at(3))])

    def test_who_decided_what_and_how_long_it_took_is_told(self) -> None:
        wants = ApprovalRequired(
            turn=1, step="0/tool/0.0", uuid="u", call_id="c", tool_name="rm", tool_args={"a": 1},
            description="", time=at(2), expires_at=at(59),
        )  # fmt: skip
        decided: dict[str, Any] = {"turn": 1, "step": "0/tool/0.0", "uuid": "u", "time": at(42)}
        rejects = ApprovalResolved(choice="reject", by="ann", reason="no", **decided)
        text = shown([asked(), wants, rejects])
        assert f"node 0 asks: run rm(a=1)?  [approval u, until {at(59)}]" in text
        assert "10:00:42  ann rejected rm: no  [after 40.0 s]" in text
        skips = shown([asked(), wants, ApprovalResolved(choice="skip", **decided)])
        assert "somebody wants to go on without rm" in skips

    def test_a_turn_that_failed_says_why(self) -> None:
        text = shown([asked(), Error(turn=1, time=at(3), message="the provider is down")])
        assert "10:00:03  failed: the provider is down  [turn 1 took 2.0 s]" in text

    def test_nodes_have_the_names_of_the_config_they_run_under_and_of_no_other(self) -> None:
        created = ConversationCreated(seq=1, conversation_id="c", session_id="", agent="a", digest="d1")
        said = [created, asked(), LlmCall(turn=1, model="m", text="x", time=at(2), step="0.1/llm/0")]
        assert "writer: x" in shown(said, names=NodeNames({"0.1": "writer"}, "d1"))
        assert "node 0.1: x" in shown(said, names=NodeNames({"0.1": "writer"}, "d2"))

    def test_iterations_of_loops_are_told_apart(self) -> None:
        done = [NodeCompleted(turn=1, time=at(2), step=step, name="work") for step in ("0.1#2", "0.1#2.0#3")]
        assert [
            line.split("  [")[0].strip() for line in shown([asked(), *done]).splitlines() if "done" in line
        ] == [
            "10:00:02    work #2 is done",
            "10:00:02      work #2.3 is done",
        ]


WORK: dict[str, Any] = {"turn": 1, "step": "0/tool/0.0"}


def wants(second: int, **more: Any) -> ApprovalRequired:
    about: dict[str, Any] = {"uuid": "u", "tool_name": "drop", "tool_args": {"n": 1}, "description": "Which?"}
    return ApprovalRequired(**WORK, time=at(second), call_id="c", **{**about, **more})


def of_b(second: int, form: Any, **more: Any) -> ApprovalRequired:
    return wants(
        second,
        remote_agent_name="b",
        remote_task_id="t1",
        remote_question=RemoteQuestion("c1", "q1", form),
        **{"description": "Agent b asks: Which?", **more},
    )


def tells(second: int, answers: str = "", attempt: int = 0) -> ToolIntent:
    words = {"message": "paint it\nin full"}
    return ToolIntent(
        **WORK, time=at(second), run=1, tool="a2a_b", arguments=words, attempt=attempt, answers=answers
    )


class TestOtherAgents:
    def test_what_is_said_to_another_agent_and_what_comes_back_is_told(self) -> None:
        heard = ToolResult(**WORK, call_id="c", tool="a2a_b", content="Painted.", time=at(9))
        text = shown([asked(), tells(2), tells(3, attempt=1), heard])
        assert "node 0 tells agent b: paint it\n            in full\n" in text
        assert "            in full  [again]\n" in text
        assert "node 0 hears from agent b: Painted." in text
        assert "agents asked 1 (b 1)" in text and "tools run" not in text
        failed = shown([asked(), msgspec.structs.replace(heard, is_error=True)])
        assert "node 0 agent b failed → Painted." in failed and "agents asked 1 (b 1), 1 failed" in failed

    def test_what_it_asks_who_answered_and_what_it_was_told_is_one_story(self) -> None:
        answers = ApprovalResolved(
            **WORK, uuid="u", choice="answer", answer="dark blue", by="ann", time=at(8)
        )
        text = shown([asked(), of_b(2, "hitl", kind="question"), answers, tells(9, "u", 1)])
        assert "node 0 passes on what agent b asks: Which?  [approval u, task t1 there]" in text
        assert "ann answered the question of agent b: dark blue  [after 6.0 s]" in text
        assert "node 0 tells agent b: the answer: dark blue\n" in text
        assert "decisions    1 (answer 1)" in text

    def test_a_tool_there_that_was_approved_with_other_arguments_is_told(self) -> None:
        edits = ApprovalResolved(**WORK, uuid="u", choice="approve", edited_args={"n": 2}, time=at(8))
        text = shown([asked(), of_b(2, "mesh"), edits, tells(9, "u", 1)])
        assert "passes on what agent b asks: run drop(n=1)?" in text
        assert "somebody approved drop of agent b, as drop(n=2)" in text
        assert "tells agent b: approved with edited arguments\n" in text

    def test_a_token_is_told_of_and_never_told(self) -> None:
        user = UserMessage(turn=1, time=at(1), text="Hi", had_token=True)
        sends = ApprovalResolved(**WORK, uuid="u", choice="approve", had_token=True, time=at(8))
        text = shown([user, of_b(2, "text", kind="auth_required"), sends])
        assert "user: Hi  [with a bearer token]" in text
        assert "node 0 waits for a bearer token for agent b: Which?" in text
        assert "somebody sent a bearer token for b  [after 6.0 s, with a bearer token]" in text

    def test_a_question_of_our_own_agent_is_asked_and_answered(self) -> None:
        answers = ApprovalResolved(**WORK, uuid="u", choice="answer", answer="blue", time=at(8))
        text = shown([asked(), wants(2, kind="question"), answers])
        assert "node 0 asks: Which?  [approval u]" in text
        assert "somebody answered the question: blue" in text
        waits = shown([asked(), wants(2, kind="question")])
        assert "waits for    node 0: the question, approval u" in waits


class TestSummary:
    def test_tokens_and_cost_are_added_up(self) -> None:
        calls: list[AnyEvent] = [
            LlmCall(
                turn=1, model="claude-haiku-4-5", usage=Usage(1000, 100, 500), time=at(2), step=f"0/llm/{i}"
            )
            for i in range(1000)
        ]
        text = shown([asked(), *calls])
        assert "model calls  1000 (claude-haiku-4-5 1000)" in text
        assert "tokens       1,000,000 in (500,000 cached), 100,000 out" in text
        assert "cost         $1.05 (list prices of genai-prices" in text
        assert "[claude-haiku-4-5, 1000 in (500 cached), 100 out, 0 ms, $0.0010]" in text

    def test_what_has_no_price_is_named_beside_what_has_one(self) -> None:
        events: list[AnyEvent] = [
            LlmCall(turn=1, model=model, usage=Usage(1_000_000), time=at(2), step=f"0/llm/{i}")
            for i, model in enumerate(("mine", "strange"))
        ]
        prices = Prices({"mine": ModelPrice(input=3, output=0)})
        assert "cost         $3.00 and what strange cost: no price is known" in shown(
            [asked(), *events], prices
        )

    def test_a_recorded_cost_counts_whatever_the_prices_are(self) -> None:
        call = LlmCall(turn=1, model="mine", time=at(2), step="0/llm/0", cost_nusd=2 * 10**9)
        for price in (1, 1000):
            text = shown([asked(), call], Prices({"mine": ModelPrice(input=price, output=price)}))
            assert "cost         $2.00\n" in text

    def test_each_agent_has_its_own_sum_when_agents_were_called(self) -> None:
        search = ToolCall("a", "search", {"task": "cats"})
        text = shown(
            [
                asked(),
                LlmCall(
                    turn=1,
                    model="m",
                    tool_calls=(search,),
                    usage=Usage(1000, 20),
                    time=at(2),
                    step="0/llm/0",
                    cost_nusd=10**9,
                ),
                AgentStarted(
                    turn=1,
                    name="search",
                    kind="llm",
                    agent_path=("main", "search"),
                    time=at(2),
                    step="0.search@0-0",
                ),
                LlmCall(turn=1, model="m", text="Two.", time=at(3), step="0.search@0-0/llm/0", latency_ms=7),
                ToolResult(
                    turn=1,
                    call_id="a",
                    tool="search",
                    content="Two.",
                    time=at(3),
                    step="0/tool/0.0",
                    forced="max_cost_usd",
                ),
            ]
        )
        assert 'main calls search(task="cats")' in text
        assert "  search begins\n" in text and "  search: Two." in text and "main search → Two." in text
        assert "agent        main: 1 run, 1 model call, 1,000 in, 20 out, $1.00\n" in text
        assert "agent        main → search: 1 run, 1 model call, 7 ms, 1 ended by a limit\n" in text
        assert "agents asked 1 (search 1)" in text and "tools run" not in text

    def test_the_offline_model_is_free(self) -> None:
        text = shown(
            [asked(), LlmCall(turn=1, model="offline", usage=Usage(9, 9), time=at(2), step="0/llm/0")]
        )
        assert "cost         $0.00\n" in text


STRANGERS: list[AnyEvent] = [
    ConversationCreated(conversation_id=HOSTILE, session_id=HOSTILE, agent=HOSTILE, digest=HOSTILE),
    UserMessage(turn=1, text=HOSTILE, session_id=HOSTILE),
    LlmCall(turn=1, model=HOSTILE, text=HOSTILE, tool_calls=(ToolCall("c", HOSTILE, {HOSTILE: HOSTILE}),)),
    ToolIntent(turn=1, run=1, tool=HOSTILE, arguments={HOSTILE: [HOSTILE]}),
    ToolResult(turn=1, call_id="c", tool=HOSTILE, content=HOSTILE, is_error=True),
    ApprovalRequired(
        turn=1, uuid=HOSTILE, call_id="c", tool_name=HOSTILE, tool_args={"a": HOSTILE}, description=HOSTILE,
        asked_by=HOSTILE, expires_at=HOSTILE,
    ),
    ApprovalRequired(
        turn=1, uuid=HOSTILE, call_id="c", tool_name=HOSTILE, tool_args={}, description=HOSTILE,
        kind="question", remote_agent_name=HOSTILE, remote_task_id=HOSTILE,
    ),
    ToolIntent(turn=1, run=1, tool=f"a2a_{HOSTILE}", arguments={"message": HOSTILE}),
    ToolResult(turn=1, call_id="c", tool=f"a2a_{HOSTILE}", content=HOSTILE),
    ApprovalResolved(turn=1, uuid=HOSTILE, choice="answer", by=HOSTILE, answer=HOSTILE),
    ApprovalResolved(
        turn=1, uuid=HOSTILE, choice="approve", by=HOSTILE, edited_args={"a": HOSTILE}, reason=HOSTILE
    ),
    NodeCompleted(turn=1, step=HOSTILE, name=HOSTILE, status="failed", text=HOSTILE, state={HOSTILE: ""}),
    ToolResult(turn=1, call_id="c", tool=HOSTILE, content=HOSTILE, arguments={HOSTILE: HOSTILE}),
    Validation(
        turn=1, step="0/validation/0.0", name=HOSTILE, kind="check", feedback=HOSTILE, number=-1, of=3
    ),
    ApprovalRequired(
        turn=1, uuid=HOSTILE, call_id="", tool_name=HOSTILE, tool_args={"output": HOSTILE},
        description=HOSTILE, kind="validation",
    ),
    ToolResult(turn=1, call_id="c", tool=HOSTILE, content="", found=Found(HOSTILE, "applied", HOSTILE)),
    ToolResult(turn=1, call_id="c", tool=HOSTILE, content="", found=Found("", "applied", "", HOSTILE)),
    ToolProgress(turn=1, tool=HOSTILE, progress=2, message=HOSTILE),
    Completed(turn=1, response=HOSTILE, invalid=HOSTILE),
    Error(turn=1, message=HOSTILE),
]  # fmt: skip


@pytest.mark.parametrize("event", STRANGERS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("time", [HOSTILE, "", "2026-11-01T10:\n0:00.000Z"])
def test_nothing_in_a_journal_reaches_the_terminal_as_a_command(event: AnyEvent, time: str) -> None:
    text = shown([asked(), msgspec.structs.replace(event, time=time)])
    assert not set(text) & set("\x1b\x07\r\x9b\u202e\u2066\x00\x7f\x08")
    assert text.count("\n10:00:01  ") == 1


@given(st.text(), st.text(), st.text(), st.integers(-(2**63), 2**63 - 1))
def test_no_event_is_too_strange_to_be_shown(words: str, step: str, time: str, number: int) -> None:
    events: list[AnyEvent] = [
        UserMessage(turn=1, text=words, time=time),
        LlmCall(
            turn=1, model=words, step=step, time=time, latency_ms=number, usage=Usage(number, number, number)
        ),
        ToolResult(turn=1, call_id="", tool=words, content=words, step=step, time=time, duration_ms=number),
        NodeCompleted(turn=1, name=words, step=step, time=time, duration_ms=number),
        Completed(turn=1, response=words, time=at(1)),
    ]
    assert "summary" in shown(events)


def test_a_model_call_that_was_lost_is_told_with_what_it_counts_as() -> None:
    at_step: dict[str, Any] = {"turn": 1, "step": "0/llm/0", "time": at(2), "attempt": 1}
    reserved = LlmReserved(run=1, tokens=4100, max_output=4096, nusd=12_300_000, **at_step)
    text = shown([asked(), reserved, LlmLost(**at_step)])
    bound = "counts as 4,100 tokens, $0.0123, the most that it can be"
    assert f"node 0 lost a model call with the process that made it  [{bound}]" in text
    text = shown([asked(), LlmLost(**at_step)])
    assert "node 0 lost a model call with the process that made it\n" in text


def test_each_verdict_is_told_with_who_says_what_about_which_answer() -> None:
    answer: dict[str, Any] = {"turn": 1, "time": at(2)}
    schema = Validation(
        step="0/validation/0.0", name="schema", kind="schema", valid=True, number=1, of=3, **answer
    )
    critic = Validation(
        step="0/validation/0.1", name="critic", kind="agent", feedback="Too\nlong.", number=1, of=3, **answer
    )
    text = shown(
        [
            asked(),
            LlmCall(model="m", text="long", step="0/llm/0", draft=True, **answer),
            schema,
            critic,
            LlmCall(model="m", step="0/llm/1", draft=True, **answer),
            Completed(turn=1, response="long", invalid="Too\nlong.", time=at(3)),
        ]
    )
    assert "node 0 drafts: long  [m, 0 ms]" in text
    assert "node 0: schema accepts  [run 1 of 3]" in text
    assert "node 0: critic objects: Too long.  [run 1 of 3]" in text
    assert "node 0 drafts an answer  [m, 0 ms]" in text
    assert "10:00:03  accepted in spite of an objection: Too long.\n" in text
    assert "validations  2 (accepted 1, objected 1)" in text


def test_the_objection_to_the_answer_of_a_called_agent_is_told_once() -> None:
    content = f"3{accepted_mark('critic: Few.')}"
    about: dict[str, Any] = {"step": "0/tool/0.0", "turn": 1, "time": at(2)}
    result = ToolResult(call_id="c", tool="critic", content=content, invalid="critic: Few.", **about)
    text = shown([asked(), result])
    assert text.count("Few.") == 1
    assert "accepted in spite of an objection: critic: Few.]" in text


def test_what_a_person_says_about_an_answer_is_told() -> None:
    asks = wants(2, kind="validation", tool_name="main", tool_args={"output": "x"}, description="Right?")
    decides = ApprovalResolved(
        **WORK, time=at(9), uuid="u", choice="approve", by="ann", edited_args={"output": {"total": 5}}
    )
    text = shown([asked(), asks, decides])
    assert "node 0 asks: is this answer of main right?  [approval u]" in text
    assert 'ann approved the answer of main, as {"total": 5}  [after 7.0 s]' in text


def test_who_follows_sees_how_far_a_tool_is_and_nothing_else_that_is_not_journaled() -> None:
    screen = StringIO()
    output = TextOutput(Console(file=screen, width=200), NodeNames(), Prices())
    half = ToolProgress(**WORK, time=at(2), tool="refund", progress=0.5, message="asked the bank")
    noise = [NodeStarted(turn=1, step="0", name="a", kind="llm"), TextDelta(step="0/llm/0", text="x")]
    output.show([LogEntry(event, b"") for event in (asked(), *noise, half, half)])
    assert screen.getvalue().endswith("  user: Hi\n10:00:02  a refund: 50 %, asked the bank\n")


def test_what_a_check_found_of_a_call_is_told() -> None:
    again = ToolIntent(
        **WORK, time=at(2), run=2, tool="refund", arguments={}, attempt=1,
        found=Found("was_refunded", "not_applied"),
    )  # fmt: skip
    known = ToolResult(
        **WORK, time=at(3), call_id="c", tool="refund", content="ok", found=Found("was_refunded", "applied")
    )
    text = shown([asked(), again, known])
    assert "node 0 runs refund()  [try 2, was_refunded found that it had no effect before]" in text
    assert "node 0 refund → ok  [0 ms, was_refunded found that it had its effect]" in text


def test_a_call_that_was_stopped_is_no_success_and_no_failure() -> None:
    found = Found("run", "applied", "{}", stopped="it was cancelled")
    result = ToolResult(
        **WORK,
        time=at(3),
        call_id="c",
        tool="run",
        content="…",
        is_error=True,
        found=found,
        duration_ms=3_100,
    )
    text = shown([asked(), result])
    assert "node 0 run was stopped → it was cancelled  [3.1 s]" in text
    assert "tools run    1 (run 1), 1 stopped\n" in text


def test_a_call_that_was_denied_did_not_run_and_did_not_fail() -> None:
    why = "Nothing is pushed. (rule push of the policy)"
    end = {"call_id": "c", "is_error": True, "rule": "push", "content": why}
    results = [
        ToolResult(**WORK, time=at(3), tool="run", **end, denied=True),
        ToolResult(**WORK, time=at(4), tool="run", **end),
    ]
    text = shown([asked(), *results])
    assert "node 0 run is denied by push: Nothing is pushed.\n" in text
    assert "tools run    1 (run 1), 1 failed, 1 denied\n" in text


def test_the_rule_that_decided_what_changes_and_what_is_remembered_are_told() -> None:
    where: dict[str, Any] = {"turn": 1, "step": "0/tool/0.0"}
    preview = Preview("diff", "…", (FileChange("a.py", added=3, removed=1), FileChange("b.py", added=1)))
    wants = ApprovalRequired(
        uuid="u",
        call_id="c",
        tool_name="write",
        tool_args={},
        description="",
        rule="edits",
        preview=preview,
        **where,
    )
    rule = {"tools": ["write"], "decide": "allow"}
    agrees = ApprovalResolved(uuid="u", choice="approve", by="ann", remember="always", grant=rule, **where)
    runs = ToolIntent(run=1, tool="write", arguments={}, rule="edits", **where)
    ran = ToolResult(call_id="c", tool="write", content="ok", rule="edits", **where)
    text = shown([asked(), wants, agrees, runs, ran])
    assert "asks: run write()?  [approval u, rule edits, 2 files, +4 −1]" in text
    assert (
        'ann approved write  [after 0 ms, remembered always: {"tools": ["write"], "decide": "allow"}]' in text
    )
    ends = msgspec.structs.replace(agrees, until="2100-01-31T17:00:00.000Z")
    assert "remembered until 2100-01-31T17:00:00.000Z: {" in shown([asked(), wants, ends])
    assert "runs write()  [rule edits]" in text
    assert "write → ok  [0 ms, rule edits]" in text


def test_the_call_of_a_tool_node_is_told_with_its_arguments() -> None:
    result = ToolResult(**WORK, time=at(2), call_id="t", tool="look", content="x", arguments={"q": 1})
    assert "node 0 look(q=1) → x" in shown([asked(), result])


def test_a_limit_that_is_reached_is_told_with_whose_it_is_and_what_follows() -> None:
    place = "0.search@0-0"
    path = ("main", "search")
    called = AgentStarted(seq=3, turn=1, step=place, time=at(2), name="search", kind="llm", agent_path=path)
    own = LimitReached(turn=1, step=f"{place}/llm/1", limit="max_llm_calls", scope=place, then="stop")
    of_turn = LimitReached(turn=1, step="0/llm/1", limit="max_cost_usd", scope="0", then="answer")
    text = shown([asked(), called, own, of_turn])
    assert "search reaches the limit max_llm_calls of search  [it stops]" in text
    assert "main reaches the limit max_cost_usd of the turn  [one last answer follows]" in text


class TestStartedAgents:
    @staticmethod
    def events(number: int) -> list[AnyEvent]:
        places = [f"0.search@0-0-{index}" for index in range(number)]
        starts = [
            AgentStarted(
                turn=1,
                time=at(2),
                step=place,
                name="search",
                kind="llm",
                by="spawn",
                title=f"about {place[-1]}",
            )
            for place in places
        ]
        said = [
            LlmCall(turn=1, time=at(3), step=f"{place}/llm/0", model="m", text=f"from {place}")
            for place in places
        ]
        ends = [NodeCompleted(turn=1, time=at(4), step=place, name="search") for place in places]
        return [
            asked(),
            *starts,
            *said,
            *ends[:-1],
            msgspec.structs.replace(ends[-1], status="deleted", text="late"),
        ]

    def test_a_few_are_told_one_by_one_under_their_handles(self) -> None:
        text = shown(self.events(2))
        assert "  search@0-0-0 begins: about 0  [by spawn]" in text
        assert "  search@0-0-1: from 0.search@0-0-1" in text
        assert "  search@0-0-0 is done  [0 ms]" in text
        assert "  search@0-0-1 is deleted: late  [0 ms]" in text
        assert "agents begun 2 (search 2), 1 completed, 1 deleted" in text

    def test_many_are_counted_and_none_of_their_lines_is_told(self) -> None:
        events = self.events(1_000)
        names, people = NodeNames(), EventLines(NodeNames(), Prices())
        names.learn(events)
        people.learn(events)
        lines = [line.text for event in events[1:] for line in people.lines(event)]
        assert lines[0] == "node 0: 1,000 agents begin: search"
        assert lines[1] == "node 0: 100 of 1,000 agents completed"
        assert (len(lines), lines[-1]) == (11, "node 0: 999 of 1,000 agents completed, 1 deleted")

    def test_all_of_them_are_told_to_who_wants_it(self) -> None:
        events = self.events(1_000)
        people = EventLines(NodeNames(), Prices(), folds=False)
        people.learn(events)
        assert len([line for event in events[1:] for line in people.lines(event)]) == 3_000

    def test_a_fork_does_not_rename_its_node(self) -> None:
        fork = AgentStarted(turn=1, time=at(2), step="0.1.self@0-0-0", name="self", kind="llm", by="fork")
        named = NodeStarted(turn=1, step="0.1", name="lead", kind="llm")
        names = NodeNames()
        names.learn([named, fork])
        assert (names.of("0.1"), names.of("0.1.self@0-0-0")) == ("lead", "self@0-0-0")
        assert names.of("0.1.self@0-0-0.search@1-0-2.3") == "node search.3 of search@1-0-2"

    def test_what_an_agent_is_told_while_it_works_is_a_line(self) -> None:
        place = "0.search@0-0-0"
        told = AgentTold(turn=1, time=at(3), step=place, id="0/tool/1.0", text="only\ncats", by="lead")
        report = AgentsReported(turn=1, time=at(4), step="0/llm/1", text="search@0-0-0: three")
        text = shown([*self.events(1)[:2], told, report])
        assert "search@0-0-0 is told by lead: only cats" in text
        stopped = AgentTold(
            turn=1, time=at(3), step=place, id="0/tool/1.0", text="enough", by="lead", action="delete"
        )
        assert "search@0-0-0 is stopped by lead: enough" in shown([*self.events(1)[:2], stopped])
        assert "node 0 is told: search@0-0-0: three" in text


def test_what_the_store_has_lost_is_told() -> None:
    assert "events 3 to 9 are lost" in shown(
        [StoreWentBack(turn=1, lost_up_to=9, message="events 3 to 9 are lost")]
    )

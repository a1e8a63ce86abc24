"""What a message to a task that waits decides: by its words, its data, and the token that comes with it."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from mesh.a2a.extensions import HITL, MESH
from mesh.core.events import ApprovalRequired, ApprovalResolved, LlmCall
from mesh.llm.port import LlmRequest
from tests.a2a.server.serving import ADD, rest_messages, served
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.rpc import Json, Rpc, answer, question, said, state
from tests.worlds.trees import ByNode, add, config, llm, parallel, sequential

ACTIVATE = {"A2A-Extensions": HITL}
ASKS_B = calls(("a2a_b", {"message": "do it"}))
TOKEN = {"Authorization": "Bearer t1"}


@pytest.mark.parametrize("word", ["yes", "Y", " true ", "approve", "APPROVED", "ok", "Confirm"])
def test_a_word_of_consent_approves(word: str) -> None:
    with served(ADD, says("added")) as (rpc, live):
        task = rpc.send("add")
        assert state(task) == "INPUT_REQUIRED"
        (asked,) = rpc.http.get(f"/conversations/{task['id']}").json()["conversation"]["pending_approvals"]
        assert asked["uuid"] in question(task) and asked["description"] in question(task)
        task = rpc.send(word, task["id"])
        assert (state(task), answer(task)) == ("COMPLETED", "added")
        assert live.mesh.ledger.lines == ["add 7"]


@pytest.mark.parametrize("word", ["no", "N", "false", "reject", "rejected", " cancel", "DENY"])
def test_a_word_of_refusal_rejects(word: str) -> None:
    with served(ADD, says("added")) as (rpc, live):
        task = rpc.send(word, rpc.send("add")["id"])
        assert (state(task), answer(task)) == ("COMPLETED", "Operation cancelled by user.")
        assert live.mesh.ledger.lines == []


@pytest.mark.parametrize("words", ["maybe", "yes please", "retry", "no, wait", "approve 8"])
def test_any_other_text_decides_nothing_and_is_told_what_is_expected(words: str) -> None:
    with served(ADD, says("added")) as (rpc, live):
        task = rpc.send(words, rpc.send("add")["id"])
        assert state(task) == "INPUT_REQUIRED"
        assert question(task).startswith("That is no decision. Expected: yes (or approve) or no")
        assert live.mesh.ledger.lines == []


def test_several_approvals_wait_at_once_and_each_is_decided_by_its_uuid_with_edited_arguments() -> None:
    model = ByNode(a=[add(2**60 + 1), says("A")], b=[add(2), says("B")])
    tree = config(parallel(llm("a"), llm("b"), approvals="ask"))
    with served(model=model, setting=tree) as (rpc, live):
        task = rpc.send("go")
        waiting = task["status"]["message"]["metadata"][MESH]["approvals"]
        assert len(waiting) == 2
        b, a = sorted(waiting, key=lambda asked: asked["tool_args"]["n"])
        assert a["tool_args_json"] == f'{{"n": {2**60 + 1}}}', "doubles would lose it"
        edited = {"uuid": a["uuid"], "decision": "approve", "edited_args_json": f'{{"n": {2**60 + 3}}}'}
        task = rpc.send("decided", task["id"], {"metadata": {MESH: {"decisions": [edited]}}})
        assert state(task) == "INPUT_REQUIRED", "the other one still waits"
        decision = {"uuid": b["uuid"], "decision": "approve", "edited_args": {"n": 3}}
        task = rpc.send("decided", task["id"], {"metadata": {MESH: {"decisions": [decision]}}})
        assert state(task) == "COMPLETED"
        assert sorted(live.mesh.ledger.lines) == [f"add {2**60 + 3}", "add 3"]


def test_a_question_says_which_called_agent_asks_and_on_whose_behalf() -> None:
    ask_lower, ask_adder = (calls((name, {"task": "add"})) for name in ("lower", "adder"))
    model = ByNode(main=[ask_lower, says("done")], lower=[ask_adder, says("so")], adder=[add(1), says("it")])
    tree = config(llm("main", agents=["lower"]), agents=[llm("lower", agents=["adder"]), llm("adder")])
    with served(model=model, setting=tree) as (rpc, _):
        task = rpc.send("go")
        (asked,) = task["status"]["message"]["metadata"][MESH]["approvals"]
        assert asked["agent_path"] == ["main", "lower", "adder"]
        assert "adder asks, on behalf of main → lower." in question(task)
        assert state(rpc.send("yes", task["id"])) == "COMPLETED"


def test_without_called_agents_an_approval_has_the_keys_that_it_always_had() -> None:
    with served(ADD, says("added")) as (rpc, _):
        task = rpc.send("add")
        (asked,) = task["status"]["message"]["metadata"][MESH]["approvals"]
        assert "agent_path" not in asked and "on behalf of" not in question(task)


def test_the_hitl_extension_decides_all_tool_calls_at_once() -> None:
    model = ByNode(a=[add(1), says("A")], b=[add(2), says("B")])
    tree = config(parallel(llm("a"), llm("b"), approvals="ask"))
    with served(model=model, setting=tree) as (rpc, live):
        task = rpc.send("go", **ACTIVATE)
        asked = task["status"]["message"]["metadata"][HITL]
        assert asked["type"] == "tool_approval_request" and HITL in task["status"]["message"]["extensions"]
        one, two = asked["tools"]
        assert {"id", "call_id", "name", "args"} == set(one)

        def decide(*approvals: Json) -> Json:
            payload = {"type": "tool_approval_response", "approvals": list(approvals)}
            message = said("decided", task["id"], metadata={HITL: payload}, extensions=[HITL])
            return rpc.call("SendMessage", {"message": message}, **ACTIVATE)

        yes = {"id": one["id"], "approved": True}
        for wrong in (
            [yes],
            [yes, yes],
            [yes, {"id": "other", "approved": True}],
            [{**yes, "rejection_reason": "but"}, {"id": two["id"], "approved": True}],
        ):
            assert decide(*wrong)["error"]["code"] == -32602, wrong
        assert live.mesh.ledger.lines == []
        done = decide(yes, {"id": two["id"], "approved": False, "rejection_reason": "not two"})
        assert state(done["result"]["task"]) == "COMPLETED"
        assert live.mesh.ledger.lines == [f"add {int(one['args']['n'])}"]


def test_a_question_of_the_agent_is_answered_in_any_words() -> None:
    ask = calls(("ask_user", {"question": "Which city?"}))
    tree = config(llm("a", can_ask_user=True))
    with served(model=ByNode(a=[ask, ask, says("Paris it is")]), setting=tree) as (rpc, _):
        task = rpc.send("book", **ACTIVATE)
        asked = task["status"]["message"]["metadata"][HITL]
        assert asked["questions"] == [{"question": "Which city?", "choices": [], "multiple": False}]
        task = rpc.send("yes", task["id"])
        assert state(task) == "INPUT_REQUIRED"
        waiting = task["status"]["message"]["metadata"][MESH]["approvals"]
        answers = {"type": "ask_user_response", "id": waiting[0]["uuid"], "answers": [{"answer": ["Paris"]}]}
        task = rpc.send("Paris", task["id"], {"metadata": {HITL: answers}, "extensions": [HITL]}, **ACTIVATE)
        assert answer(task) == "Paris it is"
        results = [m["content"] for m in rest_messages(rpc, task) if m["role"] == "tool"]
        assert results == ["yes", "Paris"]


def test_of_a_long_answer_to_a_question_the_model_sees_what_fits_a_result() -> None:
    tree = config(llm("a", can_ask_user=True), limits={"max_result_bytes": 1024})
    ask = calls(("ask_user", {"question": "Which city?"}))
    with served(model=ByNode(a=[ask, says("too long")]), setting=tree) as (rpc, _):
        task = rpc.send("P" * 5000, rpc.send("book")["id"])
        (result,) = [m["content"] for m in rest_messages(rpc, task) if m["role"] == "tool"]
        assert result == "P" * 1024 + "\n[cut: 5000 bytes in all, 1024 kept]"


def test_a_waiting_task_can_be_canceled() -> None:
    with served(ADD, says("added")) as (rpc, live):
        task = rpc.result("CancelTask", {"id": rpc.send("add")["id"]})
        assert state(task) == "CANCELED"
        assert rpc.code("CancelTask", {"id": task["id"]}) == -32002
        assert live.mesh.ledger.lines == []


def test_a_decision_about_what_is_not_pending_any_more_is_refused_and_never_a_message() -> None:
    gate = threading.Event()

    async def waits(request: LlmRequest) -> LlmCall:
        await asyncio.to_thread(gate.wait, 5)
        return says("added")

    with served(ADD, waits) as (rpc, live):
        task = rpc.send("add")
        (asked,) = task["status"]["message"]["metadata"][MESH]["approvals"]
        approved = [{"id": asked["uuid"], "approved": True}]
        late: list[Json] = [
            {MESH: {"decisions": [{"uuid": asked["uuid"], "decision": "reject"}]}},
            {HITL: {"type": "tool_approval_response", "approvals": approved}},
            {HITL: {"type": "ask_user_response", "id": asked["uuid"], "answers": [{"answer": ["no"]}]}},
        ]

        def refused() -> None:
            for metadata in late:
                error = rpc.call("SendMessage", {"message": said("no", task["id"], metadata=metadata)})
                assert error["error"]["code"] == -32602, error
                assert "is not pending any more" in error["error"]["message"]
            nothing = said("no", task["id"], metadata={MESH: {"decisions": []}})
            assert rpc.code("SendMessage", {"message": nothing}) == -32602

        params = {"message": said("yes", task["id"]), "configuration": {"returnImmediately": True}}
        assert state(rpc.result("SendMessage", params)["task"]) == "WORKING"
        refused()
        events = rpc.stream("SubscribeToTask", {"id": task["id"]})
        assert state(next(events)["result"]["task"]) == "WORKING"
        gate.set()
        assert state([event["result"] for event in events][-1]["statusUpdate"]) == "COMPLETED"
        refused()
        said_by_user = [m["content"] for m in rest_messages(rpc, task) if m["role"] == "user"]
        assert said_by_user == ["add"] and live.mesh.ledger.lines == ["add 7"]


async def until_queued(live: LiveMesh, task: str) -> None:
    """Until a message waits for the turn of a task to end."""
    loaded = await live.mesh.keeper._shard.get(task)
    while not loaded.waiting_messages:  # noqa: ASYNC110 - nobody is told of it
        await asyncio.sleep(0.005)


def test_of_two_answers_to_one_question_the_second_is_refused_and_never_a_message() -> None:
    gate = threading.Event()

    async def waits(request: LlmRequest) -> LlmCall:
        await asyncio.to_thread(gate.wait, 5)
        return says("added")

    with served(ADD, waits, says("a second turn")) as (rpc, live), ThreadPoolExecutor() as pool:
        task = rpc.send("add")
        params = {"message": said("yes", task["id"]), "configuration": {"returnImmediately": True}}
        assert state(rpc.result("SendMessage", params)["task"]) == "WORKING"
        late = pool.submit(rpc.code, "SendMessage", {"message": said("no", task["id"])})
        live.run(until_queued(live, task["id"]))
        gate.set()
        assert late.result(5) == -32004
        assert answer(rpc.result("GetTask", {"id": task["id"]})) == "added"


def test_what_was_said_to_a_task_at_work_does_not_revive_it_after_it_was_canceled() -> None:
    async def waits(request: LlmRequest) -> LlmCall:
        await asyncio.Event().wait()
        raise AssertionError

    with served(waits, says("a second turn")) as (rpc, live), ThreadPoolExecutor() as pool:
        params = {"message": said("begin"), "configuration": {"returnImmediately": True}}
        task = rpc.result("SendMessage", params)["task"]
        queued = pool.submit(rpc.code, "SendMessage", {"message": said("by the way", task["id"])})
        live.run(until_queued(live, task["id"]))
        assert state(rpc.result("CancelTask", {"id": task["id"]})) == "CANCELED"
        assert queued.result(5) == -32004
        assert state(rpc.result("GetTask", {"id": task["id"]})) == "CANCELED"


def test_who_does_not_want_to_wait_for_a_task_at_work_is_told_so_at_once() -> None:
    gate = threading.Event()

    async def waits(request: LlmRequest) -> LlmCall:
        await asyncio.to_thread(gate.wait, 5)
        return says("at last")

    with served(waits) as (rpc, _):
        at_once = {"configuration": {"returnImmediately": True}}
        task = rpc.result("SendMessage", {"message": said("begin"), **at_once})["task"]
        also = {"message": said("and", task["id"])}
        refused = [rpc.call("SendMessage", also | at_once), rpc.call("SendStreamingMessage", also)]
        assert [answer["error"]["code"] for answer in refused] == [-32004, -32004]
        assert all("is at work" in answer["error"]["message"] for answer in refused)
        events = rpc.stream("SubscribeToTask", {"id": task["id"]})
        assert state(next(events)["result"]["task"]) == "WORKING"
        gate.set()
        assert state([event["result"] for event in events][-1]["statusUpdate"]) == "COMPLETED"


def test_of_several_decisions_in_a_message_all_are_taken_or_none() -> None:
    model = ByNode(a=[add(1), says("A")], b=[add(2), says("B")])
    tree = config(parallel(llm("a"), llm("b"), approvals="ask"))
    with served(model=model, setting=tree) as (rpc, live):
        task = rpc.send("go")
        one, two = (
            {"uuid": asked["uuid"], "decision": "approve"}
            for asked in task["status"]["message"]["metadata"][MESH]["approvals"]
        )

        def decide(*decisions: Json) -> Json:
            return {"message": said("decided", task["id"], metadata={MESH: {"decisions": list(decisions)}})}

        for wrong in (
            {**two, "edited_args": {"n": "no number"}},
            {**two, "decision": "retry"},
            {**two, "decision": "reject", "edited_args": {"n": 3}},
            {**two, "decision": "reject", "reason": "r" * 5000},
        ):
            assert rpc.code("SendMessage", decide(one, wrong)) == -32602, wrong
        assert state(rpc.result("GetTask", {"id": task["id"]})) == "INPUT_REQUIRED"
        assert live.mesh.ledger.lines == []
        both = decide(one, two)
        first, again = (rpc.result("SendMessage", both)["task"] for _ in range(2))
        assert state(first) == "COMPLETED" and first == again
        assert sorted(live.mesh.ledger.lines) == ["add 1", "add 2"]


# -- tokens


@contextmanager
def without_token(top: Any, below: Any, above: Any) -> Iterator[tuple[Rpc, LiveMesh, Json]]:
    """A task that waits for a token: its turn asked another agent, and lost its own in a crash."""
    with LiveMesh(below) as live_below:
        setting = config(top, a2a=[{"name": "b", "url": f"{live_below.url}/a2a", "destructiveHint": True}])
        with served(setting=setting, model=above) as (rpc, live):
            task = rpc.send("go", Authorization="Bearer t0")
            live.restart()
            yield rpc, live, task


def waiting(task: Json) -> list[Json]:
    found: list[Json] = task["status"]["message"]["metadata"][MESH]["approvals"]
    return found


def approve(rpc: Rpc, task: Json, asked: Json, **headers: str) -> Json:
    approved = {"uuid": asked["uuid"], "decision": "approve"}
    return rpc.send("decided", task["id"], {"metadata": {MESH: {"decisions": [approved]}}}, **headers)


def decided(live: LiveMesh, task: Json) -> list[tuple[str, str, str]]:
    """Kind, decision and answer of all that was decided."""
    events = live.run(live.mesh.journal.read(task["id"]))
    kinds = {event.uuid: event.kind for event in events if isinstance(event, ApprovalRequired)}
    resolved = [event for event in events if isinstance(event, ApprovalResolved)]
    return [(kinds[event.uuid], event.choice, event.answer) for event in resolved]


@contextmanager
def lost_token() -> Iterator[tuple[Rpc, LiveMesh, Json]]:
    model = ByNode(a=[ASKS_B, says("all done")])
    with without_token(llm("a"), Spoken(says("b did it")), model) as (rpc, live, before):
        task = rpc.send("yes", before["id"])
        assert state(task) == "AUTH_REQUIRED"
        yield rpc, live, task


@pytest.mark.parametrize("word", ["no", " Cancel", "deny"])
def test_a_word_of_refusal_rejects_also_when_a_token_comes_with_it(word: str) -> None:
    with lost_token() as (rpc, live, before):
        task = rpc.send(word, before["id"], **TOKEN)
        assert (state(task), answer(task)) == ("COMPLETED", "Operation cancelled by user.")
        assert decided(live, task)[-1] == ("auth_required", "reject", "")


@pytest.mark.parametrize("text", ["here I am", "yes", "continue"])
def test_any_other_text_with_a_token_is_the_token_that_is_waited_for(text: str) -> None:
    with lost_token() as (rpc, live, before):
        without = rpc.send(text, before["id"])
        assert state(without) == "AUTH_REQUIRED" and "That is no decision" in question(without)
        message = said(text, before["id"])
        task = rpc.result("SendMessage", {"message": message}, **TOKEN)["task"]
        assert (state(task), answer(task)) == ("COMPLETED", "all done")
        assert decided(live, task)[1:] == [("auth_required", "approve", "")]


def test_a_decision_in_data_is_that_one_also_when_a_token_comes_with_it() -> None:
    with lost_token() as (rpc, live, before):
        (asked,) = waiting(before)
        rejected = {MESH: {"decisions": [{"uuid": asked["uuid"], "decision": "reject"}]}}
        task = rpc.send("decided", before["id"], {"metadata": rejected}, **TOKEN)
        assert decided(live, task)[-1] == ("auth_required", "reject", "")


@contextmanager
def token_and(first: Any) -> Iterator[tuple[Rpc, LiveMesh, Json]]:
    """``first`` waits for a decision, and then something waits for a token."""
    model = ByNode(a=[first, says("A")], b=[ASKS_B, says("B")])
    branches = parallel(llm("a", can_ask_user=True), llm("b"), approvals="ask")
    with without_token(branches, Spoken(says("b did it")), model) as (rpc, live, before):
        asked = {one["tool_name"]: one for one in waiting(before)}
        task = approve(rpc, before, asked["a2a_b"])
        assert state(task) == "AUTH_REQUIRED"
        kinds = [one["kind"] for one in waiting(task)]
        assert kinds[-1] == "auth_required" and len(kinds) == 2
        yield rpc, live, task


def test_a_word_for_the_oldest_approval_decides_it_and_its_token_is_not_lost() -> None:
    with token_and(add(7)) as (rpc, live, before):
        task = rpc.send("yes", before["id"], **TOKEN)
        assert (state(task), live.mesh.ledger.lines) == ("COMPLETED", ["add 7"])
        assert decided(live, task)[1:] == [("tool_call", "approve", ""), ("auth_required", "approve", "")]
    with token_and(add(7)) as (rpc, live, before):
        task = rpc.send("no", before["id"], **TOKEN)
        assert state(task) == "COMPLETED" and live.mesh.ledger.lines == []
        assert decided(live, task)[1:] == [("tool_call", "reject", "")]
    with token_and(calls(("ask_user", {"question": "Which city?"}))) as (rpc, live, before):
        task = rpc.send("Paris", before["id"], **TOKEN)
        assert decided(live, task)[1:] == [("question", "answer", "Paris"), ("auth_required", "approve", "")]


@pytest.mark.parametrize("text", ["it is me", "continue"])
def test_other_text_with_a_token_leaves_what_it_does_not_decide(text: str) -> None:
    with token_and(add(7)) as (rpc, live, before):
        task = rpc.send(text, before["id"], **TOKEN)
        assert (state(task), live.mesh.ledger.lines) == ("INPUT_REQUIRED", [])
        assert decided(live, task)[1:] == [("auth_required", "approve", "")]


def test_an_agent_that_brings_a_token_and_says_continue_answers_no_question() -> None:
    with token_and(calls(("ask_user", {"question": "Which city?"}))) as (rpc, live, before):
        task = rpc.send("continue", before["id"], **TOKEN)
        assert state(task) == "INPUT_REQUIRED"
        assert decided(live, task)[1:] == [("auth_required", "approve", "")]


def test_a_word_that_comes_again_decides_nothing_that_came_to_wait_meanwhile() -> None:
    model = ByNode(first=[add(1), says("A")], a=[add(2), says("A")], b=[ASKS_B, says("B")])
    tree = sequential(llm("first"), parallel(llm("a"), llm("b"), approvals="ask"))
    with without_token(tree, Spoken(says("b did it")), model) as (rpc, live, before):
        message = {"message": said("yes", before["id"])}
        first = rpc.result("SendMessage", message)["task"]
        asked = {one["tool_name"]: one for one in waiting(first)}
        assert set(asked) == {"add", "a2a_b"}
        task = approve(rpc, before, asked["a2a_b"])
        assert [one["kind"] for one in waiting(task)] == ["tool_call", "auth_required"]
        done = decided(live, before)
        assert rpc.result("SendMessage", message, **TOKEN)["task"]["status"] == first["status"]
        assert decided(live, before) == done and live.mesh.ledger.lines == ["add 1"]


def test_a_decision_in_data_about_another_approval_is_about_that_one() -> None:
    with token_and(add(7)) as (rpc, live, before):
        task = approve(rpc, before, waiting(before)[0], **TOKEN)
        assert (state(task), live.mesh.ledger.lines) == ("AUTH_REQUIRED", ["add 7"])
        assert decided(live, task)[1:] == [("tool_call", "approve", "")]


def test_a_decision_that_comes_again_after_the_end_has_its_first_answer() -> None:
    with served(ADD, says("added")) as (rpc, live):
        task = rpc.send("add")
        message = said("yes", task["id"])
        first, again = (rpc.result("SendMessage", {"message": message})["task"] for _ in range(2))
        assert first == again and state(first) == "COMPLETED"
        other = {**message, "parts": [{"text": "no"}]}
        assert rpc.code("SendMessage", {"message": other}) == -32004
        assert rpc.code("SendMessage", {"message": said("yes", task["id"])}) == -32004
        assert live.mesh.ledger.lines == ["add 7"]


def test_data_that_comes_again_after_the_end_has_its_first_answer() -> None:
    with served(ADD, says("added")) as (rpc, live):
        task = rpc.send("add")
        decision = {"uuid": waiting(task)[0]["uuid"], "decision": "approve"}
        message = said("ok", task["id"], metadata={MESH: {"decisions": [decision]}})
        first, again = (rpc.result("SendMessage", {"message": message})["task"] for _ in range(2))
        assert first == again and state(first) == "COMPLETED"
        assert live.mesh.ledger.lines == ["add 7"]

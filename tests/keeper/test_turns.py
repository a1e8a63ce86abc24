"""Turns, approvals and recovery through a whole mesh in one process."""

import asyncio
from typing import Any

import pytest

from mesh.core.approvals import Decision
from mesh.core.errors import LlmError, Unavailable
from mesh.core.events import LlmCall, ToolCall, ToolIntent
from mesh.core.ids import id_for_key
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper.requests import Decide
from mesh.tree.turn import PassInput, PassOutput
from tests.worlds.mesh import (
    Caller,
    Complete,
    Create,
    Page,
    ScriptedLlm,
    SendMessage,
    WorldMesh,
    as_rest,
    calls,
    says,
)
from tests.worlds.trees import ByNode, config, llm

ADD = ("add", {"n": 1})
LOOK = ("look", {})


async def test_a_message_gets_the_models_answer() -> None:
    async with WorldMesh(ScriptedLlm(says("Hello."))) as mesh:
        status, body = await mesh.create("Hi")
        assert status == 201
        assert body["result"] == {"response": "Hello.", "waiting_approval": False, "auth_required": False}
        roles = [(m["role"], m["content"]) for m in body["conversation"]["messages"]]
        assert roles == [("system", "Be kind."), ("user", "Hi"), ("assistant", "Hello.")]


async def test_a_harmless_tool_runs_without_asking_and_its_result_reaches_the_model() -> None:
    async with WorldMesh(ScriptedLlm(calls(LOOK), says("Empty."))) as mesh:
        _, body = await mesh.create("What is there?")
        assert body["result"]["response"] == "Empty."
        assert mesh.ledger.lines == ["look"]
        tool = next(m for m in body["conversation"]["messages"] if m["role"] == "tool")
        assert tool["tool_call"] == {"name": "look", "arguments": {}, "result": '["look"]', "is_error": False}


async def test_a_destructive_tool_waits_for_approval_and_runs_once_when_approved() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        assert body["result"]["waiting_approval"] is True
        assert body["conversation"]["status"] == "waiting_approval"
        assert mesh.ledger.lines == []
        approval = body["result"]["approval"]
        assert approval["tool_name"] == "add"
        assert "n = 1" in approval["description"]
        status, body = await mesh.decide(approval["uuid"], "approve", by="ann")
        assert (status, body["result"]["response"]) == (200, "Done.")
        assert mesh.ledger.lines == ["add 1"]


async def test_a_rejected_tool_does_not_run_and_the_conversation_goes_on() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Fine."))) as mesh:
        _, body = await mesh.create("Add one")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."
        assert body["conversation"]["status"] == "active"
        assert mesh.ledger.lines == []
        _, body = await mesh.say(body["conversation"]["id"], "And now?")
        assert body["result"]["response"] == "Fine."


async def test_after_a_rejection_every_call_in_the_models_history_has_a_result() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD, LOOK), says("Fine."))) as mesh:
        _, body = await mesh.create("Add one, then look")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        await mesh.say(body["conversation"]["id"], "And now?")
        asked = mesh.llm.requests[-1].messages
        assert [len(m.results) for m in asked if hasattr(m, "results")] == [2]


async def test_each_destructive_call_of_one_answer_is_asked_for() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD, ("add", {"n": 2}), LOOK), says("Both."))) as mesh:
        _, body = await mesh.create("Add one and two")
        first = body["result"]["approval"]
        _, body = await mesh.decide(first["uuid"], "approve")
        second = body["result"]["approval"]
        assert second["tool_args"] == {"n": 2}
        _, body = await mesh.decide(second["uuid"], "approve")
        assert body["result"]["response"] == "Both."
        assert mesh.ledger.lines == ["add 1", "add 2", "look"]


async def test_a_message_while_an_approval_waits_is_answered_with_it_and_not_processed() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        uuid = body["result"]["approval"]["uuid"]
        status, again = await mesh.say(body["conversation"]["id"], "Hurry up")
        assert status == 200
        assert again["result"]["waiting_approval"] is True
        assert again["result"]["approval"]["uuid"] == uuid
        assert all(m["content"] != "Hurry up" for m in again["conversation"]["messages"])


async def test_a_hundred_racing_decisions_have_one_winner() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        uuid = body["result"]["approval"]["uuid"]
        found = await asyncio.gather(
            *(mesh.decide(uuid, "approve", idempotency_key=f"k{i}") for i in range(100))
        )
        statuses = sorted(status for status, _ in found)
        assert statuses == [200] + [409] * 99
        assert mesh.ledger.lines == ["add 1"]
        assert all("approve" in body["error"] for status, body in found if status == 409)


async def test_invalid_arguments_go_back_to_the_model_before_anybody_is_asked() -> None:
    async with WorldMesh(ScriptedLlm(calls(("add", {"n": "one"})), calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        assert body["result"]["approval"]["tool_args"] == {"n": 1}
        refused = next(m for m in body["conversation"]["messages"] if m["role"] == "tool")
        assert refused["tool_call"]["is_error"] is True


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (ToolCall("c", "nope"), "no tool 'nope'"),
        (ToolCall("c", "add", malformed='{"n":'), "not a JSON object"),
    ],
)
async def test_a_call_that_cannot_be_made_is_an_error_the_model_sees(call: ToolCall, why: str) -> None:
    answer = LlmCall(model="m", tool_calls=(call,), finish_reason="tool_calls")
    async with WorldMesh(ScriptedLlm(answer, says("Sorry."))) as mesh:
        _, body = await mesh.create("Do it")
        assert body["result"]["response"] == "Sorry."
        assert why in mesh.llm.requests[-1].messages[-1].results[0].content  # type: ignore[union-attr]


async def test_a_model_that_calls_tools_for_ever_is_stopped_with_a_clear_message() -> None:
    async with WorldMesh(ScriptedLlm(calls(LOOK))) as mesh:
        _, body = await mesh.create("Loop")
        assert "10 model calls" in body["result"]["response"]
        assert len(mesh.llm.requests) == 10


async def test_a_failed_model_call_ends_the_turn_and_says_why() -> None:
    async def fails(_: object) -> LlmCall:
        raise LlmError("anthropic: claude-x: HTTP 401")

    async with WorldMesh(ScriptedLlm(fails, says("Better."))) as mesh:
        status, body = await mesh.create("Hi")
        assert status == 502
        assert "HTTP 401" in body["error"]
        assert body["conversation"]["status"] == "active"
        _, body = await mesh.say(body["conversation"]["id"], "Again")
        assert body["result"]["response"] == "Better."


async def test_messages_to_one_conversation_are_processed_in_order() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as mesh:
        _, body = await mesh.create()
        conversation_id = body["conversation"]["id"]
        await asyncio.gather(*(mesh.say(conversation_id, f"m{i}") for i in range(10)))
        shown = await mesh.show(conversation_id)
        assert [m["content"] for m in shown["messages"] if m["role"] == "user"] == [
            f"m{i}" for i in range(10)
        ]


async def test_a_completed_conversation_takes_no_more_messages() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as mesh:
        _, body = await mesh.create("Hi")
        conversation_id = body["conversation"]["id"]
        status, body = await mesh.ask(Complete(conversation_id))
        assert (status, body["conversation"]["status"]) == (200, "completed")
        status, _ = await mesh.say(conversation_id, "One more")
        assert status == 409


async def test_the_same_idempotency_key_gets_the_first_answer_again() -> None:
    async with WorldMesh(ScriptedLlm(says("one"), says("two"))) as mesh:
        _, body = await mesh.create()
        conversation_id = body["conversation"]["id"]
        first = await mesh.say(conversation_id, "Hi", idempotency_key="k", body_hash="h")
        await mesh.say(conversation_id, "Other")
        again = await mesh.say(conversation_id, "Hi", idempotency_key="k", body_hash="h")
        assert again == first
        status, body = await mesh.say(conversation_id, "Ho", idempotency_key="k", body_hash="h2")
        assert status == 409
        assert "another body" in body["error"]


async def test_a_repeated_creation_finds_the_same_conversation_and_says_nothing_twice() -> None:
    async with WorldMesh(ScriptedLlm(says("one"), says("two"))) as mesh:
        caller = Caller(session_id="s", idempotency_key="k", body_hash="h")
        request = Create(id_for_key(b"secret", "k", ""), caller, "Hi")
        found = await asyncio.gather(*(mesh.ask(request) for _ in range(5)))
        assert all(one == found[0] for one in found)
        assert len(mesh.llm.requests) == 1


async def test_a_waiting_approval_survives_the_keeper() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        await mesh.crash()
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert body["result"]["response"] == "Done."
        assert mesh.ledger.lines == ["add 1"]


async def test_a_turn_that_was_left_open_goes_on_when_a_keeper_starts() -> None:
    reached, answered = asyncio.Event(), asyncio.Event()

    async def slow(_: object) -> LlmCall:
        reached.set()
        await asyncio.sleep(60)
        return says("never")

    async def quick(_: object) -> LlmCall:
        answered.set()
        return says("Recovered.")

    async with WorldMesh(ScriptedLlm(slow, quick)) as mesh:
        _, body = await mesh.create()
        conversation_id = body["conversation"]["id"]
        request = SendMessage(conversation_id, Caller(session_id="s1"), "Hi", wait=False)
        status, _ = await mesh.ask(request)
        assert status == 202
        await asyncio.wait_for(reached.wait(), 30)
        await mesh.crash()
        await asyncio.wait_for(answered.wait(), 30)
        _, body = await mesh.say(conversation_id, "Still there?")
        said = [m["content"] for m in body["conversation"]["messages"] if m["role"] != "system"]
        assert said[:2] == ["Hi", "Recovered."]


async def _interrupted_tool(mesh: WorldMesh) -> dict[str, Any]:
    """The conversation after its keeper was lost while an approved tool ran."""
    running = asyncio.Event()

    async def hang() -> None:
        running.set()
        await asyncio.sleep(60)

    _, body = await mesh.create("Add one")
    mesh.ledger.before_add = hang
    deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
    await asyncio.wait_for(running.wait(), 30)
    mesh.ledger.before_add = None
    await mesh.crash()
    deciding.cancel()
    async with asyncio.timeout(30):
        while True:
            shown = await mesh.show(body["conversation"]["id"])
            if shown["status"] == "waiting_approval":
                return shown
            await asyncio.sleep(0.01)


async def test_a_tool_whose_process_died_midway_is_never_run_again_by_itself() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        approval = (await _interrupted_tool(mesh))["pending_approval"]
        assert approval["kind"] == "unknown_outcome"
        assert mesh.ledger.lines == []
        status, body = await mesh.decide(approval["uuid"], "approve")
        assert status == 400
        assert "retry or skip" in body["error"]


@pytest.mark.parametrize(("decision", "ledger"), [("retry", ["add 1"]), ("skip", [])])
async def test_an_unknown_outcome_is_retried_or_skipped_by_a_person(decision: str, ledger: list[str]) -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        approval = (await _interrupted_tool(mesh))["pending_approval"]
        _, body = await mesh.decide(approval["uuid"], decision)
        assert body["result"]["response"] == "Done."
        assert mesh.ledger.lines == ledger


async def test_a_bug_in_a_node_ends_the_turn_and_the_next_one_runs() -> None:
    async def breaks(_: object) -> LlmCall:
        raise ZeroDivisionError("oops")

    async with WorldMesh(ScriptedLlm(breaks, says("Fine."))) as mesh:
        status, body = await mesh.create("Hi")
        assert (status, body["error"]) == (502, "internal error: oops; the log has more")
        _, body = await mesh.say(body["conversation"]["id"], "Again")
        assert body["result"]["response"] == "Fine."


async def test_a_keeper_that_starts_finds_its_conversations_by_their_sizes() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as mesh:
        first = (await mesh.create("Hi"))[1]["conversation"]["id"]
        await mesh.keeper.close()  # writes the index
        await mesh.crash()
        second = (await mesh.create("Hi"))[1]["conversation"]["id"]
        await mesh.crash()  # the index knows the first only
        _, body = await mesh.ask(Page(10))
        assert {entry["id"] for entry in body["conversations"]} == {second, first}
        assert body["summary"]["active"] == 2


async def test_a_node_that_dies_is_followed_by_another_pass() -> None:
    class Flaky(WorldMesh):
        deaths = 2

        async def run(self, turn: PassInput) -> PassOutput:
            if self.deaths:
                self.deaths -= 1
                raise Unavailable("node died", retry_after_s=0)
            return await super().run(turn)

    async with Flaky(ScriptedLlm(says("ok"))) as mesh:
        _, body = await mesh.create("Hi")
        assert body["result"]["response"] == "ok"


async def test_a_keeper_that_was_fenced_leaves_and_writes_nothing() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as mesh:
        _, body = await mesh.create("Hi")
        old = mesh.keeper
        await mesh.crash()
        request = SendMessage(body["conversation"]["id"], Caller(session_id="s"), "ghost")
        status, _ = as_rest(request, await old.handle(request))
        assert status == 503
        assert mesh.fenced.is_set()
        shown = await mesh.show(body["conversation"]["id"])
        assert all(m["content"] != "ghost" for m in shown["messages"])


async def test_a_listing_counts_all_and_pages_by_cursor() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as mesh:
        ids = [(await mesh.create("Hi"))[1]["conversation"]["id"] for _ in range(5)]
        seen: list[str] = []
        before = ""
        while True:
            status, body = await mesh.ask(Page(2, before))
            assert status == 200
            assert body["summary"] == {"total": 5, "active": 5, "waiting_approval": 0, "completed": 0}
            seen += [entry["id"] for entry in body["conversations"]]
            if "next_cursor" not in body:
                break
            before = body["next_cursor"]
        assert sorted(seen) == sorted(ids)


async def test_unknown_ids_are_not_found() -> None:
    async with WorldMesh(ScriptedLlm(says("ok"))) as mesh:
        for status, body in (
            await mesh.say("../../etc/passwd", "Hi"),
            await mesh.say("9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d", "Hi"),
            await mesh.decide("9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d", "approve"),
        ):
            assert status == 404
            assert "there is no" in body["error"]


async def test_a_pass_waits_for_a_claim_that_an_older_one_is_just_writing() -> None:
    """Otherwise both run the tool: the newer one does not know the claim, and makes the same one."""
    writing, written = asyncio.Event(), asyncio.Event()

    class Slow(MemoryJournal):
        async def append(self, shard: int, epoch: int, append: Append) -> int:
            if any(isinstance(event, ToolIntent) for event in append.events):
                writing.set()
                await asyncio.wait_for(written.wait(), 30)
            return await super().append(shard, epoch, append)

    class Lossy(WorldMesh):
        async def run(self, turn: PassInput) -> PassOutput:
            self.lost = asyncio.create_task(super().run(turn))
            claiming = asyncio.create_task(writing.wait())
            await asyncio.wait({self.lost, claiming}, return_when=asyncio.FIRST_COMPLETED)
            claiming.cancel()
            if self.lost.done() or written.is_set():
                return await self.lost
            asyncio.get_running_loop().call_soon(written.set)
            self.first = self.lost
            raise Unavailable("the way to the node broke", retry_after_s=0)

    async with Lossy(ScriptedLlm(calls(ADD), says("Done.")), Slow()) as mesh:
        _, body = await mesh.create("Add one")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        await mesh.first
        assert mesh.ledger.lines == ["add 1"]


async def test_a_question_may_be_answered_with_nothing() -> None:
    model = ByNode(a=[calls(("ask_user", {"question": "Anything else?"})), says("Bye.")])
    async with WorldMesh(model, config=config(llm("a", can_ask_user=True))) as mesh:
        _, body = await mesh.create("go")
        decision = Decision(body["result"]["approval"]["uuid"], "answer")
        status, body = await mesh.ask(Decide(Caller(session_id="s"), (decision,), True))
        assert (status, body["result"]["response"]) == (200, "Bye.")

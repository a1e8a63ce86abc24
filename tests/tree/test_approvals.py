"""Approvals in trees: where the pipeline stops, what goes on, and that nothing runs twice."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mesh.a2a.client.memory import MemoryAgent
from mesh.a2a.client.port import InputRequest, RemoteApproval, RemoteTask
from mesh.core.approvals import Decision
from mesh.core.events import ApprovalResolved, ToolIntent
from mesh.journal.memory import MemoryJournal
from mesh.keeper.requests import Caller, Cancel, Decide, Page
from mesh.tree.calls import first_sentence
from tests.worlds.mesh import WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, add, config, llm, loop, parallel, sequential

Body = dict[str, Any]


def ids(conversation: Body) -> list[str]:
    return [approval["uuid"] for approval in conversation.get("pending_approvals", [])]


def numbers(conversation: Body) -> dict[int, str]:
    """The pending approvals by the number they would add."""
    return {a["tool_args"]["n"]: a["uuid"] for a in conversation.get("pending_approvals", [])}


# -- sequential


async def test_a_pipeline_stops_at_a_destructive_call_and_goes_on_at_the_exact_child() -> None:
    model = ByNode(change=[add(7), says("changed")])
    tree = sequential(
        llm("plan", output_key="plan"),
        sequential(llm("check"), llm("change", output_key="change"), name="act"),
        llm("report", "{plan} {change}"),
    )
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("do it")
        conversation = body["conversation"]
        assert conversation["pipeline_state"] == {
            "paused_node_path": [1, 1],
            "paused_node_output_key": "change",
            "session_state": {"plan": "plan says"},
            "user_message": "do it",
        }
        await mesh.crash()
        _, body = await mesh.decide(conversation["pending_approval"]["uuid"], "approve")
        assert body["result"]["response"] == "report says plan says changed"
        assert mesh.ledger.lines == ["add 7"]
        assert model.asked == {"plan": 1, "check": 1, "change": 2, "report": 1}
        assert "pipeline_state" not in body["conversation"]


async def test_a_rejection_without_a_reason_ends_the_turn_at_any_depth() -> None:
    model = ByNode(change=add(7))
    tree = sequential(sequential(llm("change"), name="inner"), llm("never"))
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("do it")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."
        assert (body["conversation"]["status"], mesh.ledger.lines) == ("active", [])
        assert model.asked == {"change": 1}


async def test_a_rejection_with_a_reason_is_told_to_the_model_which_goes_on() -> None:
    model = ByNode(change=[add(7), says("then not")])
    async with WorldMesh(model, config=config(sequential(llm("change"), llm("next")))) as mesh:
        _, body = await mesh.create("do it")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject", reason="7 is taken")
        assert body["result"]["response"] == "next says"
        assert mesh.ledger.lines == []
        (told,) = model.messages["change"][-1].results
        assert (told.content, told.is_error) == ("This call was not run: 7 is taken", True)


async def test_edited_arguments_run_instead_and_the_journal_keeps_both() -> None:
    model = ByNode(only=[add(7), says("done")])
    async with WorldMesh(model, config=config(llm("only"))) as mesh:
        _, body = await mesh.create("do it")
        uuid = body["result"]["approval"]["uuid"]
        status, refused = await mesh.decide(uuid, "approve", edited={"n": "many"})
        assert status == 400 and "edited_args" in refused["error"] and "integer" in refused["error"]
        _, body = await mesh.decide(uuid, "approve", edited={"n": 8}, by="ann")
        assert mesh.ledger.lines == ["add 8"]
        events = await mesh.journal.read(body["conversation"]["id"])
        (resolved,) = [e for e in events if isinstance(e, ApprovalResolved)]
        (intent,) = [e for e in events if isinstance(e, ToolIntent)]
        assert (resolved.edited_args, resolved.by, intent.arguments) == ({"n": 8}, "ann", {"n": 8})
        (told,) = model.messages["only"][-1].results
        assert told.content == '[A person changed the arguments to {"n": 8}]\n{"added": 8}'
        (tool,) = [m for m in body["conversation"]["messages"] if m["role"] == "tool"]
        assert tool["tool_call"]["arguments"] == {"n": 8}


# -- inline and ask


@pytest.mark.parametrize("around", [parallel, loop])
@pytest.mark.parametrize("approvals", [None, "inline"])
async def test_under_parallel_and_loop_destructive_tools_run_at_once_by_default(
    around: Callable[..., Body], approvals: str | None
) -> None:
    more = {"approvals": approvals} if approvals else {}
    more |= {"max_iterations": 1} if around is loop else {}
    model = ByNode(a=[add(1), says("done")])
    async with WorldMesh(model, config=config(around(llm("a"), **more))) as mesh:
        _, body = await mesh.create("go")
        assert (body["result"]["response"], mesh.ledger.lines) == ("done", ["add 1"])


async def test_the_nearest_node_that_says_how_decides_who_asks() -> None:
    model = ByNode(a=[add(1), says("a")], b=[add(2), says("b")])
    tree = parallel(
        loop(sequential(llm("a"), name="in"), max_iterations=1),
        loop(llm("b"), name="quiet", max_iterations=1, approvals="inline"),
        approvals="ask",
    )
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("go")
        assert mesh.ledger.lines == ["add 2"]
        assert list(numbers(body["conversation"])) == [1]


# -- several at once


THREE = parallel(
    *(llm(name, output_key=name) for name in "abc"),
    sequential(llm("quick"), llm("d"), name="branch"),
    approvals="ask",
)


def three() -> ByNode:
    return ByNode(
        a=[add(1), says("a done")], b=[add(2), says("b done")], c=[says("c done")], d=[add(4), says("d done")]
    )


@pytest.mark.parametrize("order", [(1, 2, 4), (4, 2, 1), (2, 4, 1)])
@pytest.mark.parametrize("crash", [False, True])
async def test_several_approvals_wait_at_once_and_are_decided_in_any_order(
    order: tuple[int, ...], crash: bool
) -> None:
    model = three()
    async with WorldMesh(model, config=config(sequential(THREE, llm("last", "{a}, {c}")))) as mesh:
        _, body = await mesh.create("go")
        conversation = body["conversation"]
        asked = numbers(conversation)
        assert set(asked) == {1, 2, 4}
        assert conversation["pending_approval"]["uuid"] == ids(conversation)[0]
        assert "3 approvals wait" in body["result"]["response"]
        for i, n in enumerate(order):
            if crash:
                await mesh.crash()
            assert conversation["status"] == "waiting_approval"
            _, body = await mesh.decide(asked[n], "approve")
            conversation = body["conversation"]
            assert numbers(conversation) == {k: asked[k] for k in order[i + 1 :]}
            assert mesh.ledger.lines == [f"add {k}" for k in order[: i + 1]]
        assert body["result"]["response"] == "last says a done, c done"
        assert model.asked == {"a": 2, "b": 2, "c": 1, "quick": 1, "d": 2, "last": 1}


async def test_a_branch_goes_on_as_soon_as_its_own_approval_is_decided_while_a_sibling_still_runs() -> None:
    model = ByNode(a=[add(1), says("a done")], slow=says("slow done"))
    model.gates["slow"] = asyncio.Event()
    tree = parallel(llm("a"), sequential(llm("slow"), name="branch"), approvals="ask")
    async with WorldMesh(model, config=config(tree)) as mesh:
        creating = asyncio.create_task(mesh.create("go"))

        async def waiting() -> Any:
            entries = (await mesh.ask(Page(10)))[1]["conversations"]
            return entries and entries[0].get("pending_approval")

        approval = await until(waiting)
        deciding = asyncio.create_task(mesh.decide(approval["uuid"], "approve"))

        async def added() -> bool:
            return mesh.ledger.lines == ["add 1"] and model.asked["a"] == 2

        await until(added)
        assert not creating.done()
        model.gates["slow"].set()
        assert (await creating)[1]["result"]["response"] == "a done\nslow done"
        await deciding
        assert mesh.passes == 1
        assert model.asked == {"a": 2, "slow": 1}


async def test_a_message_that_arrives_while_approvals_wait_is_answered_and_not_processed() -> None:
    model = three()
    async with WorldMesh(model, config=config(THREE)) as mesh:
        _, body = await mesh.create("go")
        _, answered = await mesh.say(body["conversation"]["id"], "hello?")
        assert answered["result"]["waiting_approval"]
        assert [m["content"] for m in answered["conversation"]["messages"]] == ["go"]


async def test_a_rejection_in_one_branch_ends_the_turn_and_voids_the_other_approvals() -> None:
    async with WorldMesh(three(), config=config(THREE)) as mesh:
        _, body = await mesh.create("go")
        asked = numbers(body["conversation"])
        _, body = await mesh.decide(asked[2], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."
        status, body = await mesh.decide(asked[1], "approve")
        assert status == 409 and "not needed any more" in body["error"]
        assert mesh.ledger.lines == []


async def test_racing_decisions_on_several_approvals_each_have_one_winner() -> None:
    model = three()
    async with WorldMesh(model, config=config(THREE)) as mesh:
        _, body = await mesh.create("go")
        asked = numbers(body["conversation"])
        decisions = [mesh.decide(uuid, "approve") for uuid in asked.values() for _ in range(10)]
        statuses = [status for status, _ in await asyncio.gather(*decisions)]
        assert statuses.count(200) == 3 and statuses.count(409) == 27
        assert sorted(mesh.ledger.lines) == ["add 1", "add 2", "add 4"]
        conversation = await mesh.show(body["conversation"]["id"])
        assert conversation["messages"][-1]["content"] == "a done\nb done\nc done\nd done"


async def test_a_loop_that_asks_pauses_in_the_round_it_is_in() -> None:
    model = ByNode(work=[calls(("add", {"n": 1}), ("look", {})), says("round done")])
    tree = loop(llm("work"), llm("after", "{iteration}"), max_iterations=2, approvals="ask")
    async with WorldMesh(model, config=config(tree)) as mesh:
        _, body = await mesh.create("go")
        assert body["conversation"]["pipeline_state"]["paused_node_path"] == [0]
        _, body = await mesh.decide(ids(body["conversation"])[0], "approve")
        assert mesh.ledger.lines == ["add 1", "look"]
        await mesh.crash()
        _, body = await mesh.decide(ids(body["conversation"])[0], "approve")
        assert body["result"]["response"] == "after says 2"
        assert mesh.ledger.lines == ["add 1", "look"] * 2
        assert model.asked == {"work": 4, "after": 2}


# -- that expire


async def test_an_approval_expires_as_a_rejection_that_says_so() -> None:
    model = ByNode(only=[add(1), says("then not")])
    async with WorldMesh(model, config=config(llm("only"), approval_timeout_s=2)) as mesh:
        _, body = await mesh.create("go")
        uuid, conversation_id = body["result"]["approval"]["uuid"], body["conversation"]["id"]
        await mesh.crash()  # the deadline outlives the keeper that set it

        async def ended() -> Any:
            conversation = await mesh.show(conversation_id)
            return conversation["messages"][-1]["content"] == "then not" and conversation

        await until(ended)
        assert mesh.ledger.lines == []
        (told,) = model.messages["only"][-1].results
        assert "nobody decided before" in told.content and "approval_timeout_s" in told.content
        status, body = await mesh.decide(uuid, "approve")
        assert status == 409 and "reject by mesh" in body["error"]


# -- decisions that come while a pass ends


class SlowJournal(MemoryJournal):
    """Takes a moment to write, as a disk does."""

    async def append(self, *about: Any) -> int:
        await asyncio.sleep(0.003)
        return await super().append(*about)


@pytest.mark.parametrize("moment", range(6))
async def test_of_decisions_taken_together_one_that_was_only_implied_may_be_made_meanwhile(
    moment: int,
) -> None:
    tree = parallel(llm("a"), llm("b"), llm("c"), approvals="ask")
    model = ByNode(a=[add(1), says("a")], b=[add(2), says("b")], c=[add(3), says("c")])
    async with WorldMesh(model, SlowJournal(), config=config(tree)) as mesh:
        _, body = await mesh.create("go")
        asked = numbers(body["conversation"])
        other = asyncio.create_task(mesh.decide(asked[2], "reject", reason="not two"))
        await asyncio.sleep(0.001 * moment)
        caller = Caller(session_id="s1", idempotency_key="k", body_hash="b")
        both = Decide(caller, (Decision(asked[1], "approve"), Decision(asked[2], "approve", if_pending=True)))
        (first, _), (status, body) = await asyncio.gather(other, mesh.ask(both))
        assert (first, status) in ((200, 200), (409, 200))
        assert ids(await mesh.show(body["conversation"]["id"])) == [asked[3]]
        implied = Decide(Caller(session_id="s1"), (Decision(asked[2], "approve", if_pending=True),))
        assert (await mesh.ask(implied))[0] == 200
        assert sorted(mesh.ledger.lines) == ["add 1"] + (["add 2"] if first == 409 else [])


@pytest.mark.parametrize("moment", range(10))
async def test_a_decision_that_comes_while_a_pass_ends_is_acted_on_all_the_same(moment: int) -> None:
    tree = parallel(llm("a"), llm("b"), llm("c"), approvals="ask")
    model = ByNode(a=[add(1), says("a")], b=[add(2), says("b")], c=[add(3), says("c")])
    async with WorldMesh(model, SlowJournal(), config=config(tree)) as mesh:
        _, body = await mesh.create("go")
        asked = numbers(body["conversation"])
        caller = Caller(session_id="s1")
        await mesh.ask(Decide(caller, (Decision(asked[1], "approve"),), wait=False))
        await asyncio.sleep(0.001 * moment)
        _, body = await mesh.decide(asked[2], "approve")
        assert ids(body["conversation"]) == [asked[3]]
        assert sorted(mesh.ledger.lines) == ["add 1", "add 2"]


async def test_what_is_said_while_a_turn_is_called_off_is_a_turn_of_its_own() -> None:
    gate = asyncio.Event()

    class Waiting(MemoryAgent):
        async def cancel(self, task_id: str, hop: Any) -> None:
            await gate.wait()

    async def asks_once(message: Any, hop: Any) -> RemoteTask:
        question = InputRequest("q", "mesh", (RemoteApproval("Run drop", "1"),))
        return RemoteTask("input-required", "?", "task-1", "c", question)

    tree = {"name": "b", "type": "a2a", "url": "http://b.example"}
    async with WorldMesh(ByNode(), config=config(tree), agent_for=lambda _: Waiting(asks_once)) as mesh:
        _, body = await mesh.create("go")
        conversation = body["conversation"]["id"]
        cancelling = asyncio.create_task(mesh.ask(Cancel(conversation)))
        await until(lambda: _is_cancelled(mesh, conversation))
        _, body = await mesh.say(conversation, "again")
        assert body["result"]["waiting_approval"] is True, "the second turn is none of the cancellation's"
        gate.set()
        await cancelling


async def _is_cancelled(mesh: WorldMesh, conversation: str) -> bool:
    return bool((await mesh.show(conversation))["turn"]["state"] == "cancelled")


async def test_a_decision_that_is_sent_again_while_it_is_being_journaled_counts_once() -> None:
    async with WorldMesh(ByNode(a=[add(1), says("a")]), SlowJournal(), config=config(llm("a"))) as mesh:
        _, body = await mesh.create("go")
        uuid = body["result"]["approval"]["uuid"]
        same = {"idempotency_key": "k1", "body_hash": "h1"}
        answers = await asyncio.gather(*(mesh.decide(uuid, "approve", **same) for _ in range(3)))
        assert [(status, body["result"]["response"]) for status, body in answers] == [(200, "a")] * 3
        assert mesh.ledger.lines == ["add 1"]


@pytest.mark.parametrize(
    ("description", "told"),
    [
        ("Changes it, e.g. one\nline. Fails if there is none.\n\nMore.", "Changes it, e.g. one line."),
        ("No end", "No end"),
        ("Ends here!", "Ends here!"),
        (" \n", ""),
    ],
)
def test_a_question_tells_the_first_sentence_of_a_description(description: str, told: str) -> None:
    assert first_sentence(description) == told

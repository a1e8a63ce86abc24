"""Calls that must not run twice: what comes of a claim whose pass was lost, and what a decision lets run.

In each test of the first part a pass is lost while it waits for a tool, and lives on: the worst case for
whoever comes after it.
"""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.core.errors import ToolSessionError, Unavailable
from mesh.core.events import ApprovalRequired, Error, ToolIntent, ToolResult
from mesh.keeper.requests import Cancel
from mesh.mcp.call_records import ClaimedCalls
from mesh.mcp.memory import MemorySession
from mesh.mcp.port import Claim, ToolOutcome
from mesh.tree.turn import PassInput, PassOutput, UnsettledCall
from tests.worlds.mesh import Ledger, ScriptedLlm, WorldMesh, calls, says, until

ADD = ("add", {"n": 1})


class Lossy(WorldMesh):
    """A mesh that loses the pass in which ``lose`` is set, and keeps what the lost pass started."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.lose = asyncio.Event()
        self.lost: list[asyncio.Task[PassOutput]] = []

    async def run(self, turn: PassInput) -> PassOutput:
        going = asyncio.create_task(super().run(turn))
        losing = asyncio.create_task(self.lose.wait())
        await asyncio.wait({going, losing}, return_when=asyncio.FIRST_COMPLETED)
        losing.cancel()
        if going.done():
            return going.result()
        self.lose.clear()
        self.lost.append(going)
        raise Unavailable("the way to the node broke", retry_after_s=0)

    async def events(self, conversation_id: str, kind: type[Any]) -> list[Any]:
        return [e for e in await self.journal.read(conversation_id) if isinstance(e, kind)]

    async def claimed(self, conversation_id: str, times: int) -> bool:
        return await _claims(self, conversation_id) == times

    async def lose_pass(self) -> None:
        """Returns when one is lost."""
        before = len(self.lost)
        self.lose.set()
        await until(lambda: _soon(len(self.lost) > before))


async def _soon(it_is_so: bool) -> bool:
    return it_is_so


async def _claims(mesh: WorldMesh, conversation: str) -> int:
    return sum(isinstance(e, ToolIntent) for e in await mesh.journal.read(conversation))


async def _said(mesh: WorldMesh, conversation: str, text: str) -> bool:
    return bool((await mesh.show(conversation))["messages"][-1]["content"] == text)


class Held:
    """Holds each call of the ledger's tool until it is let go."""

    def __init__(self, ledger: Ledger) -> None:
        self.began = asyncio.Event()
        self.go = asyncio.Event()
        ledger.before_add = self

    async def __call__(self) -> None:
        self.began.set()
        async with asyncio.timeout(30):
            await self.go.wait()


async def test_a_call_that_runs_while_its_pass_is_lost_is_waited_for_and_nobody_is_asked() -> None:
    async with Lossy(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        held = Held(mesh.ledger)
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        await mesh.lose_pass()
        held.go.set()
        _, body = await deciding
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])
        conversation = body["conversation"]["id"]
        assert [e.kind for e in await mesh.events(conversation, ApprovalRequired)] == ["tool_call"]
        assert len(await mesh.events(conversation, ToolResult)) == 1
        assert (await mesh.lost[0]).status in ("superseded", "completed")


async def test_a_call_that_waits_in_the_session_when_its_pass_is_lost_is_revoked_and_claimed_anew() -> None:
    async with Lossy(ScriptedLlm(calls(ADD), calls(ADD), says("Done."))) as mesh:
        blocker, body = (await mesh.create("First"))[1], (await mesh.create("Second"))[1]
        held = Held(mesh.ledger)
        first = asyncio.create_task(mesh.decide(blocker["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        second = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        conversation = body["conversation"]["id"]
        await until(lambda: mesh.events(conversation, ToolIntent))
        await mesh.lose_pass()  # both are lost: the call of one runs, that of the other waits
        await until(lambda: _soon(len(mesh.lost) == 2))
        await until(lambda: mesh.claimed(conversation, 2))
        held.go.set()
        await asyncio.gather(first, second)
        assert mesh.ledger.lines == ["add 1", "add 1"]  # one of each conversation
        assert [e.attempt for e in await mesh.events(conversation, ToolIntent)] == [0, 1]
        assert [e.kind for e in await mesh.events(conversation, ApprovalRequired)] == ["tool_call"]


async def test_an_outcome_that_came_while_nobody_listened_is_told_by_the_session() -> None:
    async with Lossy(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        conversation = body["conversation"]["id"]
        held = Held(mesh.ledger)
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        deciding.cancel()
        # The process of keeper and nodes dies; the session, an actor of its own, does not.
        mesh._survivors |= {t for t in asyncio.all_tasks() if "_serve" in repr(t.get_coro())}
        held.go.set()
        await mesh.crash()
        await until(lambda: _said(mesh, conversation, "Done."))
        assert mesh.ledger.lines == ["add 1"]
        assert [e.kind for e in await mesh.events(conversation, ApprovalRequired)] == ["tool_call"]


async def test_nobody_is_asked_while_the_server_of_an_earlier_session_may_still_run() -> None:
    async with Lossy(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        held, session = Held(mesh.ledger), mesh.ledger.offered
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        asked: list[Claim] = []

        async def cannot_say_yet(claim: Claim) -> ToolOutcome | None:
            asked.append(claim)
            if len(asked) < 2:
                raise ToolSessionError("an earlier session still runs", may_have_run=False)
            return await MemorySession.settle(session, claim)

        session.settle = cannot_say_yet  # type: ignore[method-assign]
        await mesh.lose_pass()
        await until(lambda: _soon(len(asked) > 1))
        held.go.set()
        _, body = await deciding
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])
        kinds = [e.kind for e in await mesh.events(body["conversation"]["id"], ApprovalRequired)]
        assert kinds == ["tool_call"]


# -- what a decision lets run


def offer(mesh: WorldMesh, **changed: Any) -> None:
    """The server of the ledger lists its tool otherwise from now on."""
    tools = [(replace(tool, **changed) if tool.name == "add" else tool, f) for tool, f in mesh.ledger.pairs()]
    mesh.ledger.offered.offer(tools)


async def listed(mesh: WorldMesh, **changed: Any) -> None:
    """Returns when the nodes know."""
    (toolbox,) = mesh.tree.toolboxes
    await until(lambda: _soon(all(getattr(toolbox.tools["add"], k) == v for k, v in changed.items())))


@pytest.mark.parametrize("decision", ["reject", "edit"])
async def test_a_decision_holds_when_the_tool_says_meanwhile_that_it_is_harmless(decision: str) -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        uuid = body["result"]["approval"]["uuid"]
        offer(mesh, destructive=False, repeatable=True)
        await listed(mesh, destructive=False, repeatable=True)
        if decision == "reject":
            _, body = await mesh.decide(uuid, "reject")
            assert body["result"]["response"] == "Operation cancelled by user."
            assert mesh.ledger.lines == []
        else:
            _, body = await mesh.decide(uuid, "approve", edited={"n": 2})
            assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 2"])
            events = await mesh.journal.read(body["conversation"]["id"])
            assert any(isinstance(e, ToolIntent) for e in events), "what was asked about is claimed"


async def test_a_rejected_call_stays_rejected_when_its_tool_is_gone() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("never"))) as mesh:
        _, body = await mesh.create("Add one")
        mesh.ledger.offered.offer([pair for pair in mesh.ledger.pairs() if pair[0].name != "add"])
        (toolbox,) = mesh.tree.toolboxes
        await until(lambda: _soon("add" not in toolbox.tools))
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."


NUMBER_OR_MORE = {
    "type": "object",
    "properties": {"n": {"type": "number"}, "force": {"type": "boolean"}},
    "required": ["n"],
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"input_schema": NUMBER_OR_MORE}, ["argument 'n' is defined anew", "argument 'force' is new"]),
        ({"description": "Adds a number, and deletes the others."}, ["its description is another"]),
    ],
)
async def test_a_tool_that_changed_after_it_was_decided_on_is_asked_about_again(
    changed: dict[str, Any], said: list[str]
) -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        first = body["result"]["approval"]["uuid"]
        offer(mesh, **changed)
        await listed(mesh, **changed)
        _, body = await mesh.decide(first, "approve")
        again = body["result"]["approval"]
        assert again["uuid"] != first
        assert mesh.ledger.lines == []
        for words in said:
            assert words in again["description"]
        assert (await mesh.decide(first, "approve"))[0] == 409
        _, body = await mesh.decide(again["uuid"], "approve")
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])


async def test_a_claimed_call_that_did_not_begin_is_asked_about_when_its_tool_became_destructive() -> None:
    """It was claimed without a question, as its tool said that it was harmless."""
    async with Lossy(ScriptedLlm(calls(ADD), calls(("add", {"n": 2})), says("Done."))) as mesh:
        offer(mesh, destructive=False)
        await listed(mesh, destructive=False)
        held = Held(mesh.ledger)
        first = asyncio.create_task(mesh.create("First"))
        await asyncio.wait_for(held.began.wait(), 30)
        _, body = await mesh.create()
        conversation = body["conversation"]["id"]
        second = asyncio.create_task(mesh.say(conversation, "Second"))
        await until(lambda: _claims(mesh, conversation))
        offer(mesh, destructive=True)
        await listed(mesh, destructive=True)
        await mesh.lose_pass()
        await until(lambda: _soon(len(mesh.lost) == 2))
        held.go.set()
        _, body = await second
        await first
        assert mesh.ledger.lines == ["add 1"]
        assert body["result"]["approval"]["tool_name"] == "add"


async def unknown(mesh: WorldMesh, **changed: Any) -> dict[str, Any]:
    """The question about a call whose session died while it ran. Its server was another one then."""
    _, body = await mesh.create("Add one")
    held = Held(mesh.ledger)
    deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
    await asyncio.wait_for(held.began.wait(), 30)
    if changed:
        offer(mesh, **changed)
        await listed(mesh, **changed)
    mesh.ledger.offered._claimed = ClaimedCalls()  # as in a session that has just started
    mesh.ledger.before_add = None
    deciding.cancel()
    await mesh.crash()
    asked: dict[str, Any] = await until(lambda: _waits(mesh, body["conversation"]["id"]))
    assert asked["kind"] == "unknown_outcome"
    return asked


async def test_a_question_about_an_unknown_outcome_says_that_the_tool_has_changed() -> None:
    """A server that is replaced by another version is how many sessions end."""
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        asked = await unknown(mesh, description="Adds a number, and deletes the others.")
        assert "its description is another" in asked["description"]


@pytest.mark.parametrize("then", ["rejected", "gone"])
async def test_nobody_is_told_that_a_call_did_not_run_of_which_that_is_not_known(then: str) -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        asked = await unknown(mesh)
        if then == "rejected":
            offer(mesh, description="Another.")
            await listed(mesh, description="Another.")
            _, body = await mesh.decide(asked["uuid"], "retry")
            _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject", reason="not now")
        else:
            mesh.ledger.offered.offer([pair for pair in mesh.ledger.pairs() if pair[0].name != "add"])
            (toolbox,) = mesh.tree.toolboxes
            await until(lambda: _soon("add" not in toolbox.tools))
            _, body = await mesh.decide(asked["uuid"], "retry")
        (told,) = [m["content"] for m in body["conversation"]["messages"] if m["role"] == "tool"]
        assert "It is not known whether an earlier attempt ran." in told


async def _waits(mesh: WorldMesh, conversation: str) -> Any:
    return next(iter((await mesh.show(conversation)).get("pending_approvals", [])), None)


# -- cancellation


async def test_a_cancelled_turn_waits_for_the_tool_that_runs_and_keeps_its_result() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("never"))) as mesh:
        _, body = await mesh.create("Add one")
        conversation, held = body["conversation"]["id"], Held(mesh.ledger)
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        cancelling = asyncio.create_task(mesh.ask(Cancel(conversation)))
        await asyncio.sleep(0.05)
        assert not cancelling.done()
        assert (await mesh.show(conversation))["turn"]["state"] == "working"
        held.go.set()
        await asyncio.gather(cancelling, deciding)
        shown = await mesh.show(conversation)
        assert shown["turn"]["state"] == "cancelled"
        assert [m["content"] for m in shown["messages"] if m["role"] == "tool"] == ['{"added": 1}']


async def test_a_cancelled_turn_whose_pass_was_lost_waits_for_the_tool_as_well() -> None:
    async with Lossy(ScriptedLlm(calls(ADD), says("never"))) as mesh:
        _, body = await mesh.create("Add one")
        conversation, held = body["conversation"]["id"], Held(mesh.ledger)
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        cancelling = asyncio.create_task(mesh.ask(Cancel(conversation)))
        mesh.lose.set()
        await asyncio.sleep(0.05)
        assert not cancelling.done()
        held.go.set()
        await asyncio.gather(cancelling, deciding)
        results = await mesh.events(conversation, ToolResult)
        assert [(r.content, r.call_id) for r in results] == [('{"added": 1}', "c0-add")]
        assert (await mesh.show(conversation))["turn"]["state"] == "cancelled"


async def test_a_call_that_waits_in_the_session_when_its_turn_is_cancelled_never_runs() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), calls(("add", {"n": 2})), says("ok"))) as mesh:
        one, two = (await mesh.create("First"))[1], (await mesh.create("Second"))[1]
        held = Held(mesh.ledger)
        first = asyncio.create_task(mesh.decide(one["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        second = asyncio.create_task(mesh.decide(two["result"]["approval"]["uuid"], "approve"))
        conversation = two["conversation"]["id"]
        await until(lambda: _claims(mesh, conversation))
        _, body = await mesh.ask(Cancel(conversation))  # does not wait for the other's tool
        assert body["conversation"]["turn"]["state"] == "cancelled"
        held.go.set()
        await asyncio.gather(first, second)
        assert mesh.ledger.lines == ["add 1"]


async def test_a_cancelled_turn_waits_for_a_session_that_cannot_be_asked_at_first() -> None:
    class Restarting(Lossy):
        refusals = 2

        async def settle(self, call: UnsettledCall) -> ToolResult | None:
            if self.refusals:
                self.refusals -= 1
                raise Unavailable("the node starts again", retry_after_s=0)
            return await super().settle(call)

    async with Restarting(ScriptedLlm(calls(ADD), says("never"))) as mesh:
        _, body = await mesh.create("Add one")
        conversation, held = body["conversation"]["id"], Held(mesh.ledger)
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        mesh.lose.set()
        await until(lambda: _soon(bool(mesh.lost)))
        cancelling = asyncio.create_task(mesh.ask(Cancel(conversation)))
        await asyncio.wait({cancelling}, timeout=0.1)
        is_early = cancelling.done()
        held.go.set()
        await asyncio.gather(cancelling, deciding)
        assert not is_early
        assert [r.content for r in await mesh.events(conversation, ToolResult)] == ['{"added": 1}']


async def test_a_turn_that_no_node_can_run_ends_after_its_tool_has() -> None:
    class Unreachable(Lossy):
        async def run(self, turn: PassInput) -> PassOutput:
            if self.lost:
                raise Unavailable("no node is there", retry_after_s=0)
            return await super().run(turn)

    model = ScriptedLlm(calls(ADD), says("never"))
    async with Unreachable(model, unavailable_for_s=0.1) as mesh:
        _, body = await mesh.create("Add one")
        conversation, held = body["conversation"]["id"], Held(mesh.ledger)
        deciding = asyncio.create_task(mesh.decide(body["result"]["approval"]["uuid"], "approve"))
        await asyncio.wait_for(held.began.wait(), 30)
        await mesh.lose_pass()
        for each in mesh.lost:  # the node is gone; the session goes on
            each.cancel()
        await asyncio.wait({deciding}, timeout=0.5)
        held.go.set()
        await deciding
        assert [r.content for r in await mesh.events(conversation, ToolResult)] == ['{"added": 1}']
        assert len(await mesh.events(conversation, Error)) == 1

"""Calls that are claimed, recovered and repeated more than once: what a person decided stays decided."""

from typing import Any

import pytest
from msgspec.structs import replace

from mesh.a2a.client.port import RemoteFailed
from mesh.a2a.client.port import RemoteTask as Task
from mesh.core.errors import CallRevoked, ToolSessionError, Unavailable
from mesh.core.events import ApprovalRequired, ToolIntent, ToolResult
from mesh.mcp.call_records import ClaimedCalls
from mesh.mcp.memory import MemorySession
from tests.tree.test_remote import Peers, agents, asks, done, mesh_with
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says, until
from tests.worlds.trees import ByNode, llm

ADD = ("add", {"n": 1})
TELL = calls(("a2a_b", {"message": "do it"}))


async def journal(mesh: WorldMesh, body: Any, kind: type[Any]) -> list[Any]:
    return [e for e in await mesh.journal.read(body["conversation"]["id"]) if isinstance(e, kind)]


def waiting(body: Any) -> Any:
    return body["result"]["approval"]


class Flaky(Peers):
    """Every message to the agent gets lost, and the agent cannot be asked, until it is ``up``. It takes
    withdrawals, and refuses withdrawn messages if ``refuses``."""

    def __init__(self, *answers: Any, refuses: bool = False) -> None:
        super().__init__(*answers, forgets=True)
        self.recovered: list[str] = []
        recover = self.agent.recover

        async def counted(message: Any, hop: Any) -> Any:
            self.recovered.append(message.id)
            if refuses and message.id in self.agent.withdrawn:
                raise RemoteFailed("agent memory: the message was withdrawn")
            return await recover(message, hop)

        self.agent.recover = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("retries", [1, 2, 3, 5, 6])
async def test_a_message_may_be_retried_as_often_as_a_person_likes(retries: int) -> None:
    peers = Flaky(*[done("lost")] * retries, done("b did it"))
    peers.agent.lose_next(retries)
    async with mesh_with(peers, ByNode(a=[TELL, says("ok")]), llm("a"), a2a=agents("b")) as mesh:
        _, body = await mesh.create("go")
        for number in range(1, retries + 1):
            assert waiting(body)["kind"] == "unknown_outcome", number
            _, body = await mesh.decide(waiting(body)["uuid"], "retry")
        (result,) = await journal(mesh, body, ToolResult)
        assert result.content == "b did it"


async def test_a_retry_asks_about_the_last_claim_only() -> None:
    """Each question may take the whole ``timeout_s`` of the agent."""
    peers = Flaky(*[done("lost")] * 4, done("b did it"))
    peers.agent.lose_next(4)
    asked: list[int] = []
    async with mesh_with(peers, ByNode(a=[TELL, says("ok")]), llm("a"), a2a=agents("b")) as mesh:
        _, body = await mesh.create("go")
        for _ in range(4):
            peers.recovered.clear()
            _, body = await mesh.decide(waiting(body)["uuid"], "retry")
            asked.append(len(peers.recovered))
    assert asked == [2, 2, 2, 1]  # the last claim, and the new one if that gets lost too


@pytest.mark.parametrize("retries", [2, 5, 6])
async def test_a_decision_for_another_agent_may_be_retried_as_often_as_a_person_likes(retries: int) -> None:
    peers = Flaky(asks(), *[done("lost")] * retries, done("dropped"))
    async with mesh_with(peers, ByNode(a=[TELL, says("ok")]), llm("a"), a2a=agents("b")) as mesh:
        _, body = await mesh.create("go")
        peers.agent.lose_next(retries)
        _, body = await mesh.decide(waiting(body)["uuid"], "approve")
        for _ in range(retries):
            assert waiting(body)["kind"] == "unknown_outcome"
            _, body = await mesh.decide(waiting(body)["uuid"], "retry")
        (result,) = await journal(mesh, body, ToolResult)
        assert result.content == "dropped"


async def test_a_second_retry_sends_a_new_message_where_the_first_was_withdrawn() -> None:
    peers = Flaky(done("lost"), done("lost"), done("b did it"), refuses=True)
    peers.agent.lose_next(2)
    async with mesh_with(peers, ByNode(a=[TELL, says("ok")]), llm("a"), a2a=agents("b")) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(waiting(body)["uuid"], "retry")
        _, body = await mesh.decide(waiting(body)["uuid"], "retry")
        (result,) = await journal(mesh, body, ToolResult)
        assert (result.content, result.is_error) == ("b did it", False)


def session_ends(mesh: WorldMesh, times: int) -> None:
    """The session ends so many times right after a call was claimed for it."""
    session, left = mesh.ledger.offered, [times]

    async def call(name: str, arguments: Any, timeout_s: Any = None, claim: Any = None, *_: Any) -> Any:
        if claim is not None and left[0]:
            left[0] -= 1
            session._claimed = ClaimedCalls()
        return await MemorySession.call(session, name, arguments, timeout_s, claim)

    session.call = call  # type: ignore[method-assign]


@pytest.mark.parametrize("times", [1, 2, 3, 4])
async def test_a_call_whose_session_ended_before_it_began_is_claimed_anew_and_nobody_is_asked(
    times: int,
) -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        session_ends(mesh, times)
        _, body = await mesh.decide(waiting(body)["uuid"], "approve")
        assert [e.kind for e in await journal(mesh, body, ApprovalRequired)] == ["tool_call"]
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])
        assert len(await journal(mesh, body, ToolIntent)) == times + 1


@pytest.mark.parametrize("times", [3, 4])
async def test_a_call_is_claimed_up_to_five_times(times: int) -> None:
    """As above, where the sessions remember that they did not begin the calls before (session files)."""
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        session, left = mesh.ledger.offered, [times]

        async def call(name: str, arguments: Any, timeout_s: Any = None, claim: Any = None, *_: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise CallRevoked("it was claimed for a session that has ended; it did not run")
            return await MemorySession.call(session, name, arguments, timeout_s, claim)

        async def settle(claim: Any) -> Any:
            return None

        session.call, session.settle = call, settle  # type: ignore[method-assign]
        _, body = await mesh.decide(waiting(body)["uuid"], "approve")
        assert (body["result"]["response"], mesh.ledger.lines) == ("Done.", ["add 1"])


async def test_a_call_that_never_starts_is_claimed_five_times() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")

        async def call(*_: Any, **__: Any) -> Any:
            raise CallRevoked("it was claimed for a session that has ended; it did not run")

        async def settle(claim: Any) -> Any:
            return None

        mesh.ledger.offered.call, mesh.ledger.offered.settle = call, settle  # type: ignore[method-assign]
        _, body = await mesh.decide(waiting(body)["uuid"], "approve")
        assert len(await journal(mesh, body, ToolIntent)) == 5


async def test_the_question_about_an_unknown_outcome_has_the_number_of_its_claim() -> None:
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        _, body = await mesh.create("Add one")
        made: list[int] = []

        async def call(name: str, arguments: Any, timeout_s: Any = None, claim: Any = None, *_: Any) -> Any:
            made.append(1)
            if len(made) == 1:
                raise CallRevoked("it did not run")
            raise ToolSessionError("the connection broke", may_have_run=True)

        async def settle(claim: Any) -> Any:
            raise ToolSessionError("nobody knows", may_have_run=True)

        mesh.ledger.offered.call, mesh.ledger.offered.settle = call, settle  # type: ignore[method-assign]
        _, body = await mesh.decide(waiting(body)["uuid"], "approve")
        asked = (await journal(mesh, body, ApprovalRequired))[-1]
        assert (asked.kind, asked.attempt) == ("unknown_outcome", 1)


async def test_the_text_of_a_rejected_token_does_not_cast_doubt_on_what_was_found_out() -> None:
    """The message was lost, a retry found the task, which wants a token now, and the person has none."""
    answer = Task("auth-required", "401", "", "", refused=True)
    peers = Flaky(done("lost"), answer)
    peers.agent.lose_next()
    async with mesh_with(peers, ByNode(a=[TELL, says("ok")]), llm("a"), a2a=agents("b")) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(waiting(body)["uuid"], "retry")
        assert waiting(body)["kind"] == "auth_required"
        _, body = await mesh.decide(waiting(body)["uuid"], "reject", reason="no token")
        (result,) = await journal(mesh, body, ToolResult)
        assert result.content == "This call was not run: no token"


async def test_a_claimed_call_that_did_not_begin_and_cannot_be_made_any_more_says_that_it_was_not_run() -> (
    None
):
    """A pass was lost after its claim, the session says that the call did not begin, and the tool is gone."""
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        session = mesh.ledger.offered
        session.offer([(replace(t, destructive=False), f) for t, f in mesh.ledger.pairs()])
        (toolbox,) = mesh.tree.toolboxes
        await until(lambda: _true(not toolbox.tools["add"].destructive))

        async def call(*_: Any, **__: Any) -> Any:
            session.offer([pair for pair in mesh.ledger.pairs() if pair[0].name != "add"])
            await until(lambda: _true("add" not in toolbox.tools))
            raise Unavailable("the pass is lost here", retry_after_s=0)

        async def settle(claim: Any) -> Any:
            return None

        session.call, session.settle = call, settle  # type: ignore[method-assign]
        _, body = await mesh.create("Add one")
        (result,) = await journal(mesh, body, ToolResult)
        assert result.content == "There is no tool 'add'. The tools are: look.\nThe call was not run."


async def test_a_claimed_call_whose_tool_became_repeatable_is_claimed_again() -> None:
    """As `test_what_was_approved_is_claimed_even_if_it_could_be_repeated`, without a person."""
    async with WorldMesh(ScriptedLlm(calls(ADD), says("Done."))) as mesh:
        session, made = mesh.ledger.offered, []
        session.offer([(replace(t, destructive=False), f) for t, f in mesh.ledger.pairs()])
        (toolbox,) = mesh.tree.toolboxes
        await until(lambda: _true(not toolbox.tools["add"].destructive))

        async def call(name: str, arguments: Any, timeout_s: Any = None, claim: Any = None, *_: Any) -> Any:
            made.append(claim)
            if len(made) == 1:
                session.offer(
                    [(replace(t, destructive=False, repeatable=True), f) for t, f in mesh.ledger.pairs()]
                )
                await until(lambda: _true(toolbox.tools["add"].repeatable))
                raise Unavailable("the pass is lost here", retry_after_s=0)
            return await MemorySession.call(session, name, arguments, timeout_s, claim)

        async def settle(claim: Any) -> Any:
            return None

        session.call, session.settle = call, settle  # type: ignore[method-assign]
        _, body = await mesh.create("Add one")
        assert [e.attempt for e in await journal(mesh, body, ToolIntent)] == [0, 1]


async def _true(it_is_so: bool) -> bool:
    return it_is_so

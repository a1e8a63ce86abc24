"""Other agents as tools and as nodes: what is said to them, what they ask, what is known after a crash."""

import asyncio
from typing import Any

from mesh.a2a.client.memory import MemoryAgent
from mesh.a2a.client.port import (
    ForwardedHeaders,
    InputRequest,
    OutgoingMessage,
    RemoteApproval,
    RemoteFailed,
    RemoteTask,
)
from mesh.config.model import A2aAgent
from mesh.core.events import ToolIntent
from mesh.keeper.requests import Cancel, Page
from tests.worlds.mesh import WorldMesh, calls, says
from tests.worlds.trees import ByNode, config, llm, parallel, sequential

Body = dict[str, Any]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TELL = calls(("a2a_b", {"message": "do it"}))


def remote(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "a2a", "url": "http://b.example", **more}


def agents(*names: str, **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "url": "http://b.example", **more} for name in names]


class Answering:
    """A script for `MemoryAgent`: these answers, one a message; asks are told apart by their number."""

    def __init__(self, *answers: RemoteTask | Exception) -> None:
        self._answers = list(answers)

    async def __call__(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def done(text: str) -> RemoteTask:
    return RemoteTask("completed", text, "task-1", "context-1")


def asks(number: int = 1, *, form: Any = "mesh", kind: Any = "tool_call", **args: Any) -> RemoteTask:
    asked = RemoteApproval("Run drop", f"ask-{number}", kind, "drop", args or {"n": number})
    question = InputRequest(f"question-{number}", form, (asked,))
    return RemoteTask("input-required", "Run drop?", "task-1", "context-1", question)


def wants_token() -> RemoteTask:
    """A task that waits for a caller with a token."""
    asked = RemoteApproval("Who are you?", "ask-0", "auth_required")
    question = InputRequest("question-0", "mesh", (asked,))
    return RemoteTask("auth-required", "Who are you?", "task-1", "context-1", question)


def door(*, refused: bool) -> RemoteTask:
    """HTTP 401."""
    return RemoteTask("auth-required", "401", "", "", refused=refused)


class Peers:
    """Gives every agent of a config its own `MemoryAgent`."""

    def __init__(self, *answers: RemoteTask | Exception, forgets: bool = False) -> None:
        self.agent = MemoryAgent(Answering(*answers), forgets)

    def __call__(self, agent: A2aAgent) -> MemoryAgent:
        return self.agent

    @property
    def said(self) -> list[OutgoingMessage]:
        return [message for message, _ in self.agent.sent]


def mesh_with(peers: Peers, model: ByNode, tree: Any, **more: Any) -> WorldMesh:
    return WorldMesh(model, config=config(tree, **more), agent_for=peers)


async def test_an_agent_is_a_tool_with_one_text_and_its_answer_is_the_result() -> None:
    peers, model = Peers(done("b did it")), ByNode(a=[TELL, says("all done")])
    async with mesh_with(peers, model, llm("a"), a2a=agents("b", description="Does it.")) as mesh:
        status, body = await mesh.create("go", token="secret", traceparent=TRACE)
        assert (status, body["result"]["response"]) == (201, "all done")
        (message, hop) = peers.agent.sent[0]
        assert message.text == "do it"
        assert (hop.session_id, hop.token, hop.traceparent) == ("s1", "secret", TRACE)
        assert model.messages["a"][-1].results[0].content == "b did it"


async def test_which_agents_a_node_may_ask_follows_its_tools() -> None:
    tree = sequential(
        llm("all"), llm("none", tools=["look"]), llm("own", tools=[], a2a=agents("c")), name="pipe"
    )
    offered: dict[str, list[str]] = {}

    class Noting(ByNode):
        async def stream(self, request: Any) -> Any:
            offered[request.system.partition(":")[0]] = [tool.name for tool in request.tools]
            async for event in super().stream(request):
                yield event

    async with mesh_with(Peers(), Noting(), tree, a2a=agents("b")) as mesh:
        await mesh.create("go")
    assert offered == {"all": ["add", "look", "a2a_b"], "none": ["look"], "own": ["a2a_c"]}


async def test_a_node_hands_the_users_message_on_or_what_its_template_makes_of_it() -> None:
    peers = Peers(done("one"), done("two"))
    tree = sequential(
        remote("first", output_key="first"), remote("second", prompt="improve {first}"), name="pipe"
    )
    async with mesh_with(peers, ByNode(), tree) as mesh:
        _, body = await mesh.create("hello")
        assert [message.text for message in peers.said] == ["hello", "improve one"]
        assert body["result"]["response"] == "two"


async def test_an_agent_that_fails_is_an_error_that_the_model_sees() -> None:
    peers, model = Peers(RemoteFailed("agent b: nobody answers")), ByNode(a=[TELL, says("it is down")])
    async with mesh_with(peers, model, llm("a"), a2a=agents("b")) as mesh:
        _, body = await mesh.create("go")
        assert body["result"]["response"] == "it is down"
        result = model.messages["a"][-1].results[0]
        assert (result.content, result.is_error) == ("agent b: nobody answers", True)


async def test_a_node_whose_agent_fails_has_failed() -> None:
    async with mesh_with(Peers(RemoteFailed("agent b: nobody answers")), ByNode(), remote("b")) as mesh:
        status, body = await mesh.create("go")
        assert (status, body["error"]) == (502, "agent b: nobody answers")


async def test_a_destructive_agent_is_asked_for_first_and_its_message_may_be_edited() -> None:
    peers, model = Peers(done("ok")), ByNode(a=[TELL, says("fine")])
    async with mesh_with(peers, model, llm("a"), a2a=agents("b", destructiveHint=True)) as mesh:
        _, body = await mesh.create("go")
        asked = body["result"]["approval"]
        assert (asked["tool_name"], asked["tool_args"]) == ("a2a_b", {"message": "do it"})
        assert peers.said == []
        status, refused = await mesh.decide(asked["uuid"], "approve", edited={"text": "x"})
        assert status == 400 and "message" in refused["error"]
        _, body = await mesh.decide(asked["uuid"], "approve", edited={"message": "do less"})
        assert body["result"]["response"] == "fine"
        assert [message.text for message in peers.said] == ["do less"]


async def test_what_an_agent_asks_is_asked_here_and_the_decision_is_told_there() -> None:
    peers, model = Peers(asks(n=7), done("dropped")), ByNode(a=[TELL, says("all done")])
    async with mesh_with(peers, model, llm("a"), a2a=agents("b")) as mesh:
        _, body = await mesh.create("go")
        asked = body["result"]["approval"]
        assert (asked["remote_task_id"], asked["remote_agent_name"]) == ("task-1", "b")
        assert (asked["tool_name"], asked["tool_args"]) == ("drop", {"n": 7})
        await mesh.crash()
        _, body = await mesh.decide(asked["uuid"], "approve", edited={"n": 8}, token="t2")
        assert body["result"]["response"] == "all done"
        answer, hop = peers.agent.sent[-1]
        assert answer.task_id == "task-1" and answer.context_id == "context-1"
        assert answer.decision is not None
        assert (answer.decision.ids, answer.decision.choice) == (("ask-1",), "approve")
        assert answer.decision.edited_args == {"n": 8}
        assert hop.token == "t2"


async def test_several_rounds_of_questions_are_each_asked_and_told_once() -> None:
    peers = Peers(asks(1), asks(2), asks(3), done("ok"))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        for _ in range(3):
            _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert body["result"]["response"] == "ok"
        assert [m.decision.ids[0] for m in peers.said if m.decision] == ["ask-1", "ask-2", "ask-3"]
        assert len({message.id for message in peers.said}) == 4


async def test_a_rejection_is_told_there_with_its_reason_and_without_one_ends_the_turn_here() -> None:
    peers = Peers(asks(), done("then not"))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject", reason="too risky")
        assert body["result"]["response"] == "then not"
        assert peers.said[-1].decision is not None and peers.said[-1].decision.reason == "too risky"
    peers = Peers(asks(), done("Operation cancelled by user."))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."
        assert peers.said[-1].decision is not None and peers.said[-1].decision.choice == "reject"


async def test_a_question_for_words_takes_any_words() -> None:
    peers = Peers(asks(kind="question", form="hitl"), done("to Paris"))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        asked = body["result"]["approval"]
        assert asked["kind"] == "question"
        _, body = await mesh.answer(asked["uuid"], "yes, Paris")
        assert body["result"]["response"] == "to Paris"
        assert peers.said[-1].decision is not None and peers.said[-1].decision.answer == "yes, Paris"


async def test_a_refused_decision_names_the_choices_of_the_kind_although_prose_may_be_answered() -> None:
    peers = Peers(asks(form="text"), done("dropped"))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        uuid = body["result"]["approval"]["uuid"]
        for status, refused in (await mesh.decide(uuid, "retry"), await mesh.answer(uuid, "")):
            assert status == 400
            assert f"approval {uuid} takes approve or reject, not " in refused["error"]
        _, body = await mesh.answer(uuid, "the old one")
        assert body["result"]["response"] == "dropped"


async def test_in_parallel_branches_each_question_is_decided_by_itself() -> None:
    peers = Peers(asks(1), asks(2), done("left"), done("right"))
    tree = parallel(remote("l"), remote("r"), approvals="ask")
    async with mesh_with(peers, ByNode(), tree) as mesh:
        _, body = await mesh.create("go")
        waiting = body["conversation"]["pending_approvals"]
        assert len(waiting) == 2
        for asked in reversed(waiting):
            _, body = await mesh.decide(asked["uuid"], "approve")
        assert sorted(body["result"]["response"].split("\n")) == ["left", "right"]


async def test_under_a_parallel_that_asks_nobody_the_other_agents_questions_are_still_asked() -> None:
    async with mesh_with(Peers(asks(1), done("ok")), ByNode(), parallel(remote("l"))) as mesh:
        _, body = await mesh.create("go")
        assert body["result"]["waiting_approval"] is True


async def test_a_message_whose_answer_was_lost_is_followed_up_and_not_said_anew() -> None:
    peers = Peers(done("ok"))
    peers.agent.lose_next()
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        assert body["result"]["response"] == "ok"
        assert len({message.id for message in peers.said}) == 1


async def test_what_nobody_can_know_is_asked_of_a_person() -> None:
    for decision, response in (("retry", "ok"), ("skip", "A person looked into it")):
        peers = Peers(done("lost"), done("ok"), forgets=True)
        peers.agent.lose_next()
        model = ByNode(a=[TELL, says("{result}")])
        async with mesh_with(peers, model, llm("a"), a2a=agents("b")) as mesh:
            _, body = await mesh.create("go")
            assert body["result"]["approval"]["kind"] == "unknown_outcome"
            await mesh.crash()
            _, body = await mesh.decide(body["result"]["approval"]["uuid"], decision)
            assert response in model.messages["a"][-1].results[0].content
            assert len({message.id for message in peers.said}) == (2 if decision == "retry" else 1)


async def test_a_turn_that_lost_its_token_in_a_crash_waits_for_a_caller_with_one() -> None:
    peers, model = Peers(done("ok")), ByNode(a=[TELL, says("all done")])
    async with mesh_with(peers, model, llm("a"), a2a=agents("b", destructiveHint=True)) as mesh:
        _, body = await mesh.create("go", token="secret")
        first = body["result"]["approval"]
        conversation = body["conversation"]["id"]
        await mesh.crash()
        _, body = await mesh.decide(first["uuid"], "approve")
        assert body["result"]["auth_required"] is True
        assert peers.said == []
        status, refused = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        assert status == 400 and "Authorization: Bearer" in refused["error"]
        _, body = await mesh.say(conversation, "it is me", token="fresh")
        assert body["result"]["response"] == "all done"
        assert peers.agent.sent[0][1].token == "fresh"
        assert "secret" not in repr(mesh.journal.__dict__) and "fresh" not in repr(mesh.journal.__dict__)


async def test_a_message_under_way_when_the_token_was_lost_is_followed_up_once_there_is_one() -> None:
    arrived = asyncio.Event()

    class Slow(Answering):
        async def __call__(self, message: OutgoingMessage, hop: ForwardedHeaders) -> RemoteTask:
            if not arrived.is_set():
                arrived.set()
                await asyncio.Event().wait()
            return await super().__call__(message, hop)

    peers = Peers(done("ok"))
    peers.agent = MemoryAgent(Slow(done("ok")))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        creating = asyncio.create_task(mesh.create("go", token="secret"))
        async with asyncio.timeout(30):
            await arrived.wait()
            await mesh.crash()
            await asyncio.gather(creating, return_exceptions=True)
            (listed,) = (await mesh.ask(Page()))[1]["conversations"]
            _, body = await mesh.say(listed["id"], "are you there?")
        assert body["result"]["approval"]["kind"] == "auth_required"
        _, body = await mesh.say(listed["id"], "me", token="fresh")
        assert body["result"]["response"] == "ok"
        assert [hop.token for _, hop in peers.agent.sent] == ["secret", "fresh"]
        assert len({message.id for message in peers.said}) == 1


async def test_an_agent_that_wants_a_token_gets_that_of_the_caller_who_comes_with_one() -> None:
    peers = Peers(wants_token(), done("hello Ann"))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        assert body["result"]["auth_required"] is True
        assert body["conversation"]["turn"]["state"] == "auth_required"
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve", token="ann's")
        assert body["result"]["response"] == "hello Ann"
        assert peers.said[-1].task_id == "task-1"
        assert peers.agent.sent[-1][1].token == "ann's"


async def test_a_message_that_was_refused_for_want_of_a_token_is_said_anew_with_one() -> None:
    peers = Peers(door(refused=True), asks(1), door(refused=True), done("ok"))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        assert body["result"]["auth_required"] is True
        _, body = await mesh.say(body["conversation"]["id"], "me", token="t1")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve", edited={"n": 9})
        assert body["result"]["auth_required"] is True, "it was refused while the decision was told"
        _, body = await mesh.say(body["conversation"]["id"], "me", token="t2")
        assert body["result"]["response"] == "ok"
        last = peers.said[-1].decision
        assert last is not None and last.edited_args == {"n": 9}
        assert len({message.id for message in peers.said}) == 4


async def test_a_door_that_closed_after_the_message_arrived_leads_to_no_second_message() -> None:
    peers = Peers(door(refused=False))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        peers.agent.forget_answers()
        peers.agent.script = Answering(done("ok"))
        _, body = await mesh.say(body["conversation"]["id"], "me", token="t1")
        assert body["result"]["response"] == "ok"
        assert len({message.id for message in peers.said}) == 1


async def test_who_has_no_token_for_it_leaves_no_task_waiting_there() -> None:
    peers = Peers(wants_token())
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."
        assert peers.agent.cancelled == ["task-1"]


async def test_what_is_asked_again_after_a_rejection_without_a_reason_is_called_off() -> None:
    peers = Peers(asks(1), asks(2))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        _, body = await mesh.decide(body["result"]["approval"]["uuid"], "reject")
        assert body["result"]["response"] == "Operation cancelled by user."
        assert peers.agent.cancelled == ["task-1"]


async def test_three_branches_that_wait_for_a_token_go_on_with_one() -> None:
    peers = Peers(wants_token(), wants_token(), wants_token(), done("a"), done("b"), done("c"))
    tree = parallel(remote("x"), remote("y"), remote("z"), approvals="ask")
    async with mesh_with(peers, ByNode(), tree) as mesh:
        _, body = await mesh.create("go")
        assert len(body["conversation"]["pending_approvals"]) == 3
        _, body = await mesh.say(body["conversation"]["id"], "me", token="t1")
        assert body["result"]["waiting_approval"] is False
        assert {hop.token for _, hop in peers.agent.sent[3:]} == {"t1"}


async def test_the_token_of_one_turn_is_none_of_the_next() -> None:
    peers = Peers(asks(1), done("ok"))
    async with mesh_with(peers, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go", token="ann's")
        conversation = body["conversation"]["id"]
        await mesh.ask(Cancel(conversation))
        await mesh.say(conversation, "go on")
        assert [hop.token for _, hop in peers.agent.sent] == ["ann's", ""]


async def test_a_crash_at_any_event_says_nothing_twice_and_comes_to_the_same_end() -> None:
    """The journal is cut after each event; a new keeper goes on from there."""
    whole = Peers(asks(1), asks(2), done("ok"))
    async with mesh_with(whole, ByNode(), remote("b")) as mesh:
        _, body = await mesh.create("go")
        conversation = body["conversation"]["id"]
        while body["result"]["waiting_approval"]:
            await mesh.crash()
            _, body = await mesh.decide(body["result"]["approval"]["uuid"], "approve")
        events = await mesh.journal.read(conversation)
    assert body["result"]["response"] == "ok"
    intents = [event for event in events if isinstance(event, ToolIntent)]
    assert [intent.attempt for intent in intents] == [0, 1, 2]
    assert len(whole.said) == 3

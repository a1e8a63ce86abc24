"""One trace a turn: its spans, what each lies in, and that a crash makes none twice and loses none."""

import json
from typing import Any

import httpx
import pytest

from mesh.core.execution import trace_id_of
from mesh.tracing.spans import Span, Tracer, TurnOfTrace
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, ScriptedLlm, WorldMesh, calls, says

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TREE = """
name: test
llm: {model: scripted}
agent:
  name: both
  type: sequential
  agents:
    - {name: first, type: llm, prompt: You are first.}
    - {name: second, type: llm, prompt: You are second.}
"""
CALLED = """
name: test
llm: {model: scripted}
agent: {name: root, type: llm, agents: [{name: helper, type: llm, description: Helps., prompt: You help.}]}
"""


class Sent:
    """The spans that were sent."""

    def __init__(self, share: float = 1.0, *, with_contents: bool = False) -> None:
        self.spans: list[Span] = []
        self.tracer = Tracer(self.spans.append, share, with_contents=with_contents)

    def named(self, name: str) -> Span:
        """The one with this name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def inside(self) -> dict[str, str]:
        """The name of the span in which each lies, by its name; empty for what lies in none of these."""
        names = {span.span_id: span.name for span in self.spans}
        return {span.name: names.get(span.parent_id, "") for span in self.spans}


def live(sent: Sent, *answers: Any, config: str = SIMPLE) -> LiveMesh:
    return LiveMesh(Spoken(*answers), config, tracer=sent.tracer)


def test_a_turn_with_an_approval_is_one_trace() -> None:
    sent = Sent()
    with live(sent, calls(("add", {"n": 3})), says("done")) as mesh, httpx.Client(base_url=mesh.url) as http:
        asked = http.post("/conversations", json={"message": "add"}).json()
        assert [span.name for span in sent.spans if span.name != "append"] == ["chat scripted"]
        http.post(f"/approvals/{asked['result']['approval']['uuid']}", json={"approved": True})
    assert {span.trace_id for span in sent.spans} == {trace_id_of("", asked["conversation"]["id"], 1)}
    turn = sent.named("invoke_agent test")
    assert turn.parent_id == ""
    chats = [span for span in sent.spans if span.name == "chat scripted"]
    assert len(chats) == 2 and {span.parent_id for span in chats} == {turn.span_id}
    approval, tool = sent.named("approval add"), sent.named("execute_tool add")
    assert approval.parent_id == tool.parent_id == turn.span_id
    assert turn.start_ns <= approval.start_ns < approval.end_ns <= tool.end_ns <= turn.end_ns
    assert approval.attributes["mesh.approval.decision"] == "approve"
    assert chats[0].attributes["gen_ai.request.model"] == "scripted"
    assert {span.attributes["gen_ai.conversation.id"] for span in sent.spans} == {asked["conversation"]["id"]}
    assert len({span.span_id for span in sent.spans}) == len(sent.spans)


def test_each_append_of_a_turn_lies_in_it_with_the_time_that_the_store_took() -> None:
    sent = Sent()
    with live(sent, says("done")) as mesh, httpx.Client(base_url=mesh.url) as http:
        body = http.post("/conversations", json={"message": "go"}).json()
        log = http.get(f"/conversations/{body['conversation']['id']}/log").text.splitlines()
    turn = sent.named("invoke_agent test")
    appends = [span for span in sent.spans if span.name == "append"]
    assert {span.parent_id for span in appends} == {turn.span_id}
    assert all(span.end_ns > span.start_ns >= turn.start_ns for span in appends)
    of_turn = [line for line in log if json.loads(line).get("turn")]
    assert sum(span.attributes["mesh.events"] for span in appends) == len(of_turn)


def test_nodes_lie_in_the_nodes_around_them() -> None:
    sent = Sent()
    answers = (says("one"), says("two"))
    with live(sent, *answers, config=TREE) as mesh, httpx.Client(base_url=mesh.url) as http:
        http.post("/conversations", json={"message": "go"})
    chats = [span for span in sent.spans if span.name == "chat scripted"]
    names = {span.span_id: span.name for span in sent.spans}
    assert [names[span.parent_id] for span in chats] == ["node first", "node second"]
    assert sent.inside()["node first"] == "invoke_agent test"


def test_what_an_agent_does_lies_in_the_call_that_it_works_for() -> None:
    sent = Sent()
    answers = (calls(("helper", {"task": "help"})), says("helped"), says("done"))
    with live(sent, *answers, config=CALLED) as mesh, httpx.Client(base_url=mesh.url) as http:
        http.post("/conversations", json={"message": "go"})
    call = sent.named("execute_tool helper")
    inner = [span for span in sent.spans if span.parent_id == call.span_id]
    assert "chat scripted" in {span.name for span in inner}
    known = {span.span_id for span in sent.spans}
    assert [span.name for span in sent.spans if span.parent_id not in known] == ["invoke_agent test"]


async def test_a_crash_neither_loses_a_span_nor_makes_another_one() -> None:
    sent = Sent()
    async with WorldMesh(ScriptedLlm(calls(("add", {"n": 3})), says("done")), tracer=sent.tracer) as mesh:
        _, body = await mesh.create("add")
        before = {span.span_id for span in sent.spans}
        await mesh.crash()
        await mesh.decide(body["result"]["approval"]["uuid"], "approve")
    ids = [span.span_id for span in sent.spans]
    assert len(ids) == len({*ids}) and before < {*ids}
    approval = sent.named("approval add")
    assert approval.end_ns > approval.start_ns, "the wait is known to who was not there when it began"
    assert {span.parent_id for span in sent.spans} == {"", sent.named("invoke_agent test").span_id}


def through_another_agent(headers: dict[str, str]) -> tuple[Sent, Sent]:
    """What an agent sends that asks another one, and what that one sends."""
    above, below = Sent(), Sent()
    with live(below, says("done below")) as b:
        config = f"{SIMPLE}a2a: [{{name: b, url: '{b.url}', destructiveHint: false}}]\n"
        asking = calls(("a2a_b", {"message": "hello"}))
        with live(above, asking, says("done"), config=config) as a, httpx.Client(base_url=a.url) as http:
            http.post("/conversations", json={"message": "go"}, headers=headers)
    return above, below


def test_the_trace_of_the_caller_goes_on_through_other_agents() -> None:
    above, below = through_another_agent({"traceparent": CALLER})
    trace_id, caller = CALLER.split("-")[1:3]
    assert {span.trace_id for span in (*above.spans, *below.spans)} == {trace_id}
    assert above.named("invoke_agent test").parent_id == caller
    assert below.named("invoke_agent test").parent_id == above.named("execute_tool a2a_b").span_id


def test_a_trace_goes_on_that_nobody_has_begun() -> None:
    above, below = through_another_agent({})
    assert len({span.trace_id for span in (*above.spans, *below.spans)}) == 1


def test_who_asks_for_no_trace_gets_none_and_nobody_below_either() -> None:
    above, below = through_another_agent({"traceparent": f"{CALLER[:-1]}0"})
    assert above.spans == below.spans == []


def test_a_share_of_the_turns_is_traced_wholly_and_everywhere_the_same() -> None:
    turns = [TurnOfTrace(f"conversation {number}", 1, "", "") for number in range(2000)]
    traced = [turn for turn in turns if turn.is_sampled(0.1)]
    assert 120 < len(traced) < 280
    for turn in traced:
        forwarded = TurnOfTrace("another", 7, "x", turn.forwarded(0.1))
        assert forwarded.trace_id == turn.trace_id and forwarded.is_sampled(0)
    assert not any(turn.is_sampled(0) for turn in turns) and all(turn.is_sampled(1) for turn in turns)


@pytest.mark.parametrize("with_contents", [False, True])
def test_what_was_said_is_sent_only_where_that_is_wanted(with_contents: bool) -> None:
    sent = Sent(with_contents=with_contents)
    answers = (calls(("look", {})), says("a secret answer"))
    with live(sent, *answers) as mesh, httpx.Client(base_url=mesh.url) as http:
        http.post("/conversations", json={"message": "a secret question"})
    text = str([span.attributes for span in sent.spans])
    assert ("secret answer" in text) is with_contents
    assert ("gen_ai.tool.call.result" in text) is with_contents


def test_a_turn_that_fails_says_so() -> None:
    sent = Sent()

    async def broken(_: object) -> Any:
        raise RuntimeError("no model")

    with live(sent, broken) as mesh, httpx.Client(base_url=mesh.url, timeout=60) as http:
        http.post("/conversations", json={"message": "go"})
    assert sent.named("invoke_agent test").error == "turn_failed"

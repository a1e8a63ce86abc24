"""Depth, limits and what was spent, from agent to agent: over HTTP, and as data from outside."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import msgspec
import pytest
import yaml

from mesh.a2a.budget_data import CallerContext, caller_context, spent_data, spent_in
from mesh.a2a.client.memory import MemoryAgent
from mesh.a2a.client.port import ForwardedHeaders, OutgoingMessage, RemoteTask
from mesh.a2a.extensions import BUDGET
from mesh.core.budget import NUSD
from mesh.core.conversation import fold
from mesh.core.events import AnyEvent, LlmCall, SpentElsewhere, ToolResult, Usage, UserMessage
from mesh.core.messages import Results
from mesh.llm.port import LlmRequest
from tests.a2a.server.serving import served
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says
from tests.worlds.ports import free_port
from tests.worlds.rpc import answer, said, state

PRICED = {"model": "scripted", "prices": {"scripted": {"input": 1.0, "output": 2.0}}}
ACTIVE = {"A2A-Extensions": BUDGET}


def setting(**more: Any) -> str:
    return yaml.safe_dump({"name": "test", "llm": PRICED, **more})


async def asks_on(request: LlmRequest) -> LlmCall:
    """The model asks the next agent, if it is offered one; then it says what came of it."""
    last, used = request.messages[-1], Usage(10, 100)
    if isinstance(last, Results):
        made = says("got: " + last.results[0].content)
    elif any(tool.name == "a2a_next" for tool in request.tools):
        made = calls(("a2a_next", {"message": "go on"}))
    else:
        made = says("no further")
    return msgspec.structs.replace(made, usage=used)


NUSD_A_CALL = 10 * 1000 + 100 * 2000


@contextmanager
def circle(one: dict[str, Any], other: dict[str, Any]) -> Iterator[list[LiveMesh]]:
    """Two meshes, each of which has the other as an agent."""
    with ExitStack() as stack:
        meshes: list[LiveMesh] = []
        ports = [free_port(), free_port()]
        for number, budget in enumerate((one, other)):
            peer = f"http://127.0.0.1:{ports[1 - number]}"
            text = setting(name=f"m{number}", a2a=[{"name": "next", "url": peer}], budget=budget)
            mesh = LiveMesh(ScriptedLlm(asks_on), text)
            mesh.port, mesh.url = ports[number], f"http://127.0.0.1:{ports[number]}"
            meshes.append(stack.enter_context(mesh))
        yield meshes


def journals(mesh: LiveMesh) -> list[list[AnyEvent]]:
    listed = httpx.get(f"{mesh.url}/conversations").json()["conversations"]
    return [list(mesh.run(mesh.mesh.journal.read(each["id"]))) for each in listed]


def asked(mesh: LiveMesh) -> list[UserMessage]:
    return [event for events in journals(mesh) for event in events if isinstance(event, UserMessage)]


def say(mesh: LiveMesh) -> list[AnyEvent]:
    body = httpx.post(f"{mesh.url}/conversations", json={"message": "go"}, timeout=20).json()
    return list(mesh.run(mesh.mesh.journal.read(body["conversation"]["id"])))


def test_a_circle_of_meshes_ends_at_max_depth() -> None:
    with circle({"max_depth": 4}, {"max_depth": 4}) as (a, b):
        say(a)
        depths = [[message.depth for message in asked(mesh)] for mesh in (a, b)]
        paths = {message.called_by for message in asked(b)}
        assert [sorted(found) for found in depths] == [[0, 2], [1, 3]]
        assert paths == {("m0",), ("m0", "m1", "m0")}


def test_the_smallest_max_depth_of_a_circle_ends_it() -> None:
    with circle({"max_depth": 20}, {"max_depth": 2}) as (a, b):
        events = say(a)
        assert [len(asked(mesh)) for mesh in (a, b)] == [1, 1], "b is the second, and asks nobody"
        assert not [e for e in events if isinstance(e, ToolResult) and e.is_error]


def test_a_message_of_the_deepest_agent_is_refused_and_begins_nothing() -> None:
    with served(setting=setting(budget={"max_depth": 3})) as (rpc, live):
        message = said("go", metadata={BUDGET: {"depth": 3}})
        error = rpc.call("SendMessage", {"message": message})["error"]
        assert "max_depth" in error["message"]
        assert asked(live) == []
        assert rpc.send("go", message={"metadata": {BUDGET: {"depth": 2}}})


def test_what_was_spent_below_comes_back_and_counts_in_the_callers_budget() -> None:
    budget = {"max_depth": 4, "max_cost_usd": 1, "max_llm_calls": 100}
    with circle(budget, {"max_depth": 4}) as (a, _):
        events = say(a)
        result = next(e for e in events if isinstance(e, ToolResult))
        below = 1 + 2 * 2  # the innermost says only, each other agent calls its model twice
        assert result.spent == SpentElsewhere(below * NUSD_A_CALL, below * 110, below)
        whole = fold(events).budget_use.use("0").spent
        assert (whole.nusd, whole.tokens, whole.calls) == (7 * NUSD_A_CALL, 7 * 110, 7)
        spent = httpx.get(f"{a.url}/conversations/{journal_id(events)}/spend").json()
        assert (spent["spent"]["calls"], spent["spent"]["unpriced_calls"]) == (7, 0)
        assert [each["agent_path"] for each in spent["by_agent"]] == [["m0"], ["m0", "next"]]


def journal_id(events: list[AnyEvent]) -> str:
    return str(fold(events).id)


def test_what_is_left_tightens_the_limits_of_the_other_agent() -> None:
    with circle({"max_llm_calls": 4, "max_cost_usd": 1}, {"max_llm_calls": 50}) as (a, b):
        say(a)
        told = asked(b)[0].budget
        assert told["max_llm_calls"] == 2, "of 4, one is made, and one is kept for the last answer"
        assert 0 < told["max_cost_usd"] <= 0.9 - NUSD_A_CALL / NUSD + 1e-9
        events = next(events for events in journals(b) if isinstance(events[1], UserMessage))
        assert fold(events).budget_use.use("0").spent.calls <= 2


def test_a_caller_can_only_tighten() -> None:
    with served(setting=setting(budget={"max_llm_calls": 1})) as (rpc, live):
        task = rpc.send("go", message={"metadata": {BUDGET: {"depth": 1, "left": {"max_llm_calls": 500}}}})
        assert state(task) == "COMPLETED"
        events = journals(live)[0]
        assert fold(events).budget_use.use("0").spent.calls == 1


@pytest.mark.parametrize("is_active", [True, False])
def test_only_a_caller_that_activated_the_extension_is_told_what_was_spent(is_active: bool) -> None:
    with served(setting=setting()) as (rpc, _):
        headers = ACTIVE if is_active else {}
        task = rpc.send("go", **headers)
        shown = rpc.result("GetTask", {"id": task["id"]}, **headers)
        expected = {"spent": {"cost_usd": 0, "tokens": 0, "llm_calls": 1}} if is_active else None
        assert [each.get("metadata", {}).get(BUDGET) for each in (task, shown)] == [expected] * 2
        *_, last = rpc.stream("SendStreamingMessage", {"message": said("go")}, **headers)
        assert last["result"]["statusUpdate"].get("metadata", {}).get(BUDGET) == expected
        message = {
            "messageId": "1",
            "role": "user",
            "kind": "message",
            "parts": [{"kind": "text", "text": "go"}],
        }
        old = rpc.result("message/send", {"message": message}, **headers, **{"A2A-Version": "0.3"})
        assert old.get("metadata", {}).get(BUDGET) == expected


def test_an_answer_that_a_limit_forced_says_so() -> None:
    with served(setting=setting(budget={"max_llm_calls": 1})) as (rpc, _):
        task = rpc.send("go", **ACTIVE)
        assert task["metadata"][BUDGET]["forced"] == "max_llm_calls"
        *_, last = rpc.stream("SendStreamingMessage", {"message": said("go")}, **ACTIVE)
        assert last["result"]["statusUpdate"]["metadata"][BUDGET]["forced"] == "max_llm_calls"


def test_without_prices_the_cost_is_unknown_and_a_limit_of_money_is_dropped() -> None:
    with served() as (rpc, live):
        metadata = {BUDGET: {"depth": 1, "left": {"max_cost_usd": 0.1, "max_llm_calls": 3}}}
        task = rpc.send("go", message={"metadata": metadata}, **ACTIVE)
        assert (state(task), answer(task)) == ("COMPLETED", "hello there")
        assert task["metadata"][BUDGET]["spent"]["cost_usd"] == "unknown"
        assert asked(live)[0].budget == {"max_llm_calls": 3}


def test_a_message_that_is_sent_again_with_less_left_counts_once() -> None:
    with served(setting=setting()) as (rpc, live):
        message = said("go", metadata={BUDGET: {"depth": 1, "left": {"max_llm_calls": 5}}})
        first = rpc.result("SendMessage", {"message": message})["task"]
        message["metadata"] = {BUDGET: {"depth": 1, "left": {"max_llm_calls": 4}}}
        again = rpc.result("SendMessage", {"message": message})["task"]
        assert first["id"] == again["id"] and len(asked(live)) == 1


HOSTILE: list[Any] = [
    None,
    7,
    "depth",
    [],
    {},
    {"depth": 0},
    {"depth": -1},
    {"depth": 1.5},
    {"depth": "1"},
    {"depth": True},
    {"depth": 10**9},
    {"depth": 1, "agent_path": "main"},
    {"depth": 1, "agent_path": [1]},
    {"depth": 1, "agent_path": ["a" * 300]},
    {"depth": 1, "agent_path": ["a"] * 101},
    {"depth": 1, "left": []},
    {"depth": 1, "left": {"max_cost_usd": -1}},
    {"depth": 1, "left": {"max_cost_usd": "1"}},
    {"depth": 1, "left": {"max_llm_calls": 1.5}},
    {"depth": 1, "left": {"max_depth": 5}},
    {"depth": 1, "left": {"max_total_tokens": 1e300}},
]


@pytest.mark.parametrize("data", HOSTILE, ids=str)
def test_data_that_is_malformed_is_an_error_and_not_a_defect(data: Any) -> None:
    with pytest.raises(ValueError):
        caller_context(data)


def test_a_message_with_malformed_data_is_refused() -> None:
    with served(setting=setting()) as (rpc, live):
        for data in HOSTILE:
            assert rpc.code("SendMessage", {"message": said("go", metadata={BUDGET: data})}) == -32602, data
        body = {"message": said("go", metadata={BUDGET: {"depth": "x"}})}
        assert rpc.http.post("/a2a/message:send", json=body).status_code == 400
        assert asked(live) == []


def test_the_context_is_read_as_it_was_written() -> None:
    context = CallerContext(3, ("a", "b"), {"max_cost_usd": 0.5, "max_llm_calls": 7, "max_time_s": 1.25})
    doubles = msgspec.json.decode(msgspec.json.encode(context.data).replace(b":7", b":7.0"))
    assert caller_context(doubles) == context
    spent = SpentElsewhere(123_456_789, 10, 2)
    assert spent_in(spent_data(spent)) == spent
    assert spent_in(spent_data(SpentElsewhere(None, 10, 2))) == SpentElsewhere(None, 10, 2)


@pytest.mark.parametrize(
    "data",
    [
        None,
        "x",
        {},
        {"spent": 5},
        {"spent": {"cost_usd": "unknown"}},
        {"spent": {"cost_usd": -1, "tokens": -5, "llm_calls": 1.5}},
        {"spent": {"cost_usd": 1e300, "tokens": "7", "llm_calls": True}},
        {"spent": {"cost_usd": True, "tokens": 10**30}},
    ],
    ids=str,
)
def test_what_cannot_have_been_spent_is_unknown(data: Any) -> None:
    assert spent_in(data) == SpentElsewhere()


UNKNOWN = SpentElsewhere()


def foreign(spent: SpentElsewhere = UNKNOWN, *, is_priced: bool = False) -> MemoryAgent:
    async def script(message: OutgoingMessage, forwarded: ForwardedHeaders) -> RemoteTask:
        return RemoteTask("completed", "done", "t", spent=spent)

    agent = MemoryAgent(script)
    agent.priced = is_priced
    return agent


def with_agent(agent: MemoryAgent, **budget: Any) -> WorldMesh:
    text = setting(a2a=[{"name": "next", "url": "http://next.example"}], budget=budget)
    return WorldMesh(ScriptedLlm(asks_on), config=text, agent_for=lambda _: agent)


async def test_an_agent_that_says_nothing_counts_as_unknown() -> None:
    agent = foreign()
    async with with_agent(agent, max_cost_usd=1) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert body["result"]["response"] == "got: done"
    assert next(e for e in events if isinstance(e, ToolResult)).spent == SpentElsewhere()
    assert body["conversation"]["spent"]["unpriced_calls"] == 1


@pytest.mark.parametrize("is_priced", [True, False])
async def test_unpriced_peers_may_be_refused_under_a_money_limit(is_priced: bool) -> None:
    agent = foreign(SpentElsewhere(5, 5, 1), is_priced=is_priced)
    async with with_agent(agent, max_cost_usd=1, unpriced_peers="refuse") as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    result = next(e for e in events if isinstance(e, ToolResult))
    assert (len(agent.sent), result.is_error) == ((1, False) if is_priced else (0, True))
    assert is_priced or "unpriced_peers" in result.content


async def test_without_a_money_limit_unpriced_peers_are_asked() -> None:
    agent = foreign()
    async with with_agent(agent, max_llm_calls=10, unpriced_peers="refuse") as world:
        _, body = await world.create("go")
    assert body["result"]["response"] == "got: done" and len(agent.sent) == 1


async def test_at_max_depth_no_other_agent_is_offered_or_asked() -> None:
    agent = foreign()
    stubborn = ScriptedLlm(calls(("a2a_next", {"message": "go on"})), says("well"))
    text = setting(a2a=[{"name": "next", "url": "http://next.example"}], budget={"max_depth": 1})
    async with WorldMesh(stubborn, config=text, agent_for=lambda _: agent) as world:
        _, body = await world.create("go")
        events = await world.journal.read(body["conversation"]["id"])
    assert "a2a_next" not in {tool.name for tool in stubborn.requests[0].tools}
    result = next(e for e in events if isinstance(e, ToolResult))
    assert result.is_error and "max_depth" in result.content and not agent.sent
    assert body["result"]["response"] == "well"


async def test_a_card_without_the_extension_gets_no_data_and_is_not_priced() -> None:
    from mesh.a2a.client.discovery import profile_of, read_card
    from mesh.a2a.client.transport import A2aTransport

    card = {"supportedInterfaces": [{"url": "http://x.example/a2a", "protocolBinding": "JSONRPC"}]}
    transport = A2aTransport("x", ["http://x.example/a2a"], 1000, None)
    sender = CallerContext(1, ("main",))
    message = OutgoingMessage("m", "go", "c", sender=sender)
    for params, extensions in ((None, []), ({"priced": True}, [BUDGET]), ({"priced": "yes"}, [BUDGET])):
        listed = [{"uri": uri, **({"params": params} if params else {})} for uri in extensions]
        profile = profile_of(
            transport,
            "http://x.example/a2a",
            read_card({**card, "capabilities": {"extensions": listed}}),
        )
        request = profile.endpoints[0].send(message, "x")
        assert request is not None
        assert (BUDGET.encode() in request.body) == bool(extensions)
        assert profile.is_priced is (params == {"priced": True})

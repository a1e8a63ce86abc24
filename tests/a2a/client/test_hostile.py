"""Agents that are down, slow, lying or broken: what the caller gets, and that it gets it within the
deadline."""

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from mesh.a2a.client.agent import HttpAgent
from mesh.a2a.client.port import (
    ForwardedHeaders,
    OutgoingMessage,
    RelayedDecision,
    RemoteFailed,
    RemoteLost,
    RemoteTask,
)
from mesh.a2a.client.transport import HttpResponse
from mesh.net.address_guard import guarded_session, host_and_port
from tests.net.test_address_guard import Names
from tests.worlds.agents import (
    Agent,
    Fault,
    Handler,
    answers,
    cut,
    cut_before,
    cut_halfway,
    hang,
    replies,
    served,
)
from tests.worlds.ports import free_port

TOKEN = "secret-token-1234567890"
FORWARDED = ForwardedHeaders(
    session_id="session-7", traceparent="00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", token=TOKEN
)
ODD = "Secret-Token-With-Case"
LATE_S = 30.0
"""Far more than an agent of these tests may take, however busy the machine is."""
CARD: dict[str, Any] = {"name": "b", "description": "b", "version": "1", "capabilities": {}, "skills": []}


def message(text: str, task: str = "", decided: RelayedDecision | None = None) -> OutgoingMessage:
    return OutgoingMessage(str(uuid.uuid4()), text, "c1", task, decided)


@pytest.fixture
async def agent(url: str) -> AsyncIterator[HttpAgent]:
    made = HttpAgent("bob", url, timeout_s=30)
    yield made
    await made.close()


async def failure(agent: HttpAgent, text: str = "echo x", kind: type[Exception] = RemoteFailed) -> str:
    """What a message that fails comes to: short, named, and without the token."""
    started = time.monotonic()
    with pytest.raises(kind) as error:
        await agent.send(message(text), FORWARDED)
    assert time.monotonic() - started < 2 * LATE_S
    told = str(error.value)
    assert told.startswith("agent bob") and TOKEN not in told and "Traceback" not in told
    assert len(told) < 800
    return told


async def test_every_request_carries_what_goes_along(agent: HttpAgent, peer: Agent) -> None:
    await agent.send(message("echo x"), FORWARDED)
    assert [path for path, _ in peer.requests] == ["/.well-known/agent-card.json", "/a2a"]
    for _, headers in peer.requests:
        assert headers["X-Session-ID"] == "session-7"
        assert headers["traceparent"] == FORWARDED.traceparent
        assert headers["Authorization"] == f"Bearer {TOKEN}"
        assert headers["A2A-Version"] == "1.0"
        assert "hitl/v1" in headers["A2A-Extensions"] and "urn:mesh:a2a" in headers["A2A-Extensions"]


async def test_the_card_is_asked_for_once(agent: HttpAgent, peer: Agent) -> None:
    await asyncio.gather(*[agent.send(message(f"echo {n}"), FORWARDED) for n in range(5)])
    assert [path for path, _ in peer.requests].count("/.well-known/agent-card.json") == 1


async def test_an_agent_that_is_down_is_reported_as_unreachable() -> None:
    agent = HttpAgent("bob", f"http://127.0.0.1:{free_port()}/a2a", timeout_s=30)
    assert "cannot be reached" in await failure(agent)
    await agent.close()


async def test_a_host_name_that_cannot_be_resolved_is_reported() -> None:
    agent = HttpAgent("bob", "http://no-such-host.invalid/a2a", timeout_s=30)
    assert "the name no-such-host.invalid cannot be resolved" in await failure(agent)
    await agent.close()


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (answers(text="{not json", content_type="application/json"), "not JSON"),
        (answers(text="<html><b>hi", content_type="text/html"), "not JSON (text/html)"),
        (answers(text="[" * 100_000, content_type="application/json"), "not JSON"),
        (answers(body=b"\xff\xfe{}", content_type="application/json"), "not JSON"),
        (answers(body=b"x" * 10_000_000), "more than 4194304 bytes"),
        (answers(json=[]), "wrong JSON-RPC id"),
        (answers(json={"jsonrpc": "2.0", "id": "other", "result": {}}), "wrong JSON-RPC id"),
        (answers(500, text="boom " * 1000), "HTTP 500: boom boom"),
        (answers(500, text="<html>", content_type="text/html"), "HTTP 500"),
        (answers(429, json={"error": {"message": "slow down"}}), "HTTP 429"),
        (answers(409, json={"detail": "busy"}), "HTTP 409: busy"),
    ],
)
async def test_garbage_is_a_failure_that_says_what_came(
    agent: HttpAgent, peer: Agent, fault: Fault, told: str
) -> None:
    peer.once = False
    peer.faults.append(fault)
    assert told in await failure(agent)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "neither a task nor a message"),
        ("hello", "neither a task nor a message"),
        ({"task": {}}, "neither a task nor a message"),
        ({"task": {"id": "t", "status": {"state": "TASK_STATE_UNSPECIFIED"}}}, "in no state"),
        ({"task": {"status": {"state": "TASK_STATE_COMPLETED"}}}, "without an id"),
    ],
)
async def test_a_result_that_is_nothing_of_a2a_is_a_failure(
    agent: HttpAgent, peer: Agent, result: Any, told: str
) -> None:
    peer.faults.append(replies(result))
    assert told in await failure(agent)


async def test_an_error_quotes_the_agent_in_a_bounded_text(agent: HttpAgent, peer: Agent) -> None:
    peer.faults.append(replies(error={"code": -32603, "message": f"no disk left; {TOKEN} " + "x" * 9000}))
    told = await failure(agent)
    assert "no disk left; ***" in told and "(-32603)" in told


async def test_a_token_that_is_echoed_reaches_no_answer(agent: HttpAgent) -> None:
    answer = await agent.send(message(f"echo your token is {TOKEN}"), FORWARDED)
    assert answer.text == "your token is ***"


ESCAPED = "".join(f"\\u{ord(letter):04x}" for letter in TOKEN)


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        (f'{{"a": "is {ESCAPED}!"}}', {"a": "is ***!"}),
        (f'{{"{ESCAPED}": ["{TOKEN}"]}}', {"***": ["***"]}),
        (json.dumps({"args": f'{{"n": 1, "a": "{ESCAPED}"}}'}), {"args": '{"n": 1, "a": "***"}'}),
        (json.dumps({"args": '{"a": "b\\u0063", "n": 1.50}'}), {"args": '{"a": "b\\u0063", "n": 1.50}'}),
    ],
)
def test_a_token_that_is_echoed_in_disguise_is_masked_too(sent: str, read: Any) -> None:
    assert HttpResponse(200, sent.encode(), "application/json", (TOKEN,)).json() == read


def test_a_short_token_may_be_a_word_and_stays() -> None:
    assert HttpResponse(200, b'"a token"', "application/json", ("token",)).json() == "a token"


async def test_a_token_in_what_is_no_json_is_masked(agent: HttpAgent, peer: Agent) -> None:
    peer.once = False
    peer.faults.append(answers(500, text=f"you sent {TOKEN * 3000}"))
    told = await failure(agent)
    assert "you sent ***" in told and TOKEN[:5] not in told


@pytest.mark.parametrize(
    "fault",
    [
        answers(302, headers={"Location": f"https://{ODD}.evil.example/"}),
        answers(302, headers={"Location": f"/login/{ODD}"}),
        answers(text="x", content_type=f"text/{ODD}"),
        answers(500, text=ODD),
    ],
)
async def test_a_token_in_any_part_of_an_answer_is_in_no_error(
    agent: HttpAgent, peer: Agent, fault: Fault
) -> None:
    peer.once = False
    peer.faults.append(fault)
    with pytest.raises(RemoteFailed) as error:
        await agent.send(message("echo x"), ForwardedHeaders(token=ODD))
    assert ODD.lower() not in str(error.value).lower() and "***" in str(error.value)


async def test_a_token_in_what_is_no_http_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    async def echoes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard = await reader.readuntil(b"\r\n\r\n")
        if heard.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
        else:
            (line,) = [line for line in heard.splitlines() if line.lower().startswith(b"authorization")]
            writer.write(b"HTTP/1.1 200 OK\r\n" + line.replace(b":", b" ") + b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(echoes, "127.0.0.1", 0)
    agent = HttpAgent("bob", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a2a", timeout_s=5)
    said = message("echo x")
    with caplog.at_level("INFO"):
        with pytest.raises(RemoteLost) as error:
            await agent.send(said, ForwardedHeaders(token=ODD))
        assert await agent.recover(said, ForwardedHeaders(token=ODD)) is None
    assert ODD not in str(error.value) and "event=a2a" in caplog.text and ODD not in caplog.text
    await agent.close()
    server.close()


async def test_an_answer_about_another_task_is_refused(agent: HttpAgent, peer: Agent) -> None:
    asked = await agent.send(message("auth"), ForwardedHeaders())
    peer.faults.append(replies({"task": {"id": "other", "status": {"state": "TASK_STATE_COMPLETED"}}}))
    with pytest.raises(RemoteFailed, match="answered task other, not task-1"):
        await agent.send(message("", asked.task_id), FORWARDED)


GATEWAYS = [answers(500), answers(500, json={"error": "upstream"}), *map(answers, (502, 503, 504))]


@pytest.mark.parametrize("fault", [cut, cut_before, cut_halfway, *GATEWAYS])
async def test_a_connection_lost_after_sending_leaves_the_outcome_open(
    agent: HttpAgent, peer: Agent, fault: Fault
) -> None:
    await agent.send(message("echo first"), FORWARDED)
    peer.faults.append(fault)
    await failure(agent, "echo second", RemoteLost)


async def test_who_gives_no_answer_in_time_is_asked_to_stop(url: str, peer: Agent) -> None:
    agent = HttpAgent("bob", url, timeout_s=LATE_S + 3)
    agent._cancel_s = LATE_S  # which leaves 3 s for the answer
    peer.faults.append(hang)
    assert "no answer within 33 s" in await failure(agent, "forever")
    assert peer.ledger == ["cancel task-1"]
    await agent.close()


async def test_who_works_too_long_is_asked_to_stop_and_quoted(url: str, peer: Agent) -> None:
    agent = HttpAgent("bob", url, timeout_s=LATE_S + 3)
    agent._cancel_s = LATE_S  # which leaves 3 s for the answer
    told = await failure(agent, "forever")
    assert "still at work after 33 s, and asked to stop (task task-1): on it" in told
    assert peer.ledger == ["cancel task-1"]
    await agent.close()


async def test_a_task_that_goes_on_is_followed_to_its_end(agent: HttpAgent, peer: Agent) -> None:
    answer = await agent.send(message("work 2"), FORWARDED)
    assert (answer.state, answer.text) == ("completed", "done")
    assert peer.ledger == ["done"]


async def test_an_agent_that_dies_while_it_works_leaves_the_outcome_open(peer: Agent) -> None:
    heard = asyncio.Event()

    async def notice(request: web.Request, handler: Handler) -> web.StreamResponse:
        heard.set()
        return await handler(request)

    peer.faults.append(notice)
    async with served(peer.app()) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        said = asyncio.create_task(agent.send(message("forever"), FORWARDED))
        await asyncio.wait_for(heard.wait(), 30)
    with pytest.raises(RemoteLost):
        await said
    await agent.close()


@pytest.mark.parametrize("status", [401, 403])
async def test_http_401_and_403_ask_for_a_token(agent: HttpAgent, peer: Agent, status: int) -> None:
    peer.faults.append(answers(status, json={"error": "log in first"}))
    answer = await agent.send(message("echo x"), ForwardedHeaders())
    assert answer == RemoteTask("auth-required", "log in first", "", "c1", refused=True)
    assert (await agent.send(message("echo x"), FORWARDED)).text == "x"


async def test_a_task_that_needs_a_token_goes_on_when_it_is_brought(agent: HttpAgent) -> None:
    asked = await agent.send(message("auth"), ForwardedHeaders())
    assert asked.state == "auth-required" and asked.input_request is not None
    assert [(one.kind, one.description) for one in asked.input_request.approvals] == [
        ("auth_required", "Who are you?")
    ]
    answer = await agent.send(message("", asked.task_id), FORWARDED)
    assert (answer.state, answer.text) == ("completed", "welcome")


@pytest.mark.parametrize(
    "forwarded",
    [
        ForwardedHeaders(session_id="a\r\nX: y"),
        ForwardedHeaders(token="a\nb"),
        ForwardedHeaders(traceparent="\0"),
    ],
)
async def test_what_no_header_may_have_is_not_sent(
    agent: HttpAgent, peer: Agent, forwarded: ForwardedHeaders
) -> None:
    with pytest.raises(RemoteFailed, match="has characters that no header may have"):
        await agent.send(message("echo x"), forwarded)
    assert peer.requests == []


# --- redirects, and cards that name other hosts


def redirects(status: int, target: str) -> Fault:
    return answers(status, headers={"Location": target})


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_to_another_host_is_not_followed(agent: HttpAgent, peer: Agent, status: int) -> None:
    other = Agent()
    async with served(other.app()) as elsewhere:
        peer.faults.append(redirects(status, f"{elsewhere}/a2a"))
        assert "redirects to another host" in await failure(agent)
    assert other.requests == []


@pytest.mark.parametrize("target", ["http://[::1", "mailto:x", "http://h:999999/", "https://127.0.0.1/"])
async def test_a_redirect_to_nonsense_or_another_scheme_is_not_followed(
    agent: HttpAgent, peer: Agent, target: str
) -> None:
    peer.faults.append(redirects(307, target))
    assert "redirects to" in await failure(agent)


async def test_a_redirect_on_the_same_host_is_followed_with_the_message(
    agent: HttpAgent, peer: Agent
) -> None:
    peer.faults.append(redirects(307, "/a2a?again"))
    assert (await agent.send(message("echo x"), FORWARDED)).text == "x"
    assert peer.requests[-1][1]["Authorization"] == f"Bearer {TOKEN}"


async def test_a_redirect_that_would_lose_the_message_is_a_failure(agent: HttpAgent, peer: Agent) -> None:
    peer.faults.append(redirects(302, "/elsewhere"))
    assert "would lose the message" in await failure(agent)


async def test_redirects_have_an_end(agent: HttpAgent, peer: Agent) -> None:
    peer.faults += [redirects(308, "/a2a")] * 10
    assert "redirects more than 3 times" in await failure(agent)


async def with_card(card: Any) -> web.Application:
    async def show(_: web.Request) -> web.Response:
        return web.json_response(card)

    app = web.Application()
    app.router.add_get("/.well-known/agent-card.json", show)
    return app


async def test_a_card_may_name_another_host_but_it_gets_no_token() -> None:
    other = Agent()
    async with served(other.app()) as elsewhere:
        interface = {"url": f"{elsewhere}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        async with served(await with_card({**CARD, "supportedInterfaces": [interface]})) as url:
            # As if it were a public address: the guard lets through what is named.
            session = guarded_session([host_and_port(url), host_and_port(elsewhere)])
            agent = HttpAgent("bob", url, timeout_s=30, session=session)
            answer = await agent.send(message("echo x"), FORWARDED)
            await session.close()
    assert answer.text == "x"
    assert other.requests and all("Authorization" not in headers for _, headers in other.requests)


async def test_a_card_that_names_a_private_address_is_refused() -> None:
    inner = Agent()
    async with served(inner.app()) as elsewhere:
        interface = {"url": f"{elsewhere}/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        async with served(await with_card({**CARD, "supportedInterfaces": [interface]})) as url:
            agent = HttpAgent("bob", url, timeout_s=30)
            assert "127.0.0.1 is not a public address" in await failure(agent)
            await agent.close()
    assert inner.requests == []


async def test_a_card_that_names_a_host_which_is_rebound_is_refused() -> None:
    inner = Agent()
    async with served(inner.app()) as elsewhere:
        port = elsewhere.rpartition(":")[2]
        interface = {"url": f"http://evil.example:{port}/a2a", "protocolBinding": "JSONRPC"}
        async with served(await with_card({**CARD, "supportedInterfaces": [interface]})) as url:
            names = Names(evil_example=["8.8.8.8", "127.0.0.1"])
            await names.resolve("evil.example")  # a look beforehand would have seen this
            session = guarded_session([host_and_port(url)], names)
            agent = HttpAgent("bob", url, timeout_s=30, session=session)
            assert "not a public address" in await failure(agent)
            await session.close()
    assert inner.requests == []


async def test_a_card_that_names_an_address_of_its_own_world_does_no_harm(peer: Agent) -> None:
    """The configured URL is tried first, in the dialect of the card."""
    peer.dialect, peer.once = "0.3", False
    app = await with_card({**CARD, "url": "http://0.0.0.0:1/a2a", "protocolVersion": "0.3.0"})
    app.router.add_post("/a2a", peer._rpc)
    async with served(app) as url:
        agent = HttpAgent("bob", f"{url}/a2a", timeout_s=30)
        assert (await agent.send(message("echo x"), FORWARDED)).text == "x"
        await agent.close()


async def test_the_card_of_another_agent_on_the_same_host_is_not_taken(peer: Agent) -> None:
    other = Agent()
    interface = {"protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    app = web.Application()

    async def show(request: web.Request) -> web.Response:
        origin = request.url.origin()
        return web.json_response(
            {**CARD, "supportedInterfaces": [{**interface, "url": f"{origin}/first/a2a"}]}
        )

    app.router.add_get("/.well-known/agent-card.json", show)
    app.router.add_post("/first/a2a", other._rpc)
    app.router.add_post("/second/a2a", peer._rpc)
    async with served(app) as url:
        for where, ledger in (("second", peer.ledger), ("first", other.ledger)):
            agent = HttpAgent("bob", f"{url}/{where}/a2a", timeout_s=30)
            assert (await agent.send(message("echo x"), FORWARDED)).text == "x"
            assert ledger == ["x"]
            await agent.close()


async def test_who_counts_message_ids_is_never_spoken_to_without_one(peer: Agent, url: str) -> None:
    """A card that lists the mesh's extension is at odds with a server that knows the plain form only."""
    peer.dialect, peer.once = "plain", True
    agent = HttpAgent("bob", url, timeout_s=30)
    assert "it refused: invalid parameters (-32602)" in await failure(agent)
    assert peer.ledger == []
    await agent.close()


async def test_a_card_without_a_supported_interface_is_reported() -> None:
    interface = {"url": "http://127.0.0.1:1", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    async with served(await with_card({**CARD, "supportedInterfaces": [interface]})) as url:
        agent = HttpAgent("bob", url, timeout_s=30)
        assert "its card offers GRPC; expected JSONRPC" in await failure(agent)
        await agent.close()


@pytest.mark.parametrize(
    "card", ["a card", [], {"supportedInterfaces": 3}, {"supportedInterfaces": [{"url": 1}]}]
)
async def test_a_card_that_is_garbage_is_no_card(card: Any) -> None:
    async with served(await with_card(card)) as url:
        agent = HttpAgent("bob", url, f"{url}/.well-known/agent-card.json", timeout_s=30)
        assert "there is no agent card at" in await failure(agent)
        await agent.close()


# --- without a card, and when what was known is no longer true


@pytest.mark.parametrize("dialect", ["1.0", "0.3", "plain"])
async def test_without_a_card_it_is_found_out_what_an_endpoint_speaks(
    url: str, dialect: Any, peer: Agent
) -> None:
    peer.dialect, peer.has_card, peer.once = dialect, False, False
    agent = HttpAgent("bob", f"{url}/a2a", timeout_s=30)
    assert (await agent.send(message("echo x"), FORWARDED)).text == "x"
    before = len(peer.requests)
    assert (await agent.send(message("echo y"), FORWARDED)).text == "y"
    assert (len(peer.requests) - before, peer.ledger) == (1, ["x", "y"])
    await agent.close()


async def test_an_agent_that_changes_its_version_is_met_anew(agent: HttpAgent, peer: Agent) -> None:
    assert (await agent.send(message("echo x"), FORWARDED)).text == "x"
    peer.dialect = "0.3"
    assert (await agent.send(message("echo y"), FORWARDED)).text == "y"
    assert peer.ledger == ["x", "y"]


async def test_a_url_without_an_agent_is_reported(peer: Agent, url: str) -> None:
    peer.has_card = False
    agent = HttpAgent("bob", f"{url}/nothing", timeout_s=30)
    assert "HTTP 404" in await failure(agent)
    await agent.close()


async def test_cancelling_never_fails(agent: HttpAgent, peer: Agent) -> None:
    await agent.cancel("no-such-task", FORWARDED)
    peer.faults.append(cut)
    await agent.cancel("no-such-task", FORWARDED)
    assert peer.ledger == []


# --- an API key of the agent's mesh

KEY = "mk_0123456789-0123456789-0123456789"


@pytest.fixture
async def keyed(url: str) -> AsyncIterator[HttpAgent]:
    made = HttpAgent("bob", url, timeout_s=30, key=KEY)
    yield made
    await made.close()


async def test_the_key_goes_along_with_every_request_beside_the_token(keyed: HttpAgent, peer: Agent) -> None:
    await keyed.send(message("echo x"), FORWARDED)
    assert [path for path, _ in peer.requests] == ["/.well-known/agent-card.json", "/a2a"]
    for _, headers in peer.requests:
        assert (headers["X-API-Key"], headers["Authorization"]) == (KEY, f"Bearer {TOKEN}")


async def test_the_key_stays_with_the_origin_of_the_agent(keyed: HttpAgent, peer: Agent) -> None:
    other = Agent()
    async with served(other.app()) as elsewhere:
        peer.faults.append(redirects(307, f"{elsewhere}/a2a"))
        assert "redirects to another host" in await failure(keyed)
    assert other.requests == []


async def test_a_card_that_is_elsewhere_is_asked_for_without_the_key(url: str, peer: Agent) -> None:
    other = Agent()
    async with served(other.app()) as elsewhere:
        agent = HttpAgent("bob", url, f"{elsewhere}/.well-known/agent-card.json", timeout_s=30, key=KEY)
        await agent.send(message("echo x"), FORWARDED)
        await agent.close()
    assert {headers.get("X-API-Key") for _, headers in other.requests} == {None}
    assert other.requests[0][1]["Authorization"] == f"Bearer {TOKEN}", "the token goes to all that is named"


async def test_a_key_that_is_echoed_reaches_no_answer_and_no_error(keyed: HttpAgent, peer: Agent) -> None:
    peer.once = False
    assert (await keyed.send(message(f"echo your key is {KEY}"), FORWARDED)).text == "your key is ***"
    for fault in (
        answers(302, headers={"Location": f"https://{KEY}.evil.example/"}),
        answers(302, headers={"Location": f"/login/{KEY}"}),
        answers(text="x", content_type=f"text/{KEY}"),
        answers(500, text=f"bad {KEY}"),
    ):
        peer.faults.append(fault)
        told = await failure(keyed)
        assert KEY.lower() not in told.lower() and "***" in told

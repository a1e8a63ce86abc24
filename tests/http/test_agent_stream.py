"""A message and its answer in one request: `/agent/stream`, and the stream of the AI SDK."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from mesh.core.events import LlmCall
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.trees import ByNode, config, llm, sequential

WITHIN_S = 30.0


class Read:
    """What was read of a stream, and the id of the last event."""

    def __init__(self) -> None:
        self.chunks: list[dict[str, Any]] = []
        self.id = ""
        self.is_done = False

    @property
    def text(self) -> str:
        return "".join(chunk["textDelta"] for chunk in self.of("text-delta"))

    @property
    def finish(self) -> dict[str, Any]:
        (found,) = self.of("finish")
        return found

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [chunk for chunk in self.chunks if chunk["type"] == kind]


async def read(
    http: httpx.AsyncClient,
    method: str = "GET",
    *,
    until: Any = None,
    last: str = "",
    path: str = "/agent/stream",
    **request: Any,
) -> Read:
    """Reads a stream to its end, or ``until`` something was read."""
    found, headers = Read(), {"Accept": "text/event-stream", **request.pop("headers", {})}
    if last:
        headers["Last-Event-ID"] = last
    async with asyncio.timeout(WITHIN_S), http.stream(method, path, headers=headers, **request) as response:
        assert response.status_code == 200, await response.aread()
        id = ""
        async for line in response.aiter_lines():
            if line.startswith("id: "):
                id = line[4:]
            elif line == "data: [DONE]":
                found.is_done = True
            elif line.startswith("data: "):
                found.chunks.append(msgspec.json.decode(line[6:]))
                found.id = id
                if until is not None and until(found):
                    break
    return found


def said_in(shown: dict[str, Any]) -> list[str]:
    """What the user has said in a conversation."""
    return [m["content"] for m in shown["conversation"]["messages"] if m["role"] == "user"]


@asynccontextmanager
async def live(model: Any, text: str = SIMPLE) -> AsyncIterator[tuple[LiveMesh, httpx.AsyncClient]]:
    with LiveMesh(model, text) as mesh:
        async with httpx.AsyncClient(base_url=mesh.url, timeout=WITHIN_S) as http:
            yield mesh, http


async def test_a_prompt_is_answered_in_pieces_that_make_the_answer_up() -> None:
    async with live(Spoken(calls(("look", {})), says("one two three"))) as (_, http):
        found = await read(http, params={"prompt": "count"})
        shown = (await http.get(f"/conversations/{found.finish['conversationId']}")).json()
    assert found.text == "one two three"
    (call,), (result,) = found.of("tool-call"), found.of("tool-result")
    assert (call["toolName"], call["toolCallId"]) == ("look", "0/tool/0.0")
    assert (result["toolCallId"], result["isError"]) == (call["toolCallId"], False)
    assert [c["agent"]["status"] for c in found.of("agent-state")][-1] == "completed"
    assert (found.finish["finishReason"], found.finish["response"]) == ("stop", "one two three")
    assert found.chunks[-1] == found.finish
    assert said_in(shown)[0] == "count"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "hi"},
        {"messages": [{"role": "user", "content": "hi"}]},
        {
            "id": "chat",
            "messages": [
                {"role": "user", "parts": [{"type": "text", "text": "before"}]},
                {"role": "assistant", "parts": [{"type": "text", "text": "yes"}]},
                {"role": "user", "parts": [{"type": "file"}, {"type": "text", "text": "hi"}]},
            ],
        },
    ],
)
async def test_a_message_comes_in_the_forms_of_several_clients(body: dict[str, Any]) -> None:
    async with live(Spoken(says("hello"))) as (_, http):
        found = await read(http, "POST", json=body)
        shown = (await http.get(f"/conversations/{found.finish['conversationId']}")).json()
    assert (found.text, said_in(shown)[0]) == ("hello", "hi")


async def test_who_comes_again_goes_on_with_the_same_agent() -> None:
    model = Spoken(says("one two three four five"))
    held, go = asyncio.Event(), asyncio.Event()

    async def between(word: str) -> None:
        if word == "three":
            held.set()
            await asyncio.wait_for(go.wait(), WITHIN_S)

    model.between = between
    async with live(model) as (mesh, http):
        first = await read(http, params={"prompt": "count"}, until=lambda found: found.text == "one two")
        mesh.call(go.set)
        second = await read(http, last=first.id, params={"prompt": "count"})
        listed = (await http.get("/conversations")).json()
        after_end = await http.get("/agent/stream?prompt=count", headers={"Last-Event-ID": second.id})
    assert first.text + second.text == "one two three four five"
    assert listed["summary"]["total"] == 1
    assert after_end.status_code == 204


async def test_the_same_request_once_more_is_answered_by_the_same_stream() -> None:
    once = {"headers": {"Idempotency-Key": "k"}, "json": {"prompt": "hi"}}
    async with live(Spoken(says("hello"))) as (_, http):
        first, second = [await read(http, "POST", **once) for _ in range(2)]
        assert (await http.get("/conversations")).json()["summary"]["total"] == 1
    assert (first.text, first.finish) == (second.text, second.finish)


async def test_the_next_message_of_an_agent_goes_on_in_its_conversation() -> None:
    async with live(Spoken(says("hello"))) as (_, http):
        first = await read(http, "POST", json={"prompt": "hi"})
        agent = first.finish["agentId"]
        second = await read(http, "POST", json={"prompt": "and now?", "agentId": agent})
        shown = (await http.get(f"/conversations/{agent}")).json()
    assert second.finish["agentId"] == agent
    assert [m["content"] for m in shown["conversation"]["messages"] if m["role"] == "user"] == [
        "hi",
        "and now?",
    ]


async def test_who_asks_a_person_is_told_of_and_the_stream_goes_on_after_the_decision() -> None:
    async with live(Spoken(calls(("add", {"n": 1})), says("added"))) as (_, http):
        asks = await read(http, "POST", json={"prompt": "add"})
        assert asks.finish["finishReason"] == "awaiting_user"
        (asked,) = asks.finish["approvals"]
        assert asks.of("agent-state")[-1]["agent"]["status"] == "awaiting_user"
        other = await http.post(
            "/agent/stream", json={"prompt": "add 2", "agentId": asks.finish["conversationId"]}
        )
        assert other.status_code == 409
        assert "takes no message while a person is asked. Waiting for approval" in other.json()["error"]
        decided = await http.post(f"/approvals/{asked['uuid']}", json={"approved": True})
        assert decided.status_code == 200
        rest = await read(http, "POST", json={"prompt": "add"}, last=asks.id)
    assert (rest.finish["finishReason"], rest.text) == ("stop", "added")


async def test_the_answer_of_a_tree_comes_whole_and_its_agents_are_told_of() -> None:
    model = ByNode(
        main=[calls(("spawn", {"agents": [{"agent": "search", "task": "cats"}]})), calls(("wait", {}))]
    )
    tree = sequential(llm("main", agents=["search"], spawn={}), llm("last"))
    text = config(tree, agents=[llm("search", "find {task}", description="Finds.")])
    async with live(model, text) as (_, http):
        found = await read(http, params={"prompt": "go"})
    assert (found.text, found.finish["response"]) == ("last says", "last says")
    states = [(c["agent"]["name"], c["agent"]["status"]) for c in found.of("agent-state")]
    assert ("search", "running") in states and ("search", "completed") in states


async def test_an_agent_is_added_to_another_one_and_its_own_answer_is_streamed() -> None:
    model = ByNode(main=[says("early"), says("late")])
    text = config(
        llm("main", agents=["search"], spawn={}), agents=[llm("search", "find {task}", description="Finds.")]
    )
    async with live(model, text) as (mesh, http):
        model.gates["main"] = asyncio.Event()
        begun = await http.post("/conversations", json={"message": "go"}, headers={"Prefer": "respond-async"})
        parent = begun.json()["conversation"]["id"]
        body = {"prompt": "birds", "parentId": parent, "agent": "search"}
        found = await read(http, "POST", json=body)
        again = await http.post("/agent/stream", json=body, headers={"Last-Event-ID": found.id})
        mesh.call(model.gates["main"].set)
    assert (found.text, found.finish["finishReason"]) == ("search says find birds", "stop")
    assert found.finish["agentId"] != parent
    assert again.status_code == 204


async def test_a_turn_that_fails_says_so() -> None:
    async def fails(_: Any) -> LlmCall:
        raise ZeroDivisionError

    async with live(Spoken(fails)) as (_, http):
        found = await read(http, params={"prompt": "go"})
    assert (found.finish["finishReason"], found.text) == ("error", "")
    assert "ZeroDivisionError" not in found.finish["response"]


@pytest.mark.parametrize(
    ("method", "request_", "status", "said"),
    [
        ("GET", {"params": {}}, 400, 'a "prompt"'),
        ("GET", {"params": {"prompt": " "}}, 400, '"prompt" is empty'),
        ("GET", {"params": {"prompt": "x", "protocol": "soap"}}, 400, "protocol must be ai-sdk"),
        ("GET", {"params": {"prompt": "x", "agentId": "x"}}, 400, '"agentId" must be the id'),
        ("GET", {"headers": {"Last-Event-ID": "7"}}, 400, "Last-Event-ID is not one"),
        ("POST", {"json": {"messages": "x"}}, 400, '"messages" must be a list'),
        ("POST", {"json": {"messages": [{"role": "assistant"}]}}, 400, 'none with the role "user"'),
        ("POST", {"json": {"messages": [{"role": "user"}]}}, 400, 'neither "content" nor "parts"'),
        ("POST", {"json": {"messages": [{"role": "user", "parts": []}]}}, 400, '"prompt" is empty'),
        ("POST", {"json": {"prompt": "x" * 999_999}}, 413, '"prompt" is over'),
        (
            "POST",
            {"json": {"prompt": "x", "parentId": "9b2f4a8e-6c1d-4e0f-a3b5-7d9e1f2a3b4c"}},
            400,
            'an "agent"',
        ),
        (
            "POST",
            {"json": {"prompt": "x", "agentId": "9b2f4a8e-6c1d-4e0f-a3b5-7d9e1f2a3b4c"}},
            404,
            "there is no",
        ),
    ],
)
async def test_what_cannot_be_understood_starts_nothing(
    method: str, request_: dict[str, Any], status: int, said: str
) -> None:
    async with live(Spoken(says("x"))) as (_, http):
        answer = await http.request(method, "/agent/stream", **request_)
        listed = (await http.get("/conversations")).json()
    found = answer.json()["error"].replace('have a "agent"', 'have an "agent"')
    assert (answer.status_code, said in found, listed["summary"]["total"]) == (status, True, 0), found


async def test_a_page_of_another_site_cannot_say_something_to_an_agent_by_a_get() -> None:
    async with live(Spoken(says("x"))) as (_, http):
        for headers, status in (
            ({"Host": "10.0.0.7:8080"}, 403),
            ({"Host": "10.0.0.7:8080", "X-User": "ann"}, 200),
            ({"Host": "localhost:8080"}, 200),
        ):
            answer = await http.get("/agent/stream?prompt=x", headers=headers)
            assert answer.status_code == status, headers
        assert (await http.get("/conversations")).json()["summary"]["total"] == 2


async def test_the_stream_of_the_ai_sdk_has_its_parts_in_order() -> None:
    model = Spoken(calls(("look", {})), says("one"))
    async with live(model) as (_, http):
        found = await read(http, "POST", path="/agent/stream?protocol=ai-sdk", json={"prompt": "count"})
    kinds = [chunk["type"] for chunk in found.chunks if not chunk["type"].startswith("data-")]
    assert kinds == [
        "start",
        "tool-input-available",
        "tool-output-available",
        "text-start",
        "text-delta",
        "text-end",
        "finish",
    ]
    assert found.is_done
    assert found.of("finish")[0]["messageMetadata"]["conversationId"]

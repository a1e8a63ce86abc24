"""What clients see of answers that are checked: nothing before they have passed, and then what they are."""

from typing import Any

import msgspec
import pytest

from mesh.a2a.server.turn_updates import TurnUpdates
from mesh.core.errors import LlmError
from mesh.core.events import Artifact, LlmCall, ToolResult
from mesh.core.view import ConversationView
from mesh.llm.port import LlmRequest
from mesh.llm.structured import StructuredAnswers
from tests.a2a.server.serving import served
from tests.http.test_streams import LIVE, Stream, client
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.trees import ByNode, add, config, llm, loop, sequential

ORDER = {"type": "object", "properties": {"total": {"type": "integer"}}, "required": ["total"]}
SECRET, GOOD = "nobody may rely on this", '{"total": 7}'


def checked(**more: Any) -> str:
    return config(llm("main", output_schema=ORDER, **more))


async def events_of(live: LiveMesh) -> tuple[list[dict[str, Any]], str]:
    """What a stream shows of a turn, and its bytes."""
    asked = {"json": {"message": "go"}, "headers": LIVE}
    async with client(live) as http, http.stream("POST", "/conversations", **asked) as response:
        seen = Stream(response)
        await seen.until()
    return seen.events, str(seen.events)


async def test_a_stream_shows_no_text_before_it_has_passed() -> None:
    with LiveMesh(Spoken(says(SECRET), says(GOOD)), checked()) as live:
        events, text = await events_of(live)
    assert "rely" not in text
    assert [e["type"] for e in events if e["type"] in ("text_delta", "llm_call", "validation")] == [
        "llm_call",
        "validation",
        "llm_call",
        "validation",
    ]
    drafts = [e for e in events if e["type"] == "llm_call"]
    assert [(e["draft"], e["text"]) for e in drafts] == [(True, ""), (True, "")]
    verdicts = [(e["kind"], e.get("valid", False), e["number"], e["of"]) for e in events if "of" in e]
    assert verdicts == [("schema", False, 1, 3), ("schema", True, 2, 3)]
    assert (events[-1]["response"], events[-1]["output"]) == (GOOD, {"total": 7})


async def test_neither_does_it_show_a_result_that_is_the_answer() -> None:
    done = calls(("complete_task", {"result": {"why": SECRET}}), ("look", {}))
    with LiveMesh(Spoken(done, says(GOOD)), checked(can_complete_task=True)) as live:
        events, text = await events_of(live)
        async with client(live) as http:
            shown = (await http.get(f"/conversations/{events[0]['conversation_id']}")).json()
    assert "rely" not in text
    assert "rely" not in str(shown)
    called = [e["name"] for e in events if e["type"] == "tool_call" and e["phase"] == "started"]
    assert called == ["look"]


async def test_neither_does_it_show_what_a_draft_says_to_a_tool_that_takes_nothing() -> None:
    told = {"why": SECRET}
    odd = msgspec.structs.replace(
        calls(("exit_loop", told), ("give_answer", told), ("no_such_tool", told), ("return_to_user", told)),
        text=SECRET,
    )
    tree = loop(llm("main", output_schema=ORDER, can_exit_loop=True, tools=[]), max_iterations=2)
    with LiveMesh(Spoken(odd, says(GOOD)), config(tree)) as live:
        events, text = await events_of(live)
        async with client(live) as http:
            path = f"/conversations/{events[0]['conversation_id']}"
            shown = [(await http.get(path)).text, (await http.get(f"{path}/actions")).text]
    assert "rely" not in text + "".join(shown)
    assert "exit_loop takes no arguments" in text
    asked = next(e["tool_calls"] for e in events if e["type"] == "llm_call")
    assert [(call["name"], call.get("arguments")) for call in asked] == [
        (name, None) for name in ("exit_loop", "give_answer", "no_such_tool", "return_to_user")
    ]
    assert events[-1]["response"] == GOOD


@pytest.mark.parametrize("shows", [False, True])
async def test_neither_is_a_provider_quoted_that_says_what_it_was_sent(
    caplog: pytest.LogCaptureFixture, shows: bool
) -> None:
    async def refuses(request: LlmRequest) -> LlmCall:
        raise LlmError(f"acme: HTTP 400: not allowed: {request.messages}", status=400)

    model = StructuredAnswers(Spoken(says(SECRET), refuses, refuses))
    with LiveMesh(model, checked(tools=[], show_drafts=shows)) as live:
        events, text = await events_of(live)
        async with client(live) as http:
            path = f"/conversations/{events[0]['conversation_id']}"
            shown = [(await http.get(path)).text, (await http.get(f"{path}/actions")).text]
    assert events[-1]["type"] == "error"
    assert ("rely" in text, "rely" in shown[0]) == (shows, shows)
    if not shows:
        assert "model scripted: HTTP 400 (the log has more)" in events[-1]["message"]
        assert SECRET in caplog.text


async def test_a_failure_before_there_is_a_draft_is_told_in_the_words_of_the_provider() -> None:
    async def refuses(request: LlmRequest) -> LlmCall:
        raise LlmError("acme: HTTP 401: this key was revoked", status=401)

    with LiveMesh(Spoken(refuses), checked(tools=[])) as live:
        events, _ = await events_of(live)
    assert events[-1]["message"].endswith("acme: HTTP 401: this key was revoked")


async def test_drafts_are_shown_where_the_config_says_so() -> None:
    with LiveMesh(Spoken(says(SECRET), says(GOOD)), checked(show_drafts=True)) as live:
        events, _ = await events_of(live)
    said = "".join(e["text"] for e in events if e["type"] == "text_delta" and e["step"] == "0/llm/0")
    assert said == SECRET
    assert next(e["text"] for e in events if e["type"] == "llm_call") == SECRET


async def test_a_stream_of_old_events_does_not_show_them_either() -> None:
    with LiveMesh(Spoken(says(SECRET), says(GOOD)), checked()) as live:
        async with client(live) as http:
            body = (await http.post("/conversations", json={"message": "go"})).json()
            path = f"/conversations/{body['conversation']['id']}/events?after=0"
            async with http.stream("GET", path) as response:
                seen = Stream(response)
                await seen.until("completed")
    assert "rely" not in str(seen.events)
    assert "rely" not in str(body)


async def test_neither_does_it_show_what_a_validating_agent_says_and_calls_meanwhile() -> None:
    looks = msgspec.structs.replace(calls(("look", {"at": SECRET})), text=SECRET)
    wrong, right = ('{"valid": false, "feedback": "No."}', '{"valid": true, "feedback": ""}')
    spoken = Spoken(says(SECRET), looks, says(wrong), says("good"), says(right))
    setting = config(llm("main", validate=[{"agent": "critic"}]), agents=[llm("critic")])
    with LiveMesh(spoken, setting) as live:
        events, text = await events_of(live)
        async with client(live) as http:
            shown = (await http.get(f"/conversations/{events[0]['conversation_id']}")).json()
    assert events[-1]["response"] == "good"
    assert "rely" not in text
    assert "rely" not in str(shown)
    inside = {event["type"] for event in events if "@v" in event["node"]}
    assert {"node_started", "llm_call", "tool_result"} <= inside
    assert not inside & {"text_delta", "tool_call", "tool_progress", "trace"}


@pytest.mark.parametrize("called_by", ["validate", "agents"])
async def test_the_state_of_a_called_agent_that_waits_is_not_shown(called_by: str) -> None:
    spoken = ByNode(
        notes=[says(SECRET)],
        judge=[add(3)],
        main=[says(SECRET) if called_by == "validate" else calls(("sub", {"task": "x"}))],
    )
    sub = sequential(llm("notes", output_key="notes", tools=[]), llm("judge"), name="sub")
    keys = {"validate": [{"agent": "sub"}]} if called_by == "validate" else {"agents": ["sub"]}
    with LiveMesh(spoken, config(llm("main", tools=[], **keys), agents=[sub])) as live:
        async with client(live) as http:
            body = (await http.post("/conversations", json={"message": "go"})).json()
            shown = (await http.get(f"/conversations/{body['conversation']['id']}")).json()
    assert "rely" not in str(body) + str(shown)
    assert shown["conversation"]["pipeline_state"] == {
        "paused_node_path": [],
        "paused_node_output_key": None,
        "session_state": {},
        "user_message": "go",
    }


# -- A2A


def test_an_answer_with_a_schema_is_data_beside_the_text() -> None:
    with served(says(GOOD), setting=checked()) as (rpc, _):
        task = rpc.send("hi")
    (artifact,) = task["artifacts"]
    assert [part.get("text", part.get("data")) for part in artifact["parts"]] == [GOOD, {"total": 7}]


def test_a_stream_of_updates_has_the_data_in_its_last_piece_and_no_draft() -> None:
    with served(says(SECRET), says(GOOD), setting=checked()) as (rpc, _):
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        updates = list(rpc.stream("SendStreamingMessage", {"message": message}))
    assert "rely" not in str(updates)
    artifacts = [u["result"]["artifactUpdate"] for u in updates if "artifactUpdate" in u["result"]]
    assert [part.get("text", part.get("data")) for part in artifacts[-1]["artifact"]["parts"]] == [
        GOOD,
        {"total": 7},
    ]


def test_an_answer_that_was_accepted_in_spite_of_an_objection_says_so() -> None:
    with served(says("prose"), setting=checked(on_invalid="accept", max_runs=1)) as (rpc, _):
        task = rpc.send("hi")
    (artifact,) = task["artifacts"]
    (metadata,) = artifact["metadata"].values()
    assert metadata["invalid"].startswith("schema: The answer does not fit its schema")
    assert [part["text"] for part in artifact["parts"]] == ["prose"]


def test_a_stream_of_updates_has_no_files_of_what_a_validating_agent_calls() -> None:
    result = ToolResult(call_id="c", tool="draw", content="", artifacts=(Artifact("a.txt", data="QQ=="),))
    updates = TurnUpdates(ConversationView("c", "s", "processing", [], "", ""), 1)
    assert len(list(updates.of_event(result))) == 1
    assert not list(updates.of_event(msgspec.structs.replace(result, concealed=True)))

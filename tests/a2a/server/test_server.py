"""The mesh as an A2A server: every operation over HTTP, before a keeper in this process."""

import asyncio
import threading
from typing import Any

import httpx
import pytest

from mesh.a2a.extensions import BUDGET, HITL, MESH
from mesh.core.errors import JournalError
from mesh.core.events import LlmCall
from mesh.journal.memory import MemoryJournal
from mesh.journal.port import Append
from mesh.keeper.requests import RequestFor
from mesh.llm.port import LlmRequest
from tests.a2a.server.serving import ADD, rest_messages, served
from tests.worlds import live as live_mesh
from tests.worlds.live import LiveMesh, LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, calls, says
from tests.worlds.rpc import Json, Rpc, answer, question, said, state, text_part

CARD = "/.well-known/agent-card.json"

# -- tasks


def test_a_task_is_a_conversation_and_rest_shows_the_same() -> None:
    with served() as (rpc, _):
        task = rpc.send("hi", message={"contextId": "ctx-1"})
        assert (state(task), answer(task), task["contextId"]) == ("COMPLETED", "hello there", "ctx-1")
        shown = rpc.http.get(f"/conversations/{task['id']}").json()["conversation"]
        assert (shown["session_id"], shown["turn"]["response"]) == ("ctx-1", "hello there")
        assert rpc.result("GetTask", {"id": task["id"]}) == task
        assert [message["parts"][0]["text"] for message in task["history"]] == ["hi", "hello there"]


def test_a_conversation_of_rest_is_a_task() -> None:
    with served() as (rpc, _):
        made = rpc.http.post("/conversations", json={"message": "hi"}).json()["conversation"]
        assert answer(rpc.result("GetTask", {"id": made["id"]})) == "hello there"


def test_a_turn_that_fails_is_a_failed_task_that_says_why() -> None:
    async def breaks(request: LlmRequest) -> LlmCall:
        raise ZeroDivisionError

    with served(breaks) as (rpc, _):
        task = rpc.send("hi")
        assert state(task) == "FAILED" and "internal error" in question(task)


def test_a_task_that_ended_takes_no_message_and_there_is_no_other_of_its_name() -> None:
    with served() as (rpc, _):
        task = rpc.send("hi")
        assert rpc.code("SendMessage", {"message": said("again", task["id"])}) == -32004
        for unknown in ("x", "11111111-1111-4111-8111-111111111111"):
            assert rpc.code("SendMessage", {"message": said("again", unknown)}) == -32001
            assert rpc.code("GetTask", {"id": unknown}) == -32001
        assert rpc.code("CancelTask", {"id": task["id"]}) == -32002
        assert rpc.code("SubscribeToTask", {"id": task["id"]}) == -32004


def test_a_message_to_a_task_in_another_context_is_refused() -> None:
    with served(ADD, says("ok")) as (rpc, _):
        task = rpc.send("add")
        wrong = said("yes", task["id"], contextId="elsewhere")
        assert rpc.code("SendMessage", {"message": wrong}) == -32602
        assert state(rpc.result("GetTask", {"id": task["id"]})) == "INPUT_REQUIRED"


def test_one_message_with_an_id_of_its_own_counts_once() -> None:
    with served() as (rpc, _):
        message = said("hi")
        first, again = (rpc.result("SendMessage", {"message": message})["task"] for _ in range(2))
        assert first == again
        other = {**message, "parts": [text_part("something else")]}
        assert rpc.code("SendMessage", {"message": other}) == -32004
        same = [rpc.send("hi", message={"messageId": "1"})["id"] for _ in range(2)]
        assert len(set(same)) == 2, "an id that is none of its own says nothing"


def test_a_message_is_answered_at_once_if_the_client_does_not_want_to_wait() -> None:
    gate = threading.Event()

    async def waits(request: LlmRequest) -> LlmCall:
        await asyncio.to_thread(gate.wait, 5)
        return says("at last")

    with served(waits) as (rpc, _):
        params = {"message": said("hi"), "configuration": {"returnImmediately": True}}
        task = rpc.result("SendMessage", params)["task"]
        assert state(task) == "WORKING"
        events = rpc.stream("SubscribeToTask", {"id": task["id"]})
        assert state(next(events)["result"]["task"]) == "WORKING"
        gate.set()
        last = [event["result"] for event in events][-1]
        assert state(last["statusUpdate"]) == "COMPLETED"


# -- streams


def told(events: list[Json]) -> str:
    """The answer as a client puts it together."""
    text = ""
    for event in events:
        if update := event["result"].get("artifactUpdate"):
            piece = update["artifact"]["parts"][0]["text"]
            text = text + piece if update.get("append") else piece
    return text


def test_a_stream_tells_the_task_then_the_answer_in_pieces_then_its_end() -> None:
    model, go_on = Spoken(says("one two three four")), threading.Semaphore(2)

    async def between(word: str) -> None:
        await asyncio.to_thread(go_on.acquire, timeout=5)

    model.between = between
    with served(model=model) as (rpc, _):
        events = []
        for event in rpc.stream("SendStreamingMessage", {"message": said("hi")}):
            events.append(event)
            go_on.release()  # the next word is said when the last one was read
        assert state(events[0]["result"]["task"]) == "WORKING"
        assert told(events) == "one two three four"
        updates = [event["result"]["artifactUpdate"] for event in events[1:-1]]
        assert len(updates) > 1 and [bool(u.get("lastChunk")) for u in updates][-1]
        assert state(events[-1]["result"]["statusUpdate"]) == "COMPLETED"
        task = rpc.result("GetTask", {"id": events[0]["result"]["task"]["id"]})
        assert task["artifacts"][0]["artifactId"] == updates[0]["artifact"]["artifactId"]


def test_what_turned_out_to_be_no_answer_is_replaced_in_the_stream() -> None:
    talks = LlmCall(
        model="m",
        text="Let me look at it",
        tool_calls=calls(("look", {})).tool_calls,
        finish_reason="tool_calls",
    )
    with served(talks, says("there is nothing")) as (rpc, _):
        events = list(rpc.stream("SendStreamingMessage", {"message": said("hi")}))
        assert told(events) == "there is nothing"


def test_a_stream_ends_where_the_turn_waits_and_a_subscription_goes_on_to_the_end() -> None:
    with served(ADD, says("added")) as (rpc, live), Rpc(live.url) as other:
        events = list(rpc.stream("SendStreamingMessage", {"message": said("add")}))
        assert state(events[-1]["result"]["statusUpdate"]) == "INPUT_REQUIRED"
        task = events[0]["result"]["task"]["id"]
        subscription = other.stream("SubscribeToTask", {"id": task})
        assert state(next(subscription)["result"]["task"]) == "INPUT_REQUIRED"
        rpc.send("yes", task)
        rest = list(subscription)
        assert told(rest) == "added" and state(rest[-1]["result"]["statusUpdate"]) == "COMPLETED"


# -- lists


def test_a_list_of_many_tasks_leaves_room_for_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(LocalBackend):
        """As over a network, no answer is there at once."""

        async def ask(self, owner: str, request: RequestFor[Any]) -> Any:
            await asyncio.sleep(0)
            return await super().ask(owner, request)

    monkeypatch.setattr(live_mesh, "LocalBackend", Elsewhere)
    with served(setting=SIMPLE + "limits: {max_ongoing_requests: 10}\n") as (rpc, _):
        for _ in range(20):
            rpc.http.post("/conversations", json={})
        assert len(rpc.result("ListTasks", {"pageSize": 20})["tasks"]) == 20


def test_tasks_are_listed_newest_change_first_in_pages_with_filters() -> None:
    with served(ADD, says("a"), says("b"), says("c")) as (rpc, _):
        waiting = rpc.send("add", message={"contextId": "one"})
        first, second = (rpc.send("hi", message={"contextId": "two"}) for _ in range(2))
        page = rpc.result("ListTasks", {"pageSize": 2})
        assert [task["id"] for task in page["tasks"]] == [second["id"], first["id"]]
        assert (page["totalSize"], page["pageSize"]) == (3, 2)
        assert all("artifacts" not in task for task in page["tasks"])
        rest = rpc.result("ListTasks", {"pageSize": 2, "pageToken": page["nextPageToken"]})
        assert [task["id"] for task in rest["tasks"]] == [waiting["id"]] and rest["nextPageToken"] == ""

        def listed(**params: Any) -> list[str]:
            return [task["id"] for task in rpc.result("ListTasks", params)["tasks"]]

        assert listed(contextId="one") == [waiting["id"]]
        assert listed(contextId="three") == []
        assert listed(status="TASK_STATE_INPUT_REQUIRED") == [waiting["id"]]
        assert listed(statusTimestampAfter=second["status"]["timestamp"]) == [second["id"]]
        with_artifacts = rpc.result("ListTasks", {"includeArtifacts": True, "historyLength": 0})["tasks"]
        assert answer(with_artifacts[0]) == "b" and not with_artifacts[0]["history"]
        for wrong in ({"pageSize": 0}, {"pageSize": 101}, {"pageToken": "no"}, {"historyLength": -1}):
            assert rpc.code("ListTasks", wrong) == -32602, wrong


def test_files_are_refused_or_mentioned_to_the_model() -> None:
    files = [
        {"url": "https://x.example/a.pdf", "filename": "a.pdf", "mediaType": "application/pdf"},
        {"raw": "aGVsbG8=", "mediaType": "image/png"},
    ]
    parts = [text_part("look"), *files]
    with served() as (rpc, _):
        assert rpc.code("SendMessage", {"message": said("", parts=parts)}) == -32005
        assert "*/*" not in rpc.http.get(CARD).json()["defaultInputModes"]
    with served(setting=SIMPLE + "card: {files: mention}\n") as (rpc, _):
        task = rpc.send("", message={"parts": parts})
        (heard, *_) = [m["content"] for m in rest_messages(rpc, task) if m["role"] == "user"]
        assert heard == (
            "look\n[file a.pdf (application/pdf): https://x.example/a.pdf]\n"
            "[file (image/png), 5 bytes: this agent cannot read it]"
        )
        assert "*/*" in rpc.http.get(CARD).json()["defaultInputModes"]


# -- dialects


def test_a_client_of_0_3_gets_answers_and_errors_of_0_3() -> None:
    with served(ADD, says("added")) as (_, live), Rpc(live.url, version=None) as old:
        message = {
            "kind": "message",
            "messageId": "m",
            "role": "user",
            "parts": [{"kind": "text", "text": "add"}],
        }
        task = old.result("message/send", {"message": message})
        assert (task["kind"], task["status"]["state"]) == ("task", "input-required")
        assert "artifact" not in task
        task = old.result(
            "message/send",
            {"message": {**message, "taskId": task["id"], "parts": [{"kind": "text", "text": "yes"}]}},
        )
        assert task["status"]["state"] == "completed"
        assert old.result("tasks/get", {"id": task["id"]})["artifacts"] == task["artifacts"]
        assert old.code("message/send", {"message": {"parts": []}}) == -32602
        assert old.code("tasks/get", {"id": "x"}) == -32001
        assert old.code("tasks/cancel", {"id": task["id"]}) == -32002
        assert old.code("tasks/unknown", {}) == -32601
        assert old.code("GetTask", {"id": task["id"]}) == -32009
        assert old.code("GetTask", {"id": task["id"]}, **{"A2A-Version": "9.0"}) == -32009


def test_what_no_message_of_0_3_can_have_is_a_wrong_parameter() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    wrong: list[Json] = [
        {"kind": "file", "file": {"bytes": "a"}},
        {"kind": "data", "data": {"deep": deep}},
        {"kind": "data", "data": {"large": 10**400}},
    ]
    with served() as (_, live), Rpc(live.url, version=None) as old:
        for part in wrong:
            message = {"kind": "message", "messageId": "m", "role": "user", "parts": [part]}
            assert old.code("message/send", {"message": message}) == -32602, part


@pytest.mark.parametrize("version", ["0.5", "0.30", "1.7", "1", "2.0"])
def test_a_version_is_spoken_only_with_its_minor_number(version: str) -> None:
    with served() as (rpc, _):
        said = {"A2A-Version": version}
        assert rpc.code("GetTask", {"id": "x"}, **said) == -32009
        assert rpc.code("tasks/get", {"id": "x"}, **said) == -32009
        refused = rpc.http.get("/a2a/tasks", headers=said)
        assert refused.status_code == 400 and version in refused.json()["error"]["message"]


def test_a_version_may_be_said_in_the_query_and_with_its_patch_number() -> None:
    with served() as (_, live), Rpc(live.url, version=None) as rpc:
        task = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "x"}}
        assert rpc.http.post("/a2a?A2A-Version=1.0", json=task).json()["error"]["code"] == -32001
        assert rpc.http.get("/a2a/tasks?A2A-Version=1.0").status_code == 200
        assert rpc.code("GetTask", {"id": "x"}, **{"A2A-Version": "1.0.1"}) == -32001
        assert rpc.code("GetTask", {"id": "x"}, **{"A2A-Version": "1.0, 1.0"}) == -32001
        assert rpc.code("GetTask", {"id": "x"}, **{"A2A-Version": "1.0, 0.3"}) == -32009
        assert rpc.code("tasks/get", {"id": "x"}, **{"A2A-Version": "0.3.0"}) == -32001


def test_an_extended_card_that_there_is_none_of_is_said_so_in_the_words_of_each_version() -> None:
    login = "security: {b: {httpAuthSecurityScheme: {scheme: Bearer}}}"
    modern = f"card: {{public_skills: [], versions: ['1.0'], {login}}}\n"
    with served() as (rpc, live), Rpc(live.url, version=None) as old:
        assert rpc.code("GetExtendedAgentCard") == -32004
        assert old.code("agent/getAuthenticatedExtendedCard") == -32007
    with served(setting=SIMPLE + modern) as (rpc, live), Rpc(live.url, version=None) as old:
        assert rpc.result("GetExtendedAgentCard")["skills"]
        assert old.code("agent/getAuthenticatedExtendedCard") == -32007


def test_the_session_of_a_request_and_the_context_of_its_task_are_two_things() -> None:
    with served(says("one"), says("two"), says("three"), ADD, says("added")) as (rpc, live):
        session = {"X-Session-ID": "sess-1"}
        both = rpc.send("hi", message={"contextId": "ctx-1"}, **session)
        only_context = rpc.send("hi", message={"contextId": "ctx-1"})
        only_session = rpc.send("hi", **session)
        live.restart()

        def shown(task: Json) -> tuple[str, str]:
            found = rpc.http.get(f"/conversations/{task['id']}").json()["conversation"]
            assert rpc.result("GetTask", {"id": task["id"]})["contextId"] == task["contextId"]
            return task["contextId"], found["session_id"]

        assert shown(both) == ("ctx-1", "sess-1")
        assert shown(only_context) == ("ctx-1", "ctx-1")
        assert shown(only_session) == ("sess-1", "sess-1")

        def listed(context: str) -> set[str]:
            tasks: list[Json] = rpc.result("ListTasks", {"contextId": context})["tasks"]
            assert {task["contextId"] for task in tasks} <= {context}
            return {task["id"] for task in tasks}

        assert listed("ctx-1") == {both["id"], only_context["id"]}
        assert listed("sess-1") == {only_session["id"]}
        task = rpc.send("add", message={"contextId": "ctx-2"}, **session)
        wrong = said("yes", task["id"], contextId="sess-1")
        assert rpc.code("SendMessage", {"message": wrong}) == -32602
        done = rpc.send("yes", task["id"], {"contextId": "ctx-2"}, **session)
        assert (state(done), done["contextId"]) == ("COMPLETED", "ctx-2")


def test_a_later_turn_of_another_session_is_of_that_session_to_its_end() -> None:
    seen: list[str] = []
    with served(says("hello"), ADD, says("added")) as (rpc, live):
        task = rpc.http.post("/conversations", json={"message": "hi"}).json()["conversation"]["id"]
        run = live.mesh.tree.run

        async def noted(turn: Any) -> Any:
            seen.append(turn.session_id)
            return await run(turn)

        live.mesh.tree.run = noted  # type: ignore[method-assign]
        headers = {"X-Session-ID": "sess-2"}
        path = f"/conversations/{task}/messages"
        body = rpc.http.post(path, json={"message": "add"}, headers=headers).json()
        uuid = body["result"]["approval"]["uuid"]
        assert rpc.http.post(f"/approvals/{uuid}", json={"approved": True}).status_code == 200
        assert seen == ["sess-2", "sess-2"]


def test_the_plain_form_is_answered_with_its_artifact_and_goes_on_with_its_task() -> None:
    def send(rpc: Rpc, text: str, outside: str = "", inside: str = "") -> Json:
        message: Json = {"role": "user", "parts": [{"type": "text", "text": text}]}
        params = {"message": message | ({"taskId": inside} if inside else {})}
        return rpc.result("message/send", params | ({"taskId": outside} if outside else {}))

    answers = (says("hello"), ADD, says("added"), says("bye"))
    with served(*answers) as (_, live), Rpc(live.url, version=None) as plain:
        task = send(plain, "hi")
        assert task["status"]["state"] == "completed"
        assert task["artifact"] == {"parts": [{"type": "text", "text": "hello"}]}
        assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "hello"}]
        task = send(plain, "add", outside=task["id"])
        assert task["status"]["state"] == "input-required"
        assert "Run add" in task["artifact"]["parts"][0]["text"]
        task = send(plain, "yes", inside=task["id"])
        assert task["artifact"]["parts"] == [{"type": "text", "text": "added"}]
        assert send(plain, "once more", outside=task["id"])["id"] == task["id"]


def test_http_json_does_the_same_with_statuses_of_its_own() -> None:
    with served(ADD, says("added")) as (rpc, _):
        sent = rpc.http.post("/a2a/message:send", json={"message": said("add")})
        assert sent.headers["content-type"] == "application/json"
        task = sent.json()["task"]
        assert rpc.http.get(f"/a2a/tasks/{task['id']}").json() == task
        assert rpc.http.get("/a2a/tasks?pageSize=1").json()["totalSize"] == 1
        with rpc.http.stream(
            "POST", "/a2a/message:stream", json={"message": said("yes", task["id"])}
        ) as stream:
            lines = [line for line in stream.iter_lines() if line.startswith("data:")]
        assert "TASK_STATE_COMPLETED" in lines[-1]
        assert rpc.http.post(f"/a2a/tasks/{task['id']}:cancel").status_code in (400, 409)
        missing = rpc.http.get("/a2a/tasks/nothing")
        assert missing.status_code == 404
        assert missing.json()["error"]["details"][0]["reason"] == "TASK_NOT_FOUND"
        assert rpc.http.post("/a2a/message:send", content=b"{").status_code == 400


class Full(MemoryJournal):
    """A journal that can take nothing just now."""

    async def append(self, shard: int, epoch: int, append: Append) -> int:
        raise JournalError("the disk is full")


def test_a_mesh_that_cannot_take_a_message_now_is_busy_in_every_binding() -> None:
    with served(journal=Full()) as (rpc, _):
        for path in ("message:send", "message:stream"):
            busy = rpc.http.post(f"/a2a/{path}", json={"message": said("hi")})
            assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1"), path
            error = busy.json()["error"]
            assert (error["code"], error["status"]) == (503, "UNAVAILABLE")
            assert "the disk is full" in error["message"]
        for method in ("SendMessage", "SendStreamingMessage"):
            body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {"message": said("hi")}}
            busy = rpc.http.post("/a2a", json=body)
            assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1"), method
            assert "the disk is full" in busy.text


def test_what_is_no_request_is_refused_in_words() -> None:
    with served() as (rpc, _):

        def posted(content: bytes, kind: str = "application/json") -> int:
            response = rpc.http.post("/a2a/", content=content, headers={"Content-Type": kind})
            assert response.status_code == 200
            return int(response.json()["error"]["code"])

        assert posted(b"{") == -32700
        assert posted(b"[" * 100_000) == -32700
        assert posted(b"{", "application/x-www-form-urlencoded") == -32700
        part = b'{"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": {"parts": [%s]}}}'
        for no_json in (
            b'{"data": NaN}',
            b'{"data": 1e999}',
            rb'{"text": "\ud800"}',
            b'{"text": "\xed\xa0\x80"}',
        ):
            assert posted(part % no_json) == -32700, no_json
        assert posted(b"hello", "text/plain") == -32005
        assert posted(b"[]") == -32600
        assert posted(b'{"jsonrpc": "1.0", "id": 1, "method": "GetTask"}') == -32600
        assert posted(b'{"jsonrpc": "2.0", "id": 1, "method": "Nothing"}') == -32601
        assert posted(b'{"jsonrpc": "2.0", "id": {}, "method": "message/send"}') == -32600
        too_large = rpc.http.post("/a2a", content=b" " * 2_000_000)
        assert (too_large.status_code, too_large.json()["error"]["code"]) == (413, -32600)
        no_text = said("x", parts=[{"raw": "aGk=", "mediaType": "image/png"}])
        assert rpc.code("SendMessage", {"message": no_text}) == -32005
        for wrong in (said(" "), said("x", parts=[]), said("x", parts=[{}]), said("x", contextId="a b")):
            assert rpc.code("SendMessage", {"message": wrong}) == -32602, wrong


def test_data_is_read_as_json() -> None:
    with served() as (rpc, _):
        task = rpc.send("x", message={"parts": [{"text": "look:"}, {"data": {"a": [1, None]}}]})
        assert task["history"][0]["parts"][0]["text"] == 'look:\n{"a": [1.0, null]}'


def test_a_direct_answer_is_a_message_where_the_config_says_so() -> None:
    direct = SIMPLE + "card: {direct_answers: true}\n"
    with served(says("hello"), says("hello"), ADD, says("added"), setting=direct) as (rpc, _):
        result = rpc.result("SendMessage", {"message": said("hi")})
        assert result["message"]["parts"] == [text_part("hello")]
        events = list(rpc.stream("SendStreamingMessage", {"message": said("hi")}))
        assert [event["result"]["message"]["parts"] for event in events] == [[text_part("hello")]]
        events = list(rpc.stream("SendStreamingMessage", {"message": said("add")}))
        assert [next(iter(event["result"])) for event in events] == ["task", "statusUpdate"]


# -- the card


def test_the_card_says_what_the_agent_can_and_where() -> None:
    with served(setting=SIMPLE + "a2a: [{name: b, url: 'http://b.example', description: Knows b.}]\n") as (
        rpc,
        live,
    ):
        card = rpc.http.get(CARD, headers={"A2A-Version": ""})
        assert card.json() == rpc.http.get("/.well-known/agent.json", headers={"A2A-Version": ""}).json()
        body = card.json()
        assert [(i["protocolBinding"], i["protocolVersion"]) for i in body["supportedInterfaces"]] == [
            ("JSONRPC", "1.0"),
            ("HTTP+JSON", "1.0"),
            ("JSONRPC", "0.3"),
        ]
        assert body["url"] == f"{live.url}/a2a"
        assert {skill["id"] for skill in body["skills"]} == {"add", "look", "a2a_b"}
        assert all(skill["tags"] and skill["description"] for skill in body["skills"])
        assert {e["uri"] for e in body["capabilities"]["extensions"]} == {HITL, MESH, BUDGET}
        modern = rpc.http.get(CARD).json()
        assert "url" not in modern and "protocolVersion" not in modern
        for condition in ("If-None-Match", "If-Modified-Since"):
            header = {"If-None-Match": "ETag", "If-Modified-Since": "Last-Modified"}[condition]
            known = {condition: card.headers[header], "A2A-Version": ""}
            assert rpc.http.get(CARD, headers=known).status_code == 304


def test_skills_that_not_everybody_sees_are_in_the_extended_card() -> None:
    setting = """card:
  public_skills: [lo*]
  security: {bearer: {httpAuthSecurityScheme: {scheme: Bearer}}}
"""

    def skills(card: Json) -> set[str]:
        return {skill["id"] for skill in card["skills"]}

    with served(setting=SIMPLE + setting) as (rpc, live), Rpc(live.url, version=None) as old:
        public = rpc.http.get(CARD).json()
        assert skills(public) == {"look"} and public["capabilities"]["extendedAgentCard"] is True
        extended = rpc.result("GetExtendedAgentCard")
        assert skills(extended) == {"look", "add"}
        assert {**extended, "skills": public["skills"]} == public
        assert rpc.http.get("/a2a/extendedAgentCard").json() == extended
        earlier = old.result("agent/getAuthenticatedExtendedCard")
        assert skills(earlier) == {"look", "add"} and earlier["supportsAuthenticatedExtendedCard"] is True


def url_of(live: LiveMesh, **headers: str) -> str:
    card = httpx.get(live.url + CARD, headers=headers).json()
    return str(card["url"])


def test_the_public_url_is_the_configured_one_or_what_the_request_says() -> None:
    fixed = SIMPLE + "card: {url: 'https://agents.example/res/'}\n"
    with served(setting=fixed) as (_, live):
        assert url_of(live, **{"X-Forwarded-Host": "evil.example"}) == "https://agents.example/res/a2a"
    forwarded = {
        "X-Forwarded-Host": "front.example",
        "X-Forwarded-Proto": "https",
        "X-Forwarded-Prefix": "/x",
    }
    with served() as (_, live):
        assert url_of(live, **forwarded) == f"{live.url}/a2a", "from whom the config does not name"
        assert url_of(live, Host="0.0.0.0:8080") == "http://localhost:8080/a2a"
    with served(setting=SIMPLE + "card: {proxies: [127.0.0.0/8]}\nallowed_hosts: [front.example]\n") as (
        _,
        live,
    ):
        assert url_of(live, **forwarded) == "https://front.example/x/a2a"


def test_a_bug_inside_is_told_to_the_log_and_not_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a secret detail")

    monkeypatch.setattr("mesh.a2a.server.handler.task_of", broken)
    with served() as (rpc, _):
        told = rpc.call("SendMessage", {"message": said("hi")})["error"]
        assert (told["code"], "secret" in str(told)) == (-32603, False)
        assert "the log" in told["message"]

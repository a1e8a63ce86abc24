"""Bad input is 400, says what is wrong, and changes nothing."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from mesh.a2a.extensions import MESH
from mesh.http import parsing as reading
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import calls, says
from tests.worlds.rpc import Rpc

WITHIN_S = 30.0
INVALID_PARAMS, NO_JSON, WRONG_VERSION = -32602, -32700, -32009


@pytest.fixture
def live() -> Iterator[LiveMesh]:
    with LiveMesh(Spoken(calls(("add", {"n": 1})), says("done"))) as mesh:
        yield mesh


@pytest.fixture
def http(live: LiveMesh) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=WITHIN_S) as client:
        yield client


def refused(answer: httpx.Response, why: str) -> None:
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["error"]


def waiting(http: httpx.Client) -> tuple[str, str]:
    """A conversation, and the approval that it waits for."""
    body = http.post("/conversations", json={"message": "add"}).json()
    return body["conversation"]["id"], body["result"]["approval"]["uuid"]


@pytest.mark.parametrize(
    ("number", "why"),
    [
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("1e999", "too large"),
        ("18446744073709551616", "beyond 64 bits"),
        ("-9223372036854775809", "beyond 64 bits"),
        ("9" * 5_000, "beyond 64 bits"),
        ('"\\ud800"', "not Unicode"),
        ("[" * 200 + "]" * 200, "levels deep"),
        ('1, "n": 2', "two members of the name 'n'"),
    ],
    ids=lambda text: text[:20],
)
def test_edited_arguments_that_cannot_be_carried_decide_nothing(
    http: httpx.Client, live: LiveMesh, number: str, why: str
) -> None:
    cid, uuid = waiting(http)
    body = f'{{"approved": true, "edited_args": {{"n": {number}}}}}'.encode()
    refused(http.post(f"/approvals/{uuid}", content=body), why)
    refused(http.post(f"/api/sessions/{cid}/approvals/{uuid}", content=body), why)
    assert http.get(f"/conversations/{cid}").json()["conversation"]["pending_approval"]["uuid"] == uuid
    assert not live.mesh.ledger.lines


@pytest.mark.parametrize("number", [2**64 - 1, -(2**63)])
def test_integers_of_64_bits_reach_the_tool_digit_for_digit(
    http: httpx.Client, live: LiveMesh, number: int
) -> None:
    _, uuid = waiting(http)
    http.post(f"/approvals/{uuid}", json={"approved": True, "edited_args": {"n": number}})
    assert live.mesh.ledger.lines == [f"add {number}"]


@pytest.mark.parametrize(
    "body", [b'{"message": NaN}', b'{"message": "\\ud800"}', b'{"message": "x", "more": 1e999}']
)
def test_a_message_that_is_not_json_is_not_taken(http: httpx.Client, body: bytes) -> None:
    cid = http.post("/conversations").json()["conversation"]["id"]
    for path in ("/conversations", f"/conversations/{cid}/messages", f"/api/sessions/{cid}/chat"):
        refused(http.post(path, content=body), "the body cannot be read")
    assert len(http.get(f"/conversations/{cid}").json()["conversation"]["messages"]) == 1  # the system prompt


@pytest.mark.parametrize("digits", ["9" * 5_000, "9" * 19, "0501", "5.0", "٣"])
def test_a_limit_is_a_number_from_1_to_500(http: httpx.Client, digits: str) -> None:
    refused(http.get("/conversations", params={"limit": digits}), "limit must be a number")


@pytest.mark.parametrize(
    "cursor",
    [
        "nonsense",
        "|",
        "\0|nothing",
        "2026-01-01T00:00:00.000Z",
        "2026-01-01T00:00:00.000Z|x",
        "x|9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d",
        "2026-01-01T00:00:00.000Z|9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d|x",
    ],
)
def test_a_cursor_that_no_page_gave_is_refused(http: httpx.Client, cursor: str) -> None:
    refused(http.get("/conversations", params={"cursor": cursor}), "next_cursor of an earlier page")


def test_a_cursor_that_a_page_gave_is_followed(http: httpx.Client) -> None:
    ids = {http.post("/conversations").json()["conversation"]["id"] for _ in range(3)}
    first = http.get("/conversations", params={"limit": 2}).json()
    second = http.get("/conversations", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert {entry["id"] for entry in (*first["conversations"], *second["conversations"])} == ids


@pytest.mark.parametrize("token", ["bm9uc2Vuc2U=", "!!!", "fA==", "é"])
def test_a_page_token_of_a2a_that_no_page_gave_is_refused(live: LiveMesh, token: str) -> None:
    with Rpc(live.url) as rpc:
        assert rpc.code("ListTasks", {"pageToken": token}) == INVALID_PARAMS


@pytest.mark.parametrize("said", ["x", "-1", "1.-5", "1.", "9" * 5_000, "1e5", "18446744073709551616"])
def test_a_place_that_the_stream_of_everything_never_gave_is_refused(http: httpx.Client, said: str) -> None:
    refused(http.get("/events", headers={"Last-Event-ID": said}), "Last-Event-ID")


@pytest.mark.parametrize("number", ["9223372036854775808", "2147483648"])
def test_a_number_that_a2a_cannot_hold_is_the_clients_fault_in_0_3(live: LiveMesh, number: str) -> None:
    with Rpc(live.url, None) as rpc:
        task = rpc.http.post("/conversations", json={"message": "hi"}).json()["conversation"]["id"]
        assert rpc.code("tasks/get", {"id": task, "historyLength": int(number)}) == INVALID_PARAMS


def test_a_method_of_0_3_in_a_request_of_1_0_is_the_clients_fault(live: LiveMesh) -> None:
    with Rpc(live.url) as rpc:
        assert rpc.code("tasks/get", {"id": "x"}) == WRONG_VERSION


def test_numbers_and_texts_that_json_does_not_have_are_refused_by_a2a(live: LiveMesh) -> None:
    with Rpc(live.url) as rpc:
        for code, values in (
            (NO_JSON, ("NaN", "1e999", '"\\ud800"')),
            (INVALID_PARAMS, ("9" * 5_000, "18446744073709551616", "[" * 200 + "]" * 200)),
        ):
            for value in values:
                body = f'{{"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {{"id": {value}}}}}'
                assert rpc.http.post("/a2a", content=body.encode()).json()["error"]["code"] == code


@pytest.mark.parametrize("header", [b"X-Request-ID", b"X-Session-ID", b"X-User", b"Last-Event-ID", b"Accept"])
@pytest.mark.parametrize(
    "route",
    ["GET /health", "GET /conversations/x/events", "POST /conversations", "GET /nothing", "POST /a2a"],
)
def test_a_header_that_is_not_utf_8_is_refused_on_any_route(
    live: LiveMesh, header: bytes, route: str
) -> None:
    answer = raw(live.port, route.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + header + b": \xff\xfe\r\n")
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert b"is not UTF-8 text" in answer


@pytest.mark.parametrize("query", [b"limit=\xff", b"x=\xed\xa0\x80"])
def test_a_query_that_is_not_utf_8_is_refused(live: LiveMesh, query: bytes) -> None:
    for path in (b"/conversations", b"/conversations/", b"/nothing/"):
        answer = raw(live.port, b"GET " + path + b"?" + query + b" HTTP/1.1\r\nHost: localhost\r\n")
        assert answer.startswith(b"HTTP/1.1 400 "), answer


def raw(port: int, head: bytes) -> bytes:
    """What the server answers to these bytes."""
    with socket.create_connection(("127.0.0.1", port), WITHIN_S) as connection:
        connection.sendall(head + b"Content-Length: 0\r\nConnection: close\r\n\r\n")
        parts: list[bytes] = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


# -- session ids

CREATED: dict[str, Any] = {
    "type": "conversation_created",
    "conversation_id": "9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d",
    "session_id": "s1",
    "agent": "a",
    "digest": "d",
    "seq": 1,
    "time": "2026-01-01T00:00:00.000Z",
}
OPENED: dict[str, Any] = {"type": "user_message", "turn": 1, "text": "hi", "seq": 2}


def lines(*events: dict[str, Any]) -> bytes:
    return b"\n".join(map(msgspec.json.encode, events))


WRONG_IDS = ["a\r\nX-Evil: 1", "Ωmega", "", "a b c", "x" * 129, "a b", "a/b"]


@pytest.mark.parametrize("session_id", WRONG_IDS)
def test_a_conversation_with_a_session_id_that_no_header_may_have_is_not_imported(
    http: httpx.Client, session_id: str
) -> None:
    begins = lines({**CREATED, "session_id": session_id})
    goes_on = lines(CREATED, {**OPENED, "session_id": session_id or " "})
    for line, log in ((1, begins), (2, goes_on)):
        refused(http.post("/conversations/import", content=log), f"line {line}: session_id must be 1 to 128")
    assert http.get(f"/conversations/{CREATED['conversation_id']}").status_code == 404


@pytest.mark.parametrize("session_id", [wrong for wrong in WRONG_IDS if wrong])
def test_a_session_id_is_checked_wherever_it_is_said(
    http: httpx.Client, live: LiveMesh, session_id: str
) -> None:
    refused(http.get("/events", params={"session_id": session_id}), "session_id must be 1 to 128")
    header = {"X-Session-ID": session_id.replace("\r\n", " ").encode()}
    refused(http.post("/conversations", headers=header), "X-Session-ID must be 1 to 128")
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}], "contextId": session_id}
    with Rpc(live.url) as rpc:
        assert rpc.code("SendMessage", {"message": message}) == INVALID_PARAMS
        assert rpc.code("ListTasks", {"contextId": session_id}) == INVALID_PARAMS


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ({"time": "yesterday"}, "time must be"),
        ({"turn": 2**64}, "no event"),
        ({"text": "hi", "extra": 2**64}, ""),
    ],
)
def test_what_a_journal_never_has_is_not_imported(
    http: httpx.Client, field: dict[str, Any], why: str
) -> None:
    log = b"\n".join(
        httpx.Request("POST", "http://x", json=line).content for line in (CREATED, {**OPENED, **field})
    )
    answer = http.post("/conversations/import", content=log)
    if why:
        refused(answer, f"line 2: {why}" if why != "no event" else "line 2")
    else:
        assert answer.status_code == 201  # fields that nobody knows are left out


def test_a_tool_call_that_cannot_travel_between_processes_is_not_imported(http: httpx.Client) -> None:
    call = {"id": "c", "name": "add", "arguments": {"n": 2**64}}
    answer = {"type": "llm_call", "turn": 1, "step": "0/llm/0", "model": "m", "tool_calls": [call], "seq": 3}
    log = b"\n".join(
        httpx.Request("POST", "http://x", json=line).content for line in (CREATED, OPENED, answer)
    )
    refused(http.post("/conversations/import", content=log), "line 3: it has an integer beyond 64 bits")


@pytest.mark.parametrize("path", ["/conversations", "/a2a", "/a2a/message:send", "/conversations/import"])
def test_a_body_that_does_not_come_is_not_waited_for(
    live: LiveMesh, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "CHUNK_WITHIN_S", 0.2)
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10\r\n\r\n{{"
    with socket.create_connection(("127.0.0.1", live.port), WITHIN_S) as connection:
        connection.sendall(head.encode())
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
    assert answer.split()[1] == b"408", answer
    assert b"did not come" in answer


@pytest.mark.parametrize(
    ("edited", "why"), [(str(2**64), "beyond 64 bits"), ('1, "n": 2', "two members of the name 'n'")]
)
def test_arguments_that_are_edited_over_a2a_are_held_to_the_same(
    http: httpx.Client, live: LiveMesh, edited: str, why: str
) -> None:
    cid, uuid = waiting(http)
    decision = {"uuid": uuid, "decision": "approve", "edited_args_json": f'{{"n": {edited}}}'}
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "yes"}], "taskId": cid}
    metadata = {MESH: {"decisions": [decision]}}
    with Rpc(live.url) as rpc:
        found = rpc.call("SendMessage", {"message": {**message, "metadata": metadata}})
    assert found["error"]["code"] == INVALID_PARAMS
    assert why in found["error"]["message"]
    assert not live.mesh.ledger.lines

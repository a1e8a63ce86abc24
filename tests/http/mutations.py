"""Valid requests to every route, and what a hostile or broken client makes of them: the same for a seed."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from mesh.a2a.extensions import MESH
from tests.http.asgi import Request

DIGITS = "9" * 5_000
WORDS = (
    *("null", "true", "0", "-1", '""', "[]", "{}", '"x"', '"\\u0000"', '"\\r\\nX: y"', '"🌍"', '"null"'),
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308", "-0.0", "0.1e-400"),
    *("9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775809"),
    *(DIGITS, f"-{DIGITS}", f"0.{DIGITS}", f"1{'0' * 400}", f'"{DIGITS}"'),
    *('"\\ud800"', '"\\udfff\\ud800"', '{"\\ud800": 1}', '"\\ud83d\\ude00"'),
    *("[" * 90 + "]" * 90, "[" * 5_000 + "]" * 5_000, '{"a":' * 900 + "1" + "}" * 900, "[" * 100_000),
    *(f'{{"{"k" * 20_000}": 1}}', '{"a": 1, "a": "2", "": null}', "[[], {}, 1, null]", '{"text": 7}'),
    *('"9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d"', '"2026-01-01T00:00:00Z"', '"-1"', '"1.5"', "1.5"),
)
TEXTS = (
    *(
        b"",
        b"0",
        b"-1",
        b"x",
        b"nonsense",
        b"%00",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"\xc3\xa9",
        b"\xb2",
        b"\xa0",
    ),
    *(
        DIGITS.encode(),
        b"9" * 18,
        b"9" * 19,
        b"1e999",
        b"NaN",
        b"a|b",
        b"|",
        b"||||",
        b"18446744073709551616",
    ),
    *(
        b"../../etc/passwd",
        b"[",
        b"[::1",
        b":",
        b"a, b, c",
        b"application/json",
        b"*/*",
        b"text/event-stream",
    ),
    *(
        b"Bearer \xff",
        b"Basic x",
        b'W/"',
        b"Mon, 01 Jan 0001 00:00:00 -0000",
        b"Thu, 01 Jan 99999 00:00:00 GMT",
    ),
    *(
        b"respond-async",
        b"1.0",
        b"0.3",
        b"2.0",
        b"1.0, 0.3",
        b"{}",
        b"\x7f",
        b"\t",
        b"y" * 9_000,
        b"0.0.0.0:1:1",
    ),
    *(b"2026-01-01T00:00:00.000Z|9b2fd6a7-2b5c-4a86-8c27-d2a99f9b3c1d", b"?1", b"==", b"AAAA", b"w\xf6rter"),
)
HEADERS = (
    *("x-request-id", "x-session-id", "x-user", "idempotency-key", "prefer", "accept", "traceparent"),
    *("authorization", "content-type", "content-length", "last-event-id", "a2a-version", "a2a-extensions"),
    *("if-none-match", "if-modified-since", "x-request-timeout-seconds", "x-request-disconnect-disabled"),
    *("user-agent", "cookie", "origin", "host", "x-forwarded-host", "x-forwarded-for", "accept-encoding"),
)
QUERIES = (
    *("limit", "cursor", "status", "after", "type", "session_id", "pageSize", "pageToken", "contextId"),
    *("historyLength", "includeArtifacts", "statusTimestampAfter", "A2A-Version", "tenant", "x"),
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE", "M\u00d6H")


@dataclass(frozen=True)
class Known:
    """What there is on the mesh to ask about."""

    done: str
    waiting: str
    approval: str
    config: str


@dataclass(frozen=True)
class Template:
    """A valid request. ``fits`` False: there is nothing that it could be about just then."""

    method: str
    path: str
    body: Any = None
    query: tuple[tuple[str, str], ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    fits: bool = True


def templates(known: Known) -> list[Template]:
    """One for each thing that can be asked, in each dialect."""
    return [*_rest(known), *_sessions(known), *_rpc(known), *_a2a_over_rest(known)]


def _rest(known: Known) -> list[Template]:
    done, waiting = f"/conversations/{known.done}", f"/conversations/{known.waiting}"
    live = {"Accept": "text/event-stream"}
    plain = ("/", "/health", "/ready", "/tools", "/tree", "/docs", "/openapi.json", "/.well-known/agent.json")
    created = {
        "type": "conversation_created",
        "conversation_id": str(uuid4()),
        "session_id": "s",
        "agent": "a",
    }
    opened = {"type": "user_message", "seq": 2, "turn": 1, "text": "hi", "time": "2026-01-01T00:00:00.000Z"}
    log = Lines([{**created, "digest": "d", "seq": 1, "time": "2026-01-01T00:00:00.000Z"}, opened])
    return [
        *(Template("GET", path) for path in (*plain, "/.well-known/agent-card.json")),
        Template("POST", "/conversations", {"message": "hello"}, headers={"Idempotency-Key": str(uuid4())}),
        Template("POST", "/conversations", {"message": "hello"}, headers=live),
        Template("GET", "/conversations", query=(("limit", "5"), ("cursor", ""), ("status", "active"))),
        Template("GET", done),
        Template("POST", f"{done}/messages", {"message": "hello"}, headers={"Prefer": "respond-async"}),
        Template("POST", f"{waiting}/messages", {"message": "hello"}),
        Template(
            "POST",
            f"{done}/messages",
            {
                "message": "hello",
                "budget": {"max_llm_calls": 5, "max_total_tokens": 900, "max_time_s": 9.5, "max_agents": 3},
            },
        ),
        Template("POST", f"{done}/cancel"),
        Template("POST", f"/conversations/{uuid4()}/complete", fits=False),
        Template("GET", f"{done}/log"),
        Template("GET", f"{done}/events", query=(("after", "0"),), headers={"Last-Event-ID": "1"}),
        Template(
            "GET",
            "/events",
            query=(("type", "completed"), ("session_id", "s")),
            headers={"Last-Event-ID": "1"},
        ),
        Template("POST", "/conversations/import", log),
        Template(
            "POST", f"/approvals/{known.approval}", {"approved": True, "edited_args": {"n": 2, "m": [1]}}
        ),
        Template("POST", f"/approvals/{known.approval}", {"approved": False, "reason": "no"}),
        Template("POST", f"/approvals/{known.approval}", {"action": "retry"}, fits=False),
        Template("POST", f"/approvals/{known.approval}", {"answer": "blue"}, fits=False),
    ]


def _sessions(known: Known) -> list[Template]:
    done, waiting = f"/api/sessions/{known.done}", f"/api/sessions/{known.waiting}"
    return [
        Template("POST", "/api/sessions", {"provider": "p", "model": "m", "workspacePath": "/"}),
        Template("GET", f"{done}/stream"),
        Template("POST", f"{done}/chat", {"message": "hello"}),
        Template(
            "POST", f"{waiting}/approvals/{known.approval}", {"approved": True, "edited_args": {"n": 2}}
        ),
        Template("POST", f"{done}/resume"),
    ]


def _rpc(known: Known) -> list[Template]:
    def calls(version: str, method: str, params: Any) -> Template:
        headers = {"A2A-Version": version} if version else {}
        return Template(
            "POST", "/a2a", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers=headers
        )

    task, config = known.done, {"url": "http://127.0.0.1:9/", "token": "t", "id": known.config}
    message, old, plain = _message("parts"), _message("kind"), _message("type")
    decision = {"decisions": [{"uuid": known.approval, "decision": "approve", "edited_args": {"n": 3}}]}
    page = {"pageSize": 5, "pageToken": "", "contextId": "", "historyLength": 2, "includeArtifacts": True}
    push = {"taskPushNotificationConfig": config, "returnImmediately": True, "historyLength": 1}
    return [
        calls("1.0", "SendMessage", {"message": message, "configuration": push}),
        calls("1.0", "SendMessage", {"message": {**message, "taskId": known.waiting}}),
        calls(
            "1.0",
            "SendMessage",
            {"message": {**message, "taskId": known.waiting, "metadata": {MESH: decision}}},
        ),
        calls("1.0", "SendStreamingMessage", {"message": {**message, "contextId": "c"}}),
        calls("1.0", "GetTask", {"id": task, "historyLength": 3}),
        calls(
            "1.0",
            "ListTasks",
            {**page, "statusTimestampAfter": "2026-01-01T00:00:00Z", "status": "TASK_STATE_WORKING"},
        ),
        calls("1.0", "CancelTask", {"id": task}),
        calls("1.0", "SubscribeToTask", {"id": known.waiting}),
        calls("1.0", "CreateTaskPushNotificationConfig", {"taskId": task, **config}),
        calls("1.0", "GetTaskPushNotificationConfig", {"taskId": task, "id": known.config}),
        calls("1.0", "ListTaskPushNotificationConfigs", {"taskId": task, "pageSize": 3}),
        calls("1.0", "DeleteTaskPushNotificationConfig", {"taskId": task, "id": "other"}),
        calls("1.0", "GetExtendedAgentCard", {}),
        calls("", "message/send", {"message": old, "configuration": {"blocking": True, "historyLength": 2}}),
        calls("", "message/stream", {"message": old}),
        calls("", "message/send", {"message": plain}),
        calls("", "tasks/get", {"id": task, "historyLength": 2}),
        calls("", "tasks/cancel", {"id": task}),
        calls("", "tasks/resubscribe", {"id": known.waiting}),
        calls("", "tasks/pushNotificationConfig/set", {"taskId": task, "pushNotificationConfig": config}),
        calls("", "tasks/pushNotificationConfig/get", {"id": task, "pushNotificationConfigId": known.config}),
        calls("", "tasks/pushNotificationConfig/list", {"id": task}),
        calls("", "agent/getAuthenticatedExtendedCard", {}),
    ]


def _message(form: str) -> Any:
    parts: Any = [{"text": "hello"}, {"data": {"n": 1, "list": [1, 2]}}]
    if form != "parts":
        parts = [{form: "text", "text": "hello"}, {form: "data", "data": {"n": 1}}]
    more = {"kind": "message"} if form == "kind" else {}
    role = "ROLE_USER" if form == "parts" else "user"
    return {"messageId": str(uuid4()), "role": role, "parts": parts, "metadata": {"a": 1}, **more}


def _a2a_over_rest(known: Known) -> list[Template]:
    task, waiting, headers = f"/a2a/tasks/{known.done}", f"/a2a/tasks/{known.waiting}", {"A2A-Version": "1.0"}
    configs = f"{task}/pushNotificationConfigs"
    page = (("pageSize", "5"), ("pageToken", ""), ("contextId", "c"), ("historyLength", "1"), ("status", "3"))
    asked: list[tuple[str, str, Any, tuple[tuple[str, str], ...]]] = [
        ("POST", "/a2a/message:send", {"message": _message("parts")}, ()),
        ("POST", "/a2a/message:stream", {"message": _message("parts")}, ()),
        ("GET", "/a2a/tasks", None, page),
        ("GET", task, None, (("historyLength", "2"),)),
        ("POST", f"{task}:cancel", {"metadata": {"a": 1}}, ()),
        ("GET", f"{waiting}:subscribe", None, ()),
        ("POST", f"{waiting}:subscribe", {}, ()),
        ("POST", configs, {"url": "http://127.0.0.1:9/", "id": known.config}, ()),
        ("GET", configs, None, (("pageSize", "5"),)),
        ("GET", f"{configs}/{known.config}", None, ()),
        ("DELETE", f"{configs}/other", None, ()),
        ("GET", "/a2a/extendedAgentCard", None, ()),
    ]
    unfit = (f"{task}:cancel", "/a2a/extendedAgentCard")
    return [
        Template(method, path, body, query, headers, path not in unfit) for method, path, body, query in asked
    ]


class Lines(list[Any]):
    """A body of JSON lines."""


def valid(template: Template) -> Request:
    """The request as it is meant."""
    headers = tuple((name.lower().encode(), value.encode()) for name, value in template.headers.items())
    query = "&".join(f"{name}={quote(value)}" for name, value in template.query).encode()
    body = b"" if template.body is None else _written(template.body).encode()
    return Request(template.method, template.path, query, headers, body)


def _written(body: Any) -> str:
    return "\n".join(map(json.dumps, body)) if isinstance(body, Lines) else json.dumps(body)


def mutated(template: Template, random: Random) -> Request:
    """The request with something wrong in one or two places."""
    request = valid(template)
    kinds: list[Callable[[Request, Template, Random], Request]] = [_header, _query, _path]
    if template.body is not None:
        kinds += [_value, _value, _value, _value, _key, _bytes]
    for _ in range(random.choice((1, 1, 1, 2))):
        request = random.choice(kinds)(request, template, random)
    return replace(request, method=random.choice(METHODS)) if random.random() < 0.01 else request


def _value(request: Request, template: Template, random: Random) -> Request:
    """Another value in the place of one."""
    return replace(request, body=_with(template.body, random, lambda _: random.choice(WORDS)))


def _with(body: Any, random: Random, word: Callable[[Any], str]) -> bytes:
    """The body with one value, chosen at random, written as ``word`` says."""
    places = list(_places(body))
    chosen = random.choice(places)
    text = _written(_replaced(body, chosen, "@@"))
    value = body
    for step in chosen:
        value = value[step]
    return text.replace('"@@"', word(value)).encode("utf-8", "surrogatepass")


def _places(value: Any, at: tuple[Any, ...] = ()) -> Any:
    yield at
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _places(inner, (*at, index))


def _replaced(value: Any, at: tuple[Any, ...], other: Any) -> Any:
    if not at:
        return other
    copy: Any = dict(value) if isinstance(value, dict) else type(value)(value)
    copy[at[0]] = _replaced(value[at[0]], at[1:], other)
    return copy


def _key(request: Request, template: Template, random: Random) -> Request:
    """An object without one of its keys, with one twice, or with another name for one."""

    def word(value: Any) -> str:
        text = json.dumps(value)
        if not isinstance(value, dict) or not value:
            return text
        key = random.choice(list(value))
        first = json.dumps(key) + ": " + random.choice(WORDS)
        without = {name: inner for name, inner in value.items() if name != key}
        other = random.choice(("K" * 100_000, "\\ud800", "", "__proto__", "type", "id"))
        return random.choice(
            (
                json.dumps(without),
                "{" + first + ", " + text[1:],
                text[:-1] + ", " + first + "}",
                text.replace(json.dumps(key), f'"{other}"', 1),
            )
        )

    return replace(request, body=_with(template.body, random, word))


def _bytes(request: Request, template: Template, random: Random) -> Request:
    """A body that was cut, or whose bytes are others."""
    body = bytearray(request.body or b"{}")
    at = random.randrange(len(body))
    match random.randrange(6):
        case 0:
            body = body[:at]
        case 1:
            body[at] = random.randrange(256)
        case 2:
            body[at:at] = random.choice(
                (b"\xff", b"\xed\xa0\x80", b"\x00", b"\xef\xbb\xbf", b"\\", b"\n", b"\x1f")
            )
        case 3:
            body = bytearray(
                request.body.decode(errors="replace").encode(
                    random.choice(("utf-16", "utf-32", "latin-1")), "replace"
                )
            )
        case 4:
            body = body + body
        case _:
            body = bytearray(random.choice(WORDS).encode())
    return replace(request, body=bytes(body))


def _header(request: Request, template: Template, random: Random) -> Request:
    name = random.choice(HEADERS).encode()
    others = [pair for pair in request.headers if pair[0] != name or random.random() < 0.2]
    return replace(request, headers=(*others, (name, random.choice(TEXTS))))


def _query(request: Request, template: Template, random: Random) -> Request:
    pairs = request.query.split(b"&") if request.query else []
    names = [pair.partition(b"=")[0] for pair in pairs] or [random.choice(QUERIES).encode()]
    name, text = random.choice(names), random.choice(TEXTS)
    value = quote(text).encode() if random.random() < 0.8 else text.replace(b" ", b"+")
    kept = [pair for pair in pairs if not pair.startswith(name + b"=") or random.random() < 0.2]
    return replace(request, query=b"&".join([*kept, name + b"=" + value]))


def _path(request: Request, template: Template, random: Random) -> Request:
    """Another name in the place of a part of the path."""
    parts = request.path.split("/")
    at = random.randrange(1, len(parts))
    other = quote(random.choice(TEXTS), safe="")
    parts[at] = random.choice(
        (other, parts[at] + other, parts[at].upper(), f"{parts[at]}/", parts[at] + ":cancel")
    )
    return replace(request, path="/".join(parts))

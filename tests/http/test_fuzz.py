"""Whatever clients send, they hear what is wrong with it: no answer is a server error."""

import json
from collections import Counter
from random import Random
from typing import Any

import pytest

from mesh.core.events import LlmCall
from mesh.gateway.app import http_app
from mesh.llm.port import LlmRequest
from tests.http.asgi import Answer, Request, call
from tests.http.mutations import Known, mutated, templates, valid
from tests.worlds.live import LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, WorldMesh, calls, says

MUTATIONS = 10_000
A_ROUND = 250
SETTING = SIMPLE + "card: {push_hosts: [127.0.0.1]}\nlimits: {max_body_bytes: 80000}\n"
INTERNAL = -32603
VERSION = ((b"a2a-version", b"1.0"),)


async def _model(request: LlmRequest) -> LlmCall:
    """Calls a tool that asks a person, if that is what it was told."""
    last = request.messages[-1]
    return calls(("add", {"n": 1})) if getattr(last, "text", "") == "add" else says("done")


async def _known(app: Any) -> Known:
    async def asked(path: str, body: Any) -> Any:
        answer = await call(app, Request("POST", path, headers=VERSION, body=json.dumps(body).encode()))
        assert answer.status < 300, answer
        return json.loads(answer.body)

    done = (await asked("/conversations", {"message": "hi"}))["conversation"]["id"]
    waits = await asked("/conversations", {"message": "add"})
    await asked(f"/a2a/tasks/{done}/pushNotificationConfigs", {"id": "mine", "url": "http://127.0.0.1:9/"})
    return Known(done, waits["conversation"]["id"], waits["result"]["approval"]["uuid"], "mine")


def _is_our_fault(answer: Answer) -> bool:
    if answer.status >= 500 or answer.status < 100:
        return True
    if b"json" not in answer.headers.get(b"content-type", b"") or b'"error"' not in answer.body:
        return False
    error = json.loads(answer.body).get("error")
    return isinstance(error, dict) and error.get("code") in (INTERNAL, 500)


def _shown(request: Request) -> str:
    body = request.body if len(request.body) < 600 else request.body[:300] + b"..." + request.body[-300:]
    headers = [(name, value[:80]) for name, value in request.headers]
    return f"{request.method} {request.path[:200]}?{request.query[:200]!r} {headers} {body!r}"


@pytest.mark.timeout(1200)
async def test_ten_thousand_broken_requests_of_every_kind_are_no_server_error() -> None:
    random, faults, statuses = Random(7), list[str](), Counter[int]()
    async with WorldMesh(Spoken(_model), config=SETTING) as mesh:
        app = http_app(LocalBackend(mesh), mesh.config, b"secret")
        for _ in range(MUTATIONS // A_ROUND):
            asked = templates(await _known(app))
            for _ in range(A_ROUND):
                request = mutated(random.choice(asked), random)
                try:
                    answer = await call(app, request)
                except Exception as problem:  # noqa: BLE001 - each of them is a 500, and all are to be told
                    faults.append(f"{type(problem).__name__}: {str(problem)[:200]}\n  {_shown(request)}")
                    continue
                statuses[answer.status] += 1
                if _is_our_fault(answer):
                    faults.append(f"{answer.status} {answer.body[:300]!r}\n  {_shown(request)}")
        assert not faults, f"{len(faults)} faults, such as\n" + "\n".join(faults[:20])
        assert {200, 201, 202, 400, 404, 405, 409, 413} <= statuses.keys()
        await _all_can_be_read(app)


async def test_every_valid_request_is_answered_as_one() -> None:
    """The mutations begin with requests that are right."""
    async with WorldMesh(Spoken(_model), config=SETTING) as mesh:
        app = http_app(LocalBackend(mesh), mesh.config, b"secret")
        for index in range(len(templates(await _known(app)))):
            template = templates(await _known(app))[index]
            answer = await call(app, valid(template))
            assert (answer.status < 300) is template.fits, (_shown(valid(template)), answer)


async def _all_can_be_read(app: Any) -> None:
    """Nothing that was taken cannot be shown."""
    cursor = b""
    while True:
        page = await call(app, Request("GET", "/conversations", b"limit=500&cursor=" + cursor))
        assert page.status == 200
        found = json.loads(page.body)
        for entry in found["conversations"]:
            for what in ("", "/log"):
                shown = await call(app, Request("GET", f"/conversations/{entry['id']}{what}"))
                assert shown.status == 200, shown
        cursor = found.get("next_cursor", "").encode()
        if not cursor:
            return

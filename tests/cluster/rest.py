"""What the REST tests share."""

import time
from collections.abc import Callable
from typing import Any

import httpx

Body = dict[str, Any]


def created(api: httpx.Client, message: str | None = None, **headers: str) -> Body:
    """The body of a 201."""
    body = {"message": message} if message else {}
    response = api.post("/conversations", json=body, headers=headers)
    assert response.status_code == 201, response.text
    answer: Body = response.json()
    return answer


def until(what: Callable[[], Any], within_s: float = 180.0) -> Any:
    """The first truth that ``what`` gives."""
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, f"not so within {within_s} s"
        time.sleep(0.02)
    return found


def shown(api: httpx.Client, conversation_id: str) -> Body:
    conversation: Body = api.get(f"/conversations/{conversation_id}").json()["conversation"]
    return conversation


def contents(conversation: Body, role: str) -> list[str]:
    return [m["content"] for m in conversation["messages"] if m["role"] == role]


def problem(response: httpx.Response, status: int) -> str:
    """The one line that says what is wrong."""
    assert response.status_code == status, response.text
    assert set(response.json()) == {"error"}
    text: str = response.json()["error"]
    assert text and "Traceback" not in text
    return text

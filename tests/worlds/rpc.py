"""A client of the JSON-RPC endpoint that hides nothing: bodies go out and come back as they are."""

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx

WITHIN_S = 120.0
Json = dict[str, Any]


def text_part(text: str) -> Json:
    return {"text": text}


class Rpc:
    """``version``: the header A2A-Version; None: none, as clients of 0.3 do."""

    def __init__(self, url: str, version: str | None = "1.0", **headers: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=WITHIN_S, headers=headers)
        if version:
            self.http.headers["A2A-Version"] = version

    def __enter__(self) -> "Rpc":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def call(self, method: str, params: Any = None, **headers: str) -> Json:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {} if params is None else params}
        answer: Json = self.http.post("/a2a", json=body, headers=headers).json()
        return answer

    def result(self, method: str, params: Any = None, **headers: str) -> Json:
        answer = self.call(method, params, **headers)
        assert "error" not in answer, answer
        found: Json = answer["result"]
        return found

    def code(self, method: str, params: Any = None, **headers: str) -> int:
        answer = self.call(method, params, **headers)
        assert "error" in answer, answer
        return int(answer["error"]["code"])

    def send(self, text: str, task: str = "", message: Json | None = None, **headers: str) -> Json:
        """A message of 1.0; the task that it is answered with."""
        result = self.result("SendMessage", {"message": said(text, task, **(message or {}))}, **headers)
        found: Json = result["task"]
        return found

    def stream(self, method: str, params: Any, **headers: str) -> Iterator[Json]:
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        with self.http.stream("POST", "/a2a", json=body, headers=headers) as response:
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])


def said(text: str, task: str = "", **more: Any) -> Json:
    message: Json = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [text_part(text)], **more}
    return message | ({"taskId": task} if task else {})


def state(task: Json) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def answer(task: Json) -> str:
    return "\n".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


def question(task: Json) -> str:
    found: str = task["status"]["message"]["parts"][0]["text"]
    return found

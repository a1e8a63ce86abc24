"""A client as a careful program is one: it repeats a request, under its key, until it is answered."""

import time
import uuid
from typing import Any

import httpx

PATIENCE_S = 240.0
_PAUSE_S = 0.1


class Client:
    """Each POST ends in an answer of the mesh itself, however often what carries it breaks.

    Raises `AssertionError` after `PATIENCE_S`. ``repeats`` counts the requests that had to be sent again.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30)
        self.repeats = 0

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.close()

    def post(self, path: str, body: dict[str, Any], *, waits: bool = True) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of the first answer: see `_is_an_answer`. ``waits``: for the turn that the
        request leads to."""
        headers = {"Idempotency-Key": str(uuid.uuid4()), **({} if waits else {"Prefer": "respond-async"})}
        return self._until_answered("POST", path, headers, body)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON of a 200."""
        status, body = self._until_answered("GET", path, {}, None)
        assert status == 200, (status, body)
        return body

    def _until_answered(
        self, method: str, path: str, headers: dict[str, str], body: dict[str, Any] | None
    ) -> tuple[int, dict[str, Any]]:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                response = self._http.request(method, path, headers=headers, json=body)
            except httpx.TransportError as problem:
                why = f"{type(problem).__name__}: {problem}"
            else:
                if _is_an_answer(response):
                    return response.status_code, response.json()
                why = f"{response.status_code}: {response.text[:300]}"
            self.repeats += 1
            assert time.monotonic() < deadline, f"{method} {path} is not answered: {why}"
            time.sleep(_PAUSE_S)


def _is_an_answer(response: httpx.Response) -> bool:
    """What the mesh says is JSON: Serve's proxy answers 404 in plain text while it knows no routes. Of the
    5xx only the mesh's own 502 is final: the turn failed, and asking again would not change it."""
    if not response.headers.get("content-type", "").startswith("application/json"):
        return False
    return response.status_code < 500 or (response.status_code == 502 and "conversation" in response.json())

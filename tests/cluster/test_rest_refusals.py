"""What REST refuses on the real stack, and what it takes although it looks odd."""

import uuid
from collections.abc import Iterator

import httpx
import pytest

from tests.cluster.rest import contents, created, problem, shown

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

MIB = 1024 * 1024


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"\xff\xfe",
        b'{"message": ""}',
        b'{"message": " \\n\\t "}',
        b'{"message": 7}',
        b'{"message": {"text": "hi"}}',
        b'{"message": "\\ud800"}',
        b"[" * 100_000,
        b'{"message": ' * 50_000 + b"1" + b"}" * 50_000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_a_bad_body_is_400_and_changes_nothing(api: httpx.Client, raw: bytes) -> None:
    conversation_id = created(api)["conversation"]["id"]
    problem(api.post("/conversations", content=raw), 400)
    problem(api.post(f"/conversations/{conversation_id}/messages", content=raw), 400)
    assert contents(shown(api, conversation_id), "user") == []


def test_a_message_is_required_where_it_is_the_point(api: httpx.Client) -> None:
    path = f"/conversations/{created(api)['conversation']['id']}/messages"
    problem(api.post(path), 400)
    problem(api.post(path, json={}), 400)
    problem(api.post(path, json={"message": None}), 400)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/xml", ""])
def test_a_body_is_read_as_json_whatever_its_content_type_says(api: httpx.Client, kind: str) -> None:
    response = api.post("/conversations", content=b'{"message": "hi"}', headers={"Content-Type": kind})
    assert response.json()["result"]["response"] == "echo: hi"


@pytest.mark.parametrize(
    "some_id",
    ["nope", str(uuid.uuid4()), "..%2f..%2fetc%2fpasswd", "x" * 3000, "%00", "%F0%9F%8C%8D", "a b"],
    ids=lambda some_id: some_id[:20],
)
def test_what_is_not_there_is_404(api: httpx.Client, some_id: str) -> None:
    problem(api.get(f"/conversations/{some_id}"), 404)
    problem(api.post(f"/conversations/{some_id}/messages", json={"message": "hi"}), 404)
    problem(api.post(f"/conversations/{some_id}/complete"), 404)
    problem(api.post(f"/approvals/{some_id}", json={"approved": True}), 404)


def test_unknown_paths_and_methods_are_errors_in_json(api: httpx.Client) -> None:
    problem(api.get("/nothing/here"), 404)
    problem(api.delete("/conversations"), 405)
    problem(api.put(f"/conversations/{uuid.uuid4()}", json={}), 405)
    problem(api.get(f"/approvals/{uuid.uuid4()}"), 405)


def test_a_body_over_the_bound_is_413(api: httpx.Client) -> None:
    problem(api.post("/conversations", content=b" " * (MIB + 1)), 413)


def test_a_chunked_body_over_the_bound_is_413(api: httpx.Client) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b" " * 65536

    problem(api.post("/conversations", content=chunks()), 413)


def test_a_chunked_body_within_the_bound_is_read(api: httpx.Client) -> None:
    response = api.post("/conversations", content=iter([b'{"mess', b'age": "hi"}']))
    assert response.json()["result"]["response"] == "echo: hi"


def test_a_message_over_its_bound_is_413_and_one_within_it_is_answered(api: httpx.Client) -> None:
    assert "max_message_bytes" in problem(api.post("/conversations", json={"message": "x" * 300_000}), 413)
    assert created(api, "y" * 200_000)["result"]["response"] == "echo: " + "y" * 200_000


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "limit=-1", "status=open", "limit=²", "cursor=%00|nothing"]
)
def test_a_bad_listing_is_400(api: httpx.Client, query: str) -> None:
    problem(api.get(f"/conversations?{query}"), 400)


def test_pages_of_other_origins_and_unknown_names_are_refused_at_the_edge(api: httpx.Client) -> None:
    for path in ("/conversations", "/a2a", "/api/sessions"):
        assert "another site" in problem(api.post(path, headers={"Origin": "http://evil.example"}), 403)
        assert "another site" in problem(api.post(path, headers={"Sec-Fetch-Site": "same-site"}), 403)
        assert "allowed_hosts" in problem(api.post(path, headers={"Host": "evil.example"}), 421)
    assert api.get("/ready", headers={"Host": "localhost"}).status_code == 200


def test_a_cursor_that_means_nothing_is_no_server_error(api: httpx.Client) -> None:
    assert api.get("/conversations", params={"cursor": "\x00|nothing"}).status_code < 500


@pytest.mark.parametrize("header", ["X-Request-ID", "X-Session-ID", "X-User", "traceparent"])
def test_a_header_that_is_not_utf_8_is_refused_before_serve_reads_it(api: httpx.Client, header: str) -> None:
    for method, path in (("GET", "/health"), ("POST", "/conversations"), ("GET", "/nothing")):
        refused = api.request(method, path, headers={header: b"\xff\xfe"})
        assert "is not UTF-8 text" in problem(refused, 400)


@pytest.mark.parametrize("path", ["/-/routes", "/-/healthz", "/%2d/routes"])
def test_pages_of_ray_serve_are_not_found(api: httpx.Client, path: str) -> None:
    problem(api.get(path), 404)

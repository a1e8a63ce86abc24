"""Who is let in to the API: by which name it was asked for, and by which page. See also `test_browsers`."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, says

WITHIN_S = 30.0
PUBLIC = """
card: {url: 'https://Agents.example/res'}
allowed_hosts: [mesh.internal, Mesh, "2001:db8::7"]
"""
LISTED = "cors: {origins: ['https://App.example:443', 'http://127.0.0.1:3000']}\n"


@contextmanager
def served(setting: str = "") -> Iterator[tuple[LiveMesh, httpx.Client]]:
    with (
        LiveMesh(Spoken(says("fine")), SIMPLE + setting) as live,
        httpx.Client(base_url=live.url, timeout=WITHIN_S) as http,
    ):
        yield live, http


def test_the_api_is_reached_by_addresses_by_localhost_and_by_names_that_the_config_has() -> None:
    with served(PUBLIC) as (_, http):
        for host, is_ours in {
            "127.0.0.1": True,
            "127.0.0.1:8080": True,
            "10.1.2.3:80": True,
            "[::1]:8080": True,
            "[2001:db8::1]": True,
            "localhost:9": True,
            "LOCALHOST": True,
            "agents.example": True,
            "mesh.internal:8080": True,
            "mesh": True,
            "evil.example": False,
            "evil.example:8080": False,
            "127.0.0.1.evil.example": False,
            "localhost.evil.example": False,
            "mesh.internal.evil.example": False,
            "127.0.0.1@evil.example": False,
            "[bad": False,
            ":8080": False,
        }.items():
            for path in ("/conversations", "/a2a", "/health", "/docs", "/nowhere"):
                answer = http.get(path, headers={"Host": host})
                assert (answer.status_code != 421) is is_ours, (host, path)


def test_a_name_that_is_refused_is_told_where_it_would_have_to_be() -> None:
    with served() as (_, http):
        answer = http.get("/tree", headers={"Host": "mesh.default.svc:8080"})
        assert answer.status_code == 421
        assert answer.json() == {
            "error": "this mesh does not go by the name 'mesh.default.svc:8080'; if it should, put the "
            "name into allowed_hosts in its config, as in allowed_hosts: [mesh.default.svc]"
        }


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET /health HTTP/1.0\r\n", 200),  # as probes of balancers send it; browsers always say a host
        ("GET /health HTTP/1.0\r\nOrigin: null\r\n", 403),
        ("GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n", 421),
        ("GET /health HTTP/1.1\r\nHost: evil.example\r\nHost: 127.0.0.1\r\n", 421),
    ],
)
def test_no_host_is_let_in_and_two_are_not(head: str, status: int) -> None:
    with served() as (live, _), socket.create_connection(("127.0.0.1", live.port), WITHIN_S) as connection:
        connection.sendall(f"{head}Connection: close\r\n\r\n".encode())
        answer = b""
        while piece := connection.recv(4096):
            answer += piece
        assert answer.split()[1] in (str(status).encode(), b"400"), answer


def test_what_a_browser_sends_from_another_origin_is_refused_and_changes_nothing() -> None:
    with served() as (live, http):
        own = {"Origin": live.url}
        foreign = (
            {"Origin": "http://evil.example"},
            {"Origin": "null"},
            {"Origin": ""},
            {"Origin": "http://[bad"},
            {"Origin": f"http://127.0.0.1:{live.port + 1}"},
            {"Origin": f"{live.url}.evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "anything"},
            {**own, "Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        )
        for headers in foreign:
            for method, path in (
                ("GET", "/conversations"),
                ("GET", "/events"),
                ("POST", "/conversations"),
                ("POST", "/approvals/x"),
                ("POST", "/a2a"),
                ("POST", "/a2a/message:send"),
                ("POST", "/api/sessions"),
                ("OPTIONS", "/conversations"),
                ("GET", "/openapi.json"),
                ("GET", "/.well-known/agent-card.json"),
            ):
                answer = http.request(
                    method, path, headers=headers, content=b"{}" if method == "POST" else None
                )
                assert answer.status_code == 403, (headers, method, path)
                assert "another site asked" in answer.json()["error"]
                assert not [name for name in answer.headers if name.startswith("access-control")]
        assert http.get("/conversations").json()["conversations"] == []
        for headers in (own, {"Sec-Fetch-Site": "none"}, {**own, "Sec-Fetch-Site": "same-origin"}):
            assert http.post("/conversations", headers=headers).status_code == 201, headers


def test_programs_that_send_what_curl_sends_are_let_in() -> None:
    with served() as (_, http):
        for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json", ""):
            answer = http.post("/conversations", content=b'{"message": "hi"}', headers={"Content-Type": kind})
            assert answer.json()["result"]["response"] == "fine", kind
            assert not {"x-frame-options", "vary"} & set(answer.headers)
        node = {"Sec-Fetch-Mode": "cors", "User-Agent": "node"}  # fetch of Node.js says that much
        assert http.post("/conversations", headers=node).status_code == 201


def test_a_link_on_another_page_opens_the_documents_and_nothing_else() -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    with served() as (_, http):
        assert http.get("/docs", headers=link).status_code == 200
        assert http.get("/docs", headers=link).headers["x-frame-options"] == "DENY"
        for changed in ({"Sec-Fetch-Dest": "iframe"}, {"Sec-Fetch-Mode": "no-cors"}, {"Origin": "null"}):
            assert http.get("/docs", headers=link | changed).status_code == 403, changed
        for path in ("/conversations", "/tree", "/docs/"):
            assert http.get(path, headers=link).status_code == 403, path
        assert http.post("/docs", headers=link).status_code == 403


def test_a_listed_origin_is_answered_as_browsers_need_it() -> None:
    with served(LISTED) as (_, http):
        page = {"Origin": "https://app.example", "Sec-Fetch-Site": "cross-site"}
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x-api-key"}
        for path in ("/conversations", "/a2a", "/approvals/x", "/nowhere"):
            told = http.options(path, headers=page | asked)
            assert (told.status_code, told.content) == (204, b"")
            assert told.headers["access-control-allow-origin"] == "https://app.example"
            assert "POST" in told.headers["access-control-allow-methods"]
            allowed = {
                name.strip().lower() for name in told.headers["access-control-allow-headers"].split(",")
            }
            assert {
                "content-type",
                "authorization",
                "x-api-key",
                "idempotency-key",
                "last-event-id",
            } <= allowed
            assert "origin" in told.headers["vary"].lower()
            assert "access-control-allow-credentials" not in told.headers
        answer = http.post("/conversations", headers=page)
        assert answer.status_code == 201
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        exposed = {name.strip() for name in answer.headers["access-control-expose-headers"].split(",")}
        assert {"X-Session-ID", "Location", "Retry-After"} <= exposed
        assert http.get("/conversations/none", headers=page).headers["access-control-allow-origin"]
        other = {"Origin": "https://app.example.evil.example"}
        refused = http.options("/conversations", headers=other | asked)
        assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (403, None)
        assert http.get("/tree").headers["vary"] == "Origin", "for whoever caches it"


def test_a_page_at_the_public_address_is_our_own_also_where_a_proxy_changes_host() -> None:
    page = {"Origin": "https://agents.example", "Sec-Fetch-Site": "same-origin"}
    with served(PUBLIC) as (_, http):
        assert http.post("/conversations", headers=page).status_code == 201
        assert http.post("/conversations", headers=page | {"Sec-Fetch-Site": "same-site"}).status_code == 403


def test_what_a_proxy_was_asked_for_counts_if_the_config_names_the_proxy() -> None:
    proxied = {"X-Forwarded-Host": "front.example", "Origin": "https://front.example"}
    with served("allowed_hosts: [front.example]\ncard: {proxies: [127.0.0.0/8]}\n") as (_, http):
        assert http.post("/conversations", headers=proxied).status_code == 201
        rebound = {"X-Forwarded-Host": "evil.example", "Origin": "https://evil.example"}
        assert http.post("/conversations", headers=rebound).status_code == 421
    with served("allowed_hosts: [front.example]\n") as (_, http):
        assert http.post("/conversations", headers=proxied).status_code == 403, "anybody can say that"
        assert http.get("/tree", headers={**proxied, "Host": "evil.example"}).status_code == 421

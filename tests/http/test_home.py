"""``GET /``: an index, as a page for browsers and as JSON for others."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from mesh.core.errors import Unavailable
from mesh.gateway.app import http_app
from mesh.http.html import prefers_html
from mesh.http.landing_page import Links
from mesh.keeper.requests import RequestFor
from tests.worlds.live import LiveMesh, LocalBackend, Spoken
from tests.worlds.mesh import SIMPLE, WorldMesh, calls, says

WITHIN_S = 30.0
CHROME = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"


class Links_(HTMLParser):
    """The links of a page, and every element in it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: dict[str, str] = {}
        self.elements: set[str] = set()
        self._address = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self._address = dict(attrs).get("href") or "" if tag == "a" else self._address

    def handle_data(self, data: str) -> None:
        if self._address:
            self.links[data] = self._address
            self._address = ""


@pytest.fixture
def live() -> Iterator[LiveMesh]:
    about = "description: Looks after <b>numbers</b>.\n"
    with LiveMesh(Spoken(calls(("add", {"n": 1}))), SIMPLE + about) as mesh:
        yield mesh


@pytest.fixture
def http(live: LiveMesh) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=live.url, timeout=WITHIN_S) as client:
        yield client


def test_a_program_gets_the_index_as_json(http: httpx.Client, live: LiveMesh) -> None:
    answer = http.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["vary"] == "Accept"
    index = answer.json()
    assert (index["name"], index["url"], index["waiting"]) == ("test", live.url, {"total": 0, "newest": []})
    assert "chat" not in index["links"]
    for name, url in index["links"].items():
        if name != "events":
            assert http.get(url).status_code == 200, name


def test_a_browser_gets_a_page_whose_links_lead_somewhere(http: httpx.Client) -> None:
    answer = http.get("/", headers={"Accept": CHROME})
    assert answer.headers["content-type"].startswith("text/html")
    page = Links_(answer.text)
    assert {"docs", "card", "tree", "tools", "conversations"} <= page.links.keys()
    for name, url in page.links.items():
        if name != "events":
            assert http.get(url).status_code == 200, name
    assert "Nothing." in answer.text
    assert "chat" not in page.links


def test_what_waits_for_a_person_is_named_and_linked(http: httpx.Client) -> None:
    waits = http.post("/conversations", json={"message": "please add one"}).json()
    newest = http.get("/").json()["waiting"]
    assert newest["total"] == 1
    (shown,) = newest["newest"]
    assert (shown["title"], shown["asks"], shown["kind"]) == ("please add one", "add", "tool_call")
    assert http.get(shown["conversation"]).json()["conversation"]["id"] == waits["conversation"]["id"]
    answer = http.get("/", headers={"Accept": CHROME})
    assert Links_(answer.text).links["please add one"] == shown["conversation"]
    assert http.post(shown["approval"], json={"approved": False}).status_code == 200
    assert http.get("/").json()["waiting"]["total"] == 0


def test_what_people_and_configs_say_is_text_and_nothing_runs_in_the_page(http: httpx.Client) -> None:
    http.post("/conversations", json={"message": '<img src=x onerror="alert(1)"><script>alert(2)</script>'})
    answer = http.get("/", headers={"Accept": CHROME})
    page = Links_(answer.text)
    assert not {"img", "script", "b"} & page.elements
    assert "&lt;script&gt;" in answer.text and "&lt;b&gt;numbers" in answer.text
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"https?://(?!127\.0\.0\.1)", answer.text)


async def test_chat_and_dashboard_are_linked_where_they_are_known() -> None:
    links = Links("http://127.0.0.1:3000", "http://127.0.0.1:8265")
    async with WorldMesh(Spoken(says("done"))) as mesh:
        app = http_app(LocalBackend(mesh), mesh.config, b"secret", links)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            found = (await http.get("/")).json()["links"]
            page = Links_((await http.get("/", headers={"Accept": CHROME})).text)
    assert (found["chat"], found["dashboard"]) == (links.chat, links.dashboard)
    assert (page.links["chat"], page.links["Ray dashboard"]) == (links.chat, links.dashboard)


async def test_an_agent_below_a_path_links_below_it() -> None:
    async with WorldMesh(Spoken(says("done"))) as mesh:
        app = http_app(LocalBackend(mesh), mesh.config, b"secret")
        transport = httpx.ASGITransport(app, root_path="/clerk")
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            index = (await http.get("/clerk/")).json()
    assert (index["url"], index["links"]["docs"]) == ("http://localhost/clerk", "http://localhost/clerk/docs")


class Deaf(LocalBackend):
    """Its keepers do not answer."""

    async def ask_all(self, request: RequestFor[Any]) -> list[Any]:
        raise Unavailable("keeper 0 does not answer", 5)


async def test_the_index_is_there_when_no_keeper_answers() -> None:
    async with WorldMesh(Spoken(says("done"))) as mesh:
        app = http_app(Deaf(mesh), mesh.config, b"secret")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
            assert (await http.get("/")).json()["waiting"] == {"total": None, "newest": []}
            page = await http.get("/", headers={"Accept": CHROME})
    assert page.status_code == 200
    assert "not known just now" in page.text


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (CHROME, True),
        ("text/html", True),
        ("text/html;q=0.5, application/json", False),
        ("application/json, text/html", False),
        ("text/html, application/json;q=0.5", True),
        ("text/html;q=0", False),
        ("text/html;q=x", False),
        ("*/*", False),
        ("", False),
        ("application/json", False),
    ],
)
def test_html_is_for_who_asks_for_it(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html

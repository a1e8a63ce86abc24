"""What a web page can do to the API through the browser of a person who reaches it, in a real Chromium."""

import hashlib
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from tests.web import chromium
from tests.worlds.live import LiveMesh, Spoken
from tests.worlds.mesh import SIMPLE, calls, says

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN_MS = 30_000
PAGE = "<!doctype html><title>a page</title><iframe name=hidden></iframe>"
ELSEWHERE = "http://pages.example:3000"
ARGUMENTS = (
    "--host-resolver-rules=MAP * 127.0.0.1",
    # A Chromium of today asks the person before a page may reach this machine at all. Others do not.
    "--disable-features=LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
)

READ = """async url => {
  try { const answer = await fetch(url); return [answer.status, await answer.text()]; }
  catch { return [0, ""]; }
}"""
LISTEN = """url => new Promise(resolve => {
  const source = new EventSource(url);
  source.onopen = () => { source.close(); resolve("open"); };
  source.onerror = () => { source.close(); resolve("refused"); };
})"""
POST = """async ([url, body]) => {
  try {
    const headers = {"Content-Type": "text/plain"};
    const answer = await fetch(url, {method: "POST", mode: "no-cors", headers, body});
    return answer.type;
  } catch { return "failed"; }
}"""
SUBMIT = """([url, name, value]) => new Promise(resolve => {
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: url, enctype: "text/plain", target: "hidden"});
  const field = document.createElement("input");
  Object.assign(field, {name, value});
  form.append(field);
  document.body.append(form);
  document.querySelector("iframe").onload = () => resolve(true);
  form.submit();
})"""
SEND_JSON = """async ([url, headers]) => {
  try {
    const body = JSON.stringify({message: "hello"});
    const sent = {"Content-Type": "application/json", ...headers};
    const answer = await fetch(url, {method: "POST", headers: sent, body});
    return [answer.status, answer.headers.get("x-session-id"), await answer.text()];
  } catch { return [0, null, ""]; }
}"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    executable = chromium.path()
    if executable is None:
        pytest.skip(chromium.WANTED)
    async with async_playwright() as playwright:
        arguments = [*chromium.options(), *ARGUMENTS]
        found = await playwright.chromium.launch(executable_path=executable, args=arguments)
        yield found
        await found.close()


async def page_at(browser: Browser, origin: str) -> Page:
    """A page of an origin, wherever that really is."""
    page = await browser.new_page()
    page.set_default_timeout(WITHIN_MS)
    address = f"{origin}/page.html"
    await page.route(address, lambda route: route.fulfill(body=PAGE, content_type="text/html"))
    await page.goto(address)
    return page


def waiting(live: LiveMesh, message_id: str) -> dict[str, Any]:
    """A task that waits for a person, begun by a program."""
    message = {"messageId": message_id, "role": "ROLE_USER", "parts": [{"text": "add seven"}]}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    answer = httpx.post(f"{live.url}/a2a", json=body, headers={"A2A-Version": "1.0"}).json()
    task: dict[str, Any] = answer["result"]["task"]
    return task


def plain_hash(message_id: str) -> str:
    """The id that anybody could compute from a message id."""
    digest = hashlib.sha256(f"\0{message_id}".encode()).digest()
    return str(uuid.UUID(bytes=digest[:16], version=4))


def yes(task: str) -> str:
    message = {"role": "user", "parts": [{"type": "text", "text": "yes"}]}
    return json.dumps(
        {"jsonrpc": "2.0", "id": 2, "method": "message/send", "params": {"taskId": task, "message": message}}
    )


def conversations(live: LiveMesh) -> list[Any]:
    found: list[Any] = httpx.get(f"{live.url}/conversations").json()["conversations"]
    return found


@pytest.mark.parametrize("elsewhere", [ELSEWHERE, "http://127.0.0.1:{port}"], ids=["cross-site", "same-site"])
async def test_a_page_of_another_origin_reads_writes_and_decides_nothing(
    browser: Browser, elsewhere: str
) -> None:
    with LiveMesh(Spoken(calls(("add", {"n": 7})), says("Added."))) as live:
        message_id = str(uuid.uuid4())
        task = waiting(live, message_id)
        approval = task["status"]["message"]["messageId"]
        page = await page_at(browser, elsewhere.format(port=3000))
        for path in (
            "/conversations",
            f"/conversations/{task['id']}",
            "/tree",
            "/.well-known/agent-card.json",
        ):
            assert await page.evaluate(READ, live.url + path) == [0, ""], path
        for path in ("/events", f"/conversations/{task['id']}/events?after=0"):
            assert await page.evaluate(LISTEN, live.url + path) == "refused", path
        await page.evaluate(POST, [f"{live.url}/conversations", '{"message": "hello"}'])
        await page.evaluate(SUBMIT, [f"{live.url}/conversations", '{"message": "hello", "x": "', '"}'])
        assert (await page.evaluate(SEND_JSON, [f"{live.url}/conversations", {}]))[0] == 0
        assert len(conversations(live)) == 1
        await page.evaluate(POST, [f"{live.url}/approvals/{approval}", '{"approved": true}'])
        await page.evaluate(SUBMIT, [f"{live.url}/approvals/{approval}", '{"approved": true, "x": "', '"}'])
        await page.evaluate(POST, [f"{live.url}/a2a", yes(plain_hash(message_id))])
        await page.evaluate(POST, [f"{live.url}/a2a", yes(task["id"])])
        await page.evaluate(
            POST, [f"{live.url}/api/sessions/{task['id']}/approvals/{approval}", '{"approved": true}']
        )
        assert live.mesh.ledger.lines == []


async def test_a_page_whose_name_comes_to_mean_this_machine_reads_writes_and_decides_nothing(
    browser: Browser,
) -> None:
    with LiveMesh(Spoken(calls(("add", {"n": 7})), says("Added."))) as live:
        task = waiting(live, str(uuid.uuid4()))
        approval = task["status"]["message"]["messageId"]
        rebound = f"http://rebound.example:{live.port}"
        page = await page_at(browser, rebound)  # to the browser it is of the very origin that it asks
        for path in ("/conversations", "/openapi.json", "/docs", "/health", "/.well-known/agent-card.json"):
            status, text = await page.evaluate(READ, rebound + path)
            assert (status, "allowed_hosts" in text) == (421, True), path
        assert (
            await page.evaluate(LISTEN, f"{rebound}/conversations/{task['id']}/events?after=0") == "refused"
        )
        assert (await page.evaluate(SEND_JSON, [f"{rebound}/conversations", {}]))[0] == 421
        await page.evaluate(POST, [f"{rebound}/approvals/{approval}", '{"approved": true}'])
        await page.evaluate(POST, [f"{rebound}/a2a", yes(task["id"])])
        assert live.mesh.ledger.lines == []
        assert len(conversations(live)) == 1


async def test_a_page_of_an_origin_that_the_config_lists_may_do_what_a_program_may(browser: Browser) -> None:
    with LiveMesh(Spoken(says("Hello.")), SIMPLE + f"cors: {{origins: ['{ELSEWHERE}']}}\n") as live:
        listed, other = await page_at(browser, ELSEWHERE), await page_at(browser, "http://other.example:3000")
        # The header makes the browser ask beforehand.
        sent = [f"{live.url}/conversations", {"X-Session-ID": "s-1", "Idempotency-Key": "k"}]
        assert (await other.evaluate(SEND_JSON, sent))[0] == 0
        status, session, text = await listed.evaluate(SEND_JSON, sent)
        assert (status, session) == (201, "s-1")
        conversation = json.loads(text)["conversation"]["id"]
        assert (await listed.evaluate(READ, f"{live.url}/conversations/{conversation}"))[0] == 200
        assert (
            await listed.evaluate(LISTEN, f"{live.url}/conversations/{conversation}/events?after=0") == "open"
        )
        assert (await other.evaluate(READ, f"{live.url}/conversations/{conversation}"))[0] == 0
        assert (await listed.evaluate(READ, f"{live.url}/conversations/none"))[0] == 404, (
            "errors are readable"
        )


async def test_the_documents_open_by_a_link_from_another_page_and_work_there(browser: Browser) -> None:
    with LiveMesh(Spoken(says("Hello."))) as live:
        page = await page_at(browser, ELSEWHERE)
        await page.evaluate("url => { location.href = url; }", f"{live.url}/docs")
        await page.wait_for_url(f"{live.url}/docs")
        await page.get_by_text("Talk to the agent").wait_for()  # it came by /openapi.json, of the same origin
        assert (await page.evaluate(SEND_JSON, ["/conversations", {}]))[0] == 201
        await page.goto(f"{ELSEWHERE}/page.html")
        async with page.expect_response(f"{live.url}/docs") as framed:
            await page.evaluate("url => { document.querySelector('iframe').src = url; }", f"{live.url}/docs")
        assert (await framed.value).status == 403, "no page may put it into a frame"


async def test_no_page_frames_the_mesh_where_a_browser_does_not_say_whose_page_asks(browser: Browser) -> None:
    """Browsers send Sec-Fetch-Site over HTTPS and to this machine alone."""
    with LiveMesh(Spoken(says("Hello.")), SIMPLE + "allowed_hosts: [mesh.example]\n") as live:
        there = f"http://mesh.example:{live.port}"
        for path in ("/", "/docs", "/conversations"):
            page = await page_at(browser, ELSEWHERE)
            async with page.expect_response(there + path) as framed:
                await page.evaluate("url => { document.querySelector('iframe').src = url; }", there + path)
            answer = await framed.value
            assert "sec-fetch-site" not in await answer.request.all_headers()
            assert (answer.status, await answer.header_value("x-frame-options")) == (200, "DENY"), path

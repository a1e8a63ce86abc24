"""One Chromium for the whole session; a mesh, a web chat and a browser of its own for each test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from mesh.llm.port import Llm
from tests.web import chromium
from tests.web.world import WITHIN_MS, Person, serving
from tests.worlds.live import LiveMesh
from tests.worlds.mesh import SIMPLE

OpenStage = Callable[..., Awaitable[tuple[LiveMesh, Person]]]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "servers_go_away: requests of the page may fail, as the browser notes")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    executable = chromium.path()
    if executable is None:
        pytest.skip(chromium.WANTED)
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=executable, args=chromium.options())
        yield found
        await found.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A page that can import the modules of the web chat, and shows nothing."""
    async with serving("http://127.0.0.1:9") as url:
        context = await browser.new_context()
        page = await context.new_page()
        await page.goto(f"{url}/static/vendor/README.md")
        yield page
        await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def stage(browser: Browser, request: pytest.FixtureRequest) -> AsyncIterator[OpenStage]:
    """Starts a mesh with a model, the web chat before it, and opens its page. Whatever a page complains of
    fails the test; the marker ``servers_go_away`` allows requests that fail."""
    complaints: list[str] = []

    async def opened(llm: Llm, config: str = SIMPLE, **options: Any) -> tuple[LiveMesh, Person]:
        live = everything.enter_context(LiveMesh(llm, config))
        url = await everything.enter_async_context(serving(live.url))
        context = await everything.enter_async_context(await browser.new_context(**options))
        context.set_default_timeout(WITHIN_MS)
        _listen(context, complaints)
        page = await context.new_page()
        await page.goto(url)
        return live, Person(page)

    async with AsyncExitStack() as everything:  # the browser leaves first, then the servers
        yield opened
    if request.node.get_closest_marker("servers_go_away"):
        complaints = [each for each in complaints if "Failed to load resource" not in each]
    assert not complaints


def _listen(context: BrowserContext, complaints: list[str]) -> None:
    def note(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            complaints.append(f"{message.type}: {message.text}")

    context.on("console", note)
    context.on("weberror", lambda error: complaints.append(f"error: {error.error}"))

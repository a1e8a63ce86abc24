"""The web chat before a real mesh, and a person in a real browser before it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import Any

import uvicorn
from playwright.async_api import Locator, Page, expect

from mesh.core.events import Event, LlmCall
from mesh.llm.port import LlmRequest
from mesh.web.app import app
from mesh.web.config import WebConfig
from tests.worlds.live import Spoken
from tests.worlds.ports import free_port

WITHIN_S = 30.0
WITHIN_MS = WITHIN_S * 1000
expect.set_options(timeout=WITHIN_MS)


class _Quiet(uvicorn.Server):
    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


@asynccontextmanager
async def serving(agent_url: str, **config: Any) -> AsyncIterator[str]:
    """The web chat for a mesh, listening. Its address."""
    said = WebConfig(agent_url=agent_url, port=free_port(), **config)
    settings = uvicorn.Config(
        app(said),
        said.host,
        said.port,
        log_level="critical",
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    server = _Quiet(settings)
    task = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(WITHIN_S):
            while not server.started:
                assert not task.done(), "the web chat did not start"
                await asyncio.sleep(0.01)
        yield f"http://{said.host}:{said.port}"
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, WITHIN_S)


class Cast(Spoken):
    """Each node of a tree answers for itself: by its system prompt, then in order."""

    def __init__(self, **roles: list[LlmCall]) -> None:
        super().__init__()
        self.roles = {name: Spoken(*answers) for name, answers in roles.items()}

    async def stream(self, request: LlmRequest) -> AsyncIterator[Event]:
        async for event in self.roles[request.system].stream(request):
            yield event


class Gate:
    """Holds a streaming model before a word until it is opened. Both ends may be in different threads."""

    def __init__(self, word: str) -> None:
        self.word = word
        self.is_open = asyncio.Event()

    async def __call__(self, word: str) -> None:
        if word == self.word:
            await asyncio.wait_for(self.is_open.wait(), WITHIN_S)


class Person:
    """Somebody before the page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.message = page.get_by_role("textbox", name="Message")
        self.turns = page.get_by_role("article")
        self.cards = page.get_by_role("region", name="Approval:")
        self.panel = page.get_by_role("complementary", name="Agent")
        self.list = page.get_by_role("complementary", name="Conversations")

    async def another_tab(self) -> "Person":
        """The same address in a tab of the same browser."""
        page = await self.page.context.new_page()
        await page.goto(self.page.url)
        return Person(page)

    @property
    def conversation_id(self) -> str:
        """The conversation that is shown."""
        return self.page.url.partition("#")[2]

    @property
    def turn(self) -> Locator:
        """The newest turn."""
        return self.turns.last

    async def say(self, text: str) -> None:
        await self.message.fill(text)
        await self.message.press("Enter")

    async def sees(self, text: str) -> None:
        """Waits until the newest turn shows a text."""
        await expect(self.turn).to_contain_text(text, timeout=WITHIN_MS)

    async def sees_cards(self, number: int) -> None:
        await expect(self.cards).to_have_count(number, timeout=WITHIN_MS)

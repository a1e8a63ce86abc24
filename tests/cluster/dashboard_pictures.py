"""Takes the pictures of the Ray dashboard: python -m tests.cluster.dashboard_pictures [FOLDER]

A real mesh with a tree, the Chromium of this machine. It says which files it wrote.
"""

import asyncio
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from playwright.async_api import Browser, Page, ViewportSize, async_playwright, expect

from tests.web import chromium
from tests.web.screenshots import FOLDER
from tests.worlds.process import MeshProcess, running

TOKEN = "d" * 64
WITHIN_MS = 60_000
BRANCHES = [{"name": name, "type": "llm"} for name in ("security", "style", "tests")]
RELEASE = {
    "name": "release",
    "type": "sequential",
    "agents": [{"name": "plan", "type": "llm"}, {"name": "checks", "type": "parallel", "agents": BRANCHES}],
}
CONFIG = {
    "name": "release",
    "llm": {"model": "offline"},
    "agent": RELEASE,
    "mcp_servers": [{"name": "resources", "command": "mcp-resources", "args": ["--db", "resources.db"]}],
}
SERVE: ViewportSize = {"width": 1400, "height": 560}
ACTORS: ViewportSize = {"width": 2100, "height": 1090}


@asynccontextmanager
async def opened(browser: Browser, dashboard: str, name: str, size: ViewportSize) -> AsyncIterator[Page]:
    """A page of the dashboard."""
    context = await browser.new_context(viewport=size, base_url=dashboard)
    await context.add_cookies([{"name": "ray-authentication-token", "value": TOKEN, "url": dashboard}])
    page = await context.new_page()
    await page.goto(f"/#/{name}")
    yield page
    await context.close()


async def pictures(dashboard: str, folder: Path) -> None:
    """Takes all of them."""
    executable = chromium.path()
    if executable is None:
        raise SystemExit(chromium.WANTED)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=executable, args=chromium.options())
        async with opened(browser, dashboard, "actors", ACTORS) as page:
            await page.get_by_label("Name", exact=True).fill("release@")
            await expect(page.get_by_text("0.1.2:tests")).to_be_visible(timeout=WITHIN_MS)
            await expect(page.get_by_text("SERVE_CONTROLLER_ACTOR")).to_be_hidden(timeout=WITHIN_MS)
            await page.screenshot(path=str(folder / "ray-actors.png"))
        async with opened(browser, dashboard, "serve", SERVE) as page:
            await expect(page.get_by_text("Gateway").first).to_be_visible(timeout=WITHIN_MS)
            await page.screenshot(path=str(folder / "ray-serve.png"))
        await browser.close()
    sys.stdout.write(f"{folder / 'ray-actors.png'}\n{folder / 'ray-serve.png'}\n")


def main() -> None:
    """See the module."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    with tempfile.TemporaryDirectory(prefix="mesh-pictures-") as scratch:
        env = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, "MESH_DASHBOARD": "1"}
        mesh = MeshProcess(Path(scratch), CONFIG, env)
        with running(mesh):
            (dashboard,) = re.findall(r"Ray dashboard +(http://\S+:\d+)", mesh.log.read_text())
            asyncio.run(pictures(dashboard, folder))


if __name__ == "__main__":
    main()

"""Tool calls that say how far they have come, and those that are broken off."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from mesh.core.events import ToolProgress, ToolResult
from mesh.keeper.requests import Cancel
from mesh.mcp.memory import progress
from mesh.mcp.progress import Progress
from tests.keeper.test_watching import Watcher
from tests.worlds.mesh import ScriptedLlm, WorldMesh, calls, says, until

LOOK = calls(("look", {}))


class Tool:
    """What ``look`` does instead: begins, waits for ``go``, and notes if it was broken off."""

    def __init__(self) -> None:
        self.began, self.go = asyncio.Event(), asyncio.Event()
        self.was_broken_off = False

    async def __call__(self, _: dict[str, Any]) -> str:
        self.began.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.was_broken_off = True
            raise
        return "looked"


@asynccontextmanager
async def mesh_with(
    look: Callable[[dict[str, Any]], Awaitable[str]], *, read_only: bool = True
) -> AsyncIterator[WorldMesh]:
    async with WorldMesh(ScriptedLlm(LOOK, says("done"))) as mesh:
        mesh.ledger.offered.offer(
            (replace(tool, read_only=read_only), look) if tool.name == "look" else (tool, function)
            for tool, function in mesh.ledger.pairs()
        )
        (toolbox,) = mesh.tree.toolboxes

        async def is_noticed() -> bool:
            return toolbox.tools["look"].read_only is read_only

        await until(is_noticed)
        yield mesh


async def test_those_who_watch_see_how_far_a_call_has_come() -> None:
    async def look(_: dict[str, Any]) -> str:
        for done in (1, 2):
            progress.get()(Progress(done / 2, f"page {done}"))
            await until(partial(has_seen, done))
        return "looked"

    async def has_seen(number: int) -> bool:
        return watcher.names.count("tool_progress") == number

    async with mesh_with(look) as mesh:
        _, body = await mesh.create()
        watcher = Watcher(mesh, body["conversation"]["id"])
        await watcher.read()
        saying = asyncio.create_task(mesh.say(body["conversation"]["id"], "go"))
        await watcher.until("completed")
        await saying
    shown = [event for event in watcher.events if event["type"] == "tool_progress"]
    assert [(e["step"], e["tool"], e.get("progress"), e["message"]) for e in shown] == [
        ("0/tool/0.0", "look", 0.5, "page 1"),
        ("0/tool/0.0", "look", 1.0, "page 2"),
    ]
    assert not any("seq" in event for event in shown)
    assert watcher.names.index("tool_progress") < watcher.names.index("tool_result")


async def test_where_nobody_watches_nothing_is_asked_or_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def look(_: dict[str, Any]) -> str:
        progress.get()(Progress(0.5, "half"))
        return "looked"

    async with mesh_with(look) as mesh:
        session, call = mesh.ledger.offered, mesh.ledger.offered.call

        async def noted(*args: Any, on_progress: Any = None, **more: Any) -> Any:
            asked.append(args[5] if len(args) > 5 else on_progress)
            return await call(*args, **more)

        monkeypatch.setattr(session, "call", noted)
        _, body = await mesh.create("go")
        events = await mesh.journal.read(body["conversation"]["id"])
    assert asked == [None]
    assert not any(isinstance(event, ToolProgress) for event in events)


async def test_a_cancelled_turn_breaks_off_a_read_only_call() -> None:
    look = Tool()
    async with mesh_with(look) as mesh:
        _, body = await mesh.create()
        id = body["conversation"]["id"]
        saying = asyncio.create_task(mesh.say(id, "go"))
        await asyncio.wait_for(look.began.wait(), 30)
        await asyncio.wait_for(mesh.ask(Cancel(id)), 30)
        await saying
        assert look.was_broken_off
        assert (await mesh.show(id))["turn"]["state"] == "cancelled"


async def test_a_cancelled_turn_waits_for_a_call_that_changes_something_though_it_may_be_repeated() -> None:
    look = Tool()
    async with mesh_with(look, read_only=False) as mesh:
        _, body = await mesh.create()
        id = body["conversation"]["id"]
        saying = asyncio.create_task(mesh.say(id, "go"))
        await asyncio.wait_for(look.began.wait(), 30)
        cancelling = asyncio.create_task(mesh.ask(Cancel(id)))
        await asyncio.wait({cancelling}, timeout=0.05)
        assert not cancelling.done()
        look.go.set()
        await asyncio.gather(cancelling, saying)
        assert not look.was_broken_off
        assert (await mesh.show(id))["turn"]["state"] == "cancelled"
        results = [e for e in await mesh.journal.read(id) if isinstance(e, ToolResult)]
    assert [result.content for result in results] == ["looked"]

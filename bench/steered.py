"""S15: what people cost who look at a thousand agents of one turn and step in.

The model of the agents never answers: it notes when each call begins, and when the mesh breaks it off.
"""

import asyncio
import random
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import uvloop

from bench.cpu import seconds_by_name
from bench.figures import Bench
from bench.many_agents import FEW, LATENCY_S, MANY, ROUNDS, by_map, by_spawn, ms_each, rules, turn
from bench.world import World, running

DELETED = 100
COMMENTS = 100
_WITHIN_S = 60.0
_TASK = re.compile(rb"city \d+")
_LENGTH = re.compile(rb"content-length: (\d+)", re.I)


def steered(bench: Bench, scratch: Path) -> None:
    """All of it."""
    with _hanging_model() as model:
        hanging = by_spawn()
        hanging["name"] = "steered"
        hanging["agent"]["agents"][0]["model"] = "anthropic:stub"
        env = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{model.port}", "ANTHROPIC_API_KEY": "none"}
        with running(
            scratch / "steered", latency_s=LATENCY_S, rules=rules(), others=[by_map(), hanging], env=env
        ) as (world, _):
            uvloop.run(_step_in(bench, world, model))
            _followed(bench, world)


class _HangingModel:
    """A server whose answers never come. ``begun`` are the calls that are open, by the task in them;
    ``broken_off`` says when each of them was."""

    def __init__(self) -> None:
        self.port = 0
        self.begun: set[str] = set()
        self.broken_off: dict[str, float] = {}

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        async with await asyncio.start_server(self._hang, "127.0.0.1", 0, backlog=2 * MANY) as server:
            self.port = server.sockets[0].getsockname()[1]
            ready.set()
            await stop.wait()

    async def _hang(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            task = _TASK.search(body)
            assert task is not None
            name = task[0].decode()
            self.begun.add(name)
            await reader.read(1)  # nothing, once it is closed
            self.broken_off[name] = time.perf_counter()
        writer.close()


@contextmanager
def _hanging_model() -> Iterator[_HangingModel]:
    """The model, in a thread of its own."""
    model, ready, stop = _HangingModel(), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(model.serve(ready, stop),), daemon=True)
    thread.start()
    if not ready.wait(10):
        raise RuntimeError("the hanging model does not start")
    try:
        yield model
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)


async def _step_in(bench: Bench, world: World, model: _HangingModel) -> None:
    """How long it takes until a call is broken off, and what a comment costs, with few agents and with
    many."""
    cpu: dict[int, float] = {}
    for count in (FEW, MANY):
        async with _at_work(world, model, count) as (client, agents):
            before = seconds_by_name(world.mesh)
            for agent in random.Random(7).sample(sorted(agents.values()), COMMENTS):
                await _intervene(client, agent, {"action": "comment", "text": "Only the last two years."})
            used = seconds_by_name(world.mesh)
            cpu[count] = 1000 * (sum(used.values()) - sum(before.values())) / COMMENTS
            if count == MANY:
                took = sorted([await _deleted(client, model, *item) for item in [*agents.items()][:DELETED]])
                bench.add(
                    "S15",
                    f"delete to the aborted call, {MANY} agents at work",
                    "p99 ≤ 200 ms",
                    p50_ms=round(1000 * took[len(took) // 2], 1),
                    p99_ms=round(1000 * took[int(len(took) * 0.99) - 1], 1),
                    worst_ms=round(1000 * took[-1], 1),
                )
    bench.add(
        "S15",
        f"a comment with {MANY} agents at work / with {FEW}",
        "≤ 1.5",
        cpu_ratio=round(cpu[MANY] / cpu[FEW], 2),
        cpu_ms=round(cpu[MANY], 2),
        cpu_ms_of_100=round(cpu[FEW], 2),
    )


@asynccontextmanager
async def _at_work(
    world: World, model: _HangingModel, count: int
) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, str]]]:
    """A turn whose agents all wait for the model: their ids, by task. It is cancelled at the end."""
    model.begun.clear()
    model.broken_off.clear()
    url = f"http://127.0.0.1:{world.mesh.port}/steered"
    async with httpx.AsyncClient(base_url=url, timeout=_WITHIN_S) as client:
        begun = await client.post(
            "/conversations", json={"message": str(count)}, headers={"Prefer": "respond-async"}
        )
        conversation = begun.json()["conversation"]["id"]
        deadline = time.monotonic() + _WITHIN_S
        while len(model.begun) < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(model.begun)} of {count} agents ask the model")
            await asyncio.sleep(0.1)
        tree: dict[str, Any] = (
            await client.get(f"/agent/tree?conversation={conversation}&limit=1000")
        ).json()
        yield client, {agent["userContent"]: id for id, agent in tree.items() if agent["parentId"]}
        await client.post(f"/conversations/{conversation}/cancel")


async def _deleted(client: httpx.AsyncClient, model: _HangingModel, task: str, agent: str) -> float:
    """The seconds from the request to delete an agent to the end of its model call."""
    began = time.perf_counter()
    await _intervene(client, agent, {"action": "delete"})
    while task not in model.broken_off:
        if time.perf_counter() > began + _WITHIN_S:
            raise RuntimeError(f"the call of {task} is not broken off")
        await asyncio.sleep(0.001)
    return model.broken_off[task] - began


async def _intervene(client: httpx.AsyncClient, agent: str, body: dict[str, str]) -> None:
    answer = await client.post(f"/agent/{agent}/intervene", json=body)
    if answer.status_code != 200:
        raise RuntimeError(answer.text)


def _followed(bench: Bench, world: World) -> None:
    """CPU of a turn with and without somebody who follows its tree, in turn."""
    alone, followed = [], []
    for _ in range(ROUNDS):
        for rounds, follows in ((alone, False), (followed, True)):
            before = seconds_by_name(world.mesh)
            uvloop.run(_turn_followed(world, follows=follows))
            rounds.append(ms_each(world, before, MANY))
    bench.add(
        "S15",
        f"a turn of {MANY} agents whose tree is followed / not followed",
        "≤ 1.05",
        cpu_ratio=round(min(followed) / min(alone), 3),
        cpu_ms_child_followed=round(min(followed), 2),
        cpu_ms_child=round(min(alone), 2),
    )


async def _turn_followed(world: World, *, follows: bool) -> None:
    following = asyncio.create_task(_follow(world)) if follows else None
    await turn(world, "map", MANY)
    if following is not None:
        await following


async def _follow(world: World) -> None:
    """Reads the tree until the root agent of the turn has ended."""
    url, accept = f"http://127.0.0.1:{world.mesh.port}/map/agent/tree", {"accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(timeout=_WITHIN_S) as client,
        client.stream("GET", url, headers=accept) as response,
    ):
        async for line in response.aiter_lines():
            if '"parentId":null' in line and '"completed"' in line:
                return

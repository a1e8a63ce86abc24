"""Streams through the real edge: what happens to them when the edge changes."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.cluster.rest import created
from tests.cluster.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

WITHIN_S = 120.0
STREAMS = 10
REDEPLOYED = """
import os, sys
from pathlib import Path
import ray
from ray import serve
from deployments.app import build
from deployments.blueprint import blueprint_of
from mesh.config.model import load
from mesh.http.landing_page import Links
ray.init(sys.argv[1], namespace="mesh", log_to_driver=False)
config = load(Path(sys.argv[2]), os.environ)
app = build(blueprint_of(config, one_machine=True), Links())
serve.run(app, name=config.name, route_prefix="/", blocking=False)
"""


class Watcher:
    """A client that watches one conversation and comes back with ``Last-Event-ID`` whenever it is cut off."""

    def __init__(self, http: httpx.AsyncClient, conversation_id: str) -> None:
        self._http = http
        self._path = f"/conversations/{conversation_id}/events"
        self.numbers: list[int] = [1]
        self.connections = 0
        self.answers = 0
        self.news = asyncio.Event()

    async def watch(self) -> None:
        while True:
            try:
                headers = {"Last-Event-ID": str(self.numbers[-1])}
                async with self._http.stream("GET", self._path, headers=headers) as response:
                    if response.status_code == 200:
                        self.connections += 1
                        await self._read(response)
            except httpx.TransportError:
                await asyncio.sleep(0.05)

    async def _read(self, response: httpx.Response) -> None:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = msgspec.json.decode(line[6:])
                self.numbers += [event["seq"]] if "seq" in event else []
                self.answers += event["type"] == "completed"
                self.news.set()


def redeploy(world: World) -> None:
    """A new version of the edge takes the place of the old one, as another program would order it."""
    raylet = world.mesh.find("raylet/raylet ")[0]
    address = re.search(r"--gcs-address=(\S+)", " ".join(raylet.cmdline()))
    assert address
    subprocess.run(
        [sys.executable, "-c", REDEPLOYED, address[1], str(world.mesh.config)],
        env={**os.environ, **raylet.environ(), "RAY_AUTH_MODE": "token"},
        cwd=Path(__file__).parent.parent.parent,
        check=True,
        timeout=WITHIN_S,
        capture_output=True,
    )


async def talk(http: httpx.AsyncClient, conversation_id: str, over: asyncio.Event) -> int:
    """Says something again and again; how many answers there were."""
    said = 0
    while not over.is_set():
        key = {"Idempotency-Key": f"{conversation_id}-{said}"}
        try:
            path = f"/conversations/{conversation_id}/messages"
            response = await http.post(path, json={"message": "sleep 0.2"}, headers=key)
        except httpx.TransportError:
            continue
        said += response.status_code == 200
    return said


async def test_streams_survive_a_redeployment_and_the_death_of_the_edge(
    world: World, api: httpx.Client
) -> None:
    ids = [created(api)["conversation"]["id"] for _ in range(STREAMS)]
    over = asyncio.Event()
    async with (
        asyncio.timeout(WITHIN_S),
        httpx.AsyncClient(base_url=world.mesh.url, timeout=30) as http,
    ):
        watchers = [Watcher(http, conversation_id) for conversation_id in ids]
        tasks = [asyncio.create_task(watcher.watch()) for watcher in watchers]
        talking = [asyncio.create_task(talk(http, conversation_id, over)) for conversation_id in ids]
        try:
            await asyncio.gather(*(watcher.news.wait() for watcher in watchers))
            await asyncio.to_thread(redeploy, world)
            # While streams of before are open, HAProxy's process of before drains beside the new one.
            assert world.mesh.kill("haproxy -db") >= 1
            await asyncio.to_thread(world.mesh.wait_ready, 60)
            over.set()
            said = await asyncio.gather(*talking)
            for watcher, answers in zip(watchers, said, strict=True):
                while watcher.answers < answers:
                    watcher.news.clear()
                    await watcher.news.wait()
        finally:
            for task in (*tasks, *talking):
                task.cancel()
            await asyncio.gather(*tasks, *talking, return_exceptions=True)
    logs = [api.get(f"/conversations/{conversation_id}/log").text.splitlines() for conversation_id in ids]  # noqa: ASYNC212
    for watcher, log in zip(watchers, logs, strict=True):
        assert watcher.numbers == [msgspec.json.decode(line)["seq"] for line in log]
        assert watcher.connections > 1

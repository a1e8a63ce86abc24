"""The log of ``mesh up`` on stderr: what matters is there, wherever it happened."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from mesh.journal.files import FileJournal
from tests.cluster.client import Client
from tests.cluster.model import Model
from tests.cluster.person import Person, Told
from tests.cluster.rest import until
from tests.cluster.world import World
from tests.worlds.process import running

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]

_WITHIN_S = 120.0


def test_trouble_of_every_kind_is_told_and_nothing_else_at_the_level_of_warnings(
    folder: Path, model: Model
) -> None:
    options = ("--log-format", "json", "--log-level", "warning")
    world = World(folder, model, options=options, limits={"max_queue_per_conversation": 1})
    with running(world.mesh), Client(world.mesh.url) as client:
        person = Person(client, world.lines)
        told = person.open()
        person.append(told)
        assert logged(world) == []

        with ThreadPoolExecutor(4) as at_once:
            assert 429 in set(at_once.map(partial(said, world, told), ["sleep 1"] * 4))
        refused = first(world, "refused")
        assert refused["level"] == "WARNING" and refused["status"] == "429"
        assert "wait already" in refused["why"]

        asyncio.run(another_keeper_opens_the_shard(world))
        client.post("/conversations", {})
        assert first(world, "fenced")["level"] == "ERROR"
        world.mesh.kill("ray::KeeperActor")
        restarted = first(world, "actor_restarted")
        assert restarted["level"] == "WARNING" and restarted["actor"] == "ledger-agent#1/keeper/0"

        world.mesh.wait_ready(_WITHIN_S)
        damage(world, told)
        world.mesh.kill("ray::KeeperActor")
        damaged = first(world, "journal_damaged")
        assert damaged["level"] == "ERROR" and damaged["conversation"] == told.conversation_id
        text = world.mesh.log.read_text()
        assert [line for line in told.lines if line in text] == []


def logged(world: World) -> list[dict[str, Any]]:
    """The lines of the log so far."""
    lines = world.mesh.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def first(world: World, event: str) -> dict[str, Any]:
    """The first line of this kind, as soon as there is one."""
    found = until(lambda: [line for line in logged(world) if line["event"] == event], _WITHIN_S)
    line: dict[str, Any] = found[0]
    return line


def said(world: World, told: Told, message: str) -> int:
    """The status of the answer to a message."""
    return httpx.post(
        f"{world.mesh.url}/conversations/{told.conversation_id}/messages",
        json={"message": message},
        timeout=_WITHIN_S,
    ).status_code


async def another_keeper_opens_the_shard(world: World) -> None:
    journal = FileJournal(world.mesh.data_dir)
    await journal.open(0)
    await journal.close()


def damage(world: World, told: Told) -> None:
    """Bit rot in the first line of a journal, which is to be read, as the index is gone."""
    (world.mesh.data_dir / "index3_0.json").unlink(missing_ok=True)
    path = world.mesh.data_dir / f"conversation_{told.conversation_id}.jsonl"
    content = bytearray(path.read_bytes())
    content[2:12] = b"\xff" * 10
    path.write_bytes(content)

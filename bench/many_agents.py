"""S14: a thousand agents of one turn, started by a map node and by a model, beside what others offer.

The peers run in a virtual environment of their own, in the same run: LangGraph's ``Send``, openai-agents
under ``asyncio.gather``, and the parallel agent of Google's ADK. Each child is one model call. A peer keeps
nothing on a disk, serves no requests and has one process; the mesh does what it always does.
"""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvloop

from bench.client import Connection
from bench.cpu import memory_mib, seconds_by_name
from bench.figures import Bench
from bench.load import Load
from bench.peers import Peer, peers
from bench.world import World, running
from tests.worlds.ports import free_port

LATENCY_S, LONG_S = 0.05, 2.0
FEW, MANY = 100, 1_000
ROUNDS = 2
Config = dict[str, Any]
_ROOM = {
    "limits": {"agents_at_once": MANY, "max_llm_calls": 5 * MANY, "max_result_bytes": 1_000_000},
    "budget": {"max_agents": 2 * MANY},
}


def many_agents(bench: Bench, scratch: Path) -> None:
    """All of it. Memory comes first: what a process has had once, it keeps."""
    others, port, agents = peers(), free_port(), [by_map(), by_spawn(), plain()]
    env = {"ANTHROPIC_BASE_URL": f"http://127.0.0.1:{port}", "ANTHROPIC_API_KEY": "none"}
    with running(scratch / "many", latency_s=LONG_S, rules=rules(), others=agents, env=env) as (world, _):
        for name in ("map", "spawn"):
            uvloop.run(turn(world, name, 10))
            uvloop.run(_memory(bench, world, name))
        world.restart_model(LATENCY_S)
        for name in ("map", "spawn"):
            _speed(bench, world, name, others)
        _watched(bench, world)
        with _another_model(port):
            _beside(bench, world)
        for name in ("map", "spawn"):
            _journal(bench, scratch / "many" / name, name)


# -- what is compared


def by_map() -> Config:
    """A list that a model writes, and a map over it."""
    child = {"name": "visit", "type": "llm", "prompt": "Visit {item}.", "tools": []}
    each = {"name": "each", "type": "map", "over": "list", "most": MANY, "agents": [child]}
    lists = {"name": "lists", "type": "llm", "model": "openai:lists", "output_key": "list", "tools": []}
    return {"name": "map", "agent": {"name": "all", "type": "sequential", "agents": [lists, each]}, **_ROOM}


def by_spawn() -> Config:
    """A model that starts agents in one call, and waits for all of them."""
    child = {"name": "visit", "type": "llm", "prompt": "Visit.", "description": "Visits.", "tools": []}
    lead = {
        "name": "lead",
        "type": "llm",
        "model": "openai:lead",
        "tools": [],
        "agents": [child],
        "spawn": {},
    }
    return {"name": "spawn", "agent": lead, **_ROOM}


def plain() -> Config:
    """One llm node, whose model is another process: the one of the many is busy with them."""
    return {"name": "plain", "llm": {"model": "anthropic:stub"}, "prompt": "You are measured."}


@contextmanager
def _another_model(port: int) -> Iterator[None]:
    command = [str(Path(sys.executable).with_name("mesh")), "llm-stub", "--port", str(port)]
    stub = subprocess.Popen([*command, "--latency", str(LATENCY_S)], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while not _listens(port):
            if time.monotonic() > deadline:
                raise RuntimeError("the model of the plain turns does not start")
            time.sleep(0.05)
        yield
    finally:
        stub.terminate()
        stub.wait(10)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def rules() -> dict[str, object]:
    """The message is how many agents there are to be. What no rule fits, the children, is echoed."""
    rules: list[object] = [
        {"match": {"model": "lead", "conversation_call": 2}, "answer": {"tool_calls": [{"name": "wait"}]}},
        {"match": {"model": "lead", "conversation_call": 3}, "answer": {"text": "done"}},
    ]
    for count in (10, FEW, MANY):
        items = [f"city {n}" for n in range(count)]
        message = f"^{count}$"
        plans = [{"agent": "visit", "task": item} for item in items]
        call = {"name": "spawn", "arguments": {"agents": plans}}
        rules += [
            {"match": {"model": "lists", "last": message}, "answer": {"text": json.dumps(items)}},
            {"match": {"model": "lead", "last": message}, "answer": {"tool_calls": [call]}},
        ]
    return {"rules": rules}


async def turn(world: World, name: str, count: int, connection: Connection | None = None) -> float:
    """The seconds that one turn with so many agents takes, in a new conversation."""
    own = connection or Connection("127.0.0.1", world.mesh.port)
    started = time.perf_counter()
    status, body = await own.post(f"/{name}/conversations", {"message": str(count)})
    took = time.perf_counter() - started
    if connection is None:
        own.close()
    if status != 201 or body["result"]["waiting_approval"] or "failed" in str(body["result"])[:200]:
        raise RuntimeError(f"{name}: {status}: {str(body)[:300]}")
    return took


# -- time and CPU


def _speed(bench: Bench, world: World, name: str, others: list[Peer]) -> None:
    """The best of some rounds at 100 and at 1,000; those of all sides alternate."""
    seen: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for count in (FEW, MANY):
            seen.setdefault((name, count), []).append(_round(world, name, count))
            for peer in others if name == "map" else ():
                seen.setdefault((peer.name, count), []).append(peer.run(world.port, count))
    for side in dict.fromkeys(side for side, _ in seen):
        few, many = (min(cpu for _, cpu in seen[side, count]) for count in (FEW, MANY))
        bench.add(
            "S14",
            f"{MANY} agents: {side}",
            "≤ 4 s, ≤ 4 ms, ≤ 1.2" if side == name else "",
            wall_s=round(min(wall for wall, _ in seen[side, MANY]), 2),
            cpu_ms_child=round(many, 2),
            cpu_ms_child_of_100=round(few, 2),
            cpu_1000_over_100=round(many / few, 2),
        )


def _round(world: World, name: str, count: int) -> tuple[float, float]:
    """Seconds, and milliseconds of CPU a child."""
    before = seconds_by_name(world.mesh)
    took = uvloop.run(turn(world, name, count))
    return took, ms_each(world, before, count)


def ms_each(world: World, before: Mapping[str, float], count: int) -> float:
    used = seconds_by_name(world.mesh)
    return 1000 * (sum(used.values()) - sum(before.values())) / count


# -- before the eyes of somebody, and beside others


def _watched(bench: Bench, world: World) -> None:
    """CPU a child with and without a watcher, in turn."""
    plain, watched = [], []
    for _ in range(ROUNDS):
        plain.append(_round(world, "map", MANY)[1])
        before = seconds_by_name(world.mesh)
        uvloop.run(_streamed(world.mesh.port, MANY))
        watched.append(ms_each(world, before, MANY))
    bench.add(
        "S14",
        "watched / not watched",
        "≤ 1.3",
        cpu_ratio=round(min(watched) / min(plain), 2),
        cpu_ms_child_watched=round(min(watched), 2),
        cpu_ms_child=round(min(plain), 2),
    )


async def _streamed(port: int, count: int) -> None:
    """A turn whose events are read as they come, to its end."""
    url, accept = f"http://127.0.0.1:{port}/map/conversations", {"accept": "text/event-stream"}
    ends = 0
    async with (
        httpx.AsyncClient(timeout=httpx.Timeout(60)) as client,
        client.stream("POST", url, json={"message": str(count)}, headers=accept) as response,
    ):
        async for line in response.aiter_lines():
            ends += line.startswith("data: ") and '"node_completed"' in line
    if ends < count:
        raise RuntimeError(f"the watcher saw {ends} ends")


def _beside(bench: Bench, world: World) -> None:
    """The p99 of plain turns, alone and while one turn with 1,000 agents follows the other."""
    alone, beside = uvloop.run(_plain(world, busy=False)), uvloop.run(_plain(world, busy=True))
    bench.add(
        "S14",
        f"a plain turn beside {MANY} agents / alone",
        "p99 ≤ 3",
        p99_ratio=round(beside / alone, 2),
        p99_ms=round(beside),
        p99_ms_alone=round(alone),
    )


async def _plain(world: World, *, busy: bool) -> float:
    load = Load(world.mesh.port, 1, agent="plain")
    await load.warm(10)
    stop = asyncio.Event()
    others = asyncio.create_task(_again_and_again(world, stop)) if busy else None
    outcome = await load.run(100)
    stop.set()
    if others is not None:
        await others
    load.close()
    if outcome.errors:
        raise RuntimeError(outcome.errors[0])
    return outcome.percentile(0.99)


async def _again_and_again(world: World, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await turn(world, "map", MANY)


# -- memory and journal


async def _memory(bench: Bench, world: World, name: str) -> None:
    """How much more memory there is at the most, while all of them wait for a model of 2 s."""
    before = most = memory_mib(world.mesh)
    running_turn = asyncio.create_task(turn(world, name, MANY))
    while not running_turn.done():
        most = max(most, await asyncio.to_thread(memory_mib, world.mesh))
        await asyncio.sleep(0.1)
    bench.add(
        "S14",
        f"model 2 s, {MANY} in flight: {name}",
        "≤ 80 KB a child",
        kb_a_child=round((most - before) * 1024 / MANY, 1),
        wall_s=round(await running_turn, 2),
        memory_mib=round(before),
    )


def _journal(bench: Bench, folder: Path, name: str) -> None:
    """Bytes of the journal that belong to a child, without the texts of its task and its answer."""
    events = [e for file in folder.rglob("conversation_*.jsonl") for e in _events(file)]
    starts = sum(e["type"] == "agent_started" for e in events)
    below = [e for e in events if _is_of_child(e.get("step", ""), name)]
    bench.add(
        "S14",
        f"journal, a child: {name}",
        "≤ 1,200 bytes",
        bytes=round(sum(map(_size, below)) / starts),
        children=starts,
    )


def _is_of_child(step: str, name: str) -> bool:
    return ("#" if name == "map" else "@") in step


def _size(event: Mapping[str, Any]) -> int:
    texts = [str(event.get(key, "")) for key in ("text", "task")]
    line = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return len(line) + 1 - sum(len(text.encode()) for text in texts)


def _events(journal: Path) -> Iterator[dict[str, Any]]:
    for line in journal.read_text("utf-8").splitlines():
        yield json.loads(line)

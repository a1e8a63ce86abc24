"""S7: streams. How soon the first text of a turn arrives, and what a delta costs when many watch.

A delta is a piece of text as the model sends it; pieces that come while others are on their way travel
together.
"""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.cpu import seconds_by_name
from bench.figures import Bench
from bench.world import World, running

LATENCY_S = 0.05
PIECES = 40
PIECE_S = 0.1
WATCHERS = 200
RULES = {
    "rules": [
        {
            "match": {"last": "speak"},
            "answer": {"text": " ".join(f"word{i}" for i in range(PIECES)), "chunk_delay": PIECE_S},
        }
    ]
}
_ASK = {"model": "stub", "stream": True, "messages": [{"role": "user", "content": "speak"}]}


@dataclass
class Heard:
    """What one stream brought: ``first_s`` from the request to the first text."""

    first_s: float
    pieces: int
    messages: int


def live(bench: Bench, scratch: Path) -> None:
    """First text at one client; CPU per delta with 200 conversations, each watched."""
    with running(scratch / "live", latency_s=LATENCY_S, rules=RULES) as (world, _):
        uvloop.run(_first_text(bench, world))
        uvloop.run(_many(bench, world))


async def _first_text(bench: Bench, world: World) -> None:
    alone = sorted([await _model(world) for _ in range(15)])
    await _turn(world)
    heard = sorted([(await _turn(world)).first_s for _ in range(15)])
    middle, last = len(alone) // 2, len(alone) - 1
    bench.add(
        "S7",
        "first text, model 50 ms, 1 client",
        "added ≤ 15 ms",
        added_p50_ms=round(1000 * (heard[middle] - alone[middle]), 1),
        added_worst_ms=round(1000 * (heard[last] - alone[middle]), 1),
        model_alone_ms=round(1000 * alone[middle], 1),
    )


async def _many(bench: Bench, world: World) -> None:
    before, started = seconds_by_name(world.mesh), time.perf_counter()
    heard = await asyncio.gather(*(_turn(world) for _ in range(WATCHERS)))
    wall = time.perf_counter() - started
    used = seconds_by_name(world.mesh) - before
    deltas = WATCHERS * PIECES
    bench.add(
        "S7",
        f"{WATCHERS} watched conversations",
        deltas_per_s=round(deltas / wall),
        wall_over_ideal=round(wall / (LATENCY_S + PIECES * PIECE_S), 2),
        cpu_ms_per_delta=round(1000 * sum(used.values()) / deltas, 3),
        deltas_per_message=round(deltas / sum(each.messages for each in heard), 2),
        first_p99_ms=round(1000 * sorted(each.first_s for each in heard)[int(0.99 * len(heard))]),
        errors=sum(each.pieces != PIECES for each in heard),
        cpu_by_process={name: round(1000 * s / deltas, 3) for name, s in used.most_common(8)},
    )


async def _turn(world: World) -> Heard:
    """A message whose turn is watched, over a connection of its own."""
    started, first, text, messages = time.perf_counter(), 0.0, "", 0
    async for data in _stream(world.mesh.port, "/conversations", {"message": "speak"}):
        event = json.loads(data)
        if event["type"] == "text_delta":
            first = first or time.perf_counter() - started
            text = text[: event.get("offset", 0)] + event["text"]
            messages += 1
    return Heard(first, len(text.split()), messages)


async def _model(world: World) -> float:
    """How long the model itself takes to its first text."""
    started = time.perf_counter()
    async for data in _stream(world.port, "/v1/chat/completions", _ASK):
        if data != b"[DONE]" and json.loads(data)["choices"][0]["delta"].get("content"):
            return time.perf_counter() - started
    raise AssertionError("the model said nothing")


async def _stream(port: int, path: str, body: dict[str, object]):  # type: ignore[no-untyped-def]
    """The data of each Server-Sent Event of an answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
    try:
        while line := await reader.readline():
            if line.startswith(b"data: "):
                yield line[6:].rstrip()
    finally:
        writer.close()

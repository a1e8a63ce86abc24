"""Loads: closed loops of clients, each with a conversation of its own."""

import asyncio
import time
from dataclasses import dataclass, field

from bench.client import Connection


@dataclass
class Outcome:
    """What a load saw. Latencies in seconds, of each turn."""

    latencies: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    wall_s: float = 0.0

    def percentile(self, share: float) -> float:
        """A latency in milliseconds."""
        ordered = sorted(self.latencies) or [float("nan")]
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def turns(port: int, clients: int, each: int, message: str = "hello", warm: int = 2) -> Outcome:
    """``clients`` clients at once, each with ``each`` turns of one conversation after ``warm`` more."""
    outcome = Outcome()
    connections = [Connection("127.0.0.1", port) for _ in range(clients)]
    ids = await asyncio.gather(*(_begin(connection, warm, message) for connection in connections))
    started = time.perf_counter()
    await asyncio.gather(
        *(_loop(c, i, each, message, outcome) for c, i in zip(connections, ids, strict=True))
    )
    outcome.wall_s = time.perf_counter() - started
    for connection in connections:
        connection.close()
    return outcome


async def _begin(connection: Connection, warm: int, message: str) -> str:
    _, body = await connection.post("/conversations", {})
    conversation_id: str = body["conversation"]["id"]
    for _ in range(warm):
        await connection.post(f"/conversations/{conversation_id}/messages", {"message": message})
    return conversation_id


async def _loop(connection: Connection, conversation_id: str, each: int, message: str, outcome: Outcome) -> None:
    for _ in range(each):
        started = time.perf_counter()
        try:
            status, body = await connection.post(
                f"/conversations/{conversation_id}/messages", {"message": message}
            )
            if status != 200 or body["result"]["waiting_approval"]:
                outcome.errors.append(f"{status}: {str(body)[:200]}")
        except (OSError, EOFError) as problem:
            outcome.errors.append(f"{type(problem).__name__}: {problem}")
            connection.close()
        outcome.latencies.append(time.perf_counter() - started)

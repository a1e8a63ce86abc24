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


class Load:
    """``clients`` clients, each with a connection and a conversation; `warm` opens both."""

    def __init__(self, port: int, clients: int, message: str = "hello", agent: str = "") -> None:
        """``agent`` is the name of the agent, where there are several in the mesh."""
        self._connections = [Connection("127.0.0.1", port) for _ in range(clients)]
        self.ids: list[str] = []
        self._message = message
        self._path = f"/{agent}/conversations" if agent else "/conversations"

    async def warm(self, turns: int = 2) -> None:
        """Opens the conversations and has some turns in each."""
        self.ids = await asyncio.gather(*(self._begin(c) for c in self._connections))
        if turns:
            await self.run(turns)

    async def run(self, turns: int) -> Outcome:
        """So many turns of each client, one after the other; all clients at once."""
        outcome = Outcome()
        started = time.perf_counter()
        pairs = zip(self._connections, self.ids, strict=True)
        await asyncio.gather(*(self._loop(c, i, turns, outcome) for c, i in pairs))
        outcome.wall_s = time.perf_counter() - started
        return outcome

    def close(self) -> None:
        """Ends the connections."""
        for connection in self._connections:
            connection.close()

    async def _begin(self, connection: Connection) -> str:
        _, body = await connection.post(self._path, {})
        conversation_id: str = body["conversation"]["id"]
        return conversation_id

    async def turn(self, connection: Connection, conversation_id: str) -> str:
        """One turn; what went wrong with it, if anything did."""
        path = f"{self._path}/{conversation_id}/messages"
        status, body = await connection.post(path, {"message": self._message})
        is_answered = status == 200 and not body["result"]["waiting_approval"]
        return "" if is_answered else f"{status}: {str(body)[:200]}"

    async def _loop(self, connection: Connection, conversation_id: str, turns: int, outcome: Outcome) -> None:
        for _ in range(turns):
            started = time.perf_counter()
            try:
                if trouble := await self.turn(connection, conversation_id):
                    outcome.errors.append(trouble)
            except (OSError, EOFError) as problem:
                outcome.errors.append(f"{type(problem).__name__}: {problem}")
                connection.close()
            outcome.latencies.append(time.perf_counter() - started)

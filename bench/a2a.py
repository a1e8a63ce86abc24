"""S8: what A2A costs beside REST. Both begin a conversation with its first message, in turns, in one run."""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from bench.client import Connection
from bench.figures import Bench, measured
from bench.load import Load, Outcome
from bench.world import World

CLIENTS, TURNS, ROUNDS = 16, 20, 3
Body = dict[str, Any]


def rest() -> tuple[str, Body]:
    return "/conversations", {"message": "hello"}


def a2a_1_0() -> tuple[str, Body]:
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    return "/a2a", _rpc("SendMessage", {"message": message})


def a2a_0_3() -> tuple[str, Body]:
    parts = [{"kind": "text", "text": "hello"}]
    message = {"kind": "message", "messageId": str(uuid4()), "role": "user", "parts": parts}
    return "/a2a", _rpc("message/send", {"message": message})


def _rpc(method: str, params: Body) -> Body:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


class First(Load):
    """A load of first messages, each in a conversation of its own."""

    def __init__(self, port: int, clients: int, make: Callable[[], tuple[str, Body]]) -> None:
        super().__init__(port, clients)
        version = "A2A-Version: 1.0\r\n" if make is a2a_1_0 else ""
        self._connections = [Connection("127.0.0.1", port, version) for _ in range(clients)]
        self._make = make

    async def turn(self, connection: Connection, conversation_id: str) -> str:
        path, body = self._make()
        status, answer = await connection.post(path, body)
        is_done = "completed" in str(answer).lower() or status == 201
        return "" if status < 300 and is_done else f"{status}: {str(answer)[:200]}"


async def s8(bench: Bench, world: World) -> None:
    cpu: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for make in (rest, a2a_1_0, a2a_0_3):
            load = First(world.mesh.port, CLIENTS, make)
            await load.warm(1)
            outcome, figures = await measured(world, lambda load=load: load.run(TURNS))  # type: ignore[misc]
            load.close()
            _check(outcome)
            cpu.setdefault(make.__name__, []).append(figures["cpu_ms_per_turn"])
    beside = min(cpu["rest"])
    for name, target in (("a2a_1_0", "adds ≤ 4 ms CPU"), ("a2a_0_3", "adds ≤ 4 ms CPU")):
        bench.add(
            "S8",
            f"message/send, {name.removeprefix('a2a_').replace('_', '.')}, {CLIENTS} clients",
            target,
            added_cpu_ms=round(min(cpu[name]) - beside, 2),
            cpu_ms_per_turn=min(cpu[name]),
            rest_cpu_ms_per_turn=beside,
        )


def _check(outcome: Outcome) -> None:
    if outcome.errors:
        raise RuntimeError(f"S8: {len(outcome.errors)} errors, the first: {outcome.errors[0]}")

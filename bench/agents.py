"""S9: agents that are called, and budgets. What they cost beside the same model calls without them.

The sides of a comparison are agents of one mesh, and their rounds alternate: what else happens on the
machine meets all of them. CPU is measured with a model of 0 ms, latency with one of 50 ms at one client.
A round begins new conversations: a caller at the root reads the turns before, and the nodes of a tree do not.
"""

import asyncio
import json
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench.client import Connection
from bench.cpu import seconds_by_name
from bench.figures import Bench, alone
from bench.load import Load
from bench.trees import Tree
from bench.world import World, running

LATENCY_S = 0.05
ROUNDS = 12
CLIENTS = 16
MANY = 1_000
Config = dict[str, Any]
_PRICES = {"stub": {"input": 1, "output": 2}, "many": {"input": 1, "output": 2}}
_LIMITS = {"max_cost_usd": 1000, "max_total_tokens": 900_000_000, "max_llm_calls": 5_000, "max_time_s": 3600}
_TASK = {"task": "hello"}


def s9(bench: Bench, scratch: Path) -> None:
    """All of it: 1 wide with budgets and long turns, then 8 wide."""
    others = [called(1), static(1), *budgets(), *long_turns()]
    with running(scratch / "agents", latency_s=0, rules=_rules(), others=others) as (world, _):
        _beside_a_tree(bench, world, 1)
        _with_budget(bench, world)
        for name, what in (("loop", f"loop of {MANY} model calls"), ("many", f"{MANY} agents in one answer")):
            uvloop.run(_long_turn(bench, world, name, what))
        _journal(bench, scratch / "agents")
    with running(scratch / "wide", latency_s=0, rules=_rules(), others=[called(8), static(8)]) as (world, _):
        _beside_a_tree(bench, world, 8)


# -- what is compared


def called(width: int) -> Config:
    """A node that calls so many agents in one answer: two model calls of its own, and one of each agent."""
    agents = [_llm(f"a{i}", description="Says hello.") for i in range(width)]
    return {"name": f"called-{width}", "agent": {**_llm("main"), "agents": agents}}


def static(width: int) -> Config:
    """The same model calls as a tree."""
    inner = [_llm(f"a{i}") for i in range(width)]
    between = inner[0] if width == 1 else {"name": "between", "type": "parallel", "agents": inner}
    steps = [_llm("first"), between, _llm("last")]
    return {"name": f"static-{width}", "agent": {"name": "all", "type": "sequential", "agents": steps}}


def budgets() -> list[Config]:
    """One llm node: without the key, with a budget that limits nothing, with all limits."""
    priced = {"llm": {"model": "openai:stub", "prices": _PRICES}}
    return [
        {"name": "no-key", **priced},
        {"name": "no-limit", **priced, "budget": {"max_depth": 5}},
        {"name": "limits", **priced, "budget": _LIMITS},
    ]


def long_turns() -> list[Config]:
    """Turns of so many model calls under a budget: one after the other, and of agents of one answer."""
    limits = {"max_llm_calls": 2 * MANY, "max_tool_calls": MANY}
    shared = {"llm": {"model": "openai:stub", "prices": _PRICES}, "limits": limits, "budget": _LIMITS}
    loop = {"name": "again", "type": "loop", "max_iterations": MANY, "agents": [_llm("says")]}
    many = {**_llm("main"), "model": "openai:many", "agents": [_llm("a0", description="Says hello.")]}
    return [{"name": "loop", "agent": loop, **shared}, {"name": "many", "agent": many, **shared}]


def _llm(name: str, **more: Any) -> Tree:
    return {"name": name, "type": "llm", "prompt": "You are measured.", **more}


def _rules() -> dict[str, object]:
    """The first that fits answers; agents that call nobody, and callers that have their results, echo."""
    one = [{"name": "a0", "arguments": _TASK}]
    eight = [{"name": f"a{i}", "arguments": _TASK} for i in range(8)]
    return {
        "rules": [
            {"match": {"from": "user", "model": "many"}, "answer": {"tool_calls": one * MANY}},
            {"match": {"from": "tool"}, "answer": {"text": "echo: hello"}},
            {"match": {"from": "user", "tools": ["a7"]}, "answer": {"tool_calls": eight}},
            {"match": {"from": "user", "tools": ["a0"]}, "answer": {"tool_calls": one}},
        ]
    }


# -- pairs


def _beside_a_tree(bench: Bench, world: World, width: int) -> None:
    one, other = f"called-{width}", f"static-{width}"
    turns = 6 if width == 1 else 2
    world.restart_model(0)
    cpu = uvloop.run(_cpu(world, (one, other), turns))
    world.restart_model(LATENCY_S)
    alone_ms, p50 = uvloop.run(_latency(world, (one, other), 3))
    added = {name: p50[name] - 3 * alone_ms for name in p50}
    bench.add(
        "S9",
        f"called agents, {width} wide / static tree",
        "both ≤ 1.15",
        cpu_ratio=_ratio(cpu[one], cpu[other]),
        added_ratio=round(added[one] / added[other], 2),
        cpu_ms=round(median(cpu[one]), 1),
        cpu_ms_static=round(median(cpu[other]), 1),
        added_p50_ms=round(added[one], 1),
        added_p50_ms_static=round(added[other], 1),
    )


def _with_budget(bench: Bench, world: World) -> None:
    names = ("no-key", "no-limit", "limits")
    world.restart_model(0)
    cpu = uvloop.run(_cpu(world, names, 12))
    world.restart_model(LATENCY_S)
    _, p50 = uvloop.run(_latency(world, names, 8))
    for name, target in (("limits", "≤ 2 ms, ≤ 3 ms"), ("no-limit", "0")):
        bench.add(
            "S9",
            "a budget with 4 limits, a call" if name == "limits" else "a budget without a limit, a call",
            target,
            more_cpu_ms=round(median(a - b for a, b in zip(cpu[name], cpu["no-key"], strict=True)), 2),
            more_p50_ms=round(p50[name] - p50["no-key"], 1),
            cpu_ms_without=round(median(cpu["no-key"]), 2),
        )


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """The median of the ratios of each round."""
    return round(median(a / b for a, b in zip(one, other, strict=True)), 2)


async def _cpu(world: World, agents: Sequence[str], turns: int) -> dict[str, list[float]]:
    """CPU per turn in milliseconds, of each round, with so many turns of each client in a round."""
    loads = {name: Load(world.mesh.port, CLIENTS, agent=name) for name in agents}
    seen: dict[str, list[float]] = {name: [] for name in agents}
    for load in loads.values():
        await load.warm(3)
    for number in range(ROUNDS):
        for name in _in_turn(agents, number):
            await loads[name].warm(0)
            before = _cpu_s(world)
            outcome = await loads[name].run(turns)
            if outcome.errors:
                raise RuntimeError(f"{name}: {outcome.errors[0]}")
            seen[name].append(1000 * (_cpu_s(world) - before) / len(outcome.latencies))
    for load in loads.values():
        load.close()
    return seen


async def _latency(world: World, agents: Sequence[str], turns: int) -> tuple[float, Mapping[str, float]]:
    """What a model call takes by itself, and the median of a turn of each agent, in milliseconds."""
    loads = {name: Load(world.mesh.port, 1, agent=name) for name in agents}
    seen: dict[str, list[float]] = {name: [] for name in agents}
    for load in loads.values():
        await load.warm(5)
    alone_ms = await alone(world)
    for number in range(ROUNDS):
        for name in _in_turn(agents, number):
            await loads[name].warm(0)
            outcome = await loads[name].run(turns)
            if outcome.errors:
                raise RuntimeError(f"{name}: {outcome.errors[0]}")
            seen[name] += outcome.latencies
    for load in loads.values():
        load.close()
    return alone_ms, {name: 1000 * median(latencies) for name, latencies in seen.items()}


def _in_turn(agents: Sequence[str], number: int) -> Sequence[str]:
    """Each of them has each position in as many rounds."""
    first = number % len(agents)
    return (*agents[first:], *agents[:first])


def _cpu_s(world: World) -> float:
    return sum(seconds_by_name(world.mesh).values())


# -- one long turn


async def _long_turn(bench: Bench, world: World, name: str, what: str) -> None:
    """CPU and time of a call among the first hundreds of a turn, and among the last ones. The journal says
    when each call was answered; what the mesh used until then is interpolated."""
    world.restart_model(0)
    connection = Connection("127.0.0.1", world.mesh.port)
    turn = asyncio.create_task(connection.post(f"/{name}/conversations", {"message": "hello"}))
    samples: list[tuple[float, float]] = []
    while not turn.done():
        samples.append((time.time(), await asyncio.to_thread(_cpu_s, world)))
        await asyncio.sleep(0.1)
    status, body = await turn
    connection.close()
    if status != 201 or body["result"]["waiting_approval"]:
        raise RuntimeError(f"{name}: {status}: {str(body)[:200]}")
    samples.append((time.time(), _cpu_s(world)))
    journals = (world.mesh.folder.parent / name).rglob("conversation_*.jsonl")
    calls = sorted(_moment(e["time"]) for journal in journals for e in _events(journal) if _is_call(e))
    early, late = ((calls[at], calls[at + 100]) for at in (10, MANY - 101))
    cpu = [10 * (_at(samples, until) - _at(samples, since)) for since, until in (early, late)]
    took = [10 * (until - since) for since, until in (early, late)]
    bench.add(
        "S9",
        f"{what}: call {MANY} / call 10",
        "about 1",
        cpu_ratio=round(cpu[1] / cpu[0], 2),
        time_ratio=round(took[1] / took[0], 2),
        cpu_ms_10=round(cpu[0], 2),
        cpu_ms_1000=round(cpu[1], 2),
        ms_10=round(took[0], 2),
        ms_1000=round(took[1], 2),
        calls=len(calls),
    )


def _at(samples: Sequence[tuple[float, float]], moment: float) -> float:
    """The CPU seconds that were used until then."""
    after = min(max(1, bisect_left(samples, (moment, 0.0))), len(samples) - 1)
    (before_s, before), (after_s, used) = samples[after - 1], samples[after]
    return before + (used - before) * (moment - before_s) / (after_s - before_s)


# -- the journal


def _journal(bench: Bench, folder: Path) -> None:
    """Bytes of events without their texts. To a called agent belong its call in the answer of its caller, its
    start, its model call and its result."""
    events = [e for file in (folder / "called-1").rglob("conversation_*.jsonl") for e in _events(file)]
    agents = [e for e in events if e["type"] == "agent_started"]
    made = [call for e in events if e["type"] == "llm_call" for call in e.get("tool_calls", ())]
    below = [e for e in events if "@" in e.get("step", "") or e["type"] == "tool_result"]
    bytes_ = sum(_size(each) for each in (*below, *made)) / len(agents)
    bench.add("S9", "journal, a called agent", "≤ 700 bytes", bytes=round(bytes_), agents=len(agents))
    for name in ("limits", "many"):
        found = [e for file in (folder / name).rglob("conversation_*.jsonl") for e in _events(file)]
        sizes = [_size(e) for e in found if e["type"] == "llm_reserved"]
        bench.add(
            "S9",
            f"journal, a reservation ({name})",
            "≤ 250 bytes",
            bytes=round(sum(sizes) / len(sizes)),
            most=max(sizes),
            reservations=len(sizes),
        )


def _size(event: Mapping[str, Any]) -> int:
    """The bytes of an event's line, without its texts."""
    texts = [event.get(key, "") for key in ("text", "content")] + [event.get("arguments", {}).get("task", "")]
    line = json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode()
    return len(line) + 1 - sum(len(text.encode()) for text in texts)


def _events(journal: Path) -> Iterator[dict[str, Any]]:
    for line in journal.read_text("utf-8").splitlines():
        yield json.loads(line)


def _is_call(event: Mapping[str, Any]) -> bool:
    return event["type"] == "llm_call"


def _moment(time_: str) -> float:
    return datetime.fromisoformat(time_).timestamp()

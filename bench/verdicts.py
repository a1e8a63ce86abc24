"""S11: what a verdict takes, with 200 rules of every kind, with and without a shell command."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench.figures import Bench
from mesh.core.hints import Hints
from mesh.policy.decide import decide
from mesh.policy.layer import Policy
from mesh.policy.policy_call import PolicyCall
from mesh.policy.rules import ASK_COMMANDS, PolicyRule, RuleSet
from mesh.policy.shell import parse, parse_now

RULES = 200
COMMAND = "cd src && git status | grep -c modified; nice pytest -q tests/unit > /dev/null"
_ROUNDS, _CALLS = 7, 500


def s11(bench: Bench) -> None:
    """The rows: the median of rounds, and the worst round."""
    kinds = {
        "tools": lambda i: {"tools": (f"tool_{i}_*",)},
        "args": lambda i: {"args": {"message": f"re:(?i)prod-{i}$"}},
        "paths": lambda i: {"paths": (f"src/part{i}/**",)},
        "command": lambda i: {"command": (f"program{i} *",)},
    }
    mixed = [*kinds.values()]
    for name, kind in (("of every kind", None), *kinds.items()):
        rules = [_rule(i, (kind or mixed[i % len(mixed)])(i)) for i in range(RULES)]
        policy = Policy(
            RuleSet(rules=tuple(rules), hide=(".env*",), freeze=(".git/**",), ask_commands=ASK_COMMANDS)
        )
        found = _us(lambda policy=policy: decide(policy, _CALL))  # type: ignore[misc]
        bench.add("S11", f"verdict, {RULES} rules, {name}", "≤ 50 µs", **found)
        if kind is None:
            _with_command(bench, policy)


def _with_command(bench: Bench, policy: Policy) -> None:
    parsed = parse_now(COMMAND)
    judged = _us(lambda: decide(policy, _SHELL, parsed=parsed))
    bench.add("S11", f"the same with a parsed command of {len(parsed.parts)} parts", "", **judged)
    bench.add("S11", "parse and decide", "≤ 8 ms", **asyncio.run(_with_parser(policy)))


def _rule(index: int, conditions: dict[str, Any]) -> PolicyRule:
    decisions: tuple[Any, ...] = ("allow", "ask", "deny")
    return PolicyRule(name=f"r{index}", decide=decisions[index % 3], **conditions)


_CALL = PolicyCall(
    agent="a",
    node="n",
    kind="mcp",
    server="files",
    tool="write_file",
    hints=Hints(destructive=True, repeatable=False),
    arguments={"path": "docs/notes/today.md", "message": "deploy it to staging, please. " * 5},
    paths=("path",),
)
_SHELL = PolicyCall(
    agent="a",
    node="n",
    kind="mcp",
    server="shell",
    tool="RunCommand",
    hints=Hints(destructive=True, repeatable=False),
    arguments={"command": COMMAND},
    command="command",
)


def _us(work: Callable[[], Any]) -> dict[str, float]:
    rounds = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(_CALLS):
            work()
        rounds.append((time.perf_counter() - started) / _CALLS * 1e6)
    rounds.sort()
    return {"median_us": round(rounds[len(rounds) // 2], 1), "worst_us": round(rounds[-1], 1)}


async def _with_parser(policy: Policy) -> dict[str, float]:
    """Each command is another one: what was parsed before is remembered."""
    times = []
    for index in range(40):
        started = time.perf_counter()
        decide(policy, _SHELL, parsed=await parse(f"{COMMAND} {index}"))
        times.append(1000 * (time.perf_counter() - started))
    times.sort()
    return {"p50_ms": round(times[len(times) // 2], 2), "p90_ms": round(times[len(times) * 9 // 10], 2)}

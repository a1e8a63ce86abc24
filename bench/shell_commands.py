"""S11: what it takes to parse a shell command for the policy. There is one process of shfmt for each."""

import subprocess
import time

import uvloop

from bench.figures import Bench
from mesh.policy.shell import parse, parse_now, shfmt

COMMAND = (
    'cd src && env CI=1 timeout 60 pytest -q "tests/a b.py" 2>&1 | tee -a out.txt; git status --short # {}'
)
TIMES = 200


def shell_commands(bench: Bench) -> None:
    uvloop.run(_parse(bench))


async def _parse(bench: Bench) -> None:
    parses, spawns = [], []
    for number in range(TIMES):
        started = time.perf_counter()
        await parse(COMMAND.format(number))
        between = time.perf_counter()
        subprocess.run([shfmt(), "--version"], capture_output=True, env={}, check=True)  # noqa: ASYNC221
        parses.append(between - started)
        spawns.append(time.perf_counter() - between)
    started = time.perf_counter()
    for _ in range(TIMES):
        parse_now(COMMAND.format(0))
    again = (time.perf_counter() - started) / TIMES
    bench.add(
        "S11",
        "a shell command of four parts is parsed",
        "≤ 8 ms with its verdict",
        p50_ms=_percentile(parses, 0.5),
        p99_ms=_percentile(parses, 0.99),
        spawn_alone_p50_ms=_percentile(spawns, 0.5),
        again_us=round(1e6 * again, 1),
    )


def _percentile(seconds: list[float], share: float) -> float:
    return round(1000 * sorted(seconds)[int(share * len(seconds))], 2)

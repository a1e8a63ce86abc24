"""S12: `mcp-filesystem`, beside the server of npm and ripgrep, in one run.

Both servers get the same calls in turn, from the same client. Times are medians of rounds, after one that
does not count. CPU is that of the server, and of the programs that it runs.
"""

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import psutil

from bench.figures import Bench
from mesh.servers.filesystem import ripgrep
from tests.interop import foreign

OTHER = Path("node_modules/@modelcontextprotocol/server-filesystem/dist/index.js")
LOCK = Path(__file__).parent / "file_server" / "package-lock.json"
ROUNDS = 5
CALLS = 1_000
FILES = 100_000
TEXT_FILES, TEXT_LINES = 2_000, 7_500
HUGE = 10 << 30


def files(bench: Bench, scratch: Path) -> None:
    node, installed = foreign.node(LOCK)
    other = [node, str(installed / OTHER)]
    for name, measure in {"read": _reads, "glob": _globs}.items():
        (scratch / name).mkdir()
        measure(bench, scratch / name, other)
    for name, alone in {"huge": _page_of_a_huge_file, "grep": _greps}.items():
        (scratch / name).mkdir()
        alone(bench, scratch / name)


class Client:
    """As little of a client as there can be: one call after the other, over pipes."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._id = 0
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        self.ask("initialize", about)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.ask("tools/list", {})

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        return str(result["content"][0]["text"])

    def cpu_s(self) -> float:
        """Of the server, and of the programs that it has run."""
        return float(sum(psutil.Process(self._process.pid).cpu_times()[:4]))

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children()

    def memory_mib(self) -> float:
        """The most that the server has had."""
        status = Path(f"/proc/{self._process.pid}/status").read_text("utf-8")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._id += 1
        self._send({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        assert self._process.stdout is not None
        while True:
            answer = json.loads(self._process.stdout.readline())
            if answer.get("id") == self._id and "method" not in answer:
                return answer["result"]

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


@contextmanager
def _served(folder: Path, other: list[str] | None = None) -> Iterator[list[Client]]:
    """Our server for a folder, and the other one, if it is to be measured beside it."""
    found = [Client([sys.executable, "-m", "mesh.servers.filesystem.main", str(folder)])]
    if other is not None:
        found.append(Client([*other, str(folder)]))
    try:
        yield found
    finally:
        for client in found:
            client.close()


class Taken(NamedTuple):
    """What a piece of work takes: the median of the time, and the CPU of those who do it."""

    ms: float
    cpu_ms: float


Work: TypeAlias = tuple[Callable[[], object], Callable[[], float]]
"""What is done, and the CPU seconds that those who do it have used so far."""


def _paired(*works: Work, rounds: int = ROUNDS) -> list[Taken]:
    times: list[list[float]] = [[] for _ in works]
    spent: list[float] = [0.0] * len(works)
    for number in range(rounds + 1):
        for index, (work, cpu_s) in enumerate(works):
            started, before = time.perf_counter(), cpu_s()
            work()
            if number:
                times[index].append(1000 * (time.perf_counter() - started))
                spent[index] += 1000 * (cpu_s() - before) / rounds
    return [Taken(statistics.median(each), cpu) for each, cpu in zip(times, spent, strict=True)]


def _reads(bench: Bench, folder: Path, other: list[str]) -> None:
    (folder / "a.txt").write_text(("y" * 63 + "\n") * 64)

    def many(client: Client, tool: str, path: str) -> Work:
        return lambda: [client.call(tool, {"path": path}) for _ in range(CALLS)], client.cpu_s

    with _served(folder, other) as (ours, npm):
        own, its = _paired(
            many(ours, "read_file", "a.txt"), many(npm, "read_text_file", str(folder / "a.txt"))
        )
    bench.add(
        "S12",
        "read_file of 4 KiB, beside npm",
        "calls/s ≥ 1 x, CPU ≤ 1.2 x",
        calls_per_s=round(1000 * CALLS / own.ms),
        npm_calls_per_s=round(1000 * CALLS / its.ms),
        times=round(its.ms / own.ms, 2),
        cpu_us=round(1000 * own.cpu_ms / CALLS),
        npm_cpu_us=round(1000 * its.cpu_ms / CALLS),
        cpu_times=round(own.cpu_ms / its.cpu_ms, 2),
    )


def _globs(bench: Bench, folder: Path, other: list[str]) -> None:
    for number in range(FILES // 100):
        (folder / f"d{number}").mkdir()
        for each in range(100):
            name = folder / f"d{number}/f{each}.{'py' if each % 50 == 0 else 'txt'}"
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    own_query = {"pattern": "**/*.py", "max_results": 10_000}
    query = {"path": str(folder), "pattern": "**/*.py"}
    with _served(folder, other) as (ours, npm):
        own, its = _paired(
            (lambda: ours.call("glob", own_query), ours.cpu_s),
            (lambda: npm.call("search_files", query), npm.cpu_s),
            rounds=3,
        )
    bench.add(
        "S12",
        f"glob **/*.py, {FILES:,} files, beside npm",
        "≥ 10 x",
        ms=round(own.ms),
        npm_ms=round(its.ms),
        times=round(its.ms / own.ms, 1),
        cpu_ms=round(own.cpu_ms),
        npm_cpu_ms=round(its.cpu_ms),
    )


def _page_of_a_huge_file(bench: Bench, folder: Path) -> None:
    with (folder / "huge").open("wb") as file:
        file.write(b"the first line\n")
        file.seek(HUGE)
        file.write(b"\nthe last line\n")
    with _served(folder) as (ours,):
        ours.call("list_folder", {})
        before = ours.memory_mib()
        query = {"path": "huge", "offset_bytes": HUGE - 65_536}
        [own] = _paired((lambda: ours.call("read_file", query), ours.cpu_s))
        grown = ours.memory_mib() - before
    bench.add(
        "S12",
        "a page at the end of 10 GB",
        "≤ 100 ms, ≤ 20 MiB",
        ms=round(own.ms, 1),
        grown_mib=round(grown, 1),
    )


def _greps(bench: Bench, folder: Path) -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghij", k=6)) for _ in range(5_000)]
    for number in range(TEXT_FILES):
        lines = (" ".join(chance.choices(words, k=10)) for _ in range(TEXT_LINES))
        (folder / f"f{number}.txt").write_text("\n".join(lines) + "\n")
    (folder / "last.txt").write_text("the needle\n")
    alone = [ripgrep.program(), "--no-config", "-n", "the needle", "."]
    with _served(folder) as (ours,):
        own, its = _paired(
            (lambda: ours.call("grep", {"pattern": "the needle"}), ours.cpu_s),
            (lambda: subprocess.run(alone, cwd=folder, capture_output=True, check=True), _cpu_of_children_s),
        )
    bench.add(
        "S12",
        "grep over 1 GiB, beside rg alone",
        "≤ 1.5 x",
        ms=round(own.ms),
        rg_ms=round(its.ms),
        times=round(own.ms / its.ms, 2),
        cpu_ms=round(own.cpu_ms),
        rg_cpu_ms=round(its.cpu_ms),
    )


def _cpu_of_children_s() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime

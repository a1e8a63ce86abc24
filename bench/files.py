"""``python -m bench.files [SERVER.js]``: ``mcp-filesystem``, beside the npm server and ripgrep, one run.

    read   `read_file` of 4 KiB: calls/s, and CPU of the server for a call
    glob   `**/*.py` over 100,000 files
    grep   over 1 GiB of text, beside `rg` alone

``SERVER.js`` is ``dist/index.js`` of the package ``@modelcontextprotocol/server-filesystem``. The client is
the same for both, and takes turns between them. Figures are medians.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from mesh.servers.filesystem import ripgrep

ROUNDS = 5
CALLS = 1_000
FILES = 100_000
TEXT_FILES, TEXT_LINES = 2_000, 7_500


class Client:
    """As little of a client as there can be: one call after the other, over pipes."""

    def __init__(self, command: list[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        self._id = 0
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "b", "version": "1"},
        }
        self.ask("initialize", about)
        self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.ask("tools/list", {})

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        result = self.ask("tools/call", {"name": tool, "arguments": arguments})
        assert not result.get("isError"), result
        return str(result["content"][0]["text"])

    def cpu_s(self) -> float:
        found = psutil.Process(self._process.pid).cpu_times()
        return float(found.user + found.system)

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self._process.pid).children()

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


Calls = dict[str, Callable[[], object]]


@contextmanager
def clients(folder: Path, other: str | None) -> Iterator[dict[str, Client]]:
    found = {"ours": Client([sys.executable, "-m", "mesh.servers.filesystem.main", str(folder)])}
    if other is not None:
        found["npm"] = Client(["node", other, str(folder)])
    try:
        yield found
    finally:
        for client in found.values():
            client.close()


def took_s(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def paired(works: Calls, rounds: int = ROUNDS) -> dict[str, float]:
    """Median seconds of each, measured in turns, after one run that does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            seconds = took_s(work)
            if number:
                times[name].append(seconds)
    return {name: statistics.median(each) for name, each in times.items()}


def reads(folder: Path, other: str | None) -> None:
    (folder / "a.txt").write_text("x" * 63 + "\n" * 1 + ("y" * 63 + "\n") * 63)
    with clients(folder, other) as found:
        paths = {"ours": "a.txt", "npm": str(folder / "a.txt")}
        tools = {"ours": "read_file", "npm": "read_text_file"}

        def many(name: str) -> None:
            for _ in range(CALLS):
                found[name].call(tools[name], {"path": paths[name]})

        before = {name: client.cpu_s() for name, client in found.items()}
        seconds = paired({name: lambda name=name: many(name) for name in found})  # type: ignore[misc]
        for name, client in found.items():
            cpu = (client.cpu_s() - before[name]) / (CALLS * (ROUNDS + 1))
            say(f"read  {name:5} {CALLS / seconds[name]:8.0f} calls/s {cpu * 1e6:8.0f} µs CPU a call")


def globs(folder: Path, other: str | None) -> None:
    for number in range(FILES // 100):
        (folder / f"d{number}").mkdir()
        for each in range(100):
            name = folder / f"d{number}/f{each}.{'py' if each % 50 == 0 else 'txt'}"
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    with clients(folder, other) as found:
        works: Calls = {
            "ours": lambda: found["ours"].call("glob", {"pattern": "**/*.py", "max_results": 10_000})
        }
        if "npm" in found:
            query = {"path": str(folder), "pattern": "**/*.py"}
            works["npm"] = lambda: found["npm"].call("search_files", query)
        for name, seconds in paired(works, 3).items():
            say(f"glob  {name:5} {seconds * 1e3:8.0f} ms")


def greps(folder: Path) -> None:
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghij", k=6)) for _ in range(5_000)]
    for number in range(TEXT_FILES):
        lines = (" ".join(chance.choices(words, k=10)) for _ in range(TEXT_LINES))
        (folder / f"f{number}.txt").write_text("\n".join(lines) + "\n")
    (folder / "last.txt").write_text("the needle\n")
    alone = [ripgrep.program(), "--no-config", "-n", "the needle", "."]
    with clients(folder, None) as found:
        works: Calls = {
            "ours": lambda: found["ours"].call("grep", {"pattern": "the needle"}),
            "rg": lambda: subprocess.run(alone, cwd=folder, capture_output=True, check=True),
        }
        for name, seconds in paired(works).items():
            say(f"grep  {name:5} {seconds * 1e3:8.0f} ms")


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    other = sys.argv[1] if len(sys.argv) > 1 else None
    for measure in (reads, globs):
        with tempfile.TemporaryDirectory() as name:
            measure(Path(name), other)
    with tempfile.TemporaryDirectory() as name:
        greps(Path(name))


if __name__ == "__main__":
    main()

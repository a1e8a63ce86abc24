"""S13: what `RunCommand true` takes, in each sandbox that holds here, as a client of `mcp-shell` sees it.

    python -m bench.commands [PYTHON]

``PYTHON`` is one that has the package ``sandlock``: it runs the same command in the same folder, alone and
without a server. The folder has rules like those of a coding agent; each call has an execution context, so
that it is recorded.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.figures import Bench
from bench.files import Client
from mesh.core.events import now
from mesh.core.execution import ExecutionContext
from mesh.mcp.meta import meta_of

TIMES, ROUNDS = 40, 5
FILES = 500
KINDS = ("bubblewrap", "landlock", "none")
_RULES = ("--hide", ".env*", "--hide", "*.pem", "--freeze", ".git/hooks/**", "--freeze", ".git/config")
_SANDLOCK = """
import sys, time, sandlock
folder = sys.argv[1]
def run():
    readable = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev"]
    denied = [folder + "/.env", folder + "/.git/hooks", folder + "/.git/config"]
    writable = [folder, "/dev/null"]
    box = sandlock.Sandbox(fs_readable=readable, fs_writable=writable, fs_denied=denied, cwd=folder)
    assert box.run(["bash", "-c", "true"]).exit_code == 0
run()
for _ in sys.stdin:
    started = time.perf_counter()
    run()
    print(time.perf_counter() - started, flush=True)
"""

Run = Callable[[], float]
"""Runs the command once, and returns the seconds that it took."""


def commands(bench: Bench, python: str = "") -> None:
    clients: dict[str, tuple[Client, float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="mesh-bench-") as scratch,
        _runs(Path(scratch), python, clients) as runs,
    ):
        times: dict[str, list[float]] = {name: [] for name in runs}
        # In turns: whatever else the machine does, it does to all.
        for _ in range(ROUNDS):
            for name, run in runs.items():
                times[name] += [run() for _ in range(TIMES // ROUNDS)]
        used = {name: _cpu_s(client) - before for name, (client, before) in clients.items()}
    for name, found in times.items():
        target = "≤ 40 ms" if name in KINDS else ""
        figures = {"least_ms": _percentile(found, 0)}
        figures |= {f"p{share}_ms": _percentile(found, share / 100) for share in (50, 90)}
        figures |= {"cpu_ms": round(1000 * used[name] / TIMES, 1)} if name in used else {}
        bench.add("S13", f"RunCommand true, {name}" if target else name, target, **figures)


@contextmanager
def _runs(scratch: Path, python: str, clients: dict[str, tuple[Client, float]]) -> Iterator[dict[str, Run]]:
    """``clients`` gets those of each server, with the CPU that it has used before."""
    folder = scratch / "work"
    _fill(folder)
    state = scratch / "state"
    found: dict[str, Run] = {"bash -c true, without a sandbox or a server": _plain}
    for kind in KINDS:
        command = [sys.executable, "-m", "mesh.servers.shell.main", str(folder), *_RULES]
        command += ["--sandbox", kind, "--state", str(state)]
        if _starts(command):
            client = Client(command)
            found[kind] = _call_of(client)
            found[kind]()
            clients[kind] = client, _cpu_s(client)
    if python:
        found["sandlock, without a server"] = _sandlock(python, folder)
    try:
        yield found
    finally:
        for client, _ in clients.values():
            client.close()


def _fill(folder: Path) -> None:
    for name in (
        ".git/hooks/pre-commit",
        ".git/config",
        ".env",
        *(f"src/{n % 20}/{n}.py" for n in range(FILES)),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x\n")


def _starts(command: list[str]) -> bool:
    """Whether a sandbox holds here: the server says no, or waits for a client until its stdin ends."""
    done = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=60)
    return done.returncode == 0


def _cpu_s(client: Client) -> float:
    """Of the server, of its launcher, and of all commands that have ended."""
    return client.cpu_s() + sum(sum(each.cpu_times()[:4]) for each in client.children())


def _plain() -> float:
    started = time.perf_counter()
    subprocess.run(["bash", "-c", "true"], check=True)
    return time.perf_counter() - started


def _call_of(client: Client) -> Run:
    keys = iter(range(1_000_000))

    def run() -> float:
        context = ExecutionContext(
            idempotency_key=f"c|1|0/tool/{next(keys)}",
            trace_id="0" * 32,
            depth=1,
            agent_path=("a",),
            started_at=now(),
        )
        params: dict[str, Any] = {"name": "RunCommand", "arguments": {"command": "true"}}
        started = time.perf_counter()
        result = client.ask("tools/call", {**params, "_meta": meta_of(context)})
        took_s = time.perf_counter() - started
        assert not result.get("isError"), result
        return took_s

    return run


def _sandlock(python: str, folder: Path) -> Run:
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [python, "-c", _SANDLOCK, str(folder)], stdin=pipe, stdout=pipe, env=dict(os.environ), text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    asked, told = process.stdin, process.stdout

    def run() -> float:
        asked.write("\n")
        asked.flush()
        return float(told.readline())

    return run


def _percentile(seconds: list[float], share: float) -> float:
    return round(1000 * sorted(seconds)[int(share * len(seconds))], 1)


if __name__ == "__main__":
    commands(Bench(Console(soft_wrap=True), set()), *sys.argv[1:2])

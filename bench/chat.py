"""The start of ``mesh chat``: how soon a person may write, in a terminal."""

import sys
import time
from pathlib import Path

import pexpect
import psutil

from bench.figures import Bench

RUNS = 7
_CONFIG = """
name: chat
llm: {model: offline}
data_dir: data
mcp_servers: [{name: r, command: mcp-resources, args: [--db, data/r.db]}]
"""
_MESH = Path(sys.executable).with_name("mesh")
_WITHIN_S = 60


def chat(bench: Bench, scratch: Path) -> None:
    """The first prompt of an agent with a tool server, files cached; the first run does not count."""
    folder = scratch / "chat"
    folder.mkdir()
    (folder / "agent.yaml").write_text(_CONFIG)
    _, *measured = [_start(folder) for _ in range(RUNS + 1)]
    seconds = sorted(wall for wall, _ in measured)
    bench.add(
        "up",
        "mesh chat, first prompt, warm",
        "≤ 2 s",
        p50_s=round(seconds[RUNS // 2], 2),
        worst_s=round(seconds[-1], 2),
        cpu_s=round(sorted(cpu for _, cpu in measured)[RUNS // 2], 2),
    )


def _start(folder: Path) -> tuple[float, float]:
    """The seconds until the prompt, and the CPU seconds that the process had used then."""
    begun = time.perf_counter()
    child = pexpect.spawn(
        str(_MESH),
        ["chat", "--config", "agent.yaml"],
        cwd=str(folder),
        encoding="utf-8",
        timeout=_WITHIN_S,
    )
    child.expect("›")
    wall, used = time.perf_counter() - begun, psutil.Process(child.pid).cpu_times()
    child.sendeof()
    child.expect(pexpect.EOF)
    child.wait()
    return wall, used.user + used.system

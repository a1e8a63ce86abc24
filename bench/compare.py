"""``python -m bench.compare OTHER``: CPU and latency of this checkout beside those of another one.

    python -m bench.compare ../before                  a parallel node of 16
    python -m bench.compare ../before --wide 1         one llm node
    python -m bench.compare ../before --tool           one llm node that calls a tool
    python -m bench.compare .                          against itself: how exact the ratio is

Both meshes are up at the same time, each from the virtual environment of its checkout (``.venv``), and get
the same load in turn: what else happens on the machine meets both. The ratio is that of each round; the
median is what to quote. The model answers after 50 ms.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="See the module.")
    parser.add_argument("other", type=Path, help="another checkout, with its .venv")
    parser.add_argument("--wide", type=int, default=16, help="children of the parallel node; 1: no such node")
    parser.add_argument("--tool", action="store_true", help="one llm node that calls a tool of an MCP server")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--turns", type=int, default=20, help="of each client, in a round")
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    shape = "tool" if asked.tool else str(asked.wide)
    here, other = _Side(Path.cwd(), shape), _Side(asked.other.resolve(), shape)
    try:
        pairs = _measured(here, other, f"{asked.clients} {asked.turns}\n", asked.rounds)
    finally:
        here.stop()
        other.stop()
    _show(pairs)


class _Side:
    """A mesh of one checkout, in a process of that checkout's Python."""

    def __init__(self, checkout: Path, shape: str) -> None:
        command = [str(checkout / ".venv" / "bin" / "python"), str(Path(__file__).with_name("side.py"))]
        self._process = subprocess.Popen(
            [*command, shape], cwd=checkout, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._read()  # it is up

    def run(self, load: str) -> Figures:
        """The figures of one round."""
        assert self._process.stdin is not None
        self._process.stdin.write(load)
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)

    def _read(self) -> Figures:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the mesh of {self._process.args!r} did not come up; its output is above")
        figures: Figures = json.loads(line)
        return figures


def _measured(here: _Side, other: _Side, load: str, rounds: int) -> list[tuple[Figures, Figures]]:
    here.run(load), other.run(load)  # what is made on first use
    pairs: list[tuple[Figures, Figures]] = []
    for number in range(rounds):
        if number % 2:  # so that neither of them always comes first
            theirs, ours = other.run(load), here.run(load)
        else:
            ours, theirs = here.run(load), other.run(load)
        pairs.append((ours, theirs))
        print(
            f"round {number + 1} of {rounds}: CPU {_ratio(ours, theirs, 'cpu_ms_per_turn'):.2f}",
            file=sys.stderr,
        )
    return pairs


def _ratio(ours: Figures, theirs: Figures, name: str) -> float:
    return float(ours[name] / theirs[name])


def _show(pairs: list[tuple[Figures, Figures]]) -> None:
    for name in ("cpu_ms_per_turn", "p50_ms"):
        ratios = sorted(_ratio(ours, theirs, name) for ours, theirs in pairs)
        ours, theirs = (median(pair[side][name] for pair in pairs) for side in (0, 1))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"{name:16} here {ours:.2f}  there {theirs:.2f}  ratio {median(ratios):.3f} ({spread})")
    for name in pairs[0][0]["cpu_by_process"]:
        ours, theirs = (
            median(pair[side]["cpu_by_process"].get(name, 0) for pair in pairs) for side in (0, 1)
        )
        print(f"  {name:32} here {ours:.2f}  there {theirs:.2f}")


if __name__ == "__main__":
    main()

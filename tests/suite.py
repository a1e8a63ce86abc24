"""Runs the whole test suite, in three runs of pytest side by side, as most tests wait a lot: `make test`.

Those with a cluster are in two of the runs, and most others are the third. The examples, each with a mesh of
its own, are in the second run. What else waits long goes where there is room, so that the runs take about as
long: sum up what `pytest --durations=0` says when you move something.

A few tests that failed beside the others are run once more, when nothing else uses the machine. A test that
fails there, too, fails the suite. One that passes does not, but it is named at the end: it depends on how
busy the machine is, which is a defect of the test or of the mesh.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

_WITH_THE_MESH = ["tests/cluster", "tests/deployments", "tests/servers"]
_WITH_THE_EXAMPLES = ["tests/cluster", "tests/chat", "tests/mcp"]
RUNS = {
    "mesh": [*_WITH_THE_MESH, "--ignore-glob=*/cluster/test_[elp-z]*"],
    "examples": [*_WITH_THE_EXAMPLES, "--ignore-glob=*/cluster/test_[!elp-z]*"],
    "rest": [f"--ignore={folder}" for folder in (*_WITH_THE_MESH, *_WITH_THE_EXAMPLES)],
}
"""The arguments of pytest for each run. The first one is shown as it goes, the others at the end."""
MOST_REPEATED = 10
"""More tests than this do not fail because the machine is busy."""
WITHIN_S = 80 * 60
"""CI stops everything after 90 minutes, and says nothing of what ran."""
_TESTS_FAILED = 1
"""The exit status of pytest when all tests have run and some have failed."""


def main() -> int:
    """Returns the exit status: 0 if every test has passed, beside the others or alone."""
    statuses = _side_by_side()
    if not {*statuses.values()} <= {0, _TESTS_FAILED}:
        return 1
    failed = {name: _failed(name) for name, status in statuses.items() if status}
    if not failed:
        return 0
    number = sum(map(len, failed.values()))
    if number > MOST_REPEATED:
        return 1
    print(f"\n{number} failed beside the others, and are run once more, alone.", flush=True)
    for name in failed:
        with _running(name, "--last-failed", "--last-failed-no-failures=none") as again:
            if again.wait():
                return 1
    told = [test for tests in failed.values() for test in tests]
    print(
        "\nFailed on a busy machine and passed alone; to be mended, see CONTRIBUTING.md:", *told, sep="\n  "
    )
    return 0


def _side_by_side() -> dict[str, int]:
    """The exit status of each run."""
    first, *others = RUNS
    until = time.monotonic() + WITHIN_S
    with ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile()) for _ in others]
        stack.callback(_show, outputs)  # after the runs, also when they are stopped
        runs = {first: stack.enter_context(_running(first))}
        for name, output in zip(others, outputs, strict=True):
            runs[name] = stack.enter_context(_running(name, output=output.fileno()))
        try:
            return {name: run.wait(until - time.monotonic()) for name, run in runs.items()}
        except subprocess.TimeoutExpired:
            sys.exit(f"The suite did not end within {WITHIN_S} s: what takes so long?")


def _show(outputs: Iterable[IO[bytes]]) -> None:
    for output in outputs:
        output.seek(0)
        print(output.read().decode(errors="replace"), flush=True)


@contextmanager
def _running(name: str, *more: str, output: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A run, which is over when this is left."""
    cache = f"cache_dir={_cache(name)}"
    command = [sys.executable, "-m", "pytest", *RUNS[name], "-o", cache, *more]
    with subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as run:
        try:
            yield run
        except SystemExit:
            run.send_signal(signal.SIGINT)  # so that it ends what it has started; Ctrl-C reaches it by itself
            raise


def _failed(name: str) -> list[str]:
    """The tests that failed in a run."""
    return [*json.loads((_cache(name) / "v/cache/lastfailed").read_text())]


def _cache(name: str) -> Path:
    return Path(".pytest_cache", name)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())

"""Runs a command by bash, and says what it ran.

On its ``PATH`` are recorders, and programs that run others.
"""

import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from mesh.policy.commands import Expansion, ParsedCommand, Words
from tests.policy.command_forms import FAILS, PROGRAMS

WRAPPERS = ("env", "nice", "timeout", "nohup", "stdbuf", "setsid", "xargs", "find", "sh", "bash", "cat")
_LIMITED = 'ulimit -t 2 -f 4096; exec /bin/bash --norc --noprofile -c "$1"'
_RECORDER = """#!/bin/sh
printf '%s\\0' "$#" "$0" "$@" >> '{records}'
echo {output} 2>&-
exit {status}
"""
_OPEN = 99
"""Every process inherits this descriptor, so that its end tells when all of them are gone."""


class Ran(NamedTuple):
    """The commands that were run, and the files that were made or written."""

    commands: list[tuple[str, ...]]
    files: set[str]


class Recorders:
    """A folder in which any command may be run."""

    def __init__(self, root: Path) -> None:
        self._records = root / "records"
        self._work = root / "work"
        self._programs = root / "bin"
        self._programs.mkdir()
        for name in (*PROGRAMS, FAILS):
            program = self._programs / name
            program.write_text(
                _RECORDER.format(records=self._records, output="beta 7", status=int(name == FAILS))
            )
            program.chmod(0o755)
        for name in WRAPPERS:
            (self._programs / name).symlink_to(shutil.which(name) or "/nonexistent")
        self._prepare()

    def _prepare(self) -> None:
        shutil.rmtree(self._work, ignore_errors=True)
        (self._work / "sub").mkdir(parents=True)
        (self._work / "bin").symlink_to(self._programs)
        (self._work / "env").symlink_to(self._programs / "gamma")
        (self._work / "f").write_text("alpha sourced\n")
        self._before = self._seen()

    def _seen(self) -> dict[str, tuple[int, int, int]]:
        """Each file with what tells whether it was written."""
        states = {path: path.lstat() for path in self._work.rglob("*") if not path.is_dir()}
        return {
            str(path.relative_to(self._work)): (state.st_ino, state.st_size, state.st_mtime_ns)
            for path, state in states.items()
        }

    def run(self, text: str) -> Ran:
        self._records.write_bytes(b"")
        env = {"PATH": str(self._programs), "HOME": str(self._work), "LC_ALL": "C.UTF-8"}
        with _all_ended() as descriptor:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _LIMITED, "sh", text],
                cwd=self._work,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[descriptor],
            )
        _wait(process)
        after = self._seen()
        files = {name for name, state in after.items() if self._before.get(name) != state}
        if after != self._before:
            self._prepare()
        return Ran([self._called(*fields) for fields in _read(self._records.read_bytes())], files)

    def _called(self, program: str, *args: str) -> tuple[str, ...]:
        """By its name, unless the command said where it is. ``PATH=bin`` is what some say."""
        return (program.removeprefix(f"{self._programs}/").removeprefix("bin/"), *args)


_reading = -1


@contextmanager
def _all_ended() -> Iterator[int]:
    global _reading
    _reading, writing = os.pipe()
    os.dup2(writing, _OPEN)
    os.close(writing)
    try:
        yield _OPEN
    finally:
        os.close(_OPEN)


def _wait(process: subprocess.Popen[bytes], most_s: float = 3.0) -> None:
    try:
        until = time.monotonic() + most_s
        while not select.select([_reading], [], [], max(0.0, until - time.monotonic()))[0]:
            os.killpg(process.pid, signal.SIGKILL)
            until = time.monotonic() + most_s
    finally:
        os.close(_reading)
        process.wait()


def _read(records: bytes) -> Iterator[tuple[str, ...]]:
    fields = records.decode("utf-8", "surrogateescape").split("\0")[:-1]
    at = 0
    while at < len(fields):
        count = int(fields[at])
        yield tuple(fields[at + 1 : at + 2 + count])
        at += 2 + count


def unforeseen(parsed: ParsedCommand, ran: Ran) -> list[str]:
    """What bash did although it is not in the parts and paths."""
    if parsed.why_ask:
        return []
    forms = [form for part in parsed.parts for form in (part.words, *part.looked_through)]
    commands = [argv for argv in ran.commands if not any(covers(form, argv) for form in forms)]
    written = [each.path for each in parsed.paths if each.writes]
    files = [] if any(isinstance(path, Expansion) for path in written) else ran.files - set(written)
    return [*(f"ran {argv}" for argv in commands), *(f"wrote {name!r}" for name in files)]


def covers(words: Words, argv: Sequence[str]) -> bool:
    """Whether words may become these arguments."""
    if not words:
        return not argv
    first, rest = words[0], words[1:]
    if isinstance(first, str):
        return bool(argv) and first == argv[0] and covers(rest, argv[1:])
    if not first.splits:
        return bool(argv) and covers(rest, argv[1:])
    return any(covers(rest, argv[taken:]) for taken in range(len(argv) + 1))

"""Runs a command to its end, within bounds of time, output and memory.

The guard (`mesh.processes.guard`) runs it, and ends all that it started. What is left when `run_bounded`
returns is only what killed the guard and had left its process group; on a system other than Linux, what had
left the group. Even that is not waited for, although it may keep a pipe open.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

import psutil

from mesh.processes import guard
from mesh.processes.groups import kill, signal_group

KILL_GRACE_S = 2.0
"""How long the guard may take to kill what it runs, and then to die."""
_LOOK_S = 0.05
_CHUNK = 1 << 16
_AT_ONCE = 512
"""Bytes that a pipe takes without blocking whenever it is writable: the least PIPE_BUF that POSIX allows."""


class Ran(NamedTuple):
    """What a command wrote, the status with which it ended, as a shell tells it (128 + n for signal n), and
    which bound ended it, if one did."""

    stdout: bytes
    stderr: bytes
    status: int
    bound: str


def run_bounded(
    command: Sequence[str],
    *,
    stdin: bytes,
    env: Mapping[str, str],
    timeout_s: float,
    max_bytes: int,
    memory_bytes: int = 0,
) -> Ran:
    """Runs a command. ``max_bytes`` bounds each of stdout and stderr, ``memory_bytes`` the memory of the
    command and its children (0: nothing does). Raises `OSError` if the machine does not allow another
    process."""
    process = subprocess.Popen(
        guard.guarded(command, memory_bytes),
        bufsize=0,  # closing a stream then writes nothing, and cannot block
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        start_new_session=True,
    )
    try:
        pipes = _Pipes(process, stdin, max_bytes)
        bound = pipes.serve(timeout_s)
    finally:
        _end(process)
    # None is that of a process that SIGKILL does not end, which the kernel may keep in a system call.
    status = -signal.SIGKILL if process.returncode is None else process.returncode
    return Ran(pipes.stdout, pipes.stderr, status, bound)


class _Pipes:
    """What goes into a process, and what comes out of it. No thread serves it, so nothing waits for one."""

    def __init__(self, process: "subprocess.Popen[bytes]", stdin: bytes, max_bytes: int) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._process = process
        self._unwritten = memoryview(stdin)
        self._max_bytes = max_bytes
        self._outputs = (process.stdout, process.stderr)
        self._read: dict[IO[bytes], bytearray] = {stream: bytearray() for stream in self._outputs}
        self._selector = selectors.PollSelector()  # which needs no descriptor of its own
        self._selector.register(process.stdin, selectors.EVENT_WRITE, self._write)
        for stream in self._outputs:
            self._selector.register(stream, selectors.EVENT_READ, self._read_from)

    @property
    def stdout(self) -> bytes:
        return bytes(self._read[self._outputs[0]])

    @property
    def stderr(self) -> bytes:
        return bytes(self._read[self._outputs[1]])

    def serve(self, timeout_s: float) -> str:
        """Serves the process until it has ended. Returns which bound it is over, if one."""
        give_up_at = time.monotonic() + timeout_s
        while True:
            # Asked before the look: all that it wrote can be read by then. Another process that keeps a pipe
            # open is not waited for.
            has_ended = self._process.poll() is not None
            was_served = self._serve_once(0 if has_ended else _LOOK_S)
            if any(len(read) > self._max_bytes for read in self._read.values()):
                return f"it wrote more than {self._max_bytes} bytes"
            if has_ended and not was_served:
                return ""
            if time.monotonic() >= give_up_at:
                return f"it did not end within {timeout_s:g} s"

    def _serve_once(self, wait_s: float) -> bool:
        if not self._selector.get_map():
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
            return False
        ready = self._selector.select(wait_s)
        for key, _ in ready:
            key.data(key.fileobj)
        return bool(ready)

    def _read_from(self, stream: IO[bytes]) -> None:
        chunk = os.read(stream.fileno(), _CHUNK)
        self._read[stream] += chunk
        if not chunk:
            self._close(stream)

    def _write(self, stream: IO[bytes]) -> None:
        try:
            self._unwritten = self._unwritten[os.write(stream.fileno(), self._unwritten[:_AT_ONCE]) :]
        except OSError:  # it ended, or does not read: what it wrote and its status tell
            self._unwritten = self._unwritten[:0]
        if not self._unwritten:
            self._close(stream)

    def _close(self, stream: IO[bytes]) -> None:
        self._selector.unregister(stream)
        stream.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Has the guard kill what it runs. If it cannot, because it was stopped, that is killed here."""
    if process.poll() is None:
        process.send_signal(guard.KILL_NOW)
        _wait(process)
    left = _below(process) if process.poll() is None else []
    for each in left:
        kill(each)
    signal_group(process.pid, signal.SIGKILL)
    _wait(process)
    psutil.wait_procs(left, KILL_GRACE_S)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _below(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def _wait(process: "subprocess.Popen[bytes]") -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILL_GRACE_S)

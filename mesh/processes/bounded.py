"""Runs a command to its end, within bounds of time and output. Nothing of it is left when it returns."""

import errno
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from mesh.processes.groups import signal_group


class Ran(NamedTuple):
    """What a command wrote, the status with which it ended, and which bound ended it, if one did."""

    stdout: bytes
    stderr: bytes
    status: int
    bound: str


def run_bounded(
    command: Sequence[str], *, stdin: bytes, env: Mapping[str, str], timeout_s: float, max_bytes: int
) -> Ran:
    """Runs a command in a process group of its own. ``max_bytes`` bounds each of stdout and stderr. Raises
    `OSError` if the machine does not allow another process, or the threads that serve it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(env),
        start_new_session=True,
    )
    assert process.stdin and process.stdout and process.stderr
    written: dict[IO[bytes], bytes] = {}
    bounds: list[str] = []

    def end(bound: str) -> None:
        bounds.append(bound)
        signal_group(process.pid, signal.SIGKILL)

    def read(stream: IO[bytes]) -> None:
        written[stream] = stream.read(max_bytes + 1)
        if len(written[stream]) > max_bytes:
            end(f"it wrote more than {max_bytes} bytes")

    def write(stream: IO[bytes]) -> None:
        try:
            with stream:
                stream.write(stdin)
        except OSError:  # it ended, or does not read: what it wrote and its status tell
            pass

    threads = [
        threading.Thread(target=write, args=[process.stdin], daemon=True),
        threading.Thread(target=read, args=[process.stdout], daemon=True),
        threading.Thread(target=read, args=[process.stderr], daemon=True),
    ]
    timer = threading.Timer(timeout_s, end, [f"it did not end within {timeout_s:g} s"])
    started: list[threading.Thread] = []
    try:
        for thread in [*threads, timer]:
            _start(thread)
            started.append(thread)
        process.wait()
    finally:
        signal_group(process.pid, signal.SIGKILL)  # what it left behind would keep its pipes open
        process.wait()
        timer.cancel()
        for thread in started:
            thread.join(timeout=1.0)
        if not started:
            process.stdin.close()
        for stream in (process.stdout, process.stderr):
            stream.close()
    return Ran(
        written.get(process.stdout, b""),
        written.get(process.stderr, b""),
        process.returncode,
        bounds[0] if bounds else "",
    )


def _start(thread: threading.Thread) -> None:
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error

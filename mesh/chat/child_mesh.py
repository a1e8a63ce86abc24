"""Runs ``mesh up`` as a child process while the chat lasts.

The child has a session of its own, so that Ctrl-C in the terminal reaches only the chat. On Linux the kernel
terminates the child if the chat is killed; elsewhere the child ends only if the chat ends in order.
"""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec

from mesh.core.errors import MeshError
from mesh.processes.guard import signal_on_parent_death

UP_WITHIN_S = 180.0
DOWN_WITHIN_S = 20.0
_POLL_S = 0.1
_LAST_LINES = 5
_DRAIN_WITHIN_S = 1.0
_MAX_LINE = 64 * 1024


class ChildMeshFailed(MeshError):
    """The mesh did not start. ``problems`` has a line for each reason. ``status`` is its exit status, or 1 if
    it did not exit."""

    def __init__(self, problems: list[str], status: int = 1) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.status = status


@asynccontextmanager
async def child_mesh(config: Path, progress: Callable[[str], None]) -> AsyncIterator[str]:
    """Yields the URL of a mesh that runs this config. ``progress`` is called with each line about its start.
    Raises `ChildMeshFailed`."""
    with tempfile.TemporaryDirectory(prefix="mesh-chat-") as scratch:
        port, report = _free_port(), Path(scratch) / "problems.json"
        child = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "mesh.cli",
                "up",
                str(config),
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
            ),
            *("--log-level", "error", "--problems-file", str(report)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_end_with_parent(os.getpid()),
            limit=_MAX_LINE,
        )
        assert child.stdout is not None and child.stderr is not None
        last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        is_up = asyncio.Event()

        def take(line: str) -> None:
            last_lines.append(line)
            if not is_up.is_set():
                progress(line.removeprefix("mesh:").strip(" …"))

        # stdout tells people about the start. stderr has the log, problems and tracebacks.
        reading = asyncio.gather(_read(child.stdout, take), _read(child.stderr, last_lines.append))
        try:
            url = f"http://127.0.0.1:{port}"
            await _wait_until_up(child, url, report, reading, last_lines)
            is_up.set()
            yield url
        finally:
            progress("stopping")
            await _stop(child)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _read(output: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    """Reads all output. A child whose output nobody reads would block."""
    while True:
        try:
            line = await output.readline()
        except ValueError:  # a line over the limit: asyncio has dropped what it had read of it
            continue
        if not line:
            return
        if text := line.decode(errors="replace").strip():
            take(text)


async def _wait_until_up(
    child: asyncio.subprocess.Process,
    url: str,
    report: Path,
    reading: asyncio.Future[tuple[None, None]],
    last_lines: Sequence[str],
) -> None:
    ended = asyncio.create_task(child.wait())
    try:
        async with asyncio.timeout(UP_WITHIN_S), httpx2.AsyncClient(trust_env=False) as http:
            while not await _is_ready(http, url):
                if (await asyncio.wait({ended}, timeout=_POLL_S))[0]:
                    # What the child printed last may still be in the pipes, which its own children may hold
                    # open.
                    await asyncio.wait({reading}, timeout=_DRAIN_WITHIN_S)
                    status = child.returncode or 1
                    raise ChildMeshFailed(_problems(report, status, last_lines), status)
    except TimeoutError:
        last = last_lines[-1] if last_lines else "it printed nothing"
        raise ChildMeshFailed([f"mesh up is not ready after {UP_WITHIN_S:g} s: {last}"]) from None
    finally:
        ended.cancel()


def _problems(report: Path, status: int, last_lines: Sequence[str]) -> list[str]:
    """Returns the problems that ``mesh up`` reported. If it ended without a report, as by a bug, returns the
    last lines that it printed."""
    if report.exists():
        return msgspec.json.decode(report.read_bytes(), type=list[str])
    return [f"mesh up ended with status {status}", *last_lines]


async def _is_ready(http: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/ready")).status_code == 200
    except httpx2.TransportError:
        return False


async def _stop(child: asyncio.subprocess.Process) -> None:
    """Terminates the child in order. Its own watchdog ends what it had started, even if the child is
    killed."""
    if child.returncode is not None:
        return
    child.terminate()
    try:
        await asyncio.wait_for(child.wait(), DOWN_WITHIN_S)
    except TimeoutError:
        child.kill()
        await child.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def _end_with_parent(parent: int) -> Callable[[], None]:
    """Returns what the child calls before it becomes ``mesh up``: it requests a SIGTERM for when its parent
    dies."""
    request_signal = signal_on_parent_death(signal.SIGTERM)

    def ask() -> None:
        if request_signal() and os.getppid() != parent:  # the parent died before the request
            os._exit(1)

    return ask

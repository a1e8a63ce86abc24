"""Runs ``mesh up`` as a child process while the chat lasts.

The child has a session of its own, so that Ctrl-C in the terminal reaches only the chat. On Linux the kernel
terminates the child if the chat is killed; elsewhere the child ends only if the chat ends in order.
"""

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2

from mesh.core.errors import MeshError
from mesh.processes.guard import signal_on_parent_death

UP_WITHIN_S = 180.0
DOWN_WITHIN_S = 20.0
_POLL_S = 0.1
_LINES_KEPT = 40
_LAST_LINES = 5
_MAX_LINE = 64 * 1024


class EmbeddedMeshFailed(MeshError):
    """The mesh did not start. ``problems`` has a line for each reason. ``status`` is its exit status, or 1 if
    it did not exit."""

    def __init__(self, problems: list[str], status: int = 1) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.status = status


@asynccontextmanager
async def embedded(config: Path, progress: Callable[[str], None]) -> AsyncIterator[str]:
    """Yields the URL of a mesh that runs this config. ``progress`` is called with each line about its start.
    Raises `EmbeddedMeshFailed`."""
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "mesh.cli",
        "up",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--log-level",
        "error",
    ]
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_end_with_parent(os.getpid()),
        limit=_MAX_LINE,
    )
    output_lines: deque[str] = deque(maxlen=_LINES_KEPT)
    is_up = asyncio.Event()

    def take(line: str) -> None:
        output_lines.append(line)
        if not is_up.is_set() and not line.startswith("time="):  # a line of the log
            progress(line.removeprefix("mesh:").strip(" …"))

    assert child.stdout is not None
    reader = asyncio.create_task(_read(child.stdout, take))
    try:
        url = f"http://127.0.0.1:{port}"
        await _up(child, url, output_lines)
        is_up.set()
        yield url
    finally:
        progress("stopping")
        await _stop(child)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


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


async def _up(child: asyncio.subprocess.Process, url: str, output_lines: deque[str]) -> None:
    ended = asyncio.create_task(child.wait())
    try:
        async with asyncio.timeout(UP_WITHIN_S), httpx2.AsyncClient(trust_env=False) as http:
            while not await _is_ready(http, url):
                if (await asyncio.wait({ended}, timeout=_POLL_S))[0]:
                    status = child.returncode or 1
                    raise EmbeddedMeshFailed(_problems(output_lines, status), status)
    except TimeoutError:
        last = output_lines[-1] if output_lines else "it output_lines nothing"
        raise EmbeddedMeshFailed([f"mesh up is not ready after {UP_WITHIN_S:g} s: {last}"]) from None
    finally:
        ended.cancel()


def _problems(output_lines: Iterable[str], status: int) -> list[str]:
    """Returns the problems that ``mesh up`` printed, or the last lines of its output if it printed none."""
    lines = list(output_lines)
    own = [line.removeprefix("mesh: ") for line in lines if line.startswith("mesh: ")]
    told = ("stopped", "warning: ")
    problems = [line for line in own if not line.startswith(told) and not line.endswith("…")]
    return problems or [f"mesh up ended with status {status}", *lines[-_LAST_LINES:]]


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

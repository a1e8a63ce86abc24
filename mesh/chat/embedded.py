"""A mesh of one's own: ``mesh up`` as a child process, for as long as the chat lasts.

It has a session of its own, so that Ctrl-C in the terminal is the chat's alone, and the system ends it when
the chat is killed (Linux; elsewhere only what ends the chat in order ends the mesh).
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
_LOOK_S = 0.1
_LINES_KEPT = 40
_LAST_WORDS = 5
_MOST_LINE = 64 * 1024


class CannotEmbed(MeshError):
    """The mesh did not come up: a line for each problem. ``status`` is how it ended, 1 if it did not."""

    def __init__(self, problems: list[str], status: int = 1) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.status = status


@asynccontextmanager
async def embedded(config: Path, progress: Callable[[str], None]) -> AsyncIterator[str]:
    """The URL of a mesh that runs this config. ``progress`` is told what it is doing, a line at a time.
    Raises `CannotEmbed`."""
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
        limit=_MOST_LINE,
    )
    said: deque[str] = deque(maxlen=_LINES_KEPT)
    is_up = asyncio.Event()

    def take(line: str) -> None:
        said.append(line)
        if not is_up.is_set() and not line.startswith("time="):  # that would be its log
            progress(line.removeprefix("mesh:").strip(" …"))

    assert child.stdout is not None
    reader = asyncio.create_task(_read(child.stdout, take))
    try:
        url = f"http://127.0.0.1:{port}"
        await _up(child, url, said)
        is_up.set()
        yield url
    finally:
        progress("stopping")
        await _stop(child)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def _read(output: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    """Reads all there is: a child whose output nobody reads stands still."""
    while True:
        try:
            line = await output.readline()
        except ValueError:  # longer than the limit: what was read of it is gone
            continue
        if not line:
            return
        if text := line.decode(errors="replace").strip():
            take(text)


async def _up(child: asyncio.subprocess.Process, url: str, said: deque[str]) -> None:
    ended = asyncio.create_task(child.wait())
    try:
        async with asyncio.timeout(UP_WITHIN_S), httpx2.AsyncClient(trust_env=False) as http:
            while not await _is_ready(http, url):
                if (await asyncio.wait({ended}, timeout=_LOOK_S))[0]:
                    status = child.returncode or 1
                    raise CannotEmbed(_problems(said, status), status)
    except TimeoutError:
        last = said[-1] if said else "it said nothing"
        raise CannotEmbed([f"mesh up is not ready after {UP_WITHIN_S:g} s: {last}"]) from None
    finally:
        ended.cancel()


def _problems(said: Iterable[str], status: int) -> list[str]:
    """What ``mesh up`` said is wrong; if it said nothing of that kind, the last of what it did say."""
    lines = list(said)
    own = [line.removeprefix("mesh: ") for line in lines if line.startswith("mesh: ")]
    told = ("stopped", "warning: ")
    problems = [line for line in own if not line.startswith(told) and not line.endswith("…")]
    return problems or [f"mesh up ended with status {status}", *lines[-_LAST_WORDS:]]


async def _is_ready(http: httpx2.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/ready")).status_code == 200
    except httpx2.TransportError:
        return False


async def _stop(child: asyncio.subprocess.Process) -> None:
    """Ends it in order. Its own watchdog ends what it started, whatever happens to it."""
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
    """What the child does before it becomes ``mesh up``: asks for SIGTERM when its parent dies."""
    request_signal = signal_on_parent_death(signal.SIGTERM)

    def ask() -> None:
        if request_signal() and os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return ask

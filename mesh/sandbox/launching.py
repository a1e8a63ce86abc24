"""The server's side of a command: gives the order to the launcher, reads what it writes, and waits for its
end."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Self

import anyio

import mesh
from mesh.processes.content_file import content_file
from mesh.sandbox.order import End, Order, end_of

_CHUNK = 1 << 16
_HAND_OVER_S = 5.0
_AFTER_END_S = 1.0
"""For output that is still in the pipe when nothing is left that could write to it."""
STOPS_WITHIN_S = 10.0

Take = Callable[[bytes], None]


def _ignored(end: End) -> None:
    """Nobody wants to know."""


class LauncherGone(Exception):
    """The launcher, or who watches over a command, was killed: it is not known what came of the command."""


class Launcher:
    """The process of `mesh.sandbox.launcher`. Start it in the main thread: the kernel ends it with the
    thread that started it."""

    def __init__(self) -> None:
        self._control, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.settimeout(_HAND_OVER_S)
        self._takes_orders = True
        with far:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "mesh.sandbox.launcher", str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[far.fileno()],
                env={"PYTHONUTF8": "1", "PYTHONPATH": str(Path(mesh.__path__[0]).parent)},
                cwd="/",
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Ends the commands under way, too."""
        self._control.close()
        try:
            self._process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_there(self) -> bool:
        return self._takes_orders and self._process.poll() is None

    async def run(
        self,
        order: Order,
        stdout: Take,
        stderr: Take,
        *,
        stdin: socket.socket | None = None,
        if_cancelled: Callable[[End], object] = _ignored,
    ) -> End:
        """Runs a command to its end. ``stdin`` is what it has as its stdin, which is closed here; without, it
        has nothing to read. If this is cancelled, the command is stopped, nothing of it is left when
        the error is raised, and ``if_cancelled`` gets its end. Raises `LauncherGone`."""
        with stdin or nullcontext():
            link, outputs = self._hand_over(order, stdin)
        readers = [
            asyncio.create_task(_read(output, take))
            for output, take in zip(outputs, (stdout, stderr), strict=True)
        ]
        with link:
            link.setblocking(False)
            try:
                return await _ended(link)
            except asyncio.CancelledError:
                if end := await _stopped(link):
                    if_cancelled(end)
                raise
            finally:
                with anyio.CancelScope(shield=True):
                    await _finished(readers)

    def _hand_over(self, order: Order, stdin: socket.socket | None) -> tuple[socket.socket, tuple[int, int]]:
        """Gives an order to the launcher. Returns the socket of who watches over the command, and where its
        stdout and stderr are read."""
        link, far = socket.socketpair()
        (stdout, out), (stderr, err) = os.pipe(), os.pipe()
        given_in = os.dup(stdin.fileno()) if stdin else os.open(os.devnull, os.O_RDONLY)
        try:
            with far, content_file(order.to_json()) as request:
                socket.send_fds(self._control, [b"\0"], [request, given_in, out, err, far.fileno()])
        except OSError as error:
            self._takes_orders = False  # it may take a moment until the kernel says that it is gone
            link.close()
            os.close(stdout)
            os.close(stderr)
            raise LauncherGone("the process that starts commands is gone: start the server again") from error
        finally:
            for given in (given_in, out, err):
                os.close(given)
        return link, (stdout, stderr)


async def _stopped(link: socket.socket) -> End | None:
    """Has the command ended, and waits for that whatever is cancelled meanwhile. Returns None if that takes
    too long, or who watched over it was killed."""
    link.shutdown(socket.SHUT_WR)
    with anyio.CancelScope(shield=True), suppress(LauncherGone, TimeoutError):
        async with asyncio.timeout(STOPS_WITHIN_S):
            return await _ended(link)
    return None


async def _ended(link: socket.socket) -> End:
    loop = asyncio.get_running_loop()
    text = b""
    while chunk := await loop.sock_recv(link, _CHUNK):
        text += chunk
    if not text:
        raise LauncherGone("who watched over the command was killed: it is not known what came of it")
    return end_of(text)


async def _read(descriptor: int, take: Take) -> None:
    stream = asyncio.StreamReader(limit=_CHUNK)
    pipe = os.fdopen(descriptor, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), pipe
    )
    try:
        while chunk := await stream.read(_CHUNK):
            take(chunk)
    finally:
        transport.close()


async def _finished(readers: Sequence[asyncio.Task[None]]) -> None:
    """Waits for the rest of the output; but not for a process that nobody can end."""
    await asyncio.wait(readers, timeout=_AFTER_END_S)
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)

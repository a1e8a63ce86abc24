"""The one process of ``mesh up`` that uses Ray.

It starts Ray or joins it, brings the mesh up, waits, and takes it down again. A process whose Ray died is of
no use any more: Ray's client library waits for a minute, may abort, and does not start twice reliably. So
the supervisor (`deployments.supervisor`) forks this process, never uses Ray itself, and replaces this one as
a whole.

    supervisor ──SIGTERM──►  driver
               ◄──messages──
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from rich.console import Console

from deployments.mesh import Mesh
from mesh.core.errors import MeshError
from mesh.runtime.logs import fields, set_up

_LOOK_S = 0.2
_NOTICE_WITHIN_S = 2.0
_PROBE_EVERY_S = 2.0
_GONE_AFTER_S = 30.0
"""How long a cluster that was joined may be silent: a head that keeps its state may come back."""

_log = logging.getLogger("mesh.driver")


@dataclass(frozen=True)
class Progress:
    """A step of the start is done: there may be new processes. ``logs``: where Ray keeps its logs."""

    logs: str = ""


@dataclass(frozen=True)
class Ready:
    """The mesh answers."""


@dataclass(frozen=True)
class Failed:
    """The mesh did not come up, or the cluster that was joined is gone: why, for people."""

    why: str


Message = Progress | Ready | Failed


class Driver:
    """The process, seen from the supervisor. ``close_in_child`` is called in it first: it lets go of what
    must not be held there. What it prints goes to the file ``output``, except what the mesh says on its
    ``console``."""

    def __init__(
        self, mesh: Mesh, console: Console, output: Path, close_in_child: Callable[[], None]
    ) -> None:
        context = multiprocessing.get_context("fork")  # Invariant: the supervisor has one thread
        self._messages, theirs = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(mesh, console, theirs, output, close_in_child), name="driver"
        )
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def message(self) -> Message | None:
        """The next message, if there is one."""
        try:
            return self._messages.recv() if self._messages.poll() else None
        except EOFError:
            return None

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def how_it_ended(self) -> str:
        """For people."""
        status = self._process.exitcode or 0
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"

    def stop(self, within_s: float) -> None:
        """Asks it to take the mesh down, and waits for that."""
        self._process.terminate()
        self._process.join(within_s)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._messages.close()


def _run(
    mesh: Mesh, console: Console, supervisor: Connection, output: Path, close_in_child: Callable[[], None]
) -> None:
    close_in_child()
    _send_output_to(output, console)
    set_up()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        _drive(mesh, supervisor, stop)
    except MeshError as problem:
        supervisor.send(Failed(str(problem)))
    except Exception:  # noqa: BLE001 - a defect: people get its traceback, from the supervisor
        supervisor.send(Failed(traceback.format_exc()))
    finally:
        mesh.stop()


def _drive(mesh: Mesh, supervisor: Connection, stop: threading.Event) -> None:
    started = _beside(partial(mesh.start, stop, lambda: supervisor.send(Progress(mesh.logs))))
    while not (stop.is_set() or started.done()):
        wait([started], _LOOK_S)
    is_over = bool(wait([started], _NOTICE_WITHIN_S).done)
    if not is_over and mesh.is_ours:
        os._exit(0)  # it waits in Ray's native code; the supervisor ends all that was started
    if stop.is_set():
        return  # a start that failed was stopped: what it misses was told to stop as well
    started.result()
    supervisor.send(Ready())
    _await_end(mesh, stop)


def _await_end(mesh: Mesh, stop: threading.Event) -> None:
    """Waits until it is told to stop. Raises `MeshError` when a cluster that was joined is gone; the daemons
    of a Ray of our own are the supervisor's business."""
    silent_since: float | None = None
    while not stop.wait(_PROBE_EVERY_S):
        why = mesh.silence()
        if not why:
            silent_since = None
        elif silent_since is None:
            silent_since = time.monotonic()
            _log.warning("event=ray_silent %s", fields(why=why))
        elif time.monotonic() - silent_since > _GONE_AFTER_S:
            raise MeshError(f"the Ray that was joined is gone: {why}")


def _send_output_to(path: Path, console: Console) -> None:
    """When a process dies, Ray's client library writes long reports to both streams. The supervisor says what
    happened in a line, so people get what goes to the console only."""
    console.file = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
    os.close(file)


def _beside(work: Callable[[], None]) -> Future[None]:
    """Does it in a thread of its own. Ray's start waits in native code, for minutes: in the main thread no
    signal would be heard so long, and Ray would put handlers of its own there."""
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
            outcome.set_result(None)
        except BaseException as problem:  # noqa: BLE001 - whoever waits for the outcome gets it
            outcome.set_exception(problem)
        # Invariant: the thread lives on. Ray's daemons die with their parent (PR_SET_PDEATHSIG), and that is
        # the thread which started them.
        threading.Event().wait()

    threading.Thread(target=run, name="start", daemon=True).start()
    return outcome

"""The only process of ``mesh up`` that uses Ray.

It starts or joins Ray, starts the mesh, waits, and stops the mesh again. A process whose Ray has died cannot
recover: Ray's client library blocks for a minute, may abort, and does not start reliably a second time. So
the supervisor (`deployments.supervisor`) forks this process, never uses Ray itself, and replaces this process
as a whole.

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

_POLL_S = 0.2
_NOTICE_STOP_WITHIN_S = 2.0
_PROBE_EVERY_S = 2.0
_RAY_WAITS = "RAY_gcs_rpc_server_reconnect_timeout_s"
"""Ray's setting for how long its processes wait for a head that is away. A head whose control store is
durable may come back within that time."""
_RAY_WAITS_S = 60.0
_BEFORE_RAY_S = 15.0
"""So much earlier than Ray's client library ends this process, which says less, we end it ourselves."""

_log = logging.getLogger("mesh.driver")


@dataclass(frozen=True)
class StepDone:
    """A step of the start is done, so there may be new processes. ``logs`` is the directory of Ray's logs."""

    logs: str = ""


@dataclass(frozen=True)
class MeshReady:
    """The mesh has started and answers requests, at the HTTP edge of a host."""

    host: str


@dataclass(frozen=True)
class DriverFailed:
    """The mesh did not start, or the cluster that was joined is gone. ``why`` says the reason to people."""

    why: str


DriverMessage = StepDone | MeshReady | DriverFailed


class DriverProcess:
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

    def message(self) -> DriverMessage | None:
        """Returns the next message, or None if there is none."""
        try:
            return self._messages.recv() if self._messages.poll() else None
        except EOFError:
            return None

    def has_ended(self) -> bool:
        return not self._process.is_alive()

    def how_it_ended(self) -> str:
        """Returns how the process ended, for people."""
        status = self._process.exitcode or 0
        return f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"

    def stop(self, within_s: float) -> str:
        """Asks the driver to stop the mesh, and waits for that. Returns how it ended, for people, if it did
        not get to the end of its work; empty if it did."""
        self._process.terminate()
        self._process.join(within_s)
        if not self.has_ended():
            return f"not within {within_s:g} s"
        return self.how_it_ended() if self._process.exitcode else ""

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

    def stop_soon(*_: object) -> None:
        # Ray's client library has a handler of its own before this one, which has an alarm end the process
        # with SIGABRT after three seconds (ray 2.60). To leave a cluster may take longer.
        signal.alarm(0)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_soon)
    try:
        _drive(mesh, supervisor, stop)
    except MeshError as problem:
        supervisor.send(DriverFailed(str(problem)))
    except Exception:  # noqa: BLE001 - a bug: the supervisor prints its traceback
        supervisor.send(DriverFailed(traceback.format_exc()))
    finally:
        mesh.stop()


def _drive(mesh: Mesh, supervisor: Connection, stop: threading.Event) -> None:
    started = _in_thread(partial(mesh.start, stop, lambda: supervisor.send(StepDone(mesh.logs))))
    while not (stop.is_set() or started.done()):
        wait([started], _POLL_S)
    is_over = bool(wait([started], _NOTICE_STOP_WITHIN_S).done)
    if not is_over and mesh.is_ours:
        os._exit(0)  # the start blocks in Ray's native code; the supervisor ends what was started
    if stop.is_set():
        return  # the start may have failed only because the signal reached what it needs, too
    started.result()
    supervisor.send(MeshReady(mesh.reached))
    if mesh.may_change:
        # In a thread of its own, because Ray may keep it waiting when its head does not answer.
        following = threading.Thread(target=_follow, args=(mesh, stop), name="keepers", daemon=True)
        following.start()
    try:
        _await_end(mesh, stop)
    finally:
        stop.set()
        if mesh.may_change:  # it must not use Ray while the mesh leaves it
            following.join(_NOTICE_STOP_WITHIN_S)


def _follow(mesh: Mesh, stop: threading.Event) -> None:
    from ray.exceptions import RayError

    while not stop.wait(_PROBE_EVERY_S):
        try:
            mesh.follow()
        except (RayError, RuntimeError, ValueError) as problem:  # tried again; `_await_end` says what is gone
            _log.warning("event=keepers_not_followed %s", fields(why=problem))


def _await_end(mesh: Mesh, stop: threading.Event) -> None:
    """Waits until it is told to stop. Raises `MeshError` when a cluster that was joined is gone; the daemons
    of a Ray of our own are the supervisor's business."""
    silent_since: float | None = None
    gone_after_s = max(_PROBE_EVERY_S, float(os.environ.get(_RAY_WAITS) or _RAY_WAITS_S) - _BEFORE_RAY_S)
    while not stop.wait(_PROBE_EVERY_S):
        why = mesh.why_unreachable()
        if not why:
            silent_since = None
        elif silent_since is None:
            silent_since = time.monotonic()
            _log.warning("event=ray_silent %s", fields(why=why))
        elif time.monotonic() - silent_since > gone_after_s:
            raise MeshError(f"the Ray that was joined is gone: {why}")


def _send_output_to(path: Path, console: Console) -> None:
    """Sends both streams to a file, and leaves only the console on the terminal.

    When a process dies, Ray's client library writes long reports to the streams. The supervisor reports the
    same in one line.
    """
    console.file = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(file, stream.fileno())
    os.close(file)


def _in_thread(work: Callable[[], None]) -> Future[None]:
    """Runs the start in a thread of its own.

    Ray's start blocks in native code for minutes. In the main thread no signal would be handled meanwhile,
    and Ray would install handlers of its own.
    """
    outcome: Future[None] = Future()

    def run() -> None:
        try:
            work()
            outcome.set_result(None)
        except BaseException as problem:  # noqa: BLE001 - the outcome raises it where it is awaited
            outcome.set_exception(problem)
        # Invariant: the thread never ends. Ray's daemons get a signal when their parent dies
        # (PR_SET_PDEATHSIG), and their parent is the thread that started them.
        threading.Event().wait()

    threading.Thread(target=run, name="start", daemon=True).start()
    return outcome

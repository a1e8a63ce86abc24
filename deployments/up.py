"""``mesh up``: brings agents up on Ray, says when they are ready, and takes down what it started."""

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console

from deployments import descendants, edge
from deployments.mesh import Mesh
from mesh.config import Config

_LOOK_UP_S = 0.2
_NOTICE_WITHIN_S = 2.0
_UPDATE_WILL_S = 10.0


def up(config: Config, console: Console, *others: Config) -> None:
    """Runs the agent, and others beside it, until SIGINT or SIGTERM. They have one host and port, and differ
    in name and ``data_dir``. Raises `MeshError` when one of them cannot start."""
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="mesh-", ignore_cleanup_errors=True) as scratch,
        _signals(stop),
        descendants.LastWill(Path(scratch)) as will,
    ):
        descendants.adopt()
        edge.prepare(os.environ, config.host, Path(scratch))
        if os.environ.get("RAY_ADDRESS"):
            edge.prepare_to_join(os.environ, Path.home())
        else:
            edge.prepare_alone(os.environ)
        mesh = Mesh((config, *others), console, will, Path(scratch))
        started = _beside(partial(mesh.start, stop))
        try:
            while not (stop.is_set() or started.done()):
                wait([started], _LOOK_UP_S)
            is_over = bool(wait([started], _NOTICE_WITHIN_S).done)
            if not is_over and mesh.is_ours:
                mesh.end_now(0)
            if not stop.is_set():
                started.result()
            # Else a start that failed was stopped: what it misses was told to stop as well.
            while not stop.wait(_UPDATE_WILL_S):
                will.update()
        finally:
            mesh.stop()


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


@contextmanager
def _signals(stop: threading.Event) -> Iterator[None]:
    """Makes SIGINT and SIGTERM set the event."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: stop.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

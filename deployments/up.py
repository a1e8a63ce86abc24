"""``mesh up``: starts agents on Ray, says when they are ready, and stops what it started."""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from deployments import edge
from deployments.restarts import RestartPolicy
from deployments.supervisor import Supervisor
from mesh.config.model import Config
from mesh.config.several_agents import path_of
from mesh.disk.holder import Holder, held
from mesh.processes.descendants import adopt_orphans
from mesh.processes.watchdog import Watchdog
from mesh.runtime.log_relay import LogRelay
from mesh.runtime.options import RunOptions

_FLUSH_WITHIN_S = 1.0


def up(config: Config, console: Console, *others: Config, options: RunOptions) -> None:
    """Runs an agent, and others beside it, until SIGINT or SIGTERM. The agents share host and port, and
    differ in name and ``data_dir``. Raises `MeshError` if one of them cannot start, or Ray dies too often."""
    stop = threading.Event()
    with (
        _data_dirs_held((config, *others)),
        tempfile.TemporaryDirectory(prefix="mesh-", ignore_cleanup_errors=True) as scratch,
        _signals(stop),
        Watchdog(Path(scratch)) as watchdog,
    ):
        adopt_orphans()
        edge.prepare(os.environ, Path(scratch))
        if os.environ.get("RAY_ADDRESS"):
            edge.prepare_to_join(os.environ, Path.home())
        else:
            edge.prepare_alone(os.environ, config.host, Path(scratch))
        relay = LogRelay(sys.stderr.fileno(), options.log_level, options.log_format)
        policy = RestartPolicy(most=options.max_restarts)
        try:
            supervisor = Supervisor(
                (config, *others),
                console,
                watchdog,
                Path(scratch),
                relay,
                policy,
                stop,
                with_web=options.web,
                with_dashboard=options.dashboard,
            )
            supervisor.run()
        finally:
            relay.flush(_FLUSH_WITHIN_S)


@contextmanager
def _data_dirs_held(configs: Sequence[Config]) -> Iterator[None]:
    """Holds the data directory of each agent. A cluster that is joined has one set of keepers, whichever of
    several meshes on it has made them. Raises `MeshError`."""
    address = edge.url_of(configs[0].host, configs[0].port)
    shared = bool(os.environ.get("RAY_ADDRESS"))
    with ExitStack() as stack:
        for config in configs:
            url = f"{address}{path_of(config.name, alone=len(configs) == 1)}".rstrip("/")
            stack.enter_context(held(config.data_dir, Holder("mesh up", url), shared=shared))
        yield


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

"""``mesh up``: brings an agent up on Ray, says when it is ready, and takes down what it started.

start or join Ray ─► keepers, MCP sessions, nodes ─► Serve ingress ─► ready ─► wait ─► down
"""

import logging
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from deployments import cluster, descendants, edge
from deployments.blueprint import blueprint_of, demand
from deployments.cluster import CannotStart
from mesh.config import Config

_START_WITHIN_S = 120.0
_START_EACH_S = 3.0
_LOOK_UP_S = 0.2
_NOTICE_WITHIN_S = 2.0
_CLOSE_WITHIN_S = 4.0
_STOP_WITHIN_S = 5.5
_UPDATE_WILL_S = 10.0


def up(config: Config, console: Console) -> None:
    """Runs the agent until SIGINT or SIGTERM. Raises `MeshError` when it cannot start."""
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
        mesh = _Mesh(config, console, will, Path(scratch))
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


class _Mesh:
    """What one ``mesh up`` started."""

    def __init__(self, config: Config, console: Console, will: descendants.LastWill, scratch: Path) -> None:
        self._config = config
        self._console = console
        self._will = will
        self._scratch = scratch
        self.is_ours = not os.environ.get("RAY_ADDRESS")
        self._blueprint = blueprint_of(config, one_machine=self.is_ours)
        self._actors: dict[str, Any] = {}
        self._serving = False
        self._brought_serve = False
        self._dashboard = ""
        self._lacking = ""

    def start(self, stop: threading.Event) -> None:
        """Returns when all answers, or as soon as somebody wants to stop."""
        begun = time.monotonic()
        steps = (
            self._start_ray,
            self._make_actors,
            self._start_serve,
            partial(self._await_actors, stop),
            self._start_edge,
            partial(self._await_answer, stop),
        )
        for step in steps:
            if not stop.is_set():
                step()
                self._will.update()
        if not stop.is_set():
            self._say_ready(time.monotonic() - begun)

    def stop(self) -> None:
        """Takes down everything that was started, within a bounded time."""
        self._say("stopping")
        ours = descendants.all_of_them()
        watchdog = threading.Timer(_STOP_WITHIN_S, self.end_now, (1,))
        watchdog.daemon = True
        watchdog.start()
        self._leave_ray()
        descendants.sweep(ours, grace_s=1.0)
        watchdog.cancel()
        self._say("stopped")

    def end_now(self, status: int) -> NoReturn:
        """Ray does not let go in time: all that was started dies, and so does this process."""
        descendants.sweep(descendants.all_of_them(), grace_s=1.0)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._say("stopped")
        os._exit(status)

    def _leave_ray(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        try:
            if self._serving and not self.is_ours:
                cluster.leave_serve(
                    self._blueprint.agent, shut_down=self._brought_serve, within_s=_CLOSE_WITHIN_S
                )
            closing = [a.close.remote() for name, a in self._actors.items() if not name.startswith("node")]
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_WITHIN_S)
            for actor in self._actors.values():
                ray.kill(actor)
        except ray.exceptions.RayError as problem:
            # Whoever told us to stop may have told Ray's processes too.
            self._console.print(
                f"[dim]mesh:[/] Ray is gone already ({type(problem).__name__})", highlight=False
            )
        ray.shutdown()

    def _start_ray(self) -> None:
        self._say("starting Ray" if self.is_ours else f"joining Ray at {os.environ['RAY_ADDRESS']}")
        self._dashboard = cluster.start_local() if self.is_ours else cluster.join(os.environ["RAY_ADDRESS"])

    def _make_actors(self) -> None:
        """Asks for all of them; they start beside each other, and beside Serve."""
        from deployments import actors

        blueprint = self._blueprint
        self._lacking = ", ".join(cluster.lacking(demand(blueprint)))
        if self._lacking and self.is_ours:
            raise CannotStart(f"this machine has too little for the nodes' resources: {self._lacking}")
        for shard in range(blueprint.keepers):
            self._actors[f"keeper {shard}"] = actors.keeper(blueprint, shard)
        for server in self._config.servers:
            self._actors[f"mcp {server.name}"] = actors.mcp_session(blueprint, server.name)
        for path, placement in blueprint.nodes.items():
            for replica in range(placement.replicas):
                name = f"node {path} {placement.name}/{replica}"
                self._actors[name] = actors.node(blueprint, path, replica)

    def _start_serve(self) -> None:
        from ray import serve

        config = self._config
        self._say(f"starting {len(self._actors)} actors and the HTTP edge")
        self._serving = True
        self._brought_serve = not cluster.has_serve()
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        with _edge_trouble():
            serve.start(
                http_options={"host": config.host, "port": config.port, "location": "EveryNode"},
                logging_config={"enable_access_log": False, "log_level": "WARNING"},
            )

    def _await_actors(self, stop: threading.Event) -> None:
        import ray

        waiting = {actor.ready.remote(): name for name, actor in self._actors.items()}
        total = len(waiting)
        within_s = _START_WITHIN_S + _START_EACH_S * total
        deadline = time.monotonic() + within_s
        while waiting and not stop.is_set():
            done, _ = ray.wait(list(waiting), timeout=_LOOK_UP_S)
            if not done and time.monotonic() < deadline:
                continue
            if not done:
                why = f"the cluster has too little of {self._lacking}" if self._lacking else _logs()
                raise CannotStart(f"not up after {within_s:g} s: {', '.join(waiting.values())}; {why}")
            name = waiting.pop(done[0])
            try:
                ray.get(done[0])
            except ray.exceptions.RayError as problem:
                raise CannotStart(f"{name} cannot start: {_cause(problem)}") from problem
            self._say(f"actor {total - len(waiting)} of {total}: {name}")

    def _start_edge(self) -> None:
        from ray import serve

        from deployments.app import build

        self._say("starting the gateway")
        with _edge_trouble():
            serve.run(build(self._blueprint), name=self._blueprint.agent, route_prefix="/", blocking=False)

    def _await_answer(self, stop: threading.Event) -> None:
        """Serve says that it runs a moment before its edge routes to it."""
        import httpx

        deadline = time.monotonic() + _START_WITHIN_S
        while time.monotonic() < deadline and not stop.is_set():
            try:
                if httpx.get(f"{self._url}/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        if not stop.is_set():
            raise CannotStart(f"{self._url}/ready does not answer after {_START_WITHIN_S:g} s; {_logs()}")

    @property
    def _url(self) -> str:
        host = "127.0.0.1" if edge.is_open(self._config.host) else self._config.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self._config.port}"

    def _say_ready(self, seconds: float) -> None:
        say, url = self._console.print, self._url
        say(
            f"\n[bold green]ready[/] after {seconds:.1f} s: agent [bold]{self._blueprint.agent}[/]",
            highlight=False,
        )
        rows = {
            "API": url,
            "docs": f"{url}/docs",
            "Ray dashboard": self._dashboard and f"http://{self._dashboard}",
        }
        for name, value in rows.items():
            if value:
                say(f"  {name:14} {value}", highlight=False)
        if self.is_ours and self._dashboard:
            say(f"  {'':14} (it asks for a token: .venv/bin/ray get-auth-token)", highlight=False)
        if edge.is_open(self._config.host):
            say(f"  {'':14} open on every interface; --host 127.0.0.1 closes it", highlight=False)
        say("\ntry it:\n", highlight=False)
        command = f"""curl -s {url}/conversations -d '{{"message": "list all resources"}}'"""
        say(f"  {command}\n", highlight=False, soft_wrap=True)
        say("Ctrl-C stops everything.", style="dim", highlight=False)

    def _say(self, text: str) -> None:
        self._console.print(
            f"[dim]mesh:[/] {text} …" if text != "stopped" else "[dim]mesh:[/] stopped", highlight=False
        )


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


@contextmanager
def _edge_trouble() -> Iterator[None]:
    """What Serve raises, as a line for people."""
    try:
        yield
    except RuntimeError as problem:
        raise CannotStart(f"the HTTP edge cannot start: {_cause(problem)}; {_logs()}") from problem


def _cause(problem: Exception) -> str:
    """What went wrong, in a line: without Ray's wrapping, and without the notices of a program's output."""
    inner = getattr(problem, "cause", None) or problem
    lines = [line.strip() for line in str(inner).splitlines() if line.strip() and "[NOTICE]" not in line]
    return (lines[-1] if inner is problem else lines[0])[:500] if lines else repr(inner)


def _logs() -> str:
    return "the actors' logs are in /tmp/ray/session_latest/logs"

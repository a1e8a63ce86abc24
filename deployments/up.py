"""``mesh up``: brings an agent up on Ray, says when it is ready, and takes down what it started.

start or join Ray ─► keepers, MCP sessions, nodes ─► Serve ingress ─► ready ─► wait ─► down
"""

import logging
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from deployments import cluster, descendants, edge
from deployments.blueprint import blueprint_of, demand
from deployments.cluster import CannotStart
from mesh.config import Config

_START_WITHIN_S = 120.0
_START_EACH_S = 3.0
_LOOK_UP_S = 0.5
_CLOSE_WITHIN_S = 4.0
_STOP_WITHIN_S = 10.0
_UPDATE_WILL_S = 10.0


def up(config: Config, console: Console) -> None:
    """Runs the agent until SIGINT or SIGTERM. Raises `MeshError` when it cannot start."""
    stop = threading.Event()
    with (
        tempfile.TemporaryDirectory(prefix="mesh-", ignore_cleanup_errors=True) as scratch,
        _signals(stop) as listen,
        descendants.LastWill() as will,
    ):
        descendants.adopt()
        edge.prepare(os.environ, config.host, Path(scratch))
        if os.environ.get("RAY_ADDRESS"):
            edge.prepare_to_join(os.environ, Path.home())
        mesh = _Mesh(config, console, listen, will)
        try:
            mesh.start(stop)
            while not stop.wait(_UPDATE_WILL_S):
                will.update()
        finally:
            mesh.stop()


class _Mesh:
    """What one ``mesh up`` started."""

    def __init__(
        self, config: Config, console: Console, listen: Callable[[], None], will: descendants.LastWill
    ) -> None:
        self._config = config
        self._console = console
        self._listen = listen
        self._will = will
        self._is_ours = not os.environ.get("RAY_ADDRESS")
        self._blueprint = blueprint_of(config, one_machine=self._is_ours)
        self._actors: dict[str, Any] = {}
        self._serving = False
        self._brought_serve = False
        self._dashboard = ""

    def start(self, stop: threading.Event) -> None:
        """Returns when all answers, or as soon as somebody wants to stop."""
        begun = time.monotonic()
        for step in (self._start_ray, partial(self._start_actors, stop), self._start_edge):
            if not stop.is_set():
                step()
                self._listen()
                self._will.update()
        if not stop.is_set():
            self._say_ready(time.monotonic() - begun)

    def stop(self) -> None:
        """Takes down everything that was started, within a bounded time."""
        self._say("stopping")
        ours = descendants.all_of_them()
        watchdog = threading.Timer(_STOP_WITHIN_S, _end_now, (ours,))
        watchdog.daemon = True
        watchdog.start()
        self._leave_ray()
        descendants.sweep(ours, grace_s=1.0)
        watchdog.cancel()
        self._say("stopped")

    def _leave_ray(self) -> None:
        import ray

        if not ray.is_initialized():
            return
        try:
            if self._serving and not self._is_ours:
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
        self._say("starting Ray" if self._is_ours else f"joining Ray at {os.environ['RAY_ADDRESS']}")
        self._dashboard = cluster.start_local() if self._is_ours else cluster.join(os.environ["RAY_ADDRESS"])

    def _start_actors(self, stop: threading.Event) -> None:
        import ray

        lacking = ", ".join(cluster.lacking(demand(self._blueprint)))
        if lacking and self._is_ours:
            raise CannotStart(f"this machine has too little for the nodes' resources: {lacking}")
        self._make_actors()
        waiting = {actor.ready.remote(): name for name, actor in self._actors.items()}
        total = len(waiting)
        within_s = _START_WITHIN_S + _START_EACH_S * total
        deadline = time.monotonic() + within_s
        while waiting and not stop.is_set():
            done, _ = ray.wait(list(waiting), timeout=_LOOK_UP_S)
            if not done and time.monotonic() < deadline:
                continue
            if not done:
                why = f"the cluster has too little of {lacking}" if lacking else _logs()
                raise CannotStart(f"not up after {within_s:g} s: {', '.join(waiting.values())}; {why}")
            name = waiting.pop(done[0])
            try:
                ray.get(done[0])
            except ray.exceptions.RayError as problem:
                raise CannotStart(f"{name} cannot start: {_cause(problem)}") from problem
            self._say(f"actor {total - len(waiting)} of {total}: {name}")

    def _make_actors(self) -> None:
        from deployments import actors

        blueprint = self._blueprint
        for shard in range(blueprint.keepers):
            self._actors[f"keeper {shard}"] = actors.keeper(blueprint, shard)
        for server in self._config.servers:
            self._actors[f"mcp {server.name}"] = actors.mcp_session(blueprint, server.name)
        for path, placement in blueprint.nodes.items():
            for replica in range(placement.replicas):
                name = f"node {path} {placement.name}/{replica}"
                self._actors[name] = actors.node(blueprint, path, replica)

    def _start_edge(self) -> None:
        from ray import serve

        from deployments.app import build

        config = self._config
        self._say("starting the HTTP edge")
        self._serving = True
        self._brought_serve = not cluster.has_serve()
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        try:
            serve.start(
                http_options={"host": config.host, "port": config.port, "location": "EveryNode"},
                logging_config={"enable_access_log": False, "log_level": "WARNING"},
            )
            serve.run(build(self._blueprint), name=self._blueprint.agent, route_prefix="/", blocking=False)
        except RuntimeError as problem:
            raise CannotStart(f"the HTTP edge cannot start: {_cause(problem)}; {_logs()}") from problem
        self._await_answer()

    def _await_answer(self) -> None:
        """Serve says that it runs a moment before its edge routes to it."""
        import httpx

        deadline = time.monotonic() + _START_WITHIN_S
        while time.monotonic() < deadline:
            try:
                if httpx.get(f"{self._url}/ready", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
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
        if self._is_ours and self._dashboard:
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
def _signals(stop: threading.Event) -> Iterator[Callable[[], None]]:
    """Makes SIGINT and SIGTERM set the event. Ray puts handlers of its own in their place when it
    starts; the yielded function takes them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def listen() -> None:
        for number in before:
            signal.signal(number, lambda *_: stop.set())

    listen()
    try:
        yield listen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_now(processes: list[Any]) -> None:
    """Ray did not let go in time: what it started dies, and so does this process."""
    descendants.sweep(processes, grace_s=1.0)
    os._exit(1)


def _cause(problem: Exception) -> str:
    """What went wrong, in a line: without Ray's wrapping, and without the notices of a program's output."""
    inner = getattr(problem, "cause", None) or problem
    lines = [line.strip() for line in str(inner).splitlines() if line.strip() and "[NOTICE]" not in line]
    return (lines[-1] if inner is problem else lines[0])[:500] if lines else repr(inner)


def _logs() -> str:
    return "the actors' logs are in /tmp/ray/session_latest/logs"

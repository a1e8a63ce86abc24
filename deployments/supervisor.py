"""Keeps a mesh running: starts the driver, watches Ray's daemons, and starts all of it again when Ray died.

The supervisor has one thread, never uses Ray, and never waits for long, so that it can react to a signal at
any moment. It does not restart single actors, which Ray does, nor the Ray of a cluster that was joined, which
is not ours.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from deployments.daemons import Daemons
from deployments.mesh import Mesh
from deployments.ray_driver import DriverFailed, DriverMessage, DriverProcess, MeshReady, StepDone
from deployments.restarts import RestartPolicy
from deployments.web_chat import WebChat
from mesh.config.model import Config
from mesh.core.errors import MeshError
from mesh.processes.descendants import descendants, end_descendants, reap
from mesh.processes.watchdog import Watchdog
from mesh.runtime.log_relay import LogRelay
from mesh.runtime.logs import fields

_TICK_S = 0.25
_CHECK_EVERY_S = 1.0
_UPDATE_WATCHDOG_EVERY_S = 10.0
_STOP_WITHIN_S = 5.5
_LEAVE_WITHIN_S = 20.0
"""A driver that is ended earlier leaves its Serve behind on the cluster that it has joined."""


class RayDied(MeshError):
    """Ray died, or did not start again. The message says why, for people."""


class Supervisor:
    """Runs one mesh until ``stop`` is set."""

    def __init__(
        self,
        configs: Sequence[Config],
        console: Console,
        watchdog: Watchdog,
        scratch: Path,
        relay: LogRelay,
        policy: RestartPolicy,
        stop: threading.Event,
        *,
        with_web: bool,
        with_dashboard: bool,
    ) -> None:
        self._configs = configs
        self._console = console
        self._watchdog = watchdog
        self._scratch = scratch
        self._relay = relay
        self._policy = policy
        self._stop = stop
        self._with_dashboard = with_dashboard
        self._web = WebChat(relay, scratch / "web.err", watchdog.close_in_child) if with_web else None
        self._restarts: list[float] = []
        self._was_ready = False
        self._logs = ""

    def run(self) -> None:
        """Returns when a signal asked it to stop and everything has ended. Raises `MeshError` when the mesh
        cannot start, or Ray died too often."""
        try:
            self._run()
        finally:
            if self._web:
                self._web.end()
            self._say("stopped")

    def _run(self) -> None:
        while not self._stop.is_set():
            web = self._web.url if self._web else ""
            mesh = Mesh(
                self._configs,
                self._console,
                web=web,
                with_dashboard=self._with_dashboard,
                again=self._was_ready,
            )
            driver = DriverProcess(
                mesh, self._console, self._scratch / "driver.err", self._watchdog.close_in_child
            )
            try:
                self._watch(driver, mesh)
                self._take_down(driver, mesh)
            except RayDied as problem:
                self._record_loss(str(problem))
            except MeshError:
                self._take_down(driver, mesh)
                raise
            finally:
                driver.kill()
                end_descendants(grace_s=1.0, spare=self._spared)
                self._relay.pump()

    def _watch(self, driver: DriverProcess, mesh: Mesh) -> None:
        """Returns when `stop` is set. Raises `RayDied`, or another `MeshError`."""
        ray_daemons = Daemons(descendants, self._log_death)
        check_at = update_at = 0.0
        while not self._stop.wait(_TICK_S):
            self._relay.pump()
            now, message = time.monotonic(), driver.message()
            if message is not None:
                self._handle(message, mesh)
                ray_daemons.scan_soon()
                check_at = update_at = now
            elif driver.has_ended():
                raise _failure(mesh, f"the process that uses Ray ended ({driver.how_it_ended()})")
            if now >= check_at:
                check_at = now + _CHECK_EVERY_S
                if self._web and self._was_ready:
                    self._web.keep(mesh.url)
                if mesh.is_ours and (why := ray_daemons.failure()):
                    raise RayDied(why)
            if now >= update_at:
                update_at = now + _UPDATE_WATCHDOG_EVERY_S
                self._watchdog.update()
                reap({*self._spared, driver.pid})

    def _handle(self, message: DriverMessage, mesh: Mesh) -> None:
        """Raises `MeshError` for a driver that failed."""
        match message:
            case StepDone(logs):
                self._logs = logs or self._logs
                self._relay.follow([self._scratch, Path(self._logs)] if self._logs else [self._scratch])
            case MeshReady(host):
                mesh.reached = host
                if self._restarts:
                    took = time.monotonic() - self._restarts[-1]
                    self._relay.log(logging.INFO, f"event=ray_restarted {fields(seconds=round(took, 1))}")
                else:
                    self._was_ready = True
            case DriverFailed(why):
                raise _failure(mesh, why, can_be_tried_again=self._was_ready)

    def _record_loss(self, why: str) -> None:
        """Logs why Ray is started again. Raises `MeshError` when that happened too often."""
        now, policy = time.monotonic(), self._policy
        recent = policy.recent(self._restarts, now)
        if not policy.allows(self._restarts, now):
            raise MeshError(
                f"Ray was started anew {len(recent)} times within {policy.within_s / 60:g} minutes, "
                f"and {why}; giving up, see {self._logs or '/tmp/ray'}"
            )
        self._restarts = [*recent, now]
        counted = fields(why=why, restart=len(self._restarts), of=policy.most)
        self._relay.log(logging.ERROR, f"event=ray_lost {counted}")

    def _log_death(self, daemon: str) -> None:
        why = f"the {daemon} died; Ray starts it again"
        self._relay.log(logging.WARNING, f"event=daemon_died {fields(why=why)}")

    def _take_down(self, driver: DriverProcess, mesh: Mesh) -> None:
        self._say("stopping …")
        if self._web:
            self._web.ask_to_end()
        ended = driver.stop(_STOP_WITHIN_S if mesh.is_ours else _LEAVE_WITHIN_S)
        if ended and not mesh.is_ours:  # what runs on a Ray of our own ends with it
            self._relay.log(logging.WARNING, f"event=left_behind {fields(stopped=ended)}")

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]mesh:[/] {text}", highlight=False)

    @property
    def _spared(self) -> set[int]:
        """The ids of the processes that outlive a driver."""
        return {self._watchdog.pid} | (self._web.pids if self._web else set())


def _failure(mesh: Mesh, why: str, *, can_be_tried_again: bool = True) -> MeshError:
    """What the end of the driver means. A first start that failed would fail again, and it is not for us to
    start the Ray of a cluster that was joined."""
    if mesh.is_ours:
        return RayDied(why) if can_be_tried_again else MeshError(why)
    return MeshError(f"{why}; Ray was joined at {os.environ['RAY_ADDRESS']}" if can_be_tried_again else why)

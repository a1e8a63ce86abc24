"""A whole mesh as its users run it: ``mesh up`` in a process of its own, spoken to over HTTP."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.worlds.network import Machine
from tests.worlds.ports import free_port

UP_WITHIN_S = 300.0
DOWN_WITHIN_S = 180.0
_MARK = "MESH_PROCESS"
WITH_DASHBOARD = {"MESH_DASHBOARD": "1"}
_EDGE_PORTS = (
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
)


@contextmanager
def running(mesh: "MeshProcess") -> Iterator[None]:
    """Starts a mesh, and stops it: then nothing of it is left."""
    try:
        mesh.start()
        yield
        left = mesh.stop()
    finally:
        mesh.kill_all()
    assert left == [], f"left behind: {left}; the mesh said:\n{mesh.log.read_text()[-2000:]}"


def edge_ports() -> dict[str, str]:
    """Ports for a mesh alone. `mesh up` takes the usual ones if they are free: two that start at the same
    time would collide."""
    return {name: str(free_port()) for name in _EDGE_PORTS}


class MeshProcess:
    """``mesh up`` of a config, from `start` to `stop`; may be killed and started again."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        env: dict[str, str] | None = None,
        options: Sequence[str] = (),
        on: Machine | None = None,
    ) -> None:
        """``on``: it runs there."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = int(config.get("port") or free_port())
        self.data_dir = Path(config.setdefault("data_dir", str(folder / "data")))
        self.config = folder / "agent.yaml"
        self.config.write_text(yaml.safe_dump({**config, "port": self.port}))
        self.log = folder / "up.log"
        self._options = options
        self._on = on
        self._mark = uuid.uuid4().hex
        self._env = {**os.environ, **edge_ports(), **(env or {}), _MARK: self._mark}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self._on.address if self._on else '127.0.0.1'}:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """The environment that ``mesh up`` gets."""
        return dict(self._env)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def status(self) -> int | None:
        """What ``mesh up`` ended with; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def launch(self) -> None:
        """Begins to start it."""
        with self.log.open("ab") as log:
            self._said_before = log.tell()
            command = [str(Path(sys.executable).with_name("mesh")), "up", str(self.config), *self._options]
            command = self._on.command(*command) if self._on else command
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=self._env, start_new_session=True
            )

    def start(self, within_s: float = UP_WITHIN_S) -> None:
        """Returns when it is ready; fails with its output when it does not become so."""
        self.launch()
        self.await_ready(within_s)

    def await_ready(self, within_s: float = UP_WITHIN_S) -> None:
        """As `start`, of what is launched already."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            if b"Ctrl-C stops" in self.log.read_bytes()[self._said_before :]:
                return
            if self.status is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the mesh is not up:\n{self.log.read_text()[-4000:]}")

    def processes(self) -> list[psutil.Process]:
        """``mesh up`` and everything below it."""
        assert self._process is not None
        while True:
            try:
                mesh = psutil.Process(self.pid)
            except psutil.NoSuchProcess:
                return []
            try:
                return [mesh, *mesh.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue  # one of them ended while we looked

    def everything(self) -> list[psutil.Process]:
        """All that it started in its life and that still runs, wherever it hangs in the process tree."""
        return [p for p in psutil.process_iter() if p.pid != os.getpid() and self._is_ours(p)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            # Three marks, as each is lost somewhere: workers rename themselves over their environment,
            # MCP servers inherit little of it and have sessions of their own.
            return (
                process.environ().get(_MARK) == self._mark
                or os.getsid(process.pid) == self.pid
                or str(self.folder) in _command(process)
            )
        except (psutil.NoSuchProcess, psutil.AccessDenied, ProcessLookupError):
            return False

    def logs(self) -> Path:
        """Where Ray and the actors of this run write their logs."""
        found = re.search(r"--log_dir=(\S+)", _command(self.find("gcs_server")[0]))
        assert found
        return Path(found[1])

    def driver(self) -> psutil.Process:
        """The process of ``mesh up`` that uses Ray: forked, so that its command line is the same. Waits for
        it where Ray is just being started anew."""
        deadline = time.monotonic() + UP_WITHIN_S
        while not (found := self._driver()):
            assert time.monotonic() < deadline, "no process of the mesh uses Ray"
            time.sleep(0.05)
        return found

    def _driver(self) -> psutil.Process | None:
        up, *below = self.processes()
        command = _command(up)
        with contextlib.suppress(psutil.NoSuchProcess):
            return next((p for p in below if _command(p) == command and p.ppid() == up.pid), None)
        return None

    def find(self, part_of_command: str) -> list[psutil.Process]:
        """The processes below it whose command line has this in it."""
        return [p for p in self.processes() if part_of_command in _command(p)]

    def kill(self, part_of_command: str) -> int:
        """Kills them with SIGKILL; how many there were."""
        victims = self.find(part_of_command)
        for victim in victims:
            _kill(victim)
        return len(victims)

    def kill_all(self) -> None:
        """Kills every process at once, as a power cut would, but for the disk."""
        assert self._process is not None
        deadline = time.monotonic() + 30
        while victims := self.everything():
            for victim in victims:
                _kill(victim)
            psutil.wait_procs(victims, timeout=1)
            assert time.monotonic() < deadline, "processes survive SIGKILL"
        self._process.wait(timeout=30)

    def stop(self, how: int = signal.SIGTERM, *, group: bool = False) -> list[str]:
        """Stops it as a person would (``group``: as Ctrl-C in a terminal does, which signals all that
        is in the foreground); the command lines of processes that were left behind."""
        assert self._process is not None
        if group:
            os.killpg(self._process.pid, how)
        else:
            self._process.send_signal(how)
        self.wait(DOWN_WITHIN_S)
        return self.left_behind()

    def wait(self, within_s: float) -> None:
        """Until ``mesh up`` itself has ended."""
        assert self._process is not None
        self._process.wait(timeout=within_s)

    def left_behind(self) -> list[str]:
        """The command lines of what still runs of it."""
        return [_command(process) for process in self.everything()]

    def wait_ready(self, within_s: float = 120.0) -> None:
        """Until every actor and session answers."""
        deadline = time.monotonic() + within_s
        with httpx.Client(base_url=self.url, timeout=5) as client:
            while True:
                try:
                    if client.get("/ready").status_code == 200:
                        return
                except httpx.TransportError as problem:
                    if time.monotonic() > deadline:
                        raise AssertionError(f"not ready within {within_s} s") from problem
                assert time.monotonic() < deadline, f"not ready within {within_s} s"
                time.sleep(0.05)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _kill(process: psutil.Process) -> None:
    try:
        os.kill(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return

"""A whole mesh as its users run it: ``mesh up`` in a process of its own, spoken to over HTTP."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

UP_WITHIN_S = 120.0
DOWN_WITHIN_S = 15.0


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


class MeshProcess:
    """``mesh up`` of a config, from `start` to `stop`; may be killed and started again."""

    def __init__(self, folder: Path, config: dict[str, Any], env: dict[str, str] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.port = int(config.get("port") or free_port())
        self.data_dir = Path(config.setdefault("data_dir", str(folder / "data")))
        self.config = folder / "agent.yaml"
        self.config.write_text(yaml.safe_dump({**config, "port": self.port}))
        self.log = folder / "up.log"
        self._env = {**os.environ, **(env or {})}
        self._process: psutil.Popen | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        pid: int = self._process.pid
        return pid

    def start(self) -> None:
        """Returns when it is ready; fails with its output when it does not become so."""
        with self.log.open("ab") as log:
            start = log.tell()
            command = [str(Path(sys.executable).with_name("mesh")), "up", str(self.config)]
            self._process = psutil.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=self._env, start_new_session=True
            )
        deadline = time.monotonic() + UP_WITHIN_S
        while time.monotonic() < deadline:
            if b"Ctrl-C stops" in self.log.read_bytes()[start:]:
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.05)
        raise AssertionError(f"the mesh is not up:\n{self.log.read_text()[-4000:]}")

    def processes(self) -> list[psutil.Process]:
        """``mesh up`` and everything below it."""
        assert self._process is not None
        try:
            return [psutil.Process(self.pid), *psutil.Process(self.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

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
        victims = self.processes()
        for victim in victims:
            _kill(victim)
        psutil.wait_procs(victims, timeout=10)

    def stop(self, how: int = signal.SIGTERM) -> list[str]:
        """Stops it as a person would; the command lines of processes that were left behind."""
        assert self._process is not None
        below = self.processes()
        self._process.send_signal(how)
        self._process.wait(timeout=DOWN_WITHIN_S)
        return [_command(p) for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def wait_ready(self, within_s: float = 30.0) -> None:
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

"""The web chat of ``mesh up --web``: a process beside the mesh, on this machine only."""

import logging
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from deployments.restarts import RestartPolicy
from mesh.runtime.log_relay import LogRelay
from mesh.runtime.logs import fields, set_up
from mesh.runtime.options import WEB_PORT
from mesh.web.listening import listen_nearby

_END_WITHIN_S = 2.0


class WebChat:
    """Listens from the beginning, so that its address is known, and stays, whatever ends and starts. Raises
    `MeshError` if that is not possible. ``close_in_child`` is called in each process that serves it; what
    that logs goes to the file ``output``, for the relay to pass on."""

    def __init__(self, relay: LogRelay, output: Path, close_in_child: Callable[[], None]) -> None:
        self._relay = relay
        self._output = output
        self._policy = RestartPolicy()
        self._close_in_child = close_in_child
        self._listening = listen_nearby(WEB_PORT)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._starts: list[float] = []
        self._has_given_up = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    @property
    def pids(self) -> set[int]:
        """The process that serves the chat, if there is one."""
        return {self._process.pid} if self._process and self._process.pid else set()

    def keep(self, agent_url: str) -> None:
        """Starts the process if it does not run. Has to be called repeatedly."""
        if self._has_given_up or (self._process and self._process.is_alive()):
            return
        now = time.monotonic()
        if self._process:
            about = fields(status=self._process.exitcode)
            self._relay.log(logging.WARNING, f"event=web_chat_died {about}")
        self._has_given_up = not self._policy.allows(self._starts, now)
        if self._has_given_up:
            self._relay.log(logging.ERROR, 'event=web_chat_given_up why="it died too often"')
            return
        self._starts = [*self._policy.recent(self._starts, now), now]
        context = multiprocessing.get_context("fork")  # Invariant: this process has one thread
        self._process = context.Process(target=self._serve, args=(agent_url,), name="web")
        self._process.start()

    def ask_to_end(self) -> None:
        if self._process:
            self._process.terminate()

    def end(self) -> None:
        """Stops the process and waits for its end."""
        self._listening.close()
        if self._process:
            self._process.terminate()
            self._process.join(_END_WITHIN_S)
            self._process.kill()
            self._process.join()

    def _serve(self, agent_url: str) -> None:
        from mesh.web.config import WebConfig
        from mesh.web.server import serve_on

        self._close_in_child()
        self._send_output_to(self._output)
        set_up()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        port: int = self._listening.getsockname()[1]
        serve_on(self._listening, WebConfig(agent_url=agent_url, port=port))

    @staticmethod
    def _send_output_to(path: Path) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, 2)
        os.close(file)

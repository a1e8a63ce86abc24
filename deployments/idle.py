"""An actor that leaves when nobody has used it for a while, for good: the next use makes another."""

import asyncio
import logging

import ray

_log = logging.getLogger("mesh.idle")


class Idle:
    """``with idle:`` around each use. The actor ends ``timeout_s`` after the last one; None: it stays."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s
        self._uses = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def __enter__(self) -> None:
        self._uses += 1
        if self._timer is not None:
            self._timer.cancel()

    def __exit__(self, *exc: object) -> None:
        self._uses -= 1
        if not self._uses:
            self._wait()

    def _wait(self) -> None:
        if self._timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._timeout_s, _leave)


def _leave() -> None:
    _log.info("event=leaves_idle")
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

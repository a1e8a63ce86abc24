"""An actor that leaves when nobody has used it for a while, for good: the next use makes another."""

import asyncio
import logging

import ray

AFTER_S = 300.0
_log = logging.getLogger("mesh.idle")


class Idle:
    """``with idle:`` around each use. If it ``leaves``, the actor ends `AFTER_S` after the last one."""

    def __init__(self, *, leaves: bool) -> None:
        self._leaves = leaves
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
        if self._leaves:
            self._timer = asyncio.get_running_loop().call_later(AFTER_S, _leave)


def _leave() -> None:
    _log.info("event=leaves_idle")
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

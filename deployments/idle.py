"""Ends actors that nobody uses. The next use of the address creates the actor anew."""

import asyncio
import logging

import ray

_FIRST_USE_S = 60.0
"""For the first use, whoever created the actor has that long: on a busy machine, it takes some seconds to
reach a new process, which would leave before that, again and again."""
_log = logging.getLogger("mesh.idle")


class Idle:
    """Entered (``with idle:``) around each use of the actor. One that ``leaves`` ends ``timeout_s`` after the
    last one."""

    def __init__(self, timeout_s: float, *, leaves: bool) -> None:
        self._timeout_s = timeout_s
        self._leaves = leaves
        self._uses = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait(_FIRST_USE_S)

    def __enter__(self) -> None:
        self._uses += 1
        if self._timer is not None:
            self._timer.cancel()

    def __exit__(self, *exc: object) -> None:
        self._uses -= 1
        if not self._uses:
            self._wait()

    def leave(self) -> None:
        """The actor leaves from now on."""
        if not self._leaves:
            self._leaves = True
            if not self._uses:
                self._wait()

    def stay(self) -> None:
        """The actor stays from now on, however idle it is."""
        self._leaves = False
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, at_least_s: float = 0.0) -> None:
        if self._leaves:
            delay_s = max(self._timeout_s, at_least_s)
            self._timer = asyncio.get_running_loop().call_later(delay_s, _end_actor)


def _end_actor() -> None:
    _log.info("event=leaves_idle")
    # Killed, not exited: Ray would start it again.
    ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

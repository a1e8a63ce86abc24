"""What a tool says of how far it has come, on its way to those who watch.

    server ──notification──► `PacedProgress` ──at most 10 a second──► the listeners of the call

Progress is for the eyes: what comes too fast is replaced by what comes next, and the last word before the
result may be lost. Nobody waits for it.
"""

import asyncio
import math
from collections.abc import Callable

import msgspec

SHORTEST_S = 0.1
"""Between two that are passed on."""
MOST_MESSAGE = 500
"""Characters of a message."""


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a call has come, from 0 to 1; 0 also if the tool does not say of how much. ``message`` says
    what it does."""

    progress: float = 0.0
    message: str = ""


OnProgress = Callable[[Progress], None]


def progress_of(progress: float, total: float | None, message: str | None) -> Progress:
    """A notification of the protocol, which has any numbers and texts.

    >>> progress_of(3, 4, "page 3")
    Progress(progress=0.75, message='page 3')
    >>> progress_of(0.5, None, None)
    Progress(progress=0.5, message='')
    >>> progress_of(17, None, "")
    Progress(progress=0.0, message='')
    """
    share = progress / total if total else progress if progress <= 1 else 0.0
    bounded = min(1.0, max(0.0, share)) if math.isfinite(share) else 0.0
    return Progress(bounded, (message or "")[:MOST_MESSAGE])


class PacedProgress:
    """The progress of one call. Passes on what comes, at most one in `SHORTEST_S`, and then the newest."""

    def __init__(self) -> None:
        self._listeners: list[OnProgress] = []
        self._newest: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether anybody listens."""
        return bool(self._listeners)

    def add(self, listener: OnProgress) -> None:
        """From now on tells this one, too."""
        self._listeners.append(listener)

    def tell(self, progress: Progress) -> None:
        """Takes what the server said."""
        self._newest = progress
        if self._timer is None:
            self._pass_on()

    def end(self) -> None:
        """The call has ended."""
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _pass_on(self) -> None:
        self._timer = None
        if self._newest is None:
            return
        newest, self._newest = self._newest, None
        for listener in self._listeners:
            listener(newest)
        self._timer = asyncio.get_running_loop().call_later(SHORTEST_S, self._pass_on)

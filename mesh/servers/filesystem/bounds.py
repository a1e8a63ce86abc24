"""How long and how much: what a call may take, and how it is stopped."""

import time

from mesh.servers.filesystem.refusal import FileRefusal

MAX_CALL_S = 300.0
"""For a call that sets no time itself."""
MOST_ENTRIES = 1_000_000
"""In a tree that one call copies, moves or removes."""
MAX_CONTENT = 64 << 20
"""Bytes of a file that is patched, or appended to: it is held in memory."""
MAX_HASHED = 16 << 20
"""Bytes of a file whose hash a read gives unasked."""
CHUNK = 1 << 20


class TimeLimit:
    """When a call has to end: at its deadline, or when it is cancelled. Long work asks now and then."""

    def __init__(self, seconds: float = MAX_CALL_S) -> None:
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds
        self._cancelled = [False]  # in common with those made by `sooner`

    def cancel(self) -> None:
        self._cancelled[0] = True

    @property
    def left_s(self) -> float:
        return 0.0 if self._cancelled[0] else self._deadline - time.monotonic()

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

    def sooner(self, seconds: float) -> "TimeLimit":
        """The same, or earlier."""
        other = TimeLimit(min(seconds, max(0.0, self.left_s)))
        other._cancelled = self._cancelled
        return other

    def check(self) -> None:
        """Raises `FileRefusal` if the call has to end."""
        if self.is_over:
            how = "was cancelled" if self._cancelled[0] else f"takes longer than {self._seconds:g} s"
            raise FileRefusal(f"the call {how}: it was stopped before it changed anything")

"""How often something may be restarted before ``mesh up`` gives up on it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """At most ``most`` restarts in any ``within_s`` seconds. A process that dies again and again, for lack of
    memory for instance, is a problem for people, and restarts would hide it."""

    most: int = 5
    within_s: float = 300.0

    def allows(self, restarts: Sequence[float], now: float) -> bool:
        """Whether another restart is allowed, given the times of those so far, in seconds of one monotonic
        clock."""
        return len(self.recent(restarts, now)) < self.most

    def recent(self, restarts: Sequence[float], now: float) -> list[float]:
        """Returns the restarts that still count."""
        return [each for each in restarts if now - each < self.within_s]

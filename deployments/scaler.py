"""How many keepers an agent is to have, by the turns under way.

Its gateways are scaled by Serve, with the same times.
"""

import math
from collections import deque

from mesh.config.model import Scale

MORE_AFTER_S = 5.0
FEWER_AFTER_S = 120.0


class Scaler:
    """More keepers when more were needed for `MORE_AFTER_S` without a break, fewer when fewer were needed
    for `FEWER_AFTER_S`. ``number`` is how many there are to be now."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._needed: deque[tuple[float, int]] = deque()  # within FEWER_AFTER_S, and one from before
        self.number = scale.min

    def found(self, number: int) -> None:
        """There are as many already, which an earlier process has started."""
        self.number = self._within(number)

    def note(self, load: float, now: float) -> None:
        """Notes how many turns are under way in all keepers together, at this time in seconds. Times do
        not fall."""
        self._needed.append((now, self._within(math.ceil(load / self._scale.target))))
        while len(self._needed) > 1 and self._needed[1][0] <= now - FEWER_AFTER_S:
            self._needed.popleft()
        if (lately := self._since(now - MORE_AFTER_S)) and min(lately) > self.number:
            self.number = min(lately)
        if (long := self._since(now - FEWER_AFTER_S)) and max(long) < self.number:
            self.number = max(long)

    def _since(self, time: float) -> list[int]:
        """What was needed from then on, and what was known to be needed then; nothing if nobody knows it."""
        before = [needed for at, needed in self._needed if at <= time]
        return [*before[-1:], *(needed for at, needed in self._needed if at > time)] if before else []

    def _within(self, number: int) -> int:
        return min(max(number, self._scale.min), self._scale.max)

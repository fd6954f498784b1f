"""When to speak, when to give somebody up, and when to try again. By a clock that a test steps by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

from .. import _core


class Pulse:
    """Of one connection. period: seconds between our own words. patience: of silence after which it is dead."""

    def __init__(self, clock: _core.Clock, period: float, patience: float) -> None:
        self._clock, self._period, self._patience = clock, int(period * 1e9), int(patience * 1e9)
        self._heard = self._looked = clock.now()
        self._spoke = self._heard - self._period
        self.rtt = 0.0  # seconds, the shortest of late; 0: not known

    def due(self) -> bool:
        """Whether to speak now, once each period."""
        now = self._clock.now()
        if now - self._spoke < self._period:
            return False
        self._spoke = now
        return True

    def heard(self) -> None:
        """Something came."""
        self._heard = self._clock.now()

    def answered(self, sent: int) -> None:
        """What was sent at `sent` of this clock came back."""
        seconds = max(self._clock.now() - sent, 0) / 1e9
        self.rtt = min(seconds, self.rtt * 1.1) if self.rtt else seconds

    def dead(self) -> bool:
        """Whether it was silent for longer than patience. Asked often: who was not running himself for a while has
        heard nothing either, and blames nobody for it."""
        now = self._clock.now()
        if now - self._looked > self._patience // 2:
            self._heard = max(self._heard, now - self._patience // 2)
        self._looked = now
        return now - self._heard > self._patience


class Backoff:
    """Seconds until the next attempt: doubled at each, with jitter, so that a thousand do not come back at once."""

    def __init__(
        self, first: float = 0.1, most: float = 5.0, uniform: Callable[[float, float], float] = random.uniform
    ) -> None:
        self._first, self._most, self._uniform = first, most, uniform
        self._next = first

    def next(self) -> float:
        seconds, self._next = self._next, min(2 * self._next, self._most)
        return self._uniform(seconds / 2, seconds)

    def reset(self) -> None:
        self._next = self._first

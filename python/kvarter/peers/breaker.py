"""Keeps a server that fails from being asked again and again."""

from __future__ import annotations

from .. import _core
from .pulse import Backoff

_FAILURES = 3  # in a row


class Breaker:
    """After three failures in a row nothing is allowed for a while, then one attempt at a time until one succeeds."""

    def __init__(self, clock: _core.Clock, backoff: Backoff | None = None) -> None:
        self._clock, self._backoff = clock, backoff or Backoff(0.25, 10.0)
        self._failures, self._until = 0, 0

    @property
    def closed(self) -> bool:
        """Whether all is well, as far as is known."""
        return self._failures < _FAILURES

    def allows(self) -> bool:
        """Whether to try. Of an attempt that is allowed while not all is well, the outcome is to be said."""
        if self.closed:
            return True
        now = self._clock.now()
        if now < self._until:
            return False
        self._until = now + int(self._backoff.next() * 1e9)  # for whoever comes while this one is on its way
        return True

    def succeeded(self) -> None:
        self._failures = 0
        self._backoff.reset()

    def failed(self) -> None:
        self._failures += 1
        if self._failures == _FAILURES:
            self._until = self._clock.now() + int(self._backoff.next() * 1e9)

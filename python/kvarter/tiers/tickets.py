"""The bookkeeping of a tier that answers at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._core import Status
from .base import Done


class Tickets:
    """Numbers batches and keeps their results for the next `take`."""

    def __init__(self) -> None:
        self._next = 1
        self._done: list[Done] = []
        self._closed = False

    def done(self, statuses: Sequence[Status], checksums: Sequence[int] | None = None) -> int:
        """A new ticket, whose results these are; without checksums all are 0."""
        if self._closed:
            statuses, checksums = [Status.Closed] * len(statuses), None
        sums = np.zeros(len(statuses), np.uint64) if checksums is None else np.array(checksums, np.uint64)
        ticket, self._next = self._next, self._next + 1
        self._done.append(Done(ticket, np.array(statuses, np.uint8), sums))
        return ticket

    def take(self) -> list[Done]:
        """What came since the last call."""
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """What was not taken yet, and all that comes, is Closed."""
        self._closed = True
        self._done = [
            Done(done.ticket, np.full_like(done.statuses, Status.Closed), np.zeros_like(done.checksums))
            for done in self._done
        ]

"""Least frequently used; among equals the one whose last use is oldest."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from .base import Columns, Rows, Scores
from .textbook import Textbook


class Lfu(Textbook):
    name = "lfu"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._uses: dict[int, tuple[int, int]] = {}  # how often, and when last
        self._heap: list[tuple[int, int, int]] = []  # (how often, when last, key); checked when taken
        self._now = 0

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        last_use = columns.last_use[rows].astype(float)
        return np.asarray(columns.hits[rows] + last_use / (last_use.max(initial=0.0) + 1.0))

    def __contains__(self, key: int) -> bool:
        return key in self._uses

    def access(self, key: int) -> None:
        self._now += 1
        if key not in self._uses and len(self._uses) >= self.capacity:
            self._evict()
        uses = self._uses.get(key, (0, 0))[0] + 1
        self._uses[key] = (uses, self._now)
        heappush(self._heap, (uses, self._now, key))

    def _evict(self) -> None:
        while True:
            uses, last, key = heappop(self._heap)
            if self._uses.get(key) == (uses, last):
                del self._uses[key]
                return

"""S3-FIFO (Yang et al., SOSP 2023): a small queue that one use must not outlive, and a main one."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from .base import Columns, Rows, Scores
from .textbook import Textbook

_SMALL_SHARE = 0.1
_PROMOTED = 2  # uses in the small queue that earn a place in the main one
_MOST_USES = 3


class S3Fifo(Textbook):
    name = "s3fifo"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._small_size = max(1, int(self.capacity * _SMALL_SHARE))
        self._main_size = self.capacity - self._small_size
        self._small: OrderedDict[int, int] = OrderedDict()  # key -> uses
        self._main: OrderedDict[int, int] = OrderedDict()
        self._ghosts: OrderedDict[int, None] = OrderedDict()

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        """Blocks not used since they came, beyond the small queue's share, first in first out; then the others
        in the order in which the main queue would reach them without a use left.
        """
        born = columns.born[rows].astype(float)
        uses = np.minimum(columns.hits[rows], _MOST_USES)
        scores = born / (born.max(initial=0.0) + 1.0) + 1.0 + uses
        young = np.flatnonzero(uses < _PROMOTED)
        excess = len(young) - int(len(rows) * _SMALL_SHARE)
        if excess > 0:
            oldest = young if excess >= len(young) else young[np.argpartition(born[young], excess)[:excess]]
            scores[oldest] = born[oldest] / (born.max(initial=0.0) + 1.0)
        return np.asarray(scores)

    def __contains__(self, key: int) -> bool:
        return key in self._small or key in self._main

    def access(self, key: int) -> None:
        for queue in (self._small, self._main):
            if key in queue:
                queue[key] = min(_MOST_USES, queue[key] + 1)
                return
        was_here = key in self._ghosts
        if was_here:
            del self._ghosts[key]
        while len(self._small) + len(self._main) >= self.capacity:
            self._evict()
        (self._main if was_here else self._small)[key] = 0

    def _evict(self) -> None:
        if len(self._main) > self._main_size or not self._small:
            self._evict_main()
            return
        key, uses = self._small.popitem(last=False)
        if uses >= _PROMOTED:
            self._main[key] = 0
            if len(self._main) > self._main_size:
                self._evict_main()
            return
        self._ghosts[key] = None
        while len(self._ghosts) > self._main_size:
            self._ghosts.popitem(last=False)

    def _evict_main(self) -> None:
        while self._main:
            key, uses = self._main.popitem(last=False)
            if uses == 0:
                return
            self._main[key] = uses - 1

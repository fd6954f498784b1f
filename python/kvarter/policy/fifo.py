"""First in, first out."""

from __future__ import annotations

from collections import OrderedDict

from .base import Columns, Rows, Scores
from .textbook import Textbook


class Fifo(Textbook):
    name = "fifo"
    one_order = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._queue: OrderedDict[int, None] = OrderedDict()

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        return columns.born[rows].astype(float)

    def __contains__(self, key: int) -> bool:
        return key in self._queue

    def access(self, key: int) -> None:
        if key in self._queue:
            return
        if len(self._queue) >= self.capacity:
            self._queue.popitem(last=False)
        self._queue[key] = None

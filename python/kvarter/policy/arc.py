"""ARC (Megiddo and Modha, FAST 2003): recency against frequency, balanced by what the ghosts say."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from .base import NO_HINT, Classes, Columns, Keys, Rows, Scores
from .history import History, history_bytes
from .textbook import Textbook

_Order = OrderedDict[int, None]


class Arc(Textbook):
    name = "arc"
    learns = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._target = 0.0  # blocks that those used once may have
        self._once, self._often, self._ghosts_once, self._ghosts_often = (_Order() for _ in range(4))
        self._history: History | None = None

    # --- ranking rows

    def observe(self, keys: Keys, resident: int, now: float, hint: int = NO_HINT) -> Classes | None:
        if self._history is None:
            self._history = History(self.capacity)
        seen = self._history.look(keys)
        ghosts = seen.known.copy()
        ghosts[:resident] = False
        often = int((seen.count[ghosts] > 1).sum())
        once = int(ghosts.sum()) - often
        self._target = min(max(self._target + once - often, 0.0), float(self.capacity))
        self._history.put(keys, seen, now, np.zeros(len(keys), np.uint16), 0)
        return None

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        """Those used once beyond their target go first, by age, then those used again, then the rest."""
        last_use = columns.last_use[rows].astype(float)
        once = columns.hits[rows] == 0
        scores = last_use / (last_use.max(initial=0.0) + 1.0) + 1.0
        excess = int(once.sum()) - int(self._target)
        if excess > 0:
            oldest = np.flatnonzero(once)
            if excess < len(oldest):
                oldest = oldest[np.argpartition(last_use[oldest], excess - 1)[:excess]]
            scores[oldest] -= 1.0
        scores[once & (scores >= 1.0)] += 1.0
        return np.asarray(scores)

    @property
    def state_bytes(self) -> int:
        return 0 if self._history is None else self._history.nbytes

    @classmethod
    def most_state_bytes(cls, capacity: int) -> int:
        return history_bytes(capacity)

    # --- as in the paper

    def __contains__(self, key: int) -> bool:
        return key in self._once or key in self._often

    def access(self, key: int) -> None:
        once, often = self._once, self._often
        if key in once:
            del once[key]
            often[key] = None
        elif key in often:
            often.move_to_end(key)
        elif key in self._ghosts_once:
            step = max(1.0, len(self._ghosts_often) / len(self._ghosts_once))
            self._target = min(self.capacity, self._target + step)
            self._replace(False)
            del self._ghosts_once[key]
            often[key] = None
        elif key in self._ghosts_often:
            step = max(1.0, len(self._ghosts_once) / len(self._ghosts_often))
            self._target = max(0.0, self._target - step)
            self._replace(True)
            del self._ghosts_often[key]
            often[key] = None
        else:
            self._miss()
            once[key] = None

    def _miss(self) -> None:
        recent = len(self._once) + len(self._ghosts_once)
        if recent == self.capacity:
            if self._ghosts_once:
                self._ghosts_once.popitem(last=False)
                self._replace(False)
            else:
                self._once.popitem(last=False)
            return
        total = recent + len(self._often) + len(self._ghosts_often)
        if total >= self.capacity:
            if total == 2 * self.capacity:
                self._ghosts_often.popitem(last=False)
            self._replace(False)

    def _replace(self, ghost_was_often: bool) -> None:
        size = len(self._once)
        if size and (size > self._target or (ghost_was_often and size == int(self._target))):
            self._ghosts_once[self._once.popitem(last=False)[0]] = None
        else:
            self._ghosts_often[self._often.popitem(last=False)[0]] = None

"""Class-exponential, after "KVCache in the wild" (ATC 2025): each class of requests has a chance of being gone on
with and a mean time until then; a block is worth the chance that is left at its age.
"""

from __future__ import annotations

import numpy as np

from .base import NO_HINT, Classes, Columns, Keys, Policy, Rows, Scores
from .history import History, history_bytes

_TURNS = 8
_CLASSES = 2 * _TURNS  # by turn, and by whether the request goes on where an earlier one ended
_END, _TURN = 0x80, 0x07


class Wild(Policy):
    name = "wild"
    learns = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._history = History(self.capacity)
        self._spells, self._used = np.full(_CLASSES, 2.0), np.full(_CLASSES, 1.0)
        self._waited = np.full(_CLASSES, 60.0)  # seconds, over those that were used again

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        age = np.maximum(now - columns.last_use[rows] / 1e9, 0.0)
        klass = columns.klass[rows] % _CLASSES
        chance = np.minimum(self._used / self._spells, 1.0)
        rate = self._used / self._waited
        return np.asarray(np.log(chance[klass] * rate[klass]) - rate[klass] * age)

    def observe(self, keys: Keys, resident: int, now: float, hint: int = NO_HINT) -> Classes | None:
        if not len(keys):
            return None
        seen = self._history.look(keys)
        self.asked_units += len(keys)
        self.known_units += max(seen.prefix, resident)
        again = seen.klass[seen.known]
        np.add.at(self._used, again, 1.0)
        np.add.at(self._waited, again, np.maximum(now - seen.when[seen.known], 0.0))
        flags = int(seen.flags[seen.prefix - 1]) if seen.prefix else 0
        goes_on = bool(flags & _END)
        turn = min((flags & _TURN) + 1, _TURNS - 1) if goes_on else 0
        old = np.arange(len(keys)) < seen.prefix  # what is new has had no turn yet
        classes = (2 * turn * old + goes_on).astype(np.uint16)
        np.add.at(self._spells, classes, 1.0)
        flag = np.full(len(keys), turn)
        flag[-2:] |= _END
        self._history.put(keys, seen, now, classes, flag)
        return classes

    @property
    def state_bytes(self) -> int:
        return self._history.nbytes

    @classmethod
    def most_state_bytes(cls, capacity: int) -> int:
        return history_bytes(capacity)

"""The default: a block is worth the rate at which blocks like it were used again at its age.

What blocks are alike: used as often, and last used by requests alike, in these respects: does the request go on
where an earlier one ended, how many times its session did so, how much of it was seen before, and what the caller
said of it. A hint is a respect like the others: what it is worth is learned, so one that is always wrong soon means
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .base import NO_HINT, Classes, Columns, Keys, Policy, Rows, Scores
from .history import History, Thinning, history_bytes
from .survival import Survival, bins, survival_bytes

_USES = 4  # kinds of blocks by uses: 1, 2, 3, more
_TURNS = 4
_SHARES = 4  # of a request's blocks that were seen before: none, less than half, half or more, all
_HINTS = 5
_UNHINTED = 2 * _TURNS * _SHARES * _USES
CLASSES = _HINTS * _UNHINTED
_FACTOR = np.array([1.0, 1.0, 1.0, 2.0, 0.5])  # a wish weighs that much at most
_BELIEVED = (
    512  # requests of a hint; blocks of one that was given less often are worth what they are without it
)
_END, _TURN = 0x80, 0x03  # flags in the history: a request ended about here; its turn
_LEARN_EVERY = 64  # requests
_PART = 1 << 11  # entries looked at in one step
_SAMPLE = 1 << 14  # entries of the history that are learned from: any part of it is a fair sample


class Hazard(Policy):
    name = "hazard"
    learns = True
    rates = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._history = History(self.capacity)
        self._sample = min(_SAMPLE, len(self._history.table))
        self._survival = Survival(CLASSES, _UNHINTED)
        self._thinning = Thinning()
        self._requests = self._fitted = 0
        self._believed = np.zeros(_HINTS, bool)  # as of the fit that is under way
        self._told = np.zeros(_HINTS, np.int64)  # requests of each hint
        self._read_as = np.arange(CLASSES) % _UNHINTED  # the class that says what each is worth
        self._fitting = False

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        age = now - columns.last_use[rows] / 1e9
        klass = columns.klass[rows] % CLASSES
        worth = self._survival.worth[self._read_as[klass], bins(age)] * _FACTOR[klass // _UNHINTED]
        return np.asarray(worth - np.abs(age) * 1e-12)  # among equals the older one goes

    def observe(self, keys: Keys, resident: int, now: float, hint: int = NO_HINT) -> Classes | None:
        if not len(keys):
            return None
        chosen, stands = self._thinning.of(len(keys))
        self.asked_units += len(keys)
        here = resident
        keys = keys[chosen]
        resident = int(np.searchsorted(chosen, resident))
        seen = self._history.look(keys)
        self.known_units += max(int(chosen[seen.prefix - 1]) + 1 if seen.prefix else 0, here)
        self._learn(seen.at, seen.known, now)
        known = max(seen.prefix, resident)
        flags = int(seen.flags[seen.prefix - 1]) if seen.prefix else 0
        goes_on = bool(flags & _END)
        turn = min((flags & _TURN) + 1, _TURNS - 1) if goes_on else 0
        share = 0 if not known else 3 if known >= len(keys) else 1 + (2 * known >= len(keys))
        request = ((hint * 2 + goes_on) * _TURNS + turn) * _SHARES + share
        uses = seen.count
        uses[:known] = np.maximum(uses[:known], 1)
        classes = (request * _USES + np.minimum(uses, _USES - 1)).astype(np.uint16)
        flag = np.full(len(keys), turn)
        # The last one may be cut off inside a block, and be another when the session goes on.
        flag[-2:] |= _END
        self._history.put(keys, seen, now, classes, flag)
        self._requests += 1
        self._told[hint] += 1
        return np.asarray(classes[stands])

    def learn(self, now: float) -> bool:
        if not self._fitting and self._requests - self._fitted >= _LEARN_EVERY:
            self._fitted = self._requests
            self._believed = self._told >= _BELIEVED
            self._believed[NO_HINT] = False  # speaks for all that are not believed, itself too
            self._survival.fit(self._waiting(now), self._believed)
            self._fitting = True
        elif self._fitting and not self._survival.step():
            self._fitting = False
            own = np.repeat(self._believed, _UNHINTED)
            self._read_as = np.where(own, np.arange(CLASSES), np.arange(CLASSES) % _UNHINTED)
        return self._fitting

    def hinted(self, classes: Classes, hint: int) -> Classes:
        return (classes % _UNHINTED + hint * _UNHINTED).astype(np.uint16)

    @property
    def state_bytes(self) -> int:
        return self._history.nbytes + self._survival.nbytes

    @classmethod
    def most_state_bytes(cls, capacity: int) -> int:
        return history_bytes(capacity) + survival_bytes(CLASSES)

    def _learn(self, at: Rows, known: np.ndarray, now: float) -> None:
        """The spells of the blocks at these places end: by a use where the block is known, else cut off."""
        entries = self._history.table[at]
        sampled = (at < self._sample) & (entries["count"] > 0)
        for which, by_use in ((sampled & known, True), (sampled & ~known, False)):
            if which.any():
                ended = entries[which]
                self._survival.ended(ended["klass"].astype(np.int64), now - ended["when"], by_use)

    def _waiting(self, now: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Classes and ages of the blocks that are sampled and wait for their next use."""
        for start in range(0, self._sample, _PART):
            entries = self._history.table[start : min(start + _PART, self._sample)]
            entries = entries[entries["count"] > 0]
            yield entries["klass"].astype(np.int64), now - entries["when"]

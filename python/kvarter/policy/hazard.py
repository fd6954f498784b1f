"""The default: a block is worth the rate at which blocks like it were used again at its age.

What blocks are alike: used as often, and last used by requests alike, in these respects: does the request go on
where an earlier one ended, how many times its session did so, how much of it was seen before, and what the caller
said of it. A hint is a respect like the others: what it is worth is learned, so one that is always wrong soon means
nothing.
"""

from __future__ import annotations

import numpy as np

from .base import NO_HINT, Classes, Columns, Keys, Policy, Rows, Scores
from .history import History, Thinning
from .survival import Survival, bins

_USES = 4  # kinds of blocks by uses: 1, 2, 3, more
_TURNS = 4
_SHARES = 4  # of a request's blocks that were seen before: none, less than half, half or more, all
_HINTS = 5
_UNHINTED = 2 * _TURNS * _SHARES * _USES
CLASSES = _HINTS * _UNHINTED
_FACTOR = np.array([1.0, 1.0, 1.0, 2.0, 0.5])  # a wish weighs that much at most
_END, _TURN = 0x80, 0x03  # flags in the history: a request ended about here; its turn
_LEARN_EVERY = 64  # requests
_SAMPLE = 1 << 14  # entries of the history that are learned from: any part of it is a fair sample


class Hazard(Policy):
    name = "hazard"
    learns = True

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._history = History(self.capacity)
        self._sample = min(_SAMPLE, len(self._history.table))
        self._survival = Survival(CLASSES, _UNHINTED)
        self._thinning = Thinning()
        self._requests = 0

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        age = now - columns.last_use[rows] / 1e9
        klass = columns.klass[rows] % CLASSES
        worth = self._survival.worth[klass, bins(age)] * _FACTOR[klass // _UNHINTED]
        return np.asarray(worth - np.abs(age) * 1e-12)  # among equals the older one goes

    def observe(self, keys: Keys, resident: int, now: float, hint: int = NO_HINT) -> Classes | None:
        if not len(keys):
            return None
        chosen, stands = self._thinning.of(len(keys))
        keys = keys[chosen]
        resident = int(np.searchsorted(chosen, resident))
        seen = self._history.look(keys)
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
        if self._requests % _LEARN_EVERY == 0:
            self._fit(now)
        else:
            self._survival.step()
        return np.asarray(classes[stands])

    def hinted(self, classes: Classes, hint: int) -> Classes:
        return (classes % _UNHINTED + hint * _UNHINTED).astype(np.uint16)

    @property
    def state_bytes(self) -> int:
        return self._history.nbytes + self._survival.nbytes

    def _learn(self, at: Rows, known: np.ndarray, now: float) -> None:
        """The spells of the blocks at these places end: by a use where the block is known, else cut off."""
        entries = self._history.table[at]
        sampled = (at < self._sample) & (entries["count"] > 0)
        for which, by_use in ((sampled & known, True), (sampled & ~known, False)):
            if which.any():
                ended = entries[which]
                self._survival.ended(ended["klass"].astype(np.int64), now - ended["when"], by_use)

    def _fit(self, now: float) -> None:
        entries = self._history.table[: self._sample]
        waiting = entries[entries["count"] > 0]
        self._survival.fit(waiting["klass"].astype(np.int64), now - waiting["when"])

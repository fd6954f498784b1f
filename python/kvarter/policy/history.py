"""What is remembered of blocks that were asked for, those that are gone included: a table of fixed size.

One entry of 16 bytes for each of a few times as many blocks as the cache holds, at the place that its key says. A
key that finds another's entry there takes its place: old ghosts go by themselves, and nothing has to be swept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Classes, Keys

GHOSTS = 4  # entries for each block of the capacity, at least; a power of two of them in all
_LEAST, _MOST = 1 << 16, 1 << 24
_DENSE, _SPARSE = 512, 4096  # units: all are looked at before the first, every 32nd after the second
_STEP, _LONG_STEP = 8, 32
_ENTRY = np.dtype(
    [("tag", np.uint32), ("klass", np.uint16), ("count", np.uint8), ("flags", np.uint8), ("when", np.float64)]
)


@dataclass
class Seen:
    """What the table says of a request's blocks.

    known: which are in the table. prefix: blocks from the first on that were asked for before, whether or not
    the table still has each, since a key names all before it. count, klass, flags, when: of known ones.
    """

    at: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]
    prefix: int
    count: npt.NDArray[np.int64]
    klass: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64]
    when: npt.NDArray[np.float64]


def entries(capacity: int) -> int:
    """How many a history has beneath a cache of so many blocks: a power of two, at least `GHOSTS` for each."""
    return min(max(1 << (max(capacity, 1) * GHOSTS - 1).bit_length(), _LEAST), _MOST)


def history_bytes(capacity: int) -> int:
    return entries(capacity) * _ENTRY.itemsize


class History:
    """Requests' blocks by key. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        size = entries(capacity)
        self._shift = np.uint64(64 - size.bit_length() + 1)
        self.table: npt.NDArray[Any] = np.empty(size, _ENTRY)
        self.table.fill(0)  # every page exists before anything is in a hurry

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def look(self, keys: Keys) -> Seen:
        at = (keys >> self._shift).astype(np.int64)
        entries = self.table[at]
        known = (entries["tag"] == _tags(keys)) & (entries["count"] > 0)
        where = np.flatnonzero(known)
        return Seen(
            at,
            known,
            int(where[-1]) + 1 if len(where) else 0,
            np.where(known, entries["count"], 0).astype(np.int64),
            entries["klass"].astype(np.int64),
            entries["flags"].astype(np.int64),
            entries["when"],
        )

    def put(
        self, keys: Keys, seen: Seen, now: float, classes: Classes, flags: int | npt.NDArray[Any]
    ) -> None:
        """Remembers the request that `seen` was said of: one more use of each block, now."""
        entries = np.empty(len(keys), _ENTRY)
        entries["tag"], entries["klass"], entries["flags"], entries["when"] = _tags(keys), classes, flags, now
        count = seen.count + 1
        count[: seen.prefix] = np.maximum(count[: seen.prefix], 2)
        entries["count"] = np.minimum(count, 255)
        self.table[seen.at] = entries


class Thinning:
    """Which units of a chain stand for all of it: of long ones few, the same for every request."""

    def __init__(self) -> None:
        self._grow(4 * _SPARSE)

    def _grow(self, units: int) -> None:
        every = np.arange(units)
        step = np.where(every < _DENSE, 1, np.where(every < _SPARSE, _STEP, _LONG_STEP))
        self._chosen = every[(every + 1) % step == 0]
        self._stands = np.searchsorted(self._chosen, every)

    def of(self, units: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The units looked at, and of each unit which of those stands for it."""
        if units > len(self._stands):
            self._grow(2 * units)
        chosen = self._chosen[: np.searchsorted(self._chosen, units)]
        return chosen, np.minimum(self._stands[:units], len(chosen) - 1)


def _tags(keys: Keys) -> npt.NDArray[np.uint32]:
    return keys.astype(np.uint32)  # the low half; the high half says where

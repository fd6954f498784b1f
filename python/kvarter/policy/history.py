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

GHOSTS = 8  # entries for each block of the capacity, at least; a power of two of them in all
_LEAST, _MOST = 1 << 12, 1 << 24
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


class History:
    """Requests' blocks by key. Not thread-safe."""

    def __init__(self, capacity: int) -> None:
        size = min(max(1 << (capacity * GHOSTS - 1).bit_length(), _LEAST), _MOST)
        self._shift = np.uint64(64 - size.bit_length() + 1)
        self.table: npt.NDArray[Any] = np.zeros(size, _ENTRY)

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


def _tags(keys: Keys) -> npt.NDArray[np.uint32]:
    return keys.astype(np.uint32)  # the low half; the high half says where

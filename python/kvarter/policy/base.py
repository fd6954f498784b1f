"""What a placement policy is: it says which blocks are worth least. Who evicts, and when, is not its business.

The caller (the replayer, or `Placement` beneath a live store) enforces leaf first: a block goes only when nothing
resident leans on it, and a block counts as much as the best of those that lean on it. A policy therefore scores
each block by itself, many at once, and may be wrong about the present: what was used since is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Keys = npt.NDArray[np.uint64]
Classes = npt.NDArray[np.uint16]

NO_HINT, CONTINUES, ENDS, HIGH, LOW = range(5)
"""What a caller said about a request: nothing; its session goes on; it ends; it matters more, or less, than others."""
SUPERSEDED = 0x8000
"""Flag of a class: a later boundary of the same chain has been stored. It goes first, unless it was hit twice."""


@dataclass(frozen=True)
class Columns:
    """One element a row. Read-only views of a live index, or the replayer's own arrays.

    last_use: nanoseconds. born: rises with every block that was stored. hits: requests served since it was stored.
    depth: blocks before it. klass: what `Policy.observe` called it. nbytes: of its payload.
    """

    last_use: npt.NDArray[Any]
    born: npt.NDArray[Any]
    hits: npt.NDArray[Any]
    depth: npt.NDArray[Any]
    klass: npt.NDArray[Any]
    nbytes: npt.NDArray[Any]


class Policy:
    """Base of all policies; called from one thread at a time.

    capacity: blocks that the cache holds, about; bounds what a policy may remember of blocks that are gone.
    """

    name: ClassVar[str]
    learns: ClassVar[bool] = False
    """Whether `observe` does anything: a live store then calls it once for each request."""
    ranks: ClassVar[bool] = True
    """False: leave it to the index, which evicts the least recently used by itself."""

    rates: ClassVar[bool] = False
    """Whether scores are uses a second, above 0: a live store then weighs them by what a use saves, for each byte."""

    asked_units = 0
    """Blocks of the requests that were observed, of a policy that remembers those that are gone."""
    known_units = 0
    """Of these, what had been asked for before: what a cache without end would have had."""

    def __init__(self, capacity: int) -> None:
        self.capacity = max(capacity, 1)

    def score(self, columns: Columns, rows: Rows, now: float) -> Scores:
        """float64[len(rows)]: what each row is worth at `now` seconds; the lowest goes first."""
        raise NotImplementedError

    def observe(self, keys: Keys, resident: int, now: float, hint: int = NO_HINT) -> Classes | None:
        """A request for the blocks of a chain, the first `resident` of which are here; before anything changes.

        keys: well mixed, and each names all blocks before it too. Returns a class for each block, to be kept in
        its column; None: none. Blocks that the request adds later are like its last one.
        """
        return None

    def learn(self, now: float) -> bool:
        """A part of the work that can wait, a tenth of a millisecond or two. Called after each request, and on as long
        as it says that there is more.
        """
        return False

    def hinted(self, classes: Classes, hint: int) -> Classes:
        """The same classes after the caller has said more."""
        return classes

    @property
    def state_bytes(self) -> int:
        """Memory for what is remembered of blocks, those that are gone included; in the ledger as overhead."""
        return 0

    @classmethod
    def most_state_bytes(cls, capacity: int) -> int:
        """What `state_bytes` may come to; a store looks before it starts whether the host has as much."""
        return 0

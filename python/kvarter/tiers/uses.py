"""Which prefixes are used often: counted at a few lengths of each sequence, so that what many share shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

Prefix = tuple[int, bytes]  # namespace's number, digest of the last unit


def lengths(blocks: int) -> list[int]:
    """Where a sequence of so many is counted: at all of it, and at every power of two; the longest first."""
    shorter = [1 << power for power in reversed(range(blocks.bit_length())) if 1 << power < blocks]
    return [blocks, *shorter] if blocks else []


class Uses:
    """hot: uses within one to two windows that make a prefix hot. most: prefixes that a window counts: one that is full
    ends early. Not thread-safe."""

    def __init__(self, hot: int, seconds: float, most: int, now: Callable[[], float]) -> None:
        self._hot, self._seconds, self._most, self._now = hot, seconds, most, now
        self._counts: tuple[Counter[Prefix], Counter[Prefix]] = (
            Counter(),
            Counter(),
        )  # of this window and the last
        self._told: tuple[set[Prefix], set[Prefix]] = set(), set()
        self._ends = now() + seconds

    def used(self, prefixes: list[Prefix]) -> int | None:
        """Counts a use of each; they are of one sequence, the longest first. The place of the longest that is hot,
        unless that was said in this window or the last."""
        late = self._now() - self._ends
        if late >= 0 or len(self._counts[0]) >= self._most:
            self._turn()
            if late >= self._seconds:
                self._turn()
        counts, before = self._counts
        for prefix in prefixes:
            counts[prefix] += 1
        for place, prefix in enumerate(prefixes):
            if counts[prefix] + before[prefix] >= self._hot:
                if prefix in self._told[0] or prefix in self._told[1]:
                    return None
                self._told[0].add(prefix)
                return place
        return None

    def _turn(self) -> None:
        self._counts = Counter(), self._counts[0]
        self._told = set(), self._told[0]
        self._ends = self._now() + self._seconds

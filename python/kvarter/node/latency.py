"""How long things take, by powers of two of a nanosecond: as csrc/include/kvarter/histogram.h counts, and what a
distribution says."""

from __future__ import annotations

from collections.abc import Sequence as Seq

BUCKETS = 40  # bucket b: what took less than 2**b ns, and no less than half of that; the last one: all that is longer
Counts = tuple[Seq[int], int]  # by bucket; nanoseconds of all together


class Histogram:
    """One thread records at a time; any may read."""

    def __init__(self) -> None:
        self._buckets, self._nanoseconds = [0] * BUCKETS, 0

    def record(self, seconds: float) -> None:
        nanoseconds = max(int(seconds * 1e9), 0)
        self._buckets[min(nanoseconds.bit_length(), BUCKETS - 1)] += 1
        self._nanoseconds += nanoseconds

    def counts(self) -> Counts:
        return list(self._buckets), self._nanoseconds


def seconds_of(bucket: int) -> float:
    """What took less than this is in the bucket, or in one before it."""
    return float((1 << bucket) / 1e9)


def quantile(buckets: Seq[int], share: float) -> float | None:
    """Seconds within which this share was done, as an upper bound that is at most twice too much; None of nothing."""
    wanted, seen = share * sum(buckets), 0
    if not wanted:
        return None
    for bucket, count in enumerate(buckets):
        seen += count
        if seen >= wanted:
            return seconds_of(bucket)
    return seconds_of(BUCKETS)

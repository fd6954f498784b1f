"""Puts into a full index: each has to evict. Reserve and commit, no payload; beside an OrderedDict."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Iterator

from crowd import Crowd, size
from report import Row, Run, race, rate_row, timed


class Puts:
    """Both contenders: a new chain each round, in batches of `batch` blocks."""

    def __init__(self, run: Run, crowd: Crowd, batch: int, count: int) -> None:
        self.run, self.crowd, self.batch, self.count = run, crowd, batch, count
        self.plain: OrderedDict[bytes, int] = OrderedDict()
        for sequence in crowd.sequences:
            self.plain.update((row.tobytes(), 0) for row in sequence.digests)

    def batches(self) -> list[range]:
        return [range(at, min(at + self.batch, self.count)) for at in range(0, self.count, self.batch)]

    def ours(self, _: int) -> float:
        sequence, store = self.crowd.new_sequence(), self.crowd.store
        evicted = store.stats()["evicted"]

        def put() -> None:
            for need in self.batches():
                self.crowd.put(sequence, need)

        seconds = timed(put)
        stats = store.stats()
        self.run.require(
            stats["evicted"] - evicted == self.count, "evict: a put did not evict exactly one block"
        )
        self.run.require(stats["resident_blocks"] == self.crowd.total, "evict: the store is not full")
        return seconds

    def ordered_dict(self, _: int) -> float:
        names = [row.tobytes() for row in self.crowd.new_sequence().digests[: self.count]]
        plain = self.plain

        def put() -> None:
            for name in names:
                plain.popitem(last=False)
                plain[name] = 0

        return timed(put)


def index_bytes(crowd: Crowd) -> float:
    """Hash table and columns, for each block there is room for."""
    _, (_, columns) = crowd.store.index.memfds
    return columns / crowd.total


def run(run: Run) -> Iterator[Row]:
    crowd = Crowd(1 << 16, 2048) if run.quick else Crowd(1 << 20, 8192)
    many = size(crowd.total)
    for batch in (1, 16, 256, 2048):
        puts = Puts(run, crowd, batch, min(2048, 64 * batch))
        ours, plain = race(run.rounds, puts.ours, puts.ordered_dict)
        case = f"evicting put 4 KiB block, batches of {batch}, {many}, 1 thread, against an OrderedDict"
        yield rate_row(
            case, "k/s", puts.count / 1e3, ours, plain, goal=300 if batch >= 16 else None, kind="absolute"
        )
    case = f"hash table and columns for each block, {many}, against an OrderedDict"
    dict_bytes = sys.getsizeof(puts.plain) / len(puts.plain) + sys.getsizeof(next(iter(puts.plain)))
    yield Row(case, "B", index_bytes(crowd), dict_bytes, 128, "lower", "absolute")
    if run.check:
        run.wrong.extend(f"evict: {finding}" for finding in crowd.audit())

"""Match of a long sequence in a full index, beside a dict that is asked for one digest after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from crowd import NAMESPACE, UNIT, Crowd, size
from kvarter.sequence import Sequence
from report import Row, Run, race, time_row, timed


class Lookups:
    """Both contenders. Every round asks for another chain, so that none is in the caches."""

    def __init__(self, run: Run, crowd: Crowd) -> None:
        self.run, self.crowd = run, crowd
        self.names = [[row.tobytes() for row in sequence.digests] for sequence in crowd.sequences]
        self.table = {name: slot for names, slots in zip(self.names, crowd.offsets, strict=True)
                      for name, slot in zip(names, slots.tolist(), strict=True)}  # fmt: skip

    def partly(self, number: int) -> tuple[Sequence, int]:
        """A chain that leaves the stored one somewhere, and where."""
        digests = self.crowd.sequences[number % len(self.crowd.sequences)].digests.copy()
        resident = int(self.crowd.random.integers(1, len(digests)))
        digests[resident:] ^= 0xFF
        return Sequence.from_digests(NAMESPACE, digests), resident

    def whole(self, number: int) -> tuple[Sequence, int]:
        return self.crowd.sequences[number % len(self.crowd.sequences)], self.crowd.units

    def boundary(self, chain: Callable[[int], tuple[Sequence, int]]) -> Callable[[int], float]:
        def look(number: int) -> float:
            sequence, resident = chain(number)
            found: list[int] = []
            seconds = timed(
                lambda: found.append(self.crowd.store.match(sequence, limit=sequence.num_tokens).tokens)
            )
            self.run.require(
                found == [resident * UNIT], f"match: {found} tokens, {resident} units are resident"
            )
            return seconds

        return look

    def slots(self, number: int) -> float:
        sequence, _ = self.whole(number)
        found: list[np.ndarray] = []

        def look() -> None:
            match = self.crowd.store.match(sequence, limit=sequence.num_tokens)
            with self.crowd.store.load(match, 60.0) as ticket:
                found.append(ticket.slots(0))

        seconds = timed(look)
        if self.run.check:
            expected = self.crowd.offsets[number % len(self.crowd.sequences)]
            self.run.require(
                np.array_equal(found[0]["offset"].ravel(), expected), "match: a slot is another block's"
            )
        return seconds

    def plain(self, number: int) -> float:
        names, table = self.names[number % len(self.names)], self.table

        def look() -> list[int]:
            found = []
            for name in names:
                slot = table.get(name)
                if slot is None:
                    break
                found.append(slot)
            return found

        return timed(look)


def run(run: Run) -> Iterator[Row]:
    crowd = Crowd(1 << 16, 2048) if run.quick else Crowd(1 << 20, 8192)
    lookups = Lookups(run, crowd)
    rounds = 3 * run.rounds
    boundary, partly, slots, plain = race(
        rounds,
        lookups.boundary(lookups.whole),
        lookups.boundary(lookups.partly),
        lookups.slots,
        lookups.plain,
    )
    units, many = f"{crowd.units:,} units", size(crowd.total)
    absolute = {"kind": "absolute"}
    yield time_row(f"boundary of {units}, {many}, against a dict", "us", boundary, plain, goal=10, **absolute)
    yield time_row(
        f"boundary within {units}, {many}, against a dict", "us", partly, plain, goal=10, **absolute
    )
    yield time_row(
        f"boundary and slots of {units}, {many}, against a dict", "us", slots, plain, goal=200, **absolute
    )
    if run.check:
        run.wrong.extend(f"match: {finding}" for finding in crowd.audit())

"""Match of a long sequence in a full index, beside a dict that is asked for one digest after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from crowd import NAMESPACE, UNIT, Crowd, size
from kvarter.sequence import Sequence
from kvarter.transfers import Ticket
from report import Row, Run, race, time_row, timed


class Lookups:
    """Both contenders. Each look-up is for another chain, so its blocks are not in the nearest caches."""

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
        """Seconds of one match of many in a row."""

        def look(_: int) -> float:
            chains = [chain(number) for number in range(len(self.crowd.sequences))]
            found: list[int] = []

            def match_all() -> None:
                for sequence, _ in chains:
                    found.append(self.crowd.store.match(sequence, limit=sequence.num_tokens).tokens)

            seconds = timed(match_all)
            expected = [resident * UNIT for _, resident in chains]
            self.run.require(found == expected, f"match: found {found} tokens, stored {expected}")
            return seconds / len(chains)

        return look

    def slots(self, number: int) -> float:
        sequence, _ = self.whole(number)
        tickets: list[Ticket] = []

        def look() -> None:
            match = self.crowd.store.match(sequence, limit=sequence.num_tokens)
            tickets.append(self.crowd.store.load(match, 60.0))
            tickets[0].slots(0)

        seconds = timed(look)
        with tickets[0] as ticket:
            right = np.array_equal(
                ticket.slots(0)["offset"].ravel(), self.crowd.offsets[number % len(self.crowd.offsets)]
            )
            self.run.require(right, f"match: round {number} was given another block's slot")
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
    rounds = 2 * run.rounds
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

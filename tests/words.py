"""The language of the store's tests: a world with a stepped clock, whose slots a test writes and reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvarter import _core
from kvarter.geometry import CacheGroup, Full
from kvarter.keys import Namespace
from kvarter.sequence import Sequence
from kvarter.store import Store
from kvarter.transfers import Match, Reservation, Ticket

UNIT = 4
KIB, MIB = 1 << 10, 1 << 20


def namespace(*groups: CacheGroup, unit_tokens: int = UNIT, **changes: Any) -> Namespace:
    base: dict[str, Any] = {"model": "m", "weights": "w", "kv_dtype": "bfloat16", "layout": "nhd"}
    return Namespace(**(base | changes), groups=groups, unit_tokens=unit_tokens, shard_grid=(("tp", 1),))


def full(nbytes: int = 4 * KIB, shards: int = 1, block_tokens: int = UNIT, **more: Any) -> CacheGroup:
    return CacheGroup("full", Full(), block_tokens, (nbytes,) * shards, **more)


class World:
    """A store of one namespace. `put`, `match`, `get` are what a connector and its workers would do."""

    def __init__(
        self, *groups: CacheGroup, dram: int = 2 * MIB, unit_tokens: int = UNIT, **options: Any
    ) -> None:
        self.clock = _core.SteppedClock()
        self.store = Store(dram, clock=self.clock, populate=False, **options)
        self.namespace = namespace(*(groups or (full(),)), unit_tokens=unit_tokens)
        self.mapping = _core.Mapping(self.store.exports())
        self._stamp = 0

    def sequence(self, tokens: Iterable[int]) -> Sequence:
        return Sequence(self.namespace, tokens)

    def slot(self, slot: np.void) -> np.ndarray[Any, np.dtype[np.uint8]]:
        arena = self.mapping.payload(int(slot["arena"]))
        return arena[int(slot["offset"]) : int(slot["offset"] + slot["length"])]

    def fill(self, slot: np.void) -> bytes:
        """Writes bytes that no other call writes; returns them."""
        self._stamp += 1
        into = self.slot(slot)
        into[:] = np.resize(np.array([self._stamp], np.uint64).view(np.uint8), len(into))
        return into.tobytes()

    def commit(self, reservation: Reservation, shard: int = 0, ok: bool = True) -> None:
        slots = [row for group in reservation.groups() for row in reservation.slots(group)]
        sums = [_core.xxh3_64(self.slot(row[min(shard, len(row) - 1)])) for row in slots]
        reservation.commit(shard, np.full(len(slots), ok, np.uint8), np.array(sums, np.uint64))

    def put(
        self, sequence: Sequence, blocks: dict[int, range], **options: Any
    ) -> dict[tuple[int, int, int], bytes]:
        """Stores blocks; what was written, by (group, block, shard)."""
        reservation = self.store.reserve(sequence, blocks, 10, **options)
        written = {}
        for group in reservation.groups():
            for block, row in zip(reservation.blocks(group), reservation.slots(group), strict=True):
                for shard, slot in enumerate(row):
                    written[group, int(block), shard] = self.fill(slot)
        shards = max(len(group.shard_bytes) for group in self.namespace.groups)
        for shard in range(shards):
            self.commit(reservation, shard)
        return written

    def read(self, ticket: Ticket) -> dict[tuple[int, int, int], bytes]:
        """What a ticket's slots hold, by (group, block, shard)."""
        return {
            (group, block, shard): self.slot(slot).tobytes()
            for group, blocks in enumerate(ticket.match.blocks)
            for block, row in zip(blocks, ticket.slots(group), strict=True)
            for shard, slot in enumerate(row)
        }

    def get(self, match: Match, **options: Any) -> dict[tuple[int, int, int], bytes]:
        with self.store.load(match, 10, **options) as ticket:
            assert ticket.status == _core.Status.Ok
            return self.read(ticket)

    def burst(self, first: int = 1000, blocks: int = 600) -> None:
        """Puts more one-block sequences than the pool has room for, of tokens from `first` on."""
        for number in range(first, first + blocks):
            self.clock.advance(1e-6)
            self.put(self.sequence([number] * 4), {0: range(1)})

    def pass_time(self, seconds: float) -> None:
        """Moves the clock and lets the store notice."""
        self.clock.advance(seconds)
        self.store.match(self.sequence(()))


class Blocks:
    """Resident blocks as a set of (group, block): what the planner asks, answered by brute force."""

    def __init__(self, have: set[tuple[int, int]]) -> None:
        self.have = have

    def leading(self, group: int, limit: int) -> int:
        return next((b for b in range(limit) if (group, b) not in self.have), limit)

    def last_run(self, group: int, end: int, run: int) -> int:
        for e in range(end, 0, -1):
            if all((group, b) in self.have for b in range(max(0, e - run), e)):
                return e
        return 0

"""How full the pool is when a put has to evict, and whether a burst loses anything that could have been kept.

Sizes from 4 KiB to 31 MiB; the share of bytes that each size gets changes many times; blocks are used again,
so that age says nothing about address; some are always leased. With --check every block's bytes are written,
and read again when it is used: what relocation moves must arrive.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kvarter import _core
from kvarter.geometry import CacheGroup, State
from kvarter.keys import Namespace
from kvarter.sequence import Sequence
from kvarter.store import Store
from kvarter.transfers import Reservation
from memory import Words, words
from report import Row, Run, spread

SIZES = [4 << 10, 24 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 9 << 20, 31 << 20]
UNIT = 16


@dataclass
class Churn:
    """A store whose blocks are of many sizes and lean on nothing: each is evicted by itself.

    evicting: fraction of the pool's bytes that were resident or leased each time a put first had to evict.
    """

    run: Run
    dram: int
    sizes: list[int]
    turnover: int  # pools full of bytes to put before measuring
    evicting: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(4)
        self.store = Store(self.dram, max_blocks=self.dram >> 12, populate=False)
        groups = tuple(CacheGroup(f"{size} B", State(), UNIT, (size,)) for size in self.sizes)
        self.namespace = Namespace(
            model="bench",
            weights="bench",
            kv_dtype="uint8",
            layout="plain",
            groups=groups,
            unit_tokens=UNIT,
            shard_grid=(("tp", 1),),
        )
        self.ns = self.store.open(self.namespace)
        self.payload: Words = _core.Mapping(self.store.exports()).payload(0)
        self.put_before: list[tuple[int, Sequence]] = []
        self.leases: list[int] = []
        self.refused = 0

    def put(self, group: int, measure: bool) -> None:
        digest = self.random.integers(0, 256, (1, 32), dtype=np.uint8)
        sequence = Sequence.from_digests(self.namespace, digest)
        before, ledger = self.store.index.counters()["evicted"], self.store.index.ledger()
        reservation = self.store.reserve(sequence, {group: range(1)}, 60.0)
        if measure and self.store.index.counters()["evicted"] > before:
            self.evicting.append((ledger["resident"] + ledger["leased"]) / self.store.pool.bytes)
        if not len(reservation):
            self.refused += 1
            return
        if self.run.check:
            self._bytes(reservation.slots(group)[0, 0])[:] = words(len(self.put_before), self.sizes[group])
        reservation.commit(0, np.ones(1, np.uint8), np.zeros(1, np.uint64))
        self.put_before.append((group, sequence))

    def use(self, lease_it: bool) -> None:
        """A block put not long ago is read: it is young again, and leased for a while if `lease_it`."""
        back = int(self.random.integers(1, min(len(self.put_before), 4096) + 1))
        number = len(self.put_before) - back
        group, sequence = self.put_before[number]
        deadline = self.store._clock.now() + 60_000_000_000
        chain, read = sequence.chain(self.ns), _core.LeaseKind.Read
        status, lease = self.store.index.lease(chain, [(group, 0, 1)], read, 0, deadline)
        if status != _core.Status.Ok:
            return  # it has been evicted
        if self.run.check:
            there = self._bytes(self.store.index.slots(lease)[0])
            self.run.require(
                np.array_equal(there, words(number, self.sizes[group])), f"pool: bytes of put {number}"
            )
        self.leases.append(lease)
        held = self.store.index.ledger()["leased"]
        while self.leases and (not lease_it or held > self.store.pool.bytes // 50):
            self.store.index.release(self.leases.pop(0), _core.Outcome.Loaded)
            held = self.store.index.ledger()["leased"]

    def turn_over(self) -> None:
        """Puts `turnover` pools full, then measures two more; the mix changes every quarter of a pool."""
        put = 0
        measured_from = self.turnover * self.store.pool.bytes
        while put < measured_from + 2 * self.store.pool.bytes:
            mix = self.random.dirichlet(np.full(len(self.sizes), 0.5))  # of bytes
            chances = mix / self.sizes
            until = put + self.store.pool.bytes // 4
            while put < until:
                group = int(self.random.choice(len(self.sizes), p=chances / chances.sum()))
                self.put(group, measure=put > measured_from)
                put += self.sizes[group]
                if self.random.random() < 0.3:
                    self.use(lease_it=self.random.random() < 0.5)
        for lease in self.leases:
            self.store.index.release(lease, _core.Outcome.Loaded)

    def _bytes(self, slot: np.void) -> Words:
        return self.payload[slot["offset"] : slot["offset"] + slot["length"]].view(np.uint64)


def burst(run: Run, dram: int, waves: int) -> tuple[int, int, int]:
    """Stores twice the pool's capacity in `waves` parts, each in flight as a whole, a tenth of it pinned.

    Returns blocks offered, blocks dropped, and those dropped although something was evictable.
    """
    block = 64 << 10
    group = CacheGroup("all", State(), UNIT, (block,))
    namespace = Namespace(
        model="bench",
        weights="bench",
        kv_dtype="uint8",
        layout="plain",
        groups=(group,),
        unit_tokens=UNIT,
        shard_grid=(("tp", 1),),
    )
    store = Store(dram, max_blocks=4 * dram // block, populate=False)
    random = np.random.default_rng(5)

    def new(count: int) -> Sequence:
        return Sequence.from_digests(namespace, random.integers(0, 256, (count, 32), dtype=np.uint8))

    def finish(reservation: Reservation) -> None:
        reservation.commit(0, np.ones(len(reservation), np.uint8), np.zeros(len(reservation), np.uint64))

    capacity = store.pool.bytes // block
    pinned = new(capacity // 10)
    finish(store.reserve(pinned, {0: range(pinned.units)}, 60.0))
    ranges = [(0, 0, pinned.units)]
    deadline = store._clock.now() + 600_000_000_000
    store.index.lease(pinned.chain(store.open(namespace)), ranges, _core.LeaseKind.Pin, 0, deadline)
    offered = dropped = needlessly = 0
    for _ in range(waves):
        wave = new(2 * capacity // waves)
        flying = []
        for first in range(0, wave.units, 16):
            asked = min(16, wave.units - first)
            flying.append(store.reserve(wave, {0: range(first, first + asked)}, 60.0))
            missing = asked - len(flying[-1])
            offered, dropped = offered + asked, dropped + missing
            if missing and store.index.evictable() >= block:
                needlessly += missing
        for reservation in flying:
            finish(reservation)
    if run.check:
        run.wrong.extend(f"pool: burst: {finding}" for finding in store.index.audit())
    return offered, dropped, needlessly


def run(run: Run) -> Iterator[Row]:
    sizes = [size for size in SIZES if not run.quick or size <= 1 << 20]
    churn = Churn(run, (64 << 20) if run.quick else (2 << 30), sizes, 1 if run.quick else 10)
    churn.turn_over()
    case = f"bytes resident when a put has to evict, {sizes[0] >> 10} KiB to {sizes[-1] >> 20} MiB blocks"
    low, middle = np.percentile(churn.evicting, [1, 50])
    wide = spread(churn.evicting)
    yield Row(f"{case}, 1st percentile", "%", 100 * low, 100, 0.95, spread=wide)
    yield Row(f"{case}, median", "%", 100 * middle, 100, spread=wide)
    if run.check:
        run.require(
            churn.refused == 0, f"pool: {churn.refused} puts were refused in a pool that is mostly evictable"
        )
        run.wrong.extend(f"pool: {finding}" for finding in churn.store.index.audit())

    for waves in (16, 1):
        offered, dropped, needlessly = burst(run, 64 << 20, waves)
        part = "all in flight at once" if waves == 1 else f"1/{waves} in flight at once"
        case = f"burst of 2 x capacity, {part}, blocks dropped"
        yield Row(f"{case} while anything was evictable", "blocks", needlessly, offered, 0, "lower")
        yield Row(f"{case} in all", "blocks", dropped, offered, better="lower")

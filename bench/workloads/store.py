"""Put and get through the Store, checksums on, beside our own copy of the same bytes and nothing else.

A put is reserve, gather and commit, a get match, load, scatter and release. The digests exist before, as they
do in an engine that has matched the prompt; the workload `hash` has their cost.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import numpy as np

from kvarter import _core
from kvarter.base_store import BaseStore
from kvarter.geometry import CacheGroup, Full
from kvarter.keys import Namespace
from kvarter.sequence import Sequence
from kvarter.store import Store
from memory import EngineMemory, Words, mapped
from report import Row, Run, race, rate_row, timed

UNIT = 16


class Cache:
    """A store, its pool as a worker maps it, and an engine's memory of two batches. Each put has to evict."""

    def __init__(self, run: Run, block: int, segment: int, batch: int, dram: int) -> None:
        self.run, self.block, self.batch = run, block, batch
        self.engine = EngineMemory.of(block, segment, 2 * batch)
        self.store, self.mapping = self.open(dram, dram // block + 64)
        self.scratch = _core.Pool(dram, dram, True)  # where our own copy gathers to: the same pages
        self.scratch_mapping = mapped([(fd, size, 0, n) for n, (fd, size) in enumerate(self.scratch.arenas)])
        self.copier = _core.HostCopyEngine(0)
        group = CacheGroup("all", Full(), UNIT, (block,))
        self.namespace = Namespace(
            model="bench",
            weights=f"bench {block}",
            kv_dtype="bfloat16",
            layout="plain",
            groups=(group,),
            unit_tokens=UNIT,
            shard_grid=(("tp", 1),),
        )
        self.blocks = np.arange(batch, dtype=np.int64)
        self.kept = dram // block // batch // 2  # puts that are certainly still there
        self.puts: list[Sequence] = []
        self.stored = 0  # blocks of all puts
        while len(self.puts) < 2 * self.kept + 2:
            self.put(0)

    def open(self, dram: int, max_blocks: int) -> tuple[BaseStore, _core.Mapping]:
        """A store, and its pool as a worker maps it."""
        store = Store(dram, max_blocks=max_blocks)
        return store, mapped(store.exports())

    def name(self, number: int, block: int) -> int:
        """Of the content of a block of the put with this number."""
        return number * self.batch + block

    def fill(self) -> None:
        """Writes what the next put stores: both contenders find it as warm."""
        for block in range(self.batch):
            self.engine.fill(block, self.name(len(self.puts), block))

    def put(self, _: int) -> float:
        self.fill()
        tokens = array("I", [len(self.puts)]) + array("I", range(self.batch * UNIT - 1))
        return timed(self._put, Sequence(self.namespace, tokens))

    def _put(self, sequence: Sequence) -> None:
        reservation = self.store.reserve(sequence, {0: range(self.batch)}, 60.0)
        slots = reservation.slots(0)
        addresses = self.mapping.addresses(
            slots["arena"].ravel(), slots["offset"].ravel(), slots["length"].ravel()
        )
        ticket = self.copier.submit("gather", self.engine.blocks, reservation.blocks(0), addresses)
        statuses, checksums = self.copier.take(ticket)
        reservation.commit(0, (statuses == 0).astype(np.uint8), checksums)
        self.puts.append(sequence)
        self.stored += len(reservation)
        self.run.require(len(reservation) == self.batch, f"store: put: {reservation.reasons()}")

    def gather(self, number: int) -> float:
        self.fill()
        offsets = (number * self.batch + self.blocks) * self.block % (self.scratch.bytes - self.block)
        base = self.scratch_mapping.payload(0).ctypes.data
        addresses = offsets.astype(np.uint64) // np.uint64(self.block) * np.uint64(self.block) + np.uint64(
            base
        )
        tickets: list[int] = []
        copy = ("gather", self.engine.blocks, self.blocks, addresses)
        seconds = timed(lambda: tickets.append(self.copier.submit(*copy)))
        self.copier.take(tickets[0])
        return seconds

    def get(self, _: int) -> float:
        """Of a put a quarter of a pool ago, to the engine's other half, where the bytes are checked. What was put half
        a pool ago and not read since is as old as what was read then: it may go first."""
        which = len(self.puts) - self.kept // 2
        targets = self.blocks + self.batch
        if self.run.check:
            for block in targets:
                self.engine.poison(block)
        statuses: list[Words] = []
        seconds = timed(lambda: statuses.append(self._get(self.puts[which], targets)))
        self.run.require(not statuses[0].any(), f"store: get: statuses {statuses[0]}")
        if self.run.check:
            for block in range(self.batch):
                right = self.engine.holds(self.batch + block, self.name(which, block))
                self.run.require(right, f"store: get: block {block} of put {which}")
        return seconds

    def _get(self, sequence: Sequence, targets: Words) -> Words:
        match = self.store.match(sequence, limit=self.batch * UNIT)
        with self.store.load(match, 60.0) as ticket:
            slots = ticket.slots(0).ravel()
            addresses = self.mapping.addresses(slots["arena"], slots["offset"], slots["length"])
            copied = self.copier.submit("scatter", self.engine.blocks, targets, addresses, slots["checksum"])
            return self.copier.take(copied)[0]

    def scatter(self, _: int) -> float:
        match = self.store.match(self.puts[len(self.puts) - self.kept // 2], limit=self.batch * UNIT)
        with self.store.load(match, 60.0) as ticket:
            slots = ticket.slots(0).ravel()
            addresses = self.mapping.addresses(slots["arena"], slots["offset"], slots["length"])
            tickets: list[int] = []
            copy = ("scatter", self.engine.blocks, self.blocks + self.batch, addresses, slots["checksum"])
            seconds = timed(lambda: tickets.append(self.copier.submit(*copy)))
            self.copier.take(tickets[0])
        return seconds

    def audit(self) -> None:
        """The account agrees with a recount, and nothing is left open."""
        ledger = self.store.audit()
        for entry in ("reserved", "leased", "quarantined", "dead"):
            self.run.require(
                ledger[entry] == 0, f"store: {ledger[entry]} bytes are {entry} after the last put and get"
            )


def run(run: Run) -> Iterator[Row]:
    for block, segment, batch in ((1 << 20, 32 << 10, 16), (2 << 20, 64 << 10, 8), (1 << 20, 32 << 10, 1)):
        cache = Cache(run, block, segment, batch, (128 << 20) if run.quick else (512 << 20))
        put, gather, get, scatter = race(2 * run.rounds, cache.put, cache.gather, cache.get, cache.scatter)
        gigabytes = batch * block / 1e9
        what = (
            f"{block >> 20} MiB block, {segment >> 10} KiB segments, 1 thread, batches of {batch}, checksums"
        )
        goal = 0.85 if batch > 1 else None
        yield rate_row(f"put {what}, against our own gather", "GB/s", gigabytes, put, gather, goal=goal)
        yield rate_row(f"get {what}, against our own scatter", "GB/s", gigabytes, get, scatter, goal=goal)
        if run.check:
            cache.audit()

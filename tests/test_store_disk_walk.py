"""A random walk over a store with a log below it: crashes, restarts, rot and slow devices; never a foreign byte."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import numpy as np
import pytest

from kvarter import _core
from kvarter.geometry import CacheGroup, Full, State, Window
from kvarter.policy import AlwaysLoad
from kvarter.sequence import Sequence
from kvarter.tiers.log import DiskOptions
from words import KIB, MIB, World

STEPS = int(os.environ.get("KVARTER_WALK_STEPS", "1500")) // 4
GROUPS = (
    CacheGroup("full", Full(), 4, (9000, 5000)),
    CacheGroup("window", Window(9), 8, (20 * KIB,), copies=2),
    CacheGroup("state", State(), 16, (40 * KIB,), copies=2),
)


class Walk:
    def __init__(self, path: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.device = _core.FaultyDisk(seed)
        self.path = str(path / "log")
        self.served = self.from_disk = self.crashes = 0
        self.start()

    def start(self) -> None:
        disk = DiskOptions(self.path, 12 * MIB, MIB, self.device)  # type: ignore[arg-type]
        self.world = World(*GROUPS, dram=3 * MIB, disk=disk, load_policy=AlwaysLoad())

    def text(self) -> Sequence:
        """One of a few conversations that branch, of up to 16 units."""
        family, branch = self.random.randrange(3), self.random.randrange(4)
        tokens = [family] * 24 + [10 + branch] * 41
        return self.world.sequence(tokens[: self.random.choice((17, 33, 49, 65))])

    def content(self, sequence: Sequence, group: int, block: int, shard: int, length: int) -> bytes:
        """What a block must hold: a function of its key."""
        tokens = (block + 1) * GROUPS[group].block_tokens
        seed = hash((bytes(sequence.digests[tokens // 4 - 1]), group, shard)) & 0xFFFFFFFF
        return np.random.default_rng(seed).integers(0, 255, length, np.uint8).tobytes()

    def put(self) -> None:
        sequence = self.text()
        units = sequence.units
        blocks = {
            0: range(units),
            1: range(max(units // 2 - 2, 0), units // 2),
            2: range(units // 4 - 1, units // 4),
        }
        self.world.store.match(sequence)
        reservation = self.world.store.reserve(sequence, blocks, 10)
        for group in reservation.groups():
            for block, row in zip(reservation.blocks(group), reservation.slots(group), strict=True):
                for shard, slot in enumerate(row):
                    data = self.content(sequence, group, int(block), shard, int(slot["length"]))
                    self.world.slot(slot)[:] = np.frombuffer(data, np.uint8)
        if self.random.random() < 0.1:
            reservation.abort()
            return
        for rank in range(2):
            slots = [
                row[GROUPS[group].shard_of(rank)]
                for group in reservation.groups()
                if GROUPS[group].written_by(rank)
                for row in reservation.slots(group)
            ]
            sums = np.array([_core.xxh3_64(self.world.slot(slot)) for slot in slots], np.uint64)
            reservation.commit(rank, np.ones(len(slots), np.uint8), sums)

    def get(self) -> None:
        sequence = self.text()
        match = self.world.store.match(sequence)
        if not match:
            return
        with self.world.store.load(match, 5) as ticket:
            until = time.monotonic() + 20
            while not ticket.poll():
                assert time.monotonic() < until, "neither loaded nor given up"
                if self.random.random() < 0.05:
                    self.world.clock.advance(1)
                time.sleep(0.0005)
            if ticket.status != _core.Status.Ok:
                return
            for (group, block, shard), data in self.world.read(ticket).items():
                assert data == self.content(sequence, group, block, shard, len(data))
                self.served += 1
        self.from_disk += match.disk_tokens

    def step(self) -> None:
        self.world.clock.advance(self.random.choice((0.01, 1)))
        what = self.random.random()
        if what < 0.45:
            self.put()
        elif what < 0.92:
            self.get()
        elif what < 0.94:
            self.device.set(hold=self.random.randrange(60))
        elif what < 0.96:
            self.device.set(
                fail_reads_every=self.random.choice((0, 5)),
                fail_writes_every=self.random.choice((0, 7)),
                short_every=self.random.choice((0, 3)),
            )
        elif what < 0.98:
            self.device.set()
        else:
            self.restart(crash=self.random.random() < 0.5)

    def restart(self, crash: bool) -> None:
        if crash:
            self.crashes += 1
            self.device.crash(self.random.randrange(1 << 30))
        self.device.set()
        self.world.store.disk.close(0.0 if crash else 20.0)
        self.world.store.disk = None
        self.start()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_crash_rot_or_slowness_ever_serves_a_foreign_byte(tmp_path: Path, seed: int) -> None:
    walk = Walk(tmp_path, seed)
    for _ in range(STEPS):
        walk.step()
    walk.restart(crash=False)
    ledger = walk.world.store.audit()
    assert ledger["reserved"] == ledger["leased"] == ledger["quarantined"] == 0
    assert walk.world.store.disk.log.audit() == []
    assert min(walk.served, walk.from_disk, walk.crashes) > 0
    walk.world.store.close()

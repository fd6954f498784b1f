"""A store over a log, as the workload `disk` writes through it and reads back what its memory never had."""

from __future__ import annotations

import gc
from array import array
from pathlib import Path

import numpy as np

from disk_log import populated
from fio import DEPTH, Took, Watch
from kvarter import _core
from kvarter.geometry import CacheGroup, Full
from kvarter.keys import Namespace
from kvarter.policy import AlwaysLoad
from kvarter.sequence import Sequence
from kvarter.store import Store
from kvarter.tiers.log import DiskOptions
from memory import mapped
from report import Run

UNIT = 16
PROMPT = 32 << 20  # bytes of a sequence
SEGMENT = 64 << 20


class ThroughStore:
    """Rounds of `moved` bytes; each begins a store of its own over the same log, which holds two rounds."""

    def __init__(self, run: Run, path: Path, device: str, block: int, moved: int) -> None:
        self.run, self.block, self.moved = run, block, moved
        self.each, self.prompts = (
            PROMPT // block,
            moved // PROMPT,
        )  # blocks of a sequence; sequences of a round
        self.options = DiskOptions(
            str(path),
            2 * moved + 8 * SEGMENT,
            SEGMENT,
            device,
            DEPTH,
            queue_bytes=2 * moved,
            admit_all=True,
        )
        self.namespace = Namespace(
            model="bench",
            weights="bench",
            kv_dtype="bfloat16",
            layout="plain",
            groups=(CacheGroup("all", Full(), UNIT, (block,)),),
            unit_tokens=UNIT,
            shard_grid=(("tp", 1),),
        )
        self.written = 0  # sequences

    def store(self) -> Store:
        gc.collect()  # the pool of the round before goes with its last reference
        store = Store(
            self.moved + (256 << 20),
            max_blocks=2 * self.moved // self.block + 1024,
            disk=self.options,
            load_policy=AlwaysLoad(),
        )
        populated(store.pool)
        return store

    def sequence(self, number: int) -> Sequence:
        """One block and a token longer than what is stored: the last token is always computed."""
        return Sequence(self.namespace, array("I", [number]) + array("I", range(self.each * UNIT)))

    def write(self) -> Took:
        """Stores a round of new sequences and makes them durable."""
        with self.store() as store:
            mapping = mapped(store.exports())
            store.open(self.namespace)
            sequences = [self.sequence(self.written + i) for i in range(self.prompts)]
            self.written += self.prompts
            watch = Watch()
            for sequence in sequences:
                reservation = store.reserve(sequence, {0: range(self.each)}, 60.0)
                sums = []
                for slot in reservation.slots(0)[:, 0]:
                    begin = int(slot["offset"])
                    arena = mapping.payload(int(slot["arena"]))
                    sums.append(_core.xxh3_64(arena[begin : begin + self.block]))
                reservation.commit(0, np.ones(len(sums), np.uint8), np.array(sums, np.uint64))
            assert store.disk is not None
            flushed = store.disk.flush(120.0)
            took = watch.took(self.moved)
            stored = store.disk.stats()["stored"]
            self.run.require(
                flushed and stored == self.prompts * self.each,
                f"disk: {stored} of {self.prompts * self.each} blocks were stored through the store",
            )
        return took

    def read(self) -> Took:
        """Loads the last round's sequences into a store that has none of them in memory, two at a time."""
        with self.store() as store:
            sequences = [self.sequence(self.written - 1 - i) for i in range(self.prompts)]
            store.open(self.namespace)
            found = 0
            flying = []
            watch = Watch()
            for sequence in [*sequences, None, None]:
                if len(flying) == 2 or sequence is None:
                    ticket = flying.pop(0)
                    ticket.wait(60)
                    found += self.each * (ticket.status == _core.Status.Ok)
                    ticket.finish(_core.Outcome.Loaded)
                if sequence is not None:
                    flying.append(store.load(store.match(sequence), 60.0))
            took = watch.took(self.moved)
            self.run.require(
                found == self.prompts * self.each,
                f"disk: {found} of {self.prompts * self.each} blocks came back through the store",
            )
            if self.run.check:
                assert store.disk is not None
                self.run.wrong.extend(f"disk: {finding}" for finding in store.disk.log.audit())
                store.audit()
        return took

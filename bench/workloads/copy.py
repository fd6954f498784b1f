"""Gather and scatter beside memcpy over the same segments, pages and threads.

With checksum they stand beside memcpy followed by XXH3, and beside our own copy without.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import xxhash

from kvarter import _core
from memory import POISON, EngineMemory, Words, mapped, words
from report import Row, Run, page_kind, race, rate_row, timed

BLOCK = 1 << 20
WINDOW = 8  # blocks that one call moves: short enough to fit between two interruptions on a busy machine


@dataclass
class Field:
    """Engine blocks and slots in random pairs. Both hold the content named by the engine block's number."""

    segment: int
    count: int
    pool: _core.Pool = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(2)
        self.engine = EngineMemory.of(BLOCK, self.segment, self.count)
        self.pool = _core.Pool(self.count * BLOCK, self.count * BLOCK, True)
        self.mapping = mapped([(fd, size, 0, arena) for arena, (fd, size) in enumerate(self.pool.arenas)])
        self.slots: Words = self.mapping.payload(0).view(np.uint64).reshape(self.count, -1)
        self.engine_blocks = random.permutation(self.count)
        self.slot_numbers = random.permutation(self.count)
        for block, slot in zip(self.engine_blocks, self.slot_numbers, strict=True):
            self.engine.fill(block, block)
            self.slots[slot] = words(block, BLOCK)

    @cached_property
    def checksums(self) -> Words:
        """Of the slots, in the order of the pairs, by another implementation."""
        return np.array([xxhash.xxh3_64_intdigest(self.slots[slot]) for slot in self.slot_numbers], np.uint64)

    @property
    def addresses(self) -> Words:
        return np.uint64(self.slots.ctypes.data) + self.slot_numbers.astype(np.uint64) * np.uint64(BLOCK)

    def window(self, number: int) -> slice:
        """Which pairs the call with this number moves: when a pair comes again, it has left the caches."""
        start = number * WINDOW % self.count
        return slice(start, start + WINDOW)

    def poison(self, pairs: slice, gather: bool) -> None:
        for block, slot in zip(self.engine_blocks[pairs], self.slot_numbers[pairs], strict=True):
            if gather:
                self.slots[slot] = POISON
            else:
                self.engine.poison(block)

    def wrong(self, pairs: slice, gather: bool) -> list[int]:
        """Numbers of the engine blocks whose content did not arrive."""
        return [
            int(block)
            for block, slot in zip(self.engine_blocks[pairs], self.slot_numbers[pairs], strict=True)
            if not (
                np.array_equal(self.slots[slot], words(block, BLOCK))
                if gather
                else self.engine.holds(block, block)
            )
        ]


@dataclass
class Mover:
    """One contender: moves a window, in parts when there are threads, and checks what arrived."""

    run: Run
    field: Field
    gather: bool
    checksum: bool
    threads: int
    position: int  # among the contenders, so that no two of them move the same window in a row
    contenders: int

    def pairs(self, number: int) -> slice:
        return self.field.window(number * self.contenders + self.position)

    def parts(self, pairs: slice) -> list[slice]:
        step = WINDOW // self.threads
        return [slice(at, at + step) for at in range(pairs.start, pairs.stop, step)]


class Plain(Mover):
    def __call__(self, number: int) -> float:
        def move(part: slice) -> None:
            blocks, slots = self.field.engine_blocks[part], self.field.addresses[part]
            _core._bench.memcpy_blocks(self.field.engine.blocks, self.gather, blocks, slots, self.checksum)

        if self.threads == 1:
            return timed(move, self.pairs(number))
        with ThreadPoolExecutor(self.threads) as threads:
            list(threads.map(len, [""] * self.threads))  # they have started
            return timed(lambda: list(threads.map(move, self.parts(self.pairs(number)))))


@dataclass
class Ours(Mover):
    def __post_init__(self) -> None:
        self.engine = _core.HostCopyEngine(0 if self.threads == 1 else self.threads)

    def __call__(self, number: int) -> float:
        pairs = self.pairs(number)
        if self.run.check:
            self.field.poison(pairs, self.gather)
        arguments = [self._arguments(part) for part in self.parts(pairs)]
        tickets = []

        def move() -> None:
            tickets.extend(self.engine.submit(*part, verify=self.checksum) for part in arguments)
            for ticket in tickets:
                while not self.engine.wait(ticket, 60.0):
                    pass

        seconds = timed(move)
        results = [self.engine.take(ticket) for ticket in tickets]
        if self.run.check:
            self._check(
                pairs, np.concatenate([r[0] for r in results]), np.concatenate([r[1] for r in results])
            )
        return seconds

    def _arguments(self, part: slice) -> tuple:
        field = self.field
        checksums = None if self.gather or not self.checksum else field.checksums[part]
        direction = "gather" if self.gather else "scatter"
        return direction, field.engine.blocks, field.engine_blocks[part], field.addresses[part], checksums

    def _check(self, pairs: slice, statuses: Words, checksums: Words) -> None:
        what = f"copy: {'gather' if self.gather else 'scatter'} of {self.field.segment} byte segments"
        self.run.require(not statuses.any(), f"{what}: statuses {statuses}")
        wrong = self.field.wrong(pairs, self.gather)
        self.run.require(not wrong, f"{what}: blocks {wrong}")
        if self.checksum:
            self.run.require(np.array_equal(checksums, self.field.checksums[pairs]), f"{what}: checksums")


def rows(run: Run, field: Field, gather: bool, threads: int) -> Iterator[Row]:
    contenders = [
        kind(run, field, gather, checksum, threads, position, 4)
        for position, (kind, checksum) in enumerate(
            ((Ours, False), (Plain, False), (Ours, True), (Plain, True))
        )
    ]
    ours, plain, ours_sum, plain_sum = race(4 * run.rounds, *contenders)
    engine, pool = field.engine.pages, page_kind(field.slots.ctypes.data)
    case = (
        f"{'gather' if gather else 'scatter'} 1 MiB block, {field.segment >> 10} KiB segments, "
        f"{threads} thread{'s' * (threads > 1)}"
    )
    pages = f"{engine} engine and {pool} pool pages"
    gigabytes = WINDOW * BLOCK / 1e9
    one = threads == 1
    goal = (1.35 if field.segment == BLOCK else 1.2) if one else None
    yield rate_row(f"{case}, against memcpy, {pages}", "GB/s", gigabytes, ours, plain, goal=goal)
    sums = f"{case}, with checksum, against"
    beside = [(f"memcpy then XXH3, {pages}", plain_sum, 1.4), (f"ours without, {pages}", ours, 0.85)]
    for what, times, least in beside:
        yield rate_row(f"{sums} {what}", "GB/s", gigabytes, ours_sum, times, goal=least if one else None)


def run(run: Run) -> Iterator[Row]:
    for segment in (BLOCK, 32 << 10):
        field = Field(segment, 128 if run.quick else 1024)
        for gather in (True, False):
            yield from rows(run, field, gather, 1)
    yield from rows(run, field, True, 2)

"""Gather and scatter between a GPU and the pool, beside one large page-locked copy, and what they cost the engine.

Yields nothing where there is no CUDA device, and says so. The matrix product needs a torch that has CUDA.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from kvarter import _core
from kvarter.config import Config
from memory import Words, mapped, words
from report import Row, Run, race, rate_row, time_row, timed

BLOCK = 2 << 20
SEGMENTS = [16 << 10, 64 << 10, 256 << 10, BLOCK]
PRODUCT = 4096  # rows and columns


@dataclass
class Field:
    """Blocks on the device, a tensor for each segment, and slots in random pairs with them."""

    driver: str
    count: int
    segment: int
    pool: _core.Pool = field(init=False)

    def __post_init__(self) -> None:
        self.card = _core._bench.Card(0, self.driver)
        self.engine = _core.CudaCopyEngine(0, driver=self.driver)
        nbytes = self.count * BLOCK
        self.pool = _core.Pool(nbytes, nbytes, True)
        self.mapping = mapped([(fd, size, 0, arena) for arena, (fd, size) in enumerate(self.pool.arenas)])
        for refused in self.engine.prepare(self.mapping):
            print(f"gpu: {refused}")
        self.base = self.card.allocate(nbytes)
        stride = self.count * self.segment
        regions = [
            (self.base + i * stride, self.segment, self.segment, 1, self.segment)
            for i in range(BLOCK // self.segment)
        ]
        self.blocks = _core.Blocks(regions, self.count)
        self.slots: Words = self.mapping.payload(0).view(np.uint64).reshape(self.count, -1)
        self.numbers = np.random.default_rng(3).permutation(self.count)
        self.write()

    @property
    def addresses(self) -> Words:
        return np.uint64(self.slots.ctypes.data) + self.numbers.astype(np.uint64) * np.uint64(BLOCK)

    def write(self) -> None:
        """Gives every block on the device the content of its number."""
        content = np.stack([words(block, BLOCK) for block in range(self.count)])
        by_segment = content.reshape(self.count, BLOCK // self.segment, -1).swapaxes(0, 1)
        self.card.write(self.base, np.ascontiguousarray(by_segment).view(np.uint8).reshape(-1))

    def move(self, gather: bool, checksums: Words | None) -> Any:
        direction = "gather" if gather else "scatter"
        ticket = self.engine.submit(
            direction, self.blocks, np.arange(self.count), self.addresses, checksums, verify=True
        )
        while not self.engine.wait(ticket, 60.0):
            pass
        return self.engine.take(ticket)

    def close(self) -> None:
        self.card.release(self.base)


def rows(run: Run, field: Field) -> Iterator[Row]:
    gigabytes = field.count * BLOCK / 1e9
    sums: Words | None = None
    for gather in (True, False):
        name = "gather" if gather else "scatter"

        def ours(_: int, gather: bool = gather, sums: Words | None = sums) -> float:
            return timed(field.move, gather, sums)

        def limit(_: int, gather: bool = gather) -> float:
            return field.card.copy_seconds(not gather, field.base, field.mapping, field.count * BLOCK)

        # The limit moves what lies in the pool as it lies there, so it comes first, and then what is checked.
        our_times, limits = race(run.rounds, ours, limit)
        field.write()
        if gather:
            statuses, sums = field.move(True, None)
            if run.check:
                expected = [words(block, BLOCK) for block in range(field.count)]
                there = [field.slots[number] for number in field.numbers]
                run.require(
                    not statuses.any() and np.array_equal(there, expected), f"gpu: gather of {field.segment}"
                )
                run.require(
                    list(sums) == [xxhash.xxh3_64_intdigest(block) for block in expected], "gpu: checksums"
                )
        elif run.check:
            field.move(True, None)
            field.card.write(field.base, np.zeros(field.count * BLOCK, np.uint8))
            statuses, _ = field.move(False, sums)
            run.require(not statuses.any(), f"gpu: scatter of {field.segment}: statuses {statuses}")
            field.slots[:] = 0
            field.move(True, None)
            there = [field.slots[number] for number in field.numbers]
            run.require(
                np.array_equal(there, [words(block, BLOCK) for block in range(field.count)]),
                f"gpu: scatter of {field.segment}",
            )
        yield rate_row(
            f"GPU {name}, {field.segment >> 10} KiB segments, checksums, against one large page-locked copy",
            "GB/s",
            gigabytes,
            our_times,
            limits,
            goal=0.9 if field.segment >= 64 << 10 else None,
        )


def slow_down(run: Run, field: Field) -> Iterator[Row]:
    """A matrix product alone, and while blocks come and go."""
    try:
        import torch
    except ModuleNotFoundError:
        torch = None  # type: ignore[assignment]
    if torch is None or not torch.cuda.is_available():
        print("gpu: the matrix product was not measured; that needs a torch with CUDA")
        return
    a = torch.randn(PRODUCT, PRODUCT, device="cuda", dtype=torch.bfloat16)

    def product(_: int) -> float:
        torch.cuda.synchronize()

        def multiply() -> None:
            for _ in range(100):
                a @ a
            torch.cuda.current_stream().synchronize()

        return timed(multiply)

    def beside_copies(number: int) -> float:
        stop = threading.Event()

        def copies() -> None:
            while not stop.is_set():
                field.move(True, None)
                field.move(False, None)

        thread = threading.Thread(target=copies)
        thread.start()
        try:
            return product(number)
        finally:
            stop.set()
            thread.join()

    ours, alone = race(run.rounds, beside_copies, product)
    yield time_row(
        f"matrix product beside copies of {field.segment >> 10} KiB segments, against alone",
        "ms",
        ours,
        alone,
        goal=1.03,
    )


def run(run: Run) -> Iterator[Row]:
    driver = Config.load().cuda.driver or ""
    found = _core.find_cuda_driver(driver)
    if not found["devices"]:
        print(f"gpu: nothing was measured: {found['missing'] or 'the driver has no device'}")
        return
    for segment in SEGMENTS:
        field = Field(driver, 8 if run.quick else 256, segment)
        yield from rows(run, field)
        if segment in (SEGMENTS[0], BLOCK):
            yield from slow_down(run, field)
        field.close()

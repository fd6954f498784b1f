"""A log of independent blocks, as the workload `disk` writes and reads it."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from fio import DEPTH, Took, Watch
from kvarter import _core
from report import Run

NS = bytes(32)


def populated(pool: _core.Pool) -> _core.Pool:
    """The pool, when it has all of its pages, as large as they get, as a running engine's has: while they are made into
    huge ones nothing else is fast. The kernel may refuse that, and nobody says so."""
    until = time.monotonic() + 5
    while not pool.populated or (pool.pages == "4k" and time.monotonic() < until):
        time.sleep(0.01)
    return pool


class Ours:
    """A log of independent blocks of one size, written from and read into the slots of a small pool."""

    def __init__(self, path: Path, device: str, block: int, capacity: int, sparse: bool = False) -> None:
        self.block = block
        self.count = max(64, (256 << 20) // block) if not sparse else 4096
        self.pool = populated(_core.Pool(self.count * block, self.count * block))
        memory = np.memmap(f"/proc/self/fd/{self.pool.arenas[0][0]}", np.uint64, "r+")
        memory[:] = np.random.default_rng(1).integers(0, 2**63, len(memory), dtype=np.uint64)
        self.memory = memory.view(np.uint8)
        self.slots = np.zeros(self.count, _core.SLOT_DTYPE)
        self.slots["offset"] = np.arange(self.count) * block
        self.slots["length"] = block
        self.slots["checksum"] = [
            _core.xxh3_64(self.memory[i * block : (i + 1) * block]) for i in range(self.count)
        ]
        self.random = np.random.default_rng(2)
        self.path, self.device = path, device
        self.capacity, self.sparse = capacity, sparse
        self.written: list[np.ndarray] = []
        self.done: set[int] = set()
        self.open()

    def open(self) -> None:
        self.log = _core.DiskLog(
            str(self.path),
            self.pool,
            _core.SteadyClock(),
            self.capacity,
            device=self.device,
            queue_depth=DEPTH,
            write_queue_bytes=4 << 30,
            sparse=self.sparse,
        )
        self.ns = self.log.open_namespace(NS, [(1, 1, False, [self.block])])

    def wait(self, tickets: set[int]) -> None:
        tickets -= self.done
        while tickets:
            self.log.wait(1.0)
            for ticket, status, *_ in self.log.poll():
                self.done.add(ticket)
                tickets.discard(ticket)
                if len(status) and (status != _core.Status.Ok).any():
                    raise RuntimeError(
                        f"disk: {np.count_nonzero(status)} blocks failed: {status[status > 0][0]}"
                    )

    def write(self, blocks: int) -> Took:
        """Writes new blocks, the pool over and over, one batch of it in flight while the next is prepared."""
        watch = Watch()
        flying: set[int] = set()
        for first in range(0, blocks, self.count):
            n = min(self.count, blocks - first)
            digests = self.random.integers(0, 256, (n, 32), dtype=np.uint8)
            flying.add(self.log.write(_core.Chain(self.ns, digests), [(0, 0, n)], self.slots[:n]))
            self.written.append(digests)
            if len(flying) > 1:
                self.wait(flying)
        self.wait(flying)
        self.wait({self.log.flush()})
        return watch.took(blocks * self.block)

    def there(self) -> list[tuple[_core.Chain, np.ndarray]]:
        """Chains with the blocks of them that can be read."""
        chains = []
        for digests in self.written[-16:]:
            chain = _core.Chain(self.ns, digests)
            there = [i for i in range(len(digests)) if self.log.contains(chain, 0, i)]
            if there:
                chains.append((chain, np.array(there)))
        return chains

    def read(self, blocks: int, check: Run) -> Took:
        """Reads blocks at random, a pool at a time."""
        chains = self.there()
        halves = [self.slots[: self.count // 2], self.slots[self.count // 2 :]]
        flying: list[int] = []
        watch = Watch()
        done = 0
        while done < blocks:
            chain, there = chains[int(self.random.integers(len(chains)))]
            slots = halves[0]
            halves.reverse()
            n = min(len(there), blocks - done, len(slots))
            ranges = [(0, int(block), 1) for block in self.random.permutation(there)[:n]]
            if len(flying) == 2:  # the older one has these slots
                self.wait({flying.pop(0)})
            flying.append(self.log.read(chain, ranges, slots[:n]))
            done += n
        self.wait(set(flying))
        took = watch.took(done * self.block)
        if check.check:
            check.wrong.extend(f"disk: {finding}" for finding in self.log.audit())
        return took

    def mixed(self, blocks: int) -> Took:
        """Single blocks, seven reads to three writes, as many in flight as the depth; the p99 is of the reads."""
        chains = self.there()
        free = list(range(DEPTH))  # slots
        flying: dict[int, tuple[int, float]] = {}  # ticket -> (slot, when it began; 0 of a write)
        latencies: list[float] = []
        watch = Watch()
        for number in range(blocks + DEPTH):
            while not free or (number >= blocks and flying):
                self.log.wait(1.0)
                now = time.perf_counter()
                for ticket, *_ in self.log.poll():
                    if ticket in flying:
                        slot, begun = flying.pop(ticket)
                        free.append(slot)
                        latencies += [now - begun] if begun else []
            if number >= blocks:
                break
            slot = free.pop()
            if self.random.random() < 0.7:
                chain, there = chains[int(self.random.integers(len(chains)))]
                ranges = [(0, int(self.random.choice(there)), 1)]
                begun = time.perf_counter()
                ticket = self.log.read(chain, ranges, self.slots[slot : slot + 1])
            else:
                begun = 0.0
                self.slots["checksum"][slot] = _core.xxh3_64(
                    self.memory[slot * self.block : (slot + 1) * self.block]
                )
                chain = _core.Chain(self.ns, self.random.integers(0, 256, (1, 32), dtype=np.uint8))
                ticket = self.log.write(chain, [(0, 0, 1)], self.slots[slot : slot + 1])
            flying[ticket] = slot, begun
        return watch.took(blocks * self.block, latencies)

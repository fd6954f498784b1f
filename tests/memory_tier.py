"""The plainest tier that keeps blocks: a dict. What the contract's tests and the faulty member are tried on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvarter._core import Status
from kvarter.tiers import Capabilities, Done, Key, Slot, Usage
from kvarter.tiers.base import Checksums, check_lengths
from kvarter.tiers.tickets import Tickets


class Memory:
    def __init__(self, capacity: int = 1 << 20) -> None:
        self.capabilities = Capabilities(max_bytes=capacity)
        self.blocks: dict[Key, tuple[bytes, int]] = {}
        self._capacity = capacity
        self._tickets = Tickets()

    def usage(self) -> Usage:
        return Usage(self._capacity, sum(len(block) for block, _ in self.blocks.values()), len(self.blocks))

    def lookup(self, keys: Sequence[Key]) -> int:
        return self._tickets.done([Status.Ok if key in self.blocks else Status.NotFound for key in keys])

    def read(self, keys: Sequence[Key], slots: Sequence[Slot]) -> int:
        check_lengths(keys, slots)
        statuses, checksums = [], []
        for key, slot in zip(keys, slots, strict=True):
            block, checksum = self.blocks.get(key, (None, 0))
            into = np.frombuffer(slot, np.uint8)
            if block is None:
                statuses.append(Status.NotFound)
            elif len(block) != len(into):
                statuses.append(Status.Corrupt)
                del self.blocks[key]
            else:
                into[:] = np.frombuffer(block, np.uint8)
                statuses.append(Status.Ok)
            checksums.append(checksum if statuses[-1] == Status.Ok else 0)
        return self._tickets.done(statuses, checksums)

    def write(self, keys: Sequence[Key], slots: Sequence[Slot], checksums: Checksums) -> int:
        check_lengths(keys, slots, checksums)
        statuses = []
        for key, slot, checksum in zip(keys, slots, checksums.tolist(), strict=True):
            room = self._capacity - self.usage().used
            if key not in self.blocks and slot.nbytes > room:
                statuses.append(Status.Rejected)
            else:
                self.blocks.setdefault(key, (slot.tobytes(), checksum))
                statuses.append(Status.Ok)
        return self._tickets.done(statuses)

    def delete(self, keys: Sequence[Key]) -> int:
        for key in keys:
            self.blocks.pop(key, None)
        return self._tickets.done([Status.Ok] * len(keys))

    def poll(self) -> list[Done]:
        return self._tickets.take()

    def close(self) -> None:
        self._tickets.close()

"""A tier that keeps nothing: what a store costs without one, and the smallest member to start from."""

from __future__ import annotations

from collections.abc import Sequence

from .._core import Status
from .base import Capabilities, Checksums, Done, Key, Slot, Usage, check_lengths
from .tickets import Tickets


class Noop:
    """Accepts every write and forgets it. Capacity 0."""

    capabilities = Capabilities(max_bytes=1 << 62)

    def __init__(self) -> None:
        self._tickets = Tickets()

    def usage(self) -> Usage:
        return Usage(0, 0, 0)

    def lookup(self, keys: Sequence[Key]) -> int:
        return self._tickets.done([Status.NotFound] * len(keys))

    def read(self, keys: Sequence[Key], slots: Sequence[Slot]) -> int:
        check_lengths(keys, slots)
        return self._tickets.done([Status.NotFound] * len(keys))

    def write(self, keys: Sequence[Key], slots: Sequence[Slot], checksums: Checksums) -> int:
        check_lengths(keys, slots, checksums)
        return self._tickets.done([Status.Ok] * len(keys))

    def delete(self, keys: Sequence[Key]) -> int:
        return self._tickets.done([Status.Ok] * len(keys))

    def poll(self) -> list[Done]:
        return self._tickets.take()

    def close(self) -> None:
        self._tickets.close()

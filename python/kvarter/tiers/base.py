"""The seam under the store: a place where blocks can be, besides the pool.

A tier keeps blocks of bytes under full keys. It is asynchronous and batched: `lookup`, `read`, `write` and `delete`
hand a batch over, return its ticket at once and never wait; `poll` returns what has been done since the last one,
also without waiting. Every ticket is returned by exactly one `poll`, in any order, with one `Status` for each key:

    Ok         lookup: it is here; read: its bytes are in the slot; write: it is kept; delete: it is gone
    NotFound   it is not here, or not any more
    Rejected   no room, too large, or not wanted
    Busy       someone else is writing or deleting it
    Corrupt    what is here has another key, length or checksum; the tier drops it
    TimedOut   the tier's own deadline passed; it may be done or not
    Closed     the tier is gone or shut down; it may be done or not

No fault of a tier is an exception: slow, full or gone, it is a slower cache. A tier

* serves whole blocks or none: a write that was cut off, by a crash too, is never read back as Ok;
* keeps the full key with the bytes, and compares it: equal digests of other groups or shards are other blocks;
* keeps the checksum that came with the bytes and gives it back. It need not verify it: whoever reads does;
* has a capacity that is real, counts what was there before it started, and never holds more;
* may drop any block at any time.

Slots are borrowed from the call until `poll` returns their ticket, and not touched afterwards. A slot of a read that
is not Ok holds anything. A member's methods are called by one thread at a time.

A new member is one file beside this one and one line in `__init__.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Slot = memoryview | npt.NDArray[np.uint8]
"""The bytes of one block in one shard: contiguous; writable for a read."""

Statuses = npt.NDArray[np.uint8]  # of kvarter.Status, one for each key
Checksums = npt.NDArray[np.uint64]  # XXH3-64 of each block's bytes


class Key(NamedTuple):
    """One shard of one block, the same on every host and in every file."""

    namespace: bytes  # 32 bytes, of the namespace
    digest: bytes  # 32 bytes, of the chain up to the block's last unit
    group: int
    sub: int  # the block's number in its hash unit, 0 for blocks that fill it
    shard: int


class Done(NamedTuple):
    """What became of one batch."""

    ticket: int
    statuses: Statuses
    checksums: Checksums  # of a read: as they came with the write, for Ok blocks; 0 otherwise


@dataclass(frozen=True)
class Capabilities:
    """What the store must know to place blocks here. The same for as long as the tier lives."""

    max_bytes: int  # of one block; larger ones are Rejected
    persistent: bool = False  # finds its blocks again after a restart of this process
    shared: bool = False  # other hosts read and write the same blocks
    alignment: int = 1  # of slots' addresses and lengths, bytes


class Usage(NamedTuple):
    """Bytes and blocks, as of now; `used` is at most `capacity`."""

    capacity: int
    used: int
    blocks: int


class Tier(Protocol):
    """See the module. `ValueError` for misuse: batches whose arguments are not equally long."""

    @property
    def capabilities(self) -> Capabilities: ...

    def usage(self) -> Usage:
        """What it holds. Never waits: what a remote tier says may be some seconds old."""

    def lookup(self, keys: Sequence[Key]) -> int:
        """Which of these blocks are here."""

    def read(self, keys: Sequence[Key], slots: Sequence[Slot]) -> int:
        """Fills each slot, as long as the block, with its block."""

    def write(self, keys: Sequence[Key], slots: Sequence[Slot], checksums: Checksums) -> int:
        """Keeps each slot's bytes and their checksum. A block that is here already may be left as it is."""

    def delete(self, keys: Sequence[Key]) -> int:
        """Drops these blocks; Ok also for those that are not here."""

    def poll(self) -> list[Done]:
        """The batches that are done since the last call."""

    def close(self) -> None:
        """Ends everything: no slot is touched after it returns. Open and later batches are polled as Closed."""


def check_lengths(keys: Sequence[Key], *others: Sequence[Any] | npt.NDArray[Any]) -> None:
    """Raises `ValueError` unless all are as long as `keys`."""
    if any(len(other) != len(keys) for other in others):
        raise ValueError(
            f"{len(keys)} keys with {', '.join(str(len(other)) for other in others)} slots or checksums"
        )

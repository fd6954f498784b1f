"""A tier that does harm on command, for tests of what is above it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._core import Status
from .base import Capabilities, Checksums, Done, Key, Slot, Tier, Usage, check_lengths


@dataclass(frozen=True)
class Harm:
    """Shares are of blocks, 0 to 1. The default does none."""

    tear: float = 0.0  # the block's end is zeros, and the answer Ok: on its way in, or on its way out
    flip: float = 0.0  # one bit is another one, and the answer Ok: likewise
    refuse: float = 0.0  # not passed on, and Rejected
    delay: int = 0  # a batch is returned only by one of the next `delay` polls after it is done
    reorder: bool = False  # what one poll returns comes in any order


@dataclass(eq=False)
class _Batch:
    ticket: int
    keys: int
    passed: list[int]  # positions that went to the inner tier
    slots: Sequence[Slot]  # of a read, by position: to be harmed when they come back
    held: list[npt.NDArray[np.uint8]]  # copies that the inner tier is writing
    lost: bool  # the tier has died
    due: int = 0  # the first poll that may return it
    result: Done | None = None


class Faulty:
    """Passes everything on to `inner`, and harms as `harm` says, which may be set at any time.

    The same seed and the same calls do the same harm. The caller's slots of a write are never changed.
    """

    def __init__(self, inner: Tier, harm: Harm | None = None, seed: int = 0) -> None:
        self.harm = harm or Harm()
        self._inner = inner
        self._random = random.Random(seed)
        self._batches: dict[int, _Batch] = {}  # by the inner tier's ticket
        self._ready: list[_Batch] = []
        self._next = 1
        self._polls = 0
        self._dead = False

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    def usage(self) -> Usage:
        return self._inner.usage()

    def die(self) -> None:
        """From now on all batches are Closed, also those under way, which may be done or not."""
        self._dead = True
        for batch in (*self._batches.values(), *self._ready):
            batch.lost = True

    def revive(self) -> None:
        """Is back, with what `inner` has kept."""
        self._dead = False

    def lookup(self, keys: Sequence[Key]) -> int:
        batch = self._batch(keys)
        return self._pass_on(batch, self._inner.lookup([keys[at] for at in batch.passed]))

    def read(self, keys: Sequence[Key], slots: Sequence[Slot]) -> int:
        check_lengths(keys, slots)
        batch = self._batch(keys, slots)
        passed = batch.passed
        return self._pass_on(
            batch, self._inner.read([keys[at] for at in passed], [slots[at] for at in passed])
        )

    def write(self, keys: Sequence[Key], slots: Sequence[Slot], checksums: Checksums) -> int:
        check_lengths(keys, slots, checksums)
        batch = self._batch(keys)
        batch.held = [self._harmed(np.array(_bytes(slots[at]))) for at in batch.passed]
        sums = np.array([checksums[at] for at in batch.passed], np.uint64)
        return self._pass_on(batch, self._inner.write([keys[at] for at in batch.passed], batch.held, sums))

    def delete(self, keys: Sequence[Key]) -> int:
        batch = self._batch(keys)
        return self._pass_on(batch, self._inner.delete([keys[at] for at in batch.passed]))

    def poll(self) -> list[Done]:
        self._polls += 1
        for done in self._inner.poll():
            self._finish(self._batches.pop(done.ticket), done)
        due = [batch for batch in self._ready if batch.lost or batch.due <= self._polls]
        self._ready = [batch for batch in self._ready if batch not in due]
        if self.harm.reorder:
            self._random.shuffle(due)
        return [_closed(batch) if batch.lost else batch.result for batch in due if batch.result]

    def close(self) -> None:
        self._inner.close()
        self.die()

    def _batch(self, keys: Sequence[Key], slots: Sequence[Slot] = ()) -> _Batch:
        passed = [at for at in range(len(keys)) if not self._dead and not self._happens(self.harm.refuse)]
        batch = _Batch(self._next, len(keys), passed, slots, [], self._dead)
        self._next += 1
        return batch

    def _pass_on(self, batch: _Batch, inner: int) -> int:
        self._batches[inner] = batch
        return batch.ticket

    def _finish(self, batch: _Batch, done: Done) -> None:
        statuses = np.full(batch.keys, Status.Rejected, np.uint8)
        checksums = np.zeros(batch.keys, np.uint64)
        statuses[batch.passed] = done.statuses
        checksums[batch.passed] = done.checksums
        for at in np.flatnonzero(statuses == Status.Ok) if batch.slots else ():
            self._harmed(_bytes(batch.slots[at]))
        batch.result = Done(batch.ticket, statuses, checksums)
        batch.due = self._polls + (self._random.randint(0, self.harm.delay) if self.harm.delay else 0)
        self._ready.append(batch)

    def _harmed(self, block: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        if self._happens(self.harm.tear):
            block[self._random.randrange(len(block)) :] = 0
        if self._happens(self.harm.flip):
            block[self._random.randrange(len(block))] ^= 1 << self._random.randrange(8)
        return block

    def _happens(self, share: float) -> bool:
        return share > 0 and self._random.random() < share


def _closed(batch: _Batch) -> Done:
    statuses = np.full(batch.keys, Status.Closed, np.uint8)
    return Done(batch.ticket, statuses, np.zeros(batch.keys, np.uint64))


def _bytes(slot: Slot) -> npt.NDArray[np.uint8]:
    return np.frombuffer(slot, np.uint8)

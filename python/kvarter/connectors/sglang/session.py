"""One rank's way to the store: pages into it and out of it, each batch one reservation or lease and one copy.

Every call may come from any thread; each is done with the caller's pages when it returns.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _core
from ...config import Config
from ...keys import Namespace
from ...node import KeptAttachment, home, invited
from ...policy import AlwaysLoad
from ...sequence import Sequence
from ...store import Store
from ...transfers import Slots
from .backing import Backing, Done
from .pages import Pages, Part

logger = logging.getLogger("kvarter.sglang")
_RETRY_SECONDS = 0.02
_STEP_BYTES = 64 << 20  # between looks at the clock


class Session(Backing):
    """With the node that the settings name, or a store of its own.

    Raises `AttachError` when there is no such node, and `CapacityError` when the pool does not fit.
    """

    def __init__(self, config: Config, name: str) -> None:
        super().__init__()
        self._config = config
        self._home = home(
            lambda: _own_store(config),
            name,
            1,
            directory=config.directory,
            node=config.node,
            hold_seconds=config.hold_seconds,
            load_policy=AlwaysLoad(),  # SGLang has its own word on what pays
        )
        self.store = self._home.store
        self._engine = _core.HostCopyEngine(config.copy_threads)
        if config.copy_member == "faulty":
            faults = config.faults
            self._engine = _core.FaultyCopyEngine(
                self._engine, delay=faults.delay, fail_every=faults.fail_every, flip_every=faults.flip_every
            )
        self._closed = threading.Event()
        self._attached = KeptAttachment(invited(name, config.directory, config.node), 0, self._engine, logger)

    def ready(self) -> bool:
        return self._attached.now is not None and self._home.ready()

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for `ready`."""
        end = time.monotonic() + seconds
        while not self.ready():
            if time.monotonic() > end or self._closed.wait(_RETRY_SECONDS):
                return False
        return True

    def serve(self, name: str, pages: Pages) -> None:
        """A pool whose pages will come: wherever they lie, they are copied."""

    def leading(self, sequence: Sequence, name: str) -> int:
        """How many pages, from the sequence's first known on, are there in a row. Held for a while under `name`, which
        a policy hears once."""
        if not self.ready():
            return 0
        first = sequence.first_unit
        tokens = sequence.namespace.unit_tokens
        match = self.store.match(
            sequence,
            limit=sequence.num_tokens,
            have_tokens=first * tokens,
            request=name,
            owner=self._home.owner,
        )
        pages = max(match.tokens // tokens - first, 0)
        if self.store.disk is not None and first + pages < sequence.units:
            # A match is brought up whole, so no larger than the pool can hold; SGLang reads in batches.
            run = self.store.find(sequence, 0, range(first, sequence.units))
            pages = max(pages, run.new_tokens // tokens)
        return pages

    def there(self, sequence: Sequence) -> Done:
        """Which pages of a namespace without chains are there. Nothing is held."""
        found = np.zeros(sequence.units, np.bool_)
        at = 0
        while self.ready() and at < len(found):
            run = self.store.find(sequence, 0, range(at, len(found)))
            found[at : at + (run.new_tokens // sequence.namespace.unit_tokens)] = True
            at += run.new_tokens // sequence.namespace.unit_tokens + 1
        return found

    def put(self, sequence: Sequence, pages: Pages, at: Seq[Any], shard: int, end: float) -> Done:
        """Stores this rank's shard of the sequence's pages from the first known on. Of each page, whether it is
        stored, was so already, or is being stored by somebody."""
        first = sequence.first_unit
        if not self.ready():
            return self._count(np.zeros(len(at), np.bool_), "written", "not_ready")
        reservation = self.store.reserve(
            sequence,
            {0: range(first, first + len(at))},
            self._config.store_seconds,
            owner=self._home.owner,
            shards=(shard, 1),
        )
        kept = reservation.kept(0)
        if not len(kept):
            return self._count(np.zeros(len(at), np.bool_), "written", "node_gone")
        for reason, count in reservation.reasons().items():
            self.pages[reason] += count
        if not len(reservation):
            return kept
        granted = reservation.blocks(0) - first
        slots = np.ascontiguousarray(reservation.slots(0)[:, 0])
        try:
            part = pages.read([at[page] for page in granted])
            statuses, checksums = self._copy("gather", part, pages.bytes, slots, reservation, end)
        except BaseException:
            reservation.abort()
            raise
        done = statuses == _core.Status.Ok
        reservation.commit(shard, done.astype(np.uint8), checksums)
        self._count(done, "written", "failed")
        kept[granted] = done
        return kept

    def get(self, sequence: Sequence, pages: Pages, at: Seq[Any], shard: int, end: float) -> Done:
        """Loads this rank's shard of the pages: as many as are there in a row, from the first on."""
        loaded = np.zeros(len(at), np.bool_)
        first = sequence.first_unit
        match = self.store.find(sequence, 0, range(first, first + len(at))) if self.ready() else None
        if not match:
            return self._count(loaded, "loaded", "not_found")
        count = len(match.blocks[0])
        self.pages["not_found"] += len(at) - count
        left = max(end - time.monotonic(), 0.0)
        ticket = self.store.load(match, max(left, 0.001), owner=self._home.owner)
        ticket.wait(left)
        if ticket.status != _core.Status.Ok:
            ticket.finish(_core.Outcome.Failed)
            self._count(
                loaded[:count], "loaded", "gone" if ticket.status == _core.Status.NotFound else "late"
            )
            return loaded
        with ticket:  # ends, whatever happens
            slots = np.ascontiguousarray(ticket.slots(0)[:, shard])
            part = pages.room(at[:count])
            statuses, _ = self._copy("scatter", part, pages.bytes, slots, ticket, end)
            still = self._unchanged(slots)
            corrupt = np.flatnonzero((statuses == _core.Status.Corrupt) & still)
            if len(corrupt):
                ticket.drop_corrupt(0, [first + int(page) for page in corrupt])
            good = (statuses == _core.Status.Ok) & still
            row = count if good.all() else int(np.argmin(good))
            pages.fill(at[:count], part, row)
            if row < count:
                ticket.finish(_core.Outcome.Failed)
        self._count(good, "loaded", "failed")
        loaded[:row] = True
        return loaded

    def _copy(
        self, direction: str, part: Part, nbytes: int, slots: Slots, within: Any, end: float
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
        """Statuses and checksums of each page. In steps, so that what is late is not begun; what is begun is ended:
        SGLang gives its pages to others as soon as it has its answer."""
        count = len(slots)
        statuses = np.full(count, _core.Status.TimedOut, np.uint8)
        checksums = np.zeros(count, np.uint64)
        attachment = self._attached.now
        if attachment is None or attachment.pool != within.pool:  # slots of a pool whose node is gone
            return statuses, checksums
        addresses = attachment.addresses(slots)
        epoch = within.epoch(self._home.owner)
        step = max(_STEP_BYTES // nbytes, 1)
        for begin in range(0, count, step):
            if time.monotonic() > end:
                break
            here = slice(begin, begin + step)
            expected = slots["checksum"][here] if direction == "scatter" else None
            ticket = self._engine.submit(
                direction, part.blocks, part.numbers[here], addresses[here], expected, epoch
            )
            while not self._engine.wait(ticket, 1.0):
                pass
            statuses[here], checksums[here] = self._engine.take(ticket)
        return statuses, checksums

    def _unchanged(self, slots: Slots) -> Done:
        """Of each slot, whether it held the page until now: its lease may have run out while it was copied."""
        attachment = self._attached.now
        return attachment.unchanged(slots) if attachment is not None else np.zeros(len(slots), np.bool_)

    def invalidate(self, namespace: Namespace) -> None:
        self.store.invalidate(namespace)

    def counters(self) -> dict[str, int]:
        return self.store.counters()

    def ledger(self) -> dict[str, int]:
        return self.store.ledger()

    def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        self._attached.close()
        self._home.close()


def _own_store(config: Config) -> Store:
    return Store(
        config.pool_bytes(),
        max_blocks=config.max_blocks,
        hold_seconds=config.hold_seconds,
        policy=config.policy,
        load_policy=AlwaysLoad(),
        disk=config.disk_options(),
    )

"""Store jobs in flight: which engine blocks they read, and who must wait for them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...transfers import Reservation
from .messages import Part, Stored, StoreJob

Table = Sequence[int] | Mapping[int, int]  # engine block ids by block number


@dataclass
class Job:
    reservation: Reservation
    engine_blocks: list[int]
    deadline: float
    ranks: set[int] = field(default_factory=set)  # that have reported
    doubtful: bool = False


class Jobs:
    """From the reservation to the last rank's report. Keyed by engine block id as well: there is one watcher a block,
    and several jobs may read one."""

    def __init__(self, ranks: int, seconds: float) -> None:
        self._ranks, self._seconds = ranks, seconds
        self._pool: Any = None
        self._jobs: dict[int, Job] = {}
        self._readers: defaultdict[int, set[int]] = defaultdict(set)  # engine block -> jobs
        self._new: list[StoreJob] = []
        self._flush: set[int] = set()
        self._next = 0

    def bind(self, pool: Any) -> None:
        self._pool = pool

    def add(self, reservation: Reservation, tables: Mapping[int, Table], epoch: int) -> None:
        """Watches the engine's blocks, named for each group by block number, and queues the job for the workers."""
        parts = []
        for group in reservation.groups():
            ids = np.array([tables[group][int(b)] for b in reservation.blocks(group)], np.int64)
            parts.append(Part(group, ids, reservation.slots(group)))
        blocks = [int(block) for part in parts for block in part.engine_blocks]
        number, self._next = self._next, self._next + 1
        self._jobs[number] = Job(reservation, blocks, time.monotonic() + self._seconds)
        self._new.append(StoreJob(number, reservation.pool, epoch, tuple(parts)))
        watched = [self._pool.blocks[block] for block in blocks]
        self._pool.touch(watched)  # touch and unpin leave the count as it was; what remains is the watcher
        self._pool.unpin_blocks(watched, self._on_reuse)
        for block in blocks:
            self._readers[block].add(number)

    def _on_reuse(self, block: Any) -> None:
        self._flush |= self._readers.get(block.block_id, set())

    def take_flush(self) -> frozenset[int]:
        """Jobs that read a block which has found a new owner since the last call."""
        flush, self._flush = self._flush, set()
        return frozenset(flush & self._jobs.keys())

    def take_new(self) -> tuple[StoreJob, ...]:
        new, self._new = tuple(self._new), []
        return new

    def finish(self, number: int, stored: list[Stored]) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        for outcome in stored:
            ok = outcome.ok & (not job.doubtful)
            job.reservation.commit(outcome.rank, ok, outcome.checksums)
            job.ranks.add(outcome.rank)
        if len(job.ranks) == self._ranks:
            self._forget(number)

    def doubt(self) -> None:
        """None of the jobs in flight is to become visible."""
        for job in self._jobs.values():
            job.doubtful = True

    def expire(self) -> None:
        """Forgets jobs past their deadline; the index has quarantined their slots by itself."""
        now = time.monotonic()
        for number in [n for n, job in self._jobs.items() if job.deadline < now]:
            self._forget(number)

    def cached_blocks(self) -> dict[int, Any]:
        """What the engine has in its own prefix cache: hashes by block id."""
        return {
            block.block_id: block.block_hash for block in self._pool.blocks if block.block_hash is not None
        }

    def any_of(self, blocks: Mapping[int, Any], tables: tuple[list[int], ...]) -> bool:
        """Whether a table names one of these `cached_blocks` that has not been given away since."""
        return any(
            block in blocks and self._pool.blocks[block].block_hash == blocks[block]
            for table in tables
            for block in table
        )

    def pending(self) -> bool:
        return bool(self._jobs)

    def _forget(self, number: int) -> None:
        for block in self._jobs.pop(number).engine_blocks:
            self._readers[block].discard(number)
            if not self._readers[block]:
                del self._readers[block]

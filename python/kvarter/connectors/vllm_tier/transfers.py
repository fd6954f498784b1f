"""Chunks on their way between vLLM's CPU pool and the log.

vLLM calls from its scheduler's thread, which only queues stores and asks for reads. One thread computes checksums,
hands stores to the log a few at a time, and takes back what is done. A chunk's place in the CPU pool is borrowed until
its job is among the finished ones.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ... import _core
from ...errors import ConfigError
from ...tiers.log import DiskOptions
from .admission import Admission
from .names import chain_of, group_of, key_of, ranges_of

logger = logging.getLogger("kvarter.tier")
_WAIT_SECONDS = 0.02  # for the log, before the queue is looked at again
_PIECE = 8 << 20  # bytes of a store that are summed and written at a time
_IN_FLIGHT = 64 << 20  # bytes handed to the log at a time: what is queued here can still be dropped
_DROPPED = 1 << 16  # names of chunks that went and nobody has been told of
_PATIENCE = 5.0  # seconds that a request's chunks wait to be marked as used while others are written
_MARKS = 64  # times of use that one request's chunks get


@dataclass
class Job:
    """One of vLLM's: `left` chunks are not settled. `served`, once done: what was loaded, or is on disk now."""

    number: int
    keys: list[bytes]
    load: bool
    left: int
    begun: float
    request: object = None
    served: list[bytes] = field(default_factory=list)
    failed: int = 0
    nbytes: int = 0
    seconds: float = 0.0  # that it took, once done


@dataclass
class _Piece:
    job: Job
    ns: int
    keys: list[bytes]
    chunks: npt.NDArray[np.int64]
    until: float


class Transfers:
    """A log under a foreign arena of equal chunks. Thread-safe."""

    def __init__(self, options: DiskOptions, pool: memoryview, events: bool, store_seconds: float) -> None:
        """`pool`: vLLM's, of shape (chunks, bytes). Recovers what is on disk. Raises `ConfigError`, saying why, for a
        directory that cannot be used or a pool that is not made of whole pages."""
        self.chunk_bytes = pool.shape[1] if pool.shape else 0
        self._store_seconds = store_seconds
        self._clock = _core.SteadyClock()
        if self.chunk_bytes % _core.GRANULE:
            raise ConfigError(
                f"vLLM's CPU pool has chunks of {self.chunk_bytes} bytes, and only whole pages of {_core.GRANULE} go "
                "straight to disk"
            )
        self._arena = _core.ForeignArena(pool)
        try:
            self.log = options.open(
                self._arena,
                self._clock,
                block_bytes=self.chunk_bytes,
                max_dropped=_DROPPED if events else 0,
            )
        except ConfigError:
            self._arena.close()
            raise
        self._work = threading.Condition()
        self._stores: deque[_Piece] = deque()
        self._in_hand = False  # whether the thread is looking at what it took from the queue
        self._tickets: dict[int, tuple[Job, list[bytes]]] = {}
        self._deadlines: dict[int, int] = {}  # of reads
        self._writing = self._reading = 0  # bytes
        self._rate = 0.0  # bytes a second that reads came with
        self._admission = Admission(self.log, options.admit_all)
        self._used: deque[tuple[float, int, list[bytes]]] = deque(maxlen=1024)
        self._done: list[Job] = []
        self._closed = False
        self.counts: Counter[str] = Counter()  # chunks that were never handed to the log, by reason
        self._thread = threading.Thread(target=self._run, name="kvarter-tier", daemon=True)
        self._thread.start()
        # An engine may end without a word; Python ends a thread inside the core only by ending the process.
        atexit.register(self.close)

    def open(self, digest: bytes, groups: int) -> int:
        """The namespace's number in the log; each of its groups has chunks that stand alone."""
        return self.log.open_namespace(digest, [(1, 1, False, [self.chunk_bytes])] * groups)

    # --- what vLLM asks, on its scheduler's thread

    def has(self, ns: int, key: bytes) -> bool:
        """Whether the chunk is on disk."""
        return self.log.contains(chain_of(ns, [key]), group_of(key), 0)

    def late(self, seconds: float) -> bool:
        """Whether a read asked for now would take longer than that, as far as one can tell."""
        if not self._reading:
            return False
        now = self._clock.now()
        with self._work:
            overdue = any(deadline < now for deadline in self._deadlines.values())
        return overdue or bool(self._rate and self._reading / self._rate > seconds)

    def load(
        self,
        number: int,
        ns: int,
        keys: list[bytes],
        chunks: npt.NDArray[np.int32],
        seconds: float,
        request: object,
    ) -> None:
        """Reads chunks of disk into chunks of the pool. What is not begun in `seconds` fails."""
        job = Job(number, keys, load=True, left=len(keys), begun=time.monotonic(), request=request)
        deadline = self._clock.now() + int(seconds * 1e9)
        slots = self._slots(chunks)
        with self._work:
            ticket = (
                0 if self._closed else self.log.read(chain_of(ns, keys), ranges_of(keys), slots, deadline)
            )
            if ticket:
                self._tickets[ticket] = job, keys
                self._deadlines[ticket] = deadline
                self._reading += self.chunk_bytes * len(keys)
            else:
                self._settle(job, [], len(keys))
            self._work.notify_all()

    def store(self, number: int, ns: int | None, keys: list[bytes], chunks: npt.NDArray[np.int32]) -> None:
        """Writes chunks of the pool to disk, but for those that are there. `ns` None: nobody knows yet whose they are,
        and they are not stored. What waits keeps its place in vLLM's pool, for at most `store_seconds`."""
        job = Job(number, keys, load=False, left=len(keys), begun=time.monotonic())
        admitted = self._admission.admitted(keys) if ns is not None else []
        self.counts["not_admitted" if ns is not None else "no_namespace"] += len(keys) - len(admitted)
        each = max(_PIECE // self.chunk_bytes, 1)
        with self._work:
            self._settle(job, [], len(keys) - len(admitted), failed=False)
            for first in range(0, len(admitted), each):
                some = admitted[first : first + each]
                assert ns is not None
                if self._closed:
                    self.counts["shut_down"] += len(some)
                    self._settle(job, [], len(some))
                    continue
                piece = _Piece(
                    job,
                    ns,
                    [keys[at] for at in some],
                    chunks[some].astype(np.int64),
                    job.begun + self._store_seconds,
                )
                self._stores.append(piece)
            self._work.notify_all()

    def used(self, ns: int, keys: list[bytes]) -> None:
        """A request is over that used these chunks, first ones first. The log knows no parents, so this is what keeps a
        prefix longer than what leans on it."""
        with self._work:
            self._used.append((time.monotonic() + _PATIENCE, ns, keys))
            self._work.notify_all()

    def finished(self) -> list[Job]:
        """Jobs done since the last call: their places in the pool are touched no more."""
        with self._work:
            done, self._done = self._done, []
        return done

    def drain(self, seconds: float | None = None) -> bool:
        """Waits until every job is done; whether that was so in time."""
        with self._work:
            return self._work.wait_for(
                lambda: not (self._stores or self._in_hand or self._tickets or self._used), timeout=seconds
            )

    def gone(self, ns: int) -> list[bytes]:
        """Keys of chunks that were dropped since the last call and are not there again."""
        keys = [key_of(group, digest) for of, group, _, digest, _ in self.log.dropped() if of == ns]
        return [key for key in keys if not self.has(ns, key)]

    def close(self, seconds: float = 30.0) -> None:
        """Writes down what is queued, and gives directory and pool back. Idempotent."""
        if self._closed:
            return
        atexit.unregister(self.close)
        if not self.drain(seconds):
            logger.warning("not all chunks were written to disk in %.0f s", seconds)
        with self._work:
            self._closed = True
            while self._stores:
                self._give_up(self._stores.popleft(), "shut_down")
            self._work.notify_all()
        self._thread.join(seconds)
        flush, until = self.log.flush(), time.monotonic() + seconds
        while time.monotonic() < until and not any(done[0] == flush for done in self.log.poll()):
            self.log.wait(_WAIT_SECONDS)
        self.log.close()
        self._arena.close()

    # --- the thread

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._closed or self._stores or self._tickets or self._used)
                if self._closed and not self._tickets:
                    return
            try:
                while self._writing < _IN_FLIGHT and self._write_piece():
                    pass
                if self._tickets:
                    self.log.wait(_WAIT_SECONDS)
                self._collect()
                self._mark_used()
            except Exception:  # a slower cache, never an error to the engine
                logger.exception("the disk tier goes on without what it was doing")
                time.sleep(_WAIT_SECONDS)

    def _write_piece(self) -> bool:
        with self._work:
            if not self._stores:
                return False
            piece = self._stores.popleft()
            self._in_hand = True
        try:
            if time.monotonic() > piece.until:
                self._give_up(piece, "timed_out")
            else:
                self._write(piece)
        except Exception:
            self._give_up(piece, "write_failed")
            raise
        finally:
            with self._work:
                self._in_hand = False
                self._work.notify_all()
        return True

    def _write(self, piece: _Piece) -> None:
        chain = chain_of(piece.ns, piece.keys)
        new = [at for at, key in enumerate(piece.keys) if not self.log.contains(chain, group_of(key), at)]
        keys = [piece.keys[at] for at in new]
        slots = self._slots(piece.chunks[new])
        slots["checksum"] = self._arena.checksums(slots)
        with self._work:
            there = len(piece.keys) - len(new)
            self.counts["already_there"] += there
            self._settle(piece.job, [], there, failed=False)
            if not keys:
                return
            ticket = self.log.write(chain_of(piece.ns, keys), ranges_of(keys), slots)
            if ticket:
                self._tickets[ticket] = piece.job, keys
                self._writing += self.chunk_bytes * len(keys)
            else:
                self.counts["queue_full"] += len(keys)
                self._settle(piece.job, [], len(keys))

    def _give_up(self, piece: _Piece, reason: str) -> None:
        with self._work:
            self.counts[reason] += len(piece.keys)
            self._settle(piece.job, [], len(piece.keys))

    def _collect(self) -> None:
        for ticket, statuses, *_ in self.log.poll():
            with self._work:
                if ticket not in self._tickets:
                    continue
                job, keys = self._tickets.pop(ticket)
                nbytes = self.chunk_bytes * len(keys)
                if self._deadlines.pop(ticket, None) is None:
                    self._writing -= nbytes
                else:
                    rate = self._reading / max(time.monotonic() - job.begun, 1e-6)
                    self._rate = rate if not self._rate else 0.8 * self._rate + 0.2 * rate
                    self._reading -= nbytes
                good = [keys[at] for at in np.flatnonzero(statuses == _core.Status.Ok)]
                self._settle(job, good, len(keys))
                self._work.notify_all()

    def _mark_used(self) -> None:
        """Once what a request has stored is there, or has had the time to be."""
        while True:
            with self._work:
                busy = bool(self._stores or self._writing)
                if not self._used or (busy and time.monotonic() < self._used[0][0]):
                    self._work.notify_all()
                    return
                _, ns, keys = self._used.popleft()
            each = -(-len(keys) // _MARKS)
            for first in reversed(range(0, len(keys), each)):
                some = keys[first : first + each]
                chain = chain_of(ns, some)
                for group, at, count in ranges_of(some):
                    self.log.touch(chain, group, at, count)

    def _settle(self, job: Job, good: list[bytes], of: int, failed: bool = True) -> None:
        """Of `of` chunks of a job these were moved; the others `failed`, or did not have to be."""
        job.served += good
        job.nbytes += self.chunk_bytes * len(good)
        job.left -= of
        job.failed += of - len(good) if failed else 0
        if not job.left:
            job.seconds = time.monotonic() - job.begun
            self._done.append(job)

    def _slots(self, chunks: npt.NDArray[np.int64] | npt.NDArray[np.int32]) -> npt.NDArray[np.void]:
        slots = np.zeros(len(chunks), _core.SLOT_DTYPE)
        slots["offset"] = chunks.astype(np.uint64) * np.uint64(self.chunk_bytes)
        slots["length"] = self.chunk_bytes
        return slots

"""A trace through a store with a small pool and a log below it: what admission to the log is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvarter import _core
from kvarter.policy import AlwaysLoad
from kvarter.sequence import Sequence
from kvarter.store import Store
from kvarter.tiers.log import DiskOptions
from kvarter.trace import Trace
from kvarter.trace.real import BLOCK_BYTES as BLOCK
from kvarter.trace.real import names_of
from report import Run

POOL = 1 / 50  # of the trace's blocks
LOG = 1 / 10
SCAN_EVERY, SCAN = 20, 400  # requests; blocks that nobody asks for again
_APART = 0.01  # seconds between requests of the same moment


@dataclass
class Outcome:
    """hits, of `blocks` that were asked for. stored, written: bytes of blocks that the log took, and of the device."""

    hits: int = 0
    blocks: int = 0
    stored: int = 0
    written: int = 0


class Replay:
    """The requests of a trace, one after another, as an engine would: match, load, compute the rest and store it. The
    log is one in memory: this is about what it is given, not how fast it is."""

    def __init__(self, run: Run, trace: Trace, most: int, admit_all: bool) -> None:
        """most: blocks asked for, after which it ends."""
        self.run, self.trace, self.requests = run, trace, 0
        asked = 0
        while self.requests < trace.requests and asked < most:
            asked += len(trace.of_request(self.requests))
            self.requests += 1
        unique = len(np.unique(np.concatenate([trace.of_request(i) for i in range(self.requests)])))
        self.pool = max(int(unique * POOL), (2 << 20) // BLOCK)
        room = 2 * int(unique * LOG) * BLOCK  # small blocks: their headers take a good part
        segment = max(1 << 20, room // 64 // BLOCK * BLOCK)
        device = _core.FaultyDisk()  # which nobody told to be
        self.options = DiskOptions("in memory", max(room, 8 * segment), segment, device, admit_all=admit_all)
        self.space, self.names = names_of(trace)

    def go(self, scan: bool) -> Outcome:
        """All requests; with `scan` long texts between the requests, each of them once."""
        clock = _core.SteppedClock()
        outcome, now = Outcome(), 0.0
        random = np.random.default_rng(0)
        with Store(
            self.pool * BLOCK,
            max_blocks=self.pool,
            headroom=0.0,
            clock=clock,
            populate=False,
            load_policy=AlwaysLoad(),
            disk=self.options,
        ) as store:
            assert store.disk is not None
            self.words = _core.Mapping(store.exports()).payload(0).view(np.uint64).reshape(-1, BLOCK // 8)
            for number in range(self.requests):
                arrives = max(float(self.trace.seconds[number]), now + _APART)
                clock.advance(arrives - now)
                now = arrives
                blocks = self.trace.of_request(number)
                if len(blocks):
                    outcome.blocks += len(blocks)
                    outcome.hits += self._ask(store, self.names[blocks], self.trace.keys[blocks])
                if scan and number % SCAN_EVERY == 0:
                    once = random.integers(0, 256, (min(SCAN, self.pool // 2), 32), np.uint8)
                    self._ask(store, once, once[:, :8].copy().view(np.uint64).ravel())
                # What goes down must not depend on how fast that is.
                self.run.require(store.disk.flush(60.0), "admit: the log was not flushed in a minute")
            counts = store.disk.stats()
            outcome.stored, outcome.written = counts["stored_bytes"], counts["device_bytes"]
            if self.run.check:
                self.run.wrong.extend(f"admit: {finding}" for finding in store.disk.log.audit())
                store.audit()
        return outcome

    def _ask(self, store: Store, names: npt.NDArray[Any], keys: npt.NDArray[np.uint64]) -> int:
        """Loads what is there, stores what is not; returns how many blocks were."""
        sequence = Sequence.from_digests(self.space, names)
        match = store.match(sequence, limit=len(names) * self.trace.block_tokens)
        if match:
            with store.load(match, 60.0) as ticket:
                self.run.require(
                    ticket.wait(60) and ticket.status == _core.Status.Ok, "admit: a hit was not loaded"
                )
                if self.run.check and ticket.status == _core.Status.Ok:
                    at = ticket.slots(0)["offset"].ravel() // BLOCK
                    same = np.array_equal(self.words[at, -1], keys[: len(at)])
                    self.run.require(same, "admit: a hit has other blocks' bytes")
        reservation = store.reserve(sequence, {0: range(min(len(names), self.pool))}, 60.0)
        at = reservation.slots(0)["offset"].ravel() // BLOCK
        self.words[at] = keys[reservation.blocks(0)][:, None]
        sums = np.array([_core.xxh3_64(self.words[slot].view(np.uint8)) for slot in at], np.uint64)
        reservation.commit(0, np.ones(len(at), np.uint8), sums)
        return match.tokens // self.trace.block_tokens

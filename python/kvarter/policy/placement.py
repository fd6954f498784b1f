"""Ranks ahead beneath a live store: a policy says what goes next before anything has to.

Everything here happens in the store's ticks, a little each time: a pass takes at most half a millisecond, by what
the last ones took. What a policy says may be stale or wrong; the index checks each victim when its turn comes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from .. import _core
from ..geometry import Full, Geometry
from .base import NO_HINT, SUPERSEDED, Classes, Columns, Keys, Policy

PASS_SECONDS = 0.0005
_RESIDENT = 2  # RowState, csrc/index/columns.h
_LEAST_ROWS, _MOST_ROWS = 256, 1 << 16
_CHOSEN = 8  # of the leaves in a sample, one in so many is offered: the worst of those looked at
_MOST_WAITING = 256  # requests that wait to be observed; more are not learned from
_LOOKED_BACK = 256  # blocks of a window or states that a later boundary supersedes
_UNITS_AT_ONCE = 512  # classified in one call, which holds the index's mutex


class _Born:
    """Numbers of entries in the order of their making, by row."""

    def __init__(self, entry: npt.NDArray[np.generic], slot: npt.NDArray[np.generic]) -> None:
        self._entry, self._slot = entry, slot

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
        slots = np.minimum(self._slot[rows].astype(np.int64), len(self._entry) - 1)
        return np.asarray(self._entry[slots])


@dataclass
class _Asked:
    """A request that was matched, until it is observed. digests: uint8[units, 32]; its buffer only grows."""

    chain: _core.Chain
    geometry: Geometry
    digests: npt.NDArray[np.uint8]
    resident: int  # units
    hint: int
    now: float


class Placement:
    """One policy beneath one index. Thread-safe: who comes while another is at it goes on at once.

    seconds: the index's clock.
    """

    def __init__(self, index: _core.Index, policy: Policy, seconds: Callable[[], float]) -> None:
        self._index, self.policy, self._seconds = index, policy, seconds
        self._lock = threading.Lock()
        columns = index.columns
        self._raw = columns
        self._columns = Columns(
            last_use=columns["last_use"],
            born=_Born(columns["entry"], columns["slot"]),  # type: ignore[arg-type]
            hits=columns["hits"],
            depth=columns["depth"],
            klass=columns["klass"],
            nbytes=columns["bytes"],
        )
        self._total = len(columns["state"])
        self._stride = _coprime(self._total)
        self._at = 0
        self._sample = min(4096, self._total)
        self._waiting: deque[_Asked] = deque(maxlen=_MOST_WAITING)
        self.passes = 0
        self.longest = 0.0  # seconds of a pass

    # --- what requests say

    def asked(
        self,
        chain: _core.Chain,
        geometry: Geometry,
        digests: npt.NDArray[np.uint8],
        resident: int,
        hint: int = NO_HINT,
    ) -> None:
        """A request for the units of this chain, the first `resident` of which are here."""
        if self.policy.learns and len(digests):
            self._waiting.append(_Asked(chain, geometry, digests, resident, hint, self._seconds()))

    def stored(
        self, chain: _core.Chain, geometry: Geometry, digests: npt.NDArray[np.uint8], group: int, run: range
    ) -> None:
        """Blocks `run` of a group were reserved: they get the classes of the request that they belong to. What the
        same chain has of a window or of states before them is superseded.
        """
        if not isinstance(geometry.groups[group].lifetime, Full) and run.start:
            before = range(max(run.start - _LOOKED_BACK, 0), run.start)
            self._index.classify(chain, group, before.start, np.full(len(before), SUPERSEDED, np.uint16))
        if not self.policy.learns:
            return
        with self._lock:
            last = _last_units(geometry, group, run)
            last = last[last < len(digests)]
            classes = self.policy.classes(_keys(digests[last])) if len(last) else None
        if classes is not None:
            self._index.classify(chain, group, run.start, classes)

    def rehint(
        self, chain: _core.Chain, geometry: Geometry, digests: npt.NDArray[np.uint8], hint: int
    ) -> None:
        """The blocks of this chain, as far as they are here, count as the caller now says."""
        with self._lock:
            classes = self.policy.classes(_keys(digests)) if self.policy.learns and len(digests) else None
        if classes is not None:
            self.classify(chain, geometry, self.policy.hinted(classes, hint))

    # --- the work of a tick

    def tick(self) -> None:
        """Observes what was asked, and ranks victims while the index wants some: at most a pass of each."""
        if not self._waiting and not (self.policy.ranks and self._index.victims_wanted):
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            begun = perf_counter()
            while self._waiting and perf_counter() - begun < PASS_SECONDS / 2:
                self._observe(self._waiting.popleft())
            wanted = self._index.victims_wanted if self.policy.ranks else 0
            if wanted > _core.MOST_OFFERED // 2:
                self._rank(wanted)
        finally:
            self._lock.release()

    def _observe(self, asked: _Asked) -> None:
        classes = self.policy.observe(_keys(asked.digests), asked.resident, asked.now, asked.hint)
        if classes is not None:
            self.classify(asked.chain, asked.geometry, classes[: asked.resident])

    def classify(self, chain: _core.Chain, geometry: Geometry, classes: Classes) -> None:
        """Gives the blocks of the first len(classes) units of a chain their classes, in every full group."""
        for number, group in enumerate(geometry.groups):
            if not isinstance(group.lifetime, Full):
                continue
            blocks = range(len(classes) * geometry.unit_tokens // group.block_tokens)
            of_block = classes[_last_units(geometry, number, blocks)]
            for start in range(0, len(of_block), _UNITS_AT_ONCE):
                self._index.classify(chain, number, start, of_block[start : start + _UNITS_AT_ONCE])

    def _rank(self, wanted: int) -> None:
        """Looks at a sample of all rows, spread over them, and offers the leaves that are worth least."""
        begun = perf_counter()
        raw = self._raw
        rows = (self._at + self._stride * np.arange(self._sample, dtype=np.int64)) % self._total
        self._at = int(rows[-1] + self._stride) % self._total
        rows = rows[(raw["state"][rows] == _RESIDENT) & (raw["children"][rows] == 0)]
        rows = rows[(raw["leases"][rows] == 0) & (raw["pins"][rows] == 0)]
        if len(rows):
            generations = raw["generation"][rows]
            scores = self.policy.score(self._columns, rows, self._seconds())
            past = (raw["klass"][rows] & SUPERSEDED != 0) & (raw["hits"][rows] < 2)
            scores[past] -= np.ptp(scores) + 1.0
            count = min(max(len(rows) // _CHOSEN, 1), wanted)
            worst = np.argpartition(scores, count - 1)[:count]
            worst = worst[np.argsort(scores[worst])]
            self._index.offer_victims(rows[worst], generations[worst])
        took = perf_counter() - begun
        self.passes += 1
        self.longest = max(self.longest, took)
        scale = min(max(0.8 * PASS_SECONDS / max(took, 1e-6), 0.25), 1.25)
        self._sample = int(min(max(self._sample * scale, _LEAST_ROWS), _MOST_ROWS, self._total))


def _keys(digests: npt.NDArray[np.uint8]) -> Keys:
    return np.ascontiguousarray(digests[:, :8]).view(np.uint64).ravel()


def _last_units(geometry: Geometry, group: int, blocks: range) -> npt.NDArray[np.int64]:
    """Of each block the last unit that it touches, whose digest names it."""
    stride = max(geometry.groups[group].block_tokens // geometry.unit_tokens, 1)
    subs = max(geometry.unit_tokens // geometry.groups[group].block_tokens, 1)
    return (np.arange(blocks.start, blocks.stop) // subs + 1) * stride - 1


def _coprime(total: int) -> int:
    """A step that visits every row, far from the last one."""
    step = max(int(total * 0.6180339887), 1) | 1
    while np.gcd(step, total) != 1:
        step += 1
    return step

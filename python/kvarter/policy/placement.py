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
from ..geometry import Full, Geometry, Window
from ..sequence import Sequence
from .base import SUPERSEDED, Classes, Columns, Policy

PASS_SECONDS = 0.0005
_RESIDENT = 2  # RowState, csrc/index/columns.h
_NAMESPACES, _GROUPS = 1024, 64  # at most, csrc/include/kvarter/record.h
_LEAST_ROWS, _MOST_ROWS = 256, 1 << 16
_CHOSEN = 8  # of the leaves in a sample, one in so many is offered: the worst of those looked at
_MOST_WAITING = 256  # requests that wait to be observed; of more the oldest is forgotten
_MOST_UNCLASSIFIED = 1024
_LOOKED_BACK = 256  # blocks of a window or states that a later boundary supersedes
_AT_ONCE = 256  # blocks classified in one call, which holds the index's mutex
_FEW = _core.MOST_OFFERED // 2  # victims are ranked when so many are wanted
_SHARE = 0.05  # of the time may go into ranking


class _Born:
    """Numbers of entries in the order of their making, by row."""

    def __init__(self, entry: npt.NDArray[np.generic], slot: npt.NDArray[np.generic]) -> None:
        self._entry, self._slot = entry, slot

    def __getitem__(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
        slots = np.minimum(self._slot[rows].astype(np.int64), len(self._entry) - 1)
        return np.asarray(self._entry[slots])


@dataclass
class _Asked:
    """A request that was matched, until it is observed."""

    sequence: Sequence
    chain: _core.Chain
    geometry: Geometry
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
        self._sample = min(2 * _LEAST_ROWS, self._total)  # grows to what a pass has time for
        self._waiting: deque[_Asked] = deque(maxlen=_MOST_WAITING)
        self._unclassified: deque[tuple[_core.Chain, int, int, Classes]] = deque(maxlen=_MOST_UNCLASSIFIED)
        self._saved = np.ones((_NAMESPACES, _GROUPS), np.float32)  # tokens, by namespace and group
        self._whole = np.zeros(
            (_NAMESPACES, _GROUPS), bool
        )  # whether a block saves so many for each before it, too
        self._charged = 0
        self._charge()
        self._next = 0.0  # when the next pass may be
        self._ranked_last = False
        self._learning = False
        self.passes = 0

    def opened(self, ns: int, geometry: Geometry) -> None:
        """What the blocks of this namespace save. A block of all tokens saves its own; without its window or state a
        boundary is none, so the last one of a chain saves the whole prefix, and each block of it an equal part.
        """
        for number, group in enumerate(geometry.groups):
            life = group.lifetime
            seen = getattr(life, "tokens", 1) - isinstance(life, Window)
            blocks = max(-(-seen // group.block_tokens), 1)
            self._saved[ns, number] = group.block_tokens / (1 if isinstance(life, Full) else blocks)
            self._whole[ns, number] = not isinstance(life, Full)

    # --- what requests say

    def asked(
        self, sequence: Sequence, chain: _core.Chain, geometry: Geometry, resident: int, hint: int
    ) -> None:
        """A request for this chain, whose first `resident` units are here."""
        if self.policy.learns and sequence.from_start and sequence.units:
            self._waiting.append(_Asked(sequence, chain, geometry, resident, hint, self._seconds()))

    def stored(
        self, sequence: Sequence, chain: _core.Chain, geometry: Geometry, group: int, run: range
    ) -> None:
        """Blocks `run` of a group were reserved: they get the classes of the request that they belong to. What the
        same chain has of a window or of states before them is superseded.
        """
        if sequence.classes is not None:
            self._index.classify(chain, group, run.start, _of_blocks(sequence.classes, geometry, group, run))
        if run.start and not isinstance(geometry.groups[group].lifetime, Full):
            before = range(max(run.start - _LOOKED_BACK, 0), run.start)
            self._index.classify(chain, group, before.start, np.full(len(before), SUPERSEDED, np.uint16))

    def rehint(self, sequence: Sequence, chain: _core.Chain, geometry: Geometry, hint: int) -> None:
        """The blocks of this chain, as far as they are here, count as the caller now says."""
        if sequence.classes is not None:
            sequence.classes = self.policy.hinted(sequence.classes, hint)
            self._classify(chain, geometry, sequence.classes)

    # --- the work of a tick

    def tick(self) -> None:
        """Ranks victims while the index wants some, or else takes in what was asked: in turns when both wait."""
        heard = bool(self._waiting or self._unclassified or self._learning)
        ranks = self.policy.ranks and self._seconds() >= self._next and self._index.victims_wanted > _FEW
        if not (heard or ranks) or not self._lock.acquire(blocking=False):
            return
        try:
            begun = perf_counter()
            self._ranked_last = ranks and not (heard and self._ranked_last)
            if self._ranked_last:
                self._rank(self._index.victims_wanted)
            else:
                while self._hear() and perf_counter() - begun < PASS_SECONDS / 4:
                    pass
        finally:
            self._lock.release()

    def _hear(self) -> bool:
        """One bounded thing of those that wait; False when it was the last one."""
        if self._unclassified:
            self._classify_some()
        elif self._waiting:
            self._observe(self._waiting.popleft())
        else:
            self._learning = self.policy.learn(self._seconds())
        return bool(self._waiting or self._unclassified or self._learning)

    def _observe(self, asked: _Asked) -> None:
        keys = asked.sequence.digests.view(np.uint64)[:, 0]  # no copy: a policy may look at few of them
        self._learning = self.policy.learns
        classes = self.policy.observe(keys, asked.resident, asked.now, asked.hint)
        if classes is not None:
            asked.sequence.classes = classes
            self._classify(asked.chain, asked.geometry, classes)  # of what is stored by now too
        self._charge()

    def _charge(self) -> None:
        if self.policy.state_bytes != self._charged:
            self._charged = self.policy.state_bytes
            self._index.charge(self._charged)

    def audit(self) -> list[str]:
        """A sentence when the ledger has another size of what the policy remembers than that has."""
        with self._lock:
            if self.policy.state_bytes == self._charged:
                return []
            return [f"the policy has {self.policy.state_bytes} bytes; {self._charged} are in the ledger"]

    def _classify(self, chain: _core.Chain, geometry: Geometry, classes: Classes) -> None:
        """Gives a chain's blocks their classes, as far as they are here, a part in each tick."""
        for number, group in enumerate(geometry.groups):
            if isinstance(group.lifetime, Full):
                blocks = range(len(classes) * geometry.unit_tokens // group.block_tokens)
                self._unclassified.append((chain, number, 0, _of_blocks(classes, geometry, number, blocks)))

    def _classify_some(self) -> None:
        chain, group, start, classes = self._unclassified.popleft()
        part = classes[start : start + _AT_ONCE]
        if self._index.classify(chain, group, start, part) == len(part) and start + _AT_ONCE < len(classes):
            self._unclassified.appendleft((chain, group, start + _AT_ONCE, classes))

    def _saves(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Tokens that need not be computed again when a row is used, for each of its bytes."""
        raw = self._raw
        at = raw["ns"][rows], raw["group"][rows]
        tokens = self._saved[at] * np.where(self._whole[at], raw["depth"][rows] + 1.0, 1.0)
        return np.asarray(tokens / np.maximum(raw["bytes"][rows], 1))

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
            if self.policy.rates:
                scores *= self._saves(rows)
            past = (raw["klass"][rows] & SUPERSEDED != 0) & (raw["hits"][rows] < 2)
            scores[past] -= np.ptp(scores) + 1.0
            count = min(max(len(rows) // _CHOSEN, 1), wanted)
            worst = np.argpartition(scores, count - 1)[:count]
            worst = worst[np.argsort(scores[worst])]
            self._index.offer_victims(rows[worst], generations[worst])
        # The clock that costs no system call, which under load gives the core away; what was taken away meanwhile is
        # in it, so that one pass counts no more than twice its time.
        took = min(perf_counter() - begun, 2 * PASS_SECONDS)
        self._next = self._seconds() + took / _SHARE
        self.passes += 1
        scale = min(max(0.5 * PASS_SECONDS / max(took, 1e-6), 0.25), 1.25)
        self._sample = int(min(max(self._sample * scale, _LEAST_ROWS), _MOST_ROWS, self._total))


def _of_blocks(classes: Classes, geometry: Geometry, group: int, blocks: range) -> Classes:
    """Of each block the class of the last unit that it touches, whose digest names it."""
    unit, block = geometry.unit_tokens, geometry.groups[group].block_tokens
    if unit == block and blocks.stop <= len(classes):
        return classes[blocks.start : blocks.stop]
    last = (np.arange(blocks.start, blocks.stop) // max(unit // block, 1) + 1) * max(block // unit, 1) - 1
    return np.asarray(classes[np.minimum(last, len(classes) - 1)])


def _coprime(total: int) -> int:
    """A step that visits every row, far from the last one."""
    step = max(int(total * 0.6180339887), 1) | 1
    while np.gcd(step, total) != 1:
        step += 1
    return step

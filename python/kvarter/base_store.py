"""What can be asked of a store, wherever its pool is: in this process, or in a node that serves the host."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from .finding import AnyIndex, Found, Space, runs
from .keys import Namespace
from .matching import NOTHING, Below, Beyond, Looked, Matcher, in_memory, looked_up
from .policy import LoadPolicy
from .sequence import Sequence
from .transfers import Match, Reservation, Ticket


class BaseStore(ABC):
    """KV blocks in a shared-memory pool, by prefix: `Store` owns its pool, `RemoteStore` asks a node for its own.

    Thread-safe, except for the Sequences given to it. No call blocks on another one's work.
    """

    index: AnyIndex
    disk: Below | None
    load_policy: LoadPolicy

    def __init__(self, clock: _core.Clock, hold_seconds: float) -> None:
        self._clock, self._hold_seconds = clock, hold_seconds
        self._spaces: dict[bytes, Space] = {}
        self._holds: OrderedDict[str, tuple[AnyIndex, int, int]] = (
            OrderedDict()
        )  # lease, deadline; the oldest first
        self._matcher: Matcher

    # --- namespaces

    def open(self, namespace: Namespace) -> int:
        """The namespace's number here; opened at first use."""
        return self._space(namespace).above

    @abstractmethod
    def _space(self, namespace: Namespace) -> Space: ...

    @abstractmethod
    def invalidate(self, namespace: Namespace, *, everywhere: bool = True) -> None:
        """Nothing that was stored of it until now is served any more; its memory comes back in the background.

        everywhere: also on other hosts, at once where there is a link, and otherwise before one is of use. False is for
        who goes on under another name: what others have of this one stays valid, and may come back for who asks.
        """

    # --- finding and loading

    def match(
        self,
        sequence: Sequence,
        *,
        limit: int | None = None,
        have_tokens: int = 0,
        request: str | None = None,
        owner: int = 0,
        session: str | None = None,
    ) -> Match:
        """The longest boundary of at most `limit` tokens that all required groups can serve.

        limit: default one less than the sequence has, since the engine must compute at least one token.
        have_tokens: what the engine has cached itself; blocks wholly below it are not loaded, and a boundary that
        adds nothing is no hit. request: takes a soft hold under this name, so that the answer is still true at
        `load`; it ends at load, at the next match of the same name, or after `hold_seconds`. session: whose hints
        this request has. Where other hosts are asked, the answer is `pending` for a moment: no hit, ask again.
        """
        self._tick()
        space = self._space(sequence.namespace)
        self._forget_ended_holds()
        if request is not None:
            self.drop_hold(request)
        limit = sequence.num_tokens - 1 if limit is None else limit
        begun = perf_counter()
        match, here = self._matcher.match(space, sequence, limit, have_tokens)
        looked = looked_up(space, match, limit, perf_counter() - begun)
        if match.pending:
            return match
        sequence.seen_tokens = max(match.tokens, have_tokens)
        self.asked(space, sequence, here, request, session, looked)
        if match and request is not None:
            self._hold(space, match, request, owner)
        return match

    def find(self, sequence: Sequence, group: int, blocks: range) -> Match:
        """What loads as many of these blocks of one group, from the first on, as are there in a row.

        For who asks for blocks and not for a boundary: nothing is weighed, nothing held, and placement hears nothing.
        """
        self._tick()
        space = self._space(sequence.namespace)
        found = Found(space, sequence, self.disk.log if self.disk is not None else None)
        need = range(blocks.start, blocks.start + found.in_a_row(group, blocks))
        tokens = space.geometry.groups[group].block_tokens
        if not need:
            return Match(sequence, 0, blocks.start * tokens, ())
        groups = range(len(space.geometry.groups))
        below = found.not_above(group, need) if self.disk is not None else ()
        return Match(
            sequence,
            need.stop * tokens,
            need.start * tokens,
            tuple(need if g == group else range(0) for g in groups),
            tuple(below if g == group else () for g in groups) if below else (),
            len(below) * tokens,
        )

    def _hold(self, space: Space, match: Match, request: str, owner: int) -> None:
        deadline = self._deadline(self._hold_seconds)
        nbytes = space.geometry.bytes_at(space.geometry.blocks_at(match.tokens))
        status, hold = space.index.lease(
            match.sequence.chain(space.above),
            in_memory(match),
            _core.LeaseKind.Hold,
            owner,
            deadline,
            nbytes,
        )
        if status == _core.Status.Ok:
            self._holds[request] = (space.index, hold, deadline)

    def drop_hold(self, request: str) -> None:
        """Ends the hold of an earlier match of this request, if there is one."""
        if (held := self._holds.pop(request, None)) is not None:
            index, lease, _ = held
            index.release(lease, _core.Outcome.Unused)

    def _forget_ended_holds(self) -> None:
        now = self._clock.now()
        while self._holds and (oldest := next(iter(self._holds.items())))[1][2] <= now:
            self._holds.pop(oldest[0], None)

    def load(self, match: Match, deadline: float, *, request: str | None = None, owner: int = 0) -> Ticket:
        """Leases the match's blocks for `deadline` seconds, those on disk or elsewhere when they have come up.

        The ticket's status is NotFound when a block is gone, TimedOut when one did not come in time.
        """
        space, until = self._space(match.sequence.namespace), self._deadline(deadline)
        chain = match.sequence.chain(space.above)
        ranges = [(group, need.start, len(need)) for group, need in enumerate(match.blocks) if need]
        nbytes = space.geometry.bytes_at(match.blocks) if match.blocks else 0

        def lease() -> tuple[_core.Status, int]:
            return space.index.lease(chain, ranges, _core.LeaseKind.Read, owner, until, nbytes)

        source = self.disk if match.disk_tokens else self.beyond if match.peer_tokens else None
        attempt = lease if source is None else source.fetch(space, match, until, lease)
        ticket = Ticket(space.index, space.geometry, match, attempt)
        if self.disk is not None:
            self.disk.used(space, match, ranges)
        if request is not None:  # only now: between hold and lease nothing may be evicted
            self.drop_hold(request)
        return ticket

    # --- storing

    def reserve(
        self,
        sequence: Sequence,
        blocks: Mapping[int, Seq[int]],
        deadline: float,
        *,
        owner: int = 0,
        shards: tuple[int, int] = (0, 0),
    ) -> Reservation:
        """Slots to write for those `blocks` of each group, in rising order, that are neither resident nor in flight.

        shards: (first, count) of the shards that the caller writes; (0, 0) means all. What is not committed within
        `deadline` seconds is given up, and its slots are quarantined until nobody can write them.
        """
        self._tick()
        space = self._space(sequence.namespace)
        chain = sequence.chain(space.above)
        until = self._deadline(deadline)
        parts = {}
        for group, need in blocks.items():
            results = [
                space.index.reserve(chain, (group, run.start, len(run)), shards, owner, until)
                for run in runs(need)
            ]
            for run in runs(need):
                self.stored(space, sequence, group, run)
            if len(results) == 1:
                asked = np.arange(need[0], need[-1] + 1, dtype=np.int64)
                parts[group] = (asked, *results[0])
            elif results:
                status, reasons, handles, slots = (
                    np.concatenate(column) for column in zip(*results, strict=True)
                )
                parts[group] = (np.array(need, np.int64), status, reasons, handles, slots)
        copy = self.disk.copier(space, sequence) if self.disk is not None else None
        return Reservation(space.index, space.geometry, parts, shards, copy)

    # --- wishes

    @abstractmethod
    def hint(self, session: str, **wishes: Any) -> None:
        """Says what is known about a session's future, for its blocks and its next requests.

        ends: nothing follows. returns_within: seconds in which the next request comes; after them it says nothing.
        priority: above 0 counts for more than others, below for less. ttl: pins for that many seconds what the
        session's last match found. The policy learns what hints are worth: one that is wrong soon means nothing.
        """

    @abstractmethod
    def share(self, namespace: Namespace, *, floor: int = 0, quota: int = 0) -> None:
        """Bytes that evictions for others leave to a namespace, and above which its own blocks go first; 0: none.

        Raises ValueError when all floors come to more than the pool, or a floor is above its quota.
        """

    def pin(self, sequence: Sequence, ttl: float, *, tokens: int | None = None) -> int | None:
        """Keeps the blocks of the longest boundary up to `tokens` for `ttl` seconds; None when there are none."""
        limit = sequence.num_tokens if tokens is None else tokens
        return self._pin(self._space(sequence.namespace), sequence, limit, ttl)

    def _pin(self, space: Space, sequence: Sequence, limit: int, ttl: float) -> int | None:
        chain = sequence.chain(space.above)
        found = Found(space, sequence)
        boundary = space.geometry.boundary(found, min(limit, sequence.units * space.geometry.unit_tokens))
        if not boundary:
            return None
        ranges = [(g, need.start, len(need)) for g, need in enumerate(found.needed(boundary)) if need]
        status, pin = space.index.lease(chain, ranges, _core.LeaseKind.Pin, 0, self._deadline(ttl), 0)
        return pin if status == _core.Status.Ok else None

    def push(self, sequence: Sequence, to: str) -> None:
        """Has another node, by the HOST:PORT where it listens for peers, fetch what is stored of this sequence; nothing
        where there are no peers. What is still being stored is waited for, for some seconds, in the background."""
        if self.beyond is not None:
            self.beyond.push(self._space(sequence.namespace), sequence, to)

    def unpin(self, pin: int) -> bool:
        """Ends a pin; False when its time was over already."""
        return self.index.release(pin, _core.Outcome.Unused)

    # --- what placement is told

    @abstractmethod
    def asked(
        self,
        space: Space,
        sequence: Sequence,
        boundary: int,
        request: str | None,
        session: str | None,
        looked: Looked = NOTHING,
    ) -> bool:
        """A request for this sequence came, whose first `boundary` tokens are here. Said by `match`, which may look
        more than once for a request; False where that is known not to be the first time."""

    @abstractmethod
    def stored(self, space: Space, sequence: Sequence, group: int, run: range) -> None:
        """Blocks `run` of a group were reserved. Said by `reserve`."""

    @abstractmethod
    def _tick(self) -> None: ...

    def handles(self, sequence: Sequence, group: int, blocks: range) -> npt.NDArray[np.uint64]:
        """What the index calls these blocks to who watches it (uint64[n]); 0 for one that is not resident."""
        space = self._space(sequence.namespace)
        return space.index.handles(sequence.chain(space.above), (group, blocks.start, len(blocks)))

    # --- account

    @abstractmethod
    def audit(self) -> dict[str, int]:
        """Recounts every byte, of the disk too, from the structures themselves; the pool's ledger when all agree, else
        `AuditError`."""

    @abstractmethod
    def ledger(self) -> dict[str, int]:
        """The pool's bytes by what they are, as last known."""

    def counters(self) -> dict[str, int]:
        """What became of blocks since start (csrc/include/kvarter/index.h): of all, or of this session's alone where
        the pool is a node's."""
        return self.index.counters()

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Counters since start: blocks and bytes by what became of them (csrc/include/kvarter/index.h)."""

    @property
    def beyond(self) -> Beyond | None:
        """Other hosts' pools, where there is a way to them."""
        return self._matcher.beyond

    def computed(self, tokens: int, seconds: float) -> None:
        """The engine has computed so many prompt tokens in so long: what loads are measured against."""
        self.load_policy.computed(tokens, seconds)
        if self.beyond is not None:
            self.beyond.policy.computed(tokens, seconds)

    @property
    @abstractmethod
    def version(self) -> tuple[int, ...]:
        """Changes whenever a match may answer differently."""

    @abstractmethod
    def close(self) -> None:
        """Ends all holds. Idempotent."""

    def _end_holds(self) -> None:
        for request in list(self._holds):
            self.drop_hold(request)

    def _deadline(self, seconds: float) -> int:
        return self._clock.now() + int(seconds * 1e9)

    def _seconds(self) -> float:
        return self._clock.now() / 1e9

    def __enter__(self) -> BaseStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

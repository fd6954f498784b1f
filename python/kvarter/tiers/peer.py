"""Other nodes' pools as a tier: what a match needs is looked for there, and brought into the pool as from disk.

Blocks are asked for by sequence and not by key, so this is no `base.Tier`: a holder answers a whole prefix with one
number (R7), and leases a run of blocks at once. What came is the pool's, in a slot, verified and committed, before
anybody reads it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .. import _core
from ..finding import Space
from ..geometry import groups_digest
from ..matching import Lease, Range, from_peer
from ..peers import messages as m
from ..peers.directory import Prefix, sequence_of
from ..peers.looks import Looks
from ..policy import LoadPolicy
from ..sequence import Sequence
from ..transfers import Match
from .copies import Copies
from .promotion import Promotions
from .push import Pushing
from .spread import Spreading

if TYPE_CHECKING:
    from ..peers.service import Peers
    from ..peers.wanted import Offer, Wanted

logger = logging.getLogger("kvarter.peers")
_TELL_SECONDS = 0.5  # from a store to what it adds to what others are told
_KEEP_SECONDS = 2.0  # that what others offer stays true, as long as they live
_MOST_NOTED = 4096  # sequences that wait for that

Key = tuple[int, bytes]


class PeerTier:
    """`matching.Beyond` of a store that has peers. Thread-safe."""

    def __init__(self, peers: Peers, index: _core.Index, policy: LoadPolicy, copies: int) -> None:
        """copies: nodes that are to have what is hot."""
        self._peers, self.policy = peers, policy
        self._clock = _core.SteadyClock()
        self._looks: Looks[list[Offer]] = Looks([], peers.look_seconds * 2, _KEEP_SECONDS)
        self._offers: OrderedDict[Key, list[Offer]] = OrderedDict()  # by the boundary that they lead to
        self._up = Promotions(self, index, self._clock, policy)
        self._tickets = itertools.count(1)
        self.pushing = Pushing(self, peers, self._clock)
        self.spreading = Spreading(self, peers, copies)
        self.copies = Copies(self, peers, index, self._clock)
        self._noted: dict[Key, tuple[Space, Sequence, int]] = {}
        self._lock = threading.Lock()

    # --- what a matcher asks

    def look(self, space: Space, sequence: Sequence, here: int, limit: int) -> int | None:
        unit = space.geometry.unit_tokens
        limit = min(limit, m.MOST_UNITS * unit)
        if not sequence.from_start or limit < unit or here >= limit or self._peers.closed:
            return 0

        def ask(answered: Callable[[list[Offer]], None]) -> None:
            prefix = self.prefix(space, sequence, limit // unit)
            self._peers.meeting.call(
                lambda: self._peers.meeting.start(self._look(space, prefix, here, limit, answered))
            )

        offers = self._looks.get(_key(space, sequence, limit), ask)
        if offers is None:
            return None
        living = self._peers.meeting.links
        return max((o.tokens for o in offers if o.tokens > here and o.link in living), default=0)

    async def _look(
        self, space: Space, prefix: Prefix, here: int, limit: int, answered: Callable[[list[Offer]], None]
    ) -> None:
        offers: list[Offer] = []
        try:
            offers = await self._peers.asking.look(prefix, groups_digest(space.geometry), here, limit)
            for tokens in {offer.tokens for offer in offers}:
                units = tokens // prefix.unit_tokens
                with self._lock:
                    self._offers[space.above, prefix.digests[32 * (units - 1) : 32 * units]] = offers
                    while len(self._offers) > _MOST_NOTED:
                        self._offers.popitem(last=False)
        finally:
            answered(offers)

    @property
    def queued_reads(self) -> int:
        return self._peers.asking.queued

    @property
    def version(self) -> int:
        return self._looks.version

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], Lease]
    ) -> Callable[[], Lease | None]:
        return self._up.fetch(space, match, until, lease)

    def fetch_from(
        self, space: Space, sequence: Sequence, offer: Offer, until: int
    ) -> Callable[[], Lease | None]:
        """Brings everything of that offer into the pool, and says so as `fetch` does."""
        with self._lock:
            self._offers[_key(space, sequence, offer.tokens)] = [offer]
        match = from_peer(space, sequence, offer.tokens)
        return self._up.fetch(space, match, until, lambda: (_core.Status.Ok, 0))

    def push(self, space: Space, sequence: Sequence, to: str) -> None:
        self.pushing.push(space, sequence, to)

    def cleared(self, namespace: bytes) -> None:
        """What others have of it is invalid, too."""
        self._peers.clearing.clear(namespace)

    # --- promotion.Reader

    def read(
        self, space: Space, match: Match, ranges: list[Range], slots: npt.NDArray[np.void], deadline: int
    ) -> int:
        from ..peers.wanted import Wanted

        geometry = space.geometry
        tokens = match.tokens // geometry.unit_tokens * geometry.unit_tokens
        wanted = Wanted(
            self.prefix(space, match.sequence, tokens // geometry.unit_tokens),
            groups_digest(geometry),
            [len(group.shard_bytes) for group in geometry.groups],
            ranges,
            slots,
            tokens,
            time.monotonic() + min(max(deadline - self._clock.now(), 0) / 1e9, 3600.0),
        )
        with self._lock:
            offers = self._offers.get(_key(space, match.sequence, tokens), [])
        ticket = next(self._tickets)
        started = self._peers.meeting.call(
            lambda: self._peers.meeting.start(self._fetch(space, ticket, wanted, offers))
        )
        return ticket if started else 0

    async def _fetch(self, space: Space, ticket: int, wanted: Wanted, offers: list[Offer]) -> None:
        try:
            await self._peers.asking.fetch(wanted, offers)
        finally:
            self._up.arrived(ticket, wanted.statuses, wanted.checksums)
        self.noted(space, sequence_of(space, wanted.prefix.digests), 0, wanted.tokens)

    def expired(self, ticket: int) -> bool:
        return False  # it ends by itself at its deadline

    def give_up(self) -> None:
        """No slot is touched any more."""
        self._up.give_up()

    def prefix(self, space: Space, sequence: Sequence, units: int) -> Prefix:
        digests = sequence.digests[:units].tobytes()
        return Prefix(self._peers.namespace(space), space.geometry.unit_tokens, digests)

    # --- what others are told

    def used(self, space: Space, sequence: Sequence, tokens: int) -> None:
        """A request found so many tokens of it in the pool."""
        self.noted(space, sequence, 0, tokens)
        self.spreading.used(space, sequence, tokens)

    def noted(self, space: Space, sequence: Sequence, first: int, tokens: int) -> None:
        """The pool has, or is about to have, its tokens from `first` up to `tokens`."""
        stride, units = self._peers.directory.stride, tokens // space.geometry.unit_tokens
        if not stride or tokens // stride <= first // stride:
            return
        if not sequence.from_start or not 0 < units <= sequence.units:
            return
        with self._lock:
            if len(self._noted) < _MOST_NOTED:
                copy = Sequence.from_digests(sequence.namespace, sequence.digests[:units])
                self._noted[_key(space, sequence, tokens)] = space, copy, 0

    async def tell(self) -> None:
        """What was noted a moment ago, as far as it is there by now."""
        while True:
            await asyncio.sleep(_TELL_SECONDS)
            with self._lock:
                noted, self._noted = self._noted, {}
            for key, (space, sequence, tries) in noted.items():
                geometry = space.geometry
                all_of_it = sequence.units * geometry.unit_tokens
                boundary = self._peers.have(space, sequence, all_of_it)
                if boundary:
                    prefix = self.prefix(space, sequence, sequence.units)
                    self._peers.directory.have(prefix, boundary // geometry.unit_tokens)
                if (
                    boundary + geometry.alignment <= all_of_it and tries < 3
                ):  # some of it is still being written
                    with self._lock:
                        self._noted.setdefault(key, (space, sequence, tries + 1))
                await asyncio.sleep(0)


def _key(space: Space, sequence: Sequence, tokens: int) -> Key:
    unit = tokens // space.geometry.unit_tokens - 1
    return space.above, sequence.digests[unit].tobytes()

"""Copies of what is hot elsewhere: fetched at leisure, into room that this node can do without."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .. import _core
from ..finding import Space
from ..matching import from_peer
from ..peers import messages as m
from ..peers.directory import Prefix, sequence_of
from ..sequence import Sequence

if TYPE_CHECKING:
    from ..peers.link import Link
    from ..peers.service import Peers
    from ..peers.wanted import Offer
    from .peer import PeerTier

_COPY_SECONDS = 60.0  # that one may take
_MOST = 8  # that wait for their turn
_STEP_BYTES = 32 << 20  # fetched between two looks at who else wants something
_SHARE, _WINDOW_SECONDS = 8, 60.0  # of the pool, one part of so many, may become copies in such a time


class Copies:
    """On the meeting's thread. `counts`: offers of others, by whether they were `copied`, were here already (`had`), or
    came to nothing (`declined`)."""

    def __init__(self, tier: PeerTier, peers: Peers, index: _core.Index, clock: _core.Clock) -> None:
        self._tier, self._peers, self._index, self._clock = tier, peers, index, clock
        self._most = peers.pool_bytes // _SHARE
        self._waiting, self._turn = 0, asyncio.Lock()
        self._since, self._taken = 0.0, 0  # bytes, in this window
        self.counts = Counter({"copied": 0, "had": 0, "declined": 0})

    def offered(self, space: Space, link: Link, take: m.Take) -> None:
        """It is answered by how far this node has it then. Raises ValueError when there are too many already."""
        if self._waiting >= _MOST:
            self.counts["declined"] += 1
            raise ValueError(f"{_MOST} sequences wait to be copied already")
        self._waiting += 1
        self._peers.meeting.start(self._answer(space, link, take))

    async def _answer(self, space: Space, link: Link, take: m.Take) -> None:
        sequence, geometry = sequence_of(space, take.digests), space.geometry
        limit = min(take.tokens, sequence.units * geometry.unit_tokens)
        try:
            async with self._turn:
                outcome = "had"
                if self._peers.have(space, sequence, limit) < limit:
                    outcome = "copied" if await self._copy(space, sequence, link, take, limit) else "declined"
            self.counts[outcome] += 1
            link.send(m.Have(take.number, self._peers.have(space, sequence, limit)))
        finally:
            self._waiting -= 1

    async def _copy(self, space: Space, sequence: Sequence, link: Link, take: m.Take, limit: int) -> bool:
        """In steps, each while no request here waits for another node, and for half of the time at most."""
        until = time.monotonic() + _COPY_SECONDS
        prefix = Prefix(take.namespace, space.geometry.unit_tokens, take.digests)
        offer: Offer | None = None
        try:
            async with asyncio.timeout(_COPY_SECONDS):
                offer = await self._peers.asking.look_at(link, prefix, take.groups, limit)
        except TimeoutError:
            return False
        if offer is None or offer.tokens < limit or not self._fits(_missing(space, sequence, limit)):
            return False
        for tokens in _steps(space, limit):
            while self._peers.asking.queued and time.monotonic() < until:
                await asyncio.sleep(0.02)
            begun = time.monotonic()
            if begun >= until:
                return False
            deadline = self._clock.now() + int((until - begun) * 1e9)
            attempt = self._tier.fetch_from(space, sequence, offer._replace(tokens=tokens), deadline)
            while attempt() is None:
                await asyncio.sleep(0.005)
            if self._peers.have(space, sequence, tokens) < tokens:
                return False
            if tokens < limit:
                await asyncio.sleep(time.monotonic() - begun)
        return True

    def _fits(self, nbytes: int) -> bool:
        """Counts them, when they do."""
        now = time.monotonic()
        if now - self._since >= _WINDOW_SECONDS:
            self._since, self._taken = now, 0
        if (
            self._taken + nbytes > self._most
            or nbytes > self._index.ledger()["free"] + self._index.evictable()
        ):
            return False
        self._taken += nbytes
        return True


def _missing(space: Space, sequence: Sequence, tokens: int) -> int:
    """Bytes that are not in memory."""
    return space.geometry.bytes_at(from_peer(space, sequence, tokens).below)


def _steps(space: Space, limit: int) -> Iterator[int]:
    """Tokens to fetch up to. A window or a state is only where somebody kept one, so with these it is one step."""
    geometry = space.geometry
    if all(geometry.chained(g) for g, group in enumerate(geometry.groups) if group.required):
        each = geometry.bytes_at(geometry.blocks_at(geometry.alignment))
        step = max(_STEP_BYTES // max(each, 1), 1) * geometry.alignment
        yield from range(step, limit, step)
    yield limit

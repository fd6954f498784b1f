"""Hot blocks have copies: a node that sees a prefix used often offers it to others, until enough of them have it.

Nothing here is on the way of a request: a use is counted, and all else is the meeting's. Who takes: `copies.py`.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from ..finding import Space
from ..geometry import groups_digest
from ..peers import messages as m
from ..peers.directory import Prefix, sequence_of
from ..sequence import Sequence
from .uses import Uses, lengths

if TYPE_CHECKING:
    from ..peers.service import Peers
    from .peer import PeerTier

_HOT, _WINDOW_SECONDS = 8, 60.0
_MOST_COUNTED = 1 << 13  # prefixes in a window
_AT_ONCE = 4  # prefixes that are being offered
_MOST_OFFERED = 8  # nodes that one is offered to
_OFFER_SECONDS = 120.0  # that one may take to answer: it copies when it has nothing else to fetch


class Spreading:
    """`used` may be called by any thread. copies: nodes that are to have what is hot, this one included. `counts`:
    prefixes that were `hot`, and offers of them by whether they were `taken` or `refused`."""

    def __init__(self, tier: PeerTier, peers: Peers, copies: int) -> None:
        self._tier, self._peers, self._copies = tier, peers, copies
        self._uses = Uses(_HOT, _WINDOW_SECONDS, _MOST_COUNTED, time.monotonic)
        self._lock = threading.Lock()
        self._offering = 0
        self.counts = Counter({"hot": 0, "taken": 0, "refused": 0})

    def used(self, space: Space, sequence: Sequence, tokens: int) -> None:
        """Somebody, here or elsewhere, found so many tokens of it here."""
        if self._copies < 2 or not sequence.from_start or self._peers.closed:
            return
        geometry = space.geometry
        step = geometry.alignment // geometry.unit_tokens
        least = self._peers.directory.stride  # shorter ones are not looked for
        units = [n * step for n in lengths(min(tokens // geometry.alignment, m.MOST_UNITS // step))]
        units = [n for n in units if n * geometry.unit_tokens >= least]
        if not units:
            return
        last = sequence.digests[[n - 1 for n in units]].tobytes()
        prefixes = [(space.above, last[32 * at : 32 * at + 32]) for at in range(len(units))]
        with self._lock:
            if self._offering >= _AT_ONCE or (hot := self._uses.used(prefixes)) is None:
                return
            self._offering += 1
        prefix, meeting = self._tier.prefix(space, sequence, units[hot]), self._peers.meeting
        meeting.call(lambda: meeting.start(self._spread(space, prefix)))

    async def _spread(self, space: Space, prefix: Prefix) -> None:
        try:
            sequence, geometry = sequence_of(space, prefix.digests), space.geometry
            everything = prefix.units * geometry.unit_tokens
            tokens = self._peers.have(space, sequence, everything)
            if not tokens:
                return
            prefix = prefix._replace(digests=prefix.digests[: 32 * (tokens // geometry.unit_tokens)])
            self.counts["hot"] += 1
            groups = groups_digest(geometry)
            offers = await self._peers.asking.look(prefix, groups, 0, tokens)
            holders = {offer.link.dialed for offer in offers if offer.tokens >= tokens}
            missing = self._copies - 1 - len(holders)
            others = [node for node in self._peers.directory.nodes() if node not in holders]
            # Everybody who offers it to somebody offers it to the same ones, and other prefixes to others.
            others.sort(key=lambda node: hashlib.sha256(prefix.digests[-32:] + node.encode()).digest())
            for node in others[:_MOST_OFFERED]:
                if missing <= 0:
                    break
                took = await self._offer(node, prefix, groups, tokens)
                self.counts["taken" if took else "refused"] += 1
                missing -= took
        finally:
            with self._lock:
                self._offering -= 1

    async def _offer(self, node: str, prefix: Prefix, groups: bytes, tokens: int) -> bool:
        """Whether that node has it now."""
        try:
            async with asyncio.timeout(_OFFER_SECONDS):
                link = await self._peers.asking.met(node)
                return link is not None and await self._peers.asking.offer(link, prefix, groups, tokens)
        except TimeoutError:
            return False

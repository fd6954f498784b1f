"""What goes ahead of being asked for: whoever shall have it is told, and fetches it as anything else."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from typing import TYPE_CHECKING

from .. import _core
from ..finding import Found, Space
from ..geometry import groups_digest
from ..peers import messages as m
from ..peers.directory import Prefix, sequence_of
from ..sequence import Sequence

if TYPE_CHECKING:
    from ..peers.link import Link
    from ..peers.service import Peers
    from .peer import PeerTier

_PUSH_SECONDS = 5.0  # that blocks may take to be stored, and a node to be reached
_TAKE_SECONDS = 30.0  # and that fetching them may take
_MOST_TAKEN = 8  # sequences at a time that others told us to fetch


class Pushing:
    """`push` may be called by any thread, `taken` by the meeting's. `counts`: sequences."""

    def __init__(self, tier: PeerTier, peers: Peers, clock: _core.Clock) -> None:
        self._tier, self._peers, self._clock = tier, peers, clock
        self._taking = 0
        self.counts = Counter({"pushed": 0, "taken": 0})

    def push(self, space: Space, sequence: Sequence, to: str) -> None:
        """Has the node at HOST:PORT fetch what is stored of it, once all of it is here; a few seconds are waited for
        that. Whether it did is not said: it will be asked for, or computed."""
        if sequence.from_start and 0 < sequence.units <= m.MOST_UNITS and not self._peers.closed:
            prefix, meeting = self._tier.prefix(space, sequence, sequence.units), self._peers.meeting
            meeting.call(lambda: meeting.start(self._push(space, prefix, to)))

    async def _push(self, space: Space, prefix: Prefix, to: str) -> None:
        geometry, sequence = space.geometry, sequence_of(space, prefix.digests)
        until, boundary = time.monotonic() + _PUSH_SECONDS, 0
        all_of_it = prefix.units * geometry.unit_tokens
        while boundary + geometry.alignment <= all_of_it and time.monotonic() < until:
            await asyncio.sleep(0.02)
            boundary = self._peers.have(space, sequence, all_of_it)
        link: Link | None = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PUSH_SECONDS):
                link = await self._peers.asking.met(to)
        if link is not None and boundary:
            link.send(m.Take(prefix.namespace, groups_digest(geometry), prefix.digests, boundary))
            self.counts["pushed"] += 1

    def taken(self, link: Link, message: m.Take) -> None:
        """Another node says that this will be asked for. Raises ValueError or LookupError for what is not fetched."""
        space = self._peers.space(message.namespace)
        if space is None or groups_digest(space.geometry) != message.groups or len(message.digests) % 32:
            raise LookupError(f"namespace {message.namespace.hex()[:16]} is not open here with these groups")
        if message.number:
            self._tier.copies.offered(space, link, message)
            return
        if self._taking >= _MOST_TAKEN:
            raise ValueError(f"{_MOST_TAKEN} sequences are being fetched already")
        self._taking += 1
        self._peers.meeting.start(self._take(space, link, message))

    async def _take(self, space: Space, link: Link, message: m.Take) -> None:
        try:
            prefix = Prefix(message.namespace, space.geometry.unit_tokens, message.digests)
            sequence = sequence_of(space, message.digests)
            limit = min(message.tokens, sequence.units * space.geometry.unit_tokens)
            offer = await self._peers.asking.look_at(link, prefix, message.groups, limit)
            if offer is None or offer.tokens <= space.geometry.boundary(Found(space, sequence), limit):
                return
            until = self._clock.now() + int(_TAKE_SECONDS * 1e9)
            attempt = self._tier.fetch_from(space, sequence, offer, until)
            while attempt() is None:
                await asyncio.sleep(0.005)
            self.counts["taken"] += 1
        finally:
            self._taking -= 1

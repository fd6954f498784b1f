"""Asking others for blocks: who has them, and then the blocks themselves, into slots of our own.

Everything is on the meeting's thread. A request ends by its last block, by the owner's refusal, by the end of its link
or by its deadline; whichever comes first, UCX's engine has by then forgotten it, and no byte enters its slots any more.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import _core
from . import messages as m
from .directory import Directory, Prefix
from .link import Link
from .meeting import Meeting
from .memory import Memory
from .others import Other
from .wanted import MOST_BLOCKS, Offer, Outcome, Wanted, ranges_of

if TYPE_CHECKING:
    from .. import _ucx

_MOST_ASKED = 8  # holders for one sequence
_PART_BYTES = 32 << 20  # of one request
_DIAL_SECONDS = 60.0  # that a link is kept for whoever a directory named


class Asking:
    """`counts`: blocks asked for, by what became of them. queued: bytes of them that have not come."""

    def __init__(
        self, meeting: Meeting, wire: _ucx.Engine, directory: Directory, look_seconds: float, memory: Memory
    ) -> None:
        self._meeting, self._wire, self._directory = meeting, wire, directory
        self._look_seconds, self._memory = look_seconds, memory
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Link, asyncio.Future[Any]]] = {}
        self.queued = 0
        self.counts = Counter({"asked": 0, **{status.name: 0 for status in _core.Status}})
        self.looks = Counter({"asked": 0, "answered": 0})

    # --- who has it

    async def look(self, prefix: Prefix, groups: bytes, above: int, limit: int) -> list[Offer]:
        """Those who have more than `above` tokens of it, who has most and then who is nearest first."""
        offers: list[Offer] = []
        try:
            async with asyncio.timeout(self._look_seconds):
                addresses = await self._directory.whom(prefix, above // prefix.unit_tokens)
                asked = [
                    self._ask_how_far(a, prefix, groups, above, limit, offers)
                    for a in addresses[:_MOST_ASKED]
                ]
                await asyncio.gather(*asked)
        except TimeoutError:  # those who have answered by then
            pass
        return sorted(offers, key=lambda offer: (-offer.tokens, offer.link.pulse.rtt))

    async def _ask_how_far(
        self, address: str, prefix: Prefix, groups: bytes, above: int, limit: int, offers: list[Offer]
    ) -> None:
        link = await self.met(address)
        if link is None:
            return
        offer = await self.look_at(link, prefix, groups, limit)
        if offer is not None and offer.tokens > above:
            offers.append(offer)
        elif offer is not None:
            self._directory.not_at(address, prefix, offer.tokens // prefix.unit_tokens)

    async def look_at(self, link: Link, prefix: Prefix, groups: bytes, limit: int) -> Offer | None:
        """What one other end has of it; None when it does not say."""
        self.looks["asked"] += 1
        number = next(self._numbers)
        look = m.Look(number, prefix.namespace, groups, prefix.digests, limit)
        have = await self._answer(link, number, look)
        if not isinstance(have, m.Have):
            return None
        self.looks["answered"] += 1
        return Offer(link, number, min(have.tokens, limit))

    async def offer(self, link: Link, prefix: Prefix, groups: bytes, tokens: int) -> bool:
        """Whether the other end, which is offered a copy, has it afterwards."""
        number = next(self._numbers)
        have = await self._answer(
            link, number, m.Take(prefix.namespace, groups, prefix.digests, tokens, number)
        )
        return isinstance(have, m.Have) and have.tokens >= tokens

    async def met(self, address: str) -> Link | None:
        """The link to somebody. Who is named for the first time is waited for; who was tried before is not."""
        tried = self._meeting.dialing.seeks(address)
        self._meeting.dialing.seek(address, _DIAL_SECONDS)
        while (link := self._meeting.standing(address)) is None and not tried:
            await asyncio.sleep(0.002)
            tried = not self._meeting.dialing.seeks(address)
        return link

    async def _answer(self, link: Link, number: int, question: m.Message) -> Any:
        """What the other end, or the engine, says under that number; None when the link ends before."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = link, future
        try:
            link.send(question)
            return await future
        finally:
            del self._waiting[number]

    # --- the blocks

    async def fetch(self, wanted: Wanted, offers: Seq[Offer]) -> None:
        """Fills what can be filled in time, from the first who offers it, and from the next what he did not send."""
        missing = list(range(len(wanted.blocks)))
        nbytes = int(wanted.slots["length"].sum())
        self.queued += nbytes
        self.counts["asked"] += len(missing)
        try:
            if not offers:
                offers = await self.look(wanted.prefix, wanted.groups, 0, wanted.tokens)
            for offer in offers:
                if not missing or wanted.seconds() <= 0:
                    break
                if offer.tokens >= wanted.tokens and offer.link in self._meeting.links:
                    parts = self._parts(wanted, missing, min(_PART_BYTES, offer.link.hello.most))
                    await asyncio.gather(*(self._part(wanted, offer, part) for part in parts))
                    missing = [block for block in missing if wanted.statuses[block] != Outcome.Ok]
        finally:
            self.queued -= nbytes
            for status, count in zip(*np.unique(wanted.statuses, return_counts=True), strict=True):
                self.counts[Outcome(int(status)).name] += int(count)

    @staticmethod
    def _parts(wanted: Wanted, blocks: Seq[int], most: int) -> list[list[int]]:
        """Requests of a bounded size, in order."""
        parts: list[list[int]] = []
        slots = nbytes = 0
        for block in blocks:
            here = wanted.slots["length"][wanted.starts[block] : wanted.starts[block + 1]]
            if not parts or slots + len(here) > MOST_BLOCKS or nbytes + int(here.sum()) > most:
                parts.append([])
                slots = nbytes = 0
            parts[-1].append(block)
            slots, nbytes = slots + len(here), nbytes + int(here.sum())
        return parts

    async def _part(self, wanted: Wanted, offer: Offer, part: Seq[int]) -> None:
        places = np.concatenate([np.arange(wanted.starts[b], wanted.starts[b + 1]) for b in part])
        lengths = wanted.slots["length"][places].astype(np.int64)
        other: Other = offer.link.value
        wanted.statuses[part] = Outcome.TimedOut
        try:
            async with asyncio.timeout(max(wanted.seconds(), 0)):
                await other.room.enter(int(lengths.sum()))
                try:
                    offsets = self._memory.offsets(wanted.slots[places])
                    await self._request(wanted, offer, part, places, offsets, lengths)
                finally:
                    other.room.leave(int(lengths.sum()))
        except TimeoutError:
            pass

    async def _request(
        self,
        wanted: Wanted,
        offer: Offer,
        part: Seq[int],
        places: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        lengths: npt.NDArray[np.int64],
    ) -> None:
        other: Other = offer.link.value
        number = next(self._numbers)
        generation = self._wire.expect(other.wire, number, offsets, lengths)
        try:
            ranges = ranges_of([wanted.blocks[block] for block in part])
            ask = m.Ask(number, generation, offer.number, ranges, min(wanted.seconds(), 3600.0))
            got = await self._answer(offer.link, number, ask)
        finally:
            if self._wire.forget(number):  # nobody answered, or not so: from here on the slots are ours alone
                offer.link.send(m.Cancel(number))
        if got is None or isinstance(got, m.Refused):
            wanted.statuses[part] = Outcome.Closed if got is None else Outcome.Rejected
            return
        wanted.checksums[places] = got.checksums
        at = 0
        for block in part:
            shards = int(wanted.starts[block + 1] - wanted.starts[block])
            # Ok when all shards are: it is the smallest of them.
            wanted.statuses[block] = got.statuses[at : at + shards].max()
            at += shards
        if wrong := [block for block in part if wanted.statuses[block] == Outcome.Corrupt]:
            offer.link.send(m.Doubt(offer.number, ranges_of([wanted.blocks[block] for block in wrong])))

    # --- what comes

    def said(self, link: Link, message: m.Have | m.Refused) -> None:
        self._answered(message.number, message, link)

    def received(self, event: _ucx.Received) -> None:
        self._answered(event.request, event)

    def _answered(self, number: int, answer: Any, link: Link | None = None) -> None:
        asked, future = self._waiting.get(number, (None, None))
        if future is not None and not future.done() and link in (None, asked):
            future.set_result(answer)

    def lost(self, link: Link) -> None:
        for asked, future in list(self._waiting.values()):
            if asked is link and not future.done():
                future.set_result(None)

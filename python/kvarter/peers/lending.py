"""Answering others: how far we can serve a sequence, and its blocks, leased for as long as they are being sent.

A lease ends when the engine has sent the last byte, when the other end is gone, or when the time that it gave is over.
All of them together are a bounded share of the pool.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .. import _core
from ..finding import Found, Space, runs
from ..geometry import groups_digest
from ..matching import Lease, Range
from ..sequence import Sequence
from ..transfers import Match
from . import messages as m
from .asking import MOST_BLOCKS
from .directory import sequence_of
from .link import Link
from .meeting import Meeting
from .others import Loan, Other
from .room import Room

if TYPE_CHECKING:
    from .. import _ucx
    from ..store import Store

_SLACK_SECONDS = (
    5.0  # that a lease outlives the time given: nothing is sent after that, and the lease is released
)
_MOST_SECONDS = 60.0


class Lending:
    """`counts`: blocks that others asked for, by what became of them. room: bytes leased now, at most `most`; peak: the
    most that there ever were."""

    def __init__(
        self,
        store: Store,
        meeting: Meeting,
        wire: _ucx.Engine,
        payload: npt.NDArray[np.uint8],
        most: int,
    ) -> None:
        """payload: the pool's arena."""
        self._store, self._meeting, self._wire, self.most = store, meeting, wire, most
        self._payload = payload
        self._clock = _core.SteadyClock()
        self.room, self.peak = Room(most), 0
        self.counts = Counter({"asked": 0, "sent": 0, "absent": 0, "refused": 0, "broken_off": 0})

    # --- looking

    def look(self, other: Other, message: m.Look) -> m.Have:
        space = self._store.spaces().get(message.namespace)
        if space is None or len(message.digests) % 32:
            return m.Have(message.number, 0)
        geometry = space.geometry
        if groups_digest(geometry) != message.groups:
            raise ValueError(f"namespace {message.namespace.hex()[:16]} has other cache groups here")
        sequence = sequence_of(space, message.digests)
        other.looked(message.number, space, sequence)
        disk = self._store.disk
        found = Found(space, sequence, disk.log if disk is not None else None)
        limit = min(message.limit, sequence.units * geometry.unit_tokens)
        return m.Have(message.number, int(geometry.boundary(found, limit)))

    # --- lending

    def ask(self, link: Link, message: m.Ask) -> None:
        """Raises ValueError or LookupError for what will not be sent."""
        other: Other = link.value
        space, sequence = other.look(message.look)
        slots, nbytes = self._checked(space, sequence, message.ranges)
        if message.number in other.loans:
            raise ValueError(f"request {message.number} is open")
        blocks = sum(count for *_, count in message.ranges)
        self.counts["asked"] += blocks
        if nbytes > self.most:
            self.counts["refused"] += blocks
            raise ValueError(f"{nbytes} bytes in one request; expected at most {self.most}")
        seconds = min(message.seconds, _MOST_SECONDS)
        late = self._meeting.loop.call_later(seconds, self._break_off, other, message.number)
        loan = other.loans[message.number] = Loan(nbytes, late)
        self._meeting.start(self._serve(link, loan, message, space, sequence, slots, seconds))

    async def _serve(
        self,
        link: Link,
        loan: Loan,
        message: m.Ask,
        space: Space,
        sequence: Sequence,
        slots: int,
        seconds: float,
    ) -> None:
        other: Other = link.value
        await self.room.enter(loan.nbytes)
        if other.loans.get(message.number) is not loan:  # broken off meanwhile
            self.room.leave(loan.nbytes)
            return
        loan.entered = True
        self.peak = max(self.peak, self.room.used)
        try:
            attempt = self._from_disk(space, sequence, message.ranges, seconds)
            while attempt is not None and other.loans.get(message.number) is loan and attempt() is None:
                await asyncio.sleep(0.001)
            if other.loans.get(message.number) is loan:
                self._send(link, loan, message, space, sequence, slots)
        except Exception as error:
            self._over(other, message.number)
            link.send(m.Refused(str(error)[:1024], message.number))
            if not isinstance(error, ValueError):
                raise

    def _checked(self, space: Space, sequence: Sequence, ranges: Seq[Range]) -> tuple[int, int]:
        """How many slots and bytes it is about."""
        from ..node.chains import run_of

        groups = space.geometry.groups
        slots = nbytes = 0
        for part in ranges:
            count = len(run_of(space, sequence, part))
            slots += count * len(groups[part[0]].shard_bytes)
            nbytes += count * sum(groups[part[0]].shard_bytes)
        if not 0 < slots <= MOST_BLOCKS:
            raise ValueError(f"{slots} blocks in one request; expected 1 to {MOST_BLOCKS}")
        return slots, nbytes

    def _from_disk(
        self, space: Space, sequence: Sequence, ranges: Seq[Range], seconds: float
    ) -> Callable[[], Lease | None] | None:
        """Brings up what is on disk alone; None when there is nothing to bring up."""
        disk = self._store.disk
        if disk is None or space.below is None:
            return None
        found = Found(space, sequence)
        blocks = [range(0)] * len(space.geometry.groups)
        for group, first, count in ranges:
            known = blocks[group]
            blocks[group] = range(min(known.start, first) if known else first, first + count)
        below = tuple(found.not_above(group, need) for group, need in enumerate(blocks))
        if not any(below):
            return None
        until = self._clock.now() + int(seconds * 1e9)
        match = Match(sequence, 1, 0, tuple(blocks), below, 1)
        return disk.fetch(space, match, until, lambda: (_core.Status.Ok, 0))

    def _send(
        self,
        link: Link,
        loan: Loan,
        message: m.Ask,
        space: Space,
        sequence: Sequence,
        slots: int,
    ) -> None:
        other, ranges = link.value, message.ranges
        chain, index, groups = sequence.chain(space.above), self._store.index, space.geometry.groups
        here = _here(space, sequence, ranges)
        there = [part for parts in here for part in parts]
        deadline = self._clock.now() + int((_MOST_SECONDS + _SLACK_SECONDS) * 1e9)
        status = _core.Status.NotFound
        if there:
            status, loan.lease = index.lease(chain, there, _core.LeaseKind.Copy, 0, deadline)
        offsets, lengths = np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        statuses, checksums = np.full(slots, _core.Status.NotFound, np.uint8), np.zeros(slots, np.uint64)
        if status == _core.Status.Ok:
            leased = index.slots(loan.lease)
            places, at = [], 0
            for (group, first, count), parts in zip(ranges, here, strict=True):
                shards = len(groups[group].shard_bytes)
                for _, start, blocks in parts:
                    begin = at + (start - first) * shards
                    places.append(np.arange(begin, begin + blocks * shards))
                at += count * shards
            place = np.concatenate(places)
            offsets[place], lengths[place] = leased["offset"], leased["length"]
            checksums[place], statuses[place] = leased["checksum"], _core.Status.Ok
        sent = int((statuses == _core.Status.Ok).sum())
        answer = self._wire.send(
            other.wire, message.number, message.generation, offsets, lengths, statuses, checksums
        )
        if answer != _core.Status.Ok:
            self.counts["refused"] += slots
            raise ValueError(f"UCX answers {_core.Status(answer).name}")
        loan.sending = True
        self.counts["sent"] += sent
        self.counts["absent"] += slots - sent

    def doubt(self, other: Other, message: m.Doubt) -> None:
        """Blocks that did not pass the other end's check: those that do not pass ours either go, with what leans on
        them."""
        space, sequence = other.look(message.look)
        chain, index = sequence.chain(space.above), self._store.index
        self._checked(space, sequence, message.ranges)
        for part in [part for parts in _here(space, sequence, message.ranges) for part in parts]:
            deadline = self._clock.now() + int(_SLACK_SECONDS * 1e9)
            status, lease = index.lease(chain, [part], _core.LeaseKind.Copy, 0, deadline)
            if status != _core.Status.Ok:
                continue
            shards = len(space.geometry.groups[part[0]].shard_bytes)
            wrong = {at // shards for at, slot in enumerate(index.slots(lease)) if not self._whole(slot)}
            index.drop_corrupt(lease, sorted(wrong))
            index.release(lease, _core.Outcome.Unused)

    def _whole(self, slot: np.void) -> bool:
        begin, end = int(slot["offset"]), int(slot["offset"] + slot["length"])
        return bool(_core.xxh3_64(self._payload[begin:end]) == int(slot["checksum"]))

    # --- endings

    def sent(self, other: Other, event: _ucx.Sent) -> None:
        if event.status != _core.Status.Ok:
            self.counts["broken_off"] += 1
        self._over(other, event.request)

    def cancel(self, other: Other, message: m.Cancel) -> None:
        self._break_off(other, message.number)

    def _break_off(self, other: Other, number: int) -> None:
        loan = other.loans.get(number)
        if loan is not None and loan.sending:
            self._wire.cancel(other.wire, number)  # and then it is `sent`
        elif loan is not None:
            self.counts["broken_off"] += 1
            self._over(other, number)

    def lost(self, other: Other) -> None:
        """Its link is over. What the engine is sending ends with the engine's word."""
        for number in [number for number, loan in other.loans.items() if not loan.sending]:
            self._break_off(other, number)

    def end(self, other: Other) -> None:
        """The engine is gone: it reads nothing any more."""
        for number in list(other.loans):
            self._over(other, number)

    def _over(self, other: Other, number: int) -> None:
        loan = other.loans.pop(number, None)
        if loan is not None:
            loan.late.cancel()
            if loan.entered:
                self.room.leave(loan.nbytes)
            if loan.lease:
                self._store.index.release(loan.lease, _core.Outcome.Unused)


def _here(space: Space, sequence: Sequence, ranges: Seq[Range]) -> list[list[Range]]:
    """What of each range is in memory."""
    chain, index = sequence.chain(space.above), space.index
    here: list[list[Range]] = []
    for group, first, count in ranges:
        if space.geometry.chained(group):
            end = index.leading(chain, group, first + count)
            here.append([(group, first, end - first)] if end > first else [])
        else:
            blocks = [b for b in range(first, first + count) if index.contains(chain, group, b)]
            here.append([(group, run.start, len(run)) for run in runs(blocks)])
    return here

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

from .. import _core
from ..finding import Found, Space
from ..geometry import groups_digest
from ..matching import Lease, Range
from ..sequence import Sequence
from ..transfers import Match
from . import messages as m
from .directory import sequence_of
from .leased import checked, drop_corrupt, leased
from .link import Link
from .meeting import Meeting
from .memory import Memory
from .others import Loan, Other
from .room import Room

if TYPE_CHECKING:
    from .. import _ucx
    from ..store import Store

_SLACK_SECONDS = 5.0  # that a lease outlives the time given: nothing is sent after that
_MOST_SECONDS = 60.0


class Lending:
    """`counts`: blocks that others asked for, by what became of them. room: bytes leased now, at most `most`; peak: the
    most that there ever were."""

    def __init__(
        self,
        store: Store,
        meeting: Meeting,
        wire: _ucx.Engine,
        memory: Memory,
        most: int,
        used: Callable[[Space, Sequence, int], None],
    ) -> None:
        """used: hears how many tokens of a sequence were found for somebody."""
        self._store, self._meeting, self._wire, self.most = store, meeting, wire, most
        self._memory, self._used = memory, used
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
        tokens = int(geometry.boundary(found, limit))
        self._used(space, sequence, tokens)
        return m.Have(message.number, tokens)

    # --- lending

    def _looked(self, other: Other, number: int) -> tuple[Space, Sequence]:
        """What was looked for, unless its namespace ended: its number may be another one's by now."""
        space, sequence = other.look(number)
        if not any(known is space for known in self._store.spaces().values()):
            raise LookupError(f"the namespace of look {number} is not open here any more")
        return space, sequence

    def ask(self, link: Link, message: m.Ask) -> None:
        """Raises ValueError or LookupError for what will not be sent."""
        other: Other = link.value
        space, sequence = self._looked(other, message.look)
        slots, nbytes = checked(space, sequence, message.ranges)
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
        deadline = self._clock.now() + int((_MOST_SECONDS + _SLACK_SECONDS) * 1e9)
        loan.lease, offsets, lengths, statuses, checksums = leased(
            space, sequence, message.ranges, slots, self._memory, deadline
        )
        sent = int((statuses == _core.Status.Ok).sum())
        answer = self._wire.send(
            link.value.wire, message.number, message.generation, offsets, lengths, statuses, checksums
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
        space, sequence = self._looked(other, message.look)
        checked(space, sequence, message.ranges)
        deadline = self._clock.now() + int(_SLACK_SECONDS * 1e9)
        drop_corrupt(space, sequence, message.ranges, self._memory, deadline)

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

"""The disk below a node's pool, as a store that asks the node sees it."""

from __future__ import annotations

from collections.abc import Callable

from .. import _core
from ..finding import Space, runs
from ..matching import Lease, Range, in_memory
from ..policy import LoadPolicy
from ..sequence import Sequence
from ..transfers import Blocks, Match
from . import messages as m
from .control import Control
from .told import Told


class RemoteDisk:
    """The disk below a node's pool."""

    def __init__(self, index: _core.RemoteIndex, control: Control, told: Told, policy: LoadPolicy) -> None:
        self._control, self._told = control, told
        self.log = _RemoteLog(index)
        self._fetches = RemoteFetches(control, told, policy, peers=False)

    def copier(self, space: Space, sequence: Sequence) -> Callable[[dict[int, Blocks]], None] | None:
        if space.below is None:
            return None
        known = bool(sequence.seen_tokens > 0)
        chain = self._told.chain(sequence)

        def copy(blocks: dict[int, Blocks]) -> None:
            ranges = [(g, r.start, len(r)) for g, stored in blocks.items() for r in runs(stored.tolist())]
            self._control.tell(m.Landed(chain, known, ranges))

        return copy

    def used(self, space: Space, match: Match, ranges: list[Range]) -> None:
        if space.below is not None:
            self._control.tell(m.Used(self._told.chain(match.sequence), ranges))

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], Lease]
    ) -> Callable[[], Lease | None]:
        return self._fetches.fetch(match, until, lease)

    @property
    def queued_reads(self) -> int:
        return self._fetches.queued


class RemoteFetches:
    """What a node brings up for this process. queued: bytes that it had still to bring, when it last said so."""

    def __init__(self, control: Control, told: Told, policy: LoadPolicy, *, peers: bool) -> None:
        self._control, self._told, self._policy, self._peers = control, told, policy, peers
        self.queued = 0

    def fetch(self, match: Match, until: int, lease: Callable[[], Lease]) -> Callable[[], Lease | None]:
        chain = self._told.chain(match.sequence)
        below = [[(run.start, len(run)) for run in runs(need)] for need in match.below]
        wanted = [(group, need.start, len(need)) for group, need in enumerate(match.blocks) if need]
        clock = _core.SteadyClock()
        seconds = max(until - clock.now(), 0) / 1e9
        done: list[m.Answer | None] = []
        kept = in_memory(match)
        self._control.request(
            lambda number: m.Fetch(number, chain, below, kept, wanted, seconds, self._peers, match.tokens),
            done.append,
        )

        def attempt() -> Lease | None:
            if clock.now() >= until:
                return _core.Status.TimedOut, 0
            if not done:
                return None
            answer = done[0]
            if not isinstance(answer, m.Fetched):
                return _core.Status.Closed, 0
            self.queued = answer.queued
            if answer.nbytes:
                self._policy.loaded(answer.nbytes, answer.seconds)
            status = _core.Status(answer.status)
            return lease() if status == _core.Status.Ok else (status, 0)

        return attempt


class _RemoteLog:
    """`finding.Log` of a node."""

    def __init__(self, index: _core.RemoteIndex) -> None:
        self._index = index
        self.leading = index.below_leading
        self.last_run = index.below_last_run
        self.contains = index.below_contains

    @property
    def version(self) -> int:
        return int(self._index.below_version)

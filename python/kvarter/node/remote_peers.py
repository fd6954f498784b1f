"""Other hosts' pools, as a store that asks a node sees them: the node looks, and fetches."""

from __future__ import annotations

from collections.abc import Callable

from ..finding import Space
from ..matching import Lease
from ..peers.looks import Looks
from ..policy import LoadPolicy
from ..sequence import Sequence
from ..transfers import Match
from . import messages as m
from .control import Control
from .remote_disk import RemoteFetches
from .told import Told

_KEEP_SECONDS = 0.25  # that the node's answer stays true


class RemotePeers:
    """`matching.Beyond` of a node. patience: seconds with the node, which has less with others."""

    def __init__(self, control: Control, told: Told, policy: LoadPolicy, patience: float) -> None:
        self._control, self._told, self.policy = control, told, policy
        self._fetches = RemoteFetches(control, told, policy, peers=True)
        self._looks = Looks(0, patience, _KEEP_SECONDS)

    @property
    def queued_reads(self) -> int:
        return self._fetches.queued

    @property
    def version(self) -> int:
        return self._looks.version

    def look(self, space: Space, sequence: Sequence, here: int, limit: int) -> int | None:
        last = limit // space.geometry.unit_tokens - 1 - sequence.first_unit
        if last < 0:
            return 0

        def ask(answered: Callable[[int], None]) -> None:
            def heard(found: m.Answer | None) -> None:
                answered(int(found.tokens) if isinstance(found, m.Found) else 0)

            chain = self._told.chain(sequence)
            self._control.request(lambda number: m.Look(number, chain, int(here), int(limit)), heard)

        return self._looks.get((space.above, sequence.digests[last].tobytes()), ask)

    def push(self, space: Space, sequence: Sequence, to: str) -> None:
        self._control.tell(m.Push(self._told.chain(sequence), to))

    def fetch(
        self, space: Space, match: Match, until: int, lease: Callable[[], Lease]
    ) -> Callable[[], Lease | None]:
        return self._fetches.fetch(match, until, lease)

"""What engines tell a node of look-ups that it does not serve: they read the mapped index themselves."""

from __future__ import annotations

from . import messages as m
from .latency import Histogram

LONGEST = 3600.0  # seconds; whoever says more than that is not believed


class Heard:
    """`units`: hash units that engines asked for, by where they were found, once for each request. Not thread-safe:
    the node's lock guards it."""

    def __init__(self) -> None:
        self.units = {"engine": 0, "dram": 0, "disk": 0, "p2p": 0, "miss": 0}
        self.match, self.fetch, self.peer_fetch = Histogram(), Histogram(), Histogram()

    def asked(self, message: m.Asked, units: int, first: bool) -> None:
        """Of a sequence of so many units. first: nothing was heard of this request before. Raises ValueError for what
        cannot be."""
        *here, miss = message.found
        found = (*here, message.peer, miss)
        if min(found) < 0 or sum(found) > units or not 0 <= message.seconds <= LONGEST:
            raise ValueError(f"a look-up of {found} units in {message.seconds} s; the sequence has {units}")
        self.match.record(message.seconds)
        if first:
            for place, count in zip(self.units, found, strict=True):
                self.units[place] += count

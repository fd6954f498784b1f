"""What a node keeps of each link: who it is to UCX, what it looked for, what it was lent."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field

from ..finding import Space
from ..sequence import Sequence
from .room import Room

_MOST_LOOKS, _MOST_UNITS = 64, 1 << 20


@dataclass(eq=False)
class Loan:
    """Blocks that another node wants. late: when its time is over. lease: 0 as long as there is none."""

    nbytes: int
    late: asyncio.TimerHandle
    lease: int = 0
    entered: bool = False  # counted in what is lent
    sending: bool = False  # the engine has it, and says when it is over


@dataclass(eq=False)
class Other:
    """wire: its number at the UCX engine. room: for what we asked of it."""

    wire: int
    room: Room
    loans: dict[int, Loan] = field(default_factory=dict)  # by its requests
    _looks: OrderedDict[int, tuple[Space, Sequence]] = field(default_factory=OrderedDict)
    _units: int = 0

    def looked(self, number: int, space: Space, sequence: Sequence) -> None:
        """The oldest are forgotten."""
        self._looks[number] = space, sequence
        self._units += sequence.units
        while len(self._looks) > _MOST_LOOKS or (self._units > _MOST_UNITS and len(self._looks) > 1):
            _, (_, forgotten) = self._looks.popitem(last=False)
            self._units -= forgotten.units

    def look(self, number: int) -> tuple[Space, Sequence]:
        found = self._looks.get(number)
        if found is None:
            raise LookupError(f"look {number} is not known here any more")
        return found

"""What a store says of its sequences to the node that it asks: each digest once."""

from __future__ import annotations

from ..sequence import Sequence
from . import messages as m
from .control import Control

# What the node is told of sequences; older ones are told anew. Half of what it remembers: of two that are used in
# turns, one may have been told so long before the other.
_MOST_CHAINS, _MOST_UNITS = 2048, 2 << 20


class Told:
    """Which sequences the node knows, by the numbers that it was told."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._next = self._units = 0

    def chain(self, sequence: Sequence) -> int:
        """The sequence's number, after the node was told what it does not know of it."""
        known: Known | None = sequence.told
        if (
            known is None
            or known.by is not self
            or self._next - known.number > _MOST_CHAINS
            or self._units - known.after > _MOST_UNITS
        ):
            self._next += 1
            known = sequence.told = Known(self, self._next, self._units)
        digests = sequence.digests
        if known.units < len(digests) or not known.units:
            new = digests[known.units :].tobytes()
            space_digest = sequence.namespace.digest()
            told = m.Chain(known.number, space_digest, sequence.first_unit, sequence.parent, known.units, new)
            if self._control.tell(told):
                self._units += len(digests) - known.units
                known.units = len(digests)
            else:  # it has too much to say: from the start, next time
                sequence.told = None
        return known.number


class Known:
    """What the node was told of a sequence. after: units of all sequences that it had been told before."""

    def __init__(self, by: Told, number: int, after: int) -> None:
        self.by, self.number, self.after = by, number, after
        self.units = 0

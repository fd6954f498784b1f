"""What those who ask a node have told it of their sequences."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import cast

import numpy as np

from ..finding import Space
from ..keys import Namespace
from ..sequence import Sequence
from . import messages as m

_MOST_CHAINS, _MOST_UNITS = 4096, 4 << 20  # of each who asks: 128 MiB of digests


class Chains:
    """Sequences that one peer told of, by its numbers; the oldest are forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, tuple[Space, Sequence]] = OrderedDict()
        self._units = 0

    def told(self, space: Space, message: m.Chain) -> None:
        digests = np.frombuffer(message.digests, np.uint8).reshape(-1, 32)
        known = self._known.get(message.id)
        if known is None:
            if message.at:
                raise LookupError(f"chain {message.id} goes on from {message.at} units that nobody knows")
            namespace = cast(Namespace, SimpleNamespace(unit_tokens=space.geometry.unit_tokens))
            sequence = Sequence.from_digests(namespace, digests, message.first_unit, message.parent)
            self._known[message.id] = space, sequence
        else:
            sequence = known[1]
            if message.at != len(sequence.digests):
                raise LookupError(f"chain {message.id} goes on from {message.at} units; it has others")
            sequence.append(digests)
        self._known.move_to_end(message.id)
        self._units += len(digests)
        while len(self._known) > _MOST_CHAINS or (self._units > _MOST_UNITS and len(self._known) > 1):
            _, (_, forgotten) = self._known.popitem(last=False)
            self._units -= len(forgotten.digests)

    def __getitem__(self, number: int) -> tuple[Space, Sequence]:
        known = self._known.get(number)
        if known is None:
            raise LookupError(f"chain {number} is not known here any more")
        self._known.move_to_end(number)
        return known


def run_of(space: Space, sequence: Sequence, part: tuple[int, int, int]) -> range:
    """The blocks of (group, first, count). Raises ValueError for what the chain cannot have."""
    group, first, count = part
    if not 0 <= group < len(space.geometry.groups):
        raise ValueError(f"group {group} of a namespace that has {len(space.geometry.groups)}")
    block = space.geometry.groups[group].block_tokens
    last = sequence.units * space.geometry.unit_tokens // block
    if first < 0 or count < 0 or first + count > last:
        raise ValueError(f"blocks {first} to {first + count} of a chain that has {last}")
    return range(first, first + count)

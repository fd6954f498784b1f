"""Who may have what: the seam, and its member for a handful of nodes that all know each other.

A directory only advises. What it says is checked by asking the node it names, so an entry that is old or wrong costs a
miss, and a directory that is slow, empty or gone makes a slower cache. It lives on the thread of a `Meeting`.

Positions are told at a coarse stride, not block by block: the digest of a unit names everything before it (R7: whoever
has a block has what leads to it), so a few digests say how far along a prompt somebody can serve.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from ..finding import Space
from ..keys import Namespace
from ..sequence import Sequence
from .meeting import Meeting


class Prefix(NamedTuple):
    """A sequence as others name it. digests: 32 bytes of each unit, from token 0 on."""

    namespace: bytes
    unit_tokens: int
    digests: bytes

    @property
    def units(self) -> int:
        return len(self.digests) // 32

    def marks(self, stride: int, above: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """(units, digest of the last one) at every `stride` tokens, beyond `above` units and up to `upto`."""
        step = max(stride // self.unit_tokens, 1)
        for units in range((above // step + 1) * step, min(upto, self.units) + 1, step):
            yield units, self.digests[32 * (units - 1) : 32 * units]


def sequence_of(space: Space, digests: bytes) -> Sequence:
    """What another host names by its digests, from token 0 on, in a namespace that is open here."""
    named = cast(Namespace, SimpleNamespace(unit_tokens=space.geometry.unit_tokens))
    return Sequence.from_digests(named, np.frombuffer(digests, np.uint8).reshape(-1, 32))


class Directory(Protocol):
    """All of it is called on the meeting's thread. stride: tokens between the positions that are told; 0: none are."""

    stride: int

    def begin(self, meeting: Meeting, address: str) -> None:
        """From now on, until the meeting ends, this node is `address`."""

    def nodes(self) -> list[str]:
        """Addresses of all others that may be there."""

    async def whom(self, prefix: Prefix, above: int) -> list[str]:
        """Addresses of those who may have more than `above` units of it, who may have most first."""

    def have(self, prefix: Prefix, units: int) -> None:
        """This node has so many units of it."""

    def not_at(self, address: str, prefix: Prefix, above: int) -> None:
        """That node has no more than `above` units of it."""

    def status(self) -> dict[str, Any]:
        """For `kvarter status` and metrics: `kind`, `available`, and counters."""


class Static:
    """Two or three nodes, each with a list of the others: all of them are asked."""

    stride = 0

    def __init__(self, addresses: Seq[str]) -> None:
        self._addresses = list(dict.fromkeys(addresses))

    def begin(self, meeting: Meeting, address: str) -> None:
        self._addresses = [other for other in self._addresses if other != address]
        for other in self._addresses:
            meeting.seek(other)

    def nodes(self) -> list[str]:
        return self._addresses

    async def whom(self, prefix: Prefix, above: int) -> list[str]:
        return self._addresses

    def have(self, prefix: Prefix, units: int) -> None: ...

    def not_at(self, address: str, prefix: Prefix, above: int) -> None: ...

    def status(self) -> dict[str, Any]:
        return {"kind": "static", "available": True, "nodes": len(self._addresses) + 1}

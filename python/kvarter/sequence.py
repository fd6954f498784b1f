"""A token sequence as a chain of digests, computed once and extended."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core
from .keys import Extra, Namespace

Digests = npt.NDArray[np.uint8]


class Sequence:
    """Tokens in one namespace, named by one digest for each full hash unit.

    tokens: ids, as a uint32 buffer or as integers. extras: (unit, tag, offset, bytes) for what else decides the
    bytes of a unit (DESIGN section 5), sorted by unit. Not thread-safe.
    """

    def __init__(
        self, namespace: Namespace, tokens: Iterable[int] | memoryview = (), extras: Seq[Extra] = ()
    ) -> None:
        self.namespace = namespace
        self._first_unit = 0
        self._last = _core.chain_root()
        self._parent = b""
        self._units = 0
        self._buffer: Digests = np.empty((0, 32), np.uint8)
        self._chains: dict[int, _core.Chain] = {}  # by namespace number; until the next unit
        self.seen_tokens = 0  # that the last match found, in whatever tier: somebody had them before
        self._rest = array("I")
        self.classes: npt.NDArray[np.uint16] | None = None  # of each unit, as the placement policy sees it
        self.told: Any = None  # what a node in another process knows of it
        self.extend(tokens, extras)

    @classmethod
    def from_digests(
        cls, namespace: Namespace, digests: Digests, first_unit: int = 0, parent: bytes = b""
    ) -> Sequence:
        """Digests uint8[n, 32] that an engine made; `parent` is the digest of unit `first_unit - 1`."""
        if first_unit and len(parent) != 32:
            raise ValueError(
                f"a sequence from unit {first_unit} on needs a parent digest of 32 bytes, not {len(parent)}"
            )
        self = cls(namespace)
        self._first_unit, self._parent = first_unit, parent
        if first_unit:
            self._last = parent
        self.append(np.ascontiguousarray(digests, np.uint8).reshape(-1, 32))
        return self

    def extend(self, tokens: Iterable[int] | memoryview, extras: Seq[Extra] = ()) -> None:
        """Appends tokens, none if it raises. `extras` name units that get complete here, counted from token 0."""
        rest = self._rest[:]
        rest.extend(tokens)
        unit_tokens, done = self.namespace.unit_tokens, self._first_unit + self._units
        full = len(rest) // unit_tokens
        if any(unit < done or unit >= done + full for unit, *_ in extras):
            raise ValueError(
                f"extras for units {[e[0] for e in extras]}; this call completes units {done} to {done + full}"
            )
        if full:
            here = [(unit - done, tag, offset, value) for unit, tag, offset, value in extras]
            tokens = rest[: full * unit_tokens]
            self.append(_core.chain_digests(tokens, unit_tokens, self._last, here or None))
        self._rest = rest[full * unit_tokens :]

    def in_namespace(self, namespace: Namespace) -> Sequence:
        """The same tokens in another namespace of the same hash units; digests do not depend on the rest of it."""
        if namespace.unit_tokens != self.namespace.unit_tokens:
            raise ValueError(
                f"units of {namespace.unit_tokens} tokens; the sequence has {self.namespace.unit_tokens}"
            )
        other = copy.copy(self)
        other.namespace = namespace
        other._buffer = self._buffer.copy()
        other._chains, other.told, other.classes = {}, None, None
        return other

    def append(self, digests: Digests) -> None:
        """Further units by digests uint8[n, 32] that somebody made. REQUIRES: no tokens of an incomplete unit."""
        units = self._units + len(digests)
        if units > len(self._buffer):  # the old buffer stays valid for the chains that look at it
            grown = np.empty((max(units, 2 * len(self._buffer)), 32), np.uint8)
            grown[: self._units] = self._buffer[: self._units]
            self._buffer = grown
        self._chains = {}
        self._buffer[self._units : units] = digests
        self._units = units
        if units:
            self._last = digests[-1].tobytes() if len(digests) else self._last

    @property
    def units(self) -> int:
        """Full hash units from token 0 on, those before a given parent included."""
        return self._first_unit + self._units

    @property
    def first_unit(self) -> int:
        """The first unit whose digest is known."""
        return self._first_unit

    @property
    def parent(self) -> bytes:
        """Digest of the unit before that; empty when there is none."""
        return self._parent

    @property
    def from_start(self) -> bool:
        """Whether the digests of all units from token 0 on are known."""
        return self._first_unit == 0

    @property
    def num_tokens(self) -> int:
        """Tokens from token 0 on, the incomplete last unit included."""
        return self.units * self.namespace.unit_tokens + len(self._rest)

    @property
    def digests(self) -> Digests:
        """uint8[n, 32], read-only, of the units from the first known one on."""
        view = self._buffer[: self._units]
        view.flags.writeable = False
        return view

    def chain(self, ns: int) -> _core.Chain:
        """What an index or a log looks at; valid as it is now, also after `extend`."""
        chain = self._chains.get(ns)
        if chain is None:
            chain = self._chains[ns] = _core.Chain(ns, self.digests, self._first_unit, self._parent)
        return chain

    def __repr__(self) -> str:
        return f"<Sequence {self.num_tokens} tokens, {self.units} units of {self.namespace.unit_tokens}>"

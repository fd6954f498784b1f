"""What a full disk takes: a chunk that is offered again."""

from __future__ import annotations

from collections import OrderedDict

from ... import _core
from ...tiers.log import is_full

_REMEMBERED = 1 << 16  # chunks that were refused once


class Admission:
    """While there is room, everything; after that the second offer. The chunks of a prefix are offered at least as
    often as those that lean on them. Not thread-safe."""

    def __init__(self, log: _core.DiskLog, admit_all: bool) -> None:
        self._log, self._all = log, admit_all
        self._refused: OrderedDict[bytes, None] = OrderedDict()

    def admitted(self, keys: list[bytes]) -> list[int]:
        """Which of the keys, by their numbers."""
        if self._all or not is_full(self._log):
            return list(range(len(keys)))
        return [at for at, key in enumerate(keys) if self._seen(key)]

    def _seen(self, key: bytes) -> bool:
        seen = key in self._refused
        self._refused[key] = None
        self._refused.move_to_end(key)
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        return seen

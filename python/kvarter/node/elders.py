"""Processes of before: what they may still write is nobody's until they cannot any more."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable

from .. import _core


class Elders:
    """Processes that mapped the pool for a node before this one. What they may still be writing is quarantined until
    each is dead, or has attached here and said that it copies nothing from before."""

    def __init__(self, door: _core.EmbeddedNode, index: _core.Index, elders: Iterable[int]) -> None:
        self._door, self._index = door, index
        self._before = index.first_epoch - 1
        self._asked: set[int] = set()  # owners
        self._pidfds: dict[int, int] = {}
        for pid in elders:
            with contextlib.suppress(ProcessLookupError):
                self._pidfds[pid] = os.pidfd_open(pid)
        self._over = not index.last_owner

    @property
    def left(self) -> frozenset[int]:
        """Those that are neither dead nor here."""
        return frozenset(self._pidfds)

    def look(self, engines: list[tuple[int, str, int, int, bool, list[int]]]) -> None:
        """Asks those that are here, and frees what nobody can be writing any more."""
        if self._over:
            return
        for owner, _, ranks, attached, _, pids in engines:
            if attached < ranks:
                continue
            if owner not in self._asked:
                self._asked.add(owner)
                self._door.fence(owner, self._before)
            elif (self._door.fenced(owner) or 0) >= self._before:
                for pid in pids:
                    self._forget(pid)
        if self._pidfds:
            for pidfd in select.select(list(self._pidfds.values()), [], [], 0)[0]:
                self._forget(next(pid for pid, fd in self._pidfds.items() if fd == pidfd))
        if not self._pidfds:
            for owner in range(1, self._index.last_owner + 1):
                self._index.owner_dead(owner)
            self._over = True

    def _forget(self, pid: int) -> None:
        if (pidfd := self._pidfds.pop(pid, None)) is not None:
            os.close(pidfd)

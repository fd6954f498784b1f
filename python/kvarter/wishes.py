"""What callers know about the future of their sessions, as the placement policy is told."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .finding import Space
from .policy import CONTINUES, ENDS, HIGH, LOW, NO_HINT
from .policy.placement import Placement
from .sequence import Sequence

_MAX_HINTS = 4096
_ASKED, _MAX_SESSIONS = 1 << 12, 512  # requests and sessions that are remembered


@dataclass(frozen=True)
class Hint:
    """What a caller knows about a session's future. Kept; the placement policy weighs it."""

    session: str
    ends: bool = False
    returns_within: float | None = None
    priority: int = 0
    ttl: float | None = None
    said_at: float = 0.0

    def code(self, now: float) -> int:
        """What a policy is told at `now` seconds; a promise whose time is over says nothing any more."""
        if self.ends:
            return ENDS
        if self.returns_within is not None:
            return CONTINUES if now <= self.said_at + self.returns_within else NO_HINT
        return HIGH if self.priority > 0 else LOW if self.priority < 0 else NO_HINT


class Wishes:
    """Hints by session, and what each session asked for last. Bounded: the oldest are forgotten."""

    def __init__(self, placement: Placement, seconds: Callable[[], float]) -> None:
        self._placement, self._seconds = placement, seconds
        self._hints: OrderedDict[str, Hint] = OrderedDict()
        self._last: OrderedDict[str, tuple[Space, Sequence, int]] = (
            OrderedDict()
        )  # the match, and its boundary
        self._asked = np.zeros(
            _ASKED, np.int64
        )  # hashes of requests that the policy knows, each at its place

    def __len__(self) -> int:
        return len(self._hints)

    def hint(self, session: str, **wishes: Any) -> tuple[Space, Sequence, int] | None:
        """Keeps a hint and tells the policy. The session's last match and its boundary, when they are to be pinned."""
        hint = self._hints[session] = Hint(session, said_at=self._seconds(), **wishes)
        self._hints.move_to_end(session)
        while len(self._hints) > _MAX_HINTS:
            self._hints.popitem(last=False)
        last = self._last.get(session)
        if last is None or not last[1].units:
            return None
        space, sequence, boundary = last
        self._placement.rehint(
            sequence, sequence.chain(space.above), space.geometry, hint.code(self._seconds())
        )
        return (space, sequence, boundary) if hint.ttl is not None and boundary else None

    def asked(
        self, space: Space, sequence: Sequence, boundary: int, request: str | None, session: str | None
    ) -> bool:
        """Tells the policy of a request, once; False when it knows."""
        if request is not None:
            name = hash(request)
            if self._asked[name % _ASKED] == name:
                return False
            self._asked[name % _ASKED] = name
        hint = NO_HINT
        if session is not None:
            self._last[session] = space, sequence, boundary
            self._last.move_to_end(session)
            while len(self._last) > _MAX_SESSIONS:
                self._last.popitem(last=False)
            if session in self._hints:
                hint = self._hints[session].code(self._seconds())
        units = boundary // space.geometry.unit_tokens
        self._placement.asked(sequence, sequence.chain(space.above), space.geometry, units, hint)
        return True

"""The load-or-recompute seam: whether fetching a hit pays against computing it again."""

from __future__ import annotations

from typing import Protocol


class LoadPolicy(Protocol):
    """Called once per hit on the engine's scheduler thread: answer at once, from what was measured before."""

    def worthwhile(self, tokens: int, nbytes: int) -> bool:
        """Whether to load `nbytes` of blocks instead of recomputing `tokens` tokens."""


class AlwaysLoad:
    """From host memory a load nearly always pays."""

    def worthwhile(self, tokens: int, nbytes: int) -> bool:
        return True

"""Policies as their papers state them: over single blocks, which know of no chain.

The replayer runs them so, which is what published numbers are of; a live store, and the replayer on demand, ranks
rows by `score` and keeps whole chains.
"""

from __future__ import annotations

from typing import ClassVar

from .base import Policy


class Textbook(Policy):
    """A policy that can also keep its own lists of blocks, by key."""

    one_order: ClassVar[bool] = False
    """All blocks of a request last to first; otherwise those here first, and then those that come."""

    def __contains__(self, key: int) -> bool:
        """Whether the block is in the cache."""
        raise NotImplementedError

    def access(self, key: int) -> None:
        """The block is used: it is in the cache afterwards."""
        raise NotImplementedError

    def request(self, keys: list[int]) -> None:
        """A request's blocks, at most `capacity`, in the order of the prompt. Heads outlive tails."""
        if self.one_order:
            for key in reversed(keys):
                self.access(key)
            return
        here = [key for key in keys if key in self]
        for key in reversed(here):
            self.access(key)
        known = set(here)
        for key in reversed(keys):
            if key not in known:
                self.access(key)

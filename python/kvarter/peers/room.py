"""Bytes under way with one peer: no more than so many, in turn."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """For one event loop. One who wants more than there is at all waits until he is alone."""

    def __init__(self, most: int) -> None:
        self._most, self.used = most, 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, nbytes: int) -> None:
        if not self._queue and self._fits(nbytes):
            self.used += nbytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((nbytes, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn came as it was given up
                self.leave(nbytes)
            raise

    def leave(self, nbytes: int) -> None:
        self.used -= nbytes
        while self._queue and (self._queue[0][1].done() or self._fits(self._queue[0][0])):
            wanted, turn = self._queue.popleft()
            if not turn.done():
                self.used += wanted
                turn.set_result(None)

    def _fits(self, nbytes: int) -> bool:
        return not self.used or self.used + nbytes <= self._most

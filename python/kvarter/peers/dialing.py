"""Whom a node seeks: dialed again and again, ever more rarely, for as long as somebody wants them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import ConfigError
from .link import BROKEN, Myself
from .pulse import Backoff

logger = logging.getLogger("kvarter.peers")
_FAULTS = 5.0  # seconds between warnings of one address


class Dialing:
    """On the loop's thread. dial: makes a link to a host and port, and comes back when it is over. start: runs a
    coroutine."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dial: Callable[[str, int], Awaitable[None]],
        start: Callable[[Any], None],
    ) -> None:
        self._loop, self._dial, self._start = loop, dial, start
        self._wanted: dict[str, float] = {}  # address -> until when, by the loop's clock
        self._sought: set[str] = set()
        self._closed = False

    def seek(self, address: str, seconds: float = float("inf")) -> None:
        """That HOST:PORT is wanted for so long."""
        until = self._loop.time() + seconds
        self._wanted[address] = max(self._wanted.get(address, 0.0), until)
        if address not in self._sought and not self._closed:
            self._sought.add(address)
            self._start(self._keep(address))

    def wants(self, address: str) -> bool:
        """Whether somebody does."""
        return not self._closed and self._wanted.get(address, 0.0) > self._loop.time()

    def seeks(self, address: str) -> bool:
        """Whether it is being dialed, or was reached."""
        return address in self._sought

    def close(self) -> None:
        """Nobody is wanted any more."""
        self._closed = True

    async def _keep(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        backoff, warned = Backoff(), -_FAULTS
        try:
            while self.wants(address):
                try:
                    await self._dial(host, int(port))
                    backoff.reset()
                except (*BROKEN, ConfigError, ValueError) as error:
                    if self._loop.time() - warned >= _FAULTS:
                        warned = self._loop.time()
                        logger.warning("no link to the peer at %s: %s", address, said(error))
                    if isinstance(error, Myself):
                        return
                except Exception:
                    logger.exception("a link to %s is given up", address)
                await asyncio.sleep(backoff.next())
        finally:
            self._sought.discard(address)
            if not self.wants(address):
                self._wanted.pop(address, None)


def said(error: BaseException) -> str:
    """Its words; of one without any, its name."""
    return str(error) or type(error).__name__

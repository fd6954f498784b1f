"""Who may have what, in Redis or Valkey, one server or a cluster: DIRECTORY.md beside this file."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from .. import _core
from .breaker import Breaker
from .directory import Prefix
from .meeting import Meeting
from .redis_client import Terms, connector

logger = logging.getLogger("kvarter.peers")
_PREFIX = "kvarter:1:"
_NODES = _PREFIX + "{nodes}"
_MOST_TOLD = 1 << 16  # positions that are remembered as told
_MOST_WAITING = 1 << 14  # and that wait to be
_BATCH = 1024
_AT_ONCE = 8  # look-ups under way
_TELL_SECONDS = 0.2

Result = TypeVar("Result")


class RedisDirectory:
    """At `url`: redis://, rediss:// or redis+cluster://HOST:PORT. Raises `ConfigError` when the package is missing or
    the URL is none. A server that is not there is no error."""

    def __init__(self, url: str, terms: Terms | None = None, clock: _core.Clock | None = None) -> None:
        self._terms = terms or Terms()
        self.stride = self._terms.stride
        self._connect = connector(url, self._terms.patience)
        self._client: Any = None
        self._breaker = Breaker(clock or _core.SteadyClock())
        self._told: OrderedDict[str, float] = OrderedDict()  # position -> when, by the loop's clock
        self._waiting: dict[str, None] = {}
        self._living: frozenset[str] = frozenset()
        self._address = ""
        self._joined = False  # our lease stood at its last renewal
        self._looks = asyncio.Semaphore(_AT_ONCE)
        self._removals: set[asyncio.Future[Any]] = set()
        self.counts = Counter(
            dict.fromkeys(("looks", "failed", "skipped", "told", "dropped", "forgotten"), 0)
        )

    # --- the seam

    def begin(self, meeting: Meeting, address: str) -> None:
        self._address, self._client = address, self._connect()
        meeting.start(self._renew())
        meeting.start(self._tell())

    def nodes(self) -> list[str]:
        return sorted(self._living - {self._address})

    async def whom(self, prefix: Prefix, above: int) -> list[str]:
        marks = [
            (units, _key(prefix, mark))
            for units, mark in prefix.marks(self._terms.stride, above, prefix.units)
        ]
        if not marks:
            return []
        self.counts["looks"] += 1

        async def ask() -> Any:
            pipeline = self._client.pipeline(transaction=False)
            for _, key in marks:
                pipeline.zrevrange(key, 0, self._terms.holders - 1)
            return await pipeline.execute()

        async with self._looks:
            answers = await self._try(ask)
        furthest: dict[str, int] = {}
        for (units, _), members in zip(marks, answers or (), strict=False):
            furthest.update((_text(member), units) for member in members)
        found = [address for address in furthest if address in self._living and address != self._address]
        return sorted(found, key=lambda address: -furthest[address])

    def have(self, prefix: Prefix, units: int) -> None:
        again = asyncio.get_running_loop().time() - self._terms.ttl / 2
        for _, mark in prefix.marks(self._terms.stride, 0, units):
            key = _key(prefix, mark)
            if self._told.get(key, again) > again:
                continue
            if len(self._waiting) >= _MOST_WAITING:
                self.counts["dropped"] += 1
            else:
                self._waiting[key] = None

    def not_at(self, address: str, prefix: Prefix, above: int) -> None:
        keys = [_key(prefix, mark) for _, mark in prefix.marks(self._terms.stride, above, prefix.units)]
        self.counts["forgotten"] += len(keys)

        async def remove() -> None:
            pipeline = self._client.pipeline(transaction=False)
            for key in keys:
                pipeline.zrem(key, address)
            await pipeline.execute()

        task = asyncio.ensure_future(self._try(remove))
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    def status(self) -> dict[str, Any]:
        available = self._joined and self._breaker.closed
        return {"kind": "redis", "available": available, "nodes": len(self._living), **self.counts}

    # --- the server

    async def _try(self, call: Callable[[], Awaitable[Result]]) -> Result | None:
        """None when there is no answer in time, or none is to be hoped for."""
        if not self._breaker.allows():
            self.counts["skipped"] += 1
            return None
        try:
            async with asyncio.timeout(self._terms.patience):
                result = await call()
        except Exception as error:  # the client's own kinds, OSError, timeouts: all the same here
            if self._breaker.closed:
                logger.warning("the directory does not answer: %s: %s", type(error).__name__, error)
            self.counts["failed"] += 1
            self._breaker.failed()
            return None
        self._breaker.succeeded()
        return result

    async def _renew(self) -> None:
        """Keeps our own lease, and knows whose stand, until the meeting ends."""
        ttl = max(int(self._terms.lease * 1000), 1)
        listed = 0.0

        async def join() -> Any:
            pipeline = self._client.pipeline(transaction=False)
            pipeline.set(_node(self._address), b"1", px=ttl, get=True)
            pipeline.sadd(_NODES, self._address)
            return await pipeline.execute()

        loop = asyncio.get_running_loop()
        try:
            while True:
                answers = await self._try(join)
                if answers is not None:
                    if answers[0] is None and self._joined:  # it was emptied, or we were away for too long
                        self._told.clear()
                    self._joined = True
                    if not listed or loop.time() - listed >= self._terms.lease / 2:
                        listed = loop.time()
                        await self._list()
                await asyncio.sleep(
                    min(self._terms.lease / 5, 0.25 if answers is None else self._terms.lease)
                )
        finally:  # the meeting ends; so will our lease, by itself
            with contextlib.suppress(Exception):  # of a server that is gone
                await asyncio.wait_for(self._client.aclose(), self._terms.patience)

    async def _list(self) -> None:
        members = await self._try(lambda: self._client.smembers(_NODES))
        if not members:
            return
        names = sorted(map(_text, members))
        leases = await self._try(lambda: self._client.mget([_node(name) for name in names]))
        if leases is None:
            return
        self._living = frozenset(name for name, lease in zip(names, leases, strict=True) if lease is not None)
        gone = [name for name in names if name not in self._living]
        if gone:
            await self._try(lambda: self._client.srem(_NODES, *gone))

    async def _tell(self) -> None:
        """What this node has, in batches: not a call for each prompt."""
        while True:
            await asyncio.sleep(_TELL_SECONDS)
            batch = list(self._waiting)[:_BATCH]
            if not batch or not self._joined:
                continue
            now, ttl = time.time(), max(int(self._terms.ttl * 1000), 1)

            async def tell(batch: list[str] = batch, now: float = now, ttl: int = ttl) -> bool:
                pipeline = self._client.pipeline(transaction=False)
                for key in batch:
                    pipeline.zadd(key, {self._address: now})
                    pipeline.zremrangebyrank(key, 0, -self._terms.holders - 1)
                    pipeline.pexpire(key, ttl)
                await pipeline.execute()
                return True

            if not await self._try(tell):
                continue
            self.counts["told"] += len(batch)
            when = asyncio.get_running_loop().time()
            for key in batch:
                self._waiting.pop(key, None)
                self._told[key] = when
                self._told.move_to_end(key)
            while len(self._told) > _MOST_TOLD:
                self._told.popitem(last=False)


def _node(address: str) -> str:
    return f"{_NODES}:{address}"


def _key(prefix: Prefix, mark: bytes) -> str:
    """Of one position; the tag lets a cluster spread the positions of a prompt, and keeps what is of one together."""
    return f"{_PREFIX}{{{hashlib.sha256(prefix.namespace + mark).hexdigest()[:32]}}}"


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

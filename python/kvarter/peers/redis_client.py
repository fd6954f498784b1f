"""A client of Redis or Valkey that gives up soon, and on what terms a directory is kept there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError

CLUSTER = "redis+cluster"


@dataclass(frozen=True)
class Terms:
    """stride: tokens between positions. lease: seconds that a node's membership outlives it. ttl: and a position that
    nobody confirms. patience: seconds that one call may take. holders: nodes told of for a position."""

    stride: int = 2048
    lease: float = 10.0
    ttl: float = 3600.0
    patience: float = 0.1
    holders: int = 8


def connector(url: str, patience: float) -> Callable[[], Any]:
    """Makes a client, on the thread that will use it. Raises `ConfigError` for no URL, or without the package."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.cluster import RedisCluster
        from redis.asyncio.connection import parse_url
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError:
        raise ConfigError(
            'a directory in Redis needs its client, which is not installed: pip install "kvarter[redis]"'
        ) from None
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("redis", "rediss", CLUSTER):
        raise ConfigError(f"directory {url!r}; expected redis://, rediss:// or {CLUSTER}://HOST:PORT")
    kind: Any
    kind, plain = (RedisCluster, f"redis://{rest}") if scheme == CLUSTER else (Redis, url)
    options = {"socket_timeout": patience, "socket_connect_timeout": patience}
    try:
        parse_url(plain)
    except ValueError as error:
        raise ConfigError(f"directory {url!r}: {error}") from None
    return lambda: kind.from_url(plain, retry=Retry(NoBackoff(), 0), **options)

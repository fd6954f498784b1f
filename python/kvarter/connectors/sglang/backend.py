"""The class that SGLang loads. Every failure below it is a page that is not stored, or not found."""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import numpy as np
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult
from sglang.version import __version__ as sglang_version

from ...config import Config, disabled
from ...errors import ConfigError, UnsupportedEngine
from .. import SUPPORTED_SGLANG
from .identity import Identity, sequence, server_arguments
from .metrics import Series, interval
from .pages import Pages, Tensors, pages_of
from .session import Session

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorageConfig,
        HiCacheStorageExtraInfo,
        PoolTransfer,
    )

logger = logging.getLogger("kvarter.sglang")
# What SGLang reads in the backend's settings itself, and leaves there.
_SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1", "allocator")
_KV = "kv"
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _never_raises(nothing: Callable[..., Any]) -> Callable[[_Call], _Call]:
    """What raises answers as if nothing were stored. Older SGLangs lose their thread to an exception."""

    def wrap(call: _Call) -> _Call:
        @functools.wraps(call)
        def safe(self: Any, first: Any = None, *args: Any, **kwargs: Any) -> Any:
            try:
                return call(self, first, *args, **kwargs)
            except Exception as error:
                self.complain(call.__name__, error)
                return nothing(first)

        return safe  # type: ignore[return-value]

    return wrap


def _each_false(keys: Seq[Any]) -> list[bool]:
    return [False] * len(keys)


def _each_transfer_false(transfers: Seq[PoolTransfer]) -> dict[Any, list[bool]]:
    return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}


class KvarterHiCache(HiCacheStorage):
    """Kvarter beneath one rank of SGLang. With `KVARTER_DISABLE=1` it does nothing at all.

    storage_config.extra_config holds the settings (`kvarter.config.Config`) beside SGLang's own. Raises, so that the
    server does not start or the attach fails, for settings that are wrong, an SGLang of another version, a node that is
    not there, and more ranks than one without a node. No other call raises.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        self._storage = storage_config
        self._session: Session | None = None
        self._pools: dict[str, tuple[Any, Pages]] = {}
        self._complaints: set[tuple[str, str]] = set()
        said = dict(storage_config.extra_config or {})
        self._in_place = bool(said.get("interface_v1", 0))
        if disabled():
            logger.warning("KVARTER_DISABLE is set: nothing is cached")
            return
        if sglang_version.split(".")[:3] != SUPPORTED_SGLANG.split("."):
            raise UnsupportedEngine(
                f"SGLang {sglang_version} is installed; this version of Kvarter supports {SUPPORTED_SGLANG}"
            )
        self._config = Config.load({name: value for name, value in said.items() if name not in _SGLANGS})
        ranks = storage_config.tp_size * storage_config.pp_size * storage_config.attn_cp_size
        if ranks > 1 and self._config.node is None:
            raise ConfigError(
                f"this engine has {ranks} ranks, each with a backend of its own, and no node is named: start `kvarter "
                "serve` and set node"
            )
        if storage_config.should_split_heads:
            raise UnsupportedEngine(
                "tp_lcm_size splits pages by heads, which this version of Kvarter does not store"
            )
        self._identity = Identity(storage_config, self._config, server_arguments())
        self._session = Session(
            self._config, f"sglang-{os.getpid()}-{uuid4().hex[:8]}-tp{storage_config.tp_rank}"
        )
        self._series = Series(storage_config) if storage_config.enable_storage_metrics else None
        self._interval = interval()

    # --- what SGLang registers

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        if mem_pool_host.kv_buffer is None:
            raise UnsupportedEngine(
                f"the host pool is a {type(mem_pool_host).__name__} without memory of its own, which this version of "
                "Kvarter does not store"
            )
        self._register(_KV, mem_pool_host)
        if not self._in_place:
            _, pages = self._pools[_KV]
            self._pools[_KV] = mem_pool_host, Tensors(pages.bytes)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if str(host_pool_name) != _KV:
            self._register(str(host_pool_name), host_pool)

    def _register(self, name: str, pool: Any) -> None:
        pages = pages_of(pool)
        self._pools[name] = pool, pages
        logger.info(
            "pool %s: %s, pages of %d bytes as %s", name, type(pool).__name__, pages.bytes, pages.form
        )

    def on_host_pools_registered(self) -> None:
        """Waits for the node and for the weights' fingerprint, so that the first request finds both."""
        if self._session is None:
            return
        self._identity.wait(self._config.load_seconds)
        if not self._session.wait(self._config.load_seconds):
            logger.warning("the pool is not mapped yet; nothing is cached until it is")

    # --- what is stored

    @_never_raises(lambda _: 0)
    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        return self._leading(keys, extra_info)

    @_never_raises(lambda _: PoolTransferResult.empty())
    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        pages = self._leading(keys, extra_info)
        found: dict[Any, int] = {_KV: pages} if pages else {}
        lengths = np.arange(1, pages + 1)
        for transfer in pool_transfers or ():
            if not len(lengths) or transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue  # such groups are another form of the pages, and say nothing about them
            there = self._there(str(transfer.name), keys[:pages])
            needed = len(transfer.keys or ()) or 1
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                needed = pages
            # Of each length, whether the last `needed` pages, or as many as there are, are there.
            gaps = np.concatenate(([0], np.cumsum(~there)))
            restorable = gaps[1:] == gaps[np.maximum(np.arange(1, pages + 1) - needed, 0)]
            own = np.flatnonzero(restorable) + 1
            if len(own):
                found[transfer.name] = int(own[-1])
            lengths = np.intersect1d(lengths, own)
        return PoolTransferResult(int(lengths[-1]) if len(lengths) else 0, found, lengths.tolist())

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) > 0

    # --- pages in SGLang's own pools

    @_never_raises(_each_false)
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._put(_KV, keys, self._numbers(_KV, host_indices), _before(extra_info))

    @_never_raises(_each_false)
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._get(_KV, keys, self._numbers(_KV, host_indices), _before(extra_info))

    @_never_raises(_each_transfer_false)
    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        return self._each(self._put, transfers)

    @_never_raises(_each_transfer_false)
    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        return self._each(self._get, transfers)

    def _each(self, call: Callable[..., list[bool]], transfers: list[PoolTransfer]) -> dict[Any, list[bool]]:
        done = {}
        for transfer in transfers:
            keys, indices = transfer.keys or [], transfer.host_indices
            name = str(transfer.name)
            size = self._pools[name][0].page_size if name in self._pools else 0
            if not size or indices is None or indices.numel() != len(keys) * size:
                done[transfer.name] = [False] * len(keys)
            else:
                done[transfer.name] = call(name, keys, self._numbers(name, indices), None)
        return done

    # --- pages that SGLang hands over

    @_never_raises(lambda _: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all(self._put(_KV, keys, list(values), None))

    @_never_raises(lambda keys: [None] * len(keys))
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        loaded = self._get(_KV, keys, list(target_locations), None)
        return [target if ok else None for ok, target in zip(loaded, target_locations, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        found: torch.Tensor | None = self.batch_get([key], [target_location])[0]
        return found

    # --- the rest

    @_never_raises(lambda _: None)
    def clear(self, _: None = None) -> None:
        """Nothing of this engine's namespaces is served or stored any more, by any engine that shares them."""
        if self._session is not None:
            for namespace in self._identity.known():
                self._session.store.invalidate(namespace)

    @_never_raises(lambda _: None)
    def get_stats(self, _: None = None) -> Any:
        """SGLang's StorageMetrics since the last call; the `kvarter_*` series are brought up to date, too."""
        if self._session is None:
            return None
        if self._series is not None:
            self._series.update(self._session)
        return self._interval(self._session)

    def close(self) -> None:
        """Idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
            self._pools.clear()

    def complain(self, call: str, error: Exception) -> None:
        """Once for each kind of error."""
        if (call, type(error).__name__) not in self._complaints:
            self._complaints.add((call, type(error).__name__))
            logger.exception("%s failed and answers as if nothing were stored", call)

    # --- names and places

    def _numbers(self, name: str, host_indices: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Page numbers of token indices."""
        size = self._pools[name][0].page_size
        numbers: np.ndarray[Any, np.dtype[np.int64]] = host_indices.numpy()[::size] // size
        return numbers

    def _sequence(self, name: str, keys: list[str], before: list[str] | None) -> Any:
        """The pages in their chain where SGLang says what is before them, else each by itself."""
        pool, pages = self._pools[name]
        namespace = self._identity.namespace(name, pool, pages.form, pages.bytes, before is not None)
        return sequence(namespace, keys, before or ()) if namespace is not None else None

    def _leading(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None) -> int:
        """SGLang says None for no pages before, and also when it never says what is before."""
        session, before = self._session, _before(extra_info)
        if session is None or not keys or (chain := self._sequence(_KV, keys, before or [])) is None:
            return 0
        count = session.leading(chain, keys[0])
        if not count and not before:
            count = int(np.argmin(np.append(session.there(self._sequence(_KV, keys, None)), False)))
        return count

    def _there(self, name: str, keys: list[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
        chain = self._sequence(name, keys, None) if name in self._pools else None
        if self._session is None or chain is None:
            return np.zeros(len(keys), np.bool_)
        return self._session.there(chain)

    def _shard(self, name: str) -> int:
        return self._storage.tp_rank if self._identity.shards(name) > 1 else 0

    def _put(self, name: str, keys: list[str], at: Any, before: list[str] | None) -> list[bool]:
        session = self._session
        if session is None or not keys or (chain := self._sequence(name, keys, before)) is None:
            return [False] * len(keys)
        begun = time.monotonic()
        pages, shard = self._pools[name][1], self._shard(name)
        stored = session.put(chain, pages, at, shard, begun + self._config.store_seconds)
        session.count_call("put", stored, pages.bytes, begun)
        return [bool(ok) for ok in stored]

    def _get(self, name: str, keys: list[str], at: Any, before: list[str] | None) -> list[bool]:
        session = self._session
        if session is None or not keys or (chain := self._sequence(name, keys, before)) is None:
            return [False] * len(keys)
        begun = time.monotonic()
        pages, shard = self._pools[name][1], self._shard(name)
        if before is None and name == _KV and not session.there(chain)[:1].any():
            chain = self._sequence(name, keys, [])  # another engine may have said where they belong
        loaded = session.get(chain, pages, at, shard, begun + self._config.load_seconds)
        session.count_call("get", loaded, pages.bytes, begun)
        return [bool(ok) for ok in loaded]


def _before(extra_info: HiCacheStorageExtraInfo | None) -> list[str] | None:
    return None if extra_info is None else extra_info.prefix_keys

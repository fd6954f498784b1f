"""The class that SGLang loads. Every failure below it is a page that is not stored, or not found."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult
from sglang.version import __version__ as sglang_version

from ...config import Config, disabled
from ...errors import ConfigError, UnsupportedEngine
from .. import SUPPORTED_SGLANG
from .metrics import Series, interval
from .rank import KV, Rank

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
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _or(nothing: Callable[[Any], Any]) -> Callable[[_Call], _Call]:
    """A call that answers `nothing`, made of its first argument, when it raises and where there is no rank: older
    SGLangs lose their thread to an exception."""

    def wrap(call: _Call) -> _Call:
        @functools.wraps(call)
        def safe(self: KvarterHiCache, first: Any = None, *args: Any, **kwargs: Any) -> Any:
            rank = self._rank
            if rank is None:
                return nothing(first)
            try:
                return call(self, first, *args, **kwargs)
            except Exception as error:
                self._complain(call.__name__, error)
                return nothing(first)

        return safe  # type: ignore[return-value]

    return wrap


def _all_false(keys: Seq[Any]) -> list[bool]:
    return [False] * len(keys)


class KvarterHiCache(HiCacheStorage):
    """Kvarter beneath one rank of SGLang. With `KVARTER_DISABLE=1` it does nothing at all.

    storage_config.extra_config holds the settings (`kvarter.config.Config`) beside SGLang's own. Raises, so that the
    server does not start or the attach fails, for settings that are wrong, an SGLang of another version, a node that is
    not there, and more ranks than one without a node. No call raises after that. Thread-safe.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        self._rank: Rank | None = None
        self._complaints: set[tuple[str, str]] = set()
        said = dict(storage_config.extra_config or {})
        self._handed_over = not said.get("interface_v1", 0)
        if disabled():
            logger.warning("KVARTER_DISABLE is set: nothing is cached")
            return
        if sglang_version.split("+")[0].split(".")[:3] != SUPPORTED_SGLANG.split("."):
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
        if self._config.disk.straight and (self._config.node is not None or self._handed_over):
            raise ConfigError(
                "disk.straight is for a rank that has no node and whose pages stay where they lie: unset node, and set "
                "interface_v1; or unset disk.straight"
            )
        if storage_config.should_split_heads:
            raise UnsupportedEngine(
                "tp_lcm_size splits pages by heads, which this version of Kvarter does not store"
            )
        self._rank = Rank(storage_config, self._config)
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
        if self._rank is not None:
            found = self._rank.add(KV, mem_pool_host, handed_over=self._handed_over)
            logger.info("pool %s: %s", KV, found)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if self._rank is not None and name != KV:
            logger.info("pool %s: %s", name, self._rank.add(name, host_pool))

    def on_host_pools_registered(self) -> None:
        """Waits for the node and for the weights' fingerprint, so that the first request finds both."""
        if self._rank is not None and not self._rank.wait(self._config.load_seconds):
            logger.warning("the pool is not mapped yet; nothing is cached until it is")

    # --- what is stored

    @_or(lambda _: 0)
    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        return self._its.leading(keys, _before(extra_info))

    @_or(lambda _: PoolTransferResult.empty())
    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        pages = self._its.leading(keys, _before(extra_info))
        found: dict[Any, int] = {KV: pages} if pages else {}
        lengths = np.arange(1, pages + 1)
        restorable = lengths
        for transfer in pool_transfers or ():
            if not len(restorable) or transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue  # such groups are another form of the pages, and say nothing about them
            needed = len(transfer.keys or ()) or 1
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                needed = pages
            missing = np.concatenate(([0], np.cumsum(~self._its.there(str(transfer.name), keys[:pages]))))
            # The lengths whose last `needed` pages, or as many as there are, are all there.
            own = lengths[missing[lengths] == missing[np.maximum(lengths - needed, 0)]]
            if len(own):
                found[transfer.name] = int(own[-1])
            restorable = np.intersect1d(restorable, own)
        return PoolTransferResult(int(restorable[-1]) if len(restorable) else 0, found, restorable.tolist())

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) > 0

    # --- pages in SGLang's own pools

    @_or(_all_false)
    def batch_set_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._move(self._its.put, KV, keys, host_indices, _before(extra_info))

    @_or(_all_false)
    def batch_get_v1(
        self, keys: list[str], host_indices: torch.Tensor, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        return self._move(self._its.get, KV, keys, host_indices, _before(extra_info))

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        return {transfer.name: self._set_beside(transfer.keys or [], transfer) for transfer in transfers}

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[Any, list[bool]]:
        return {transfer.name: self._get_beside(transfer.keys or [], transfer) for transfer in transfers}

    @_or(_all_false)
    def _set_beside(self, keys: list[str], transfer: PoolTransfer) -> list[bool]:
        return self._move(self._its.put, str(transfer.name), keys, transfer.host_indices, None)

    @_or(_all_false)
    def _get_beside(self, keys: list[str], transfer: PoolTransfer) -> list[bool]:
        return self._move(self._its.get, str(transfer.name), keys, transfer.host_indices, None)

    def _move(
        self,
        call: Callable[..., list[bool]],
        name: str,
        keys: list[str],
        indices: Any,
        before: list[str] | None,
    ) -> list[bool]:
        numbers = self._its.numbers(name, keys, indices)
        return call(name, keys, numbers, before) if numbers is not None else [False] * len(keys)

    # --- pages that SGLang hands over

    @_or(lambda _: False)
    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all(self._its.put(KV, keys, list(values), None))

    @_or(lambda keys: [None] * len(keys))
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[torch.Tensor | None]:
        loaded = self._its.get(KV, keys, list(target_locations), None)
        return [target if ok else None for ok, target in zip(loaded, target_locations, strict=True)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> torch.Tensor | None:
        found: torch.Tensor | None = self.batch_get([key], [target_location])[0]
        return found

    # --- the rest

    @_or(lambda _: None)
    def clear(self, _: None = None) -> None:
        """Nothing of this engine's namespaces is served or stored any more, by any engine that shares them."""
        self._its.clear()

    @_or(lambda _: None)
    def get_stats(self, _: None = None) -> Any:
        """SGLang's StorageMetrics since the last call; the `kvarter_*` series are brought up to date, too."""
        if self._series is not None:
            self._series.update(self._its.session)
        return self._interval(self._its.session)

    def close(self) -> None:
        """Idempotent."""
        rank, self._rank = self._rank, None
        if rank is not None:
            rank.session.close()

    @property
    def _its(self) -> Rank:
        """Inside a call that is `_or` something."""
        if self._rank is None:  # closed meanwhile
            raise UnsupportedEngine("the backend is closed")
        return self._rank

    def _complain(self, call: str, error: Exception) -> None:
        """Once for each kind of error."""
        if (call, type(error).__name__) not in self._complaints:
            self._complaints.add((call, type(error).__name__))
            logger.exception("%s failed and answers as if nothing were stored", call)


def _before(extra_info: HiCacheStorageExtraInfo | None) -> list[str] | None:
    return None if extra_info is None else extra_info.prefix_keys

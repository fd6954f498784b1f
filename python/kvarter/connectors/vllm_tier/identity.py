"""Whose chunks these are: the namespace of an engine's chunks, keyed by the engine's own hashes."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.version import __version__ as vllm_version

from ...errors import ConfigError, UnsupportedEngine
from ...geometry import CacheGroup, Full, Geometry
from ...keys import Namespace
from ..vllm.identity import Identity
from ..vllm.layout import Groups

# Of 256 bits, and made so that nobody finds two prefixes with one hash.
_HASHES = ("sha256", "sha256_cbor")


class ChunkIdentity:
    """The namespace of an engine's chunks: that of the connector, and how vLLM cuts and names its chunks.

    vLLM's file tier has the model's name, dtype, groups and ranks in its path; here are the weights' fingerprint, what
    overrides the model's configuration, the layout and the engine's version as well.
    """

    def __init__(self, spec: Any, chunk_bytes: int, weights_id: str | None) -> None:
        """`spec`: vLLM's OffloadingSpec. Raises `UnsupportedEngine` for hashes that may collide, and `ConfigError`
        where nothing tells the weights."""
        config = spec.config
        groups = tuple(
            CacheGroup(
                name=f"{group.group_id}:{','.join(group.layer_names)}",
                lifetime=Full(),
                block_tokens=group.tokens_per_block * config.cache.blocks_per_chunk,
                shard_bytes=(chunk_bytes,),
            )
            for group in config.groups
        )
        self._groups = Groups(
            Geometry(config.cache.tokens_per_hash, groups),
            tuple(group.group_id for group in config.groups),
            tuple(tuple(group.layer_names) for group in config.groups),
        )
        self._chunk = ";".join(
            f"{name} {value}"
            for name, value in (
                ("blocks", config.cache.blocks_per_chunk),
                ("bytes", chunk_bytes),
                ("ranks", config.parallel.world_size),
                ("pcp", config.parallel.pcp_size),
                ("dcp", config.parallel.dcp_size),
                ("replicated", config.replicated_layout),
                ("canonical", config.canonical_layout),
                ("kv layout", config.kv_cache_layout),
            )
        )
        self._config, self._weights_id, self._hash = config, weights_id, "sha256"
        self._engine: Identity | None = None
        self.epoch = b""
        engine = engine_config()
        if engine is None:
            if weights_id is None:
                raise ConfigError(
                    "this vLLM does not show its configuration to a tier, so nothing tells its weights: set weights_id "
                    "to what names them, their quantization and the adapters"
                )
            return
        vllm_config, kv_config = engine
        self._hash = str(vllm_config.cache_config.prefix_caching_hash_algo)
        if self._hash not in _HASHES:
            raise UnsupportedEngine(
                f"prefix_caching_hash_algo is {self._hash!r}, whose hashes may collide: a hit could be another "
                f"prompt's; set it to one of {', '.join(_HASHES)}"
            )
        self._engine = Identity(vllm_config, kv_config, self._groups, weights_id)
        if vllm_config.lora_config is not None and weights_id is None:
            self.renew()  # the engine's hashes name an adapter, not its content: only this process can trust them

    @property
    def groups(self) -> int:
        """How many groups the engine has, by its numbers."""
        return max(self._groups.ids) + 1

    def error(self) -> str | None:
        """Why there will be no namespace, once that is known."""
        return self._engine.error() if self._engine is not None else None

    def renew(self) -> None:
        """The weights may have changed in place: a new epoch, equal to none before it."""
        if self._engine is not None:
            self._engine.renew()
            self.epoch = self._engine.epoch
        else:
            self.epoch = os.urandom(16)

    def namespace(self) -> Namespace | None:
        """None while the weights' fingerprint is being made, or before the engine has chosen its hashes' seed."""
        seed = getattr(kv_cache_utils, "NONE_HASH", None)
        base = self._engine.namespace(None) if self._engine is not None else self._vouched()
        if base is None or seed is None:
            return None
        return replace(
            base, layout=f"{base.layout};{self._chunk}", scheme=f"vllm {self._hash}", seed=bytes(seed)
        )

    def _vouched(self) -> Namespace:
        assert self._weights_id is not None
        parallel = self._config.parallel
        return Namespace(
            model=self._config.model.name,
            weights=self._weights_id,
            kv_dtype=self._config.model.dtype,
            layout=f"vllm {vllm_version}",
            groups=self._groups.geometry.groups,
            unit_tokens=self._groups.geometry.unit_tokens,
            shard_grid=(("tp", parallel.tp_size), ("pp", parallel.pp_size)),
            epoch=self.epoch,
        )


def engine_config() -> tuple[VllmConfig, KVCacheConfig] | None:
    """The configuration of the engine whose connector is making a tier just now.

    vLLM hands a tier a summary of it that names neither the revision of the weights nor their quantization nor what
    overrides the model's configuration; all of these change bytes. The connector that calls has the whole.
    """
    frame = sys._getframe(1)
    while frame is not None:
        names: Mapping[str, Any] = frame.f_locals
        found = names.get("vllm_config"), names.get("kv_cache_config")
        if isinstance(found[0], VllmConfig) and isinstance(found[1], KVCacheConfig):
            return found[0], found[1]
        frame = frame.f_back  # type: ignore[assignment]
    return None

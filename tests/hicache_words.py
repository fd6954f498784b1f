"""The language of the tests in tests/sglang/inside: SGLang's own host pools, and the backend of one rank over them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence as Seq
from typing import Any

import torch
from sglang.srt.mem_cache.device_pool_info import (
    KVBufferLayout,
    KVBuffers,
    MambaStateBufferInfo,
    MHABufferInfo,
    MLABufferInfo,
)
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

from kvarter.connectors.sglang import KvarterHiCache

PAGE, LAYERS, HEADS, DIM = 16, 2, 2, 32
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


def mha_pool(
    layout: str = "page_first",
    *,
    pages: int = 64,
    dtype: torch.dtype = torch.float32,
    page_tokens: int = PAGE,
    layers: int = LAYERS,
    heads: int = HEADS,
    dim: int = DIM,
    allocator: str = "default",
) -> Any:
    tokens = pages * page_tokens
    tensors = tuple(torch.zeros(tokens, heads, dim, dtype=dtype) for _ in range(layers))
    nothing = torch.zeros(layers, dtype=torch.int64)
    buffers = KVBuffers(
        k=tensors, v=tensors, k_data_ptrs=nothing, v_data_ptrs=nothing, layout=KVBufferLayout.NHD
    )
    info = MHABufferInfo(
        buffers=buffers,
        page_size=page_tokens,
        head_num=heads,
        head_dim=dim,
        v_head_dim=dim,
        dtype=dtype,
        device=torch.device("cpu"),
    )
    return MHATokenToKVPoolHost(
        info,
        1.0,
        0,
        page_tokens,
        layout,
        False,
        allocator_type=allocator,
        device_capacity_tokens=tokens,
        start_layer=0,
        end_layer=layers,
    )


def mla_pool(layout: str = "page_first", *, pages: int = 64) -> Any:
    info = MLABufferInfo(
        buffers=tuple(torch.zeros(pages * PAGE, 1, DIM + 8) for _ in range(LAYERS)),
        data_ptrs=torch.zeros(LAYERS, dtype=torch.int64),
        layer_indices=tuple(range(LAYERS)),
        device_layer_num=LAYERS,
        page_size=PAGE,
        kv_lora_rank=DIM,
        qk_rope_head_dim=8,
        kv_cache_dim=DIM + 8,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    layers = {"start_layer": 0, "end_layer": LAYERS, "target_layer_num": LAYERS}
    return MLATokenToKVPoolHost(
        info, 1.0, 0, PAGE, layout, False, device_capacity_tokens=pages * PAGE, **layers
    )


def mamba_pool(layout: str = "page_first", *, states: int = 32) -> Any:
    info = MambaStateBufferInfo(
        temporal=torch.zeros(LAYERS, states, 4, DIM), conv=(torch.zeros(LAYERS, states, DIM, 3),)
    )
    return MambaPoolHost(info, 1.0, 0, device_capacity=states, layout=layout, pin_memory=False)


def memory(pool: Any) -> torch.Tensor:
    """All of an attention pool's memory."""
    found: torch.Tensor = pool.kv_buffer
    return found


def fill(pool: Any, seed: int) -> None:
    """Other bytes everywhere for each seed."""
    generator = torch.Generator().manual_seed(seed)
    for buffer in buffers_of(pool):
        buffer.copy_(torch.rand(buffer.shape, generator=generator))


def buffers_of(pool: Any) -> list[torch.Tensor]:
    if isinstance(pool, MambaPoolHost):
        return [pool.temporal_buffer, *pool.conv_buffer]
    return [memory(pool)]


def page(pool: Any, number: int) -> torch.Tensor:
    """The bytes of a page as SGLang itself puts them together."""
    found: torch.Tensor = pool.get_data_page(number * pool.page_size, flat=True)
    return found.clone()


def indices(pool: Any, pages: Seq[int]) -> torch.Tensor:
    return torch.cat([torch.arange(pool.page_size) + number * pool.page_size for number in pages])


def keys(count: int, seed: object = 0) -> list[str]:
    """Digests as SGLang makes them: 64 hexadecimal digits each."""
    return [hashlib.sha256(f"{seed} {number}".encode()).hexdigest() for number in range(count)]


def after(before: list[str] | None) -> HiCacheStorageExtraInfo:
    return HiCacheStorageExtraInfo(prefix_keys=before)


def transfer(
    name: PoolName, pool: Any, its: list[str], pages: Seq[int], trailing: bool = True
) -> PoolTransfer:
    policy = PoolHitPolicy.TRAILING_PAGES if trailing else PoolHitPolicy.ALL_PAGES
    return PoolTransfer(name=name, host_indices=indices(pool, pages), keys=its, hit_policy=policy)


def rank_config(rank: int = 0, ranks: int = 1, *, mla: bool = False, **extra: Any) -> HiCacheStorageConfig:
    settings = {"backend_name": "kvarter", "module_path": "m", "class_name": "c", "interface_v1": 1}
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=ranks,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=mla,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name="some/model",
        extra_config={**settings, "weights_id": "these", "dram": "16MiB", **extra},
    )


def backend(pool: Any, sidecars: dict[Any, Any] | None = None, **settings: Any) -> KvarterHiCache:
    """Of one rank over this pool, as SGLang attaches it; it is ready."""
    made = KvarterHiCache(rank_config(**settings), {})
    made.register_mem_pool_host(pool)
    for name, sidecar in {PoolName.KV: pool, **(sidecars or {})}.items():
        made.register_mem_host_pool_v2(sidecar, name)
    made.on_host_pools_registered()
    return made


def put(backend: Any, pool: Any, names: list[str], before: list[str] | None, first: int = 0) -> list[bool]:
    pages = range(first, first + len(names))
    done: list[bool] = backend.batch_set_v1(names, indices(pool, pages), after(before))
    return done


def get(backend: Any, pool: Any, names: list[str], before: list[str] | None, first: int = 0) -> list[bool]:
    pages = range(first, first + len(names))
    done: list[bool] = backend.batch_get_v1(names, indices(pool, pages), after(before))
    return done

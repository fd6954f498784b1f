"""Lets SGLang's hierarchical cache copy between its device and host pools where the device is a CPU.

A plugin that SGLang loads itself (`sglang.srt.plugins`), for tests alone. It replaces what moves bytes between those
two pools, which SGLang has for GPUs only, by plain indexing, and drops the pinning of host memory. The tree, the
controller, its threads and the storage interface stay SGLang's own.
"""

from __future__ import annotations

from typing import Any


def register() -> None:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.mem_cache.pool_host import base
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # left free beside the pools: ten gigabytes otherwise
    made = base.HostKVCache.__init__

    def unpinned(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **{**kwargs, "pin_memory": False})

    base.HostKVCache.__init__ = unpinned
    MHATokenToKVPoolHost.backup_from_device_all_layer = _back_up
    MHATokenToKVPoolHost.load_to_device_per_layer = _load
    for step in ("extend", "decode"):
        forward, attend = f"forward_{step}", f"_run_sdpa_forward_{step}"
        setattr(TorchNativeAttnBackend, forward, _without_sinks(getattr(TorchNativeAttnBackend, forward)))
        setattr(TorchNativeAttnBackend, attend, _within_windows(getattr(TorchNativeAttnBackend, attend)))


def _without_sinks(forward: Any) -> Any:
    """Attention without sinks, for which SGLang's CPU code has no place. What a model says is then another thing, and
    the same each time."""

    def forward_without(*args: Any, sinks: Any = None, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    return forward_without


def _within_windows(attend: Any) -> Any:
    """A window's tokens are read from where they were written: SGLang's CPU code takes the places that they have in
    full attention, which are others once they have been loaded."""

    def attend_within(
        self: Any, query: Any, output: Any, keys: Any, values: Any, places: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if self.use_sliding_window_kv_pool and kwargs.get("sliding_window_size") is not None:
            places = self.token_to_kv_pool.translate_loc_from_full_to_swa(places)
        return attend(self, query, output, keys, values, places, *args, **kwargs)

    return attend_within


def _layer(pool: Any, buffer: Any, layer: int, tokens: Any) -> tuple[Any, Any]:
    """One layer of half a host pool, and how `tokens` index it."""
    page, within = tokens // pool.page_size, tokens % pool.page_size
    match pool.layout:
        case "layer_first":
            return buffer[layer], tokens
        case "page_first":
            return buffer[:, layer], tokens
        case "page_first_direct":
            return buffer[:, layer], (page, within)
        case "page_head":
            return buffer[:, :, :, layer], (page, slice(None), within)
    raise ValueError(f"host pools of layout {pool.layout!r} are not copied here")


def _back_up(pool: Any, device_pool: Any, host_indices: Any, device_indices: Any, io_backend: str) -> None:
    for layer in range(pool.layer_num):
        pairs = (pool.k_buffer, pool.device_k_buffers), (pool.v_buffer, pool.device_v_buffers)
        for host, device in pairs:
            there, index = _layer(pool, host, layer, host_indices.cpu())
            there[index] = device[layer][device_indices.cpu()]


def _load(
    pool: Any,
    device_pool: Any,
    host_indices: Any,
    device_indices: Any,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    if not is_draft and not 0 <= layer_id < pool.target_layer_num:
        return
    pairs = (pool.k_buffer, pool.device_k_buffers), (pool.v_buffer, pool.device_v_buffers)
    for host, device in pairs:
        there, index = _layer(pool, host, layer_id, host_indices.cpu())
        device[layer_id][device_indices.cpu()] = there[index]

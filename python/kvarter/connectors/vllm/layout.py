"""vLLM's cache groups and tensors in Kvarter's words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    group_kernel_blocks,
    iter_layer_specs,
)

from ... import _core
from ...errors import GeometryError, UnsupportedEngine
from ...geometry import CacheGroup, Chunked, Full, Geometry, Lifetime, State, Window

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec


@dataclass(frozen=True)
class Groups:
    """The engine's groups that are stored: `ids` are vLLM's numbers of `geometry.groups`, `layers` their layers."""

    geometry: Geometry
    ids: tuple[int, ...]
    layers: tuple[tuple[str, ...], ...]


def groups_of(config: KVCacheConfig, tp: int, pp: int = 1) -> Groups:
    """Every group that a prefix can be stored of, as if each of the `pp` stages of `tp` ranks had the layers that
    `config` names: `with_shards` corrects that. Scratch groups, which the engine itself does not look up, are left out.
    Raises `UnsupportedEngine` naming the first group of a kind that is not known here."""
    groups, ids, layers = [], [], []
    for number, group in enumerate(config.kv_cache_groups):
        if number not in config.prefix_cacheable_group_ids:
            continue
        groups.append(_group(number, group, tp, pp))
        ids.append(number)
        layers.append(tuple(group.layer_names))
    if not groups:
        raise UnsupportedEngine(
            f"none of the engine's {len(config.kv_cache_groups)} cache groups can be found by prefix"
        )
    unit = config.hash_block_size or groups[0].block_tokens
    return Groups(Geometry(unit, tuple(groups)), tuple(ids), tuple(layers))


def with_shards(groups: Groups, by_rank: Sequence[tuple[int, ...]]) -> Groups:
    """The groups with what each rank said that its shards have, `by_rank[rank][group]` bytes.

    Raises `GeometryError` when ranks that should hold the same bytes do not.
    """
    corrected = []
    for number, group in enumerate(groups.geometry.groups):
        nbytes = [of_rank[number] for of_rank in by_rank]
        shards = nbytes[:: group.copies]
        if [shards[group.shard_of(rank)] for rank in range(len(nbytes))] != nbytes:
            raise GeometryError(
                f"group {group.name!r}: {group.copies} ranks hold the same bytes, and they have {nbytes}"
            )
        corrected.append(replace(group, shard_bytes=tuple(shards)))
    return replace(groups, geometry=Geometry(groups.geometry.unit_tokens, tuple(corrected)))


def _group(number: int, group: KVCacheGroupSpec, tp: int, pp: int) -> CacheGroup:
    if not group.layer_names:
        raise UnsupportedEngine(
            f"a pipeline stage has no layer of cache group {number}; this version of Kvarter needs one in each stage"
        )
    specs = list(iter_layer_specs(group.kv_cache_spec))
    lifetimes = {_lifetime(number, group, spec) for spec in specs}
    if len(lifetimes) != 1:
        raise UnsupportedEngine(f"cache group {number} mixes {lifetimes}")
    one_for_all = len(specs) == 1
    nbytes = sum(spec.real_page_size_bytes for spec in specs) * (len(group.layer_names) if one_for_all else 1)
    # What a single shard holds is alike on every rank of a stage: a latent, or a state that is not split.
    alike = all(
        getattr(spec, "tp_replicated", False) or getattr(spec, "max_tp_shards", None) == 1 for spec in specs
    )
    copies = tp if alike else 1
    lifetime = lifetimes.pop()
    return CacheGroup(
        name=f"{type(lifetime).__name__.lower()}-{number}",
        lifetime=lifetime,
        block_tokens=group.kv_cache_spec.block_size,
        shard_bytes=(nbytes,) * (tp * pp // copies),
        copies=copies,
    )


def _lifetime(number: int, group: KVCacheGroupSpec, spec: KVCacheSpec) -> Lifetime:
    # Exact types: a subclass may keep its blocks in another way (R-SWA, sinks), and served as its base it would be
    # served wrongly.
    kind = type(spec).__name__
    if group.host_resident or group.is_eagle_group:
        raise UnsupportedEngine(
            f"cache group {number} ({kind}) is host-resident or of a draft model; not served yet"
        )
    if type(spec) in (FullAttentionSpec, MLAAttentionSpec):
        return Full()
    if type(spec) in (SlidingWindowSpec, SlidingWindowMLASpec):
        return Window(spec.sliding_window, spec.extra_retained_tokens)
    if type(spec) is ChunkedLocalAttentionSpec:
        return Chunked(spec.attention_chunk_size)
    if type(spec) is MambaSpec:
        if spec.mamba_cache_mode != "align":
            raise UnsupportedEngine(
                f"cache group {number} keeps recurrent states in mode {spec.mamba_cache_mode!r}; only 'align' hands "
                "them over at prefix boundaries: set mamba_cache_mode to 'align'"
            )
        if spec.num_speculative_blocks:
            raise UnsupportedEngine(
                f"cache group {number} keeps recurrent states and speculative decoding is on: which block holds "
                "the state of the accepted tokens is not known here; turn speculative decoding off"
            )
        return State()
    raise UnsupportedEngine(
        f"cache group {number} is of kind {kind}, which this version of Kvarter does not know"
    )


def describe(config: KVCacheConfig) -> str:
    """Everything of the tensors' layout that decides the order and meaning of a block's bytes."""
    specs = [
        [
            type(spec).__name__,
            *(getattr(spec, name, None) for name in ("num_kv_heads", "head_size", "head_size_v")),
        ]
        for group in config.kv_cache_groups
        for spec in iter_layer_specs(group.kv_cache_spec)
    ]
    return f"{config.kv_cache_layout};{specs}"


def blocks_of(config: KVCacheConfig, groups: Groups, tensors: dict[str, torch.Tensor]) -> list[_core.Blocks]:
    """Where every group's blocks are in this worker's tensors.

    Raises `GeometryError` when they are not what the scheduler was told.
    """
    result = []
    for group, layers in zip(groups.geometry.groups, groups.layers, strict=True):
        regions = []
        for layer in layers:
            tensor = tensors.get(layer)
            if tensor is None:
                raise GeometryError(
                    f"group {group.name!r} has layer {layer!r}, and the engine registered no such tensor"
                )
            regions += _regions(group_kernel_blocks(tensor, config.num_blocks))
        blocks = _core.Blocks(regions, config.num_blocks)
        if blocks.bytes != group.shard_bytes[0]:
            raise GeometryError(
                f"group {group.name!r}: a block of its {len(layers)} tensors has {blocks.bytes} bytes; "
                f"the cache config says {group.shard_bytes[0]}"
            )
        result.append(blocks)
    return result


def _regions(tensor: torch.Tensor) -> list[tuple[int, int, int, int, int]]:
    """(address, block stride, segment bytes, segments, segment stride) of the runs that make up a block, in memory
    order. Dimension 0 counts blocks."""
    item = tensor.element_size()
    dims = sorted(
        (
            (stride * item, size)
            for stride, size in zip(tensor.stride()[1:], tensor.shape[1:], strict=True)
            if size > 1
        ),
        reverse=True,
    )
    run = item
    while dims and dims[-1][0] == run:
        run *= dims.pop()[1]
    segment_stride, segments = dims.pop() if dims else (run, 1)
    offsets = [0]
    for (
        stride,
        size,
    ) in dims:  # whatever is nested deeper than segments of one stride becomes regions of its own
        offsets = [offset + i * stride for offset in offsets for i in range(size)]
    block_stride = tensor.stride(0) * item
    return [(tensor.data_ptr() + offset, block_stride, run, segments, segment_stride) for offset in offsets]

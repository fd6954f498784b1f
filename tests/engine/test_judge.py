"""vLLM's own coordinator as an independent judge: on random hybrids and random resident blocks it names the same
boundary as our planner, and the same blocks."""

import random
from math import lcm
from typing import Any

from kvarter.geometry import CacheGroup, Chunked, Full, Geometry, Lifetime, State, Window


class Blocks:
    """Resident blocks as a set of (group, block)."""

    def __init__(self, have: set[tuple[int, int]]) -> None:
        self.have = have

    def leading(self, group: int, limit: int) -> int:
        return next((b for b in range(limit) if (group, b) not in self.have), limit)

    def last_run(self, group: int, end: int, run: int) -> int:
        for e in range(end, 0, -1):
            if all((group, b) in self.have for b in range(max(0, e - run), e)):
                return e
        return 0


def spec_of(lifetime: Lifetime, block_tokens: int) -> Any:
    import torch
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        MambaSpec,
        SlidingWindowSpec,
    )

    shape = {"block_size": block_tokens, "num_kv_heads": 1, "head_size": 16, "dtype": torch.float16}
    if isinstance(lifetime, Full):
        return FullAttentionSpec(**shape)
    if isinstance(lifetime, Window):
        return SlidingWindowSpec(**shape, sliding_window=lifetime.tokens)
    if isinstance(lifetime, Chunked):
        return ChunkedLocalAttentionSpec(**shape, attention_chunk_size=lifetime.tokens)
    return MambaSpec(
        block_size=block_tokens, shapes=((4,),), dtypes=(torch.float32,), mamba_cache_mode="align"
    )


def random_geometry(numbers: random.Random) -> Geometry:
    unit = numbers.choice([16, 32])
    groups = [CacheGroup("full", Full(), unit * numbers.choice([1, 2, 4]), (1,))]
    if numbers.random() < 0.7:
        # A window of one token is left out: vLLM asks for no block then, and for one with it.
        window = Window(numbers.choice([16, 17, 33, 64, 100, 129]))
        groups.append(CacheGroup("window", window, unit * numbers.choice([1, 2]), (1,)))
    if numbers.random() < 0.5:
        groups.append(CacheGroup("state", State(), unit * numbers.choice([2, 4, 8]), (1,)))
    if len(groups) == 1:
        groups.append(CacheGroup("window", Window(50), unit, (1,)))
    return Geometry(unit, tuple(groups))


def coordinator_of(geometry: Geometry) -> Any:
    from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

    specs = [spec_of(group.lifetime, group.block_tokens) for group in geometry.groups]
    return get_kv_cache_coordinator(
        KVCacheConfig(
            num_blocks=1024,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec([f"layer {n}"], spec) for n, spec in enumerate(specs)],
            hash_block_size=geometry.unit_tokens,
        ),
        max_model_len=8192,
        max_in_flight_tokens=8192,
        use_eagle=False,
        enable_caching=True,
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        scheduler_block_size=lcm(*(group.block_tokens for group in geometry.groups)),
        hash_block_size=geometry.unit_tokens,
        allow_partial_hash_hits=False,
    )


def test_the_engines_own_coordinator_names_the_same_boundary_and_blocks() -> None:
    from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id

    numbers = random.Random(1)
    hits = 0
    for _ in range(400):
        geometry = random_geometry(numbers)
        judge = coordinator_of(geometry)
        units = numbers.randint(1, 48)
        hashes = [numbers.randbytes(32) for _ in range(units)]
        have = set()
        for number, group in enumerate(geometry.groups):
            per_block, share = group.block_tokens // geometry.unit_tokens, numbers.choice([0.5, 0.9, 0.97, 1])
            for block in range(units // per_block):
                if numbers.random() < share:
                    have.add((number, block))
                    key = make_block_hash_with_group_id(hashes[(block + 1) * per_block - 1], number)
                    (cell,) = judge.block_pool.get_new_blocks(1)
                    judge.block_pool._insert_block_hash(key, cell, num_tokens=(block + 1) * group.block_tokens)
        limit = numbers.randint(1, units * geometry.unit_tokens)
        blocks, boundary, _ = judge.find_longest_cache_hit(hashes, limit)
        assert geometry.boundary(Blocks(have), limit) == boundary, geometry
        if boundary:
            hits += 1
            named = [
                [b for b, cell in enumerate(row[: boundary // group.block_tokens]) if not cell.is_null]
                for row, group in zip(blocks, geometry.groups, strict=True)
            ]
            assert named == [list(need) for need in geometry.blocks_at(boundary)], geometry
    assert hits > 100

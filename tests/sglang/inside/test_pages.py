"""Every layout of SGLang's own host pools, out of one set of pages and into another."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName

from hicache_words import (
    LAYOUTS,
    PAGE,
    after,
    fill,
    indices,
    keys,
    mamba_pool,
    mha_pool,
    mla_pool,
    page,
    transfer,
)
from kvarter.connectors.sglang.pages import Flat, Strided, pages_of

Attach = Callable[..., Any]


def moved(backend: Any, pool: Any) -> bool:
    """Pages 3 to 7 are stored, everything is overwritten, and they are loaded into pages 10 to 14."""
    names, source, target = keys(5), range(3, 8), range(10, 15)
    fill(pool, 1)
    before = [page(pool, number) for number in source]
    assert backend.batch_set_v1(names, indices(pool, source), after([])) == [True] * 5
    fill(pool, 2)
    others = [page(pool, number) for number in range(10)]
    assert backend.batch_exists(names, after(None)) == 5
    assert backend.batch_get_v1(names, indices(pool, target), after([])) == [True] * 5
    untouched = all(torch.equal(page(pool, number), others[number]) for number in range(10))
    return untouched and all(torch.equal(page(pool, t), data) for t, data in zip(target, before, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_attention_page_comes_back_as_it_was_in_every_layout(layout: str, attach: Attach) -> None:
    pool = mha_pool(layout)
    assert isinstance(pages_of(pool), Strided)
    assert moved(attach(pool), pool)


def test_a_pool_in_memory_that_sglang_shares_is_copied_in_place(attach: Attach) -> None:
    pool = mha_pool(allocator="shm")
    assert isinstance(pages_of(pool), Strided)
    assert moved(attach(pool, allocator="shm"), pool)


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_a_latent_page_comes_back_as_it_was_in_every_layout(layout: str, attach: Attach) -> None:
    pool = mla_pool(layout)
    assert isinstance(pages_of(pool), Strided)
    assert moved(attach(pool, mla=True), pool)


def test_a_pool_that_moves_its_pages_is_copied_by_its_own_word(attach: Attach) -> None:
    pool = mha_pool()
    pool.shared_allocation_domain = object()
    assert isinstance(pages_of(pool), Flat)
    assert moved(attach(pool), pool)


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct"])
def test_recurrent_states_travel_beside_the_pages(layout: str, attach: Attach) -> None:
    pool, states = mha_pool(layout), mamba_pool(layout)
    backend = attach(pool, {PoolName.MAMBA: states})
    names = keys(4)
    fill(states, 1)
    before = [page(states, 5), page(states, 9)]
    stored = backend.batch_set_v2([transfer(PoolName.MAMBA, states, names[2:], [5, 9])], after(names[:2]))
    assert stored == {PoolName.MAMBA: [True, True]}
    fill(states, 2)
    loaded = backend.batch_get_v2([transfer(PoolName.MAMBA, states, names[2:], [1, 2])], after(names[:2]))
    assert loaded == {PoolName.MAMBA: [True, True]}
    assert torch.equal(page(states, 1), before[0]) and torch.equal(page(states, 2), before[1])


def test_pages_that_sglang_hands_over_come_back_in_its_tensors(attach: Attach) -> None:
    pool = mha_pool()
    backend = attach(pool, interface_v1=0)
    fill(pool, 1)
    names, data = keys(3), [page(pool, number) for number in range(3)]
    assert backend.batch_set(names, data)
    assert backend.batch_exists(names, after(None)) == 3
    targets = [pool.get_dummy_flat_data_page() for _ in range(4)]
    found = backend.batch_get([*names, *keys(1, "another")], targets)
    assert found[3] is None
    assert all(torch.equal(page_, one) for page_, one in zip(found[:3], data, strict=True))
    assert backend.set("ab" * 32, data[0]) and backend.exists("ab" * 32)
    assert torch.equal(backend.get("ab" * 32, targets[3]), data[0])
    assert backend.get("cd" * 32, targets[3]) is None


def test_a_page_of_another_size_would_not_fit_and_is_refused_by_its_length(attach: Attach) -> None:
    pool, states = mha_pool(), mamba_pool()
    backend = attach(pool, {PoolName.MAMBA: states})
    wrong = transfer(PoolName.MAMBA, states, keys(3), [1, 2])
    unknown = transfer(PoolName.SWA, pool, keys(1), [1])
    assert backend.batch_set_v2([wrong, unknown]) == {PoolName.MAMBA: [False] * 3, PoolName.SWA: [False]}
    assert PAGE > 1

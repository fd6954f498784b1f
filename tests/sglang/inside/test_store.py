"""Chains, ranks, and what is there when a node fails, stands still or is full."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName

from hicache_words import after, fill, get, keys, mamba_pool, mha_pool, mla_pool, page, put, transfer
from served_words import until

Attach = Callable[..., Any]
Node = Callable[..., Any]


def test_a_chain_is_stored_and_found_in_pieces(attach: Attach) -> None:
    pool, names = mha_pool(), keys(40)
    backend = attach(pool)
    assert put(backend, pool, names[:16], []) == [True] * 16
    assert put(backend, pool, names[16:32], names[:16], 16) == [True] * 16
    assert backend.batch_exists(names, after(None)) == 32
    assert backend.batch_exists(names[8:], after(names[:8])) == 24
    assert backend.batch_exists(keys(3, "none"), after(names[:8])) == 0
    assert get(backend, pool, names[20:40], names[:20]) == [True] * 12 + [False] * 8


def test_what_is_stored_already_is_not_written_again(attach: Attach) -> None:
    pool, names = mha_pool(), keys(4)
    backend = attach(pool)
    fill(pool, 1)
    first = page(pool, 0)
    assert put(backend, pool, names, []) == [True] * 4
    fill(pool, 2)
    assert put(backend, pool, names, []) == [True] * 4
    assert get(backend, pool, names, []) == [True] * 4
    assert torch.equal(page(pool, 0), first)


def test_a_page_whose_parent_is_not_there_is_not_stored(attach: Attach) -> None:
    pool, names = mha_pool(), keys(4)
    backend = attach(pool)
    assert put(backend, pool, names[2:], names[:2]) == [False, False]
    assert backend.batch_exists(names[2:], after(names[:2])) == 0


def test_pages_stand_alone_where_sglang_does_not_say_what_is_before_them(attach: Attach) -> None:
    pool, names = mha_pool(), keys(6)
    backend = attach(pool)
    assert put(backend, pool, names[2:4], None, 2) == [True, True]
    assert put(backend, pool, names[:2], None) == [True, True]
    assert backend.batch_exists(names, after(None)) == 4
    assert get(backend, pool, names, None) == [True] * 4 + [False] * 2


def test_a_page_of_two_ranks_is_found_when_both_have_stored_it(attach: Attach, node: Node) -> None:
    serving = node(dram=8 << 20)
    pools, names = [mha_pool(), mha_pool()], keys(5)
    ranks = [
        attach(pool, rank=rank, ranks=2, node=f"unix://{serving.path}") for rank, pool in enumerate(pools)
    ]
    for rank, pool in enumerate(pools):
        fill(pool, rank)
    whole = [page(pool, 4) for pool in pools]
    assert put(ranks[0], pools[0], names, []) == [True] * 5
    assert [rank.batch_exists(names, after(None)) for rank in ranks] == [0, 0]
    assert put(ranks[1], pools[1], names, []) == [True] * 5
    assert [rank.batch_exists(names, after(None)) for rank in ranks] == [5, 5]
    for rank, pool, before in zip(ranks, pools, whole, strict=True):
        fill(pool, 9)
        assert get(rank, pool, names, []) == [True] * 5
        assert torch.equal(page(pool, 4), before)
    serving.holds(reserved=0, leased=0, quarantined=0)


def test_latent_pages_are_written_by_one_rank_and_read_by_all(attach: Attach, node: Node) -> None:
    serving = node(dram=8 << 20)
    pools, names = [mla_pool(), mla_pool()], keys(5)
    ranks = [
        attach(pool, rank=rank, ranks=2, mla=True, node=f"unix://{serving.path}")
        for rank, pool in enumerate(pools)
    ]
    fill(pools[0], 1)
    assert put(ranks[0], pools[0], names, []) == [True] * 5
    assert get(ranks[1], pools[1], names, []) == [True] * 5
    assert torch.equal(page(pools[1], 4), page(pools[0], 4))


def test_a_hit_ends_where_a_recurrent_state_is(attach: Attach) -> None:
    pool, states = mha_pool(), mamba_pool()
    backend = attach(pool, {PoolName.MAMBA: states})
    names = keys(8)
    assert put(backend, pool, names, []) == [True] * 8
    for at in (2, 5):
        assert backend.batch_set_v2([transfer(PoolName.MAMBA, states, [names[at]], [at])], after(names[:at]))
    asked = transfer(PoolName.MAMBA, states, names[-1:], [0])
    found = backend.batch_exists_v2(names, [asked], after(None))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (6, [3, 6])
    assert found.extra_pool_hit_pages == {PoolName.KV: 8, PoolName.MAMBA: 6}
    window = transfer(PoolName.MAMBA, states, names[-2:], [0, 1])
    assert backend.batch_exists_v2(names, [window], after(None)).kv_hit_pages == 0
    every = transfer(PoolName.MAMBA, states, names[-1:], [0], trailing=False)
    assert backend.batch_exists_v2(names, [every], after(None)).kv_hit_pages == 0
    none = backend.batch_exists_v2(keys(3, "none"), [asked], after(None))
    assert (none.kv_hit_pages, none.restorable_prefix_pages) == (0, [])


def test_a_sidecar_of_every_page_bounds_the_hit(attach: Attach) -> None:
    pool, beside = mha_pool(), mha_pool("page_first_direct")
    backend = attach(pool, {PoolName.DRAFT: beside})
    names = keys(6)
    assert put(backend, pool, names, []) == [True] * 6
    its = transfer(PoolName.DRAFT, beside, names[:4], range(4), trailing=False)
    assert backend.batch_set_v2([its], after([])) == {PoolName.DRAFT: [True] * 4}
    found = backend.batch_exists_v2(names, [its], after(None))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [1, 2, 3, 4])


def test_a_page_that_rots_is_never_served_and_is_stored_anew(attach: Attach) -> None:
    pool, names = mha_pool(), keys(3)
    backend = attach(pool, copy_member="faulty", faults={"flip_every": 5})
    fill(pool, 1)
    assert put(backend, pool, names, []) == [True] * 3  # blocks 1 to 3
    fill(pool, 2)
    assert get(backend, pool, names, []) == [True, False, False]  # block 5 is flipped
    assert backend.batch_exists(names, after(None)) == 1
    assert put(backend, pool, names, []) == [True] * 3


def test_a_copy_that_fails_stores_nothing_behind_it(attach: Attach) -> None:
    pool, names = mha_pool(), keys(4)
    backend = attach(pool, copy_member="faulty", faults={"fail_every": 3})
    assert put(backend, pool, names, []) == [True, True, False, True]
    assert backend.batch_exists(names, after(None)) == 2


def test_copies_that_are_late_are_not_begun(attach: Attach) -> None:
    pool, names = mha_pool(), keys(4)
    backend = attach(pool, copy_member="faulty", faults={"delay": 0.05}, store_seconds=1e-6)
    assert put(backend, pool, names, []) == [False] * 4
    assert backend.batch_exists(names, after(None)) == 0


def test_a_full_store_keeps_what_fits_and_drops_what_is_oldest(attach: Attach) -> None:
    pool = mha_pool(pages=640)
    backend = attach(pool, dram="4MiB")
    fill(pool, 1)
    first, second = keys(256, "first"), keys(256, "second")
    put(backend, pool, first, [])
    put(backend, pool, second, [], 256)
    there = backend.batch_exists(second, after(None))
    assert 0 < there <= 256
    whole = page(pool, 256)
    fill(pool, 2)
    loaded = get(backend, pool, second[:there], [])
    assert loaded[0] and loaded == sorted(loaded, reverse=True)  # some room is made in the background
    assert torch.equal(page(pool, 0), whole)
    backend._rank.session.store.audit()


@pytest.mark.parametrize("served", [False, True], ids=["its own", "a node's"])
def test_what_the_pool_has_dropped_comes_up_from_disk(
    served: bool, attach: Attach, node: Node, tmp_path: Path
) -> None:
    pool, log = mha_pool(pages=640), tmp_path / "log"
    if served:
        serving = node(dram=4 << 20, disk={"path": str(log), "capacity": 64 << 20, "segment_bytes": 4 << 20})
        backend = attach(pool, node=f"unix://{serving.path}")
    else:
        disk = {"path": str(log), "capacity": "64MiB", "segment": "4MiB"}
        backend = attach(pool, dram="4MiB", disk=disk)

    def on_disk() -> int:
        counts = serving.status()["disk_counters"] if served else backend._rank.session.store.disk.stats()
        return int(counts["stored"])

    fill(pool, 1)
    chains = [keys(192, seed) for seed in range(3)]  # of 3 MiB each: more than a match may bring up at once
    whole = page(pool, 0), page(pool, 191)
    for number, names in enumerate(chains):
        assert put(backend, pool, names, [], 192 * number) == [True] * 192
        until(lambda number=number: on_disk() == 192 * (number + 1), "copied down")
    fill(pool, 2)

    def loaded() -> bool:
        its = chains[0]
        there = backend.batch_exists(its, after(None)) == 192
        parts = get(backend, pool, its[:128], []), get(backend, pool, its[128:], its[:128], 128)
        return there and all(parts[0]) and all(parts[1])

    until(loaded, "all of it came up")
    assert torch.equal(page(pool, 0), whole[0]) and torch.equal(page(pool, 191), whole[1])


def test_a_node_that_goes_is_a_cache_that_is_empty_until_one_comes(attach: Attach, node: Node) -> None:
    serving, pool, names = node(dram=8 << 20), mha_pool(), keys(3)
    backend = attach(pool, node=f"unix://{serving.path}")
    assert put(backend, pool, names, []) == [True] * 3
    serving.kill()
    until(lambda: backend.batch_exists(names, after(None)) == 0, "the loss is noticed")
    assert put(backend, pool, names, []) == [False] * 3
    assert get(backend, pool, names, []) == [False] * 3
    serving.start()
    until(lambda: put(backend, pool, names, []) == [True] * 3, "stored at the next node")
    assert get(backend, pool, names, []) == [True] * 3


def test_a_node_that_stands_still_holds_nobody_up(attach: Attach, node: Node) -> None:
    serving, pool, names = node(dram=8 << 20), mha_pool(), keys(3)
    backend = attach(pool, node=f"unix://{serving.path}", load_seconds=0.2, store_seconds=0.2)
    assert put(backend, pool, names, []) == [True] * 3
    serving.stop()
    assert get(backend, pool, names, []) == [False] * 3
    assert put(backend, pool, keys(3, "more"), []) == [False] * 3
    serving.go_on()
    until(lambda: get(backend, pool, names, []) == [True] * 3, "it is served again")


def test_what_raises_below_is_a_page_that_is_not_there(attach: Attach, monkeypatch: Any, caplog: Any) -> None:
    pool, states, names = mha_pool(), mamba_pool(), keys(2)
    backend = attach(pool, {PoolName.MAMBA: states})

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError("no such luck")

    for name in ("match", "find", "reserve", "invalidate"):
        monkeypatch.setattr(backend._rank.session.store, name, broken)
    its = transfer(PoolName.MAMBA, states, names, [0, 1])
    for _ in range(2):
        assert put(backend, pool, names, []) == [False, False]
        assert get(backend, pool, names, []) == [False, False]
        assert backend.batch_exists(names, after(None)) == 0
        assert backend.batch_exists_v2(names, [its], after(None)).kv_hit_pages == 0
        assert backend.batch_set_v2([its]) == {PoolName.MAMBA: [False, False]}
        assert backend.batch_get_v2([its]) == {PoolName.MAMBA: [False, False]}
        backend.clear()
    assert caplog.text.count("batch_set_v1 failed") == 1


def test_cleared_pages_are_gone_for_every_engine(attach: Attach, node: Node) -> None:
    where, pool, names = f"unix://{node(dram=8 << 20).path}", mha_pool(), keys(3)
    one, other = attach(pool, node=where), attach(pool, node=where)
    assert put(one, pool, names, []) == [True] * 3
    assert other.batch_exists(names, after(None)) == 3
    one.clear()
    until(lambda: other.batch_exists(names, after(None)) == 0, "cleared")
    until(lambda: put(one, pool, names, []) == [True] * 3, "stored again")


def test_closed_it_stores_nothing_and_may_be_closed_again(attach: Attach) -> None:
    pool, names = mha_pool(), keys(3)
    backend = attach(pool)
    assert put(backend, pool, names, []) == [True] * 3
    backend.close()
    backend.close()
    assert put(backend, pool, names, []) == [False] * 3
    assert backend.batch_exists(names, after(None)) == 0


def test_every_page_is_counted_by_what_became_of_it(attach: Attach) -> None:
    pool, names = mha_pool(), keys(4)
    backend = attach(pool, copy_member="faulty", faults={"fail_every": 4})
    put(backend, pool, names, [])
    put(backend, pool, names[:3], [])
    get(backend, pool, names, [])
    counts = {name: count for name, count in backend._rank.session.pages.items() if count}
    assert counts == {"written": 3, "failed": 1, "already_resident": 3, "loaded": 3, "not_found": 1}


def test_sglangs_own_series_say_how_much_was_moved(attach: Attach) -> None:
    pool, names = mha_pool(), keys(3)
    backend = attach(pool)
    put(backend, pool, names, [])
    get(backend, pool, names, [])
    metrics = backend.get_stats()
    assert (metrics.backup_pgs, metrics.prefetch_pgs) == ([3], [3])
    assert np.all(np.array(metrics.prefetch_bandwidth + metrics.backup_bandwidth) > 0)
    assert backend.get_stats().backup_pgs == []

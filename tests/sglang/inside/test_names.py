"""What a page is called: SGLang's digest, and everything else that decides its bytes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.utils import get_hash_str

from hicache_words import after, fill, indices, keys, mha_pool, page, rank_config
from kvarter.connectors.sglang import KvarterHiCache
from kvarter.errors import ConfigError, UnsupportedEngine

Attach = Callable[..., Any]
Node = Callable[..., Any]
THERE = after(None)


def stored(backend: Any, pool: Any, names: list[str]) -> list[bool]:
    done: list[bool] = backend.batch_set_v1(names, indices(pool, range(len(names))), after([]))
    return done


@pytest.mark.parametrize(
    "other",
    [
        {"layout": "page_first_direct"},
        {"layout": "layer_first"},
        {"dtype": torch.bfloat16},
        {"dtype": torch.int32},  # as many bytes as a float32
    ],
    ids=str,
)
def test_engines_with_pages_unlike_ours_never_find_ours(
    other: dict[str, Any], attach: Attach, node: Node
) -> None:
    where, names = f"unix://{node(dram=8 << 20).path}", keys(3)
    pool, unlike = mha_pool(), mha_pool(**other)
    ours, theirs = attach(pool, node=where), attach(unlike, node=where)
    assert stored(ours, pool, names) == [True] * 3
    assert theirs.batch_exists(names, THERE) == 0
    assert stored(theirs, unlike, names) == [True] * 3
    fill(pool, 3)
    kept = page(pool, 9)
    assert ours.batch_get_v1(names, indices(pool, range(3)), after([])) == [True] * 3
    assert torch.equal(page(pool, 9), kept) and not page(pool, 0).any()


def test_other_weights_are_another_namespace(attach: Attach, node: Node) -> None:
    where, names, pool = f"unix://{node(dram=8 << 20).path}", keys(3), mha_pool()
    assert stored(attach(pool, node=where), pool, names) == [True] * 3
    assert attach(pool, node=where, weights_id="others").batch_exists(names, THERE) == 0
    assert attach(pool, node=where).batch_exists(names, THERE) == 3


def test_ranks_of_another_grid_are_another_namespace(attach: Attach, node: Node) -> None:
    where, names, pool = f"unix://{node(dram=8 << 20).path}", keys(3), mha_pool()
    assert stored(attach(pool, node=where), pool, names) == [True] * 3
    assert attach(pool, node=where, rank=0, ranks=2).batch_exists(names, THERE) == 0


def test_the_first_digest_carries_what_sglang_puts_before_it(attach: Attach) -> None:
    """`extra_key` and the cache salt are the digest before the first page's, in SGLang's own chain."""
    pool, tokens = mha_pool(), list(range(16))
    backend = attach(pool)
    plain, salted = get_hash_str(tokens, None), get_hash_str(tokens, "5a" * 32)
    assert stored(backend, pool, [plain]) == [True]
    assert backend.batch_exists([plain], THERE) == 1
    assert backend.batch_exists([salted], THERE) == 0


def test_weights_that_were_replaced_in_place_are_another_namespace(
    attach: Attach, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, names = mha_pool(), keys(3)
    version = ["as started"]
    monkeypatch.setattr("kvarter.connectors.sglang.identity._weight_version", lambda: version[0])
    backend = attach(pool)
    assert stored(backend, pool, names) == [True] * 3
    for later in ("step 1", "as started"):  # by that name they may be any
        version[0] = later
        assert backend.batch_exists(names, THERE) == 0


def test_settings_that_are_none_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="unknown setting 'drum'; did you mean 'dram'"):
        KvarterHiCache(rank_config(drum="1GiB"))


def test_ranks_that_share_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 ranks, each with a backend of its own, and no node is named"):
        KvarterHiCache(rank_config(rank=0, ranks=2))


def test_pages_that_are_split_by_heads_are_refused() -> None:
    config = rank_config()
    config.should_split_heads = True
    with pytest.raises(UnsupportedEngine, match="tp_lcm_size splits pages by heads"):
        KvarterHiCache(config)


def test_without_a_server_the_weights_must_be_named() -> None:
    with pytest.raises(ConfigError, match="set weights_id"):
        KvarterHiCache(rank_config(weights_id=None))


def test_switched_off_it_stores_nothing_and_says_so(
    attach: Attach, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVARTER_DISABLE", "1")
    pool, names = mha_pool(), keys(2)
    backend = attach(pool)
    assert stored(backend, pool, names) == [False, False]
    assert backend.batch_exists(names, THERE) == 0
    assert backend.get_stats() is None
    backend.clear()
    assert "nothing is cached" in caplog.text

"""From SGLang's host pool straight to disk and back: nothing of ours holds a page in memory."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.hicache_storage import PoolName

from hicache_words import after, fill, get, keys, mamba_pool, mha_pool, mla_pool, page, put
from kvarter.errors import ConfigError, UnsupportedEngine

Attach = Callable[..., Any]


@pytest.fixture
def straight(attach: Attach, tmp_path: Path) -> Attach:
    """``straight(pool, sidecars)``: a backend with a log in one directory, the same each time."""

    def make(*args: Any, capacity: str = "32MiB", **settings: Any) -> Any:
        disk = {"path": str(tmp_path / "log"), "capacity": capacity, "segment": "1MiB", "straight": True}
        return attach(*args, allocator="shm", disk=disk, **settings)

    return make


@pytest.mark.parametrize("layout", ["page_first", "page_first_direct", "page_head"])
def test_pages_come_back_from_disk_as_they_were_and_others_are_not_touched(
    layout: str, straight: Attach
) -> None:
    pool = mha_pool(layout, allocator="shm")
    backend, names = straight(pool), keys(5)
    fill(pool, 1)
    before = [page(pool, number) for number in range(5)]
    assert put(backend, pool, names, []) == [True] * 5
    fill(pool, 2)
    others = [page(pool, number) for number in range(10)]
    assert backend.batch_exists(names, after(None)) == 5
    assert get(backend, pool, names, [], 10) == [True] * 5
    for number in range(5):
        assert torch.equal(page(pool, 10 + number), before[number])
    for number in range(10):
        assert torch.equal(page(pool, number), others[number])


def test_what_was_stored_is_there_for_the_next_process_and_gone_once_cleared(straight: Attach) -> None:
    pool, names = mha_pool(allocator="shm"), keys(40)
    fill(pool, 1)
    first = straight(pool)
    assert put(first, pool, names[:30], []) == [True] * 30
    assert put(first, pool, names[30:], names[:30], 30) == [True] * 10
    last = page(pool, 39)
    first.close()
    fill(pool, 2)
    second = straight(pool)
    assert second.batch_exists(names, after(None)) == 40
    assert second.batch_exists(names[8:], after(names[:8])) == 32
    assert get(second, pool, names, []) == [True] * 40
    assert torch.equal(page(pool, 39), last)
    second.clear()
    assert second.batch_exists(names, after(None)) == 0
    assert get(second, pool, names, []) == [False] * 40
    assert put(second, pool, names[:2], []) == [True] * 2
    second.close()
    assert straight(pool).batch_exists(names, after(None)) == 2


def test_pages_without_a_chain_stand_alone(straight: Attach) -> None:
    pool, names = mha_pool(allocator="shm"), keys(6)
    backend = straight(pool)
    assert put(backend, pool, names[2:4], None, 2) == [True, True]
    assert get(backend, pool, names, None) == [False] * 6
    assert put(backend, pool, names[:2], None) == [True, True]
    assert get(backend, pool, names, None) == [True] * 4 + [False] * 2


def test_what_is_there_is_not_written_again_and_what_has_no_parent_is_not_stored(straight: Attach) -> None:
    pool, names = mha_pool(allocator="shm"), keys(6)
    backend = straight(pool)
    fill(pool, 1)
    first = page(pool, 0)
    assert put(backend, pool, names[:4], []) == [True] * 4
    fill(pool, 2)
    assert put(backend, pool, names[:4], []) == [True] * 4
    assert put(backend, pool, names[5:], names[:5]) == [False]
    assert get(backend, pool, names, []) == [True] * 4 + [False] * 2
    assert torch.equal(page(pool, 0), first)


def test_a_page_that_rots_on_disk_is_never_served_nor_what_follows_it(
    straight: Attach, tmp_path: Path
) -> None:
    pool, names = mha_pool(allocator="shm"), keys(8)
    backend = straight(pool)
    fill(pool, 1)
    fourth = page(pool, 3).view(torch.uint8).numpy().tobytes()
    assert put(backend, pool, names, []) == [True] * 8
    rotten = 0
    for segment in (tmp_path / "log").rglob("*"):
        if segment.is_file() and (at := segment.read_bytes().find(fourth[:4096])) >= 0:
            with segment.open("r+b") as file:
                file.seek(at + 100)
                file.write(b"rot")
            rotten += 1
    assert rotten == 1
    fill(pool, 2)
    assert get(backend, pool, names, []) == [True] * 3 + [False] * 5
    assert backend.batch_exists(names, after(None)) == 3
    assert put(backend, pool, names, []) == [True] * 8


def test_a_full_disk_keeps_what_was_used_last(straight: Attach) -> None:
    pool = mha_pool(pages=640, allocator="shm")
    backend = straight(pool, capacity="8MiB")
    fill(pool, 1)
    for turn in range(4):
        names = keys(128, turn)
        put(backend, pool, names, [], 128 * turn)
        found = backend.batch_exists(names, after(None))
        assert found > 0
        fill(pool, 2 + turn)
        assert get(backend, pool, names, []) == [True] * found + [False] * (128 - found)


def test_what_is_late_is_not_stored_and_not_loaded(straight: Attach) -> None:
    pool, names = mha_pool(allocator="shm"), keys(4)
    backend = straight(pool, store_seconds=1e-9)
    assert put(backend, pool, names, []) == [False] * 4
    assert backend.batch_exists(names, after(None)) == 0
    backend.close()
    backend = straight(pool, load_seconds=1e-9)
    assert put(backend, pool, names, []) == [True] * 4
    assert get(backend, pool, names, []) == [False] * 4


def test_what_cannot_go_straight_to_disk_is_refused_with_what_to_do(straight: Attach, attach: Attach) -> None:
    with pytest.raises(UnsupportedEngine, match="whole blocks of 4096 bytes"):
        straight(mla_pool(), mla=True)
    with pytest.raises(UnsupportedEngine, match="one alone"):
        straight(mha_pool(allocator="shm"), {PoolName.MAMBA: mamba_pool()})
    with pytest.raises(ConfigError, match=r"disk\.path"):
        attach(mha_pool(allocator="shm"), disk={"straight": True})
    with pytest.raises(ConfigError, match="unset node"):
        straight(mha_pool(allocator="shm"), node="unix:///nowhere/node.sock")


def test_its_bytes_and_pages_are_counted(straight: Attach) -> None:
    pool, names = mha_pool(allocator="shm"), keys(4)
    backend = straight(pool)
    assert put(backend, pool, names, []) == [True] * 4
    assert get(backend, pool, [*names, *keys(1, "none")], []) == [True] * 4 + [False]
    rank = backend._rank
    counters, pages = rank.session.counters(), rank.session.pages
    assert counters["stored"] == counters["loaded"] == 4
    assert counters["stored_bytes"] == counters["loaded_bytes"] == 4 * page(pool, 0).nbytes
    assert (pages["written"], pages["loaded"], pages["not_found"]) == (4, 4, 1)
    assert sum(rank.session.moved[f"{kind}_pages"] for kind in ("put", "get")) == 8

"""Chunks between a foreign pool and the log, without an engine: admission, deadlines, and what is kept longest."""

import hashlib
import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarter.errors import ConfigError
from kvarter.tiers.log import DiskOptions

CHUNK = 64 << 10


class World:
    """A pool of random chunks and a tier of 16 MiB; `key(n)` is the n-th chunk's name."""

    def __init__(self, path: Path, store_seconds: float = 60.0, **options: Any) -> None:
        from kvarter.connectors.vllm_tier.transfers import Transfers

        self.pool = np.frombuffer(mmap.mmap(-1, 512 * CHUNK), np.uint8).reshape(512, CHUNK)
        self.pool[:] = np.random.default_rng(1).integers(0, 256, self.pool.shape, dtype=np.uint8)
        self.tier = Transfers(
            DiskOptions(str(path), 16 << 20, segment_bytes=1 << 20, **options),
            memoryview(self.pool),
            events=True,
            store_seconds=store_seconds,
        )
        self.ns = self.tier.open(bytes(32), 1)

    def store(self, chunks: range) -> Any:
        self.tier.store(0, self.ns, [key(n) for n in chunks], np.array(chunks, np.int32))
        return self._only()

    def load(self, chunks: range, into: int, seconds: float = 60.0) -> Any:
        places = np.arange(into, into + len(chunks), dtype=np.int32)
        self.tier.load(0, self.ns, [key(n) for n in chunks], places, seconds, None)
        return self._only()

    def _only(self) -> Any:
        assert self.tier.drain(30)
        (job,) = self.tier.finished()
        return job

    def here(self, chunks: range) -> list[int]:
        return [n for n in chunks if self.tier.has(self.ns, key(n))]


def key(n: int) -> bytes:
    return hashlib.sha256(b"%d" % n).digest() + bytes(4)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**options: Any) -> World:
        made.append(World(tmp_path / "log", **options))
        return made[-1]

    yield make
    for one in made:
        one.tier.close()


def test_chunks_come_back_as_they_were_into_other_places(world: Callable[..., World]) -> None:
    w = world()
    assert w.store(range(20)).failed == 0
    job = w.load(range(20), into=100)
    assert (job.failed, len(job.served), job.nbytes) == (0, 20, 20 * CHUNK)
    assert (w.pool[100:120] == w.pool[:20]).all()


def test_a_full_disk_takes_a_chunk_when_it_is_offered_again(world: Callable[..., World]) -> None:
    w = world()
    for first in range(0, 400, 20):
        w.store(range(first, first + 20))
    refused = [n for n in range(380, 400) if n not in w.here(range(400))]
    assert len(refused) == 20
    assert w.tier.counts["not_admitted"] > 0
    assert len(w.here(range(380))) > 100
    w.store(range(380, 400))
    assert w.here(range(380, 400)) == refused


def test_the_beginning_of_a_prompt_outlives_its_end(world: Callable[..., World]) -> None:
    w = world(admit_all=True)
    w.store(range(40))
    w.tier.used(w.ns, [key(n) for n in range(40)])
    last = 40
    while len(left := w.here(range(40))) == 40:
        w.store(range(last, last + 8))
        last += 8
    assert left == list(range(len(left)))


def test_a_load_that_is_late_fails_and_can_be_tried_again(world: Callable[..., World]) -> None:
    w = world()
    w.store(range(4))
    late = w.load(range(4), into=10, seconds=0.0)
    assert (late.failed, late.served) == (4, [])
    assert w.load(range(4), into=10).failed == 0


def test_a_store_that_is_late_lets_go_of_the_pool(world: Callable[..., World]) -> None:
    w = world(store_seconds=-1.0)
    assert w.store(range(4)).failed == 4
    assert w.tier.counts["timed_out"] == 4


def test_chunks_that_went_are_named_once(world: Callable[..., World]) -> None:
    w = world(admit_all=True)
    for first in range(0, 400, 20):
        w.store(range(first, first + 20))
    gone = set(w.tier.gone(w.ns))
    assert gone == {key(n) for n in range(400)} - {key(n) for n in w.here(range(400))}
    assert w.tier.gone(w.ns) == []


def test_a_pool_that_is_not_made_of_pages_is_refused(tmp_path: Path) -> None:
    from kvarter.connectors.vllm_tier.transfers import Transfers

    pool = np.zeros((4, 1000), np.uint8)
    with pytest.raises(
        ConfigError, match="chunks of 1000 bytes, and only whole pages of 4096 go straight to disk"
    ):
        Transfers(DiskOptions(str(tmp_path), 1 << 30), memoryview(pool), events=False, store_seconds=1.0)

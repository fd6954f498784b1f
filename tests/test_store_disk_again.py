"""What the disk has dropped while memory still has it: what goes down again by itself, and what does not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from disk_words import SEGMENT, TOKENS, from_disk, settled, wait_until, worlds
from kvarter import _core
from kvarter.geometry import CacheGroup, Geometry, State
from kvarter.tiers import again, disk
from words import KIB, MIB, World, full

LOOK = 0.05  # seconds


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Worlds over one directory, that look for what was dropped more often than a store does."""
    for module in (again, disk):
        monkeypatch.setattr(module, "LOOK_SECONDS", LOOK)
    with worlds(tmp_path / "log") as make:
        yield make


def below(world: World, sequence: Any) -> _core.Chain:
    number = world.store.disk.log.open_namespace(
        sequence.namespace.digest(), Geometry(4, sequence.namespace.groups).shapes()
    )
    return sequence.chain(number)


def on_disk(world: World, sequence: Any) -> int:
    """How many leading blocks."""
    return world.store.disk.log.leading(below(world, sequence), 0, 0, 8)


def failing_once_open(world: World, device: Any) -> None:
    """From now on no sync of the device works. The log has a segment by then: without one it writes nothing that could
    be lost."""
    world.put(world.sequence([7] * 5), {0: range(1)})
    settled(world)
    device.set(fail_syncs_every=1)


def looks(count: int) -> None:
    time.sleep(count * LOOK)


def test_what_the_device_has_lost_goes_down_again_while_memory_has_it(make: Any) -> None:
    device = _core.FaultyDisk()
    world = make(full(64 * KIB), device=device)
    sequence = world.sequence(TOKENS)
    failing_once_open(world, device)
    written = world.put(sequence, {0: range(8)})
    world.store.disk.flush(5)
    wait_until(lambda: world.store.disk.stats()["reasons"]["unsynced"] > 0)
    looks(10)
    device.set()
    world.clock.advance(10)  # until then a device that failed is not tried
    wait_until(lambda: on_disk(world, sequence) == 8)
    world.store.close()
    later = make(full(64 * KIB), device=device)
    assert from_disk(later, later.sequence(TOKENS)) == written


def test_a_block_without_ancestors_goes_down_again_too(make: Any) -> None:
    device = _core.FaultyDisk()
    world = make(full(8 * KIB), CacheGroup("state", State(), 16, (30 * KIB,)), device=device)
    sequence = world.sequence(TOKENS)
    failing_once_open(world, device)
    world.put(sequence, {0: range(8), 1: range(1, 2)})
    world.store.disk.flush(5)
    wait_until(lambda: world.store.disk.stats()["reasons"]["unsynced"] > 0)
    device.set()
    world.clock.advance(10)
    wait_until(lambda: world.store.disk.log.contains(below(world, sequence), 1, 1))
    wait_until(lambda: on_disk(world, sequence) == 8)


def test_a_device_that_loses_all_it_is_given_is_not_written_to_for_ever(make: Any) -> None:
    device = _core.FaultyDisk()
    world = make(full(64 * KIB), device=device, queue_bytes=512 * KIB)  # as large as the text
    failing_once_open(world, device)
    before = world.store.disk.log.counters()["offered"]
    world.put(world.sequence(TOKENS), {0: range(8)})
    for _ in range(12):
        world.clock.advance(10)
        looks(3)
    counts = world.store.disk.log.counters()
    assert counts["reasons"]["unsynced"] + counts["reasons"]["orphaned"] >= 8
    assert counts["offered"] - before <= 8 + 8 + 1  # stored; once more; an eighth of what was stored
    device.set()


def test_what_was_evicted_waits_until_the_disk_has_room(make: Any) -> None:
    world = make(full(64 * KIB), capacity=16 * SEGMENT, dram=64 * MIB, admit_all=True)
    first = world.sequence(TOKENS)
    written = world.put(first, {0: range(8)})
    settled(world)
    mine, others = world.namespace, world.namespace.with_adapter("other", bytes(32))
    world.namespace = others
    for number in range(40):  # more than the disk holds
        world.clock.advance(0.1)
        world.put(world.sequence([number] * 33), {0: range(8)})
        settled(world)
    assert on_disk(world, first) == 0
    offered = world.store.disk.log.counters()["offered"]
    looks(5)
    settled(world)
    assert world.store.disk.log.counters()["offered"] == offered  # no circle
    world.store.invalidate(others)
    world.namespace = mine
    wait_until(lambda: on_disk(world, first) == 8)
    world.store.close()
    later = make(full(64 * KIB), capacity=16 * SEGMENT)
    assert from_disk(later, later.sequence(TOKENS)) == written

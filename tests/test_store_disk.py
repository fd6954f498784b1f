"""The store with a log below its pool: what memory has lost comes back from disk, or is computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from disk_words import SEGMENT, TOKENS, forget, from_disk, held, settled, wait_until, worlds
from kvarter import _core
from kvarter.errors import ConfigError
from kvarter.geometry import CacheGroup, Full, Geometry, State, Window
from kvarter.policy import AlwaysLoad, Measured
from kvarter.tiers.log import at_risk
from words import KIB, MIB, World, full


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., World]]:
    """``make(*groups, device=..., capacity=..., **store options)``: a world over the same directory each time."""
    with worlds(tmp_path / "log") as make:
        yield make


def test_blocks_that_memory_has_lost_come_back_from_disk(make: Any) -> None:
    world = make(full(64 * KIB))
    sequence = world.sequence(TOKENS)
    written = world.put(sequence, {0: range(8)})
    settled(world)
    forget(world)
    assert world.store.match(sequence).disk_tokens == 32
    assert from_disk(world, sequence) == written
    again = world.store.match(sequence)
    assert (again.tokens, again.disk_tokens) == (32, 0)  # promoted
    assert world.get(again) == written
    assert held(world) == 0
    settled(world)
    assert world.store.disk.log.audit() == []


def test_a_store_that_starts_anew_serves_what_the_last_one_left(make: Any) -> None:
    first = make(full(20000, shards=2))
    written = first.put(first.sequence(TOKENS), {0: range(8)})
    first.store.close()
    second = make(full(20000, shards=2))
    assert second.store.stats()["resident_blocks"] == 0
    assert from_disk(second, second.sequence(TOKENS)) == written


HYBRID = (
    CacheGroup("full", Full(), 4, (8 * KIB,)),
    CacheGroup("window", Window(9), 8, (5000,)),
    CacheGroup("state", State(), 16, (30 * KIB,)),
)


def test_windows_and_states_come_back_at_their_boundary_and_only_what_it_needs(make: Any) -> None:
    first = make(*HYBRID)
    blocks = {0: range(8), 1: range(2, 4), 2: range(1, 2)}
    written = first.put(first.sequence(TOKENS), blocks)
    first.store.close()
    second = make(*HYBRID)
    match = second.store.match(second.sequence(TOKENS))
    assert (match.tokens, match.disk_tokens) == (32, 32)
    assert match.blocks == (range(8), range(3, 4), range(1, 2))
    got = from_disk(second, second.sequence(TOKENS))
    assert got == {key: written[key] for key in got}
    assert len(got) == 10


def test_a_hit_may_be_part_in_memory_and_part_on_disk(make: Any) -> None:
    first = make(*HYBRID)
    written = first.put(first.sequence(TOKENS), {0: range(8), 1: range(2, 4), 2: range(1, 2)})
    first.store.close()
    second = make(*HYBRID)
    sequence = second.sequence(TOKENS)
    assert second.store.match(sequence, limit=8) == second.store.match(sequence, limit=8)
    short = second.sequence(TOKENS)
    shared = second.put(short, {0: range(3), 1: range(3, 4)})  # computed again by somebody
    match = second.store.match(sequence)
    assert match.below == (range(3, 8), [], [1])
    got = from_disk(second, sequence)
    assert got == {key: shared.get(key, written[key]) for key in got}


def test_what_the_engine_has_itself_is_not_loaded_though_its_ancestors_come_up(make: Any) -> None:
    first = make(full(4 * KIB))
    written = first.put(first.sequence(TOKENS), {0: range(8)})
    first.store.close()
    second = make(full(4 * KIB))
    got = from_disk(second, second.sequence(TOKENS), have_tokens=16)
    assert got == {key: written[key] for key in got}
    assert sorted(got) == [(0, block, 0) for block in range(4, 8)]
    assert second.store.match(second.sequence(TOKENS)).blocks == (range(8),)


def test_two_requests_for_one_prefix_read_it_once(make: Any) -> None:
    first = make(full(64 * KIB))
    first.put(first.sequence(TOKENS), {0: range(8)})
    first.store.close()
    second = make(full(64 * KIB), dram=8 * MIB)
    matches = [second.store.match(second.sequence(TOKENS)) for _ in range(3)]
    tickets = [second.store.load(match, 10) for match in matches]
    assert all(ticket.wait(20) for ticket in tickets)
    assert {ticket.status for ticket in tickets} == {_core.Status.Ok}
    assert second.store.disk.log.counters()["asked"] == 8
    for ticket in tickets:
        ticket.finish(_core.Outcome.Loaded)
    assert held(second) == 0


def test_a_disk_that_is_too_slow_times_out_and_leaves_nothing_behind(make: Any) -> None:
    device = _core.FaultyDisk()
    world = make(full(64 * KIB), device=device)
    sequence = world.sequence(TOKENS)
    world.put(sequence, {0: range(8)})
    settled(world)
    forget(world)
    settled(world)
    device.set(hold=1 << 30)
    ticket = world.store.load(world.store.match(sequence), 2)
    assert not ticket.poll()
    world.clock.advance(3)
    assert ticket.wait(5)
    assert ticket.status == _core.Status.TimedOut
    assert not ticket.finish(_core.Outcome.Failed)
    device.set()
    settled(world)
    wait_until(lambda: held(world) == 0)


def test_a_disk_that_cannot_be_read_is_a_miss_and_the_next_store_heals_it(make: Any) -> None:
    device = _core.FaultyDisk()
    first = make(full(64 * KIB), device=device)
    sequence = first.sequence(TOKENS)
    first.put(sequence, {0: range(8)})
    first.store.close()
    second = make(full(64 * KIB), device=device)
    device.set(fail_reads_every=1)
    ticket = second.store.load(second.store.match(second.sequence(TOKENS)), 10)
    assert ticket.wait(20)
    assert ticket.status == _core.Status.NotFound
    assert held(second) == 0
    device.set()
    assert not second.store.match(second.sequence(TOKENS))
    written = second.put(second.sequence(TOKENS), {0: range(8)})
    second.store.close()
    third = make(full(64 * KIB), device=device)
    assert from_disk(third, third.sequence(TOKENS)) == written


def test_a_device_that_keeps_nothing_serves_nothing_and_leaves_nothing_held(make: Any) -> None:
    world = make(full(64 * KIB), device="noop")
    sequence = world.sequence(TOKENS)
    world.put(sequence, {0: range(8)})
    settled(world)
    forget(world)
    ticket = world.store.load(world.store.match(sequence), 10)
    assert ticket.wait(20)
    assert ticket.status == _core.Status.NotFound
    settled(world)
    assert held(world) == 0
    assert world.store.disk.log.counters()["not_loaded"]["corrupt"] > 0


def test_an_invalidated_namespace_comes_back_neither_now_nor_after_a_restart(make: Any) -> None:
    first = make(full())
    first.put(first.sequence(TOKENS), {0: range(8)})
    settled(first)
    first.store.invalidate(first.namespace)
    assert not first.store.match(first.sequence(TOKENS))
    first.store.close()
    second = make(full())
    assert not second.store.match(second.sequence(TOKENS))


def test_a_store_that_has_not_used_a_namespace_yet_invalidates_what_an_earlier_one_left(make: Any) -> None:
    first = make(full())
    first.put(first.sequence(TOKENS), {0: range(8)})
    first.store.close()
    second = make(full())
    second.store.invalidate(second.namespace)
    second.store.close()
    third = make(full())
    assert third.store.disk.log.counters()["recovered"] == 0
    assert not third.store.match(third.sequence(TOKENS))


def test_weights_of_a_later_epoch_leave_nothing_on_disk(make: Any) -> None:
    world = make(full())
    world.namespace = world.namespace.with_new_epoch()
    world.put(world.sequence(TOKENS), {0: range(8)})
    settled(world)
    assert world.store.disk.log.counters()["offered"] == 0


def test_a_full_disk_takes_what_was_seen_before_and_not_what_was_seen_once(make: Any) -> None:
    world = make(full(64 * KIB), capacity=16 * SEGMENT, dram=8 * MIB)
    for number in range(40):  # more than the disk holds
        world.clock.advance(1)
        world.put(world.sequence([number] * 33), {0: range(8)})
        settled(world)
    counts = world.store.disk.stats()
    assert counts["down_not_admitted"] > 0
    world.clock.advance(1)
    known = world.sequence([39] * 33)
    assert world.store.match(known).disk_tokens == 0
    world.get(world.store.match(known))  # a second use: now it is worth its place
    settled(world)
    ns = world.store.disk.log.open_namespace(
        world.namespace.digest(), Geometry(4, world.namespace.groups).shapes()
    )
    assert world.store.disk.log.leading(known.chain(ns), 0, 0, 8) == 8


def test_stats_say_how_much_a_crash_would_lose_until_it_is_durable(make: Any) -> None:
    world = make(full(64 * KIB))
    settled(world)
    world.put(world.sequence(TOKENS), {0: range(8)})
    wait_until(lambda: world.store.disk.stats()["stored"] == 8)
    stats = world.store.disk.stats()  # the clock stands still, and nothing demands a sync
    assert stats["last_sequence"] == stats["durable_sequence"] + 8
    assert stats["undurable_bytes"] > 8 * 64 * KIB
    risk, sequences = at_risk(stats)  # the same in metrics
    assert risk == {"queued": 0, "undurable": stats["undurable_bytes"]}
    assert sequences == {"last": stats["last_sequence"], "durable": stats["durable_sequence"]}
    settled(world)
    stats = world.store.disk.stats()
    assert stats["last_sequence"] == stats["durable_sequence"]
    assert stats["undurable_bytes"] == 0


def test_a_queue_that_is_too_long_drops_and_counts(make: Any) -> None:
    device = _core.FaultyDisk()
    world = make(full(64 * KIB), device=device, queue_bytes=512 * KIB, dram=128 * MIB)
    device.set(hold=1 << 30)
    for number in range(200):
        world.put(world.sequence([number] * 33), {0: range(8)})
    stats = world.store.disk.stats()
    assert stats["down_queue_full"] > 0
    device.set()
    settled(world)
    assert held(world) == 0


def test_a_disk_slower_than_computing_is_not_asked_but_for_a_probe_now_and_then(make: Any) -> None:
    class Slow(Measured):
        def loaded(self, below: int, seconds: float) -> None:
            super().loaded(below, 1000.0)

    policy = Slow()
    first = make(full(64 * KIB), load_policy=policy)
    first.put(first.sequence(TOKENS), {0: range(8)})
    first.put(first.sequence([7] * 33), {0: range(8)})
    first.store.close()
    second = make(full(64 * KIB), load_policy=policy)
    from_disk(second, second.sequence(TOKENS))  # nothing is known yet
    policy.computed(1000, 1.0)
    matches = [second.store.match(second.sequence([7] * 33)) for _ in range(2 * Measured.PROBE_EVERY)]
    assert [bool(match) for match in matches].count(True) == 2
    assert second.store.stats()["not_worthwhile"] == 2 * Measured.PROBE_EVERY - 2


def test_a_prefix_larger_than_half_of_memory_is_not_brought_up(make: Any) -> None:
    first = make(full(256 * KIB), dram=8 * MIB)
    first.put(first.sequence(TOKENS), {0: range(8)})
    first.store.close()
    second = make(full(256 * KIB), dram=2 * MIB)
    assert not second.store.match(second.sequence(TOKENS))
    assert second.store.stats()["too_large_to_promote"] == 1


def test_a_directory_that_cannot_be_used_is_refused_with_the_reason(make: Any, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"no disk tier in .*log: "):
        make(full())
    assert (tmp_path / "log" / "letters.txt").read_text() == "dear"


def test_a_policy_knows_nothing_until_both_were_measured() -> None:
    policy = Measured()
    assert policy.worthwhile(1, 0, 1 << 40, 0)
    policy.loaded(1 << 30, 1.0)
    assert policy.worthwhile(1, 0, 1 << 40, 0)
    policy.computed(1000, 1.0)
    assert not policy.worthwhile(1000, 0, 2 << 30, 0)
    assert policy.worthwhile(1000, 1 << 40, 1 << 29, 1 << 29)
    assert not policy.worthwhile(1000, 0, 1 << 29, 1 << 30)
    assert AlwaysLoad().worthwhile(0, 0, 1, 0)

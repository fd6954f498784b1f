"""Double frees, negative counts, accounting: the public failures 54 to 61, numbered as in the project's list."""

import numpy as np
import pytest

from kvarter import _core
from words import KIB, World, full

TOKENS = range(32)
BLOCK = 4 * KIB


def test_54_what_is_freed_twice_is_freed_once():
    world = World()
    reservation = world.store.reserve(world.sequence(TOKENS), {0: range(8)}, 10)
    for _ in range(3):
        reservation.abort()
        world.commit(reservation, ok=False)
        world.commit(reservation)
    assert world.store.audit()["free"] == world.store.pool.bytes
    assert world.store.stats()["aborted"] + world.store.stats()["no_parent"] == 8


def test_55_a_pin_ends_once_and_no_other_pin_with_it():
    world = World()
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    first, second = world.store.pin(chain, 100), world.store.pin(chain, 100)
    assert world.store.unpin(first) and not world.store.unpin(first)
    world.store.drop_hold("never taken")
    assert world.store.audit()["pinned"] == 8 * BLOCK
    assert world.store.unpin(second) and not world.store.unpin(second)
    assert world.store.audit()["pinned"] == 0


def test_56_a_shared_prefix_is_evictable_once():
    world = World()
    shared = list(range(16))
    for number in range(5):
        world.put(world.sequence([*shared, *[100 + number] * 16]), {0: range(8)})
    assert world.store.audit()["evictable"] == world.store.audit()["resident"] == (4 + 5 * 4) * BLOCK


def test_57_leases_on_both_sides_of_a_fork_leave_what_is_evictable_exact():
    world = World()
    shared = list(range(16))
    chains = [world.sequence([*shared, *[100 + n] * 16]) for n in range(3)]
    for chain in chains:
        world.put(chain, {0: range(8)})
    tickets = [world.store.load(world.store.match(chain, limit=24), 1e6) for chain in chains[:2]]
    # leased: 4 shared, 2 of each of two; evictable: the 2 after each of these, and 4 of the third
    assert world.store.audit()["evictable"] == (2 + 2 + 4) * BLOCK
    for ticket in tickets:
        ticket.finish(_core.Outcome.Loaded)
    assert world.store.audit()["evictable"] == (4 + 3 * 4) * BLOCK


@pytest.mark.parametrize("report", ["commit", "fail", "abort"])
def test_58_a_report_that_comes_after_its_slot_has_a_new_owner_changes_nothing(report):
    world = World(full(KIB * 512))
    old = world.store.reserve(world.sequence(TOKENS), {0: range(4)}, 10)
    world.pass_time(11)  # fenced, freed
    new = world.store.reserve(world.sequence(range(50, 82)), {0: range(4)}, 10)
    assert set(new.slots(0)["offset"].ravel()) == set(old.slots(0)["offset"].ravel())
    before = world.store.audit()
    old.abort() if report == "abort" else world.commit(old, ok=report == "commit")
    assert world.store.audit() == before
    written = [world.fill(row[0]) for row in new.slots(0)]
    world.commit(new)
    got = world.get(world.store.match(world.sequence(range(50, 82)), limit=16))
    assert [got[0, block, 0] for block in range(4)] == written


@pytest.mark.parametrize("seed", range(8))
def test_59_several_owners_of_the_same_blocks_end_in_any_order_and_the_free_space_is_whole(seed):
    random = np.random.default_rng(seed)
    world = World(full(shards=3))
    chain = world.sequence(TOKENS)
    ranks = [world.store.reserve(chain, {0: range(8)}, 10, owner=r + 1, shards=(r, 1)) for r in range(3)]
    for rank in random.permutation(3):
        ending = random.integers(4)
        if ending == 0:
            ranks[rank].abort()
        elif ending == 1:
            world.store.index.owner_dead(int(rank) + 1)
        else:
            world.commit(ranks[rank], int(rank), ok=ending == 2)
        world.store.audit()
    world.store.invalidate(world.namespace)
    world.pass_time(0)
    assert world.store.audit()["free"] == world.store.pool.bytes


def test_60_eviction_counts_what_it_takes_and_ends_when_there_is_nothing_more():
    world = World(max_blocks=100)
    for number in range(137):
        world.put(world.sequence([number] * 4), {0: range(1)})
    stats = world.store.stats()
    assert stats["evicted"] >= 37 and stats["resident_blocks"] == 137 - stats["evicted"]
    assert stats["evicted_bytes"] == stats["evicted"] * BLOCK
    for number in range(137):
        world.store.pin(world.sequence([number] * 4), 1e6)
    room = 100 - world.store.stats()["resident_blocks"]
    chains = [world.sequence([5000 + number] * 4) for number in range(room + 1)]
    reasons = [world.store.reserve(chain, {0: range(1)}, 10).reasons() for chain in chains]
    assert reasons == [{}] * room + [{"no_space": 1}]
    assert world.store.stats()["evicted"] == stats["evicted"]


def test_61_eviction_leaves_the_count_of_a_leased_block_alone():
    world = World()
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    tickets = [world.store.load(world.store.match(chain), 1e6) for _ in range(2)]
    for number in range(1000, 1600):
        world.put(world.sequence([number] * 4), {0: range(1)})
    assert world.store.audit()["leased"] == 7 * BLOCK
    for left, ticket in zip((1, 0), tickets, strict=True):
        assert ticket.finish(_core.Outcome.Loaded)
        assert world.store.audit()["leased"] == 7 * BLOCK * left

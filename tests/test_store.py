"""What a store promises to who keeps blocks in it: reservations, pins, namespaces, and an account that adds up."""

import os

import numpy as np
import pytest

from kvarter import _core
from kvarter.errors import AuditError, CapacityError, ConfigError
from kvarter.sequence import Sequence
from kvarter.store import Store
from words import MIB, World, full, namespace

TOKENS = range(100, 132)  # 8 units of 4


@pytest.fixture
def world() -> World:
    return World()


# -- storing


def test_nothing_is_visible_before_every_shard_is_committed() -> None:
    world = World(full(shards=2))
    chain = world.sequence(TOKENS)
    reservation = world.store.reserve(chain, {0: range(8)}, 10)
    assert reservation.slots(0).shape == (8, 2)
    world.commit(reservation, 1)
    assert not world.store.match(chain)
    world.commit(reservation, 0)
    assert world.store.match(chain, limit=32).tokens == 32


def test_two_owners_of_a_shard_each_join_one_reservation() -> None:
    world = World(full(shards=2))
    chain = world.sequence(TOKENS)
    ranks = [world.store.reserve(chain, {0: range(8)}, 10, owner=r + 1, shards=(r, 1)) for r in range(2)]
    assert (ranks[0].handles == ranks[1].handles).all() and len(ranks[0]) == 8
    assert not set(ranks[0].slots(0)["record"].ravel()) & set(ranks[1].slots(0)["record"].ravel())
    assert world.store.reserve(chain, {0: range(8)}, 10, owner=3, shards=(1, 1)).reasons() == {
        "already_in_flight": 8
    }
    written = {}
    for rank, reservation in enumerate(ranks):
        written |= {(0, b, rank): world.fill(row[0]) for b, row in enumerate(reservation.slots(0))}
        world.commit(reservation, rank)
    got = world.get(world.store.match(chain, limit=32))
    assert got == written


def test_one_failed_shard_gives_the_block_and_what_follows_it_up() -> None:
    world = World(full(shards=2))
    chain = world.sequence(TOKENS)
    reservation = world.store.reserve(chain, {0: range(8)}, 10)
    world.commit(reservation, 0)
    ok = np.array([1, 1, 1, 0, 1, 1, 1, 1], np.uint8)
    reservation.commit(1, ok, np.zeros(8, np.uint64))
    assert world.store.match(chain).tokens == 12
    assert (world.store.stats()["failed"], world.store.stats()["no_parent"]) == (1, 4)
    assert world.store.audit()["reserved"] == 0


def test_an_aborted_reservation_leaves_nothing(world: World) -> None:
    reservation = world.store.reserve(world.sequence(TOKENS), {0: range(8)}, 10)
    assert world.store.audit()["reserved"] == 8 * 4096
    reservation.abort()
    assert world.store.audit()["reserved"] == 0
    world.commit(reservation)
    assert not world.store.match(world.sequence(TOKENS))


def test_a_reservation_says_why_it_did_not_grant_a_block(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(2)})
    world.store.reserve(chain, {0: range(2, 4)}, 10)
    reservation = world.store.reserve(chain, {0: range(6)}, 10)
    assert reservation.reasons() == {"already_resident": 2, "already_in_flight": 2}
    assert (reservation.groups(), list(reservation.blocks(0)), len(reservation)) == ([0], [4, 5], 2)
    assert reservation.refused(0, "already_resident") and not reservation.refused(0, "no_space")
    assert world.store.reserve(chain, {0: range(7, 8)}, 10).reasons() == {"no_parent": 1}


def test_a_block_that_does_not_fit_is_refused_and_counted() -> None:
    world = World(full(MIB))
    chain = world.sequence(TOKENS)
    reservation = world.store.reserve(chain, {0: range(4)}, 10)
    assert reservation.reasons() == {"no_space": 1, "no_parent": 1}
    assert world.store.stats()["offered"] == 4


def test_a_reservation_past_its_deadline_is_quarantined_and_fenced_at_the_next_tick() -> None:
    world = World()
    world.store.delegate_ticks()
    chain = world.sequence(TOKENS)
    reservation = world.store.reserve(chain, {0: range(8)}, 10, owner=7)
    world.clock.advance(10)
    assert world.store.index.tick() == [(7, 0)]
    assert world.store.audit()["quarantined"] == 8 * 4096
    world.commit(
        world.store.reserve(chain, {0: range(8)}, 10, owner=7)
    )  # in other slots: those may be written
    assert world.store.match(chain).tokens == 28
    world.store.index.fenced(7, 0)
    assert world.store.audit()["quarantined"] == 0
    world.commit(reservation)
    assert world.store.stats()["expired"] == 8 and world.store.stats()["stored"] == 8


def test_a_dead_owner_gives_back_what_it_wrote_and_read() -> None:
    world = World()
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(4)})
    world.store.load(world.store.match(chain), 1000, owner=7)
    world.store.reserve(chain, {0: range(4, 8)}, 1000, owner=7)
    assert world.store.audit()["reserved"] and world.store.audit()["leased"]
    world.store.index.owner_dead(7)
    ledger = world.store.audit()
    assert ledger["reserved"] == ledger["leased"] == ledger["quarantined"] == 0


def test_a_reservation_says_which_blocks_are_kept(world: World) -> None:
    sequence = world.sequence(range(40))
    world.put(sequence, {0: range(2)})
    there = world.store.reserve(sequence, {0: range(4)}, 10)
    assert there.kept(0).tolist() == [True] * 4  # two resident, two granted
    orphan = Sequence.from_digests(world.namespace, sequence.digests[8:], 8, sequence.digests[7].tobytes())
    assert world.store.reserve(orphan, {0: range(8, 10)}, 10).kept(0).tolist() == [False, False]
    assert not len(there.kept(1))


# -- pins, hints, namespaces


def test_a_pinned_prefix_survives_eviction_until_its_time_is_over(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    pin = world.store.pin(chain, 100, tokens=16)
    assert world.store.audit()["pinned"] == 4 * 4096
    world.burst()
    assert world.store.match(chain).tokens == 16
    world.pass_time(100)
    assert world.store.audit()["pinned"] == 0
    assert not world.store.unpin(pin)
    world.burst(first=3000)
    assert not world.store.match(chain)


def test_unpin_ends_a_pin_at_once(world: World) -> None:
    chain = world.sequence(TOKENS)
    assert world.store.pin(chain, 100) is None
    world.put(chain, {0: range(8)})
    pin = world.store.pin(chain, 100)
    assert world.store.unpin(pin) and not world.store.unpin(pin)
    assert world.store.audit()["pinned"] == 0


def test_hints_are_kept_and_bounded(world: World) -> None:
    for number in range(5000):
        world.store.hint(f"s{number % 4500}", returns_within=3.0, priority=number)
    assert world.store.stats()["hints"] == 4096
    with pytest.raises(TypeError, match="colour"):
        world.store.hint("s", colour="red")


def test_an_invalidated_namespace_serves_nothing_and_gives_its_memory_back(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    match = world.store.match(chain)
    reservation = world.store.reserve(world.sequence([7] * 8), {0: range(1)}, 10)
    world.store.invalidate(world.namespace)
    world.store.invalidate(world.namespace)
    assert world.store.load(match, 10).status == _core.Status.NotFound
    assert not world.store.match(chain)
    world.commit(reservation)
    world.pass_time(0)
    ledger = world.store.audit()
    assert ledger["resident"] == ledger["reserved"] == 0
    assert world.put(chain, {0: range(8)}) and world.store.match(chain)


def test_a_namespace_has_one_number(world: World) -> None:
    again = namespace(full())
    other = namespace(full(), model="another")
    assert world.store.open(world.namespace) == world.store.open(again) != world.store.open(other)
    world.put(world.sequence(TOKENS), {0: range(8)})
    assert world.store.match(Sequence(again, TOKENS)) and not world.store.match(Sequence(other, TOKENS))


# -- the account


def test_a_pool_too_large_is_refused_with_the_numbers() -> None:
    with pytest.raises(CapacityError, match=r"a pool of 1\d{9} MiB does not fit: \d+ MiB"):
        Store(1 << 50)
    with pytest.raises(ConfigError, match="a pool of 4096 bytes; expected at least 2 MiB"):
        Store(4096)


def test_the_ledger_adds_up_whatever_is_going_on(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    world.store.pin(chain, 10, tokens=8)
    with world.store.load(world.store.match(chain, have_tokens=16), 10):
        world.store.reserve(world.sequence([5] * 8), {0: range(2)}, 10)
        ledger = world.store.audit()
    assert {
        name: ledger[name] // 4096 for name in ("reserved", "leased", "pinned", "resident", "evictable")
    } == {
        "reserved": 2,
        "leased": 3,
        "pinned": 2,
        "resident": 3,
        "evictable": 1,
    }
    parts = set(ledger) - {"capacity", "evictable"}
    assert ledger["capacity"] == sum(ledger[part] for part in parts)
    assert repr(world.store).startswith("<Store 2 MiB, 2% used, 8 blocks")


@pytest.mark.parametrize(
    ("field", "value", "finding"),
    [
        (64, 4096, "a gap or an overlap"),  # offset
        (72, 8192, "counted 8192, booked 4096"),  # length
        (96, 0, "its record is in another state"),  # word
        (0, 0, "not found under its key"),  # digest
        (120, 5, "there is no such arena"),  # arena
    ],
)
def test_damaged_records_do_not_pass_the_audit(world: World, field: int, value: int, finding: str) -> None:
    world.put(chain := world.sequence(TOKENS[:4]), {0: range(1)})
    with world.store.load(world.store.match(chain, limit=4), 10) as ticket:
        record = int(ticket.slots(0)["record"][0, 0])
    world.store.audit()
    records = 4096 + 128 * 1024
    damage = bytearray(world.mapping.records()[records + 128 * record :][:128])
    width = 2 if field == 120 else 8
    damage[field : field + width] = value.to_bytes(width, "little")
    (descriptor, _), _ = world.store.index.memfds
    os.pwrite(descriptor, damage, records + 128 * record)
    with pytest.raises(AuditError, match=finding):
        world.store.audit()

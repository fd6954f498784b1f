"""What a store promises to connectors: matches, loads, reservations, pins, and an account that adds up."""

import os
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarter import _core
from kvarter.errors import AuditError, CapacityError, ConfigError
from kvarter.geometry import CacheGroup, Full, State, Window
from kvarter.policy import AlwaysLoad
from kvarter.sequence import Sequence
from kvarter.store import Store
from words import KIB, MIB, UNIT, World, full, namespace

TOKENS = range(100, 132)  # 8 units of 4


@pytest.fixture
def world() -> World:
    return World()


def fill(world: World, first: int = 1000, blocks: int = 600) -> None:
    """More one-block sequences than the pool has room for."""
    for number in range(first, first + blocks):
        world.clock.advance(1e-6)
        world.put(world.sequence([number] * 4), {0: range(1)})


# -- matching


def test_what_was_put_is_found_and_its_bytes_are_the_same(world: World) -> None:
    chain = world.sequence(TOKENS)
    written = world.put(chain, {0: range(8)})
    match = world.store.match(chain)
    assert (match.tokens, match.blocks) == (28, (range(7),))
    got = world.get(match)
    assert got == {key: written[key] for key in got} and len(got) == 7


def test_a_match_leaves_at_least_one_token_to_compute(world: World) -> None:
    world.put(world.sequence(TOKENS), {0: range(8)})
    assert world.store.match(world.sequence(TOKENS)).tokens == 28
    assert world.store.match(world.sequence([*TOKENS, 7])).tokens == 32
    assert world.store.match(world.sequence(TOKENS), limit=32).tokens == 32
    assert world.store.match(world.sequence(TOKENS), limit=1000).tokens == 32
    assert world.store.match(world.sequence(TOKENS), limit=27).tokens == 24


def test_what_the_engine_has_is_not_loaded_again(world: World) -> None:
    chain = world.sequence([*TOKENS, 7])
    world.put(chain, {0: range(8)})
    match = world.store.match(chain, have_tokens=10)
    assert (match.tokens, match.new_tokens, match.blocks) == (32, 22, (range(2, 8),))
    assert not world.store.match(chain, have_tokens=32)
    assert world.store.match(chain, have_tokens=32).new_tokens == 0


def test_a_sequence_that_parts_from_the_stored_one_matches_what_they_share(world: World) -> None:
    world.put(world.sequence(TOKENS), {0: range(8)})
    assert world.store.match(world.sequence([*TOKENS[:13], *range(20)])).tokens == 12
    assert not world.store.match(world.sequence([0, *TOKENS[1:]]))


def test_a_load_policy_that_declines_turns_a_hit_into_a_counted_miss() -> None:
    class Never(AlwaysLoad):
        def worthwhile(self, tokens: int, above: int, below: int, queued: int) -> bool:
            assert (tokens, above, below, queued) == (28, 7 * 4096, 0, 0)
            return False

    world = World(load_policy=Never())
    world.put(world.sequence(TOKENS), {0: range(8)})
    assert not world.store.match(world.sequence(TOKENS))
    assert world.store.stats()["not_worthwhile"] == 1


# -- holds


def test_a_held_match_is_still_true_at_load_after_a_burst_of_stores(world: World) -> None:
    chain = world.sequence(TOKENS)
    written = world.put(chain, {0: range(8)})
    match = world.store.match(chain, request="r")
    fill(world)
    assert world.store.stats()["evicted"] > 100
    got = world.get(match, request="r")
    assert got == {key: written[key] for key in got}


def test_a_match_without_a_hold_may_be_gone_at_load(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    match = world.store.match(chain)
    fill(world)
    ticket = world.store.load(match, 10)
    assert ticket.status == _core.Status.NotFound
    assert ticket.slots(0).shape == (0, 1)
    assert not ticket.finish(_core.Outcome.Loaded)
    assert world.store.stats()["leased"] == 0


def test_a_hold_ends_after_hold_seconds() -> None:
    world = World(hold_seconds=2.0)
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    match = world.store.match(chain, request="r")
    world.pass_time(1.9)
    assert world.store.audit()["leased"] == 4096  # the deepest block of seven keeps the others
    world.pass_time(0.1)
    assert world.store.audit()["leased"] == 0
    fill(world)
    assert world.store.load(match, 10, request="r").status == _core.Status.NotFound


def test_the_next_match_of_a_request_ends_its_hold(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    world.store.match(chain, request="r")
    world.store.match(chain, request="r")
    assert world.store.audit()["leased"] == 4096
    world.store.drop_hold("r")
    world.store.drop_hold("r")
    assert world.store.audit()["leased"] == 0


def test_holds_cover_no_more_than_their_share() -> None:
    world = World(full(256 * KIB), hold_share=0.25)
    for number in range(6):
        chain = world.sequence([number] * 8)
        world.put(chain, {0: range(1)})
        assert world.store.match(chain, request=f"r{number}")
    assert world.store.audit()["leased"] == 2 * 256 * KIB


def test_a_closed_store_holds_nothing(world: World) -> None:
    with world.store as store:
        world.put(world.sequence(TOKENS), {0: range(8)})
        store.match(world.sequence(TOKENS), request="r")
    assert store.audit()["leased"] == 0


# -- tickets


def test_a_ticket_ends_as_loaded_or_failed_with_its_body(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    with world.store.load(world.store.match(chain), 10) as ticket:
        assert ticket.poll() and ticket.wait(0)
        assert world.store.audit()["leased"] == 7 * 4096
    with pytest.raises(ZeroDivisionError), world.store.load(world.store.match(chain), 10):
        raise ZeroDivisionError
    stats = world.store.stats()
    assert (stats["leased"], stats["loaded"], stats["load_failed"], stats["leased_now"]) == (14, 7, 7, 0)
    assert stats["loaded_bytes"] == 7 * 4096


def test_a_ticket_past_its_deadline_says_that_what_was_read_may_be_anything(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    ticket = world.store.load(world.store.match(chain), 5)
    slots = ticket.slots(0)
    assert _core.unchanged(world.mapping, slots["record"].ravel(), slots["generation"].ravel()).all()
    world.pass_time(5)
    assert not ticket.finish(_core.Outcome.Loaded)
    assert world.store.stats()["load_expired"] == 7
    fill(world)
    assert not _core.unchanged(world.mapping, slots["record"].ravel(), slots["generation"].ravel()).any()


def test_a_leased_block_outlives_any_burst(world: World) -> None:
    chain = world.sequence(TOKENS)
    written = world.put(chain, {0: range(8)})
    with world.store.load(world.store.match(chain), 100) as ticket:
        fill(world)
        assert world.read(ticket) == {key: written[key] for key in world.read(ticket)}


def test_slots_come_by_block_and_shard() -> None:
    world = World(full(4 * KIB, shards=3), CacheGroup("state", State(), 8, (8 * KIB,)))
    chain = world.sequence(TOKENS)
    written = world.put(chain, {0: range(8), 1: range(4)})
    match = world.store.match(chain, limit=32, have_tokens=5)
    assert match.blocks == (range(1, 8), range(3, 4))
    with world.store.load(match, 10) as ticket:
        assert (ticket.slots(0).shape, ticket.slots(1).shape) == ((7, 3), (1, 1))
        assert set(ticket.slots(1)["length"].ravel()) == {8 * KIB}
        got = world.read(ticket)
    assert len(got) == 22 and got == {key: written[key] for key in got}


def test_a_corrupt_block_goes_with_what_leans_on_it_and_the_next_store_heals_it(world: World) -> None:
    chain = world.sequence([*TOKENS, 7])
    world.put(chain, {0: range(8)})
    match = world.store.match(chain, have_tokens=8)
    with world.store.load(match, 10) as ticket:
        ticket.drop_corrupt(0, [5])
    assert world.store.match(chain).tokens == 20
    assert (world.store.stats()["corrupt"], world.store.stats()["orphaned"]) == (1, 2)
    written = world.put(chain, {0: range(8)})
    assert sorted(block for _, block, _ in written) == [5, 6, 7]
    assert world.store.match(chain).tokens == 32


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


# -- pins, hints, namespaces


def test_a_pinned_prefix_survives_eviction_until_its_time_is_over(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    pin = world.store.pin(chain, 100, tokens=16)
    assert world.store.audit()["pinned"] == 4 * 4096
    fill(world)
    assert world.store.match(chain).tokens == 16
    world.pass_time(100)
    assert world.store.audit()["pinned"] == 0
    assert not world.store.unpin(pin)
    fill(world, first=3000)
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


# -- several groups


HYBRID = (
    CacheGroup("full", Full(), 8, (4 * KIB, 4 * KIB)),  # two units a block
    CacheGroup("window", Window(9), 2, (KIB,)),  # two blocks a unit
    CacheGroup("state", State(), 8, (8 * KIB,)),
)


def test_a_hybrid_hit_ends_where_every_group_has_what_it_needs() -> None:
    world = World(*HYBRID)
    chain = world.sequence([*TOKENS, 7])
    written = world.put(chain, {0: range(4), 1: range(16), 2: range(4)})
    match = world.store.match(chain)
    assert (match.tokens, match.blocks) == (32, (range(4), range(12, 16), range(3, 4)))
    got = world.get(match)
    assert got == {key: written[key] for key in got} and len(got) == 4 * 2 + 4 + 1


@pytest.mark.parametrize(
    ("stored", "boundary"),
    [
        ({0: range(4), 1: range(16), 2: range(4)}, 32),
        ({0: range(3), 1: range(16), 2: range(4)}, 24),  # a full block is missing
        ({0: range(4), 1: range(16), 2: range(2)}, 16),  # states up to 16 only
        ({0: range(4), 1: range(15), 2: range(4)}, 24),  # the window's last block
        ({0: range(4), 1: range(13, 16), 2: range(4)}, 0),  # the window's first block at 32, and all below
        ({0: range(4), 1: range(8, 12), 2: range(4)}, 24),
        ({0: range(4), 1: range(16), 2: range(1, 2)}, 16),
        ({0: range(4), 1: range(4, 8), 2: range(2, 4)}, 0),  # window and state never meet
    ],
)
def test_partial_residency_ends_the_hit_at_the_right_boundary(
    stored: dict[int, range], boundary: int
) -> None:
    world = World(*HYBRID)
    chain = world.sequence([*TOKENS, 7])
    world.put(chain, stored)
    match = world.store.match(chain)
    assert match.tokens == boundary
    if match:
        with world.store.load(match, 10) as ticket:
            assert ticket.status == _core.Status.Ok


# -- sequences


tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


@given(tokens, st.lists(st.integers(0, 40), max_size=6), st.booleans())
def test_extending_in_any_split_names_the_same_units(ids: list[int], cuts: list[int], salted: bool) -> None:
    ns = namespace(full())
    units = len(ids) // 4
    extras = [(0, 2, 0, b"salt")] * (salted and units > 0) + [(u, 1, 1, b"image") for u in range(1, units, 2)]
    whole = Sequence(ns, ids, extras)
    pieces = Sequence(ns)
    edges = sorted({0, len(ids), *(min(cut, len(ids)) for cut in cuts)})
    for start, end in pairwise(edges):
        here = [extra for extra in extras if start // 4 <= extra[0] < end // 4]
        pieces.extend(ids[start:end], here)
    assert (pieces.digests == whole.digests).all()
    assert pieces.num_tokens == whole.num_tokens == len(ids)


def test_tokens_come_as_numbers_or_as_arrays() -> None:
    ns = namespace(full())
    ids = [random.Random(1).randrange(2**32) for _ in range(20)]
    plain = Sequence(ns, ids).digests
    assert (Sequence(ns, np.array(ids, np.uint32)).digests == plain).all()
    assert (Sequence(ns, memoryview(np.array(ids, np.uint32))).digests == plain).all()


def test_given_digests_with_their_parent_continue_what_is_stored(world: World) -> None:
    whole = world.sequence([*TOKENS, 7])
    world.put(whole, {0: range(4)})
    tail = Sequence.from_digests(world.namespace, whole.digests[4:], 4, whole.digests[3].tobytes())
    assert (tail.units, tail.num_tokens) == (8, 32)
    written = world.put(tail, {0: range(4, 8)})
    assert sorted(block for _, block, _ in written) == [4, 5, 6, 7]
    assert world.store.match(tail, limit=32, have_tokens=16).blocks == (range(4, 8),)
    tail.extend(range(4))
    assert (tail.digests[-1] == world.sequence([*TOKENS, *range(4)]).digests[-1]).all()
    with pytest.raises(ValueError, match="parent digest of 32 bytes, not 3"):
        Sequence.from_digests(world.namespace, whole.digests[4:], 4, b"abc")


def test_blocks_are_found_in_a_row_and_loaded_without_a_boundary(world: World) -> None:
    whole = world.sequence(range(40))
    written = world.put(whole, {0: range(6)})
    rest = Sequence.from_digests(world.namespace, whole.digests[4:], 4, whole.digests[3].tobytes())
    match = world.store.find(rest, 0, range(4, 10))
    assert (match.tokens, match.have_tokens, match.blocks) == (24, 16, (range(4, 6),))
    assert world.get(match) == {(0, block, 0): written[0, block, 0] for block in (4, 5)}
    assert not world.store.find(rest, 0, range(6, 10))


def test_blocks_that_lean_on_nothing_are_found_up_to_the_first_gap() -> None:
    world = World(CacheGroup("apart", Window(UNIT), UNIT, (4 * KIB,)))
    sequence = world.sequence(range(40))
    world.put(sequence, {0: [1, 2, 4]})
    assert world.store.find(sequence, 0, range(1, 8)).blocks == (range(1, 3),)
    assert not world.store.find(sequence, 0, range(3, 8))


def test_a_reservation_says_which_blocks_are_kept(world: World) -> None:
    sequence = world.sequence(range(40))
    world.put(sequence, {0: range(2)})
    there = world.store.reserve(sequence, {0: range(4)}, 10)
    assert there.kept(0).tolist() == [True] * 4  # two resident, two granted
    orphan = Sequence.from_digests(world.namespace, sequence.digests[8:], 8, sequence.digests[7].tobytes())
    assert world.store.reserve(orphan, {0: range(8, 10)}, 10).kept(0).tolist() == [False, False]
    assert not len(there.kept(1))


def test_the_same_tokens_in_another_namespace_keep_their_digests_and_part_ways() -> None:
    here, there = namespace(full()), namespace(full(), model="another")
    one = Sequence(here, TOKENS)
    other = one.in_namespace(there)
    assert (one.digests == other.digests).all()
    one.extend([1, 2, 3, 4])
    other.extend([5, 6, 7, 8])
    assert (other.digests == Sequence(there, [*TOKENS, 5, 6, 7, 8]).digests).all()
    assert (one.digests == Sequence(here, [*TOKENS, 1, 2, 3, 4]).digests).all()
    with pytest.raises(ValueError, match="units of 16 tokens; the sequence has 4"):
        one.in_namespace(namespace(full(block_tokens=16), unit_tokens=16))


def test_a_chain_stays_as_it_was_while_its_sequence_grows(world: World) -> None:
    growing = world.sequence(TOKENS[:8])
    digests = growing.digests
    before = digests.copy()
    for start in range(8, 32, 4):
        growing.extend(TOKENS[start : start + 4])
    assert (digests == before).all() and not digests.flags.writeable
    assert (growing.digests == world.sequence(TOKENS).digests).all()


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

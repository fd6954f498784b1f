"""What a store promises to who looks for blocks: matches, holds, loads."""

import pytest

from kvarter import _core
from kvarter.geometry import CacheGroup, Full, State, Window
from kvarter.policy import AlwaysLoad
from kvarter.sequence import Sequence
from words import KIB, UNIT, World, full

TOKENS = range(100, 132)  # 8 units of 4


@pytest.fixture
def world() -> World:
    return World()


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
    world.burst()
    assert world.store.stats()["evicted"] > 100
    got = world.get(match, request="r")
    assert got == {key: written[key] for key in got}


def test_a_match_without_a_hold_may_be_gone_at_load(world: World) -> None:
    chain = world.sequence(TOKENS)
    world.put(chain, {0: range(8)})
    match = world.store.match(chain)
    world.burst()
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
    world.burst()
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
    world.burst()
    assert not _core.unchanged(world.mapping, slots["record"].ravel(), slots["generation"].ravel()).any()


def test_a_leased_block_outlives_any_burst(world: World) -> None:
    chain = world.sequence(TOKENS)
    written = world.put(chain, {0: range(8)})
    with world.store.load(world.store.match(chain), 100) as ticket:
        world.burst()
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

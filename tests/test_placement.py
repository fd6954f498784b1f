"""A policy beneath a live store: what it says goes first does, as long as it is still true."""

import numpy as np
import pytest

from kvarter import _core
from kvarter.errors import CapacityError, ConfigError
from kvarter.geometry import CacheGroup, State
from kvarter.policy import DEFAULT, POLICIES
from kvarter.policy.lru import Lru
from kvarter.trace import generate, replay
from kvarter.trace.real import replay_bytes
from words import World, full

BLOCKS = 480  # of 4 KiB in 2 MiB, with what the headroom takes


def stored(world: World, *numbers: int, blocks: int = 20) -> list:
    """A chain of so many blocks for each number, in this order."""
    made = []
    for number in numbers:
        world.clock.advance(1.0)
        made.append(world.sequence([number] * (4 * blocks + 1)))
        world.put(made[-1], {0: range(blocks)})
    return made


def rows_of(world: World, order: int, blocks: int = 20) -> np.ndarray:
    """Rows of the chain that was stored as number `order`, deepest first."""
    columns = world.store.index.columns
    entry = columns["entry"][np.minimum(columns["slot"], len(columns["entry"]) - 1)]
    rows = np.flatnonzero(columns["state"] == 2)
    return rows[np.argsort(entry[rows])][order * blocks : (order + 1) * blocks][::-1]


def offer(world: World, rows: np.ndarray) -> int:
    return world.store.index.offer_victims(rows, world.store.index.columns["generation"][rows])


def hits(world: World, sequences: list) -> list[int]:
    return [world.store.match(sequence).tokens // 4 for sequence in sequences]


def pressed(world: World, blocks: int) -> None:
    """Makes the store evict so many blocks, in its own way of choosing them."""
    free = world.store.index.ledger()["free"] // 4096
    world.put(world.sequence(range(10_000, 10_000 + 4 * (free + blocks))), {0: range(free + blocks)})


@pytest.fixture
def world() -> World:
    return World(policy="lru", headroom=0.0, max_blocks=512)


def test_an_offered_chain_goes_before_what_was_used_longer_ago_from_its_end(world: World) -> None:
    chains = stored(world, 1, 2, 3)
    assert offer(world, rows_of(world, 1)) == 20
    pressed(world, 12)
    assert hits(world, chains) == [20, 8, 20]
    assert world.store.stats()["evicted_offered"] == 12
    world.store.audit()


def test_after_an_offered_leaf_its_parents_of_the_same_past_follow(world: World) -> None:
    chains = stored(world, 1, 2, 3)
    offer(world, rows_of(world, 1)[:1])
    pressed(world, 15)
    assert hits(world, chains) == [20, 5, 20]


def test_a_parent_that_served_more_does_not_follow_its_child(world: World) -> None:
    (short,) = stored(world, 1, blocks=10)
    world.get(world.store.match(short))
    long = world.sequence([1] * 81)
    world.put(long, {0: range(20)})
    (other,) = stored(world, 2)
    columns = world.store.index.columns
    ends = np.flatnonzero((columns["state"] == 2) & (columns["depth"] == 19))
    leaf = ends[np.argsort(columns["last_use"][ends])]
    offer(world, leaf[:1])
    pressed(world, 10)
    assert hits(world, [long, other]) == [10, 20]


def test_what_was_used_since_it_was_offered_stays(world: World) -> None:
    chains = stored(world, 1, 2)
    offer(world, rows_of(world, 1))
    world.clock.advance(1.0)
    world.get(world.store.match(chains[1]))
    pressed(world, 12)
    assert hits(world, chains) == [8, 20]


def test_leased_and_pinned_blocks_and_rows_that_never_were_are_passed_over(world: World) -> None:
    chains = stored(world, 1, 2, 3)
    world.store.pin(chains[1], ttl=60.0)
    index = world.store.index
    garbage = np.array([0, 7, 511, 2**32 - 1], np.uint32)
    index.offer_victims(garbage, np.array([99, 0, 5, 1], np.uint32))
    offer(world, rows_of(world, 1))
    pressed(world, 12)
    assert hits(world, chains) == [8, 20, 20]
    world.store.audit()


def test_more_than_the_queue_holds_is_not_taken(world: World) -> None:
    rows = np.zeros(_core.MOST_OFFERED + 10, np.uint32)
    assert world.store.index.offer_victims(rows, rows) == _core.MOST_OFFERED
    assert world.store.index.offer_victims(rows[:1], rows[:1]) == 0


def test_rows_and_generations_of_different_number_are_refused(world: World) -> None:
    with pytest.raises(ValueError, match="2 rows and 1 generations"):
        world.store.index.offer_victims(np.zeros(2, np.uint32), np.zeros(1, np.uint32))


def test_columns_are_read_only_and_outlive_the_names_of_their_store(world: World) -> None:
    columns = world.store.index.columns
    with pytest.raises(ValueError, match="read-only"):
        columns["hits"][0] = 1
    stored(world, 1)
    del world
    assert (columns["state"] == 2).sum() == 20


def test_a_snapshot_that_a_later_boundary_supersedes_goes_first() -> None:
    state = CacheGroup("state", State(), 4, (64 << 10,))
    world = World(full(), state, headroom=0.0, max_blocks=512, policy=DEFAULT)
    old, other = world.sequence([1] * 41), world.sequence([2] * 41)
    for sequence, boundary in ((other, 4), (old, 4), (old, 8)):
        world.clock.advance(1.0)
        world.store.match(sequence)
        world.put(sequence, {0: range(10), 1: range(boundary - 1, boundary)})
    columns = world.store.index.columns
    past = (columns["state"] == 2) & (columns["klass"] & 0x8000 != 0)
    assert (
        past.sum() == 1 and columns["group"][past].tolist() == [1] and columns["depth"][past].tolist() == [3]
    )
    for number in range(10, 400):  # until something has gone
        if world.store.stats()["evicted"]:
            break
        world.clock.advance(1.0)
        world.put(world.sequence([number] * 41), {0: range(10)})
    assert not ((columns["state"] == 2) & (columns["klass"] & 0x8000 != 0)).any()


def test_of_snapshots_alike_the_one_that_saves_less_for_its_bytes_goes_first() -> None:
    state = CacheGroup("state", State(), 4, (64 << 10,))
    world = World(full(), state, headroom=0.0, max_blocks=512, policy=DEFAULT)
    for number, boundary in ((1, 40), (2, 2)):  # the longer one is the older one
        world.clock.advance(1.0)
        sequence = world.sequence([number] * 161)
        world.store.match(sequence)
        world.put(sequence, {0: range(40), 1: range(boundary - 1, boundary)})
    columns = world.store.index.columns

    def boundaries() -> set[int]:
        return set(columns["depth"][(columns["state"] == 2) & (columns["group"] == 1)].tolist())

    assert boundaries() == {39, 1}
    for number in range(10, 400):
        world.clock.advance(1.0)
        world.put(world.sequence([number] * 41), {0: range(10)})
        if boundaries() != {39, 1}:
            break
    assert boundaries() == {39}


def test_requests_teach_the_policy_once_and_their_blocks_get_its_classes() -> None:
    world = World(max_blocks=512)
    sequence = world.sequence([5] * 81)
    for _ in range(3):
        world.store.match(sequence, request="a")
    world.put(sequence, {0: range(20)})
    classes = {int(k) for k in np.unique(world.store.index.columns["klass"][rows_of(world, 0)])}
    assert sequence.classes is not None and classes == {int(k) for k in np.unique(sequence.classes[:20])}
    world.store.match(sequence, request="b")
    for _ in range(3):  # a tick does at least one thing
        world.pass_time(0.1)
    again = {int(k) for k in np.unique(world.store.index.columns["klass"][rows_of(world, 0)])}
    assert again and not again & classes


def test_a_hint_reaches_the_blocks_of_its_session_at_once_and_ends_with_its_time() -> None:
    world = World(max_blocks=512)
    sequence = world.sequence([5] * 81)
    world.store.match(sequence, session="s")
    world.put(sequence, {0: range(20)})
    before = world.store.index.columns["klass"][rows_of(world, 0)].copy()
    world.store.hint("s", ends=True)
    for _ in range(3):
        world.pass_time(0.1)
    after = world.store.index.columns["klass"][rows_of(world, 0)]
    assert (before != after).all()
    world.store.hint("t", returns_within=5.0)
    hint = world.store._wishes._hints["t"]
    now = world.clock.now() / 1e9
    assert hint.code(now) == 1 and hint.code(now + 6) == 0


def test_a_hint_with_a_time_to_live_pins_what_the_session_found() -> None:
    world = World(max_blocks=512)
    sequence = world.sequence([5] * 81)
    world.put(sequence, {0: range(20)})
    world.store.match(sequence, session="s")
    world.store.hint("s", ttl=30.0)
    assert world.store.audit()["pinned"] == 20 * 4096


@pytest.mark.parametrize("name", POLICIES)
def test_what_a_policy_remembers_is_bounded_and_in_the_account(name: str) -> None:
    world = World(policy=name, max_blocks=512)
    for number in range(200):
        sequence = world.sequence([number] * 81)
        world.store.match(sequence, request=str(number))
        world.put(sequence, {0: range(20)})
    first = world.store.stats()["policy_bytes"]
    for number in range(200, 600):
        sequence = world.sequence([number] * 81)
        world.store.match(sequence, request=str(number))
        world.put(sequence, {0: range(20)})
    assert world.store.stats()["policy_bytes"] == first <= POLICIES[name].most_state_bytes(512) <= 4 << 20
    index = world.store.index
    metadata = sum(nbytes for _, nbytes in index.memfds)
    assert world.store.audit()["overhead"] == metadata + first
    assert world.store.audit()["capacity"] == world.store.pool.bytes + metadata + first


def test_memory_that_a_policy_needs_beyond_what_there_is_is_refused_at_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Elephant(Lru):
        @classmethod
        def most_state_bytes(cls, capacity: int) -> int:
            return 1 << 50

    monkeypatch.setitem(POLICIES, "elephant", Elephant)
    with pytest.raises(CapacityError, match="does not fit"):
        World(policy="elephant")


@pytest.mark.parametrize("name", POLICIES)
def test_real_bytes_are_right_beneath_every_policy_and_the_hit_rate_is_near_the_replayers(name: str) -> None:
    trace = generate("chat", seed=2, sessions=120)
    capacity = max(trace.unique // 8, 512)
    real = replay_bytes(trace, name, capacity)
    assert real.verified_bytes == real.hits.sum() * 4096 > 0
    if name in (DEFAULT, "lru", "fifo", "wild"):  # the others rank by what a sample of rows cannot tell
        simulated = replay(trace, POLICIES[name](capacity), capacity, leaf_first=True)
        assert real.hit_rate == pytest.approx(simulated.hit_rate, abs=3.0)


def test_an_unknown_policy_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no policy 'mru'; there are hazard, lru"):
        World(policy="mru")

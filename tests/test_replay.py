"""The replayer counts as the field does: beside caches of ten obvious lines, and by properties."""

import numpy as np
import pytest

from kvarter.policy import POLICIES, named
from kvarter.trace import Trace, generate, infinite, optimum, replay
from kvarter.trace.replay import Cache
from traces import random_trace, trace_of


def plain_lru(trace: Trace, capacity: int) -> list[int]:
    """Tail first into a list, the oldest goes."""
    order: list[int] = []
    hits = []
    for number in range(trace.requests):
        blocks = trace.of_request(number).tolist()
        hits.append(next((i for i, block in enumerate(blocks) if block not in order), len(blocks)))
        for block in reversed(blocks[:capacity]):
            if block in order:
                order.remove(block)
            elif len(order) == capacity:
                order.pop(0)
            order.append(block)
    return hits


def best_of_all(trace: Trace, capacity: int) -> int:
    """Most hits that any choice of what to keep can give, by trying all sets that are closed upwards."""
    states = {frozenset[int](): 0}
    for number in range(trace.requests):
        blocks = trace.of_request(number).tolist()
        following: dict[frozenset[int], int] = {}
        for held, hits in states.items():
            hit = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
            for kept in _subsets(trace, held | set(blocks), capacity):
                following[kept] = max(following.get(kept, 0), hits + hit)
        states = following
    return max(states.values())


def _subsets(trace: Trace, blocks: frozenset[int], capacity: int) -> set[frozenset[int]]:
    found, fresh = {blocks}, {blocks}
    while fresh:
        fresh = {
            held - {leaf}
            for held in fresh
            for leaf in held
            if not any(trace.parent[other] == leaf for other in held)
        } - found
        found |= fresh
    return {held for held in found if len(held) <= capacity}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("capacity", [1, 2, 5, 13, 40])
def test_lru_over_leaves_is_lru_with_the_tail_first(seed: int, capacity: int) -> None:
    trace = random_trace(seed)
    assert replay(trace, named("lru")(capacity), capacity).hits.tolist() == plain_lru(trace, capacity)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("capacity", [1, 2, 3, 4])
def test_the_optimum_is_what_trying_everything_finds(seed: int, capacity: int) -> None:
    trace = random_trace(seed, requests=9, letters=2)
    assert optimum(trace, capacity).hits.sum() == best_of_all(trace, capacity)


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_beats_the_optimum_and_a_cache_of_everything_serves_all_but_first_uses(name: str) -> None:
    trace = generate("chat", sessions=60)
    for capacity in (50, 500, 2000):
        found = replay(trace, named(name)(capacity), capacity, leaf_first=True).hit_rate
        assert 0 <= found <= optimum(trace, capacity).hit_rate
    for leaf_first in (True, False):
        everything = replay(trace, named(name)(trace.unique + 1), trace.unique + 1, leaf_first=leaf_first)
        assert everything.hit_rate == pytest.approx(infinite(trace))


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_held_is_closed_upwards_and_never_more_than_the_capacity(name: str) -> None:
    trace = generate("rag", sessions=60)
    capacity = trace.unique // 12
    cache = Cache(trace, named(name)(capacity), capacity)
    for number in range(trace.requests):
        cache.request(number)
        held = np.flatnonzero(cache.resident)
        above = trace.parent[held]
        assert len(held) == cache.held <= capacity
        assert cache.resident[above[above >= 0]].all()


def test_everything_after_the_first_gap_is_a_miss_and_large_requests_keep_their_head() -> None:
    trace = trace_of("abcdef", "abcdef", "abx", "abcdef")
    assert replay(trace, named("lru")(4), 4).hits.tolist() == [0, 4, 2, 3]  # abc stay, and x
    gap = trace_of("abc", "xyz", "abc")  # fifo keeps c of abc longest, and its head is gone
    assert replay(gap, named("fifo")(5), 5).hits.tolist() == [0, 0, 2]


def test_a_cache_of_nothing_serves_nothing() -> None:
    trace = trace_of("ab", "ab", "")
    for name in POLICIES:
        assert replay(trace, named(name)(0), 0).hit_rate == 0
    assert optimum(trace, 0).hit_rate == 0


def test_the_same_replay_gives_the_same_hits() -> None:
    trace = generate("chat", sessions=60)
    one, other = (replay(trace, named("hazard")(300), 300).hits for _ in range(2))
    assert np.array_equal(one, other)

"""Two tiers in the replayer: who serves what, beside two caches of a few obvious lines."""

import numpy as np
import pytest

from kvarter.policy import POLICIES, named
from kvarter.trace import Trace, generate, infinite, optimum, replay, replay_tiers
from kvarter.trace.tiers import TwoTiers
from traces import random_trace, trace_of


def plain(trace: Trace, first: int, second: int) -> list[tuple[int, int]]:
    """Two lists of blocks, the oldest first; a request's tail counts as older than its head."""
    tiers: tuple[list[int], list[int]] = [], []
    served = []
    for number in range(trace.requests):
        blocks = trace.of_request(number).tolist()
        above = next((i for i, block in enumerate(blocks) if block not in tiers[0]), len(blocks))
        either = set(tiers[0]) | set(tiers[1])
        served.append(
            (above, next((i for i, block in enumerate(blocks) if block not in either), len(blocks)))
        )
        for order, capacity in zip(tiers, (first, second), strict=True):
            for block in reversed(blocks[:capacity]):
                if block in order:
                    order.remove(block)
                elif len(order) == capacity:
                    order.pop(0)
                order.append(block)
    return served


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("first, second", [(1, 3), (2, 2), (5, 13), (13, 5), (6, 0)])
def test_each_hit_is_of_the_tier_that_two_plain_lists_say(seed: int, first: int, second: int) -> None:
    trace = random_trace(seed)
    found = replay_tiers(trace, named("lru")(first), first, second)
    assert list(zip(found.above.tolist(), found.hits.tolist(), strict=True)) == plain(trace, first, second)


def test_what_memory_has_lost_is_served_from_below_and_is_above_again_afterwards() -> None:
    trace = trace_of("abc", "xyz", "abc", "abc")
    found = replay_tiers(trace, named("lru")(3), 3, 9)
    assert found.above.tolist() == [0, 0, 0, 3] and found.hits.tolist() == [0, 0, 3, 3]
    assert found.copied == 6  # each block once: what is below already is not written again


def test_a_request_larger_than_a_tier_keeps_its_head_there() -> None:
    trace = trace_of("abcdef", "abcdef")
    for second, hit in ((3, 4), (5, 5), (9, 6)):
        found = replay_tiers(trace, named("lru")(4), 4, second)
        assert found.above.tolist() == [0, 4] and found.hits.tolist() == [0, hit]


@pytest.mark.parametrize("name", POLICIES)
def test_memory_serves_as_without_a_disk_and_both_no_more_than_the_optimum_of_both(name: str) -> None:
    trace = generate("chat", sessions=60)
    first, second = trace.unique // 20, trace.unique // 5
    found = replay_tiers(trace, named(name)(first), first, second)
    alone = replay(trace, named(name)(first), first, leaf_first=True)
    assert np.array_equal(found.above, alone.hits)
    assert alone.hit_rate < found.hit_rate <= optimum(trace, first + second).hit_rate


def test_both_tiers_hold_whole_chains_within_their_capacity() -> None:
    trace = generate("rag", sessions=60)
    first, second = trace.unique // 30, trace.unique // 10
    tiers = TwoTiers(trace, named("hazard")(first), first, second)
    for number in range(trace.requests):
        tiers.request(number)
        for cache in (tiers.above, tiers.below):
            above = trace.parent[np.flatnonzero(cache.resident)]
            assert cache.held <= cache.capacity and cache.resident[above[above >= 0]].all()


def test_a_disk_of_everything_serves_all_but_first_uses() -> None:
    trace = generate("chat", sessions=60)
    longest = int(np.diff(trace.first).max())
    found = replay_tiers(trace, named("hazard")(longest), longest, trace.unique)
    assert found.hit_rate == pytest.approx(infinite(trace))

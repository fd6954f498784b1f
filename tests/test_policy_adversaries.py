"""Traffic and callers that mean ill: what each may cost, in points of hit rate or in bytes of others."""

import dataclasses

import numpy as np
import pytest

from kvarter.policy import CONTINUES, DEFAULT, ENDS, named
from kvarter.trace import Request, Trace, generate, replay
from words import World


def rate(trace: Trace, policy: str, capacity: int, hints: np.ndarray | None = None) -> float:
    return replay(trace, named(policy)(capacity), capacity, hints=hints).hit_rate


@pytest.fixture(scope="module")
def chat() -> Trace:
    return generate("chat", seed=5, sessions=600)


def test_a_scan_of_prompts_that_never_return_costs_less_than_a_point_where_lru_loses_several(
    chat: Trace,
) -> None:
    capacity = chat.unique // 10
    real = [
        Request(float(chat.seconds[i]), int(chat.tokens[i]), 0, tuple(chat.of_request(i).tolist()))
        for i in range(chat.requests)
    ]
    scan = [
        Request(float(second), 32000, 0, tuple(("scan", number, i) for i in range(2000)))
        for number, second in enumerate(np.arange(0, chat.span, 60))
    ]
    both = Trace.of(real + scan, "with a scan", "test", chat.block_tokens)
    served = {
        name: 100 * replay(both, named(name)(capacity), capacity).hits.sum() / chat.accesses
        for name in (DEFAULT, "lru")
    }
    assert served[DEFAULT] >= rate(chat, DEFAULT, capacity) - 1.0
    assert served["lru"] < rate(chat, "lru", capacity) - 3.0  # so it is a scan that hurts


@pytest.mark.parametrize("kind", ["chat", "rag"])
def test_hints_that_are_always_wrong_cost_at_most_half_a_point(kind: str) -> None:
    trace = generate(kind, seed=6, sessions=1500)
    wrong = np.where(trace.continues(), ENDS, CONTINUES).astype(np.uint8)
    for share in (5, 20):
        capacity = trace.unique * share // 100
        assert rate(trace, DEFAULT, capacity, wrong) >= rate(trace, DEFAULT, capacity) - 0.5


@pytest.mark.parametrize("kind, sessions", [("rag", 300), ("rag", 600), ("chat", 200), ("agents", 40)])
def test_before_a_hint_was_given_often_its_being_always_wrong_costs_at_most_half_a_point(
    kind: str, sessions: int
) -> None:
    trace = generate(kind, seed=6, sessions=sessions)
    wrong = np.where(trace.continues(), ENDS, CONTINUES).astype(np.uint8)
    for share in (2, 5, 10, 20):
        capacity = trace.unique * share // 100
        assert rate(trace, DEFAULT, capacity, wrong) >= rate(trace, DEFAULT, capacity) - 0.5


def test_hints_that_mean_nothing_cost_at_most_a_point(chat: Trace) -> None:
    dice = np.random.default_rng(0).choice([CONTINUES, ENDS], chat.requests).astype(np.uint8)
    for share in (5, 20):
        capacity = chat.unique * share // 100
        assert rate(chat, DEFAULT, capacity, dice) >= rate(chat, DEFAULT, capacity) - 1.0


@pytest.mark.parametrize("by", [1e6, -1e6])
def test_a_clock_that_jumps_costs_no_more_than_it_costs_lru(chat: Trace, by: float) -> None:
    seconds = chat.seconds.copy()
    seconds[chat.requests // 2 :] += by
    jumped = dataclasses.replace(chat, seconds=seconds)
    capacity = chat.unique // 10
    assert rate(jumped, DEFAULT, capacity) >= rate(jumped, "lru", capacity) - 0.5


def test_a_clock_that_says_anything_harms_no_more_than_it_harms_lru(chat: Trace) -> None:
    seconds = chat.seconds + np.random.default_rng(0).normal(0, 1e5, chat.requests)
    mad = dataclasses.replace(chat, seconds=seconds)
    capacity = chat.unique // 10
    assert rate(mad, DEFAULT, capacity) >= rate(mad, "lru", capacity) - 0.5


def resident(world: World, space: object) -> int:
    """Bytes of a namespace's blocks."""
    columns = world.store.index.columns
    here = (columns["state"] == 2) & (columns["ns"] == world.store.open(space))
    return int(columns["bytes"][here].sum())


def test_a_tenant_that_floods_leaves_the_others_their_floor_and_one_without_a_floor_nothing() -> None:
    world = World(max_blocks=512)
    mine, other, flood = (
        dataclasses.replace(world.namespace, model=name) for name in ("mine", "other", "flood")
    )
    world.store.share(mine, floor=64 * 4096)
    for space in (mine, other):
        world.namespace = space
        world.put(world.sequence([7] * 400), {0: range(100)})
    assert resident(world, mine) == resident(world, other) == 100 * 4096
    world.namespace = flood
    for number in range(60):
        world.clock.advance(1.0)
        world.put(world.sequence([number] * 200), {0: range(50)})
        assert resident(world, mine) >= 64 * 4096
    assert resident(world, other) == 0
    assert resident(world, mine) == 64 * 4096
    world.store.audit()


def test_a_tenant_above_its_quota_evicts_its_own_blocks_alone() -> None:
    world = World(max_blocks=512)
    greedy = dataclasses.replace(world.namespace, model="greedy")
    world.put(world.sequence([7] * 400), {0: range(100)})
    world.store.share(greedy, quota=40 * 4096)
    world.namespace = greedy
    for number in range(20):
        world.put(world.sequence([number] * 100), {0: range(25)})
        assert resident(world, greedy) <= 40 * 4096
    columns = world.store.index.columns
    assert (columns["state"] == 2).sum() == 100 + 40
    world.store.audit()


def test_floors_that_do_not_fit_the_pool_are_refused_with_the_numbers() -> None:
    world = World()
    with pytest.raises(ValueError, match="floors of 4194304 bytes together; the pool has 2097152"):
        world.store.share(world.namespace, floor=4 << 20)
    with pytest.raises(ValueError, match="a floor of 8192 bytes above a quota of 4096"):
        world.store.share(world.namespace, floor=8192, quota=4096)


def test_when_everything_is_pinned_puts_are_refused_and_later_they_are_not() -> None:
    world = World(max_blocks=512)
    kept = world.sequence([1] * 2048)
    world.put(kept, {0: range(512)})
    assert world.store.pin(kept, ttl=60.0) is not None
    for number in range(2, 30):
        refused = world.store.reserve(world.sequence([number] * 400), {0: range(100)}, 1.0)
        world.commit(refused)
        world.pass_time(0.1)
    assert world.store.match(kept).tokens >= 2044 - 4 * 4
    world.pass_time(61.0)
    world.put(world.sequence([99] * 2048), {0: range(500)})
    assert world.store.match(world.sequence([99] * 2048)).tokens >= 490 * 4
    world.store.audit()

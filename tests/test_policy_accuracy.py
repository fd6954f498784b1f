"""Hit rates on real traces: the published ones again, and the default policy beside leaf-first LRU on both halves."""

from functools import cache

import numpy as np
import pytest

from kvarter.policy import CONTINUES, DEFAULT, ENDS, named
from kvarter.trace import Trace, generate, infinite, optimum, replay, replay_tiers
from traces import AGENTS, CONVERSATION, needs_traces, real

pytestmark = needs_traces

SIZES = (1, 5, 10, 20, 50)
# Hit rates in percent at these sizes in percent of the unique blocks, measured by others and by ourselves with
# programs that share nothing with this one; and how far we may be off.
KNOWN = {
    "lru": (0.3, (5.25, 19.58, 27.89, 34.53, 36.31), (27.40, 69.85, 85.82, 89.89, 89.96)),
    "fifo": (0.3, (5.13, 17.59, 24.85, 31.33, 35.56), (26.09, 62.59, 80.60, 88.90, 89.88)),
    "lfu": (0.3, (5.82, 12.67, 19.49, 30.69, 36.27), (2.21, 9.55, 18.09, 30.65, 64.68)),
    "opt": (0.3, (24.64, 36.64, 36.64, 36.64, 36.64), (40.07, 78.25, 89.12, 89.96, 89.96)),
    "arc": (1.0, (6.50, 21.01, 28.43, 32.01, 36.27), (28.01, 71.22, 86.63, 89.48, 89.45)),
    "s3fifo": (1.0, (7.49, 18.62, 24.45, 32.76, 36.19), (21.32, 62.33, 82.68, 88.18, 89.31)),
    "wild": (1.0, (7.53, 20.70, 28.37, 34.79, 36.33), (30.61, 71.01, 86.07, 89.89, 89.96)),
}


def rate(trace: Trace, policy: str, percent: float, hints: np.ndarray | None = None) -> float:
    capacity = int(trace.unique * percent / 100)
    if policy == "opt":
        return optimum(trace, capacity).hit_rate
    return replay(trace, named(policy)(capacity), capacity, hints=hints).hit_rate


@cache
def gains(trace_name: str, part: str) -> tuple[float, ...]:
    """Points of the default over LRU at 1, 5, 10 and 20 %."""
    trace = real(trace_name)
    if part != "all":
        trace = trace.halves()[part == "second half"]
    return tuple(rate(trace, DEFAULT, size) - rate(trace, "lru", size) for size in SIZES[:4])


@pytest.mark.parametrize("policy", KNOWN)
def test_known_hit_rates_come_out_again(policy: str) -> None:
    most, *known = KNOWN[policy]
    for name, rates in zip((CONVERSATION, AGENTS), known, strict=True):
        found = [rate(real(name), policy, size) for size in SIZES]
        assert np.abs(np.array(found) - rates).max() <= most, (name, found)


def test_a_cache_without_end_serves_what_is_known() -> None:
    assert infinite(real(CONVERSATION)) == pytest.approx(36.64, abs=0.01)
    assert infinite(real(AGENTS)) == pytest.approx(89.96, abs=0.01)


@pytest.mark.parametrize("part", ["all", "first half", "second half"])
def test_the_default_wins_over_lru_on_average_and_nowhere_loses_more_than_noise(part: str) -> None:
    cells = [gain for name in (CONVERSATION, AGENTS) for gain in gains(name, part)]
    assert min(cells) >= -0.3, cells
    assert np.mean(cells) >= 1.5, cells


@pytest.mark.parametrize("parity", [0, 1])
def test_the_default_wins_on_either_half_of_the_sessions(parity: int) -> None:
    trace = real(AGENTS)
    trace = trace.part(trace.session % 2 == parity, f"sessions {parity}")
    cells = [rate(trace, DEFAULT, size) - rate(trace, "lru", size) for size in SIZES[:4]]
    assert min(cells) >= -0.3 and np.mean(cells) >= 1.5, cells


def hints(trace: Trace, right: float) -> np.ndarray:
    wrong = np.random.default_rng(0).random(trace.requests) >= right
    return np.where(trace.continues() ^ wrong, CONTINUES, ENDS).astype(np.uint8)


def test_a_hint_that_is_mostly_right_helps_where_there_is_something_to_win_and_costs_nothing_elsewhere() -> (
    None
):
    trace = real(CONVERSATION)
    told = hints(trace, 0.8)
    assert rate(trace, DEFAULT, 5, told) >= 25.0
    assert rate(trace, DEFAULT, 20, told) >= rate(trace, "lru", 20) - 0.3


@pytest.mark.parametrize("name", [CONVERSATION, AGENTS])
def test_a_hint_that_is_always_wrong_costs_next_to_nothing(name: str) -> None:
    trace = real(name)
    told = hints(trace, 0.0)
    for size in (5, 20):
        assert rate(trace, DEFAULT, size, told) >= rate(trace, DEFAULT, size) - 0.5


@pytest.mark.parametrize("first, second, known", [(2, 5, (23.8, 79.7)), (5, 10, (31.9, 89.7))])
def test_two_tiers_that_hold_different_blocks_serve_what_one_of_both_sizes_does(
    first: int, second: int, known: tuple[float, float]
) -> None:
    for name, expected in zip((CONVERSATION, AGENTS), known, strict=True):
        assert rate(real(name), "lru", first + second) == pytest.approx(expected, abs=0.3)


# As measured by others, of a disk that takes everything and is told of every hit above.
@pytest.mark.parametrize("first, second, known", [(2, 5, (19.6, 69.9)), (5, 10, (27.9, 85.8))])
def test_a_disk_that_everything_is_copied_down_to_serves_what_is_known(
    first: int, second: int, known: tuple[float, float]
) -> None:
    for name, expected in zip((CONVERSATION, AGENTS), known, strict=True):
        trace = real(name)
        sizes = [int(trace.unique * percent / 100) for percent in (first, second)]
        found = replay_tiers(trace, named("lru")(sizes[0]), *sizes)
        assert found.hit_rate == pytest.approx(expected, abs=0.3)
        assert found.above_rate == rate(trace, "lru", first)


@pytest.mark.parametrize("kind", ["chat", "rag", "agents"])
def test_the_default_wins_on_traffic_that_nobody_tuned_it_on(kind: str) -> None:
    trace = generate(kind, seed=3, sessions={"chat": 600, "rag": 1200, "agents": 40}[kind])
    cells = [rate(trace, DEFAULT, size) - rate(trace, "lru", size) for size in SIZES[:4]]
    assert min(cells) >= -1.0 and np.mean(cells) > 0.0, cells

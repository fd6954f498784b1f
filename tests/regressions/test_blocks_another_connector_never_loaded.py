"""Under a MultiConnector, blocks that its other child was still loading, or failed to load, were stored."""

from typing import Any

import pytest

from kvarter.geometry import CacheGroup, Full, Geometry

GEOMETRY = Geometry(8, (CacheGroup("full", Full(), 8, (1,)),))
PROMPT = [60, *range(50)]


def is_right_from_the_pool(engine: Any) -> bool:
    """Asks again, the other child keeping out: what was stored is loaded."""
    engine.runner.wrong.clear()  # of a step whose synchronous load failed: the engine drops what it sampled
    for last in (7, 8):
        engine.drop_prefix_cache()
        engine.ask([[*PROMPT, last]], 5)
    return engine.runner.wrong == []


def test_a_request_aborted_during_the_others_load_stores_nothing(core: Any) -> None:
    from scheduler_sibling import beside

    engine = core(GEOMETRY, blocks=40, transfer=beside(asynchronous=True, after=3))
    engine.add("sibling", PROMPT, 5)
    engine.step()
    engine.abort("sibling")
    engine.drain()
    (kvarter,) = engine.stores()
    assert kvarter.stats()["offered"] == 0
    assert is_right_from_the_pool(engine)


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_blocks_that_the_other_failed_to_load_are_not_stored(
    core: Any, ahead: int, asynchronous: bool
) -> None:
    from scheduler_sibling import beside

    engine = core(GEOMETRY, blocks=40, steps_ahead=ahead, transfer=beside(asynchronous=asynchronous, after=3))
    engine.add("sibling", PROMPT, 5)
    engine.step()
    engine.step()
    engine.abort("sibling")
    engine.drain()
    assert is_right_from_the_pool(engine)
    engine.add("sibling again", [1, *PROMPT], 5)
    engine.drain()
    assert is_right_from_the_pool(engine)

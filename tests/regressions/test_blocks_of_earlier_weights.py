"""Blocks computed before the weights changed were stored as the new weights' when the engine had kept them."""

from typing import Any

import pytest

from kvarter.geometry import CacheGroup, Full, Geometry

GEOMETRY = Geometry(8, (CacheGroup("full", Full(), 8, (1,)),))


@pytest.mark.parametrize("then", ["abort", "finish", "share"])
def test_what_was_computed_before_a_reset_is_not_stored_after_it(core: Any, then: str) -> None:
    engine, prompt = core(GEOMETRY, blocks=40, extra={}), list(range(60))
    engine.add("running", prompt, 20)
    engine.step()
    engine.step()
    assert not engine.change_weights(running=False)  # the engine keeps what is in use
    longer = prompt + [7] * 30
    if then == "abort":
        engine.abort("running")
    if then == "share":  # builds on the old blocks, in the engine's own cache
        engine.ask([longer], 5)
    engine.drop_prefix_cache()
    engine.runner.wrong.clear()  # with old blocks the engine went on by itself, as it was told
    engine.ask([longer], 5)
    assert engine.runner.wrong == []
    engine.drop_prefix_cache()
    engine.ask([longer], 5)
    assert engine.runner.wrong == []
    assert engine.tokens()["loaded"] == len(longer) // 8 * 8  # stored anew by the second last

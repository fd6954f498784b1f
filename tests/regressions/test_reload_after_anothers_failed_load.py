"""A request whose load another connector had failed was matched, and the engine, which counts twice what such a request
needs, never admitted it: nothing behind it ran any more."""

from typing import Any

from kvarter.geometry import CacheGroup, Full, Geometry

GEOMETRY = Geometry(8, (CacheGroup("full", Full(), 8, (1,)),))


def test_a_request_whose_load_failed_elsewhere_is_recomputed(core: Any) -> None:
    from scheduler_sibling import beside

    engine, prompt = core(GEOMETRY, blocks=40, transfer=beside(asynchronous=True, after=1)), [5] * 120
    engine.ask([prompt], 3)
    engine.drop_prefix_cache()
    for name in ("sibling 1", "sibling 2"):  # the other promises them first, and fails
        engine.add(name, prompt, 3)
    engine.drain()
    assert len(engine.outputs["sibling 2"]) == 3
    assert engine.tokens().get("matched", 0) == 0
    assert engine.runner.wrong == []

"""Model runner V2 zeroes fresh blocks before it tells the connector: a store still reading one was torn, and served."""

from typing import Any

import pytest

from kvarter.geometry import CacheGroup, Full, Geometry, State

GEOMETRY = Geometry(8, (CacheGroup("full", Full(), 8, (1,)), CacheGroup("state", State(), 8, (1,))))


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_a_store_whose_source_may_have_been_zeroed_is_given_up(
    core: Any, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(runner == "v2")))
    slow = {"copy_member": "faulty", "faults": {"delay": 0.02}}
    engine = core(GEOMETRY, blocks=30, extra=slow)
    prompts = [[n] * 90 for n in range(4)]
    for n, prompt in enumerate(
        prompts
    ):  # one after the other, each in blocks that the one before has let go of
        engine.add(f"{n}", prompt, 3)
        for _ in range(8):
            engine.step()
    engine.drop_prefix_cache()
    engine.ask(prompts, 3)
    assert engine.seen["flushed"] > 0
    assert engine.runner.wrong == []

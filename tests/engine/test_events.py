"""KV events as a router gets them: over the engine's own publisher, replayed, and held against what is served."""

from typing import Any

import pytest

from engine_words import idle, the_store
from kvarter.demo import engine
from router import BLOCK


@pytest.mark.parametrize("name", ["llama", "gptoss"])
def test_a_router_that_replays_the_events_knows_what_is_served(
    start: Any, prompts: Any, kvarter_config: Any, events: Any, name: str
) -> None:
    router, settings = events
    asked = prompts(10, 320, shared=160, families=3, seed=31)
    full = {"llama": 0, "gptoss": 1}[name]
    small = {"llama": "3MiB", "gptoss": "2MiB"}[name]  # holds a part: blocks go while others come
    kv = kvarter_config(dram=small)
    llm = start(name, kv=kv, blocks=64, block_size=BLOCK, max_model_len=640, kv_events_config=settings)
    for prompt in asked:
        engine.ask(llm, [prompt], 4)
        engine.drop_prefix_cache(llm)
    for prompt in (*asked, *asked[:4]):
        engine.settle(llm)
        router.listen()
        resident = sum(map(len, router.here.values()))
        assert resident == the_store().stats()["resident_blocks"]
        expected = min(router.leading(prompt, full), len(prompt) - 1) // BLOCK * BLOCK
        (reply,) = engine.ask(llm, [prompt], 4)
        if name == "llama":
            assert reply.cached_tokens == expected
        else:
            assert reply.cached_tokens <= expected
        engine.drop_prefix_cache(llm)
    assert idle(llm)["evicted"] > 0
    router.listen()
    assert router.removed > 0
    assert router.strays == []


def test_blocks_of_void_weights_are_removed_and_told_again_when_they_return(
    start: Any, prompts: Any, kvarter_config: Any, events: Any
) -> None:
    router, settings = events
    (prompt,) = prompts(1, 320, seed=32)
    llm = start("llama", kv=kvarter_config(), blocks=64, block_size=BLOCK, kv_events_config=settings)
    engine.ask(llm, [prompt], 4)
    engine.settle(llm)
    router.listen()
    assert router.leading(prompt, 0) == 320
    assert llm.llm_engine.reset_prefix_cache(reset_connector=True)  # weights changed: the old blocks are void
    engine.ask(llm, [prompt], 4)
    engine.settle(llm)
    for _ in range(20):  # the void blocks go in the background
        engine.ask(llm, [prompt[:8]], 1)
    router.listen()
    assert router.leading(prompt, 0) == 320
    assert sum(map(len, router.here.values())) == the_store().stats()["resident_blocks"]
    assert router.strays == []

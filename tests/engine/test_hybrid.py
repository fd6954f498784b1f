"""Models with several cache groups: windows and recurrent states come back at exactly their boundaries."""

from itertools import pairwise
from typing import Any

import pytest

from engine_words import expected_of, idle, settings_of
from kvarter.demo import engine

# What the engine makes of each model: (alignment of hits, groups).
MODELS = {"gptoss": (32, 2), "qwen3next": (256, 4)}
DELAYED = {"copy_member": "faulty", "faults": {"delay": 0.01}}


@pytest.fixture(params=MODELS)
def hybrid(request: Any) -> Any:
    """(name, settings, alignment, groups) of one model after the other."""
    return request.param, settings_of(request.param), *MODELS[request.param]


@pytest.mark.parametrize("copying", [{}, DELAYED], ids=["inline", "delayed"])
def test_a_hybrid_model_says_the_same_from_the_pool(
    start: Any, prompts: Any, baseline: Any, truth: Any, hybrid: Any, copying: Any
) -> None:
    name, settings, align, groups = hybrid
    asked = prompts(4, 620, shared=300, families=2, seed=21) + prompts(2, 97, seed=22)
    expected = expected_of(baseline, name, asked, 16)
    llm = start(name, kv=truth.config(**copying), **settings)
    assert engine.groups(llm) == groups
    for round_ in range(3):
        replies = engine.ask(llm, asked, 16)
        assert [reply.tokens for reply in replies] == expected
        if round_:
            assert [reply.cached_tokens for reply in replies[:4]] == [619 // align * align] * 4
        engine.drop_prefix_cache(llm)
    stats = idle(llm)
    assert truth.copied == stats["stored"] > 0
    assert truth.torn == 0
    assert engine.counter(llm, "vllm:external_prefix_cache_hits") > 0


def test_a_conversation_goes_on_from_the_end_of_its_last_turn(
    start: Any, prompts: Any, baseline: Any, kvarter_config: Any, hybrid: Any
) -> None:
    name, settings, align, _ = hybrid
    (first,) = prompts(1, 500, seed=23)
    more = prompts(2, 60, seed=24)
    turn = first
    heard: list[tuple[list[int], list[int], int]] = []
    llm = start(name, kv=kvarter_config(), **settings)
    for extra in (*more, None):
        (reply,) = engine.ask(llm, [turn], 40)
        heard.append((turn, reply.tokens, reply.cached_tokens))
        engine.drop_prefix_cache(llm)
        if extra is not None:
            turn = turn + reply.tokens + extra
    assert heard[0][2] == 0
    for (before, answer, _), (_, _, cached) in pairwise(heard):
        assert cached >= (len(before) - 1) // align * align
        if name == "gptoss":
            assert cached >= (len(before) + len(answer) - 1) // align * align - align
    idle(llm)
    start.close()
    for turn, answer, _ in heard:
        assert expected_of(baseline, name, [turn], 40) == [answer]


@pytest.mark.parametrize("fault", [{"fail_every": 17}, {"flip_every": 17}], ids=["failing", "flipping"])
def test_a_failed_load_of_a_hybrid_becomes_a_recompute(
    start: Any, prompts: Any, baseline: Any, truth: Any, hybrid: Any, fault: Any
) -> None:
    name, settings, _, _ = hybrid
    asked = prompts(3, 600, shared=300, seed=25)
    expected = expected_of(baseline, name, asked, 8)
    llm = start(name, kv=truth.config(copy_member="faulty", faults=fault), **settings)
    for _ in range(5):
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == expected
        engine.drop_prefix_cache(llm)
    stats = idle(llm)
    assert stats["load_failed"] > 0
    assert stats["leased"] == stats["loaded"] + stats["load_failed"] + stats["load_expired"]


def test_preemption_of_a_hybrid_tears_no_block(
    start: Any, prompts: Any, baseline: Any, truth: Any, hybrid: Any
) -> None:
    name, settings, _, _ = hybrid
    asked = prompts(5, 300, seed=26)
    expected = expected_of(baseline, name, asked, 120)
    few = {"gptoss": 44, "qwen3next": 16}[name]
    llm = start(name, kv=truth.config(**DELAYED), **{**settings, "blocks": few, "max_model_len": 768})
    assert [reply.tokens for reply in engine.ask(llm, asked, 120)] == expected
    assert llm.reset_prefix_cache()
    assert [reply.tokens for reply in engine.ask(llm, asked, 120)] == expected
    stats = idle(llm)
    assert truth.copied == stats["stored"] > 0
    assert truth.torn == 0

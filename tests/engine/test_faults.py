"""What goes wrong beneath a running engine, for every kind of model: each case ends in the same tokens."""

import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine_words import expected_of, idle, settings_of, the_store
from kvarter.demo import engine

SLOW = {"copy_member": "faulty", "faults": {"delay": 0.02}, "load_seconds": 0.05}


@pytest.fixture(params=["llama", "gptoss", "qwen3next"])
def name(request: Any) -> str:
    """One model after the other: full attention, windows, recurrent states."""
    return request.param


def test_a_load_past_its_deadline_becomes_a_recompute(
    start: Any, prompts: Any, baseline: Any, kvarter_config: Any, name: str
) -> None:
    asked = prompts(2, 600, shared=300, seed=51)
    expected = expected_of(baseline, name, asked, 8)
    llm = start(name, kv=kvarter_config(**SLOW), **settings_of(name))
    for _ in range(3):
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == expected
        engine.drop_prefix_cache(llm)
    stats = idle(llm)
    assert stats["load_expired"] > 0
    assert stats["leased"] == stats["loaded"] + stats["load_failed"] + stats["load_expired"]


def test_a_slot_that_was_scribbled_over_is_never_served_and_heals(
    start: Any, prompts: Any, baseline: Any, kvarter_config: Any, name: str
) -> None:
    (prompt,) = prompts(1, 600, seed=52)
    expected = expected_of(baseline, name, [prompt], 8)
    llm = start(name, kv=kvarter_config(), **settings_of(name))
    cached = []
    for scribble in (False, True, False, False):
        if scribble:  # one byte in each page of the pool: every block is hit
            ((descriptor, size),) = the_store().pool.arenas
            with mmap.mmap(descriptor, size) as pool:
                for at in range(0, size, 4096):
                    pool[at] ^= 1
        (reply,) = engine.ask(llm, [prompt], 8)
        assert reply.tokens == expected[0]
        cached.append(reply.cached_tokens)
        engine.drop_prefix_cache(llm)
    assert cached[0] == cached[1] == 0
    assert cached[2:] == [599 // settings_of(name)["block_size"] * settings_of(name)["block_size"]] * 2
    assert idle(llm)["corrupt"] > 0


def test_a_request_aborted_while_its_load_is_under_way_leaves_the_others_alone(
    start: Any, prompts: Any, baseline: Any, truth: Any, name: str
) -> None:
    from vllm import SamplingParams

    asked = prompts(3, 600, shared=300, seed=53)
    expected = expected_of(baseline, name, asked, 8)
    config = truth.config(copy_member="faulty", faults={"delay": 0.02})
    llm = start(name, kv=config, **settings_of(name))
    engine.ask(llm, asked, 8)
    engine.drop_prefix_cache(llm)
    for round_ in range(3):
        gone = f"gone-{round_}"
        llm.llm_engine.add_request(gone, {"prompt_token_ids": asked[round_]}, SamplingParams(max_tokens=8))
        for _ in range(2):
            llm.llm_engine.step()
        assert the_store().audit()["leased"] > 0
        llm.llm_engine.abort_request([gone])
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == expected
        engine.drop_prefix_cache(llm)
    idle(llm)
    assert truth.torn == 0


def test_in_a_pool_that_is_full_of_what_is_being_read_stores_are_refused_and_counted(
    start: Any, prompts: Any, baseline: Any, truth: Any, name: str
) -> None:
    """The pool holds about one prompt: matches are held and leased while others would evict them."""
    asked = prompts(4, 600, seed=54)
    expected = expected_of(baseline, name, asked, 8)
    small = {"dram": "2MiB", "max_blocks": 12} if name == "qwen3next" else {"dram": "3MiB"}
    config = truth.config(**small, copy_member="faulty", faults={"delay": 0.01})
    llm = start(name, kv=config, **settings_of(name))
    for _ in range(3):
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == expected
        assert [reply.tokens for reply in engine.ask(llm, asked[:1], 8)] == expected[:1]
        engine.drop_prefix_cache(llm)
    stats = idle(llm)
    assert stats["evicted"] + stats["no_space"] > 0
    assert truth.torn == 0


def test_an_engine_whose_worker_is_killed_dies_by_itself_and_the_next_one_starts_clean(
    model: Any, prompts: Any, baseline: Any, tmp_path: Path
) -> None:
    asked = prompts(2, 300, shared=150, seed=55)
    expected = baseline("llama", asked, 8)
    child = Path(__file__).parent / "doubles" / "killed_worker.py"
    outcomes = []
    for kill in ("kill", "live"):
        done = subprocess.run(
            [sys.executable, str(child), str(model("llama")), str(tmp_path), kill],
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.stdout, done.stderr[-2000:]
        outcomes.append(json.loads(done.stdout.splitlines()[-1]))
    assert outcomes[0] == {"died": True, "tokens": expected}
    assert outcomes[1] == {"died": False, "tokens": expected}
    assert [path.name for path in tmp_path.iterdir() if path.is_socket()] == []

"""With Kvarter beneath it, an engine says the very same tokens, whatever happens to its blocks meanwhile."""

from typing import Any

import pytest
from prometheus_client import REGISTRY

from kvarter.demo import engine

DELAYED = {"copy_member": "faulty", "faults": {"delay": 0.03}}


def tokens(replies: list[engine.Reply]) -> list[list[int]]:
    return [reply.tokens for reply in replies]


def the_store() -> Any:
    from kvarter.connectors.vllm import stores

    (store,) = stores()
    return store


def series(name: str, label: str) -> dict[str, float]:
    """Values of one Prometheus series by one of its labels."""
    samples = [sample for metric in REGISTRY.collect() for sample in metric.samples if sample.name == name]
    return {sample.labels[label]: sample.value for sample in samples}


def idle(llm: Any) -> dict[str, int]:
    """The account once the engine has settled: exact, and with nothing held."""
    engine.settle(llm)
    store = the_store()
    ledger = store.audit()
    assert ledger["reserved"] == ledger["leased"] == ledger["quarantined"] == ledger["dead"] == 0
    return store.stats()


@pytest.mark.parametrize("copying", [{}, {"copy_threads": 2}, DELAYED], ids=["inline", "threads", "delayed"])
def test_random_prompts_sharing_prefixes_with_chunked_prefill(
    start: Any, prompts: Any, baseline: Any, truth: Any, copying: Any
) -> None:
    asked = prompts(9, 330, shared=190, families=3, seed=1) + prompts(3, 97, seed=2)
    expected = baseline("llama", asked, 24)
    llm = start("llama", blocks=64, block_size=32, kv=truth.config(**copying), max_num_batched_tokens=128)
    assert tokens(engine.ask(llm, asked, 24)) == expected
    for _ in range(2):
        engine.drop_prefix_cache(llm)
        assert tokens(engine.ask(llm, asked, 24)) == expected
    stats = idle(llm)
    assert engine.counter(llm, "vllm:external_prefix_cache_hits") >= 9 * 288
    assert stats["loaded"] >= 9 * 9
    assert truth.copied == stats["stored"] > 0
    assert truth.torn == 0


def test_preemption_with_copies_that_lag_behind_tears_no_block(
    start: Any, prompts: Any, baseline: Any, truth: Any
) -> None:
    asked = prompts(6, 150, seed=3)
    expected = baseline("llama", asked, 150)
    llm = start("llama", blocks=34, block_size=32, kv=truth.config(**DELAYED))
    assert tokens(engine.ask(llm, asked, 150)) == expected
    assert engine.counter(llm, "vllm:num_preemptions") > 0
    assert llm.reset_prefix_cache()  # at once: nothing of ours holds a block
    assert tokens(engine.ask(llm, asked, 150)) == expected
    stats = idle(llm)
    assert truth.flushed > 0
    assert truth.copied == stats["stored"] > 20
    assert truth.torn == 0
    engine.drop_prefix_cache(llm)
    assert sum(reply.cached_tokens for reply in engine.ask(llm, asked, 2)) == 6 * 128


def test_a_request_aborted_while_its_load_is_under_way_costs_nothing(
    start: Any, prompts: Any, baseline: Any, truth: Any
) -> None:
    from vllm import SamplingParams

    asked = prompts(2, 300, seed=4)
    expected = baseline("llama", asked, 4)
    llm = start("llama", blocks=64, block_size=32, kv=truth.config(**DELAYED))
    core = llm.llm_engine.engine_core.engine_core
    free = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    engine.ask(llm, asked, 4)
    engine.drop_prefix_cache(llm)
    llm.llm_engine.add_request("gone", {"prompt_token_ids": asked[0]}, SamplingParams(max_tokens=4))
    while not any(r.status.name == "WAITING_FOR_REMOTE_KVS" for r in core.scheduler.requests.values()):
        llm.llm_engine.step()
    llm.llm_engine.abort_request(["gone"])
    assert tokens(engine.ask(llm, asked, 4)) == expected
    stats = idle(llm)
    assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert stats["leased"] == stats["loaded"] + stats["load_failed"]
    assert truth.torn == 0


def test_requests_aborted_while_their_stores_are_under_way_tear_no_block(
    start: Any, prompts: Any, baseline: Any, truth: Any
) -> None:
    from vllm import SamplingParams

    asked = prompts(8, 200, seed=5)
    expected = baseline("llama", asked, 8)
    llm = start("llama", blocks=34, block_size=32, kv=truth.config(**DELAYED))
    core = llm.llm_engine.engine_core.engine_core
    for number, prompt in enumerate(asked):
        sampling = SamplingParams(max_tokens=40, ignore_eos=True)
        llm.llm_engine.add_request(f"r{number}", {"prompt_token_ids": prompt}, sampling)
        for _ in range(3):
            llm.llm_engine.step()
        llm.llm_engine.abort_request([f"r{number}"])
        assert not core.scheduler.has_unfinished_requests()
    engine.settle(llm)
    assert llm.reset_prefix_cache()
    assert tokens(engine.ask(llm, asked, 8)) == expected
    idle(llm)
    assert truth.copied > 8
    assert truth.torn == 0


def test_the_cache_can_be_cleared_with_a_store_under_way(start: Any, prompts: Any, truth: Any) -> None:
    llm = start(
        "llama", blocks=64, block_size=32, kv=truth.config(copy_member="faulty", faults={"delay": 0.3})
    )
    core = llm.llm_engine.engine_core.engine_core
    engine.ask(llm, prompts(1, 300), 4)
    assert the_store().stats()["in_flight"] > 0
    core.pause_scheduler("abort", clear_cache=True)


@pytest.mark.parametrize("fault", [{"fail_every": 13}, {"flip_every": 13}], ids=["failing", "flipping"])
def test_failed_and_corrupt_loads_become_recomputes_and_heal(
    start: Any, prompts: Any, baseline: Any, truth: Any, fault: Any
) -> None:
    asked = prompts(6, 300, shared=100, seed=6)
    expected = baseline("llama", asked, 12)
    llm = start("llama", blocks=64, block_size=32, kv=truth.config(copy_member="faulty", faults=fault))
    for _ in range(5):
        assert tokens(engine.ask(llm, asked, 12)) == expected
        engine.drop_prefix_cache(llm)
    stats = idle(llm)
    tokens_by = series("kvarter_tokens_total", "outcome")
    assert tokens_by["failed"] > 0
    assert tokens_by["loaded"] > 0
    assert tokens_by["matched"] == tokens_by["loaded"] + tokens_by["failed"]
    assert tokens_by["matched"] == engine.counter(llm, "vllm:external_prefix_cache_hits")
    states = series("kvarter_bytes", "state")
    assert states.pop("capacity") == sum(states.values())
    assert stats["corrupt"] > 0 if "flip_every" in fault else stats["failed"] > 0
    assert stats["leased"] == stats["loaded"] + stats["load_failed"] + stats["load_expired"]


def test_a_pool_too_small_for_the_work_is_only_a_smaller_cache(
    start: Any, prompts: Any, baseline: Any, truth: Any
) -> None:
    asked = prompts(8, 300, seed=7)
    expected = baseline("llama", asked, 8)
    llm = start("llama", blocks=64, block_size=32, kv=truth.config(dram="2MiB", max_blocks=16))
    for _ in range(2):
        assert tokens(engine.ask(llm, asked, 8)) == expected
        engine.drop_prefix_cache(llm)
    stats = idle(llm)
    assert stats["evicted"] > 0
    assert stats["resident_blocks"] <= 16


def test_salts_separate_and_a_new_epoch_finds_nothing_of_the_old(
    start: Any, prompts: Any, kvarter_config: Any
) -> None:
    from vllm import SamplingParams

    (asked,) = prompts(1, 300, seed=8)
    llm = start("llama", blocks=64, block_size=32, kv=kvarter_config())

    def cached(salt: str | None) -> int:
        engine.drop_prefix_cache(llm)
        prompt = {"prompt_token_ids": asked} | ({"cache_salt": salt} if salt else {})
        return llm.generate([prompt], SamplingParams(max_tokens=2), use_tqdm=False)[0].num_cached_tokens

    assert [cached(None), cached("a"), cached("b")] == [0, 0, 0]
    assert [cached(None), cached("a"), cached("b")] == [288, 288, 288]
    assert llm.reset_prefix_cache(reset_connector=True)
    assert [cached(None), cached("a")] == [0, 0]
    assert cached(None) == 288
    assert the_store().stats()["invalidated"] > 0
    idle(llm)


def _shift(model: Any) -> None:
    import torch

    torch.manual_seed(1)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.data.add_(torch.randn_like(weight) * 0.02)


def test_after_a_weight_update_with_stores_under_way_nothing_of_the_old_weights_is_served(
    start: Any, prompts: Any, truth: Any
) -> None:
    from vllm import SamplingParams

    asked = prompts(3, 300, seed=10)
    llm = start("llama", blocks=64, block_size=32, kv=truth.config(**DELAYED))

    def answers(salt: str | None = None) -> list[list[int]]:
        extra = {"cache_salt": salt} if salt else {}
        sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        out = llm.generate([{"prompt_token_ids": p, **extra} for p in asked], sampling, use_tqdm=False)
        return [list(o.outputs[0].token_ids) for o in out]

    old = answers()
    assert the_store().stats()["in_flight"] > 0
    llm.apply_model(_shift)
    assert llm.reset_prefix_cache(reset_connector=True)
    new = answers(salt="computed, whatever is stored")
    assert new != old
    for _ in range(2):
        assert answers() == new
        engine.drop_prefix_cache(llm)
    assert idle(llm)["loaded"] >= 3 * 9
    assert truth.torn == 0

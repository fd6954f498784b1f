"""What requests say of their future reaches the placement policy, and nonsense costs nothing."""

from typing import Any

from engine_words import idle, series, the_store
from kvarter.demo import engine


def test_hints_in_a_request_reach_the_store(start: Any, prompts: Any, kvarter_config: Any) -> None:
    from vllm import SamplingParams

    llm = start("llama", kv=kvarter_config(), blocks=64, block_size=32)

    def ask(prompt: list[int], hints: Any) -> None:
        extra = {"kv_transfer_params": {"kvarter": hints}}
        sampling = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, extra_args=extra)
        llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        engine.drop_prefix_cache(llm)

    one, other, third = prompts(3, 300, seed=81)
    ask(one, {"session": "a", "returns_within": 60, "ttl": 30})
    ask(one, {"session": "a", "ends": True, "ttl": 30})
    assert the_store().stats()["hints"] == 1
    ledger = the_store().audit()
    assert ledger["pinned"] > 0
    ask(other, {"session": "b", "priority": 1})
    assert the_store().stats()["hints"] == 2
    ask(third, {"sesion": "c"})
    ask(third, {"session": "c", "returns_within": "soon"})
    assert the_store().stats()["hints"] == 2
    assert idle(llm)["stored"] == 3 * 9
    assert series("kvarter_requests_total", "event")["hint_not_understood"] == 2

"""Beside another connector: vLLM's MultiConnector with statistics on, with and without siblings that know hybrids."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from engine_words import idle, series
from kvarter.demo import engine


@pytest.fixture
def together(kvarter_config: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``together("PlainSibling", first=True)``: the engine's kv_transfer_config of ours and that sibling."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "doubles"))
    importlib.import_module("siblings").asked.clear()

    def make(name: str, first: bool) -> dict[str, Any]:
        sibling = {"kv_connector": name, "kv_connector_module_path": "siblings", "kv_role": "kv_both"}
        both = [sibling, kvarter_config()] if first else [kvarter_config(), sibling]
        return {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": both},
        }

    return make


CASES = [
    ("llama", "PlainSibling", True, {}),
    ("llama", "HybridSibling", False, {}),
    ("gptoss", "HybridSibling", True, {"max_model_len": 1024, "max_num_batched_tokens": 128}),
    # A sibling that knows one group: the engine then treats windows as full attention, and so do we.
    ("gptoss", "PlainSibling", False, {"max_model_len": 1024, "disable_hybrid_kv_cache_manager": True}),
]


@pytest.mark.parametrize(("name", "sibling", "first", "settings"), CASES)
def test_kvarter_serves_the_same_tokens_beside_another_connector(
    start: Any,
    prompts: Any,
    baseline: Any,
    together: Any,
    name: str,
    sibling: str,
    first: bool,
    settings: Any,
) -> None:
    import siblings

    asked = prompts(3, 300, shared=150, seed=41)
    expected = baseline(name, asked, 8)
    llm = start(name, kv=together(sibling, first), blocks=64, block_size=32, **settings)
    for round_ in range(2):
        replies = engine.ask(llm, asked, 8)
        assert [reply.tokens for reply in replies] == expected
        if round_:
            assert [reply.cached_tokens for reply in replies] == [288] * 3
        engine.drop_prefix_cache(llm)
    stats = idle(llm)
    assert stats["loaded"] > 0
    assert siblings.asked["match"] > 0
    assert siblings.asked["finished"] + siblings.asked["finished_all_groups"] == 6
    assert series("kvarter_tokens_total", "outcome")["loaded"] == 3 * 288

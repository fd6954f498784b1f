"""The disk tier beneath a running engine: what memory has lost, and what an engine before this one has left."""

from pathlib import Path
from typing import Any

import pytest

from engine_words import expected_of, idle, series, settings_of, the_store
from kvarter.demo import engine


@pytest.fixture(params=["llama", "gptoss", "qwen3next"])
def name(request: Any) -> str:
    """One model after the other: full attention, windows, recurrent states."""
    return request.param


def on_disk(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(tmp_path / "log"), "capacity": "64MiB", "segment": "4MiB", "measure": False, **more}


def test_an_engine_with_empty_memory_serves_what_the_process_before_it_left(
    start: Any,
    prompts: Any,
    baseline: Any,
    kvarter_config: Any,
    earlier_engine: Any,
    name: str,
    tmp_path: Path,
) -> None:
    asked = prompts(3, 600, shared=300, seed=71)
    expected = expected_of(baseline, name, asked, 8)
    config = kvarter_config(disk=on_disk(tmp_path))
    assert earlier_engine(name, asked, 8, kv=config, **settings_of(name)) == expected
    llm = start(name, kv=config, **settings_of(name))
    assert the_store().stats()["resident_blocks"] == 0
    replies = engine.ask(llm, asked, 8)
    assert [reply.tokens for reply in replies] == expected
    align = settings_of(name)["block_size"]
    assert [reply.cached_tokens for reply in replies] == [599 // align * align] * 3
    stats = idle(llm)
    assert stats["leased"] == stats["loaded"] > 0
    assert the_store().disk.log.audit() == []
    hits = series("kvarter_hit_tokens_total", "tier")
    assert hits["disk"] > 0
    assert sum(hits.values()) == engine.counter(llm, "vllm:external_prefix_cache_hits")
    blocks = series("kvarter_disk_bytes", "state")
    assert blocks.pop("capacity") == sum(blocks.values())
    sequence, risk = series("kvarter_disk_sequence", "of"), series("kvarter_disk_at_risk_bytes", "of")
    assert 0 < sequence["durable"] <= sequence["last"]
    assert set(risk) == {"queued", "undurable"}
    assert (risk["undurable"] == 0) == (sequence["durable"] == sequence["last"])


def test_a_pool_too_small_is_made_up_for_by_the_disk(
    start: Any, prompts: Any, baseline: Any, truth: Any, tmp_path: Path
) -> None:
    asked = prompts(6, 300, seed=72)
    expected = baseline("llama", asked, 8)
    llm = start("llama", kv=truth.config(dram="4MiB", disk=on_disk(tmp_path)), **settings_of("llama"))
    for round_ in range(3):
        for prompt, tokens in zip(asked, expected, strict=True):
            (reply,) = engine.ask(llm, [prompt], 8)
            assert reply.tokens == tokens
            if round_:
                assert reply.cached_tokens == 288
            engine.drop_prefix_cache(llm)
            the_store().disk.flush(20)
    stats = idle(llm)
    assert stats["evicted"] > 0
    assert truth.torn == 0


def test_bits_that_rot_on_disk_are_never_served_and_heal(
    start: Any, prompts: Any, baseline: Any, kvarter_config: Any, tmp_path: Path
) -> None:
    asked = prompts(2, 300, seed=73)
    expected = baseline("llama", asked, 8)
    config = kvarter_config(disk=on_disk(tmp_path))
    llm = start("llama", kv=config, **settings_of("llama"))
    engine.ask(llm, asked, 8)
    start.close()
    for segment in (tmp_path / "log").iterdir():
        data = bytearray(segment.read_bytes())
        for at in range(64 << 10, len(data), 50_000):
            data[at] ^= 1
        segment.write_bytes(data)
    for healed in (False, True):
        llm = start("llama", kv=config, **settings_of("llama"))
        replies = engine.ask(llm, asked, 8)
        assert [reply.tokens for reply in replies] == expected
        if healed:
            assert [reply.cached_tokens for reply in replies] == [288] * 2
        idle(llm)
        start.close()


def test_a_directory_in_use_and_half_a_setting_are_refused(
    start: Any, kvarter_config: Any, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=r"disk\.path is set and disk\.capacity is not"):
        start("llama", kv=kvarter_config(disk={"path": str(tmp_path)}), **settings_of("llama"))
    (tmp_path / "letters.txt").write_text("dear")
    with pytest.raises(Exception, match="no disk tier in"):
        start(
            "llama",
            kv=kvarter_config(disk={"path": str(tmp_path), "capacity": "1GiB"}),
            **settings_of("llama"),
        )
    assert (tmp_path / "letters.txt").read_text() == "dear"

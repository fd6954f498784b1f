"""Plans: what models weigh, and what memory gets of a trace."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvarter.errors import ConfigError
from kvarter.plan import MODELS, model, plan
from kvarter.policy import DEFAULT, named
from kvarter.trace import generate, replay

MIB = 1 << 20
# Bytes a token, and MiB a boundary, as measured or published by others.
PUBLISHED = {
    "deepseek-v3.2": (48_068, 0),
    "glm-5": (48_068, 0),
    "deepseek-v4-pro": (5_511, 4.35 + 2.34),
    "deepseek-v4-flash": (3_850, 3.07 + 1.64),
    "kimi-linear-48b": (8_064, 41.4),
    "kimi-k3": (13_824, 438),
    "qwen3-next-80b": (24_576, 73.7),
    "gemma-3-27b": (81_920, 416),
    "gpt-oss-120b": (36_864, 4.5),
    "gpt-oss-20b": (24_576, 3.0),
    "minimax-m3": (61_440 + 7_296, 0),
    "minimax-m2": (253_952, 0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_weigh_what_is_published(name: str) -> None:
    per_token, boundary = PUBLISHED[name]
    assert MODELS[name].per_token == pytest.approx(per_token, rel=0.001)
    assert MODELS[name].per_boundary / MIB == pytest.approx(boundary, abs=0.05 + 0.005 * boundary)


CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-v3.2": {
        "model_type": "deepseek_v32",
        "num_hidden_layers": 61,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
    },
    "deepseek-v4-flash": {
        "model_type": "deepseek_v4",
        "num_hidden_layers": 43,
        "compress_ratios": [0, 0, *[4, 128] * 20, 4],
    },
    "kimi-linear-48b": {
        "model_type": "kimi_linear",
        "num_hidden_layers": 27,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "linear_attn_config": {
            "kda_layers": list(range(20)),
            "full_attn_layers": list(range(7)),
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
        },
    },
    "qwen3-next-80b": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "head_dim": 256,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
    },
    "gemma-3-27b": {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "num_hidden_layers": 62,
            "head_dim": 128,
            "num_key_value_heads": 16,
            "sliding_window": 1024,
        },
    },
    "gpt-oss-20b": {
        "model_type": "gpt_oss",
        "num_hidden_layers": 24,
        "head_dim": 64,
        "num_key_value_heads": 8,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
    },
    "minimax-m2": {
        "model_type": "minimax_m2",
        "num_hidden_layers": 62,
        "head_dim": 128,
        "num_key_value_heads": 8,
    },
    "llama-3.1-8b": {
        "model_type": "llama",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
    },
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_gives_what_the_table_has(tmp_path: Path, name: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS[name]))
    found = model(str(file))
    assert found.per_token == pytest.approx(MODELS[name].per_token)
    assert found.per_boundary == pytest.approx(MODELS[name].per_boundary, rel=0.01)


def test_layers_that_share_their_kv_weigh_nothing_and_a_window_that_is_computed_again_neither(
    tmp_path: Path,
) -> None:
    file = tmp_path / "config.json"
    shared = {**CONFIGS["deepseek-v4-flash"], "kv_source_layer_ids": [2, 3]}
    file.write_text(json.dumps(shared))
    found = model(str(file))
    assert found.per_token == pytest.approx((584 + 132) / 4 + 584 / 128)
    assert {part.lifetime for part in found.parts} == {"full", "state"}


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "is not JSON"),
        ("[]", "is a JSON list; expected an object"),
        ('{"model_type": "mystery"}', "is of family 'mystery'; expected one of"),
        ('{"model_type": "llama"}', "of family 'llama', lacks or misstates"),
    ],
)
def test_a_config_that_says_too_little_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        model(str(file))
    assert said in str(caught.value)


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no model 'gpt-7'; there are deepseek-v3"):
        model("gpt-7")


def test_a_plan_is_the_replay_in_bytes_and_seconds() -> None:
    trace = generate("rag", sessions=200)
    weighed = MODELS["kimi-linear-48b"]
    block = weighed.block_bytes(16, trace.requests / trace.unique)
    made = plan(trace, weighed, prefill=10_000, dram=[int(block * 700), int(block * 100)])
    assert [point.blocks for point in made.points] == [99, 699] or made.points[1].blocks in (699, 700)
    for point in made.points:
        result = replay(trace, named(DEFAULT)(point.blocks), point.blocks)
        assert point.hit_rate == point.dram_hit_rate == result.hit_rate
        hours = trace.span / 3600
        assert point.prefill_seconds_saved_per_hour == pytest.approx(result.hits.sum() * 16 / 10_000 / hours)
        loaded = result.hits.sum() * 16 * 8064 + (result.hits > 0).sum() * weighed.per_boundary
        assert point.load_gb_per_s == pytest.approx(loaded / trace.span / 1e9)
    assert made.break_even_gb_per_s == pytest.approx(block / 16 * 10_000 / 1e9)


def test_a_disk_beneath_serves_what_both_together_hold() -> None:
    trace = generate("rag", sessions=200)
    weighed = MODELS["llama-3.1-8b"]
    block = int(16 * weighed.per_token)
    with_disk = plan(trace, weighed, 10_000, dram=[block * 100], disk=block * 600).points[0]
    assert with_disk.blocks == 700
    assert with_disk.dram_hit_rate < with_disk.hit_rate


def test_what_is_worth_loading_is_said_of_each_tier_whose_bandwidth_is_given() -> None:
    trace = generate("rag", sessions=200)
    weighed = MODELS["qwen3-next-80b"]  # a boundary weighs as much as 3,000 tokens
    block = int(weighed.block_bytes(16, trace.requests / trace.unique)) + 1

    def shares(dram: float, disk: float) -> tuple[float | None, float | None]:
        point = plan(
            trace,
            weighed,
            10_000,
            dram=[block * 300],
            disk=block * 600,
            dram_bandwidth=dram,
            disk_bandwidth=disk,
        ).points[0]
        return point.dram_worth_loading, point.disk_worth_loading

    assert shares(0.0, 1e15) == (None, 100.0)
    slowest = weighed.per_token * 10_000  # below it no hit pays, however long
    assert shares(0.9 * slowest, 0.9 * slowest) == (0.0, 0.0)
    dram, disk = shares(3 * slowest, 30 * slowest)
    assert dram is not None and disk is not None and 0 < dram < 100 and dram < disk


def test_the_knee_lies_where_more_memory_stops_to_pay() -> None:
    made = plan(generate("rag", sessions=300), MODELS["llama-3.1-8b"], 10_000)
    at = made.points.index(made.knee)
    assert 0 < at < len(made.points) - 1
    rates = [point.hit_rate for point in made.points]
    assert rates[at] - rates[0] > rates[-1] - rates[at]

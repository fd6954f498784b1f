"""A model's geometry from its Hugging Face config.json."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .models import Model, Part, deepseek_sparse, deepseek_v4, full, state, window

_WIDTHS = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}
Fields = dict[str, Any]


def from_config(path: Path) -> Model:
    """Raises `ConfigError`: what is missing, and which families there are."""
    if path.is_dir():
        path = path / "config.json"
    try:
        said = json.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a model's config.json") from None
    except ValueError:
        raise ConfigError(f"{path} is not JSON; expected a model's config.json") from None
    if not isinstance(said, dict):
        raise ConfigError(f"{path} is a JSON {type(said).__name__}; expected an object")
    family = str(said.get("model_type", ""))
    fields = {**said, **said.get("text_config", {})}
    inner = str(fields.get("model_type", family))
    for start, reader in _FAMILIES.items():
        if family.startswith(start) or inner.startswith(start):
            try:
                return Model(
                    str(said.get("_name_or_path") or path.parent.name or family), tuple(reader(fields))
                )
            except (KeyError, TypeError, ZeroDivisionError) as error:
                raise ConfigError(f"{path}, of family {inner!r}, lacks or misstates {error}") from None
    raise ConfigError(f"{path} is of family {family!r}; expected one of {', '.join(_FAMILIES)}")


def _head(fields: Fields) -> int:
    return int(fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"])


def _kv(fields: Fields) -> int:
    """Bytes of K and V of one token in one layer."""
    width = _WIDTHS.get(str(fields.get("dtype") or fields.get("torch_dtype")), 2)
    heads = fields.get("num_key_value_heads") or fields["num_attention_heads"]
    return int(2 * heads * _head(fields) * width)


def _layers(fields: Fields) -> list[str]:
    """The kind of each layer, where the config lists them or says how often full attention comes."""
    count = int(fields["num_hidden_layers"])
    if fields.get("layer_types"):
        return [str(kind) for kind in fields["layer_types"]]
    every = fields.get("sliding_window_pattern") or fields.get("full_attention_interval") or 0
    other = "sliding_attention" if "sliding_window_pattern" in fields else "linear_attention"
    return ["full_attention" if not every or (layer + 1) % every == 0 else other for layer in range(count)]


def _dense(fields: Fields) -> list[Part]:
    return [full("K and V", int(fields["num_hidden_layers"]), _kv(fields))]


def _mixed(fields: Fields) -> list[Part]:
    kinds = _layers(fields)
    return [
        full("full", kinds.count("full_attention"), _kv(fields)),
        window("sliding", kinds.count("sliding_attention"), _kv(fields), int(fields["sliding_window"])),
    ]


def _gemma3(fields: Fields) -> list[Part]:
    return _mixed({"sliding_window_pattern": 6, **fields})


def _mla(fields: Fields) -> list[Part]:
    layers = int(fields["num_hidden_layers"])
    if "index_head_dim" in fields or "index_n_heads" in fields:
        return list(deepseek_sparse("", layers).parts)
    return [full("MLA", layers, 2 * (fields["kv_lora_rank"] + fields["qk_rope_head_dim"]))]


def _v4(fields: Fields) -> list[Part]:
    ratios = [int(ratio) for ratio in fields["compress_ratios"]][: int(fields["num_hidden_layers"])]
    sources = fields.get("kv_source_layer_ids")
    if sources is not None:
        ratios = [ratios[layer] for layer in sorted({*sources})]
    plain = len(ratios) - ratios.count(4) - ratios.count(128)
    parts = deepseek_v4(
        "", ratios.count(4), ratios.count(128), plain, replays_window=sources is not None
    ).parts
    return list(parts)


def _kimi(fields: Fields) -> list[Part]:
    linear = fields["linear_attn_config"]
    heads, width = int(linear["num_heads"]), int(linear["head_dim"])
    conv = 3 * heads * width * (int(linear["short_conv_kernel_size"]) - 1) * 2
    return [
        state("KDA state", len(linear["kda_layers"]), heads * width * width * 4 + conv),
        full(
            "MLA", len(linear["full_attn_layers"]), 2 * (fields["kv_lora_rank"] + fields["qk_rope_head_dim"])
        ),
    ]


def _qwen_next(fields: Fields) -> list[Part]:
    kinds = _layers({"full_attention_interval": 4, **fields})
    values, keys = int(fields["linear_num_value_heads"]), int(fields["linear_num_key_heads"])
    wide, deep = int(fields["linear_value_head_dim"]), int(fields["linear_key_head_dim"])
    conv = (2 * keys * deep + values * wide) * (int(fields["linear_conv_kernel_dim"]) - 1) * 2
    return [
        state("GDN state", kinds.count("linear_attention"), values * wide * deep * 4 + conv),
        full("attention", kinds.count("full_attention"), _kv(fields)),
    ]


def _minimax_m3(fields: Fields) -> list[Part]:
    layers = int(fields["num_hidden_layers"])
    return [
        full("K and V, fp8", layers, _kv(fields) // 2),
        full("sparse index, fp8", layers - int(fields.get("first_k_dense_replace", 3)), 128),
    ]


_FAMILIES: dict[str, Callable[[Fields], list[Part]]] = {
    "deepseek_v4": _v4,
    "deepseek": _mla,
    "glm_moe_dsa": _mla,
    "kimi": _kimi,
    "qwen3_next": _qwen_next,
    "gemma3": _gemma3,
    "gpt_oss": _mixed,
    "minimax_m3": _minimax_m3,
    "minimax": _dense,
    "llama": _dense,
    "mistral": _dense,
    "qwen2": _dense,
    "qwen3": _dense,
}

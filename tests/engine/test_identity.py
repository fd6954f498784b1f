"""Whose bytes they are: adapters and prompt embeddings on the engine, and vLLM's own block hashes as the judge."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from engine_words import idle
from kvarter.demo import engine


def make_adapter(path: Path, seed: int) -> Path:
    """A LoRA adapter of rank 8 for the attention of the small llama."""
    import torch
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    torch.manual_seed(seed)
    weights = {}
    for layer in range(4):
        for module, rows in (("q_proj", 256), ("v_proj", 128)):
            base = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{base}.lora_A.weight"] = torch.randn(8, 256) * 0.2
            weights[f"{base}.lora_B.weight"] = torch.randn(rows, 8) * 0.2
    save_file(weights, path / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "target_modules": ["q_proj", "v_proj"],
        "bias": "none",
    }
    (path / "adapter_config.json").write_text(json.dumps(config))
    return path


def test_adapters_share_nothing_with_each_other_or_the_model_not_even_under_one_name(
    start: Any, prompts: Any, kvarter_config: Any, tmp_path: Path
) -> None:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    (prompt,) = prompts(1, 300, seed=61)
    one, other = make_adapter(tmp_path / "one", 1), make_adapter(tmp_path / "other", 2)
    llm = start(
        "llama", kv=kvarter_config(), blocks=64, block_size=32, enable_lora=True, max_lora_rank=8, max_loras=1
    )
    # Name and path decide: the second is another adapter under the first one's name.
    adapters = [
        None,
        LoRARequest("a", 1, str(one)),
        LoRARequest("a", 2, str(other)),
        LoRARequest("b", 3, str(one)),
    ]

    def ask(adapter: Any) -> tuple[list[int], int]:
        sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
        (out,) = llm.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False, lora_request=adapter)
        engine.drop_prefix_cache(llm)
        return list(out.outputs[0].token_ids), out.num_cached_tokens

    for adapter in adapters:  # their content is being read: until it is, nothing is stored
        ask(adapter)
    first = [ask(adapter) for adapter in adapters]
    again = [ask(adapter) for adapter in adapters]
    assert [tokens for tokens, _ in again] == [tokens for tokens, _ in first]
    assert len({tuple(tokens) for tokens, _ in again[:3]}) == 3
    assert again[1][0] == again[3][0]  # the same adapter under another name: the same tokens, stored apart
    assert [cached for _, cached in again] == [288] * 4
    assert idle(llm)["resident_blocks"] == 4 * 9


def test_prompts_of_embeddings_are_found_by_their_content(
    start: Any, prompts: Any, kvarter_config: Any
) -> None:
    import torch
    from vllm import SamplingParams

    llm = start("llama", kv=kvarter_config(), blocks=64, block_size=32, enable_prompt_embeds=True)
    torch.manual_seed(3)
    one = torch.randn(200, 256)
    other = one.clone()
    other[70] += 0.5  # in the third unit

    def ask(embeds: Any) -> tuple[list[int], int]:
        sampling = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        (out,) = llm.generate([{"prompt_embeds": embeds}], sampling, use_tqdm=False)
        engine.drop_prefix_cache(llm)
        return list(out.outputs[0].token_ids), out.num_cached_tokens

    cold = ask(one)
    assert cold[1] == 0
    assert ask(one) == (cold[0], 192)
    changed = ask(other)
    assert changed[1] == 64
    assert ask(other) == (changed[0], 192)
    idle(llm)


def random_request(numbers: random.Random, number: int) -> Any:
    """A request out of few tokens, salts, adapters, items and embeddings, so that many share something."""
    import torch
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    tokens = [numbers.choice((5, 6)) if i % 16 == 0 else 7 for i in range(64)]
    features, embeds = [], None
    if numbers.random() < 0.3:
        embeds = torch.zeros(64, 4)
        embeds[numbers.choice((3, 40))] = numbers.choice((1.0, 2.0))
    elif numbers.random() < 0.6:
        offset, length = numbers.choice(((2, 10), (10, 20), (20, 30)))
        features = [
            MultiModalFeatureSpec(
                data=None,
                modality="image",
                identifier=numbers.choice(("cat", "dog")),
                mm_position=PlaceholderRange(offset=offset, length=length),
            )
        ]
    return Request(
        request_id=str(number),
        prompt_token_ids=None if embeds is not None else tokens,
        prompt_embeds=embeds,
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        mm_features=features,
        cache_salt=numbers.choice((None, None, "salt")),
        lora_request=numbers.choice((None, None, LoRARequest("a", 1, "/a"))),
        block_hasher=get_request_block_hasher(16, sha256),
    )


@pytest.mark.parametrize("seed", range(4))
def test_requests_share_a_unit_only_if_vllm_gives_them_one_hash(seed: int) -> None:
    """Ours may tell more apart, an item that sits elsewhere in a unit for one, but never less."""
    from kvarter.connectors.vllm.identity import request_extras
    from kvarter.geometry import CacheGroup, Full
    from kvarter.keys import Namespace
    from kvarter.sequence import Sequence

    group = CacheGroup("full", Full(), 16, (4096,))
    fields = {"model": "m", "weights": b"w", "kv_dtype": "f", "layout": "l", "shard_grid": (("tp", 1),)}
    base = Namespace(**fields, groups=(group,), unit_tokens=16)
    numbers = random.Random(seed)
    by_ours: dict[bytes, set[bytes]] = {}
    by_theirs: dict[bytes, set[bytes]] = {}
    for number in range(120):
        request = random_request(numbers, number)
        space = base if request.lora_request is None else base.with_adapter("a", b"digest")
        sequence = Sequence(space)
        sequence.extend(request._all_token_ids[:64], request_extras(request, 16))
        for unit, theirs in enumerate(request.block_hashes):
            ours = space.digest() + bytes(sequence.digests[unit])
            by_ours.setdefault(ours, set()).add(theirs)
            by_theirs.setdefault(theirs, set()).add(ours)
    assert max(map(len, by_ours.values())) == 1
    assert len(by_ours) < 120 * 4  # many do share
    assert sum(len(ours) > 1 for ours in by_theirs.values()) == 0

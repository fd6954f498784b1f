"""What cannot be served exactly is refused at start, in one sentence with the numbers."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from engine_words import idle
from kvarter.demo import engine


def refused(start: Any, **settings: Any) -> str:
    with pytest.raises(Exception) as caught:  # vLLM wraps some of them
        start("llama", **{"blocks": 64, "block_size": 32, **settings})
    error: BaseException | None = caught.value
    while error is not None and not type(error).__module__.startswith("kvarter"):
        error = error.__cause__ or error.__context__
    assert error is not None, f"not ours: {caught.value!r}"
    return f"{type(error).__name__}: {error}"


def test_a_failure_policy_that_loses_requests_is_refused(start: Any, kvarter_config: Any) -> None:
    kv = {**kvarter_config(), "kv_load_failure_policy": "fail"}
    assert "UnsupportedEngine: kv_load_failure_policy is 'fail'; set it to 'recompute'" in refused(
        start, kv=kv
    )


def test_a_pool_larger_than_memory_is_refused_with_the_numbers(start: Any, kvarter_config: Any) -> None:
    message = refused(start, kv=kvarter_config(dram="900TiB"))
    assert message.startswith("CapacityError: a pool of 9")
    assert "MiB" in message


def test_an_unknown_setting_names_the_nearest_one(start: Any, kvarter_config: Any) -> None:
    assert "unknown setting 'drma'; did you mean 'dram'?" in refused(start, kv=kvarter_config(drma="1GiB"))


def test_a_directory_that_others_can_enter_is_refused(
    start: Any, kvarter_config: Any, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    message = refused(start, kv=kvarter_config(directory=str(shared)))
    assert message.startswith("AttachError")
    assert "755" in message


def test_a_directory_that_cannot_be_made_is_refused(start: Any, kvarter_config: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    message = refused(start, kv=kvarter_config(directory=str(tmp_path / "file" / "below")))
    assert message.startswith("AttachError: no socket for workers at")


def test_another_version_of_the_engine_is_refused(
    start: Any, kvarter_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvarter.connectors.vllm import connector

    monkeypatch.setattr(connector, "vllm_version", "0.31.4")
    assert "vLLM 0.31.4 is installed; this version of Kvarter supports 0.32" in refused(
        start, kv=kvarter_config()
    )


def test_kinds_of_cache_groups_become_lifetimes_and_unknown_ones_are_refused_by_name() -> None:
    import torch
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        MLAAttentionSpec,
        RSWASpec,
        SlidingWindowSpec,
    )

    from kvarter.connectors.vllm.layout import groups_of
    from kvarter.errors import UnsupportedEngine
    from kvarter.geometry import Chunked, Full, State, Window

    shape = {"block_size": 32, "num_kv_heads": 1, "head_size": 16, "dtype": torch.float16}

    def groups(*specs: Any, tp: int = 1, pp: int = 1) -> Any:
        made = [KVCacheGroupSpec([f"layer {n}"], spec) for n, spec in enumerate(specs)]
        return groups_of(KVCacheConfig(8, [], made, hash_block_size=32), tp, pp).geometry.groups

    mamba = {"block_size": 64, "shapes": ((4,),), "dtypes": (torch.float32,)}
    known = groups(
        FullAttentionSpec(**shape),
        SlidingWindowSpec(**shape, sliding_window=64),
        ChunkedLocalAttentionSpec(**shape, attention_chunk_size=128),
        MambaSpec(**mamba, mamba_cache_mode="align", page_size_padded=512),
    )
    assert [group.lifetime for group in known] == [Full(), Window(64), Chunked(128), State()]
    assert known[3].shard_bytes == (16,)  # padding stripped
    (latent,) = groups(MLAAttentionSpec(**shape, max_tp_shards=1), tp=2, pp=2)
    assert latent.copies == 2
    assert len(latent.shard_bytes) == 2  # one a stage
    assert [latent.written_by(rank) for rank in range(4)] == [True, False, True, False]
    with pytest.raises(UnsupportedEngine, match="cache group 1 is of kind RSWASpec"):
        groups(FullAttentionSpec(**shape), RSWASpec(**shape, rswa_window=64))
    with pytest.raises(UnsupportedEngine, match="set mamba_cache_mode to 'align'"):
        groups(FullAttentionSpec(**shape), MambaSpec(**mamba, mamba_cache_mode="all"))


def test_tensors_that_do_not_fit_the_cache_config_are_refused(start: Any, kvarter_config: Any) -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from kvarter.connectors.vllm.layout import blocks_of, groups_of
    from kvarter.errors import GeometryError

    spec = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=16, dtype=torch.float16)
    config = KVCacheConfig(8, [], [KVCacheGroupSpec(["layer"], spec)], hash_block_size=32)
    groups = groups_of(config, 1)
    fits = torch.zeros(8, 2, 32, 32, dtype=torch.float16)
    assert blocks_of(config, groups, {"layer": fits})[0].bytes == 2 * 32 * 32 * 2
    assert blocks_of(config, groups, {"layer": fits.transpose(1, 2)})[0].bytes == 2 * 32 * 32 * 2
    with pytest.raises(GeometryError, match="has 2048 bytes; the cache config says 4096"):
        blocks_of(config, groups, {"layer": fits[:, :1]})
    with pytest.raises(GeometryError, match="registered no such tensor"):
        blocks_of(config, groups, {})


def test_disabled_it_touches_nothing(
    start: Any, prompts: Any, kvarter_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvarter.connectors.vllm import stores
    from kvarter.demo import engine

    monkeypatch.setenv("KVARTER_DISABLE", "1")
    llm = start("llama", blocks=64, block_size=32, kv=kvarter_config(anything="goes"))
    asked = prompts(1, 300)
    for _ in range(2):
        assert engine.ask(llm, asked, 2)[0].cached_tokens == 0
        engine.drop_prefix_cache(llm)
    assert stores() == []


@pytest.mark.parametrize("ranks", [1, 2], ids=["one rank", "tensor parallel 2"])
def test_workers_in_other_processes_attach_over_the_socket(
    model: Any, prompts: Any, baseline: Any, ranks: int
) -> None:
    """The engine as people run it: EngineCore and workers are processes of their own."""
    asked = prompts(3, 300, shared=100, seed=9)
    program = Path(__file__).parent / "doubles" / "processes.py"
    result = subprocess.run(
        [sys.executable, str(program), str(model("llama")), str(ranks)],
        input=json.dumps(asked),
        env={**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    answer = json.loads(result.stdout.splitlines()[-1])
    assert answer["first"] == answer["second"] == baseline("llama", asked, 12)
    assert answer["cached"] == [288] * 3
    assert 672 <= answer["external_hits"] <= 864  # two may find the shared 96 tokens in the engine by then
    assert answer["processes"] >= 2 + ranks


def test_the_first_request_finds_the_weights_named(
    start: Any, prompts: Any, kvarter_config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recurrent states are offered once: a fingerprint that takes a while is waited for, at start and nowhere else."""
    from kvarter.connectors.vllm import identity

    fingerprint = identity.weights_fingerprint

    def slowly(path: Any) -> bytes:
        time.sleep(1.0)
        return fingerprint(path)

    monkeypatch.setattr(identity, "weights_fingerprint", slowly)
    llm = start("llama", kv=kvarter_config(), blocks=64, block_size=32)
    engine.ask(llm, prompts(1, 300), 2)
    assert idle(llm)["stored"] == 9

"""Behind vLLM's own offloading: what is on disk survives the engine, and what breaks vLLM's `fs` tier does not break
ours. Everything is done to both, and each test says what `fs` did."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_words import settings_of
from kvarter.demo import engine

CHUNK = 128 << 10  # of the llama shape: 32 tokens in 4 layers
PROMPT, HIT = 240, 224  # tokens: seven chunks, which fill a segment of 1 MiB


@pytest.fixture(autouse=True)
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's own worker copies with CUDA; the one named here does on a CPU."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "doubles"))


def ours(path: Path, capacity: str = "64MiB", segment: str = "1MiB", **more: Any) -> dict[str, Any]:
    disk = {"path": str(path / "log"), "capacity": capacity, "segment": segment, **more}
    return {"type": "KvarterTier", "module_path": "kvarter.connectors.vllm_tier", "disk": disk}


def fs(path: Path) -> dict[str, Any]:
    return {"type": "fs", "root_dir": str(path / "fs"), "n_read_threads": 2, "n_write_threads": 2}


TIERS = {"fs": fs, "ours": ours}


def config_of(tier: dict[str, Any]) -> dict[str, Any]:
    """vLLM's kv_transfer_config of a small CPU pool above the tier."""
    return {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "spec_name": "CpuTieringSpec",
            "spec_module_path": "cpu_tiering",
            "cpu_bytes_to_use": 32 << 20,
            "secondary_tiers": [tier],
        },
    }


@contextmanager
def engine_over(model: Path, tier: dict[str, Any], name: str = "llama", **settings: Any) -> Iterator[Any]:
    """An engine with an empty CPU pool above the tier."""
    with engine.engine(model, kv=config_of(tier), **settings_of(name), **settings) as llm:
        yield llm


def ask_all(
    llm: Any, prompts: list[list[int]], after: Callable[[], None] = lambda: None
) -> list[engine.Reply]:
    """One after another, each stored before the next."""
    replies = []
    for prompt in prompts:
        replies += engine.ask(llm, [prompt], 8)
        engine.settle(llm)
        after()
    return replies


def the_tier(llm: Any) -> Any:
    """The one tier below the pool of this process's engine."""
    connector = llm.llm_engine.engine_core.engine_core.scheduler.connector
    (tier,) = connector.connector_scheduler.manager.secondary_tiers
    return tier


def listen(tier: Any) -> tuple[set[bytes], set[bytes]]:
    """Keys that the tier's events say were stored since, and those of them that are still here."""
    take, stored, here = tier.take_events, set[bytes](), set[bytes]()

    def overheard() -> Iterator[Any]:
        for event in take():
            (here.difference_update if event.removed else here.update)(event.keys)
            stored.update(() if event.removed else event.keys)
            yield event

    tier.take_events = overheard
    return stored, here


def of_series(llm: Any, name: str, label: str) -> dict[str, float]:
    return {m.labels[label]: m.value for m in llm.get_metrics() if m.name == f"vllm:kvarter_tier_{name}"}


def files(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def holds_chunks(file: Path) -> bool:
    return file.suffix == ".bin" or file.name.startswith("segment-")


@pytest.mark.parametrize("name", ["llama", "gptoss"])
def test_an_engine_with_an_empty_cpu_pool_serves_what_the_process_before_it_left(
    model: Any, prompts: Any, baseline: Any, earlier_engine: Any, name: str, tmp_path: Path
) -> None:
    asked = prompts(3, 600, shared=300, seed=71)
    expected = baseline(name, asked, 8)
    kv = config_of(ours(tmp_path))
    assert earlier_engine(name, asked, 8, kv=kv, **settings_of(name)) == expected
    with engine_over(model(name), ours(tmp_path), name) as llm:
        replies = engine.ask(llm, asked, 8)
        assert [reply.tokens for reply in replies] == expected
        assert [reply.cached_tokens for reply in replies] == [576] * 3
        chunks, account = of_series(llm, "chunks", "event"), of_series(llm, "bytes", "state")
        assert chunks["loaded"] >= 36
        assert account.pop("capacity") == sum(account.values())
        sequence, risk = of_series(llm, "sequence", "of"), of_series(llm, "at_risk_bytes", "of")
        assert 0 < sequence["durable"] <= sequence["last"]
        assert (risk["undurable"] == 0) == (sequence["durable"] == sequence["last"])


def flipped(data: bytes) -> bytes:
    """One bit in every 64 bytes: the exponent of a number."""
    array = np.frombuffer(data, np.uint8).copy()
    array[3::64] ^= 0x40
    return array.tobytes()


# A fault, and what `fs` does about it: how many tokens it serves, whether the reply is right, and whether another
# engine finds the prompt healed.
FAULTS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "flipped": (flipped, "serves 224 tokens, wrong; not healed"),
    "zero-filled": (lambda data: bytes(len(data)), "serves 224 tokens, wrong; not healed"),
    "over-long": (lambda data: bytes(4096) + data, "serves 224 tokens, wrong; not healed"),
    # It removes one such file at every load that fails: this prompt is whole after seven.
    "truncated": (lambda data: data[: len(data) // 2], "serves 0 tokens, right; not healed"),
}
OURS = "serves 0 tokens, right; healed"


def faults_on(
    kind: str, model: Path, asked: list[list[int]], expected: list[list[int]], path: Path
) -> dict[str, str]:
    """Does each fault to the files of one prompt, and says what two engines then make of it."""
    tier = TIERS[kind](path)
    belongs: list[set[Path]] = []
    before: dict[Path, bytes] = {}

    def look() -> None:
        nonlocal before
        now = files(path)
        changed = {file for file in now if payload(now[file]) != payload(before.get(file, b""))}
        belongs.append({file for file in changed if holds_chunks(file)})
        before = now

    with engine_over(model, tier) as llm:
        ask_all(llm, asked, look)
    assert all(not one & other for i, one in enumerate(belongs) for other in belongs[i + 1 :])
    for (spoil, _), own in zip(FAULTS.values(), belongs, strict=True):
        assert own
        for file in own:
            file.write_bytes(spoil(file.read_bytes()))
    with engine_over(model, tier) as llm:
        first = ask_all(llm, asked)
    with engine_over(model, tier) as llm:
        second = ask_all(llm, asked)
    said = {}
    for fault, one, two, tokens in zip(FAULTS, first, second, expected, strict=True):
        right = "right" if one.tokens == tokens else "wrong"
        healed = "healed" if (two.cached_tokens, two.tokens) == (HIT, tokens) else "not healed"
        said[fault] = f"serves {one.cached_tokens} tokens, {right}; {healed}"
    return said


def payload(data: bytes) -> bytes:
    """What a file has of chunks: a segment has a header before them and, once it is full, an index after them."""
    return data[16 << 10 : 512 << 10].rstrip(b"\0")


@pytest.mark.parametrize("kind", TIERS)
def test_a_damaged_file_is_served_by_fs_and_computed_again_by_ours(
    kind: str, model: Any, prompts: Any, baseline: Any, tmp_path: Path
) -> None:
    asked = prompts(len(FAULTS), PROMPT, seed=72)
    expected = baseline("llama", asked, 8)
    said = faults_on(kind, model("llama"), asked, expected, tmp_path)
    assert said == {fault: OURS if kind == "ours" else by_fs for fault, (_, by_fs) in FAULTS.items()}


@pytest.mark.parametrize("kind", TIERS)
def test_fs_grows_and_litters_and_ours_does_neither(
    kind: str, model: Any, prompts: Any, tmp_path: Path
) -> None:
    """`fs` keeps every file it ever wrote, and a temporary one of a killed process for good; ours stays within its
    capacity, says what it dropped, and is whole after a crash at any moment."""
    from vllm.v1.kv_offload.base import LookupResult, ReqContext

    asked = prompts(10, PROMPT, seed=73)
    directory = tmp_path / ("log" if kind == "ours" else "fs")
    tier = ours(tmp_path, capacity="6MiB", admit_all=True) if kind == "ours" else fs(tmp_path)
    events = {"kv_events_config": {"enable_kv_cache_events": True, "publisher": "null"}}
    with engine_over(model("llama"), tier, **events) as llm:
        stored, here = listen(the_tier(llm))
        ask_all(llm, asked)
        on_disk = sum(len(data) for data in files(directory).values())
        crashed = tmp_path / "crashed"
        shutil.copytree(directory, crashed / directory.name)
        if kind == "ours":
            assert on_disk <= 6 << 20
            chunks = of_series(llm, "chunks", "event")
            assert chunks["stored"] == 70
            assert chunks["evicted"] > 0
            found = {
                key for key in stored if the_tier(llm).lookup(key, ReqContext("anybody")) is LookupResult.HIT
            }
            assert len(stored) == 70
            assert here == found
        else:
            assert on_disk >= 70 * CHUNK
    if kind == "fs":
        some = next(file for file in files(crashed) if file.suffix == ".bin")
        left_over = some.with_name(f"{some.name}_12345.tmp")
        left_over.write_bytes(bytes(CHUNK))
    tier = ours(crashed, capacity="6MiB", admit_all=True) if kind == "ours" else fs(crashed)
    with engine_over(model("llama"), tier) as llm:
        (reply,) = ask_all(llm, asked[-1:])
    assert reply.cached_tokens == HIT
    if kind == "fs":
        assert left_over.exists()
    else:
        assert sum(len(data) for data in files(crashed).values()) <= 6 << 20
        assert not list(crashed.rglob("*.tmp"))


@pytest.mark.parametrize("kind", TIERS)
def test_fs_serves_what_other_weights_have_made_and_ours_does_not(
    kind: str, model: Any, prompts: Any, tmp_path: Path
) -> None:
    """`fs` tells models apart by their path, and serves what the weights before have made: those of an earlier process,
    and those that were there before vLLM reset its connector, as it does when weights are replaced in place."""
    from safetensors.torch import load_file, save_file

    path = shutil.copytree(model("llama"), tmp_path / "model")
    (asked,) = prompts(1, PROMPT, seed=74)
    with engine_over(path, TIERS[kind](tmp_path)) as llm:
        (before,) = ask_all(llm, [asked])
        assert llm.reset_prefix_cache(reset_connector=True)
        (again,) = ask_all(llm, [asked])
    assert again.cached_tokens == (0 if kind == "ours" else HIT)
    (weights,) = path.glob("*.safetensors")
    save_file(
        {name: -value if "v_proj" in name else value for name, value in load_file(weights).items()},
        weights,
        {"format": "pt"},
    )
    with engine_over(path, TIERS[kind](tmp_path)) as llm:
        (after,) = ask_all(llm, [asked])
    assert after.cached_tokens == (0 if kind == "ours" else HIT)
    assert after.tokens != before.tokens


def test_what_cannot_work_is_refused_at_start(model: Any, tmp_path: Path) -> None:
    refused: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        r"has no disk\.path and no disk\.capacity": ({"disk": {}}, {}),
        "unknown setting": ({"dsik": {}}, {}),
        "prefix_caching_hash_algo is 'xxhash', whose hashes may collide": (
            {},
            {"prefix_caching_hash_algo": "xxhash"},
        ),
    }
    for message, (changed, settings) in refused.items():
        with pytest.raises(Exception, match=message):
            engine_over(model("llama"), {**ours(tmp_path), **changed}, **settings).__enter__()


def test_turned_off_it_does_nothing(
    model: Any, prompts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVARTER_DISABLE", "1")
    with engine_over(model("llama"), ours(tmp_path)) as llm:
        ask_all(llm, prompts(1, PROMPT, seed=75))
    assert not (tmp_path / "log").exists()

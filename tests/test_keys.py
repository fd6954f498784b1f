"""Names: what is part of a namespace, what extras a unit carries, and which weights these are."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvarter import fingerprint
from kvarter.errors import ConfigError, FingerprintError
from kvarter.fingerprint import PAGE, FingerprintJob, content_digest, weights_fingerprint
from kvarter.geometry import CacheGroup, Full, State, Window
from kvarter.keys import Namespace, embedding_extra, multimodal_extras, salt_extra

GROUP = CacheGroup("full", Full(), 16, (4096, 4096))


def namespace(**changes: Any) -> Namespace:
    base: dict[str, Any] = {
        "model": "m",
        "weights": b"w" * 32,
        "kv_dtype": "bfloat16",
        "layout": "nhd",
        "groups": (GROUP,),
        "unit_tokens": 16,
        "shard_grid": (("tp", 2), ("pp", 1)),
    }
    return Namespace(**(base | changes))


# -- the namespace

OTHERS: dict[str, list[dict[str, Any]]] = {
    "model": [{"model": "M"}],
    "weights": [{"weights": b"v" * 32}, {"weights": "w" * 32}],
    "kv_dtype": [{"kv_dtype": "float16"}],
    "layout": [{"layout": "hnd"}],
    "groups": [
        {"groups": (replace(GROUP, **change),)}
        for change in (
            {"name": "other"},
            {"lifetime": Window(16)},
            {"lifetime": State()},
            {"block_tokens": 32},
            {"shard_bytes": (4096, 8192)},
            {"required": False},
            {"replay_tokens": 4},
            {"copies": 2},
        )
    ]
    + [{"groups": (GROUP, GROUP)}, {"groups": ()}],
    "unit_tokens": [{"unit_tokens": 32}],
    "shard_grid": [
        {"shard_grid": (("tp", 1), ("pp", 2))},
        {"shard_grid": (("pp", 1), ("tp", 2))},
        {"shard_grid": (("tp", 2),)},
        {"shard_grid": (("tp", 2), ("pp", 1), ("dp", 1))},
    ],
    "adapter_name": [{"adapter_name": "a", "adapter_digest": b"d"}],
    "adapter_digest": [{"adapter_name": "a", "adapter_digest": b"e"}],
    "scale_format": [{"scale_format": "per-token"}],
    "epoch": [{"epoch": b"e" * 16}],
    "scheme": [{"scheme": "sglang/1"}],
    "seed": [{"seed": b"s"}],
}


def test_changing_any_one_field_changes_the_namespace() -> None:
    assert set(OTHERS) == {
        field.name for field in fields(Namespace)
    }  # nobody adds a field without saying so here
    digests = [namespace().digest()]
    digests += [namespace(**change).digest() for changes in OTHERS.values() for change in changes]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 32 for digest in digests)


# Few letters, so that concatenations of unlike fields often read the same.
few = st.text("ab", max_size=3)
words = st.text("ab", min_size=1, max_size=3)


@st.composite
def namespaces(draw: st.DrawFn) -> Namespace:
    adapter = draw(st.one_of(st.just(("", b"")), st.tuples(words, words.map(str.encode))))
    return namespace(
        model=draw(words),
        weights=draw(st.one_of(words, words.map(str.encode))),
        adapter_name=adapter[0],
        adapter_digest=adapter[1],
        kv_dtype=draw(words),
        scale_format=draw(few),
        layout=draw(words),
        shard_grid=tuple(draw(st.dictionaries(words, st.integers(1, 2), max_size=2)).items()),
        seed=draw(few.map(str.encode)),
    )


@given(namespaces(), namespaces())
def test_two_namespaces_share_a_digest_only_if_they_are_equal(one: Namespace, other: Namespace) -> None:
    assert (one.digest() == other.digest()) == (one == other)


def test_the_digest_is_a_fixed_function_of_the_fields() -> None:
    """Blocks on disk outlive the program that wrote them: this value may only change with the domain tag."""
    assert namespace().digest().hex() == "9ed4c8c689a930175c1f950ab6cfba5a09b955adb1d24e69336ccb17999a1ff7"


def test_every_process_agrees_whatever_its_hash_seed() -> None:
    code = """if True:
        from kvarter.geometry import CacheGroup, Full
        from kvarter.keys import Namespace

        group = CacheGroup("full", Full(), 16, (4096, 4096))
        grid = (("tp", 2), ("pp", 1))
        fields = {"model": "m", "weights": b"w" * 32, "kv_dtype": "bfloat16", "layout": "nhd"}
        print(Namespace(**fields, groups=(group,), unit_tokens=16, shard_grid=grid).digest().hex())
    """
    for seed in ("0", "1", "random"):
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert found.stdout.decode().strip() == namespace().digest().hex()


def test_every_new_epoch_is_like_no_other() -> None:
    first = namespace()
    epochs = {first.with_new_epoch().digest() for _ in range(100)} | {first.digest()}
    assert len(epochs) == 101


def test_an_adapter_reloaded_under_its_name_is_another_namespace() -> None:
    base = namespace()
    assert base.with_adapter("a", b"1").digest() != base.with_adapter("a", b"2").digest()
    assert base.with_adapter("a", b"1").digest() != base.digest()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model": ""}, "model is empty"),
        ({"weights": b""}, "weights is empty"),
        ({"weights": ""}, "weights is empty"),
        ({"kv_dtype": "auto"}, "not one dtype"),
        ({"adapter_name": "a"}, "needs a name and a digest"),
        ({"adapter_digest": b"d"}, "needs a name and a digest"),
        ({"epoch": b"1"}, "an epoch of 1 bytes; expected 0 or 16"),
        ({"unit_tokens": 0}, "hash units of 0 tokens"),
        ({"shard_grid": (("tp", 0),)}, "size of at least 1"),
        ({"shard_grid": (("tp", 1), ("tp", 2))}, "every axis once"),
    ],
)
def test_a_namespace_that_identifies_nothing_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        namespace(**change)


# -- extras


def test_an_item_is_in_every_unit_that_it_touches_with_its_whole_identifier() -> None:
    identifier = "sha256:" + "0123456789abcdef" * 8
    assert multimodal_extras([(identifier, 20, 30)], 16) == [
        (1, 1, 4, identifier.encode()),
        (2, 1, 0, identifier.encode()),
        (3, 1, 0, identifier.encode()),
    ]
    assert multimodal_extras([("a", 16, 16)], 16) == [(1, 1, 0, b"a")]


@given(
    st.lists(st.tuples(words, st.integers(0, 60), st.integers(1, 40)), max_size=5),
    st.integers(1, 20),
    st.randoms(),
)
def test_items_in_any_order_give_the_extras_that_each_token_asks_for(
    items: list[tuple[str, int, int]], unit_tokens: int, random: Any
) -> None:
    shuffled = random.sample(items, len(items))
    extras = multimodal_extras(shuffled, unit_tokens)
    assert extras == multimodal_extras(items, unit_tokens)
    assert [unit for unit, *_ in extras] == sorted(unit for unit, *_ in extras)
    expected = [
        (unit, 1, max(0, start - unit * unit_tokens), name.encode())
        for name, start, length in items
        for unit in {token // unit_tokens for token in range(start, start + length)}
    ]
    assert sorted(extras) == sorted(expected)


@pytest.mark.parametrize("item", [("", 0, 4), (None, 0, 4), ("a", -1, 4), ("a", 0, 0)])
def test_an_item_that_cannot_be_told_apart_refuses_caching(item: Any) -> None:
    with pytest.raises(ValueError, match="must not be cached"):
        multimodal_extras([("fine", 0, 4), item], 16)


def test_salt_and_embeddings_have_their_own_tags() -> None:
    assert salt_extra("tenant") == (0, 2, 0, b"tenant")
    assert embedding_extra(3, b"d" * 32) == (3, 3, 0, b"d" * 32)
    for empty in (lambda: salt_extra(""), lambda: embedding_extra(0, b"")):
        with pytest.raises(ValueError):
            empty()


# -- fingerprints


def safetensors(tensors: dict[str, int], fill: bytes = b"\x01") -> bytes:
    offset, header = 0, {}
    for name, size in tensors.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + fill * offset


def checkpoint(directory: Path, weights: bytes | None = None) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"layers": 2}')
    (directory / "model.safetensors").write_bytes(safetensors({"a": 1 << 20}) if weights is None else weights)
    return directory


def changed(weights: bytes, place: int) -> bytes:
    return weights[:place] + bytes([weights[place] ^ 1]) + weights[place + 1 :]


def test_the_same_files_elsewhere_have_the_same_fingerprint(tmp_path: Path) -> None:
    one, other = checkpoint(tmp_path / "one"), checkpoint(tmp_path / "other")
    (other / "README.md").write_text("not part of the weights")
    (other / ".cache").mkdir()
    (other / ".cache" / "x.bin").write_bytes(b"hidden")
    assert weights_fingerprint(one) == weights_fingerprint(str(other))
    assert len(weights_fingerprint(one)) == 32


def test_one_byte_in_a_sampled_page_shows_and_one_outside_does_not(tmp_path: Path) -> None:
    weights = safetensors({"a": 1 << 20, "b": 4096, "c": 2 << 20})
    data = int.from_bytes(weights[:8], "little") + 8
    original = weights_fingerprint(checkpoint(tmp_path / "original", weights))
    stride = (len(weights) - PAGE) // 65
    seen = {
        "header": weights.index(b'"U8"') + 1,
        "last": len(weights) - 1,
        "spread": (len(weights) - PAGE) * 10 // 65 + 1,
        "tensor b": data + (1 << 20) + 2048,
    }
    for name, place in seen.items():
        assert weights_fingerprint(checkpoint(tmp_path / name, changed(weights, place))) != original
    gap = 10 * stride + PAGE + (stride - PAGE) // 2
    assert weights_fingerprint(checkpoint(tmp_path / "gap", changed(weights, gap))) == original


def test_a_small_file_counts_with_every_byte(tmp_path: Path) -> None:
    weights = safetensors({"a": 100})
    original = weights_fingerprint(checkpoint(tmp_path / "original", weights))
    for place in range(len(weights) - 100, len(weights)):
        assert weights_fingerprint(checkpoint(tmp_path / str(place), changed(weights, place))) != original


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b'{"layers": 3}'),
        ("model.safetensors", safetensors({"b": 1 << 20})),
        ("model.safetensors", safetensors({"a": 1 << 20}, b"\x02")),
        ("model-2.safetensors", safetensors({"a": 8})),
        ("more/pytorch_model.bin", b"pickle"),
        ("model.safetensors.index.json", b"{}"),
        ("modeling_custom.py", b"pass"),
        ("hf_quant_config.json", b"{}"),
    ],
)
def test_whatever_can_change_the_weights_changes_the_fingerprint(
    tmp_path: Path, name: str, content: bytes
) -> None:
    directory = checkpoint(tmp_path / "model")
    original = weights_fingerprint(directory)
    (directory / name).parent.mkdir(exist_ok=True)
    (directory / name).write_bytes(content)
    assert weights_fingerprint(directory) != original


def test_two_revisions_of_a_snapshot_never_share(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "snapshots" / ("a" * 40))
    other = checkpoint(tmp_path / "snapshots" / ("b" * 40))
    assert weights_fingerprint(one) != weights_fingerprint(other)


@pytest.mark.parametrize("suffix", ["gguf", "bin", "safetensors"])
def test_a_single_file_has_a_fingerprint(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"model.{suffix}"
    weights = safetensors({"a": 1 << 20})
    file.write_bytes(weights)
    original = weights_fingerprint(file)
    file.write_bytes(changed(weights, len(weights) - 1))
    assert weights_fingerprint(file) != original


def test_content_digests_see_every_byte_and_every_name(tmp_path: Path) -> None:
    adapter = checkpoint(tmp_path / "adapter")
    weights = (adapter / "model.safetensors").read_bytes()
    seen = {content_digest(adapter)}
    for place in range(0, len(weights), 99_991):
        (adapter / "model.safetensors").write_bytes(changed(weights, place))
        seen.add(content_digest(adapter))
    count = len(range(0, len(weights), 99_991)) + 1
    assert len(seen) == count
    (adapter / "config.json").rename(adapter / "configuration.json")
    assert content_digest(adapter) not in seen
    assert content_digest(adapter) != weights_fingerprint(adapter)


def test_a_file_seen_before_is_not_read_again_and_a_changed_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = checkpoint(tmp_path / "model")
    file = directory / "model.safetensors"
    original = weights_fingerprint(directory)
    before = fingerprint._file_digest.cache_info().misses
    assert weights_fingerprint(directory) == original
    assert fingerprint._file_digest.cache_info().misses == before
    status = file.stat()
    with file.open("r+b") as stream:  # in place, same size, time set back
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\xff")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights_fingerprint(directory) != original


def test_paths_that_cannot_be_fingerprinted_are_refused_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(FingerprintError, match=r"cannot read .*absent: No such file"):
        weights_fingerprint(tmp_path / "absent")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(FingerprintError, match=r"no weight files \(.safetensors .*found tokenizer.json"):
        weights_fingerprint(tmp_path)
    (tmp_path / "dangling.bin").symlink_to(tmp_path / "absent")
    with pytest.raises(FingerprintError, match=r"cannot read .*dangling.bin"):
        weights_fingerprint(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FingerprintError, match="found nothing"):
        weights_fingerprint(empty)
    with pytest.raises(FingerprintError, match="no files in"):
        content_digest(empty)


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"1234567",
        (2**63).to_bytes(8, "little") + bytes(100),
        (100).to_bytes(8, "little") + bytes(99),
        (4).to_bytes(8, "little") + b"[1] ",
        (9).to_bytes(8, "little") + b'{"a": {}}',
        (4).to_bytes(8, "little") + b"\xff\xff\xff\xff",
    ],
)
def test_a_broken_safetensors_header_is_refused(tmp_path: Path, weights: bytes) -> None:
    with pytest.raises(FingerprintError, match="safetensors header"):
        weights_fingerprint(checkpoint(tmp_path / "model", weights))


def test_a_job_never_blocks_its_caller() -> None:
    go = threading.Event()

    def slow(path: str | os.PathLike[str]) -> bytes:
        go.wait()
        return hashlib.sha256(os.fsencode(path)).digest()

    job = FingerprintJob("model", slow)
    assert job.result_or_none() is None
    assert job.error is None
    go.set()
    assert job.wait() == hashlib.sha256(b"model").digest()
    assert job.result_or_none() == job.wait()


def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    job = FingerprintJob(tmp_path / "absent")
    assert job.wait() is None
    assert isinstance(job.error, FingerprintError)

"""What makes two blocks interchangeable: the namespace, and the extras that tokens alone do not say."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from .errors import ConfigError
from .geometry import CacheGroup

Extra = tuple[int, int, int, bytes]
"""(unit, tag, offset in the unit, bytes): what besides its tokens decides the bytes of a hash unit."""

MULTIMODAL, SALT, PROMPT_EMBEDDING, ENGINE_DEFINED = 1, 2, 3, 4

EPOCH_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """Everything that two blocks must share to be interchangeable, apart from their tokens and extras.

    weights: a fingerprint (bytes, from `weights_fingerprint`) or an id that the operator vouches for (str);
        the two never meet, even when spelled alike.
    adapter_name, adapter_digest: both, the digest over all bytes of the adapter, or neither.
    kv_dtype: as it is in memory; "auto" is refused, since it names another dtype in another process.
    groups: the cache groups, in the engine's order. shard_grid: (axis, size) of each axis of parallelism.
    epoch: b"" for weights as loaded from the fingerprinted files, 16 random bytes after any later change.
    scheme, seed: how digests are chained, and what an engine mixed into its own.

    Immutable and safe from any thread. Raises `ConfigError` for a field that identifies nothing.
    """

    model: str
    weights: bytes | str
    kv_dtype: str
    layout: str
    groups: tuple[CacheGroup, ...]
    unit_tokens: int
    shard_grid: tuple[tuple[str, int], ...]
    adapter_name: str = ""
    adapter_digest: bytes = b""
    scale_format: str = ""
    epoch: bytes = b""
    scheme: str = "kvarter/chain/1"
    seed: bytes = b""

    def __post_init__(self) -> None:
        for field in ("model", "weights", "kv_dtype", "layout", "scheme"):
            if not getattr(self, field):
                raise ConfigError(
                    f"the namespace's {field} is empty: blocks of unlike engines would be taken for equal"
                )
        if self.kv_dtype == "auto":
            raise ConfigError("kv_dtype is 'auto', which is not one dtype: pass what the engine made of it")
        if bool(self.adapter_name) != bool(self.adapter_digest):
            raise ConfigError(
                f"adapter {self.adapter_name!r} has a digest of {len(self.adapter_digest)} bytes: "
                "an adapter needs a name and a digest of its content"
            )
        if len(self.epoch) not in (0, EPOCH_BYTES):
            raise ConfigError(f"an epoch of {len(self.epoch)} bytes; expected 0 or {EPOCH_BYTES}")
        if self.unit_tokens < 1:
            raise ConfigError(f"hash units of {self.unit_tokens} tokens; expected at least 1")
        axes = [axis for axis, _ in self.shard_grid]
        if len(set(axes)) != len(axes) or not all(size >= 1 for _, size in self.shard_grid):
            raise ConfigError(f"shard grid {self.shard_grid}: every axis once, with a size of at least 1")

    def digest(self) -> bytes:
        """32 bytes, the same in every process and on every host; computed once."""
        return self._digest

    @cached_property
    def _digest(self) -> bytes:
        weights = (
            ("weights fingerprint", self.weights)
            if isinstance(self.weights, bytes)
            else ("weights id", self.weights)
        )
        fields: list[tuple[str, bytes | str | int]] = [
            ("model", self.model),
            weights,
            ("adapter name", self.adapter_name),
            ("adapter digest", self.adapter_digest),
            ("kv dtype", self.kv_dtype),
            ("scale format", self.scale_format),
            ("layout", self.layout),
            ("groups", _joined(group.identity() for group in self.groups)),
            ("unit tokens", self.unit_tokens),
            ("shard grid", _joined(part for pair in self.shard_grid for part in pair)),
            ("epoch", self.epoch),
            ("scheme", self.scheme),
            ("seed", self.seed),
        ]
        return hashlib.sha256(
            _joined(("kvarter/namespace/1", *(part for field in fields for part in field)))
        ).digest()

    def with_new_epoch(self) -> Namespace:
        """The same after its weights changed in place: equal to no namespace there was or will be."""
        return replace(self, epoch=secrets.token_bytes(EPOCH_BYTES))

    def with_adapter(self, name: str, digest: bytes) -> Namespace:
        """The same with an adapter; `digest` from `content_digest`."""
        return replace(self, adapter_name=name, adapter_digest=digest)

    def __repr__(self) -> str:
        adapter = f" + {self.adapter_name!r}" if self.adapter_name else ""
        return f"<Namespace {self.model!r}{adapter}, {self.kv_dtype}, {self.digest().hex()[:12]}>"


def _joined(parts: Iterable[bytes | str | int]) -> bytes:
    """The parts, each after its length, so that no two lists of parts read the same."""
    joined = bytearray()
    for part in parts:
        value = (
            part.to_bytes(8, "little")
            if isinstance(part, int)
            else part
            if isinstance(part, bytes)
            else _utf8(part)
        )
        joined += len(value).to_bytes(8, "little") + value
    return bytes(joined)


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # file names may hold what UTF-8 has no word for


def salt_extra(salt: str) -> Extra:
    """A cache salt. It goes into the first unit; the chain carries it to the others. ValueError if empty."""
    if not salt:
        raise ValueError("an empty cache salt separates nobody: leave the extra out")
    return (0, SALT, 0, _utf8(salt))


def multimodal_extras(features: Sequence[tuple[str, int, int]], unit_tokens: int) -> list[Extra]:
    """The extras of images, audio and the like: one in every unit that an item touches, sorted by unit.

    features: (identifier, first token, tokens) of each item, in any order. The identifier names the item's
    content and goes in whole. The offset is where the item begins in the unit, 0 where it began before.

    ValueError for an item without identifier or with an impossible place: such a request must not be
    cached, since its placeholder tokens look like any other item's.
    """
    if unit_tokens < 1:
        raise ValueError(f"hash units of {unit_tokens} tokens; expected at least 1")
    placed: list[tuple[int, int, int, bytes]] = []
    for identifier, start, length in features:
        if not identifier:
            raise ValueError(f"the item at token {start} has no identifier: this request must not be cached")
        if start < 0 or length < 1:
            raise ValueError(
                f"item {identifier!r} covers {length} tokens from {start} on: this request must not be cached"
            )
        units = range(start // unit_tokens, (start + length - 1) // unit_tokens + 1)
        placed += [(unit, start, length, _utf8(identifier)) for unit in units]
    return [
        (unit, MULTIMODAL, max(0, start - unit * unit_tokens), identifier)
        for unit, start, _, identifier in sorted(placed)
    ]


def embedding_extra(unit: int, digest: bytes) -> Extra:
    """Prompt embeddings in place of tokens: `digest` over those of this unit. ValueError if there is none."""
    if not digest or unit < 0:
        raise ValueError(
            f"prompt embeddings of unit {unit} with a digest of {len(digest)} bytes cannot be told apart"
        )
    return (unit, PROMPT_EMBEDDING, 0, digest)

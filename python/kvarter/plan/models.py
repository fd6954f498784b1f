"""What the KV cache of the models people serve weighs, by cache group: bytes a token, and bytes a boundary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Part:
    """One cache group over all its layers and ranks.

    lifetime: "full", "window" or "state". per_token: bytes that each token adds for good. per_boundary: bytes of
    what a boundary needs beside, a window or a state.
    """

    name: str
    layers: int
    lifetime: str
    per_token: float = 0.0
    per_boundary: int = 0


@dataclass(frozen=True)
class Model:
    name: str
    parts: tuple[Part, ...]
    note: str = ""

    @property
    def per_token(self) -> float:
        return sum(part.per_token for part in self.parts)

    @property
    def per_boundary(self) -> int:
        return sum(part.per_boundary for part in self.parts)

    def block_bytes(self, block_tokens: int, boundaries_per_block: float) -> float:
        """Bytes of a block of tokens, with its share of the boundaries that are kept."""
        return block_tokens * self.per_token + boundaries_per_block * self.per_boundary


def full(name: str, layers: int, bytes_a_layer: float) -> Part:
    return Part(name, layers, "full", per_token=layers * bytes_a_layer)


def window(name: str, layers: int, bytes_a_layer: float, tokens: int) -> Part:
    return Part(name, layers, "window", per_boundary=round(layers * bytes_a_layer * tokens))


def state(name: str, layers: int, bytes_a_layer: int) -> Part:
    return Part(name, layers, "state", per_boundary=layers * bytes_a_layer)


def deepseek_sparse(name: str, layers: int, index_layers: int | None = None) -> Model:
    """MLA in fp8 with its scales and RoPE part, 656 B, and an indexer key, 132 B."""
    leaders = layers if index_layers is None else index_layers
    return Model(name, (full("MLA", layers, 656), full("indexer", leaders, 132)))


def deepseek_v4(name: str, c4: int, c128: int, window_only: int, replays_window: bool = False) -> Model:
    """Entries of 584 B for every 4th or 128th token, their indexer, a window of 128 tokens, and open compressors."""
    layers = c4 + c128 + window_only
    parts = [
        full("C4", c4, 584 / 4),
        full("C4 indexer", c4, 132 / 4),
        full("C128", c128, 584 / 128),
        state("C4 compressor", c4, 80 * KIB),
    ]
    if not replays_window:
        parts.append(window("window", layers, 584, 128))
    return Model(name, tuple(parts), "boundaries at multiples of 128 tokens, where no C128 group is open")


def kimi(name: str, kda: int, mla: int, heads: int, conv: int, mla_bytes: int, note: str = "") -> Model:
    return Model(
        name, (state("KDA state", kda, heads * 128 * 128 * 4 + conv), full("MLA", mla, mla_bytes)), note
    )


_K3 = "layers of both kinds are inferred from what others measured, not read from its config"
MODELS: dict[str, Model] = {
    each.name: each
    for each in (
        deepseek_sparse("deepseek-v3.2", 61),
        deepseek_sparse("glm-5", 61),
        deepseek_v4("deepseek-v4-pro", c4=30, c128=31, window_only=0),
        deepseek_v4("deepseek-v4-flash", c4=21, c128=20, window_only=2),
        Model(
            "deepseek-v4.1",
            deepseek_v4("", c4=30, c128=31, window_only=0, replays_window=True).parts,
            "as V4-Pro with the window computed again; which layers keep KV is in its config.json: give that",
        ),
        kimi("kimi-linear-48b", kda=20, mla=7, heads=32, conv=72 * KIB, mla_bytes=1152),
        kimi("kimi-k3", kda=69, mla=24, heads=96, conv=360 * KIB, mla_bytes=576, note=_K3),
        Model(
            "qwen3-next-80b",
            (state("GDN state", 36, 32 * 128 * 128 * 4 + 48 * KIB), full("attention", 12, 2 * 2 * 256 * 2)),
        ),
        Model(
            "gemma-3-27b", (full("global", 10, 2 * 16 * 128 * 2), window("local", 52, 2 * 16 * 128 * 2, 1024))
        ),
        Model("gpt-oss-120b", (full("full", 18, 2 * 8 * 64 * 2), window("sliding", 18, 2 * 8 * 64 * 2, 128))),
        Model("gpt-oss-20b", (full("full", 12, 2 * 8 * 64 * 2), window("sliding", 12, 2 * 8 * 64 * 2, 128))),
        Model("minimax-m3", (full("K and V, fp8", 60, 2 * 4 * 128), full("sparse index, fp8", 57, 128))),
        Model("minimax-m2", (full("K and V", 62, 2 * 8 * 128 * 2),)),
        Model("llama-3.1-8b", (full("K and V", 32, 2 * 8 * 128 * 2),)),
    )
}


def model(name: str) -> Model:
    """A model of the table, or one by its Hugging Face config.json. Raises `ConfigError`."""
    from .config import from_config

    if name in MODELS:
        return MODELS[name]
    path = Path(name)
    if path.suffix == ".json" or path.exists():
        return from_config(path)
    raise ConfigError(f"no model {name!r}; there are {_list(MODELS)}, or give the path of its config.json")


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)

"""Capacities as people write them: percent of a trace's unique blocks, blocks, or bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ByteSize, TypeAdapter

from kvarter.errors import ConfigError

_BYTES = re.compile(r"\d+(?:\.\d+)?\s*(?:[KMGT]i?)?B", re.IGNORECASE)
_SIZE = TypeAdapter(ByteSize)  # as the settings' sizes are read
_PLAIN = re.compile(r"(\d+(?:\.\d+)?)(%|(?:\s*blocks)?)")


@dataclass(frozen=True)
class Capacity:
    """As it was written, and what it comes to."""

    text: str
    percent: float | None = None
    blocks: int | None = None
    nbytes: int | None = None

    def of(self, unique: int, block_bytes: float | None) -> int:
        """In blocks of a trace with so many unique ones."""
        if self.percent is not None:
            return int(unique * self.percent / 100 + 1e-9)
        if self.blocks is not None:
            return self.blocks
        if block_bytes is None:
            raise ConfigError(f"a capacity of {self.text} needs --model, which says what a block weighs")
        return int((self.nbytes or 0) / block_bytes)


def bytes_of(text: str) -> int:
    """`64GiB`, `1.5 TB` as bytes. Raises `ConfigError`."""
    if not _BYTES.fullmatch(text.strip()):
        raise ConfigError(f"a size of {text!r}; expected for example 64GiB or 500GB")
    return int(_SIZE.validate_python(text.strip()))


def capacities(text: str) -> list[Capacity]:
    """`1%,5%`, `1000 blocks`, `64GiB`, in any mixture, by commas. Raises `ConfigError`."""
    return [_capacity(one.strip()) for one in text.split(",")]


def _capacity(text: str) -> Capacity:
    plain = _PLAIN.fullmatch(text)
    if plain and plain[2] == "%":
        if float(plain[1]) > 100:
            raise ConfigError(f"a capacity of {text}; expected at most 100 % of the unique blocks")
        return Capacity(text, percent=float(plain[1]))
    if plain and "." not in plain[1]:
        return Capacity(text, blocks=int(plain[1]))
    if not plain and _BYTES.fullmatch(text):
        return Capacity(text, nbytes=bytes_of(text))
    raise ConfigError(f"a capacity of {text!r}; expected for example 5%, 20000 (blocks) or 64GiB")

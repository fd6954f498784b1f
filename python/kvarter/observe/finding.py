"""What a probe answers."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

MIB = 1 << 20


class Level(enum.StrEnum):
    """OK: as it should be. NOTE: works, and could be better or more. PROBLEM: something will not work."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at: what was found, in a sentence, and what to do unless the level is OK.

    data: the same for programs; the keys are the probe's own.
    """

    name: str
    level: Level
    found: str
    advice: str = ""
    data: dict[str, Any] = {}


def read(path: Any) -> str:
    """A small file of /proc or /sys without its last newline; "" where it is absent or closed to us."""
    try:
        return str(path.read_text()).strip()
    except OSError:
        return ""


def size(nbytes: int) -> str:
    """Bytes as people read them."""
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / MIB:.0f} MiB"

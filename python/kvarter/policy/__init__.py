"""Placement policy: what to load, keep and drop. Off the hot path, in Python. README.md says how to add one."""

from ..errors import ConfigError
from .arc import Arc
from .base import CONTINUES, ENDS, HIGH, LOW, NO_HINT, Columns, Policy
from .fifo import Fifo
from .hazard import Hazard
from .lfu import Lfu
from .load import AlwaysLoad, LoadPolicy, Measured
from .lru import Lru
from .s3fifo import S3Fifo
from .wild import Wild

POLICIES: dict[str, type[Policy]] = {kind.name: kind for kind in (Hazard, Lru, Fifo, Lfu, Arc, S3Fifo, Wild)}
DEFAULT = Hazard.name


def named(name: str) -> type[Policy]:
    """The policy of this name. Raises `ConfigError` with those there are."""
    if name not in POLICIES:
        raise ConfigError(f"no policy {name!r}; there are {', '.join(POLICIES)}")
    return POLICIES[name]


__all__ = [
    "CONTINUES",
    "DEFAULT",
    "ENDS",
    "HIGH",
    "LOW",
    "NO_HINT",
    "POLICIES",
    "AlwaysLoad",
    "Columns",
    "LoadPolicy",
    "Measured",
    "Policy",
    "named",
]

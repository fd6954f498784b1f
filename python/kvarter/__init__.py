"""Kvarter: keeps an inference engine's KV blocks in host memory and gives them back exactly.

The names below are the public ones. Each is imported at its first use: `import kvarter` alone loads nothing, since
it happens in every process of an engine that has Kvarter installed, used or not.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ._core import Status, chain_digests
    from .errors import (
        AttachError,
        AuditError,
        CapacityError,
        ConfigError,
        FingerprintError,
        GeometryError,
        KvarterError,
        UnsupportedEngine,
    )
    from .geometry import CacheGroup, Full, State, Window
    from .keys import Namespace
    from .sequence import Sequence
    from .store import Store

_HOMES = {
    "_core": ("Status", "chain_digests"),
    "errors": (
        "AttachError",
        "AuditError",
        "CapacityError",
        "ConfigError",
        "FingerprintError",
        "GeometryError",
        "KvarterError",
        "UnsupportedEngine",
    ),
    "geometry": ("CacheGroup", "Full", "State", "Window"),
    "keys": ("Namespace",),
    "sequence": ("Sequence",),
    "store": ("Store",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "AttachError",
    "AuditError",
    "CacheGroup",
    "CapacityError",
    "ConfigError",
    "FingerprintError",
    "Full",
    "GeometryError",
    "KvarterError",
    "Namespace",
    "Sequence",
    "State",
    "Status",
    "Store",
    "UnsupportedEngine",
    "Window",
    "chain_digests",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Tiers: places for blocks below the pool.

The disk (`disk.py`) is the store's own: it is on this host, answers at once what it has, and reads and writes the pool's
slots itself. Tiers that are asked by key and answer later keep the protocol of `base.py`; here are their names.
"""

from __future__ import annotations

import difflib
import importlib

from ..errors import ConfigError
from .base import Capabilities, Done, Key, Slot, Tier, Usage

__all__ = ["Capabilities", "Done", "Key", "Slot", "Tier", "Usage", "tier_class"]

# Imported when first asked for: a member may need packages that only its extra installs.
_MEMBERS = {
    "noop": "kvarter.tiers.noop:Noop",
    "faulty": "kvarter.tiers.faulty:Faulty",
}


def tier_class(name: str) -> type[Tier]:
    """The class of a tier by its name, or of a plug-in by `module:Class`.

    Raises `ConfigError` for a name that is unknown, with the nearest known one, and for a module that cannot be
    imported or has no such class.
    """
    place = _MEMBERS.get(name, name)
    if ":" not in place:
        near = difflib.get_close_matches(name, _MEMBERS, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_MEMBERS)}, or module:Class"
        raise ConfigError(f"unknown tier {name!r}; {hint}")
    module, _, cls = place.partition(":")
    try:
        found: type[Tier] = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"tier {name!r} cannot be loaded: {error}") from error
    return found

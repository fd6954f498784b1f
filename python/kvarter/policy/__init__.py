"""Placement policy: what to load, keep and drop. Off the hot path, in Python."""

from .load import AlwaysLoad, LoadPolicy, Measured

__all__ = ["AlwaysLoad", "LoadPolicy", "Measured"]

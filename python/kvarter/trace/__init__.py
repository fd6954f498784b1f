"""Traces of real traffic: reading them, making them, and what a cache of any size would have served."""

from .errors import TraceError
from .generate import SHAPES, generate
from .optimum import infinite, optimum
from .read import read
from .replay import Result, replay
from .tiers import TwoTierResult, replay_tiers
from .trace import Request, Trace

__all__ = [
    "SHAPES",
    "Request",
    "Result",
    "Trace",
    "TraceError",
    "TwoTierResult",
    "generate",
    "infinite",
    "optimum",
    "read",
    "replay",
    "replay_tiers",
]

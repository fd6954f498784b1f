"""What this machine offers Kvarter: one small probe for each thing, and `examine`, which asks them all."""

from .examine import examine
from .finding import Finding, Level

__all__ = ["Finding", "Level", "examine"]

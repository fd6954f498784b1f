"""What is wrong with a trace, and where."""

from __future__ import annotations

from ..errors import KvarterError


class TraceError(KvarterError, ValueError):
    """A trace that cannot be read: file and line, what was found, and what was expected."""

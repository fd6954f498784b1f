"""The load-or-recompute seam: whether fetching a hit pays against computing it again."""

from __future__ import annotations

from typing import Protocol


class LoadPolicy(Protocol):
    """Called on the engine's scheduler thread: answer at once, from what was measured before."""

    def worthwhile(self, tokens: int, above: int, below: int, queued: int) -> bool:
        """Whether to load `above` bytes from memory and `below` from disk, behind `queued` bytes that were asked of the
        disk before, instead of recomputing `tokens` tokens."""

    def loaded(self, below: int, seconds: float) -> None:
        """So many bytes came from disk, and this long after they were asked for, those queued before included."""

    def computed(self, tokens: int, seconds: float) -> None:
        """The engine has computed so many prompt tokens in so long."""

    def seen(self) -> dict[str, float]:
        """What it goes by, by name, for metrics."""


class AlwaysLoad:
    """From host memory a load nearly always pays."""

    def worthwhile(self, tokens: int, above: int, below: int, queued: int) -> bool:
        return True

    def loaded(self, below: int, seconds: float) -> None: ...

    def computed(self, tokens: int, seconds: float) -> None: ...

    def seen(self) -> dict[str, float]:
        return {}


class Measured:
    """Loads from disk what the disk delivers sooner than the engine computes it, by what both did lately.

    Both costs grow with the tokens, so all of a prefix pays, or none: what is decided is how far to go below memory.
    Until both are known everything is loaded. Of what is refused, every 16th is loaded all the same: a disk that was
    slow once would never be asked again.
    """

    PROBE_EVERY = 16
    _KEEP = 0.8  # of what was known, at each new measurement

    def __init__(self) -> None:
        self._bytes_per_second = self._tokens_per_second = 0.0
        self._refused = 0

    def worthwhile(self, tokens: int, above: int, below: int, queued: int) -> bool:
        if not below or not self._bytes_per_second or not self._tokens_per_second:
            return True
        if (below + queued) / self._bytes_per_second <= tokens / self._tokens_per_second:
            return True
        self._refused += 1
        return self._refused % self.PROBE_EVERY == 0

    def loaded(self, below: int, seconds: float) -> None:
        self._bytes_per_second = self._mix(self._bytes_per_second, below, seconds)

    def computed(self, tokens: int, seconds: float) -> None:
        self._tokens_per_second = self._mix(self._tokens_per_second, tokens, seconds)

    def _mix(self, known: float, amount: int, seconds: float) -> float:
        if amount <= 0 or seconds <= 0:
            return known
        rate = amount / seconds
        return self._KEEP * known + (1 - self._KEEP) * rate if known else rate

    def seen(self) -> dict[str, float]:
        return {
            "disk_bytes_per_second": self._bytes_per_second,
            "prefill_tokens_per_second": self._tokens_per_second,
        }

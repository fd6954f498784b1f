"""What was asked of others and answered a moment ago: asked once, however often somebody wants to know."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")
_MOST = 1024


class _Look(Generic[T]):
    def __init__(self) -> None:
        self.since, self.answer = time.monotonic(), None  # type: float, T | None


class Looks(Generic[T]):
    """Thread-safe. keep: seconds that an answer stays true. patience: until somebody who does not answer has nothing.
    `version` changes with every answer."""

    def __init__(self, nothing: T, patience: float, keep: float) -> None:
        self._nothing, self._patience, self._keep = nothing, patience, keep
        self._looks: OrderedDict[Hashable, _Look[T]] = OrderedDict()
        self._lock = threading.Lock()
        self.version = 0

    def get(self, key: Hashable, ask: Callable[[Callable[[T], None]], None]) -> T | None:
        """What is known; None while the question, which `ask` begins when it is a new one, is on its way."""
        now = time.monotonic()
        with self._lock:
            look = self._looks.get(key)
            if look is not None:
                age = now - look.since
                if look.answer is not None and age < self._keep:
                    return look.answer
                if look.answer is None and age < self._patience:
                    return None
                if look.answer is None:
                    look.since, look.answer = now, self._nothing
                    return look.answer
            look = self._looks[key] = _Look()
            self._looks.move_to_end(key)
            while len(self._looks) > _MOST:
                self._looks.popitem(last=False)

        def answered(answer: T) -> None:
            with self._lock:
                look.since, look.answer = time.monotonic(), answer
                self.version += 1

        ask(answered)
        return None

"""What a rank's pages go to: a session with a pool (`session.py`), or the disk alone (`straight.py`)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import numpy.typing as npt

from ...keys import Namespace
from ...sequence import Sequence
from .pages import Pages

Done = npt.NDArray[np.bool_]  # of each page that was asked for


class Backing(ABC):
    """Thread-safe. `pages`: asked for and written, by what became of them. `moved`: pages, bytes and ns of puts and
    gets."""

    def __init__(self) -> None:
        self.pages: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    @abstractmethod
    def serve(self, name: str, pages: Pages) -> None:
        """A pool whose pages will come. Raises `UnsupportedEngine` for one that cannot be served."""

    @abstractmethod
    def ready(self) -> bool: ...

    @abstractmethod
    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds` for `ready`."""

    @abstractmethod
    def leading(self, sequence: Sequence, name: str) -> int:
        """How many pages, from the sequence's first known on, are there in a row: `name` asks, once."""

    @abstractmethod
    def there(self, sequence: Sequence) -> Done:
        """Which pages of a namespace without chains are there. Nothing is held."""

    @abstractmethod
    def put(self, sequence: Sequence, pages: Pages, at: Seq[Any], shard: int, end: float) -> Done:
        """Stores this rank's shard of the sequence's pages from the first known on. Of each page, whether it is
        stored, was so already, or is being stored by somebody."""

    @abstractmethod
    def get(self, sequence: Sequence, pages: Pages, at: Seq[Any], shard: int, end: float) -> Done:
        """Loads this rank's shard of the pages: as many as are there in a row, from the first on."""

    @abstractmethod
    def invalidate(self, namespace: Namespace) -> None:
        """Nothing of it is served or stored any more."""

    @abstractmethod
    def counters(self) -> dict[str, int]:
        """Blocks by what became of them, and bytes: `stored_bytes`, `loaded_bytes`, `evicted_bytes`."""

    @abstractmethod
    def ledger(self) -> dict[str, int]:
        """Bytes by what they are."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""

    def count_call(self, kind: str, done: Done, nbytes: int, begun: float) -> None:
        """A put or a get, begun at `begun` of the monotonic clock: pages of `nbytes` that are done."""
        pages = int(done.sum())
        spent = int((time.monotonic() - begun) * 1e9)
        self.moved.update({f"{kind}_pages": pages, f"{kind}_bytes": pages * nbytes, f"{kind}_ns": spent})

    def _count(self, done: Done, good: str, else_: str) -> Done:
        """Counts pages by whether they are done."""
        self.pages[good] += int(done.sum())
        self.pages[else_] += int((~done).sum())
        return done

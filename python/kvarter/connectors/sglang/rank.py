"""What one rank has in the store: pages by SGLang's digests, of each of its pools."""

from __future__ import annotations

import os
import time
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt

from ...config import Config
from ...sequence import Sequence
from .backing import Backing, Done
from .identity import Identity, sequence, server_arguments
from .pages import Pages, Tensors, pages_of
from .session import Session
from .straight import Straight

if TYPE_CHECKING:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

KV = "kv"  # the pool that a hit is counted in


class Rank:
    """The pools of one rank, under the names that SGLang gives them, and the session that their pages go through.

    `before` in these calls is what SGLang says of the pages from the first of the sequence on: a list, or None where it
    says nothing. Then a page stands alone, in a namespace of its own kind.
    """

    def __init__(self, storage: HiCacheStorageConfig, config: Config) -> None:
        self._storage, self._config = storage, config
        server = server_arguments()
        self._identity = Identity(storage, config, server)
        name = f"sglang-{os.getpid()}-{uuid4().hex[:8]}-tp{storage.tp_rank}"
        self.session: Backing = Straight(config) if config.disk.straight else Session(config, name)
        self._pools: dict[str, tuple[Any, Pages]] = {}
        self._asked = count()
        self._server = getattr(server, "port", 0)  # one of the host's, whatever its ranks

    def add(self, name: str, pool: Any, *, handed_over: bool = False) -> str:
        """A pool of this rank; handed_over: its pages come as tensors. Returns what it is, for the log. Raises
        UnsupportedEngine for one that cannot go straight to disk and is to."""
        pages = pages_of(pool)
        self._pools[name] = pool, Tensors(pages.bytes) if handed_over else pages
        self.session.serve(name, self._pools[name][1])
        return f"{type(pool).__name__}, pages of {pages.bytes} bytes as {self._pools[name][1].form}"

    def wait(self, seconds: float) -> bool:
        """Waits for the weights' fingerprint and for the pool, at most so long each, and says whether they are there.
        Raises `FingerprintError` when the weights will have no name."""
        self._identity.wait(seconds)
        return self.session.wait(seconds)

    def numbers(
        self, name: str, keys: list[str], indices: torch.Tensor | None
    ) -> npt.NDArray[np.int64] | None:
        """The page of each key, from its tokens' indices; None where they do not fit."""
        size = self._pools[name][0].page_size if name in self._pools else 0
        if not size or indices is None or indices.numel() != len(keys) * size:
            return None
        numbers: npt.NDArray[np.int64] = indices.numpy()[::size] // size
        return numbers

    def leading(self, keys: list[str], before: list[str] | None) -> int:
        """How many pages of the main pool are there in a row. Here SGLang says None for no pages before, too:
        those that stand alone count as well."""
        if not keys or (chain := self._sequence(KV, keys, before or [])) is None:
            return 0
        # All ranks of a server ask the same in the same order: to a policy they are one request.
        found = self.session.leading(chain, f"{keys[-1]} {self._server} {next(self._asked)}")
        if not found and not before:
            found = int(np.argmin(np.append(self.there(KV, keys), False)))
        return found

    def there(self, name: str, keys: list[str]) -> Done:
        """Which pages of a pool are there, each by itself."""
        chain = self._sequence(name, keys, None) if name in self._pools else None
        return self.session.there(chain) if chain is not None else np.zeros(len(keys), np.bool_)

    def put(self, name: str, keys: list[str], at: Any, before: list[str] | None) -> list[bool]:
        """Stores this rank's part of pages `at`: numbers, or tensors. Of each, whether it is stored or being stored."""
        if not keys or (chain := self._sequence(name, keys, before)) is None:
            return [False] * len(keys)
        begun, pages = time.monotonic(), self._pools[name][1]
        stored = self.session.put(chain, pages, at, self._shard(name), begun + self._config.store_seconds)
        self.session.count_call("put", stored, pages.bytes, begun)
        return [bool(ok) for ok in stored]

    def get(self, name: str, keys: list[str], at: Any, before: list[str] | None) -> list[bool]:
        """Loads this rank's part of the pages, as many as are there in a row."""
        if not keys or (chain := self._sequence(name, keys, before)) is None:
            return [False] * len(keys)
        begun, pages = time.monotonic(), self._pools[name][1]
        if before is None and name == KV and not self.session.there(chain)[:1].any():
            chain = self._sequence(name, keys, [])  # another engine may have said where they belong
            assert chain is not None
        loaded = self.session.get(chain, pages, at, self._shard(name), begun + self._config.load_seconds)
        self.session.count_call("get", loaded, pages.bytes, begun)
        return [bool(ok) for ok in loaded]

    def clear(self) -> None:
        """Nothing of these namespaces is served or stored any more, by any engine that shares them."""
        for namespace in self._identity.known():
            self.session.invalidate(namespace)

    def _sequence(self, name: str, keys: list[str], before: list[str] | None) -> Sequence | None:
        """None while the weights have no name."""
        pool, pages = self._pools[name]
        namespace = self._identity.namespace(name, pool, pages.form, pages.bytes, before is not None)
        return sequence(namespace, keys, before or ()) if namespace is not None else None

    def _shard(self, name: str) -> int:
        return self._storage.tp_rank if self._identity.shards(name) > 1 else 0

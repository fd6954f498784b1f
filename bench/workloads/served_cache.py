"""The cache that `store` measures, of a pool that is a node's."""

from __future__ import annotations

from kvarter import _core
from kvarter.base_store import BaseStore
from kvarter.node import Attachment, Invitation, RemoteStore
from memory import touch
from report import Run

from .store import Cache


class ServedCache(Cache):
    """The same of a pool that is a node's. path: the node's."""

    def __init__(self, path: str, run: Run, block: int, segment: int, batch: int, dram: int) -> None:
        self.path = path
        super().__init__(run, block, segment, batch, dram)

    def open(self, dram: int, max_blocks: int) -> tuple[BaseStore, _core.Mapping]:
        store = RemoteStore(self.path, "mover", timeout=60.0, patience=20.0)
        invitation = Invitation(self.path, "mover", _core.LAYOUT_VERSION)
        self.attachment = Attachment(invitation, 0, _core.HostCopyEngine(0), 60.0)
        mapping = self.attachment._mapping
        touch(mapping)
        return store, mapping

    def close(self) -> None:
        self.attachment.close()
        self.store.close()

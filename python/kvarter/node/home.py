"""Where an engine's blocks live: in its own process, or with the node that serves its host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from .. import _core
from ..base_store import BaseStore
from ..errors import ConfigError
from ..policy import LoadPolicy
from ..store import Store
from .attach import Invitation, embed, invitation
from .remote import RemoteStore

_SCHEME = "unix://"


class Home(Protocol):
    """A store, and the ranks that map its pool."""

    @property
    def store(self) -> BaseStore: ...
    @property
    def owner(self) -> int: ...
    @property
    def pool(self) -> bytes:
        """Names the pool that slots are in, as `Attachment.pool` does."""

    def ready(self) -> bool:
        """Whether there is a node and every rank has mapped its pool: before that nothing is matched or reserved."""

    def close(self) -> None: ...


class Embedded:
    """The node in this process: the default."""

    def __init__(self, store: Store, engine: str, ranks: int, directory: str | None) -> None:
        self.store = store
        self._node, _ = embed(store, engine, directory)
        self._ranks, self._ready = ranks, False
        self.owner = self._node.open_engine(engine, ranks)
        self.pool = store.index.pool_id

    def ready(self) -> bool:
        if not self._ready:
            self._ready = self._node.attached(self.owner) == self._ranks
        return self._ready

    def close(self) -> None:
        self._node.close()
        self.store.close()


class Served:
    """A session with `kvarter serve`. The node may go and come: then nothing is ready for a while."""

    def __init__(self, store: RemoteStore) -> None:
        self.store = store
        self._seen = 0  # the incarnation whose ranks are all there

    @property
    def owner(self) -> int:
        return self.store.owner

    @property
    def pool(self) -> bytes:
        return self.store.index.pool_id

    def ready(self) -> bool:
        if not self.store.connected:
            return False
        if self._seen != self.store.incarnation:
            incarnation = self.store.incarnation
            if self.store.attached() == self.store.ranks:
                self._seen = incarnation
        return self._seen == self.store.incarnation

    def close(self) -> None:
        self.store.close()


def node_path(node: str) -> str:
    """The socket's path of `unix:///...`. Raises `ConfigError` for anything else."""
    path = node.removeprefix(_SCHEME)
    if not node.startswith(_SCHEME) or not path.startswith("/"):
        raise ConfigError(
            f"node is {node!r}; expected unix:// and the absolute path of `kvarter serve`'s socket"
        )
    return path


def invited(engine: str, directory: str | None, node: str | None) -> Invitation:
    """Where the workers of `engine` attach."""
    if node is None:
        return invitation(engine, directory)
    return Invitation(node_path(node), engine, _core.LAYOUT_VERSION)


def home(
    make: Callable[[], Store],
    engine: str,
    ranks: int,
    *,
    directory: str | None = None,
    node: str | None = None,
    hold_seconds: float = 2.0,
    load_policy: LoadPolicy | None = None,
) -> Home:
    """With the node at `node`, or, where there is none named, with a store of its own that `make` makes.

    Raises `AttachError` when the node is not there or refuses, or there is no place for a socket.
    """
    if node is None:
        return Embedded(make(), engine, ranks, directory)
    return Served(
        RemoteStore(node_path(node), engine, ranks, hold_seconds=hold_seconds, load_policy=load_policy)
    )

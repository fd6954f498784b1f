"""Both ends of attaching: the embedded node in the store's process, and a worker's mapping of its pool."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .. import _core
from ..errors import AttachError
from ..store import Store
from ..transfers import Slots

TICK_MS = 50


class Invitation(NamedTuple):
    """What a worker needs in order to attach. Node and workers of one engine derive the same from its id."""

    path: str
    engine: str
    layout_version: int


def invitation(engine: str, directory: str | None = None) -> Invitation:
    """Where the embedded node of `engine` listens: a socket named from the engine's id."""
    where = Path(directory or _core.default_directory())
    name = hashlib.sha256(engine.encode()).hexdigest()[:16]
    return Invitation(str(where / f"{name}.sock"), engine, _core.LAYOUT_VERSION)


def embed(store: Store, engine: str, directory: str | None = None) -> tuple[_core.EmbeddedNode, Invitation]:
    """Serves the store's pool to the workers of `engine`.

    Raises `AttachError`, saying what is in the way, when the directory is not ours alone or cannot be written.
    """
    invited = invitation(engine, directory)
    _sweep(Path(invited.path).parent)
    try:
        node = _core.EmbeddedNode(store.index, store.exports(), invited.path, TICK_MS)
    except (_core.NodeError, OSError, ValueError) as error:
        raise AttachError(f"no socket for workers at {invited.path}: {error}") from None
    store.delegate_ticks()
    return node, invited


def _sweep(directory: Path) -> None:
    """Removes sockets that killed nodes left: those that nobody listens on. Asks the socket, not a process id, which
    may be of another namespace."""
    for left in directory.glob("*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(str(left))
            except ConnectionRefusedError:
                left.unlink(missing_ok=True)
            except OSError:
                continue


class Attachment:
    """A worker's view of the pool: addresses of its slots, and whether a slot is still what it was.

    `engine` copies into and out of the pool; it answers the node's fences.
    """

    def __init__(
        self, invitation: Invitation, rank: int, engine: _core.CopyEngine, timeout: float = 10.0
    ) -> None:
        try:
            self._client = _core.NodeClient(
                invitation.path,
                invitation.engine,
                rank,
                invitation.layout_version,
                _core.CopyFence(engine),
                timeout,
            )
        except (_core.NodeError, OSError, ValueError) as error:
            raise AttachError(
                f"rank {rank} cannot attach to the node at {invitation.path}: {error}"
            ) from None
        self._mapping = self._client.mapping

    @property
    def pool(self) -> bytes:
        """Names the pool: slots of another one mean nothing here."""
        return self._mapping.pool_id

    @property
    def connected(self) -> bool:
        """Whether the node is there. What is mapped stays as it was."""
        return self._client.connected

    @property
    def current(self) -> bool:
        """Connected, as the session that the engine has now. If not, attach anew. One that is connected all the same
        still answers fences of the session before: keep it until the next time."""
        return self._client.connected and not self._client.moved

    def addresses(self, slots: Slots) -> npt.NDArray[np.uint64]:
        """Where the slots of any shape are in this process, uint64 of the same shape. IndexError out of bounds."""
        flat = slots.reshape(-1)
        found: npt.NDArray[np.uint64] = self._mapping.addresses(flat["arena"], flat["offset"], flat["length"])
        return found.reshape(slots.shape)

    def prepare(self, engine: _core.CopyEngine) -> list[str]:
        """Makes the pool known to the device that `engine` copies for; what was refused, a sentence each.

        Takes as long as page-locking takes. The pool stays mapped as long as the engine.
        """
        return engine.prepare(self._mapping)

    def unchanged(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """Whether each slot still holds the block that was leased; asked after a copy."""
        return _core.unchanged(self._mapping, slots["record"].reshape(-1), slots["generation"].reshape(-1))

    def close(self) -> None:
        """Ends the connection. The process counts as a mapper until it dies."""
        self._client.close()

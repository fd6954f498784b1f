"""The node of a host: one store that engines of this user come to, ask, and leave.

The C++ thread of `_core.EmbeddedNode` serves everything that is hot. Here are the rare messages, the policy's ticks,
and what comes up from disk for whoever waits for it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from ..errors import AttachError, AuditError
from ..finding import Space
from ..matching import Lease
from ..sequence import Sequence
from ..store import Store
from ..transfers import Match
from . import adopt
from . import messages as m
from .attach import TICK_MS
from .chains import Chains, run_of
from .control import ControlServer, Peer
from .elders import Elders
from .heard import Heard
from .later import Later

if TYPE_CHECKING:
    from ..peers.service import Peers

logger = logging.getLogger("kvarter.node")
_IDLE_SECONDS, _BUSY_SECONDS = 0.02, 0.001  # between the ticks of this thread
_KEEP_FETCHED = 2.0  # seconds that what came up waits for its reader


class Node:
    """A store, served at `path` to the processes of this user. Owns the store: `close` closes it.

    Raises `AttachError`, saying what is in the way, when the socket's directory is not ours alone, or a node is there.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        elders: Iterable[int] = (),
        fence_timeout: float | None = None,
        peers: Peers | None = None,
    ) -> None:
        """elders: processes that mapped the store's pool for a node before this one. fence_timeout: seconds after which
        a process of ours that does not answer a fence is killed; None: never, and what it may write stays quarantined.
        peers: the store's, which end with it.
        """
        self.store, self.path, self.peers = store, path, peers
        self.started = time.time()
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = store.disk.log if store.disk is not None else None
        try:
            self.door = _core.EmbeddedNode(
                store.index, store.exports(), path, TICK_MS, True, log, store.index.last_owner
            )
        except (_core.NodeError, OSError, ValueError) as error:
            raise AttachError(f"no node at {path}: {error}") from None
        store.delegate_ticks()
        self._chains: dict[Peer, Chains] = {}
        self._later = Later()
        self._lock = threading.Lock()
        self.heard = Heard()
        self._closed = threading.Event()
        self.handed_over = threading.Event()
        self._fence_timeout = fence_timeout
        self._heirs: set[Peer] = set()
        self._elders = Elders(self.door, store.index, elders)
        self._mappers: frozenset[int] | None = None  # as the legacy has them
        self._wake = threading.Event()
        self.draining = False
        try:
            self.control = ControlServer(m.control_path(path), self)
        except OSError as error:
            self.door.close()
            raise AttachError(f"no node at {path}: {m.control_path(path)}: {error}") from None
        self._thread = threading.Thread(target=self._run, name="kvarter-place", daemon=True)
        self._thread.start()

    # --- the thread

    def _run(self) -> None:
        looked = 0.0
        while not self._closed.is_set():
            try:
                self.store.place()
                self._later.step()
                if time.monotonic() - looked >= _IDLE_SECONDS:
                    looked = time.monotonic()
                    self._leave_legacy()
                    self._kill_behind()
            except Exception:  # a worse order of eviction, never a node that is gone
                logger.exception("the node goes on without what it was placing")
            busy = bool(self._later) or self.store.index.victims_wanted > 0
            self._wake.wait(_BUSY_SECONDS if busy else _IDLE_SECONDS)
            self._wake.clear()

    def _kill_behind(self) -> None:
        if self._fence_timeout is not None:
            for pid in self.door.kill_behind(self._fence_timeout):
                logger.warning("process %d is killed: it has not answered a fence in time", pid)

    def _leave_legacy(self) -> None:
        engines = self.door.engines()
        self._elders.look(engines)
        mappers = frozenset({os.getpid(), *self._elders.left, *(pid for e in engines for pid in e[5])})
        if mappers != self._mappers:
            arenas = [(fd, nbytes, arena) for fd, nbytes, kind, arena in self.store.exports() if kind == 0]
            records = [(fd, nbytes, -1) for fd, nbytes, kind, _ in self.store.exports() if kind == 1]
            adopt.leave(self.path, self.store.index.pool_id, [*arenas, *records], mappers)
            self._mappers = mappers

    # --- rare messages

    def welcome(self) -> m.Welcome:
        from .. import __version__

        seconds = self.peers.look_seconds if self.peers is not None else 0.0
        return m.Welcome(m.PROTOCOL, __version__, self.store.disk is not None, seconds)

    def left(self, peer: Peer) -> None:
        with self._lock:
            self._chains.pop(peer, None)
        if peer in self._heirs:
            self.handed_over.set()

    def handle(self, peer: Peer, message: m.Asking) -> None:
        match message:
            case m.Open():
                peer.send(self._open(message))
            case m.Chain():
                self._of(peer).told(self._space(message.space), message)
            case m.Asked():
                space, sequence = self._of(peer)[message.chain]
                boundary = min(message.boundary, sequence.units * space.geometry.unit_tokens)
                first = self.store.asked(space, sequence, boundary, message.request, message.session)
                with self._lock:
                    self.heard.asked(message, sequence.units, first)
                self._wake.set()
            case m.Stored():
                space, sequence = self._of(peer)[message.chain]
                run = run_of(space, sequence, (message.group, message.first, message.count))
                self.store.stored(space, sequence, message.group, run)
            case m.Landed():
                self._landed(*self._of(peer)[message.chain], message)
            case m.Used():
                space, sequence = self._of(peer)[message.chain]
                for part in message.ranges:
                    run_of(space, sequence, part)
                if self.store.disk is not None:
                    self.store.disk.used(space, Match(sequence, 0, 0, ()), list(message.ranges))
            case m.Push():
                space, sequence = self._of(peer)[message.chain]
                if self.peers is not None:
                    self.peers.tier.push(space, sequence, message.to)
            case m.Look():
                self._look(peer, message)
            case m.Fetch():
                self._fetch(peer, message)
            case m.Hint():
                self.store.hint(message.session, **message.wishes)
            case m.Share():
                self.store.index.set_share(self._space(message.space).above, message.floor, message.quota)
                peer.send(m.Done(message.number))
            case m.Invalidate():
                peer.send(m.Done(message.number, {"namespaces": self._invalidate(message)}))
            case m.Status():
                peer.send(m.Done(message.number, self.status()))
            case m.Audit():
                peer.send(m.Done(message.number, self.audit()))
            case m.Drain():
                peer.send(m.Done(message.number, self.drain()))
            case m.HandOver():
                logger.info("handing over to the next node")
                self._hand_over()
                self._heirs.add(peer)
                peer.send(m.Done(message.number))

    def _of(self, peer: Peer) -> Chains:
        with self._lock:
            return self._chains.setdefault(peer, Chains())

    def _space(self, digest: bytes) -> Space:
        space = self.store.spaces().get(digest)
        if space is None:
            raise LookupError(f"namespace {digest.hex()[:16]} is not open here")
        return space

    def _open(self, message: m.Open) -> m.Opened:
        if len(message.digest) != 32:
            raise ValueError(f"a namespace digest of {len(message.digest)} bytes; expected 32")
        geometry = m.unpack(message.unit_tokens, message.groups)
        space = self.store.open_space(message.digest, geometry, lasting=message.lasting)
        if space.geometry != geometry:
            raise ValueError(f"namespace {message.digest.hex()[:16]} is open here with other groups")
        return m.Opened(message.number, space.above, space.below)

    def _landed(self, space: Space, sequence: Sequence, message: m.Landed) -> None:
        if self.store.disk is None:
            return
        sequence.seen_tokens = int(message.known)
        if (copy := self.store.disk.copier(space, sequence)) is not None:
            blocks: dict[int, list[int]] = {}
            for part in message.ranges:
                blocks.setdefault(part[0], []).extend(run_of(space, sequence, part))
            copy({group: np.array(numbers, np.int64) for group, numbers in blocks.items()})

    def _look(self, peer: Peer, message: m.Look) -> None:
        beyond = self.store.beyond
        space, sequence = self._of(peer)[message.chain]
        limit = min(message.limit, sequence.units * space.geometry.unit_tokens)
        if beyond is None or limit < space.geometry.unit_tokens:
            peer.send(m.Found(message.number, 0))
            return
        self._later.add(
            peer,
            lambda: beyond.look(space, sequence, message.here, limit),
            lambda tokens: m.Found(message.number, int(tokens)),
            0,
        )
        self._wake.set()

    def _fetch(self, peer: Peer, message: m.Fetch) -> None:
        space, sequence = self._of(peer)[message.chain]
        source = self.store.beyond if message.peers else self.store.disk if space.below is not None else None
        if source is None or len(message.below) > len(space.geometry.groups):
            raise ValueError(f"there {'are no peers' if message.peers else 'is no disk'} for that namespace")
        below = []
        for group, parts in enumerate(message.below):
            numbers: list[int] = []
            for first, count in parts:
                run = run_of(space, sequence, (group, first, count))
                if numbers and run and run.start <= numbers[-1]:
                    raise ValueError(f"block {run.start} of group {group} after block {numbers[-1]}")
                numbers.extend(run)
            below.append(numbers)
        blocks = [range(0)] * len(space.geometry.groups)
        for part in message.wanted:
            blocks[part[0]] = run_of(space, sequence, part)
        match = Match(sequence, message.tokens, 0, tuple(blocks), tuple(below), 1)
        nbytes = space.geometry.bytes_at(below)
        begun = time.monotonic()
        index = self.store.index
        clock = _core.SteadyClock()
        until = clock.now() + int(min(max(message.seconds, 0.0), 3600.0) * 1e9)
        ranges = [(group, need.start, len(need)) for group, need in enumerate(blocks) if need]

        def keep() -> Lease:
            # What has come stays until the reader has taken its own lease.
            deadline = clock.now() + int(_KEEP_FETCHED * 1e9)
            return index.lease(sequence.chain(space.above), ranges, _core.LeaseKind.Copy, 0, deadline)

        def answer(taken: Lease) -> m.Fetched:
            came = nbytes if taken[0] == _core.Status.Ok else 0
            seconds = time.monotonic() - begun
            (self.heard.peer_fetch if message.peers else self.heard.fetch).record(
                seconds
            )  # by this thread alone
            return m.Fetched(message.number, taken[0], came, seconds, source.queued_reads)

        closed = _core.Status.Closed, 0
        self._later.add(peer, source.fetch(space, match, until, keep), answer, closed)
        self._wake.set()

    def _invalidate(self, message: m.Invalidate) -> int:
        digest = message.space
        matching = [known for known in self.store.spaces() if known.startswith(digest)] if digest else []
        if len(matching) > 1:
            raise ValueError(f"{len(matching)} namespaces begin with {digest.hex()}")
        return sum(self.store.invalidate_space(known, everywhere=message.everywhere) for known in matching)

    # --- looking in

    def status(self) -> dict[str, Any]:
        """Ledgers, namespaces, engines, counters and latencies, as they are now. Any thread."""
        store, disk = self.store, self.store.disk  # which is gone once it is handed over
        report: dict[str, Any] = {
            "pid": os.getpid(),
            "path": self.path,
            "started": self.started,
            "draining": self.draining,
            "pool": {**store.index.ledger(), "pages": store.pool.pages},
            "counters": store.stats(),
            "door": {**self.door.counters(), **self.control.counts},
            "namespaces": self._namespaces(),
            "engines": [
                {"owner": o, "name": n, "ranks": r, "attached": a, "session": s, "pids": p}
                for o, n, r, a, s, p in self.door.engines()
            ],
        }
        with self._lock:
            report["found_units"] = dict(self.heard.units)
            report["match"] = self.heard.match.counts()
        report["fetch"] = self.heard.fetch.counts()
        report["peer_fetch"] = self.heard.peer_fetch.counts()
        if self.peers is not None:
            report["peers"] = self.peers.status()
        report["calls"] = self.door.latencies()
        if disk is not None:
            report["disk"] = {**disk.log.ledger(), "device": disk.log.device}
            report["disk_counters"] = disk.stats()
        return report

    def _namespaces(self) -> list[dict[str, Any]]:
        columns = self.store.index.columns
        resident = columns["state"] == 2
        found = []
        for digest, space in self.store.spaces().items():
            rows = resident & (columns["ns"] == space.above)
            found.append(
                {
                    "digest": digest.hex(),
                    "groups": [group.name for group in space.geometry.groups],
                    "blocks": int(rows.sum()),
                    "bytes": int(columns["bytes"][rows].sum()),
                    "on_disk": space.below is not None,
                }
            )
        return found

    def audit(self) -> dict[str, Any]:
        """What a recount of every structure finds wrong, and the ledger."""
        try:
            return {"findings": [], "ledger": self.store.audit()}
        except AuditError as error:
            return {"findings": [str(error)], "ledger": self.store.ledger()}

    def drain(self) -> dict[str, Any]:
        """Lets no new engine in, and makes what is queued for disk durable."""
        self.draining = True
        self.door.drain()
        flushed = self.store.disk.flush(30.0) if self.store.disk is not None else True
        return {"flushed": flushed, "engines": len(self.door.engines())}

    def _hand_over(self) -> None:
        """From here on nothing in the pool changes, and the disk is the next node's."""
        if self.peers is not None:
            self.peers.close()
        self.draining = True
        self._closed.set()
        self._wake.set()
        self._thread.join()
        self.door.close()
        self.store.close()

    def close(self) -> None:
        """Nobody is served any more; what is to be on disk is there. Idempotent."""
        if not self._closed.is_set():
            self._hand_over()
        self.control.close()

"""This node among others: what meets, asks and lends, on the meeting's thread; and UCX's engine, on its own."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import ConfigError
from ..finding import Found, Log, Space
from ..geometry import groups_digest
from ..policy import LoadPolicy, Measured
from ..sequence import Sequence
from ..tiers.peer import PeerTier
from . import messages as m
from .asking import Asking
from .clearing import Clearing
from .directory import Directory
from .handler import Times
from .lending import Lending
from .link import Link
from .meeting import Meeting
from .memory import Memory
from .others import Other
from .room import Room
from .trust import Trust
from .ucx_library import load

if TYPE_CHECKING:
    from .. import _ucx
    from ..store import Store

logger = logging.getLogger("kvarter.peers")


@dataclass(frozen=True)
class PeerOptions:
    """listen: HOST, PORT of the control connection, and where this node dials from. device: the interface that payload
    may use. transports: as UCX names them. ports: (lowest, highest) that UCX may listen at. look_seconds: what a
    request waits for others' answers. in_flight: bytes asked of one peer at a time. lend_share: of the pool, that may
    be leased for others. copies: nodes that are to have what is used often; 1: none are made.
    """

    listen: tuple[str, int]
    device: str
    trust: Trust
    directory: Directory
    transports: str = "tcp"
    ports: tuple[int, int] | None = None
    look_seconds: float = 0.1
    in_flight: int = 128 << 20
    lend_share: float = 0.25
    copies: int = 2
    policy: LoadPolicy = field(default_factory=Measured)
    times: Times = field(default_factory=Times)


class Peers:
    """Serves the store's blocks to other nodes, and brings theirs. Ends before the store does.

    Raises `ConfigError` for what cannot be had, and `UcxMissing` where there is no UCX.
    """

    def __init__(self, store: Store, options: PeerOptions) -> None:
        options.trust.check(options.listen[0])
        library = load()
        self._store, self._options, self._library = store, options, library
        self._node = os.urandom(16)
        self._memory = Memory(store.exports())
        most = int(options.lend_share * store.pool.bytes)
        devices = [options.device] if options.device else []
        try:
            self.wire: _ucx.Engine = library.module.Engine(
                self._memory.address,
                self._memory.bytes,
                devices=devices,
                transports=options.transports,
                ports=options.ports,
                queued_bytes=2 * most + (64 << 20),  # what is lent is bounded here, not there
            )
        except (RuntimeError, ValueError) as error:
            raise ConfigError(f"UCX {'.'.join(map(str, library.version))}: {error}") from None
        self._others: dict[int, Link] = {}  # by number at the engine
        self.meeting = Meeting(options.listen, options.trust, self, options.times)
        self.asking = Asking(self.meeting, self.wire, options.directory, options.look_seconds, self._memory)
        self.tier = PeerTier(self, store.index, options.policy, options.copies)
        self.clearing = Clearing(self.meeting, store.forget_space)
        used = self.tier.spreading.used
        self.lending = Lending(store, self.meeting, self.wire, self._memory, most, used)
        try:
            self.meeting.open()
        except ConfigError:
            self.wire.close()
            raise
        self._closing = threading.Lock()
        self.closed = False
        self.meeting.call(self._begin)
        store.join(self.tier)

    @property
    def address(self) -> str:
        return f"{self._options.listen[0]}:{self.meeting.port}"

    @property
    def directory(self) -> Directory:
        return self._options.directory

    @property
    def look_seconds(self) -> float:
        return self._options.look_seconds

    @property
    def pool_bytes(self) -> int:
        return self._store.pool.bytes

    def have(self, space: Space, sequence: Sequence, limit: int) -> int:
        """How many tokens of it this node can serve, from memory or disk: at most `limit`."""
        return int(space.geometry.boundary(Found(space, sequence, self.log), limit))

    @property
    def log(self) -> Log | None:
        """What this node has on disk."""
        return self._store.disk.log if self._store.disk is not None else None

    def space(self, namespace: bytes) -> Space | None:
        return self._store.spaces().get(namespace)

    def namespace(self, space: Space) -> bytes:
        """Its digest; of one that was closed, one that nobody has."""
        return next((d for d, known in self._store.spaces().items() if known.above == space.above), bytes(32))

    def _begin(self) -> None:
        self.meeting.loop.add_reader(self.wire.event_fd, self._events)
        self._options.directory.begin(self.meeting, self.address)
        self.meeting.start(self.tier.tell())
        self._events()

    # --- the meeting's handler

    def hello(self) -> m.Hello:
        spaces = list(self._store.spaces().items())[-1024:]
        namespaces = {digest: groups_digest(space.geometry) for digest, space in spaces}
        over = "tcp" if "tcp" in self._options.transports.split(",") else "rdma"
        return m.Hello(
            self._node, self.address, __version__, self._library.version, over, self.lending.most, namespaces
        )

    def invite(self) -> bytes:
        return self.wire.invite()

    def met(self, link: Link) -> None:
        try:
            number = self.wire.connect(link.theirs, link.ours)
        except OSError as error:
            raise ValueError(f"UCX does not reach it: {error}") from None
        link.value = Other(number, Room(min(self._options.in_flight, link.hello.most)))
        self._others[number] = link
        self.clearing.met(link)

    def said(self, link: Link, message: m.Talk) -> None:
        match message:
            case m.Look():
                link.send(self.lending.look(link.value, message))
            case m.Ask():
                self.lending.ask(link, message)
            case m.Take():
                self.tier.pushing.taken(link, message)
            case m.Clear():
                self.clearing.heard(message)
            case m.Doubt():
                self.lending.doubt(link.value, message)
            case m.Cancel():
                self.lending.cancel(link.value, message)
            case m.Have() | m.Refused():
                self.asking.said(link, message)

    def lost(self, link: Link) -> None:
        self.asking.lost(link)
        self.lending.lost(link.value)
        self.wire.close_peer(link.value.wire)

    # --- the engine

    def _events(self) -> None:
        ucx = self._library.module
        events = iter(self.wire.poll, [])  # until there are none
        for event in itertools.chain.from_iterable(events):
            match event:
                case ucx.Received():
                    self.asking.received(event)
                case ucx.Sent():
                    if (link := self._others.get(event.peer)) is not None:
                        self.lending.sent(link.value, event)
                case ucx.Lost():
                    if (link := self._others.get(event.peer)) is not None:
                        link.end(f"UCX: {event.why}")
                case ucx.Closed():
                    if (link := self._others.pop(event.peer, None)) is not None:
                        self.lending.end(link.value)

    # --- looking in, and the end

    def status(self) -> dict[str, Any]:
        """Who is there, and what became of what was asked and lent. Any thread."""
        links = [
            {
                "node": link.hello.node.hex(),
                "address": link.hello.address,
                "version": link.hello.version,
                "dialed": bool(link.dialed),
                "rtt_seconds": link.pulse.rtt,
            }
            for link in list(self.meeting.links)
        ]
        return {
            "listen": self.address,
            "trust": self._options.trust.kind,
            "ucx": {
                "version": ".".join(map(str, self._library.version)),
                "source": self._library.source,
                "transports": list(self.wire.transports),
                "counters": dict(self.wire.counters()) if not self.closed else {},
            },
            "links": links,
            "meeting": dict(self.meeting.counts),
            "directory": self._options.directory.status(),
            "looks": dict(self.asking.looks),
            "fetched": dict(self.asking.counts),
            "pushes": dict(self.tier.pushing.counts),
            "spread": dict(self.tier.spreading.counts),
            "copies": dict(self.tier.copies.counts),
            "cleared": dict(self.clearing.counts),
            "lent": {
                **self.lending.counts,
                "bytes": self.lending.room.used,
                "peak_bytes": self.lending.peak,
            },
        }

    def close(self) -> None:
        """Nothing is asked or lent any more, and no slot is touched. Idempotent."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
            self.meeting.close()
            self.wire.close()
            for link in self._others.values():
                self.lending.end(link.value)
            self.tier.give_up()

    def __repr__(self) -> str:
        return f"<Peers at {self.address}, {len(self.meeting.links)} links, {self._options.trust.kind}>"

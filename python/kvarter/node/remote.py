"""A store whose pool is a node's: the same calls, asked over a session.

Look-ups read the mapped index; leases, reservations and commits are one round trip to the node's thread each; what the
policy and the disk are to know goes by the rare messages and is never waited for. When the node goes, every call
answers as a miss at once, and a thread of its own looks for the next one.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _core
from ..base_store import BaseStore
from ..errors import AttachError, AuditError
from ..finding import AnyIndex, Space
from ..geometry import Geometry
from ..keys import Namespace
from ..matching import NOTHING, Looked, Matcher
from ..policy import AlwaysLoad, LoadPolicy, Measured
from ..sequence import Sequence
from ..transfers import Match, Reservation, Ticket
from ..wishes import Hint
from . import messages as m
from .control import Control
from .remote_disk import RemoteDisk
from .remote_peers import RemotePeers
from .told import Told

logger = logging.getLogger("kvarter.node")
_PATIENCE = 0.25  # seconds that a call waits for the node, before it is given up
_LOOK_SECONDS = 0.1  # between looks whether the node is there
_BACKOFF = 2.0  # seconds between attempts, at most


class RemoteStore(BaseStore):
    """A session with the node at `path`, as engine `name` of `ranks` ranks.

    Raises `AttachError` when there is no node, or it refuses. Once made it survives the node: `connected` says whether
    there is one now, `incarnation` counts them.
    """

    def __init__(
        self,
        path: str,
        name: str,
        ranks: int = 1,
        *,
        hold_seconds: float = 2.0,
        load_policy: LoadPolicy | None = None,
        timeout: float = 10.0,
        patience: float = _PATIENCE,
    ) -> None:
        super().__init__(_core.SteadyClock(), hold_seconds)
        self.path, self.name, self.ranks = path, name, ranks
        self._patience, self._said = patience, load_policy
        self.incarnation = 0
        self._earlier: Counter[str] = Counter()  # of sessions before this one
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._pins: dict[int, tuple[AnyIndex, int]] = {}  # where each is, and until when
        self._gates: dict[bytes, int] = {}  # of namespaces, as they were when opened
        self._withdrawn: dict[bytes, tuple[Namespace, bool]] = {}  # invalidated, and no node has confirmed it
        self.index: _core.RemoteIndex
        self._attach(timeout)
        self._thread = threading.Thread(target=self._watch, name="kvarter-session", daemon=True)
        self._thread.start()

    # --- the session

    def _attach(self, timeout: float) -> None:
        begun = time.monotonic()
        try:
            index = _core.RemoteIndex(self.path, self.name, self.ranks, timeout, self._patience)
        except (_core.NodeError, OSError, ValueError) as error:
            raise AttachError(
                f"no session with the node at {self.path}: {error}; `kvarter serve --socket {self.path}` starts one"
            ) from None
        try:
            control = Control(self.path, self.name, max(timeout - (time.monotonic() - begun), 0.1))
        except AttachError:
            index.close()
            raise
        with self._lock:
            if self.incarnation:
                self._earlier = self._add(self.index.counters())
            self.index, self._control = index, control
            self._spaces, self._holds = {}, type(self._holds)()
            self._told = Told(control)
            on_disk = control.welcome.disk
            self.load_policy = self._said or (Measured() if on_disk else AlwaysLoad())
            self.disk = RemoteDisk(index, control, self._told, self.load_policy) if on_disk else None
            beyond = None
            if control.welcome.peers:
                policy = self._said or Measured()
                beyond = RemotePeers(control, self._told, policy, 2 * control.welcome.peers + 1.0)
            self._matcher = Matcher(self.load_policy, self.disk, 1 << 62, beyond)
            self.incarnation += 1
            withdrawn = list(self._withdrawn.values())
        for namespace, everywhere in withdrawn:
            self._withdraw(control, namespace, everywhere)

    @property
    def connected(self) -> bool:
        return self.index.connected and self._control.connected

    @property
    def owner(self) -> int:
        """This session's number at the node."""
        return self.index.owner

    def attached(self) -> int:
        """Ranks whose mapping stands, as the node says."""
        return int(self.index.look())

    def _watch(self) -> None:
        wait = _LOOK_SECONDS
        while not self._closed.wait(wait):
            wait = _LOOK_SECONDS
            if self.connected:
                continue
            self.index.close()
            self._control.close()
            try:
                self._attach(_BACKOFF)
                if self._closed.is_set():  # meanwhile
                    self.index.close()
                    self._control.close()
                logger.warning("attached to the node at %s again", self.path)
            except AttachError as error:
                logger.debug("%s", error)
                wait = _BACKOFF / 4

    # --- namespaces

    def _space(self, namespace: Namespace) -> Space:
        digest = namespace.digest()
        with self._lock:
            space, control, index = self._spaces.get(digest), self._control, self.index
            # Whoever invalidated it, nothing is ever found or stored under that number again.
            if space is not None and index.gate(space.above) != self._gates[digest]:
                space = None
        if space is None:
            geometry = Geometry(namespace.unit_tokens, namespace.groups)
            answer = control.ask(lambda number: _opening(number, namespace), self._patience)
            if not isinstance(answer, m.Opened):
                raise AttachError(f"the node at {self.path} answers {answer!r}")
            index.know(answer.above, max(len(group.shard_bytes) for group in namespace.groups))
            space = Space(answer.above, answer.below, geometry, index)
            gate = index.gate(space.above)
            with self._lock:
                if self.index is index and (gate & 1 or not gate):  # else it was closed in the meantime
                    self._spaces[digest], self._gates[digest] = space, gate
        return space

    def invalidate(self, namespace: Namespace, *, everywhere: bool = True) -> None:
        """Also while there is no node: the next one is told before anything is asked of it."""
        digest = namespace.digest()
        with self._lock:
            self._spaces.pop(digest, None)
            everywhere |= self._withdrawn.get(digest, (namespace, False))[1]
            self._withdrawn[digest] = namespace, everywhere
            control = self._control
        self._withdraw(control, namespace, everywhere)

    def _withdraw(self, control: Control, namespace: Namespace, everywhere: bool) -> None:
        digest = namespace.digest()

        def answered(answer: m.Answer | None) -> None:
            if isinstance(answer, m.Done):
                with self._lock:
                    self._withdrawn.pop(digest, None)

        if control.welcome.disk or (everywhere and control.welcome.peers):  # also of it: what lies there
            control.request(lambda number: _opening(number, namespace), _ignore)
        control.request(lambda number: m.Invalidate(number, digest, everywhere), answered)

    # --- calls, each a miss while there is no node

    def match(self, sequence: Sequence, **asked: Any) -> Match:
        if not self.connected:
            return _miss(sequence, asked)
        try:
            return super().match(sequence, **asked)
        except AttachError:
            return _miss(sequence, asked)

    def find(self, sequence: Sequence, group: int, blocks: range) -> Match:
        if not self.connected:
            return _miss(sequence, {})
        try:
            return super().find(sequence, group, blocks)
        except AttachError:
            return _miss(sequence, {})

    def load(self, match: Match, deadline: float, *, request: str | None = None, owner: int = 0) -> Ticket:
        try:
            return super().load(match, deadline, request=request, owner=owner)
        except AttachError:
            geometry = Geometry(match.sequence.namespace.unit_tokens, match.sequence.namespace.groups)
            return Ticket(self.index, geometry, match, lambda: (_core.Status.Closed, 0))

    def reserve(self, sequence: Sequence, *args: Any, **kwargs: Any) -> Reservation:
        try:
            return super().reserve(sequence, *args, **kwargs)
        except AttachError:
            geometry = Geometry(sequence.namespace.unit_tokens, sequence.namespace.groups)
            return Reservation(self.index, geometry, {}, (0, 0))

    def pin(self, sequence: Sequence, ttl: float, *, tokens: int | None = None) -> int | None:
        try:
            index = self.index
            pin = super().pin(sequence, ttl, tokens=tokens)
        except AttachError:
            return None
        if pin is not None:
            now = self._clock.now()
            with self._lock:
                self._pins = {other: kept for other, kept in self._pins.items() if kept[1] > now}
                self._pins[pin] = index, self._deadline(ttl)
        return pin

    def push(self, sequence: Sequence, to: str) -> None:
        with contextlib.suppress(AttachError):
            super().push(sequence, to)

    def unpin(self, pin: int) -> bool:
        """Also False for the pin of an earlier session: nobody can take it off, and it ends when its time is over."""
        with self._lock:
            index, _ = self._pins.pop(pin, (None, 0))
        return index is not None and index.release(pin, _core.Outcome.Unused)

    def handles(self, sequence: Sequence, group: int, blocks: range) -> npt.NDArray[np.uint64]:
        try:
            return super().handles(sequence, group, blocks)
        except AttachError:
            return np.zeros(len(blocks), np.uint64)

    # --- wishes, and what placement is told

    def hint(self, session: str, **wishes: Any) -> None:
        Hint(session, **wishes)  # TypeError, as everywhere, for what is no wish
        self._control.tell(m.Hint(session, wishes))

    def share(self, namespace: Namespace, *, floor: int = 0, quota: int = 0) -> None:
        self._space(namespace)
        self._control.ask(
            lambda number: m.Share(number, namespace.digest(), floor, quota), 10 * self._patience
        )

    def asked(
        self,
        space: Space,
        sequence: Sequence,
        boundary: int,
        request: str | None,
        session: str | None,
        looked: Looked = NOTHING,
    ) -> bool:
        chain = self._told.chain(sequence)
        found = looked.engine, looked.memory, looked.disk, looked.miss
        return self._control.tell(
            m.Asked(chain, int(boundary), request, session, found, looked.seconds, looked.peer)
        )

    def stored(self, space: Space, sequence: Sequence, group: int, run: range) -> None:
        chain = self._told.chain(sequence)
        self._control.tell(m.Stored(chain, group, run.start, len(run)))

    def _tick(self) -> None: ...  # the node's

    # --- account

    def status(self, timeout: float = 10.0) -> dict[str, Any]:
        """What the node says of itself: `kvarter status --json`."""
        return _report(self._control.ask(m.Status, timeout))

    def audit(self) -> dict[str, int]:
        report = _report(self._control.ask(m.Audit, 60.0))
        if report["findings"]:
            raise AuditError("; ".join(report["findings"]))
        ledger: dict[str, int] = report["ledger"]
        return ledger

    def ledger(self) -> dict[str, int]:
        """Nothing: it is the node's, and told by the node alone."""
        return {}

    def _add(self, ended: dict[str, int]) -> Counter[str]:
        """The counters of all sessions so far: what one has left open when its node went is over."""
        ended["node_gone"] += ended.pop("in_flight")
        ended["load_expired"] += ended.pop("leased_now")
        return self._earlier + Counter(ended)

    def counters(self) -> dict[str, int]:
        now = self.index.counters()
        return {name: count + self._earlier[name] for name, count in now.items()}

    def stats(self) -> dict[str, int]:
        return {**self.counters(), **self._matcher.counts, "advice_dropped": self._control.dropped}

    @property
    def version(self) -> tuple[int, ...]:
        others = self.beyond.version if self.beyond is not None else 0
        return self.incarnation, self.index.version, self.index.below_version, others, self.connected

    def close(self) -> None:
        self._closed.set()
        self._end_holds()
        self.index.close()
        self._control.close()
        self._thread.join(2 * _BACKOFF)

    def __repr__(self) -> str:
        return f"<RemoteStore {self.name} at {self.path}, {'' if self.connected else 'not '}connected>"


def _opening(number: int, namespace: Namespace) -> m.Open:
    groups = m.pack(Geometry(namespace.unit_tokens, namespace.groups))
    return m.Open(number, namespace.digest(), namespace.unit_tokens, groups, lasting=not namespace.epoch)


def _miss(sequence: Sequence, asked: dict[str, Any]) -> Match:
    return Match(sequence, 0, asked.get("have_tokens", 0), ())


def _report(answer: m.Answer) -> dict[str, Any]:
    if not isinstance(answer, m.Done):
        raise AttachError(f"the node answers {answer!r}")
    return answer.report


def _ignore(_: m.Answer | None) -> None: ...

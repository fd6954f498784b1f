"""Both ends of the rare messages: a thread for each who asks at the node, and the one connection of who asks."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from ..errors import AttachError
from . import messages as m

logger = logging.getLogger("kvarter.node")
_UCRED = struct.Struct("3i")
_MOST_CONNECTIONS = 256
_SEND_SECONDS = 5.0  # one who does not read what it asked for is let go
_MOST_QUEUED = (
    4096  # messages that a client has said and not sent; of those that only advise, more are dropped
)


def uid_of(connection: socket.socket) -> int:
    uid: int = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]
    return uid


class Peer:
    """Somebody who asks. `send` may be called by any thread, and answers False once the other end is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self.engine = ""

    def send(self, message: m.Message) -> bool:
        try:
            with self._lock:
                self._connection.sendall(m.frame(message))
        except OSError:
            self.close()
            return False
        return True

    def receive(self) -> bytes | None:
        return m.receive(self._connection)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()


class Handler(Protocol):
    def welcome(self) -> m.Welcome: ...
    def handle(self, peer: Peer, message: m.Asking) -> None:
        """Raises ValueError, KeyError or MemoryError for what cannot be done: the peer is told why."""

    def left(self, peer: Peer) -> None: ...


class ControlServer:
    """Listens beside a node's socket, in the same owner-only directory. Malformed input ends the connection it came on
    and nothing else. `counts`: what came to the door."""

    def __init__(self, path: str, handler: Handler) -> None:
        self._path, self._handler = path, handler
        Path(path).unlink(missing_ok=True)  # the node's own socket says that nobody else is there
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._door.bind(path)
        except OSError:
            self._door.close()
            raise
        Path(path).chmod(0o600)
        self._file = Path(path).stat().st_ino
        self._door.listen(64)
        self._peers: set[Peer] = set()
        self._lock = threading.Lock()
        self._closed = False
        self.counts = {
            "control_connections": 0,
            "control_refused": 0,
            "control_violations": 0,
            "control_ignored": 0,
        }
        self._thread = threading.Thread(target=self._accept, name="kvarter-control", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                if self._closed:
                    return
                threading.Event().wait(0.05)  # out of descriptors
                continue
            self.counts["control_connections"] += 1
            seconds, rest = int(_SEND_SECONDS), 0
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", seconds, rest))
            peer = Peer(connection)
            uid = uid_of(connection)
            refusal = None
            if uid != os.geteuid():
                refusal = f"uid found {uid}, expected {os.geteuid()}"
            elif len(self._peers) >= _MOST_CONNECTIONS:
                refusal = f"{_MOST_CONNECTIONS} connections are open here already"
            if refusal is not None:
                self.counts["control_refused"] += 1
                peer.send(m.Refused(refusal))
                peer.close()
                continue
            with self._lock:
                self._peers.add(peer)
            threading.Thread(target=self._serve, args=(peer,), name="kvarter-peer", daemon=True).start()

    def _serve(self, peer: Peer) -> None:
        try:
            while (body := peer.receive()) is not None:
                if not self._one(peer, m.asking.decode(body)):
                    break
        except OSError:
            pass
        except Exception as error:  # whatever it makes us stumble over
            self.counts["control_violations"] += 1
            logger.warning("a connection is dropped: %s: %s", type(error).__name__, error)
        finally:
            with self._lock:
                self._peers.discard(peer)
            peer.close()
            self._handler.left(peer)

    def _one(self, peer: Peer, message: m.Asking) -> bool:
        if isinstance(message, m.Hello):
            if abs(message.protocol - m.PROTOCOL) > 1:
                self.counts["control_refused"] += 1
                peer.send(m.Refused(f"protocol version found {message.protocol}, expected {m.PROTOCOL}"))
                return False
            peer.engine = message.engine
            return peer.send(self._handler.welcome())
        try:
            self._handler.handle(peer, message)
        except (ValueError, LookupError, MemoryError) as error:
            number = getattr(message, "number", 0)
            sentence = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
            if number:
                return peer.send(m.Refused(sentence, number))
            self.counts["control_ignored"] += 1
            logger.debug("a message is ignored: %s", sentence)
        return True

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        with contextlib.suppress(OSError):
            if Path(self._path).stat().st_ino == self._file:  # else the next node's
                Path(self._path).unlink()
        with self._lock:
            peers = list(self._peers)
        for peer in peers:
            peer.close()


def _connect(connection: socket.socket, path: str, timeout: float) -> None:
    """Also when many others are at the door: then the kernel has no patience of its own."""
    until = time.monotonic() + timeout
    while True:
        try:
            return connection.connect(path)
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


class Control:
    """A connection to a node. Thread-safe; one thread sends, one receives. Raises `AttachError` where it cannot be
    made. `connected` turns false for good when the node is gone."""

    def __init__(self, path: str, engine: str = "", timeout: float = 10.0) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection.settimeout(timeout)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Callable[[m.Answer | None], None]] = {}
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.dropped = 0  # messages that only advise
        self.connected = True
        try:
            _connect(self._connection, m.control_path(path), timeout)
            if (uid := uid_of(self._connection)) != os.geteuid():
                raise AttachError(f"the node at {path} has uid found {uid}, expected {os.geteuid()}")
            self._connection.sendall(m.frame(m.Hello(m.PROTOCOL, engine)))
            body = m.receive(self._connection)
            said = m.answers.decode(body) if body is not None else None
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            self._connection.close()
            if isinstance(error, AttachError):
                raise
            raise AttachError(f"no node to ask at {path}: {error}") from None
        if not isinstance(said, m.Welcome):
            self._connection.close()
            why = said.sentence if isinstance(said, m.Refused) else "it closed the connection"
            raise AttachError(f"the node at {path} refuses: {why}")
        self.welcome = said
        self._connection.settimeout(None)
        for target in (self._send, self._receive):
            threading.Thread(target=target, name="kvarter-control", daemon=True).start()

    def ask(self, question: Callable[[int], m.Question], timeout: float) -> m.Answer:
        """The answer, in time. Raises `AttachError` when there is none, ValueError with the node's sentence."""
        answered: queue.SimpleQueue[m.Answer | None] = queue.SimpleQueue()
        number = self.request(question, answered.put)
        try:
            answer = answered.get(timeout=timeout)
        except queue.Empty:
            with self._lock:
                self._waiting.pop(number, None)
            raise AttachError(f"the node did not answer within {timeout:g} s") from None
        if answer is None:
            raise AttachError("the node is gone")
        if isinstance(answer, m.Refused):
            raise ValueError(answer.sentence)
        return answer

    def request(self, question: Callable[[int], m.Question], then: Callable[[m.Answer | None], None]) -> int:
        """Asks; `then` gets the answer, on the receiving thread, or None when the node is gone."""
        number = next(self._numbers)
        frame = m.frame(question(number))
        with self._lock:
            if self.connected:
                self._waiting[number] = then
                self._queue.put(frame)
                return number
        then(None)
        return number

    def tell(self, message: m.Message) -> bool:
        """Says what only advises; dropped, and False, when too much of it waits."""
        if not self.connected or self._queue.qsize() > _MOST_QUEUED:
            self.dropped += 1
            return False
        self._queue.put(
            m.frame(message)
        )  # what cannot be said is its caller's mistake: here, not on the thread
        return True

    def _send(self) -> None:
        while (frame := self._queue.get()) is not None:
            try:
                self._connection.sendall(frame)
            except OSError:
                break
        self._end()

    def _receive(self) -> None:
        try:
            while (body := m.receive(self._connection)) is not None:
                answer = m.answers.decode(body)
                with self._lock:
                    then = self._waiting.pop(getattr(answer, "number", 0), None)
                if then is not None:
                    then(answer)
        except (OSError, ValueError, msgspec.MsgspecError):
            pass
        self._end()

    def _end(self) -> None:
        with self._lock:
            self.connected = False
            waiting, self._waiting = list(self._waiting.values()), {}
        for then in waiting:
            then(None)
        self._queue.put(None)
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def close(self) -> None:
        self._end()

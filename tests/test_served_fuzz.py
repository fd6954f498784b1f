"""Nonsense at both of a node's sockets: it costs whoever says it, and nobody else notices."""

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvarter import _core
from kvarter.node import messages as m
from kvarter.sequence import Sequence
from served_words import SECONDS, Client, ServedNode, served, until
from words import KIB, full

pytestmark = pytest.mark.timeout(120)
MAGIC, PROTOCOL, SESSION = 0x5452564B, 2, 0x80000000
BLOCK, INBOX = 64 * KIB, 8 << 20


class Host:
    def __init__(self, node: ServedNode) -> None:
        self.node = node
        self.bystander = Client(node, "bystander", full(BLOCK))
        self.written = self.bystander.put(self.bystander.tokens(1, 4), {0: range(4)})
        match = self.bystander.store.match(self.bystander.tokens(1, 4))
        self.ticket = self.bystander.store.load(match, 600)
        self.reservation = self.bystander.store.reserve(self.bystander.tokens(2, 4), {0: range(4)}, 600)

    def unaffected(self) -> None:
        """What the bystander holds stands, its bytes are its own, and it goes on."""
        store = self.bystander.store
        assert store.incarnation == 1 and store.connected
        assert self.bystander.read(self.ticket) == self.written
        ledger = self.node.ledger()
        assert (ledger["leased"], ledger["reserved"]) == (4 * BLOCK, 4 * BLOCK)
        number = random.randrange(1 << 30)
        mine = self.bystander.put(self.bystander.tokens(number, 2), {0: range(2)})
        assert self.bystander.get(store.match(self.bystander.tokens(number, 2))) == mine

    def door(self) -> dict[str, int]:
        counts: dict[str, int] = self.node.status()["door"]
        return counts

    def close(self) -> None:
        self.unaffected()
        self.reservation.commit(0, *_all_well(4))
        assert self.bystander.store.match(self.bystander.tokens(2, 4)).tokens == 16
        assert self.ticket.finish(_core.Outcome.Loaded)
        self.bystander.close()
        self.node.holds(leased=0, reserved=0, quarantined=0)


def _all_well(blocks: int) -> tuple[object, object]:
    return np.ones(blocks, np.uint8), np.zeros(blocks, np.uint64)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with served(tmp_path) as node:
        host = Host(node)
        yield host
        host.close()


def hello(name: bytes, rank: int = SESSION | 1, protocol: int = PROTOCOL) -> bytes:
    return struct.pack("<5I108s", MAGIC, protocol, _core.LAYOUT_VERSION, rank, len(name), name)


def connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(SECONDS)
    connection.connect(path)
    return connection


class Session:
    """One without any of our code: it can say everything."""

    def __init__(self, path: str, name: bytes) -> None:
        self.connection = connect(path)
        self.connection.send(hello(name))
        answer = self.connection.recv(4096)
        assert struct.unpack_from("<3I", answer)[2] == 0, answer[24:]
        _, fds, _, _ = socket.recv_fds(self.connection, 4096, 32)
        self.inbox = fds[0]

    def put(self, at: int, content: bytes) -> None:
        os.pwrite(self.inbox, content, at)

    def call(self, verb: int, **fields: int) -> bytes | None:
        """The reply; None when the node has ended the session."""
        names = (
            "number ns group first_unit units first count id deadline bytes at kind first_shard shards zero"
        )
        values = [fields.get(name, 0) for name in names.split()]
        with contextlib.suppress(ConnectionError):
            self.connection.send(struct.pack("<4I8Q4I", verb, *values))
            return self.connection.recv(4096) or None
        return None

    def close(self) -> None:
        os.close(self.inbox)
        self.connection.close()


def test_packets_that_are_no_hello_cost_their_connection(host: Host) -> None:
    draw = random.Random(1)
    packets = [draw.randbytes(draw.choice((1, 7, 16, 127, 128, 129, 4096, 100_000))) for _ in range(200)]
    packets += [hello(b"x")[:-1], hello(b""), hello(b"x", rank=SESSION), hello(b"x", rank=SESSION | 70_000)]
    before = host.door()["violations"]
    for packet in packets:
        with connect(host.node.path) as connection, contextlib.suppress(ConnectionError):
            connection.send(packet)
            assert connection.recv(4096) == b""
    assert host.door()["violations"] - before == len(packets)


def test_another_protocol_is_refused_with_both_versions(host: Host) -> None:
    for protocol in (0, PROTOCOL + 2, 0xFFFFFFFF):
        with connect(host.node.path) as connection:
            connection.send(hello(b"x", protocol=protocol))
            answer = connection.recv(4096)[24:].rstrip(b"\0").decode()
            assert answer == f"protocol version found {protocol}, expected {PROTOCOL}"


def test_calls_of_anything_end_their_session_or_are_answered(host: Host) -> None:
    draw = random.Random(2)
    edges = (0, 1, 2, 7, 1 << 16, INBOX - 8, INBOX, 1 << 31, (1 << 32) - 1)
    wide = (*edges, 1 << 40, 1 << 63, (1 << 64) - 1)
    answered = ended = 0
    for number in range(500):
        session = Session(host.node.path, b"fuzz %d" % number)
        session.put(0, draw.randbytes(1 << 16))
        for _ in range(20):
            fields = {name: draw.choice(edges) for name in ("ns", "group", "kind", "first_shard", "shards")}
            fields |= {
                name: draw.choice(wide) for name in ("first_unit", "units", "first", "count", "id", "at")
            }
            fields |= {name: draw.choice(wide) for name in ("deadline", "bytes")}
            fields = {name: fields[name] for name in draw.sample(sorted(fields), draw.randrange(4))}
            if session.call(draw.randrange(1, 21), **fields) is None:
                ended += 1
                break
            answered += 1
        session.close()
        if number % 50 == 0:
            host.unaffected()
    assert answered > 200 and ended > 200
    assert host.door()["violations"] >= ended


def test_packets_of_another_size_end_a_session(host: Host) -> None:
    for size in (1, 95, 97, 4096):
        session = Session(host.node.path, b"sizes")
        session.connection.send(bytes(size))
        assert session.connection.recv(4096) == b""
        session.close()
    assert host.door()["violations"] == 4


def test_leases_slots_and_writes_of_another_cannot_be_touched(host: Host) -> None:
    handles = [int(handle) for handle in host.reservation.handles]
    everything = b"".join(struct.pack("<Q", handle) for handle in handles)
    for verb, fields in (
        (6, {"id": host.ticket._lease}),
        (7, {"id": host.ticket._lease}),
        (8, {"id": host.ticket._lease, "count": 1}),
        (10, {"count": 4}),
        (11, {"count": 4}),
        (11, {"count": 4, "first_shard": 5, "shards": 1}),
    ):
        session = Session(host.node.path, b"thief")
        session.put(0, everything + bytes(64))
        assert session.call(verb, **fields) is None
        session.close()
    assert host.door()["violations"] == 6


def test_frames_of_anything_cost_their_connection(host: Host) -> None:
    draw = random.Random(3)
    frames = [struct.pack("<I", length) for length in (m.MOST_BYTES + 1, 1 << 31, (1 << 32) - 1)]
    frames += [struct.pack("<I", 64) + draw.randbytes(64) for _ in range(60)]
    frames += [struct.pack("<I", len(body)) + body for body in map(_wrong, range(60))]
    before = host.door()
    for frame in frames:
        _say(host.node.path, frame)
    after = host.door()
    assert after["control_violations"] - before["control_violations"] == len(frames)


def _wrong(seed: int) -> bytes:
    """A message of ours with one field of another type."""
    draw = random.Random(seed)
    right = [
        m.Chain(1, bytes(32), 0, bytes(32), 0, bytes(64)),
        m.Asked(1, 4, None, None),
        m.Landed(1, True, [(0, 0, 1)]),
        m.Fetch(1, 1, [[(0, 1)]], [], [(0, 0, 1)], 1.0),
        m.Hint("s", {}),
        m.Share(1, bytes(32), 0, 0),
    ]
    fields = msgspec.to_builtins(draw.choice(right), builtin_types=(bytes,))
    name = draw.choice(sorted(set(fields) - {"type", "request", "session"}) or ["type"])
    fields[name] = {"no": ["such"]} if not isinstance(fields[name], dict) else 5
    return msgspec.msgpack.encode(fields)


def _say(path: str, frame: bytes) -> bytes:
    """Everything that comes back until the node closes, or it waits for more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(m.control_path(path))
        with contextlib.suppress(ConnectionError):
            connection.sendall(frame)
            return connection.recv(1 << 16)
    return b""


def test_messages_of_the_right_form_and_wrong_content_are_refused_ignored_or_end_their_connection(
    host: Host,
) -> None:
    space = host.bystander.namespace.digest()
    group = m.pack(host.bystander.store._space(host.bystander.namespace).geometry)[0]
    huge = (1 << 63) - 1
    messages: list[m.Message] = [
        m.Chain(1, bytes(32), 0, bytes(32), 0, bytes(64)),
        m.Chain(1, space, 0, bytes(32), 5, bytes(64)),
        m.Chain(1, space, 0, b"short", 0, bytes(33)),
        m.Chain(1, space, -1, bytes(32), 0, bytes(64)),
        m.Chain(1, space, huge, bytes(32), 0, bytes(64)),
        m.Asked(77, 4, None, None),
        m.Stored(77, 0, 0, 1),
        m.Used(77, []),
        m.Hint("s", {"ttl": "soon"}),
        m.Hint("s", {"no such": 1}),
        m.Hint("s", {"session": "t"}),
        m.Share(5, space, -1, 0),
        m.Share(5, space, huge, huge),
        m.Share(5, bytes(32), 0, 0),
        m.Invalidate(5, b""),
        m.Invalidate(5, b"\xff" * 40),
        m.Fetch(5, 77, [], [], [], float("nan")),
        m.Open(5, b"short", 4, (group,), True),
        m.Open(5, bytes(32), 0, (group,), True),
        m.Open(5, bytes(32), 4, (), True),
        m.Open(5, bytes(32), 4, (group,) * 100, True),
        m.Open(5, space, 4, (msgspec.structs.replace(group, block_tokens=8),), True),
        m.Open(5, bytes(32), 4, (msgspec.structs.replace(group, lifetime="Long"),), True),
        m.Open(5, bytes(32), 4, (msgspec.structs.replace(group, shard_bytes=(-1,)),), True),
        m.Open(5, bytes(32), 4, (msgspec.structs.replace(group, shard_bytes=(huge,)),), True),
        m.Open(5, bytes(32), huge, (msgspec.structs.replace(group, block_tokens=huge),), True),
    ]
    before = host.door()
    for message in messages:
        frame = m.frame(m.Hello(m.PROTOCOL, "odd")) + m.frame(message) + m.frame(m.Status(9))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(SECONDS)
            connection.connect(m.control_path(host.node.path))
            connection.sendall(frame)
            answers = []
            while not any(isinstance(answer, m.Done) and answer.number == 9 for answer in answers):
                body = None
                with contextlib.suppress(ConnectionError):
                    body = m.receive(connection)
                if body is None:
                    break
                answers.append(m.answers.decode(body))
        assert isinstance(answers[0], m.Welcome)
    after = host.door()
    assert after["control_violations"] + after["control_ignored"] > (
        before["control_violations"] + before["control_ignored"]
    )


def test_a_chain_that_one_peer_told_is_nobody_elses(host: Host) -> None:
    told = host.bystander.tokens(1, 4)
    chain = m.Chain(1, told.namespace.digest(), 0, told.parent, 0, told.digests.tobytes())
    asked = m.frame(m.Asked(1, 16, None, None)) + m.frame(m.Status(9))
    for frame, ignored in ((m.frame(chain) + asked, 0), (asked, 1)):
        before = host.door()["control_ignored"]
        assert _say(host.node.path, frame)  # the status: all before it was heard
        assert host.door()["control_ignored"] - before == ignored


def test_who_comes_while_many_are_at_the_door_waits_its_turn(host: Host) -> None:
    path = m.control_path(host.node.path)
    host.node.stop()
    crowd = []
    for _ in range(200):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        one.setblocking(False)
        crowd.append(one)
        try:
            one.connect(path)
        except BlockingIOError:
            break
    assert len(crowd) < 200
    last = threading.Thread(target=lambda: heard.append(host.node.status()["pid"]))
    heard: list[int] = []
    last.start()
    time.sleep(0.2)
    host.node.go_on()
    last.join(SECONDS)
    assert heard == [host.node.pid]
    for one in crowd:
        one.close()


def test_of_one_who_tells_ever_more_the_oldest_is_forgotten(host: Host) -> None:
    space, before = host.bystander.namespace.digest(), host.node.resident_kib()
    digests = bytes(32 << 18)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(m.control_path(host.node.path))
        for number in range(1, 41):  # 320 MiB
            connection.sendall(m.frame(m.Chain(number, space, 0, bytes(32), 0, digests)))
        for number, ignored in ((40, 0), (1, 1)):
            counts = host.door()["control_ignored"]
            connection.sendall(m.frame(m.Asked(number, 0, None, None)) + m.frame(m.Status(9)))
            assert m.receive(connection)
            assert host.door()["control_ignored"] - counts == ignored
        assert host.node.resident_kib() - before < 256 << 10


def test_ten_thousand_connects_leave_nothing_behind(host: Host) -> None:
    node = host.node

    def come_and_go(times: int) -> None:
        for number in range(times):
            kind = number % 10
            if kind < 5:
                connect(node.path).close()
            elif kind < 7:
                session = Session(node.path, b"visitor")
                if number % 100 == 5:
                    chain = Sequence(host.bystander.namespace, [number] * 9).digests.tobytes()
                    session.put(32, chain)
                    space = host.bystander.store.open(host.bystander.namespace)
                    reply = session.call(9, ns=space, units=2, count=2, kind=1, deadline=1 << 40)
                    assert reply is not None
                session.close()
            elif kind < 9:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.connect(m.control_path(node.path))
            else:
                with connect(node.path) as connection:
                    connection.send(hello(b"nobody", rank=0))
                    assert connection.recv(4096)

    come_and_go(1000)
    until(lambda: len(node.engines()) == 1, "all have left")
    descriptors, memory = node.descriptors(), node.resident_kib()
    come_and_go(10_000)
    until(lambda: len(node.engines()) == 1, "all have left")
    until(lambda: node.descriptors() <= descriptors, f"{descriptors} descriptors, but {node.descriptors()}")
    assert node.resident_kib() - memory < 8 << 10
    node.holds(reserved=4 * BLOCK, leased=4 * BLOCK, quarantined=0)
    assert host.door()["sessions_now"] == 1

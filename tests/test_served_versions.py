"""Versions next to the node's, byte by byte as they are spoken: understood; all others are refused, both named.

A mapper of version 1, which knew of no sessions, is the raw client of attach_words.py.
"""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kvarter import _core
from kvarter.node import messages as m
from served_words import SECONDS, Client, ServedNode, served
from test_served_fuzz import MAGIC, PROTOCOL, SESSION, connect
from words import KIB, full

LEADING, RESERVE, NOBODYS_VERB = 2, 9, 1 << 30
BLOCK = 64 * KIB
FIELDS = ("ns", "group", "first_unit", "units", "first", "count", "id", "deadline", "bytes", "at")
FIELDS += ("kind", "first_shard", "shards", "zero")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedNode]:
    with served(tmp_path) as node:
        yield node


class Session:
    """A scheduler of another version of the protocol and of the memory's layout: all it has is the socket."""

    def __init__(self, path: str, protocol: int) -> None:
        self.connection = connect(path)
        name = b"another version"
        hello = struct.pack(
            "<5I108s", MAGIC, protocol, _core.LAYOUT_VERSION + 1, SESSION | 1, len(name), name
        )
        self.connection.send(hello)
        self.answer = self.connection.recv(4096)
        self.refused = bool(struct.unpack_from("<3I", self.answer)[2])
        if not self.refused:
            _, (self.inbox,), _, _ = socket.recv_fds(self.connection, 4096, 32)

    def call(self, verb: int, chain: bytes, **fields: int) -> tuple[int, ...] | None:
        """number, status, id, count, slots, epoch, version, below, attached, 0; None when the session is over."""
        os.pwrite(self.inbox, chain, 0)
        self.connection.send(struct.pack("<4I8Q4I", verb, 7, *(fields.get(name, 0) for name in FIELDS)))
        reply = self.connection.recv(4096)
        return struct.unpack("<2I6Q2I", reply) if reply else None

    def close(self) -> None:
        self.connection.close()
        if not self.refused:
            os.close(self.inbox)


@pytest.mark.parametrize("protocol", [PROTOCOL, PROTOCOL + 1])
def test_a_session_of_a_neighbouring_version_and_another_layout_asks_and_stores(
    node: ServedNode, protocol: int
) -> None:
    client = Client(node, "of this version", full(BLOCK))
    sequence = client.tokens(1, 4)
    client.put(sequence, {0: range(3)})
    space = client.store._space(client.namespace)
    session = Session(node.path, protocol)
    assert struct.unpack_from("<2I", session.answer) == (MAGIC, PROTOCOL)
    chain = bytes(32) + np.ascontiguousarray(sequence.digests).tobytes()
    asked = {"ns": space.above, "units": 4}
    number, status, _, count, *_ = session.call(LEADING, chain, **asked, count=4) or ()
    assert (number, status, count) == (7, _core.Status.Ok, 3)
    made = session.call(RESERVE, chain, **asked, first=3, count=1, shards=1, deadline=10**12, kind=1)
    assert made is not None and (made[1], made[3]) == (_core.Status.Ok, 1)
    node.holds(reserved=BLOCK)
    session.close()
    node.holds(reserved=0)
    client.close()


def test_a_verb_of_a_later_version_ends_the_session_that_says_it_and_no_other(node: ServedNode) -> None:
    client = Client(node, "of this version", full(BLOCK))
    session = Session(node.path, PROTOCOL + 1)
    assert session.call(NOBODYS_VERB, bytes(64)) is None
    session.close()
    assert client.store.connected
    client.close()


@pytest.mark.parametrize("protocol", [PROTOCOL - 2, PROTOCOL + 2, 0xFFFFFFFF])
def test_a_session_of_any_other_version_is_refused_with_both_named(node: ServedNode, protocol: int) -> None:
    session = Session(node.path, protocol)
    assert session.refused
    text = session.answer[24:].rstrip(b"\0").decode()
    assert text == f"protocol version found {protocol}, expected {PROTOCOL}"
    session.close()


def _ask(path: str, *bodies: dict[str, object]) -> list[dict[str, object]]:
    """What comes back for messages to the second socket, each of which is answered."""
    answers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SECONDS)
        connection.connect(m.control_path(path))
        stream = connection.makefile("rb")
        for body in bodies:
            frame = msgspec.msgpack.encode(body)
            connection.sendall(struct.pack("<I", len(frame)) + frame)
            (length,) = struct.unpack("<I", stream.read(4))
            answers.append(msgspec.msgpack.decode(stream.read(length)))
    return answers


@pytest.mark.parametrize("protocol", [m.PROTOCOL - 1, m.PROTOCOL + 1])
def test_rare_messages_with_fields_of_another_version_are_understood(node: ServedNode, protocol: int) -> None:
    hello, status = _ask(
        node.path,
        {"type": "Hello", "protocol": protocol, "engine": "", "colour": "of a later version"},
        {"type": "Status", "number": 3, "depth": 2},
    )
    assert (hello["type"], hello["protocol"]) == ("Welcome", m.PROTOCOL)
    assert (status["type"], status["number"]) == ("Done", 3)


def test_rare_messages_of_any_other_version_are_refused_with_both_named(node: ServedNode) -> None:
    (refused,) = _ask(node.path, {"type": "Hello", "protocol": m.PROTOCOL + 2})
    assert refused["sentence"] == f"protocol version found {m.PROTOCOL + 2}, expected {m.PROTOCOL}"

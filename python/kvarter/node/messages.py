"""The rare messages between a node and those who ask it, on its second socket: PROTOCOL.md beside this file.

Each is one frame: its length as u32 little-endian, then msgpack. Fields may be added with a default; what is not known
is skipped, so neighbouring versions understand each other.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

from ..geometry import CacheGroup, Chunked, Full, Geometry, Lifetime, State, Window

PROTOCOL = 1
MOST_BYTES = 32 << 20  # of a frame
_LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, tag=True, array_like=False, frozen=True):
    """One message. Those with a `number` are answered by one with the same number."""


class Hello(Message, frozen=True):
    protocol: int
    engine: str = ""  # of a session; "" for tools


class Welcome(Message, frozen=True):
    protocol: int
    version: str
    disk: bool
    peers: float = 0.0  # seconds that a look at other hosts may take; 0: there are none


class Refused(Message, frozen=True):
    """Why, in one sentence. number 0: the connection; it ends."""

    sentence: str
    number: int = 0


class Group(msgspec.Struct, frozen=True):
    """A cache group, as `geometry.CacheGroup` has it."""

    name: str
    lifetime: str
    sight: tuple[int, int, int]
    block_tokens: int
    shard_bytes: tuple[int, ...]
    required: bool
    replay_tokens: int
    copies: int


class Open(Message, frozen=True):
    number: int
    digest: bytes
    unit_tokens: int
    groups: tuple[Group, ...]
    lasting: bool  # may lie on disk


class Opened(Message, frozen=True):
    number: int
    above: int
    below: int | None


class Chain(Message, frozen=True):
    """Digests of a sequence, from `at` of those told before on."""

    id: int
    space: bytes  # digest of its namespace
    first_unit: int
    parent: bytes
    at: int
    digests: bytes


class Asked(Message, frozen=True):
    """A look-up: what was found as `matching.Looked` has it: units in the engine, in memory, on disk, nowhere; those
    with peers; and its time."""

    chain: int
    boundary: int
    request: str | None
    session: str | None
    found: tuple[int, int, int, int] = (0, 0, 0, 0)
    seconds: float = 0.0
    peer: int = 0


class Stored(Message, frozen=True):
    """Blocks of a group were reserved."""

    chain: int
    group: int
    first: int
    count: int


class Landed(Message, frozen=True):
    """Blocks by group, as runs: they are in the pool now."""

    chain: int
    known: bool
    ranges: list[tuple[int, int, int]]


class Used(Message, frozen=True):
    chain: int
    ranges: list[tuple[int, int, int]]


class Look(Message, frozen=True):
    """What have other hosts of that sequence, beyond the `here` tokens of it that are here, up to `limit`?"""

    number: int
    chain: int
    here: int
    limit: int


class Found(Message, frozen=True):
    number: int
    tokens: int


class Fetch(Message, frozen=True):
    """Bring these up, by group, from disk or from `peers`; `kept`: ranges that are in memory and are to stay there
    meanwhile."""

    number: int
    chain: int
    below: list[list[tuple[int, int]]]
    kept: list[tuple[int, int, int]]
    wanted: list[tuple[int, int, int]]
    seconds: float
    peers: bool = False
    tokens: int = 1  # the boundary that they lead to


class Fetched(Message, frozen=True):
    number: int
    status: int
    nbytes: int
    seconds: float
    queued: int


class Push(Message, frozen=True):
    """Have the node that listens at `to` for peers fetch that sequence."""

    chain: int
    to: str


class Hint(Message, frozen=True):
    session: str
    wishes: dict[str, Any]


class Share(Message, frozen=True):
    number: int
    space: bytes
    floor: int
    quota: int


class Invalidate(Message, frozen=True):
    number: int
    space: bytes  # digest; an unambiguous beginning of it will do
    everywhere: bool = True  # on other hosts, too


class Status(Message, frozen=True):
    number: int


class Audit(Message, frozen=True):
    number: int


class Drain(Message, frozen=True):
    number: int


class HandOver(Message, frozen=True):
    """To a node, by the one after it: serve nobody any more, and keep the pool until this connection ends."""

    number: int


class Done(Message, frozen=True):
    """What was asked has been done; `report` says what came of it."""

    number: int
    report: dict[str, Any] = {}


Question = Open | Share | Invalidate | Status | Audit | Drain | HandOver | Look | Fetch
Asking = Hello | Question | Chain | Asked | Stored | Landed | Used | Push | Hint
Answer = Welcome | Refused | Opened | Found | Fetched | Done

_encoder = msgspec.msgpack.Encoder()
asking = msgspec.msgpack.Decoder(Asking)
answers = msgspec.msgpack.Decoder(Answer)


def frame(message: Message) -> bytes:
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


def receive(connection: socket.socket) -> bytes | None:
    """The next frame's body; None at the end. Raises ValueError for one that is too long."""
    head = _exactly(connection, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MOST_BYTES:
        raise ValueError(f"a frame of {length} bytes; expected at most {MOST_BYTES}")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes | None:
    got = bytearray()
    while len(got) < length:
        part = connection.recv(min(length - len(got), 1 << 20))
        if not part:
            return None
        got += part
    return bytes(got)


def control_path(path: str) -> str:
    """Where the node that listens at `path` takes rare messages."""
    return path + ".control"


_LIFETIMES: dict[str, type[Lifetime]] = {kind.__name__: kind for kind in (Full, Window, State, Chunked)}


def pack(geometry: Geometry) -> tuple[Group, ...]:
    sight = ("tokens", "retained_tokens", "extra_blocks")
    return tuple(
        Group(
            group.name,
            type(group.lifetime).__name__,
            (*(int(getattr(group.lifetime, field, 0)) for field in sight),),  # type: ignore[arg-type]
            group.block_tokens,
            group.shard_bytes,
            group.required,
            group.replay_tokens,
            group.copies,
        )
        for group in geometry.groups
    )


def unpack(unit_tokens: int, groups: tuple[Group, ...]) -> Geometry:
    """Raises `GeometryError` or ValueError for what is no geometry."""
    unpacked = []
    for group in groups:
        kind = _LIFETIMES.get(group.lifetime)
        if kind is None:
            raise ValueError(f"lifetime {group.lifetime!r}; expected one of {', '.join(_LIFETIMES)}")
        lifetime = (
            Window(*group.sight)
            if kind is Window
            else Chunked(group.sight[0])
            if kind is Chunked
            else State()
            if kind is State
            else Full()
        )
        unpacked.append(
            CacheGroup(
                group.name,
                lifetime,
                group.block_tokens,
                group.shard_bytes,
                group.required,
                group.replay_tokens,
                group.copies,
            )
        )
    return Geometry(unit_tokens, tuple(unpacked))

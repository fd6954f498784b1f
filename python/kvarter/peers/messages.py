"""What nodes say to each other on their control connection: PROTOCOL.md beside this file.

A frame is its length as u32 little-endian, then, once both have shown that they know the secret, 16 bytes of a seal,
then msgpack. Fields may be added with a default; what is not known is skipped. Payload never goes this way.
"""

from __future__ import annotations

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

PROTOCOL = 1
MOST_UNPROVEN = 4 << 10  # bytes of a frame before the other end is known
MOST_BYTES = 4 << 20  # and afterwards
MOST_UNITS = 1 << 16  # of a sequence that is asked for
LENGTH = struct.Struct("<I")

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
Name = Annotated[str, Meta(max_length=256)]


class Message(msgspec.Struct, tag=True, frozen=True):
    """One message. Those with a `number` are answered by one with the same number."""


# --- meeting, in this order


class Knock(Message, frozen=True):
    """The first word, of who dials: what both must agree on before anything else is said."""

    protocol: int
    trust: Name  # "secret", "tls" or "plain"
    nonce: Digest


class Challenge(Message, frozen=True):
    nonce: Digest


class Proof(Message, frozen=True):
    """That its sender knows the secret; of who dials first, then of who listens. Only where trust is "secret"."""

    mac: Digest


class Hello(Message, frozen=True):
    """What is compared before any address is told. namespaces: what is open, with a digest of its groups."""

    node: Annotated[bytes, Meta(min_length=16, max_length=16)]
    address: Name  # where it listens
    version: Name
    ucx: tuple[int, int, int]
    over: Name  # what carries its payload: "tcp", or "rdma"
    most: Count  # bytes that it lends at a time
    namespaces: Annotated[dict[Digest, Digest], Meta(max_length=1024)] = {}


class Welcome(Message, frozen=True):
    """Hello is accepted: UCX's address and a token, for the payload of this connection alone."""

    invitation: Annotated[bytes, Meta(max_length=64 << 10)]


class Refused(Message, frozen=True):
    """Why, in one sentence. number 0: the connection; it ends."""

    sentence: Annotated[str, Meta(max_length=1024)]
    number: Count = 0


# --- afterwards


class Ping(Message, frozen=True):
    sent: Count


class Pong(Message, frozen=True):
    sent: Count


class Look(Message, frozen=True):
    """How far can you serve this sequence? groups: digest of the geometry, as in Hello. It is kept for a while, for
    the Ask that may follow."""

    number: Count
    namespace: Digest
    groups: Digest
    digests: Annotated[bytes, Meta(max_length=32 * MOST_UNITS)]  # of its units, from token 0 on
    limit: Count  # tokens


class Have(Message, frozen=True):
    """So many tokens from the start, at a boundary; 0: nothing. A promise that may be broken."""

    number: Count
    tokens: Count


Range = tuple[Count, Count, Count]  # group, first block, blocks


class Ask(Message, frozen=True):
    """Send these blocks of what was looked for, all shards of each, as the request `number` of the engine."""

    number: Count
    generation: int
    look: Count
    ranges: Annotated[list[Range], Meta(max_length=4096)]
    seconds: Annotated[float, Meta(ge=0, le=3600)]


class Doubt(Message, frozen=True):
    """These blocks of what was looked for did not pass the check: have a look at them."""

    look: Count
    ranges: Annotated[list[Range], Meta(max_length=4096)]


class Take(Message, frozen=True):
    """You will be asked for this sequence: fetch from here what you do not have of it, up to so many tokens. With a
    number: it is only hot, and worth a copy where there is room; answered by what you Have then."""

    namespace: Digest
    groups: Digest
    digests: Annotated[bytes, Meta(max_length=32 * MOST_UNITS)]
    tokens: Count
    number: Count = 0


class Clear(Message, frozen=True):
    """What was stored of this namespace before `since`, which is in nanoseconds of Unix time or later than that, is
    invalid everywhere. What the other end sends after this is of after that."""

    namespace: Digest
    since: Count


class Cancel(Message, frozen=True):
    """Nobody waits for that Ask any more."""

    number: Count


Meeting = Knock | Challenge | Proof | Hello | Welcome | Refused
Talk = Ping | Pong | Look | Have | Ask | Take | Clear | Cancel | Doubt | Refused

_encoder = msgspec.msgpack.Encoder()
meeting = msgspec.msgpack.Decoder(Meeting)
talk = msgspec.msgpack.Decoder(Talk)
encode = _encoder.encode

"""One connection between two nodes, from the first word to the last."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from .. import _core
from . import messages as m
from .pulse import Pulse
from .trust import DIALER, LISTENER, SEAL_BYTES, Seal, Trust, nonce, proves
from .trust import proof as prove

_LOW_DELAY = 0x10  # of IP's type of service
_MOST_UNSENT = 16 << 20  # bytes for one who does not read


class NotMet(Exception):
    """The other end is not to be talked to, or does not want to; the sentence says why."""


class Myself(NotMet):
    """The other end is this node."""


class Link:
    """A connection on the loop of one `Meeting`; only that loop's thread uses it.

    dialed: the address that this end dialed; "" where the other one did. hello: what the other end says of itself.
    ours, theirs: the invitations of UCX that each end made for the other. value: whatever the meeting's handler keeps
    with it.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, dialed: str = "") -> None:
        self._reader, self._writer = reader, writer
        self.dialed = dialed
        self._sealing: Seal | None = None
        self._opening: Seal | None = None
        self._known = False  # the other end has proven what it has to
        self.hello: m.Hello
        self.ours = self.theirs = b""
        self.pulse: Pulse
        self.value: Any = None
        self.why = ""  # it was given up from this end

    # --- frames

    def send(self, message: m.Message) -> None:
        """Never waits; ends the link when the other end does not read."""
        body = m.encode(message)
        seal = self._sealing.next(body) if self._sealing is not None else b""
        transport = self._writer.transport
        if not transport.is_closing():
            transport.write(m.LENGTH.pack(len(seal) + len(body)) + seal + body)
            if transport.get_write_buffer_size() > _MOST_UNSENT:
                self.end(f"{_MOST_UNSENT} bytes wait that it does not read")

    async def _body(self, most: int) -> bytes:
        (length,) = m.LENGTH.unpack(await self._reader.readexactly(m.LENGTH.size))
        least = SEAL_BYTES if self._opening is not None else 0
        if not least <= length <= most:
            raise NotMet(f"a frame of {length} bytes; expected {least} to {most}")
        frame = await self._reader.readexactly(length)
        if self._opening is None:
            return frame
        if not self._opening.opens(frame[:SEAL_BYTES], frame[SEAL_BYTES:]):
            raise NotMet("a frame whose seal is not the other end's")
        return frame[SEAL_BYTES:]

    async def receive(self) -> m.Talk:
        """The next message. Raises `NotMet`, `EOFError`, OSError or msgspec's errors when there is none."""
        return m.talk.decode(await self._body(m.MOST_BYTES))

    async def _word(self, kind: type[Any]) -> Any:
        word = m.meeting.decode(await self._body(m.MOST_UNPROVEN if not self._known else m.MOST_BYTES))
        if isinstance(word, m.Refused):
            raise NotMet(f"it refuses: {word.sentence}")
        if not isinstance(word, kind):
            raise NotMet(f"it says {type(word).__name__}; expected {kind.__name__}")
        return word

    # --- meeting

    async def meet(self, trust: Trust, mine: m.Hello, ours: Callable[[], bytes]) -> None:
        """Everything up to both ends' Welcome. Raises as `receive`; `NotMet` after the other end was told why."""
        try:
            await (self._knock(trust) if self.dialed else self._answer(trust))
            self._known = True
            self.send(mine)
            self.hello = await self._word(m.Hello)
            if self.hello.node == mine.node:
                raise Myself("this is the same node")
            if (wrong := unlike(mine, self.hello)) is not None:
                raise NotMet(wrong)
            self.ours = ours()
            self.send(m.Welcome(self.ours))
            self.theirs = (await self._word(m.Welcome)).invitation
        except NotMet as error:
            if not str(error).startswith("it refuses"):
                self.send(m.Refused(str(error)))
            raise

    async def _knock(self, trust: Trust) -> None:
        here = nonce()
        self.send(m.Knock(m.PROTOCOL, trust.kind, here))
        there = (await self._word(m.Challenge)).nonce
        if trust.kind != "secret":
            return
        self.send(m.Proof(prove(trust.secret, DIALER, here, there)))
        if not proves((await self._word(m.Proof)).mac, trust.secret, LISTENER, here, there):
            raise NotMet("who listens does not know the secret")
        self._sealing = Seal(trust.secret, DIALER, here, there)
        self._opening = Seal(trust.secret, LISTENER, here, there)

    async def _answer(self, trust: Trust) -> None:
        knock = await self._word(m.Knock)
        if knock.protocol != m.PROTOCOL:
            raise NotMet(f"protocol version found {knock.protocol}, expected {m.PROTOCOL}")
        if knock.trust != trust.kind:
            raise NotMet(f"proof of who it is by {knock.trust!r} found, by {trust.kind!r} expected")
        here = nonce()
        self.send(m.Challenge(here))
        if trust.kind != "secret":
            return
        if not proves((await self._word(m.Proof)).mac, trust.secret, DIALER, knock.nonce, here):
            raise NotMet("who dials does not know the secret")
        self.send(m.Proof(prove(trust.secret, LISTENER, knock.nonce, here)))
        self._sealing = Seal(trust.secret, LISTENER, knock.nonce, here)
        self._opening = Seal(trust.secret, DIALER, knock.nonce, here)

    # --- life

    def hurry(self) -> None:
        """Signs of life go before payload, where a queue of ours keeps such an order."""
        connection = self._writer.get_extra_info("socket")
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, _LOW_DELAY)

    def beat(self, clock: _core.Clock) -> None:
        """Speaks when it is time to, and ends a link that is silent."""
        if self.pulse.dead():
            self.end("it is silent")
        elif self.pulse.due():
            self.send(m.Ping(clock.now()))

    def end(self, why: str) -> None:
        """At once: nothing that waits is sent any more."""
        self.why = self.why or why
        self._writer.transport.abort()

    def __repr__(self) -> str:
        return f"<Link {'to' if self.dialed else 'from'} {self.hello.address}, {self.pulse.rtt * 1e3:.2f} ms>"


def unlike(mine: m.Hello, theirs: m.Hello) -> str | None:
    """Why these two may not exchange blocks; None when they may."""
    if "tcp" in (mine.over, theirs.over) and theirs.ucx[:2] != mine.ucx[:2]:
        found, expected = (".".join(map(str, version)) for version in (theirs.ucx, mine.ucx))
        return f"UCX version found {found}, expected {expected}: minor versions differ on the wire of TCP"
    for namespace, groups in theirs.namespaces.items():
        if mine.namespaces.get(namespace, groups) != groups:
            return f"namespace {namespace.hex()[:16]} has other cache groups here"
    return None


BROKEN = (NotMet, EOFError, OSError, TimeoutError, msgspec.MsgspecError)
"""What `meet` and `receive` raise for an end that is gone, hostile or not understood."""

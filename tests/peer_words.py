"""The language of the tests of peers: a meeting with somebody to talk to, and strangers who know the protocol."""

from __future__ import annotations

import os
import socket
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from kvarter.peers import messages as m
from kvarter.peers.handler import Times
from kvarter.peers.link import Link
from kvarter.peers.meeting import Meeting
from kvarter.peers.trust import DIALER, Seal, Trust, anybody, by_secret, proof
from served_words import SECONDS, until

SECRET = b"the longest word of the street"
CALM = Times(period=0.1, patience=SECONDS, meeting=SECONDS)  # where nobody is to be taken for dead


class Talker:
    """A node that has no blocks: it remembers whom it met, answers Look by its length, and forgets who is gone."""

    def __init__(self, trust: Trust | None = None, times: Times = CALM, **hello: Any) -> None:
        self.said_of_itself = {
            "node": os.urandom(16),
            "version": "1",
            "ucx": (1, 18, 1),
            "over": "tcp",
            "most": 1,
            **hello,
        }
        self.met_links: list[Link] = []
        self.lost_links: list[Link] = []
        self.heard: list[m.Talk] = []
        self.invited = 0
        self.meeting = Meeting(("127.0.0.1", 0), trust or anybody(), self, times)
        self.meeting.open()

    @property
    def at(self) -> str:
        return f"127.0.0.1:{self.meeting.port}"

    def hello(self) -> m.Hello:
        return m.Hello(address=self.at, **self.said_of_itself)

    def invite(self) -> bytes:
        self.invited += 1
        return b"invitation %d" % self.invited

    def met(self, link: Link) -> None:
        self.met_links.append(link)

    def said(self, link: Link, message: m.Talk) -> None:
        self.heard.append(message)
        if isinstance(message, m.Look):
            link.send(m.Have(message.number, len(message.digests) // 32))
        elif isinstance(message, m.Ask):
            raise LookupError("nothing was looked for")

    def lost(self, link: Link) -> None:
        self.lost_links.append(link)

    def seek(self, other: Talker) -> Link:
        """The link to another, once it stands at both ends."""
        self.meeting.seek(other.at)
        until(lambda: self.here() and other.here(), f"they meet: {self.counts} {other.counts}")
        return self.here()[0]

    def here(self) -> list[Link]:
        return [link for link in self.met_links if link not in self.lost_links]

    def say(self, link: Link, message: m.Message) -> None:
        self.meeting.call(link.send, message)

    @property
    def counts(self) -> Counter[str]:
        return self.meeting.counts

    def close(self) -> None:
        self.meeting.close()


class Stranger:
    """A socket that says what it likes."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), SECONDS)
        self.sealing: Seal | None = None
        self.opening: Seal | None = None

    def say(self, message: m.Message | bytes) -> None:
        body = message if isinstance(message, bytes) else m.encode(message)
        self.raw((self.sealing.next(body) if self.sealing else b"") + body)

    def raw(self, frame: bytes) -> None:
        self.socket.sendall(m.LENGTH.pack(len(frame)) + frame)

    def hear(self) -> Any:
        """The next message; None when the other end has closed."""
        frame = b""
        try:
            while len(frame) < 4 or len(frame) < 4 + m.LENGTH.unpack(frame[:4])[0]:
                more = self.socket.recv(
                    4 - len(frame) if len(frame) < 4 else 4 + m.LENGTH.unpack(frame[:4])[0] - len(frame)
                )
                if not more:
                    return None
                frame += more
        except ConnectionError:
            return None
        return msgspec.msgpack.decode(frame[4 + (16 if self.opening else 0) :], type=m.Meeting | m.Talk)

    def knows(self, secret: bytes) -> None:
        """Meets as one who knows the secret, up to Hello."""
        here = os.urandom(32)
        self.say(m.Knock(m.PROTOCOL, "secret", here))
        there = self.hear().nonce
        self.say(m.Proof(proof(secret, DIALER, here, there)))
        assert isinstance(self.hear(), m.Proof)
        self.sealing, self.opening = (Seal(secret, role, here, there) for role in (DIALER, b"listener"))

    def greets(self, **hello: Any) -> m.Hello:
        """Says Hello, and hears it."""
        said: dict[str, Any] = {
            "node": os.urandom(16),
            "version": "1",
            "ucx": (1, 18, 1),
            "over": "tcp",
            "most": 1,
        }
        self.say(m.Hello(address="127.0.0.1:1", **(said | hello)))
        heard = self.hear()
        assert isinstance(heard, m.Hello)
        return heard

    def close(self) -> None:
        self.socket.close()


def secret_in(directory: Path, secret: bytes = SECRET, mode: int = 0o600) -> Trust:
    path = directory / f"secret-{secret[:4].hex()}"
    path.write_bytes(secret + b"\n")
    path.chmod(mode)
    return by_secret(str(path))

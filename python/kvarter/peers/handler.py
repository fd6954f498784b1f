"""What a meeting is for: the seam to whatever nodes have to say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from . import messages as m
from .link import Link


class Handler(Protocol):
    """What a meeting is for. All of it is called on the meeting's thread, and may not wait."""

    def hello(self) -> m.Hello: ...
    def invite(self) -> bytes:
        """Of UCX, for one link whose other end's Hello was accepted."""

    def met(self, link: Link) -> None:
        """Raises ValueError when nothing can come of it: the link ends."""

    def said(self, link: Link, message: m.Talk) -> None:
        """Raises ValueError or LookupError for what cannot be done: the other end is told why."""

    def lost(self, link: Link) -> None:
        """It was `met`, and is over."""


@dataclass(frozen=True)
class Times:
    """Seconds. period: between heartbeats. patience: of silence, after which a peer is dead. meeting: for all of a
    handshake. idle: until a link that nobody wants any more is let go."""

    period: float = 0.2
    patience: float = 0.8
    meeting: float = 5.0
    idle: float = 60.0

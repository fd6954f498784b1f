"""Where nodes meet: who listens, who dials, who is alive.

One thread runs an asyncio loop for everything that a node has to do with others. Asyncio, because TLS, timers and many
connections that each wait for the next word of a handshake are what it is for; and one thread, because then nothing
of a link needs a lock. Payload is not its business: UCX's own thread moves that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from .. import _core
from ..errors import ConfigError
from . import messages as m
from .link import BROKEN, Link, Myself, NotMet
from .pulse import Backoff, Pulse
from .trust import Trust

logger = logging.getLogger("kvarter.peers")
_MOST_STRANGERS = 64  # connections that have not proven who they are
_MOST_LINKS = 4096
_FAULTS = 5.0  # seconds between warnings of one address


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


class Meeting:
    """Listens at an explicit address once it is `open`, and dials those it is told to `seek`. `counts`: what came to
    the door, and what became of it.
    """

    def __init__(
        self,
        listen: tuple[str, int],
        trust: Trust,
        handler: Handler,
        times: Times | None = None,
        clock: _core.Clock | None = None,
    ) -> None:
        trust.check(listen[0])
        self._host, self._trust, self._handler = listen[0], trust, handler
        self.times = times or Times()
        self.clock = clock or _core.SteadyClock()
        self.links: set[Link] = set()
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, float] = {}  # address -> until when by the loop's clock
        self._strangers = 0
        self.counts = Counter(
            dict.fromkeys(
                ("knocked", "met", "refused", "violations", "lost", "silent", "crowded", "dialed"), 0
            )
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._started: threading.Event = threading.Event()
        self._failed: OSError | None = None
        self.port = listen[1]  # the one that was given for 0, once it is open
        self.thread = threading.Thread(target=self._run, name="kvarter-peers", daemon=True)

    # --- for any thread

    def open(self) -> None:
        """Raises `ConfigError` for an address that cannot be listened at, saying why."""
        self.thread.start()
        self._started.wait()
        if self._failed is not None:
            self.thread.join()
            raise ConfigError(f"peers cannot be listened for at {self._host}:{self.port}: {self._failed}")

    def call(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Has the thread call it; False when it is gone."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # closed
            return False
        return True

    def seek(self, address: str, seconds: float = float("inf")) -> None:
        """A link to that HOST:PORT is wanted for so long, again and again if it breaks."""
        self.call(self.seek_here, address, seconds)

    def close(self) -> None:
        """Ends every link; the handler hears of each."""
        if self.call(self._closing.set):
            self.thread.join()

    # --- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except OSError as error:
            self._failed = error
        finally:
            self._started.set()
            self.loop.close()

    async def _main(self) -> None:
        tls: dict[str, Any] = {"ssl": self._trust.server, "ssl_handshake_timeout": self.times.meeting}
        server = await asyncio.start_server(
            self._came, self._host, self.port, limit=m.MOST_BYTES, **(tls if self._trust.server else {})
        )
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        try:
            while not self._closing.is_set():
                self._beat()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closing.wait(), self.times.period / 2)
        finally:
            server.close()
            for link in list(self.links):
                link.end("this node ends")
            while self._tasks:  # one that was about to end by itself may not hear of it at once
                for task in list(self._tasks):
                    task.cancel()
                await asyncio.wait(self._tasks, timeout=1.0)

    def start(self, work: Any) -> None:
        """Runs a coroutine here until it is done; it is cancelled when the meeting ends. For this thread."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _beat(self) -> None:
        now = self.loop.time()
        for link in list(self.links):
            link.beat(self.clock)
        self._wanted = {address: until for address, until in self._wanted.items() if until > now}
        for link in self.links:
            if link.dialed and link.dialed not in self._wanted:
                link.end("nobody needs it any more")

    # --- who comes

    async def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts["knocked"] += 1
        if self._strangers >= _MOST_STRANGERS or len(self.links) >= _MOST_LINKS:
            self.counts["crowded"] += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._strangers += 1
        link = Link(reader, writer)
        try:
            try:
                await asyncio.wait_for(self._meet(link), self.times.meeting)
            finally:
                self._strangers -= 1
            await self._talk(link)
        except BROKEN as error:
            self.counts["refused"] += 1
            logger.info("somebody at %s is turned away: %s", _where(writer), _said(error))
        except asyncio.CancelledError:
            pass
        except Exception:  # whatever it makes us stumble over
            self.counts["violations"] += 1
            logger.exception("a link of somebody at %s is given up", _where(writer))
        finally:
            await _hang_up(writer)
            self._tasks.discard(task)

    async def _meet(self, link: Link) -> None:
        link.hurry()
        await link.meet(self._trust, self._handler.hello(), self._handler.invite)
        link.pulse = Pulse(self.clock, self.times.period, self.times.patience)

    # --- whom we seek; for this thread

    def standing(self, address: str) -> Link | None:
        """The link that was dialed to that address, if it stands."""
        return next((link for link in self.links if link.dialed == address), None)

    def is_sought(self, address: str) -> bool:
        """Whether it is being dialed, or was reached."""
        return address in self._dialing

    def seek_here(self, address: str, seconds: float = float("inf")) -> None:
        self._wanted[address] = max(self._wanted.get(address, 0.0), self.loop.time() + seconds)
        if address not in self._dialing and not self._closing.is_set():
            task = self.loop.create_task(self._dial(address))
            self._dialing[address] = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _dial(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        backoff, warned = Backoff(), -_FAULTS
        try:
            while self._wanted.get(address, 0.0) > self.loop.time() and not self._closing.is_set():
                try:
                    self._trust.check(host)
                    await self._once(host, int(port), address)
                    backoff.reset()
                except (*BROKEN, ConfigError, ValueError) as error:
                    if self.loop.time() - warned >= _FAULTS:
                        warned = self.loop.time()
                        logger.warning("no link to the peer at %s: %s", address, _said(error))
                    if isinstance(error, Myself):
                        return
                except Exception:
                    logger.exception("a link to %s is given up", address)
                await asyncio.sleep(backoff.next())
        finally:
            self._dialing.pop(address, None)

    async def _once(self, host: str, port: int, address: str) -> None:
        self.counts["dialed"] += 1
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(
                host,
                port,
                ssl=self._trust.client,
                local_addr=(self._host, 0),
                limit=m.MOST_BYTES,
            ),
            self.times.meeting,
        )
        link = Link(reader, writer, address)
        try:
            await asyncio.wait_for(self._meet(link), self.times.meeting)
            await self._talk(link)
        finally:
            await _hang_up(writer)

    # --- a link that stands

    async def _talk(self, link: Link) -> None:
        try:
            self._handler.met(link)
        except ValueError as error:
            raise NotMet(str(error)) from None
        self.links.add(link)
        self.counts["met"] += 1
        logger.info("%r stands", link)
        try:
            while True:
                message = await link.receive()
                link.pulse.heard()
                self._heard(link, message)
        except BROKEN as error:
            self.counts["lost"] += 1
            if link.why == "it is silent":
                self.counts["silent"] += 1
            elif not isinstance(error, EOFError | OSError):
                self.counts["violations"] += 1
            logger.info("%r is over: %s", link, link.why or _said(error))
        finally:
            self.links.discard(link)
            self._handler.lost(link)

    def _heard(self, link: Link, message: m.Talk) -> None:
        match message:
            case m.Ping():
                link.send(m.Pong(message.sent))
            case m.Pong():
                link.pulse.answered(message.sent)
            case _:
                try:
                    self._handler.said(link, message)
                except (ValueError, LookupError) as error:
                    sentence = str(error.args[0] if error.args else error)[:1024]
                    if not isinstance(message, m.Refused):
                        link.send(m.Refused(sentence, getattr(message, "number", 0)))


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    """What was said last still goes out, for a moment."""
    writer.close()
    try:
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), 0.2)
    finally:
        writer.transport.abort()


def _where(writer: asyncio.StreamWriter) -> str:
    name = writer.get_extra_info("peername")
    return f"{name[0]}:{name[1]}" if name else "?"


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__

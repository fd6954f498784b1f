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
from typing import Any

from .. import _core
from ..errors import ConfigError
from . import messages as m
from .dialing import Dialing, said
from .handler import Handler, Times
from .link import BROKEN, Link, NotMet
from .pulse import Pulse
from .trust import Trust

logger = logging.getLogger("kvarter.peers")
_MOST_STRANGERS = 64  # connections that have not proven who they are
_MOST_LINKS = 4096


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
        self._strangers = 0
        self.counts = Counter(
            dict.fromkeys(
                ("knocked", "met", "refused", "violations", "lost", "silent", "crowded", "dialed"), 0
            )
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self.loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self.dialing = Dialing(self.loop, self._dial, self.start)
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
        self.call(self.dialing.seek, address, seconds)

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
            self.dialing.close()
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
        for link in list(self.links):
            link.beat(self.clock)
            if link.dialed and not self.dialing.wants(link.dialed):
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
            logger.info("somebody at %s is turned away: %s", _where(writer), said(error))
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

    # --- whom we seek

    def standing(self, address: str) -> Link | None:
        """The link that was dialed to that address, if it stands. For this thread."""
        return next((link for link in self.links if link.dialed == address), None)

    async def _dial(self, host: str, port: int) -> None:
        self._trust.check(host)
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
        link = Link(reader, writer, f"{host}:{port}")
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
            logger.info("%r is over: %s", link, link.why or said(error))
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

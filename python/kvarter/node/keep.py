"""Keeping a process attached while nodes, and its engine's sessions with them, come and go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from .. import _core
from ..errors import AttachError
from .attach import Attachment, Invitation

_RETRY_SECONDS = 0.02
_PATIENCE = 30.0  # an engine takes a while from its workers to its scheduler


def _nothing(_: Attachment) -> None: ...


class KeptAttachment:
    """One rank's attachment, on a thread of its own: to the node that there is, as the session that its engine has.

    now: the attachment; None before the first. came: called with each new one, before it is `now`. A node may not be
    there yet, or go, and another one come; a session may have given its node up, and come back as another owner.
    """

    def __init__(
        self,
        invitation: Invitation,
        rank: int,
        engine: _core.CopyEngine,
        logger: logging.Logger,
        came: Callable[[Attachment], None] = _nothing,
    ) -> None:
        self._invitation, self._rank, self._engine = invitation, rank, engine
        self._logger, self._came = logger, came
        self.now: Attachment | None = None
        self._former: Attachment | None = None  # answers fences of the session before
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvarter-attach", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begun, told = time.monotonic(), False
        while not self._closed.wait(_RETRY_SECONDS):
            former = self.now
            if former is not None and former.current:
                begun, told = time.monotonic(), False
                continue
            try:
                attachment = Attachment(self._invitation, self._rank, self._engine)
            except AttachError as error:
                if not told and time.monotonic() - begun > _PATIENCE:
                    told = True
                    self._logger.error("%s; nothing is cached until that works", error)
                continue
            self._came(attachment)
            # Of a node that is gone there is nothing to answer, and its pool is not to be held for nothing.
            self._former = former if former is not None and former.connected else None
            self.now = attachment

    def close(self) -> None:
        """Ends the connections. Idempotent."""
        self._closed.set()
        self._thread.join(_PATIENCE)
        for attachment in (self.now, self._former):
            if attachment is not None:
                attachment.close()
        self._came = _nothing  # whose it is may hold this, and is not to live for it

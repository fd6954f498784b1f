"""Answers that take a while: asked for again and again by the node's thread, for whoever waits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import messages as m
from .control import Peer

logger = logging.getLogger("kvarter.node")


@dataclass(eq=False)
class _Waiting:
    peer: Peer
    attempt: Callable[[], Any]
    answer: Callable[[Any], m.Message]
    failed: Any


class Later:
    """`add` may be called by any thread, `step` by one."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(
        self, peer: Peer, attempt: Callable[[], Any], answer: Callable[[Any], m.Message], failed: Any
    ) -> None:
        """Sends `answer` of what `attempt` returns once that is not None, or of `failed` when it raises."""
        with self._lock:
            self._waiting.append(_Waiting(peer, attempt, answer, failed))

    def step(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        over = set()
        for one in waiting:
            try:
                result = one.attempt()
            except Exception:  # of one: the others are not to wait for it
                logger.exception("a question is given up")
                result = one.failed
            if result is not None:
                over.add(one)
                one.peer.send(one.answer(result))
        if over:
            with self._lock:
                self._waiting = [one for one in self._waiting if one not in over]

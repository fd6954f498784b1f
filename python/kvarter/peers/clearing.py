"""What was invalidated, and when, told from node to node: nobody brings back what somebody has ended.

Two ends of a link tell each other what they know before they ask each other for anything, and at once what they hear
later. So no block of a namespace crosses a link unless both ends have cleared it as of the same moment.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from . import messages as m
from .link import Link
from .meeting import Meeting

_MOST = 1024  # namespaces that are remembered, those that were cleared last


class Clearing:
    """drop: ends a namespace here, open or not. `clear` may be called by any thread, the rest by the meeting's.
    `counts`: namespaces that were cleared from here, and by others."""

    def __init__(self, meeting: Meeting, drop: Callable[[bytes], None]) -> None:
        self._meeting, self._drop = meeting, drop
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()
        self.counts = Counter({"here": 0, "elsewhere": 0})

    def clear(self, namespace: bytes) -> None:
        """It ends here and now, and wherever this is heard. What is asked of others after this call comes from after
        they heard it."""
        with self._lock:
            # Later than all that is known, whatever this host's clock says.
            since = max(self._known.get(namespace, 0) + 1, time.time_ns())
            self._note(namespace, since)
            self.counts["here"] += 1
        self._meeting.call(self._tell, m.Clear(namespace, since))

    def met(self, link: Link) -> None:
        with self._lock:
            known = list(self._known.items())
        for namespace, since in known:
            link.send(m.Clear(namespace, since))

    def heard(self, message: m.Clear) -> None:
        with self._lock:
            if message.since <= self._known.get(message.namespace, 0):
                return
            self._note(message.namespace, message.since)
            self.counts["elsewhere"] += 1
        self._drop(message.namespace)
        self._tell(message)

    def _note(self, namespace: bytes, since: int) -> None:
        self._known[namespace] = since
        self._known.move_to_end(namespace)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)

    def _tell(self, message: m.Clear) -> None:
        for link in list(self._meeting.links):
            link.send(message)

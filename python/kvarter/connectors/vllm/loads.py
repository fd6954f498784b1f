"""Loads, from the blocks that the engine has allocated to the workers' last word."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ... import _core
from ...node import Home
from .layout import Groups
from .messages import Loaded, LoadJob, Part
from .requests import RequestState

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks

logger = logging.getLogger("kvarter.vllm")


class _Waiting(NamedTuple):
    """A load whose blocks are on their way from disk, and where the engine wants them, by vLLM's group."""

    state: RequestState
    tables: tuple[list[int], ...]


class Loads:
    """Open loads by request, also of requests that are gone: the engine holds their blocks until it is told.

    `tokens` and `requests` count by what became of them; matched = loaded + failed + expired once nothing is open.
    `hits`: matched tokens by tier.
    """

    def __init__(self, home: Home, groups: Groups, seconds: float) -> None:
        self._home, self.groups, self._seconds = home, groups, seconds
        self._open: dict[str, RequestState] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._ready: list[LoadJob] = []
        self._failing: set[str] = set()  # that have failed, and the engine has not been told
        self.tokens: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()

    def __contains__(self, request: str) -> bool:
        return request in self._open

    @property
    def failing(self) -> bool:
        """Whether the engine is still to be told of a failure: workers tell the one admitted last first, so no new load
        begins until then."""
        return bool(self._failing)

    def begin(self, request: str, state: RequestState, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """The engine has blocks for what was matched, and waits for it."""
        match = state.match
        if match is None or match.new_tokens != external_tokens:
            logger.error(
                "engine asked for %d external tokens of %s, matched %s", external_tokens, request, match
            )
            match = None
        self._open[request] = state
        self.tokens["matched"] += external_tokens
        state.external_tokens = external_tokens
        if match is None:
            self._ready.append(self._job(request, ()))
            return
        self.hits["disk"] += match.disk_tokens
        self.hits["p2p"] += match.peer_tokens
        self.hits["dram"] += match.new_tokens - match.disk_tokens - match.peer_tokens
        state.ticket = self._home.store.load(match, self._seconds, request=request, owner=self._home.owner)
        self._waiting[request] = _Waiting(state, blocks.get_block_ids())
        if not state.ticket.poll():
            self._ready.append(self._job(request, None))

    def take_ready(self) -> tuple[LoadJob, ...]:
        """Loads whose blocks are all in the pool now, or never will be, for the workers; in the order of `begin`."""
        for request, (state, tables) in list(self._waiting.items()):
            assert state.ticket is not None
            if state.ticket.poll():
                del self._waiting[request]
                self._ready.append(self._job(request, self._parts(request, state, tables)))
        ready, self._ready = tuple(self._ready), []
        return ready

    def _parts(self, request: str, state: RequestState, tables: tuple[list[int], ...]) -> tuple[Part, ...]:
        ticket = state.ticket
        if ticket is None or ticket.status != _core.Status.Ok:
            return ()
        parts = tuple(
            Part(group, np.array([tables[number][b] for b in need], np.int64), ticket.slots(group))
            for group, (number, need) in enumerate(zip(self.groups.ids, ticket.match.blocks, strict=True))
            if need
        )
        if any((part.engine_blocks == 0).any() for part in parts):
            logger.error("the engine allocated null blocks for a load of %s", request)
            return ()
        return parts

    def _job(self, request: str, parts: tuple[Part, ...] | None) -> LoadJob:
        state = self._open.get(request)
        ticket = state.ticket if state is not None else None
        if ticket is None:
            return LoadJob(request, b"", 0, parts)
        return LoadJob(request, ticket.pool, ticket.epoch(self._home.owner), parts)

    def reported(self, loaded: Mapping[str, list[Loaded]]) -> None:
        """What ranks said of their copies. Blocks that failed their check go at once."""
        for request, outcomes in loaded.items():
            state = self._open.get(request)
            if not all(outcome.ok for outcome in outcomes):
                self._failing.add(request)
            if state is not None and state.ticket is not None:
                for outcome in outcomes:
                    for group, at in outcome.corrupt:
                        state.ticket.drop_corrupt(group, [state.ticket.match.blocks[group][at]])

    def ended(self, request: str, failed: bool) -> bool:
        """The engine goes on with the request. False when the load was not ours."""
        self._failing.discard(request)
        state = self._open.pop(request, None)
        if state is None:
            return False
        ticket, state.ticket = state.ticket, None
        in_time = ticket is not None and ticket.finish(
            _core.Outcome.Failed if failed else _core.Outcome.Loaded
        )
        late = ticket is not None and (
            ticket.status == _core.Status.TimedOut or (ticket.status == _core.Status.Ok and not in_time)
        )
        outcome = "expired" if failed and late else "failed" if failed else "loaded"
        self.tokens[outcome] += state.external_tokens
        self.requests[outcome] += 1
        state.match = None
        if failed:
            state.never_match = state.computed_unknown = True
            state.restart()
        return True

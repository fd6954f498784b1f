"""A trace: requests in the order of their arrival, each a chain of blocks, and the tree that the chains form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Request:
    """One request as a reader found it. blocks: ids, head first; equal ids under equal parents are equal blocks."""

    seconds: float
    tokens: int
    output_tokens: int
    blocks: tuple[Any, ...]
    session: str = ""


@dataclass(frozen=True)
class Trace:
    """Requests by arrival. Blocks are numbered from 0 in the order in which they first appear.

    seconds: float64[requests]. first: int64[requests + 1], where each one's blocks begin in `blocks`. parent,
    depth: of each unique block; -1 is no parent. tokens, output_tokens: of each request. session: a number each.
    """

    name: str
    format: str
    block_tokens: int
    seconds: npt.NDArray[np.float64]
    first: Ints
    blocks: Ints
    parent: Ints
    depth: Ints
    tokens: Ints
    output_tokens: Ints
    session: Ints
    skipped: int = 0
    notes: tuple[str, ...] = field(default=())

    @classmethod
    def of(cls, requests: Iterable[Request], name: str, format: str, block_tokens: int, **more: Any) -> Trace:
        """Sorts the requests by time and numbers each block by its id and its parent, whatever the ids are."""
        arrived = sorted(requests, key=lambda request: request.seconds)
        numbers: dict[tuple[int, Any], int] = {}
        sessions: dict[str, int] = {}
        parents: list[int] = []
        depths: list[int] = []
        blocks: list[int] = []
        first = [0]
        for request in arrived:
            above = -1
            for depth, block in enumerate(request.blocks):
                number = numbers.setdefault((above, block), len(parents))
                if number == len(parents):
                    parents.append(above)
                    depths.append(depth)
                blocks.append(number)
                above = number
            first.append(len(blocks))
        return cls(
            name,
            format,
            block_tokens,
            np.array([request.seconds for request in arrived], np.float64),
            np.array(first, np.int64),
            np.array(blocks, np.int64),
            np.array(parents, np.int64),
            np.array(depths, np.int64),
            np.array([request.tokens for request in arrived], np.int64),
            np.array([request.output_tokens for request in arrived], np.int64),
            np.array(
                [
                    sessions.setdefault(r.session, len(sessions)) if r.session else -1 - i
                    for i, r in enumerate(arrived)
                ],
                np.int64,
            ),
            **more,
        )

    @property
    def requests(self) -> int:
        return len(self.seconds)

    @property
    def accesses(self) -> int:
        return len(self.blocks)

    @property
    def unique(self) -> int:
        return len(self.parent)

    @property
    def span(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.seconds[-1] - self.seconds[0]) if self.requests else 0.0

    @cached_property
    def keys(self) -> npt.NDArray[np.uint64]:
        """A well mixed name for each unique block, as digests are."""
        with np.errstate(over="ignore"):
            mixed = (np.arange(1, self.unique + 1, dtype=np.uint64)) * _MIX
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            return mixed ^ (mixed >> np.uint64(32))

    def of_request(self, number: int) -> Ints:
        return self.blocks[self.first[number] : self.first[number + 1]]

    def part(self, which: npt.NDArray[np.bool_], name: str) -> Trace:
        """The requests where `which` is true, as a trace of its own."""
        chosen = (
            Request(
                float(self.seconds[i]),
                int(self.tokens[i]),
                int(self.output_tokens[i]),
                tuple(self.of_request(i).tolist()),
                str(self.session[i]),
            )
            for i in np.flatnonzero(which)
        )
        return Trace.of(chosen, name, self.format, self.block_tokens)

    def halves(self) -> tuple[Trace, Trace]:
        """The first half of the requests and the second, each from a cold start."""
        early = np.arange(self.requests) < self.requests // 2
        return self.part(early, f"{self.name}, first half"), self.part(~early, f"{self.name}, second half")

    def continues(self) -> npt.NDArray[np.bool_]:
        """Of each request whether a later one asks for its last whole block: the truth that hints are about."""
        last = np.full(self.unique, -1, np.int64)
        requests = np.repeat(np.arange(self.requests), np.diff(self.first))
        last[self.blocks] = requests  # the last write is the latest request
        whole = np.minimum(self.tokens // self.block_tokens, np.diff(self.first))
        number = np.arange(self.requests)
        at = np.where(whole > 0, self.first[:-1] + whole - 1, 0)
        return np.asarray((whole > 0) & (last[self.blocks[at]] > number) if self.accesses else whole > 0)

"""Synthetic traces, for those who have none: the same for the same seed, everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from .trace import Request, Trace

BLOCK = 16


@dataclass(frozen=True)
class Shape:
    """What a kind of traffic looks like. Lengths are medians of log-normal tokens; times are in seconds.

    sessions: how many there are. every: mean seconds between two of them. turns: mean of a geometric number. gap:
    median seconds between turns. prefixes: shared first parts (system prompts with tools, documents), used with
    Zipf's popularity. first: tokens of a session's first message; asked, answered: of the later ones.
    """

    sessions: int
    every: float
    turns: float
    gap: float
    prefixes: int
    prefix: int
    first: int
    asked: int
    answered: int


SHAPES = {
    "chat": Shape(1200, 1.5, 3.5, 45.0, 8, 200, 120, 60, 200),
    "agents": Shape(80, 15.0, 18.0, 4.0, 6, 1500, 600, 300, 100),
    "rag": Shape(2500, 0.7, 1.3, 30.0, 400, 1200, 40, 40, 150),
}


def generate(kind: str, seed: int = 0, sessions: int | None = None) -> Trace:
    """A trace of this kind of traffic (`SHAPES`), in blocks of 16 tokens."""
    shape = SHAPES[kind]
    count = sessions or shape.sessions
    said = f"generated: {kind}, seed {seed}, {count} sessions, " + ", ".join(
        f"{name} {value:g}" for name, value in asdict(shape).items() if name != "sessions"
    )
    requests = _requests(shape, count, np.random.default_rng(seed))
    return Trace.of(requests, f"{kind}-{seed}", "generated", BLOCK, notes=(said,))


def _requests(shape: Shape, sessions: int, random: np.random.Generator) -> Iterator[Request]:
    def tokens(median: float) -> int:
        return max(int(random.lognormal(np.log(median), 0.7)), 1)

    lengths = [tokens(shape.prefix) for _ in range(shape.prefixes)]
    popularity = 1.0 / np.arange(1, shape.prefixes + 1)
    start = 0.0
    for session in range(sessions):
        start += float(random.exponential(shape.every))
        prefix = int(random.choice(shape.prefixes, p=popularity / popularity.sum()))
        length, seconds = lengths[prefix] + tokens(shape.first), start
        for _ in range(int(random.geometric(1 / shape.turns))):
            answer = tokens(shape.answered)
            blocks = tuple(
                (-1 - prefix, i) if (i + 1) * BLOCK <= lengths[prefix] else (session, i)
                for i in range(length // BLOCK)
            )
            yield Request(seconds, length, answer, blocks, str(session))
            length += answer + tokens(shape.asked)
            seconds += float(random.lognormal(np.log(shape.gap), 1.0))


def save(trace: Trace, path: Path) -> None:
    """Writes a trace in Mooncake's format."""
    with path.open("w") as file:
        for i in range(trace.requests):
            line = {
                "timestamp": round(float(trace.seconds[i]) * 1000),
                "session": int(trace.session[i]),
                "input_length": int(trace.tokens[i]),
                "output_length": int(trace.output_tokens[i]),
                "hash_ids": trace.of_request(i).tolist(),
            }
            file.write(json.dumps(line) + "\n")

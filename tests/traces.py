"""Real traces, where they are: beside the checkout, never in it."""

import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from kvarter.trace import Request, Trace, read

FOLDER = Path(os.environ.get("SHARED_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
CONVERSATION, AGENTS = "mooncake_conversation.jsonl", "agents_16tok.jsonl"
needs_traces = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no traces in {FOLDER}")


@cache
def real(name: str) -> Trace:
    return read(FOLDER / name)


def trace_of(*chains: str, seconds: float = 1.0) -> Trace:
    """A request for each word, a block for each letter."""
    requests = (Request(i * seconds, len(word), 0, tuple(word)) for i, word in enumerate(chains))
    return Trace.of(requests, "words", "test", 1)


def random_trace(seed: int, requests: int = 300, letters: int = 3) -> Trace:
    """Chains that share prefixes often."""
    random = np.random.default_rng(seed)
    words = (
        "".join(random.choice(list("abcdefg"[:letters]), random.integers(0, 7))) for _ in range(requests)
    )
    return trace_of(*words)

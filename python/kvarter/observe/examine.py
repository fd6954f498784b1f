"""All probes, in the order in which a person would ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import cuda, engines, kernels, memory, nodes, pages, peers, settings, ucx, uring
from .finding import Finding, Level

PROBES: tuple[Callable[[], Finding], ...] = (
    settings.settings,
    kernels.hashing,
    kernels.copying,
    cuda.cuda,
    memory.pool,
    memory.locked,
    memory.numa,
    pages.huge_pages,
    uring.io_uring,
    ucx.ucx,
    peers.peers,
    engines.vllm,
    engines.sglang,
    engines.torchvision,
    nodes.sockets,
    nodes.pools,
)


def examine(probes: tuple[Callable[[], Finding], ...] = PROBES) -> Iterator[Finding]:
    """One finding a probe. A probe that fails is a finding too: whoever asks has trouble enough."""
    for probe in probes:
        try:
            yield probe()
        except Exception as error:
            yield Finding(
                probe.__name__.replace("_", " "),
                Level.PROBLEM,
                f"could not be looked at: {type(error).__name__}: {error}",
                "Report this, with the output of `kvarter doctor --json`.",
            )

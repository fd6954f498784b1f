"""One run of the demonstration, in a process of its own: ``python -m kvarter.demo.scenario``.

Reads a :class:`Task` as JSON from stdin and writes JSON lines to stdout: :class:`Note` and :class:`Progress`,
and an :class:`Outcome` or a :class:`Failure` as the last one. What the engine prints goes to stderr.

1. Every prompt comes cold, then once more at once: the engine's own local hit. The prompts together are
   larger than the engine's cache, so that early ones are gone when the last has come.
2. Every prompt comes again, each time after the engine has dropped all of its own prefix cache. A task that is
   `restarted` does only this: what it is served, an engine before it has left on disk.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

HITS = "vllm:external_prefix_cache_hits"


class Task(msgspec.Struct, frozen=True):
    """The model, made in ``models`` if need be; token prompts; the engine's cache in blocks."""

    model: str
    models: str
    prompts: list[list[int]]
    output_tokens: int
    blocks: int
    kv: dict[str, Any] | None = None
    restarted: bool = False


class Note(msgspec.Struct, frozen=True, tag=True):
    """Something that a person should know, in one sentence."""

    text: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """``done`` of ``total`` requests are answered."""

    step: str
    done: int
    total: int


class Round(msgspec.Struct, frozen=True):
    """All prompts once: greedy tokens, prompt tokens not computed, sum of the times to the first token."""

    tokens: list[list[int]]
    cached_tokens: int
    seconds: float


class Outcome(msgspec.Struct, frozen=True, tag=True):
    """What the run came to; ``external_hit_tokens`` are what the connector brought in round ``again``."""

    groups: int
    cold: Round
    repeated: Round
    again: Round
    external_hit_tokens: int


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Why there is no outcome, in one sentence."""

    reason: str


Event = Note | Progress | Outcome | Failure


def run(task: Task, report: Callable[[Note | Progress], None]) -> Outcome:
    """Carry out ``task`` in this process, calling ``report`` with notes and progress on the way.

    Raises:
        RuntimeError: the engine did not drop its cache, or Kvarter's account of its memory does not add up.
    """
    from kvarter.demo import engine as e
    from kvarter.demo.models import MODELS, make

    for package, reason in e.prepare().items():
        report(Note(f"{package} counts as absent: {reason}"))
    total, done = (1 if task.restarted else 3) * len(task.prompts), 0
    report(Progress("model", 0, total))
    path = make(task.model, Path(task.models))

    def ask(llm: Any, prompt: list[int], step: str) -> e.Reply:
        nonlocal done
        (reply,) = e.ask(llm, [prompt], task.output_tokens)
        done += 1
        report(Progress(step, done, total))
        return reply

    report(Progress("engine", 0, total))
    model = MODELS[task.model]
    settings: dict[str, Any] = {
        "block_size": model.block_tokens,
        "dtype": model.dtype,
        "max_model_len": max(map(len, task.prompts)) + task.output_tokens,
    }
    with e.engine(path, blocks=task.blocks, kv=task.kv, **settings) as llm:
        e.ask(llm, [task.prompts[0][::-1]], 2)  # the first request pays for what the engine sets up lazily
        cold, repeated, again = [], [], []
        for prompt in () if task.restarted else task.prompts:
            cold.append(ask(llm, prompt, "cold"))
            repeated.append(ask(llm, prompt, "cold"))
        e.drop_prefix_cache(llm)
        before = e.counter(llm, HITS)
        for prompt in task.prompts:
            again.append(ask(llm, prompt, "again"))
            e.drop_prefix_cache(llm)
        hits = e.counter(llm, HITS) - before
        _audit(task)
        return Outcome(e.groups(llm), _round(cold), _round(repeated), _round(again), hits)


def _round(replies: list[Any]) -> Round:
    return Round(
        [reply.tokens for reply in replies],
        sum(reply.cached_tokens for reply in replies),
        sum(reply.seconds_to_first_token for reply in replies),
    )


def _audit(task: Task) -> None:
    if task.kv is not None:
        from kvarter.connectors.vllm import stores

        for store in stores():
            store.audit()


def _main() -> None:
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb", buffering=0) as events:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)

        def write(event: Event) -> None:
            events.write(msgspec.json.encode(event) + b"\n")

        try:
            write(run(task, write))
        except Exception as error:
            write(Failure(f"{type(error).__name__}: {' '.join(str(error).split())}"))
            raise


if __name__ == "__main__":
    _main()

"""Random engines over vLLM's own schedulers, and what must be true of each in the end."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from kvarter.geometry import CacheGroup, Full, Geometry, State, Window


def geometry(*groups: CacheGroup) -> Geometry:
    return Geometry(min(group.block_tokens for group in groups), groups)


GEOMETRIES = {
    "full": geometry(CacheGroup("full", Full(), 8, (1,))),
    "window": geometry(CacheGroup("full", Full(), 8, (1,)), CacheGroup("window", Window(20), 8, (1,))),
    "sizes": geometry(CacheGroup("full", Full(), 16, (1,)), CacheGroup("window", Window(20), 8, (1,))),
    "state": geometry(CacheGroup("full", Full(), 8, (1,)), CacheGroup("state", State(), 8, (1,))),
    "all": geometry(
        CacheGroup("full", Full(), 8, (1,)),
        CacheGroup("window", Window(20), 8, (1,)),
        CacheGroup("state", State(), 8, (1,)),
    ),
}


def prompts(numbers: random.Random, count: int) -> list[list[int]]:
    stems = [[numbers.randrange(61) for _ in range(numbers.randint(10, 90))] for _ in range(3)]
    return [
        [*numbers.choice(stems), *(numbers.randrange(61) for _ in range(numbers.randint(1, 40)))]
        for _ in range(count)
    ]


# Why an offered block was not stored (csrc/include/kvarter/index.h).
WHY_NOT = (
    *("already_resident", "already_in_flight", "no_space", "no_parent", "namespace_closed"),
    *("aborted", "failed", "expired", "owner_dead"),
)


def balance(engine: Any) -> dict[str, int]:
    """The account of an engine that has drained: exact, nothing held, every offered block and token counted once."""
    (store,) = engine.stores()
    ledger, counts = store.audit(), store.stats()
    assert ledger["reserved"] == ledger["leased"] == ledger["quarantined"] == ledger["dead"] == 0
    why_not = {name: counts.get(name, 0) for name in WHY_NOT}
    assert counts["offered"] == counts.get("stored", 0) + sum(why_not.values())
    tokens = engine.tokens()
    outcomes = sum(tokens.get(outcome, 0) for outcome in ("loaded", "failed", "expired"))
    elsewhere = sum(getattr(connector, "promised", 0) for connector in engine.connectors())
    assert tokens.get("matched", 0) == outcomes == engine.external_hits - elsewhere
    return counts


def drafter(seed: int) -> Any:
    """Three drafts, each right more often than not."""
    numbers = random.Random(seed)

    def draft(truth: Any, tokens: list[int]) -> list[int]:
        right = truth.say(tokens, 3)
        return [token if numbers.random() < 0.7 else numbers.randrange(61) for token in right]

    return draft


class Chaos:
    """A random engine, workload and sequence of events; all that happens follows from the seed."""

    def __init__(self, make: Any, seed: int, **fixed: Any) -> None:
        self.numbers = numbers = random.Random(seed)
        self.shape = fixed.pop("shape", None) or numbers.choice(list(GEOMETRIES))
        # Often more than fit at once, so that requests are preempted.
        blocks = numbers.choice([30, 36, 80]) + 20 * len(GEOMETRIES[self.shape].groups[1:])
        self.siblings = fixed.pop("siblings", 0.0)
        faults = {"delay": numbers.choice([0, 0, 0.0003, 0.001])} | fixed.pop("faults", {})
        self.settings = {
            "blocks": blocks,
            "budget": numbers.choice([16, 32, 64, 256]),
            "running": numbers.choice([3, 4, 8]),
            "steps_ahead": numbers.choice([0, 1]),
            "block_outermost": numbers.random() < 0.5,
            "extra": self._copier(faults, fixed.get("device"))
            | {
                "max_blocks": numbers.choice([100, 2000, 2000]),
                "boundary_interval": numbers.choice([8, 48, 4096]),
            },
        } | fixed
        if self.settings.get("drafts"):
            self.settings["drafter"] = drafter(seed)
        self.engine = make(GEOMETRIES[self.shape], **self.settings)
        self.asked: dict[str, tuple[list[int], int]] = {}
        self.aborted: set[str] = set()
        self.prompts: list[list[int]] = []

    def _copier(self, faults: dict[str, Any], device: Any) -> dict[str, Any]:
        if device is None:
            return {"copy_member": "faulty", "faults": faults}
        below = self.numbers.choice([0, 1 << 20])  # copy engines alone, or the kernel where it can
        return {"copy_member": "cuda", "cuda": {"driver": device.path, "kernel_below": below}}

    def add(self, prompt: list[int]) -> None:
        sibling = "sibling " if self.numbers.random() < self.siblings else ""
        name, count = f"{sibling}{len(self.asked)}", self.numbers.randint(1, 80)
        self.asked[name] = prompt, count
        self.engine.add(name, prompt, count)

    def abort(self) -> None:
        alive = [name for name in self.asked if name in self.engine.scheduler.requests]
        if alive:
            name = self.numbers.choice(alive)
            self.aborted.add(name)
            self.engine.abort(name)

    def run(self, requests: int, aborts: float = 0.0) -> None:
        self.prompts += prompts(self.numbers, requests - len(self.prompts) // 2)
        todo = self.numbers.sample(self.prompts, requests)
        while todo:
            self.add(todo.pop())
            for _ in range(self.numbers.choice([0, 0, 1, 3, 20])):
                self.engine.step()
                if self.numbers.random() < aborts:
                    self.abort()
        self.engine.drain()

    def judge(self) -> Counter[str]:
        """The counters of the store and of what happened, once all is found right."""
        from fake_model import Truth

        assert self.engine.runner.wrong == []
        if not self.engine.model.weights:
            for name, (prompt, count) in self.asked.items():
                if name not in self.aborted:
                    assert self.engine.outputs[name] == Truth(GEOMETRIES[self.shape]).say(prompt, count), name
        return Counter(balance(self.engine)) + self.engine.seen

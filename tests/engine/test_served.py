"""Engines on one node: they share its pool, and outlive one another and the node."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_node_words import ServedNode
from engine_words import expected_of, settings_of
from kvarter.demo import engine
from served_words import until


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ServedNode]:
    running = ServedNode(tmp_path, "--dram", "64MiB")
    yield running
    running.close()


@pytest.mark.parametrize("name", ["llama", "gptoss", "qwen3next"])
def test_two_engines_on_a_node_serve_each_other(
    node: ServedNode, start: Any, another: Any, prompts: Any, baseline: Any, kvarter_config: Any, name: str
) -> None:
    asked, more = prompts(3, 600, shared=300, seed=81), prompts(2, 600, seed=82)
    expected, expected_more = expected_of(baseline, name, asked, 8), expected_of(baseline, name, more, 8)
    kv = kvarter_config(node=f"unix://{node.path}")
    first = another(name, kv)
    assert first.ask(asked, 8)[0] == expected
    llm = start(name, kv=kv, **settings_of(name))
    align = settings_of(name)["block_size"]
    full = 599 // align * align
    replies = engine.ask(llm, asked, 8)
    assert [reply.tokens for reply in replies] == expected
    assert [reply.cached_tokens for reply in replies] == [full] * 3
    assert [reply.tokens for reply in engine.ask(llm, more, 8)] == expected_more
    engine.settle(llm)
    tokens, cached = first.ask(more, 8)
    assert tokens == expected_more
    assert cached == [full] * 2
    ledger = node.idle_ledger()
    assert ledger["resident"] > 0
    assert len(node.status()["engines"]) == 2


def test_an_engine_that_is_killed_frees_what_it_held_and_leaves_what_it_stored(
    node: ServedNode, start: Any, another: Any, prompts: Any, baseline: Any, kvarter_config: Any
) -> None:
    asked = prompts(6, 600, seed=83)
    expected = baseline("llama", asked, 8)
    slow = kvarter_config(
        node=f"unix://{node.path}", copy_member="faulty", copy_threads=1, faults={"delay": 0.02}
    )
    first = another("llama", slow)
    first.begin(asked, 8)
    until(lambda: node.status()["pool"]["reserved"] > 0, "a store is under way")
    first.kill()
    node.idle_ledger()
    until(lambda: node.status()["engines"] == [], "the engine is forgotten")
    llm = start("llama", kv=kvarter_config(node=f"unix://{node.path}"), **settings_of("llama"))
    for _ in range(2):
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == expected
        engine.drop_prefix_cache(llm)
    node.idle_ledger()


def test_a_node_that_is_killed_under_load_costs_its_engines_a_cache_and_no_request(
    node: ServedNode, start: Any, prompts: Any, baseline: Any, kvarter_config: Any
) -> None:
    asked = prompts(8, 400, seed=84)
    expected = baseline("llama", asked, 16)
    llm = start("llama", kv=kvarter_config(node=f"unix://{node.path}"), **settings_of("llama"))
    assert [reply.tokens for reply in engine.ask(llm, asked, 16)] == expected
    engine.drop_prefix_cache(llm)
    killer = threading.Timer(0.2, node.kill)
    killer.start()
    assert [reply.tokens for reply in engine.ask(llm, asked, 16)] == expected  # killed somewhere in here
    killer.join()
    engine.drop_prefix_cache(llm)
    assert [reply.tokens for reply in engine.ask(llm, asked, 16)] == expected
    node.start()

    def served_again() -> bool:
        engine.drop_prefix_cache(llm)
        replies = engine.ask(llm, asked, 16)
        assert [reply.tokens for reply in replies] == expected
        return all(reply.cached_tokens == 384 for reply in replies)

    until(served_again, "the engine is attached again")
    engine.settle(llm)
    assert node.idle_ledger()["resident"] > 0


def test_routers_hear_of_what_each_engine_finds_at_the_node_and_of_all_that_goes_with_it(
    node: ServedNode, start: Any, another: Any, prompts: Any, kvarter_config: Any, events: Any
) -> None:
    router, settings = events
    mine, theirs = prompts(2, 320, seed=86)
    kv = kvarter_config(node=f"unix://{node.path}")
    assert another("llama", kv).ask([theirs], 4)  # stored by another engine, which publishes nothing
    llm = start("llama", kv=kv, **settings_of("llama"), kv_events_config=settings)

    def told(prompt: list[int]) -> int:
        engine.settle(llm)
        engine.ask(llm, [[1, 2, 3]], 1)  # events go with a step
        router.listen()
        return router.leading(prompt, 0)

    engine.ask(llm, [mine], 4)
    assert told(mine) == 320
    assert told(theirs) == 0  # nobody has asked this engine for it
    assert engine.ask(llm, [theirs], 4)[0].cached_tokens == 288
    assert told(theirs) == 320
    node.kill()
    until(lambda: told(mine) == told(theirs) == 0, "all of it is withdrawn")
    node.start()

    def told_again() -> bool:
        engine.drop_prefix_cache(llm)
        engine.ask(llm, [mine], 4)
        return told(mine) == 320

    until(told_again, "the engine is attached again")
    assert router.strays == []


def test_a_stopped_node_holds_up_no_request(
    node: ServedNode, start: Any, prompts: Any, baseline: Any, kvarter_config: Any
) -> None:
    asked = prompts(3, 400, seed=85)
    expected = baseline("llama", asked, 8)
    llm = start("llama", kv=kvarter_config(node=f"unix://{node.path}"), **settings_of("llama"))
    engine.ask(llm, asked, 8)
    engine.drop_prefix_cache(llm)
    os.kill(node.process.pid, signal.SIGSTOP)
    try:
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == expected
        engine.drop_prefix_cache(llm)
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == expected
    finally:
        os.kill(node.process.pid, signal.SIGCONT)

    def served_again() -> bool:
        engine.drop_prefix_cache(llm)
        return [reply.cached_tokens for reply in engine.ask(llm, asked, 8)] == [384] * 3

    until(served_again, "the engine is served again")
    engine.settle(llm)
    assert node.idle_ledger()["resident"] > 0


def test_an_engine_whose_node_is_not_there_is_refused_with_the_command_to_start_it(
    start: Any, kvarter_config: Any, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=r"no session with the node at .*kvarter serve --socket"):
        start("llama", kv=kvarter_config(node=f"unix://{tmp_path}/no.sock"), **settings_of("llama"))

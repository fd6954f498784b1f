"""Engines on different hosts: what one has computed serves another, exactly, and no host's end costs a token."""

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
from street_words import PORT, Street, peer_settings

_ALL = 1, 2, 3


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[int, ServedNode]]:
    """`kvarter serve` on three hosts that know each other."""
    street, running = Street(3), {}
    try:
        for number in _ALL:
            home = tmp_path / str(number)
            home.mkdir()
            others = [other for other in _ALL if other != number]
            settings = peer_settings(street, number, others, tmp_path, patience=5.0)
            lines = [f"{name} = {_toml(value)}" for name, value in settings.items()]
            (home / "node.toml").write_text("\n".join(['dram = "64MiB"', "[peers]", *lines, ""]))
            running[number] = ServedNode(
                home, "--config", str(home / "node.toml"), within=street.within(number)
            )
        for node in running.values():
            until(lambda node=node: len(node.status()["peers"]["links"]) == 4, "all have met")  # type: ignore[misc]
        yield running
    finally:
        for node in running.values():
            node.close()
        street.close()


def _toml(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value).replace("'", '"')


def _at(kvarter_config: Any, node: ServedNode) -> Any:
    return kvarter_config(node=f"unix://{node.path}", disk={"measure": False})


@pytest.mark.parametrize("name", ["llama", "gptoss", "qwen3next"])
def test_an_engine_gets_what_another_one_computed_on_another_host(
    nodes: dict[int, ServedNode],
    start: Any,
    another: Any,
    prompts: Any,
    baseline: Any,
    kvarter_config: Any,
    name: str,
) -> None:
    asked = prompts(3, 600, shared=300, seed=91)
    expected = expected_of(baseline, name, asked, 8)
    first = another(name, _at(kvarter_config, nodes[1]))
    assert first.ask(asked, 8)[0] == expected
    llm = start(name, kv=_at(kvarter_config, nodes[3]), **settings_of(name))
    replies = engine.ask(llm, asked, 8)
    assert [reply.tokens for reply in replies] == expected
    full = 599 // settings_of(name)["block_size"] * settings_of(name)["block_size"]
    assert [reply.cached_tokens for reply in replies] == [full] * 3
    engine.settle(llm)
    status = nodes[3].status()
    assert status["found_units"]["p2p"] > 0
    assert status["peers"]["fetched"]["Ok"] > 0
    assert nodes[1].status()["peers"]["lent"]["sent"] > 0
    assert nodes[2].status()["peers"]["lent"]["asked"] == 0
    for node in nodes.values():
        node.idle_ledger()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_host_that_fails_while_it_is_asked_costs_no_request(
    nodes: dict[int, ServedNode],
    start: Any,
    another: Any,
    prompts: Any,
    baseline: Any,
    kvarter_config: Any,
    how: str,
) -> None:
    asked = prompts(8, 400, seed=92)
    expected = baseline("llama", asked, 16)
    first = another("llama", _at(kvarter_config, nodes[1]))
    assert first.ask(asked, 16)[0] == expected
    llm = start("llama", kv=_at(kvarter_config, nodes[3]), **settings_of("llama"))
    pid = nodes[1].process.pid
    failure = threading.Timer(0.05, os.kill, (pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP))
    failure.start()
    assert [reply.tokens for reply in engine.ask(llm, asked, 16)] == expected  # it fails somewhere in here
    failure.join()
    engine.drop_prefix_cache(llm)
    assert [reply.tokens for reply in engine.ask(llm, asked, 16)] == expected
    engine.settle(llm)
    nodes[3].idle_ledger()
    if how == "stopped":
        os.kill(pid, signal.SIGCONT)


def test_what_one_engine_prefills_is_pushed_to_the_host_of_another(
    nodes: dict[int, ServedNode], start: Any, another: Any, prompts: Any, baseline: Any, kvarter_config: Any
) -> None:
    from vllm import SamplingParams

    asked, other = prompts(2, 600, seed=93), prompts(1, 300, seed=94)
    expected = baseline("llama", asked, 8)
    decodes = another("llama", _at(kvarter_config, nodes[3]))
    decodes.ask(other, 2)  # so that its namespace is open there
    llm = start("llama", kv=_at(kvarter_config, nodes[1]), **settings_of("llama"))
    extra = {"kv_transfer_params": {"kvarter": {"push": [f"{Street.address(3)}:{PORT}"]}}}
    sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, extra_args=extra)
    llm.generate([{"prompt_token_ids": prompt} for prompt in asked], sampling, use_tqdm=False)
    engine.settle(llm)
    until(lambda: nodes[3].status()["peers"]["pushes"]["taken"] == 2, "fetched")
    nodes[1].kill()
    tokens, cached = decodes.ask(asked, 8)
    assert tokens == expected
    assert cached == [599 // 32 * 32] * 2
    assert nodes[3].status()["found_units"]["p2p"] == 0  # it was there before it was asked for

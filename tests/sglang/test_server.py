"""Prompts that an SGLang server has dropped come back from the node, or are computed again: the tokens are the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from served_words import ServedNode
from sglang_words import TOKENS, prompt, until

Serve = Callable[..., Any]
PAGES = TOKENS // 64 * 64  # the tokens of a prompt's whole pages


def test_dropped_prompts_come_back_from_storage_with_the_same_tokens(server: Any) -> None:
    prompts = [prompt(seed) for seed in (1, 2, 3)]
    cold = [server.cold(tokens) for tokens in prompts]
    again = [server.ask(tokens) for tokens in prompts]
    assert [reply.stored for reply in again] == [PAGES] * 3
    assert [reply.tokens for reply in again] == [reply.tokens for reply in cold]


def test_a_longer_prompt_continues_what_is_stored(server: Any) -> None:
    tokens = prompt(4)
    server.cold(tokens)
    longer = tokens + prompt(5, 200)
    first = server.cold(longer)
    assert first.stored == PAGES
    again = server.ask(longer)
    assert again.stored == len(longer) // 64 * 64 and again.tokens == first.tokens


def test_prompts_of_another_tenant_are_never_served(server: Any) -> None:
    tokens = prompt(6)
    server.cold(tokens)
    assert server.ask(tokens, extra_key="another tenant").stored == 0
    server.drop()
    assert server.ask(tokens).stored == PAGES


def test_the_series_of_a_server_say_what_became_of_its_pages(server: Any) -> None:
    tokens = prompt(7)
    server.cold(tokens)
    server.ask(tokens)
    pages = PAGES // 64
    until(lambda: server.total("kvarter_blocks_total") > 0, "series of Kvarter's")
    _, text = server.call("GET", "/metrics")
    for line in ('outcome="written"', 'outcome="loaded"', 'event="stored"', 'event="loaded"'):
        until(lambda line=line: line in server.call("GET", "/metrics")[1], line)
    assert server.total("sglang:prefetched_tokens_total") >= pages * 64
    assert "kvarter_bytes_moved_total" in text


def test_two_servers_share_a_node_and_one_that_is_killed_leaves_its_pages(
    server: Any, serve: Serve, node: ServedNode
) -> None:
    tokens, others = prompt(8), prompt(9)
    cold = server.cold(tokens)
    second = serve(f"unix://{node.path}")
    found = second.ask(tokens)
    assert (found.stored, found.tokens) == (PAGES, cold.tokens)
    theirs = second.cold(others)
    second.kill()
    ours = server.ask(others)
    assert (ours.stored, ours.tokens) == (PAGES, theirs.tokens)
    second.start()
    restarted = second.ask(others)
    assert (restarted.stored, restarted.tokens) == (PAGES, theirs.tokens)
    second.close()
    node.holds(reserved=0, leased=0, quarantined=0)


def test_a_backend_is_detached_and_another_attached_while_the_server_runs(
    server: Any, node: ServedNode
) -> None:
    tokens = prompt(10)
    cold = server.cold(tokens)
    server.detach()
    assert server.ask(tokens).stored == 0
    server.drop()
    server.attach(None)  # a store of its own, and empty
    assert server.cold(tokens).stored == 0
    assert server.ask(tokens)[:2] == (cold.tokens, PAGES)
    server.detach()
    server.drop()
    server.attach(f"unix://{node.path}", interface_v1=0)  # pages that it hands over
    assert server.cold(tokens).stored == 0
    assert server.ask(tokens)[:2] == (cold.tokens, PAGES)
    server.detach()
    server.drop()
    server.attach(f"unix://{node.path}")
    assert server.ask(tokens)[:2] == (cold.tokens, PAGES)


def test_pages_go_from_its_host_pool_straight_to_disk_and_come_back(
    server: Any, node: ServedNode, tmp_path: Path
) -> None:
    tokens = prompt(16)
    disk = {"path": str(tmp_path / "log"), "capacity": "64MiB", "segment": "4MiB", "straight": True}
    server.detach()
    server.drop()
    server.attach(None, disk=disk)
    cold = server.cold(tokens)
    assert server.ask(tokens)[:2] == (cold.tokens, PAGES)
    server.detach()
    server.drop()
    server.attach(None, disk=disk)
    assert server.ask(tokens)[:2] == (cold.tokens, PAGES)
    server.detach()
    server.drop()
    server.attach(f"unix://{node.path}")
    assert server.ask(tokens).stored == 0


def test_a_hybrid_models_windows_come_back_with_its_pages_and_the_same_tokens(
    serve: Serve, node: ServedNode, gptoss: Path
) -> None:
    server = serve(f"unix://{node.path}", model=gptoss)
    assert "pool swa: MHATokenToKVPoolHost" in server.log()
    prompts = [prompt(seed) for seed in (17, 18, 19)]
    cold = [server.cold(tokens) for tokens in prompts]
    again = [server.ask(tokens) for tokens in prompts]
    assert [reply.stored for reply in again] == [PAGES] * 3
    assert [reply.tokens for reply in again] == [reply.tokens for reply in cold]
    longer = prompts[0] + prompt(20, 200)
    server.drop()
    first = server.cold(longer)
    assert first.stored == PAGES
    assert server.ask(longer).tokens == first.tokens
    server.close()
    node.holds(reserved=0, leased=0, quarantined=0)


def test_cleared_storage_serves_nothing_more(server: Any) -> None:
    tokens = prompt(11)
    cold = server.cold(tokens)
    assert server.call("POST", "/hicache/storage-backend/clear")[0] == 200
    again = server.cold(tokens)
    assert (again.stored, again.tokens) == (0, cold.tokens)
    assert server.ask(tokens).stored == PAGES


def test_a_node_that_stands_still_or_goes_costs_no_request(server: Any, node: ServedNode) -> None:
    tokens = prompt(12)
    cold = server.cold(tokens)
    node.stop()
    assert server.ask(tokens).tokens == cold.tokens
    node.go_on()
    node.kill()
    server.drop()
    gone = server.ask(tokens)
    assert (gone.stored, gone.tokens) == (0, cold.tokens)
    node.start()

    def served_again() -> bool:
        server.drop()
        reply = server.ask(tokens)
        assert reply.tokens == cold.tokens
        return bool(reply.stored == PAGES)

    until(served_again, "served by the next node")


def test_ranks_store_their_parts_of_a_page_and_find_it_whole(serve: Serve, node: ServedNode) -> None:
    server = serve(f"unix://{node.path}", "--tp-size", "2", "--hicache-mem-layout", "page_first_direct")
    tokens = prompt(13)
    cold = server.cold(tokens)
    again = server.ask(tokens)
    assert (again.stored, again.tokens) == (PAGES, cold.tokens)
    server.close()
    node.holds(reserved=0, leased=0, quarantined=0)


@pytest.mark.usefixtures("server")
def test_a_vllm_engine_and_a_server_share_a_node_and_never_a_block(
    server: Any, node: ServedNode, llama: Any
) -> None:
    from kvarter.demo import engine

    tokens = prompt(14)
    ours = server.cold(tokens)
    kv = {
        "kv_connector": "KvarterConnector",
        "kv_connector_module_path": "kvarter.connectors.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"node": f"unix://{node.path}"},
    }
    with engine.engine(llama, blocks=64, block_size=64, kv=kv) as llm:
        (theirs,) = engine.ask(llm, [tokens], 8)
        assert theirs.cached_tokens == 0
        engine.drop_prefix_cache(llm)
        (again,) = engine.ask(llm, [tokens], 8)
        assert (again.cached_tokens, again.tokens) == (PAGES, theirs.tokens)
        reply = server.ask(tokens)
        assert (reply.stored, reply.tokens) == (PAGES, ours.tokens)
    node.holds(reserved=0, leased=0, quarantined=0)

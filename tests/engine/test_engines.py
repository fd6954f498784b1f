"""The helpers that the other engine tests stand on."""

import resource
from pathlib import Path
from typing import Any

from kvarter.demo import engine, models


def test_a_model_is_the_same_wherever_it_is_made(tmp_path: Path) -> None:
    one, two = (models.make("llama", tmp_path / name) for name in ("one", "two"))
    assert one.name == two.name
    for file in one.iterdir():
        assert file.read_bytes() == (two / file.name).read_bytes()


def test_a_model_already_there_is_not_made_again(tmp_path: Path) -> None:
    path = models.make("llama", tmp_path)
    (path / "config.json").write_text("kept")
    assert (models.make("llama", tmp_path) / "config.json").read_text() == "kept"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_engines_follow_one_another_in_one_process_with_the_same_tokens(
    start: Any, prompts: Any, baseline: Any
) -> None:
    asked = prompts(3, 200, shared=100)
    for _ in range(2):
        llm = start("llama", blocks=64, block_size=32)
        assert [reply.tokens for reply in engine.ask(llm, asked, 8)] == baseline("llama", asked, 8)


def test_an_engine_that_is_closed_gives_its_memory_back(start: Any, prompts: Any) -> None:
    def peak() -> int:
        llm = start("llama", blocks=512)  # 256 MiB of KV cache, all of it touched at start
        engine.ask(llm, prompts(1, 200), 2)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    first = peak()
    assert peak() - first < 128


def test_dropping_the_prefix_cache_leaves_nothing_of_it(start: Any, prompts: Any) -> None:
    asked = prompts(1, 300)
    llm = start("llama", blocks=64, block_size=32)
    assert engine.ask(llm, asked, 2)[0].cached_tokens == 0
    assert engine.ask(llm, asked, 2)[0].cached_tokens == 288
    engine.drop_prefix_cache(llm)
    assert engine.ask(llm, asked, 2)[0].cached_tokens == 0

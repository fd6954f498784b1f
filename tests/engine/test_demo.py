"""`kvarter demo` as a user runs it, on the small model."""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

FIELDS = {
    "model": str,
    "groups": int,
    "prompt_tokens": int,
    "external_hit_tokens": int,
    "recomputed_tokens": int,
    "seconds_cold": float,
    "seconds_hit": float,
    "seconds_local_hit": float,
    "identical": bool,
}
SMALL = ("--model", "llama", "--prompts", "4", "--tokens", "512", "--dram", "64MiB")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``demo("--json", KVARTER_DISABLE="1")``: with caches, Kvarter's and vLLM's, that are empty at first."""
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}

    def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "kvarter.cli.main", "demo", *arguments],
            env={**os.environ, **cache, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_engines_of_two_models_beside_each_other_serve_each_its_own(demo: Any) -> None:
    """Two demonstrations at once: engines of different models on one host, in one user's directory of sockets."""
    other = (*SMALL[:1], "gptoss", *SMALL[2:])
    with ThreadPoolExecutor(2) as both:
        results = list(both.map(lambda arguments: demo(*arguments, "--json"), (SMALL, other)))
    for result in results:
        assert result.returncode == 0, result.stderr
    (llama,), (gptoss,) = (json.loads(result.stdout)["models"] for result in results)
    assert {name: type(value) for name, value in llama.items()} == FIELDS
    assert llama["identical"] is gptoss["identical"] is True
    assert llama["prompt_tokens"] == 4 * 512
    # Four blocks of 128 tokens each, and the last one is never a hit: a token must remain to compute.
    assert llama["external_hit_tokens"] == 4 * 384
    assert llama["recomputed_tokens"] == 4 * 128
    assert (gptoss["groups"], gptoss["external_hit_tokens"]) == (2, 4 * 480)  # in blocks of 32


@pytest.mark.parametrize("how", ["--served", "--peers"])
def test_an_engine_is_killed_and_another_at_its_node_or_at_another_node_is_served(
    demo: Any, how: str
) -> None:
    result = demo(*SMALL, how, "--json")
    assert result.returncode == 0, result.stderr
    (llama,) = json.loads(result.stdout)["models"]
    assert llama["identical"] is True
    assert llama["external_hit_tokens"] == 4 * 384


def test_the_demo_fails_when_nothing_is_served(demo: Any) -> None:
    result = demo(*SMALL, KVARTER_DISABLE="1")
    assert result.returncode == 1
    assert re.search(r"served from DRAM +│ +0 ", result.stdout)
    assert re.search(r"tokens identical +│ +yes ", result.stdout)
    assert "nothing was served" in result.stderr


def test_the_demo_fails_with_the_engines_reason_when_a_run_dies(demo: Any) -> None:
    result = demo(*SMALL[:-1], "64 gallons")
    assert result.returncode == 1
    assert "the engine with Kvarter failed" in result.stderr
    assert "64 gallons" in result.stderr

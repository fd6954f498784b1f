"""`kvarter demo` as a user runs it, on the small model."""

import json
import os
import re
import subprocess
import sys
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
BOTH = ("--model", "gptoss", "--model", "qwen3next", "--prompts", "2", "--tokens", "512", "--dram", "64MiB")
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


def test_the_demo_serves_dropped_prompts_from_dram_with_identical_tokens(demo: Any) -> None:
    result = demo(*SMALL, "--json")
    assert result.returncode == 0, result.stderr
    (report,) = json.loads(result.stdout)["models"]
    assert {name: type(value) for name, value in report.items()} == FIELDS
    assert report["identical"] is True
    assert report["prompt_tokens"] == 4 * 512
    # Four blocks of 128 tokens each, and the last one is never a hit: a token must remain to compute.
    assert report["external_hit_tokens"] == 4 * 384
    assert report["recomputed_tokens"] == 4 * 128


def test_the_demo_compares_several_models_each_in_engines_of_its_own(demo: Any) -> None:
    result = demo(*BOTH, "--json")
    assert result.returncode == 0, result.stderr
    gptoss, qwen3next = json.loads(result.stdout)["models"]
    assert (gptoss["groups"], qwen3next["groups"]) == (2, 4)
    assert gptoss["external_hit_tokens"] == 2 * 480  # in blocks of 32
    assert qwen3next["external_hit_tokens"] == 2 * 256  # in blocks of 256


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

"""The benchmark runs, says what it measured, and finds nothing wrong with the bytes it moves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvarter.trace import generate
from kvarter.trace.generate import save

BENCH = Path(__file__).parent.parent / "bench" / "bench.py"
FIELDS = {"case", "unit", "ours", "limit", "ratio", "goal", "better", "kind", "spread"}


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, BENCH, *arguments], capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("bench") / "rows.json"
    ran = bench("hash", "copy", "store", "--quick", "--check", "--json", path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checked: 0 findings" in ran.stdout
    return json.loads(path.read_text())


def test_every_row_says_what_was_measured_and_beside_what(report: dict):
    assert set(report) == {"rows", "machine"}
    assert report["machine"]["cores"] >= 1
    for row in report["rows"]:
        assert set(row) == FIELDS
        assert row["ours"] > 0 and row["limit"] > 0
        assert row["ratio"] == pytest.approx(row["ours"] / row["limit"])
        assert row["better"] in ("higher", "lower") and row["kind"] in ("ratio", "absolute")
    cases = [row["case"] for row in report["rows"]]
    assert len(set(cases)) == len(cases)
    for word in ("chain", "gather 1 MiB block, 32 KiB segments, 1 thread", "scatter", "put", "get"):
        assert any(case.startswith(word) for case in cases)


def test_an_unknown_workload_is_refused_with_the_names_of_those_there_are():
    ran = bench("juggle")
    assert ran.returncode == 2
    assert "copy" in ran.stderr and "evict" in ran.stderr


def test_what_admission_to_the_disk_is_worth_is_measured_on_a_trace_that_one_may_give(tmp_path: Path):
    path, trace = tmp_path / "rows.json", tmp_path / "trace.jsonl"
    save(generate("chat", sessions=40), trace)
    ran = bench("admit", "--quick", "--check", "--trace", trace, "--json", path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checked: 0 findings" in ran.stdout
    rows = {row["case"]: row for row in json.loads(path.read_text())["rows"]}
    assert len(rows) == 6
    for case, row in rows.items():
        assert row["ours"] > 0 and row["limit"] > 0, case


def test_copies_of_a_device_are_measured_and_checked(fake, monkeypatch, tmp_path: Path):
    monkeypatch.setenv("KVARTER_CUDA__DRIVER", fake.path)
    ran = bench("gpu", "--quick", "--check", "--json", tmp_path / "rows.json")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checked: 0 findings" in ran.stdout
    cases = [row["case"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"]]
    assert [case for case in cases if case.startswith("GPU gather, 16 KiB segments")]
    assert len([case for case in cases if case.startswith("GPU ")]) == 8


def test_without_a_device_nothing_is_measured_and_that_is_said(monkeypatch):
    monkeypatch.setenv("KVARTER_CUDA__DRIVER", "/nowhere/libcuda.so.1")
    ran = bench("gpu", "--quick")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "gpu: nothing was measured: no CUDA driver: /nowhere/libcuda.so.1" in ran.stdout


def test_a_nodes_pool_is_measured_beside_an_embedded_one_and_every_byte_is_right(tmp_path: Path):
    path = tmp_path / "rows.json"
    ran = bench("node", "--quick", "--check", "--json", path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "checked: 0 findings" in ran.stdout
    rows = [row["case"] for row in json.loads(path.read_text())["rows"]]
    for word in ("round trip, p99", "round trip of 16 clients", "match and hold", "put", "get"):
        assert any(case.startswith(word) for case in rows)


def test_an_interpreter_without_the_peer_is_named_before_anything_is_measured(tmp_path: Path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexit 3\n")
    python.chmod(0o755)
    ran = bench("node", "--quick", "--peer", python)
    assert ran.returncode == 1
    assert f"{python} bench/peers/lmcache_server.py ended, status 3" in ran.stderr
    assert "ours" not in ran.stdout

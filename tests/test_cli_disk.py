"""`kvarter disk` as an operator runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvarter.cli.main import app
from kvarter.tiers.log import DiskOptions
from words import KIB, MIB, World, full

run = CliRunner().invoke


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log that holds eight blocks."""
    path = tmp_path / "log"
    world = World(full(64 * KIB), disk=DiskOptions(str(path), 8 * MIB, MIB))
    world.put(world.sequence(range(33)), {0: range(8)})
    world.store.close()
    return path


def test_inspect_says_what_is_there_and_changes_nothing(directory: Path) -> None:
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    report = json.loads(run(app, ["disk", "inspect", str(directory), "--json"]).stdout)
    assert (report["blocks"], report["namespaces"], report["owner"]) == (8, 1, 0)
    assert "blocks" in run(app, ["disk", "inspect", str(directory)]).stdout
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == before


def test_verify_fails_when_a_block_has_rotted(directory: Path) -> None:
    assert run(app, ["disk", "verify", str(directory)]).exit_code == 0
    for segment in directory.iterdir():
        data = bytearray(segment.read_bytes())
        if len(data) >= MIB:
            data[300 * KIB] ^= 1
            segment.write_bytes(data)
    result = run(app, ["disk", "verify", str(directory)])
    assert result.exit_code == 1
    assert "blocks are corrupt" in result.stderr


def test_clear_removes_the_log_and_nothing_else_and_not_under_an_engine(directory: Path) -> None:
    world = World(full(64 * KIB), disk=DiskOptions(str(directory), 8 * MIB, MIB))
    refused = run(app, ["disk", "clear", str(directory)])
    assert refused.exit_code == 2
    assert "process" in refused.stderr
    world.store.close()
    assert run(app, ["disk", "clear", str(directory), "--shred"]).exit_code == 0
    assert not directory.exists() or list(directory.iterdir()) == []


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    for command in ("inspect", "verify", "clear"):
        result = run(app, ["disk", command, str(tmp_path)])
        assert result.exit_code == 2
        assert result.stderr.startswith("kvarter: ")
    assert (tmp_path / "letters.txt").read_text() == "dear"

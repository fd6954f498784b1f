"""The commands that look into a node that runs."""

import configparser
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvarter.cli.main import app
from kvarter.errors import AttachError
from kvarter.node import Node
from kvarter.store import Store
from looking_words import BLOCK, Engine, Served, sequence

LENGTH_AT = 72  # of a slot's payload, in its record (csrc/include/kvarter/record.h)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    served = Served(tmp_path_factory.mktemp("looking"), "--dram", "16MiB")
    yield served
    assert served.end() == 0


@pytest.fixture
def engine(node: Served) -> Iterator[Engine]:
    engine = Engine(node.path, "llama-0")
    yield engine
    engine.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_status_says_what_is_there_for_whom_and_how_long_calls_took(node: Served, engine: Engine) -> None:
    assert engine.put(sequence(0, 10), range(10)) == 10
    report = json.loads(run("status", "--socket", node.path, "--json").stdout)
    assert report["pid"] == node.process.pid
    assert report["pool"]["capacity"] == sum(
        nbytes for state, nbytes in report["pool"].items() if state not in ("capacity", "pages")
    )
    assert [(e["name"], e["session"]) for e in report["engines"]] == [("llama-0", True)]
    assert [space["blocks"] for space in report["namespaces"]] == [10]
    assert sum(report["calls"]["reserve"][0]) == 1
    shown = run("status", "--socket", node.path)
    assert shown.exit_code == 0
    for word in (
        "llama-0",
        report["namespaces"][0]["digest"][:16],
        "dram",
        "reserve",
        "complete",
        "up 0 h 00 min",
    ):
        assert word in shown.stdout


def test_top_shows_rates_of_an_interval(node: Served, engine: Engine) -> None:
    shown = run("top", "--socket", node.path, "--once", "--seconds", "0.1")
    assert shown.exit_code == 0
    assert "a second: calls" in shown.stdout
    assert "llama-0" in shown.stdout


def test_audit_finds_nothing_in_a_node_that_is_well(node: Served, engine: Engine) -> None:
    engine.put(sequence(10_000, 10), range(10))
    shown = run("audit", "--socket", node.path)
    assert (shown.exit_code, shown.stderr) == (0, "")
    assert json.loads(run("audit", "--socket", node.path, "--json").stdout)["findings"] == []


def test_an_audit_with_findings_fails(tmp_path: Path) -> None:
    """A node in this process, in whose memory the length of a block's slot is overwritten."""
    served = Node(Store(4 << 20), str(tmp_path / "k" / "node.sock"))
    engine = Engine(served.path, "e")
    seq = sequence(0, 1)
    assert engine.put(seq, range(1)) == 1
    records, size = served.store.index.memfds[0]
    at = os.pread(records, size, 0).index(seq.digests[0].tobytes()) + LENGTH_AT
    assert struct.unpack("<Q", os.pread(records, 8, at)) == (BLOCK,)
    os.pwrite(records, struct.pack("<Q", 0), at)
    result = run("audit", "--socket", served.path)
    os.pwrite(records, struct.pack("<Q", BLOCK), at)
    engine.close()
    served.close()
    assert result.exit_code == 1
    assert re.search(rf"entry \d+: bytes: counted 0, booked {BLOCK}", result.stdout)
    assert result.stderr == "kvarter: the audit has findings: what fails its check is never served\n"


def test_invalidate_ends_the_namespace_that_is_meant_and_no_other(node: Served, engine: Engine) -> None:
    seq = sequence(20_000, 10)
    engine.put(seq, range(10))
    digest = seq.namespace.digest().hex()
    none = run("invalidate", "zzzz", "--socket", node.path)
    assert none.exit_code == 2
    assert none.stderr == f"kvarter: 0 namespaces begin with 'zzzz'; open here: {digest[:16]}\n"
    assert engine.store.match(seq).tokens > 0
    done = run("invalidate", digest[:5], "--socket", node.path)
    assert (done.exit_code, done.stdout) == (0, f"{digest} is invalid from now on\n")
    assert engine.store.match(seq).tokens == 0


def test_a_drained_node_lets_nobody_in_and_serves_those_who_are(tmp_path: Path) -> None:
    served = Served(tmp_path, "--dram", "4MiB")
    inside = Engine(served.path, "inside")
    done = run("drain", "--socket", served.path)
    assert (done.exit_code, done.stdout) == (0, "draining: 1 engines are still here\n")
    with pytest.raises(AttachError, match="the node is draining and lets nobody in"):
        Engine(served.path, "outside")
    assert inside.put(sequence(0, 5), range(5)) == 5
    assert ", draining;" in run("status", "--socket", served.path).stdout
    inside.close()
    assert served.end() == 0


@pytest.mark.parametrize("command", ["status", "top", "audit", "drain", "invalidate abcd"])
def test_without_a_node_each_command_says_where_it_looked_and_what_to_do(
    command: str, tmp_path: Path
) -> None:
    path = tmp_path / "node.sock"
    result = run(*command.split(), "--socket", str(path))
    assert result.exit_code == 2
    assert result.stderr == (
        f"kvarter: no node listens at {path}: start one with `kvarter serve`, or say where with --socket\n"
    )


def test_a_node_that_was_killed_is_said_to_be_gone(tmp_path: Path) -> None:
    served = Served(tmp_path, "--dram", "4MiB")
    served.process.kill()
    served.process.wait()
    result = run("status", "--socket", served.path)
    assert result.exit_code == 2
    assert served.path in result.stderr
    assert "Connection refused" in result.stderr
    assert "kvarter serve" in result.stderr


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = run("unit").stdout
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(unit)
    service = parsed["Service"]
    assert service["Type"] == "notify"
    assert int(service["FileDescriptorStoreMax"]) >= 512 + 1  # payload arenas, and the records
    assert service["ExecStart"].startswith(f"{sys.executable} -m kvarter.cli.main serve ")
    if (analyze := shutil.which("systemd-analyze")) is None:
        return
    file = tmp_path / "kvarter@.service"
    file.write_text(unit)
    checked = subprocess.run(
        [analyze, "verify", "--man=no", str(file)], capture_output=True, text=True, timeout=60
    )
    ours = [line for line in (checked.stdout + checked.stderr).splitlines() if "kvarter" in line]
    assert (checked.returncode, ours) == (0, [])


def test_the_unit_starts_a_node_where_it_says(tmp_path: Path) -> None:
    """Its ExecStart, with what systemd would put in place of its specifiers."""
    line = next(line for line in run("unit").stdout.splitlines() if line.startswith("ExecStart="))
    command = line.removeprefix("ExecStart=").replace("%t", str(tmp_path)).replace("%i", "me").split()
    (tmp_path / "kvarter").mkdir()
    process = subprocess.Popen([*command, "--dram", "4MiB"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("is served at" in line for line in process.stderr)
    assert run("status", "--socket", str(tmp_path / "kvarter" / "me" / "node.sock")).exit_code == 0
    process.terminate()
    assert process.wait(60) == 0
    process.stderr.close()

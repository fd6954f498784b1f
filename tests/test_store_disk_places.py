"""The store over a disk as others leave it: full, refused by the kernel's filters, with few rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_words import BLOCK, FORBID_URING, MIB, SEGMENT, du, exact, keep, served, worlds
from kvarter.config import Config
from kvarter.errors import ConfigError
from words import World, full

FILE_SYSTEM = 64 * MIB
MOST = 60 * MIB  # more than fits beside the file system's own


def tried(*command: str) -> str:
    """Why a command could not be run; empty when it was."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else f"{command[0]}: {done.stderr.strip()}"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB: ext4 in a file, or where no loop device can be had a tmpfs."""
    where, image = tmp_path / "small", tmp_path / "image"
    where.mkdir()
    with image.open("wb") as file:
        file.truncate(FILE_SYSTEM)
    refused = tried("mkfs.ext4", "-q", "-m", "0", str(image)) or tried(
        "mount", "-o", "loop", str(image), str(where)
    )
    if refused:
        more = tried("mount", "-t", "tmpfs", "-o", f"size={FILE_SYSTEM}", "kvarter", str(where))
        if more:
            pytest.skip(f"no small file system can be mounted: {refused}; {more}")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def available(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize


def test_a_file_system_that_is_full_stops_growth_and_nothing_else(small: Path) -> None:
    (small / "others").write_bytes(bytes(30 * MIB))
    with worlds(small / "log") as make:
        world = make(full(BLOCK), capacity=MOST, admit_all=True)
        for number in range(70):  # 35 MiB
            keep(world, number)
            assert served(world, number) == (8, 0)
        assert available(small) < SEGMENT
        ledger = world.store.disk.log.ledger()
        assert ledger["capacity"] < MOST  # what the files have
        assert du(small / "log") <= ledger["capacity"]
        counts = world.store.disk.stats()
        assert counts["reasons"]["evicted"] > 0
        assert counts["reasons"]["no_space"] == counts["io_errors"] == 0
        assert served(world, 62) == (8, 8)
        assert world.store.disk.log.audit() == []
        assert exact(world)
        world.store.close()

        again = make(full(BLOCK), capacity=MOST)
        assert served(again, 69) == (8, 8)
        assert exact(again)


FILLER = """
import sys
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(bytes(256 << 10))
"""


@pytest.mark.parametrize("device", ["io_uring", "threads"])
def test_another_process_that_fills_the_disk_stops_growth_until_it_leaves(small: Path, device: str) -> None:
    with worlds(small / "log") as make:
        world = make(full(BLOCK), capacity=MOST, admit_all=True, device=device)
        number = 24  # 12 MiB
        for text in range(number):
            keep(world, text)
        filler = subprocess.Popen(
            [sys.executable, "-c", FILLER, str(small / "others")], stderr=subprocess.PIPE, text=True
        )
        while filler.poll() is None or number < 32:
            keep(world, number)
            assert served(world, max(0, number - 7))[0] in range(9)
            number += 1
        assert "No space left" in filler.communicate()[1]
        for _ in range(80):
            number += 1
            keep(world, number)
        assert served(world, number - 7) == (8, 8)
        assert world.store.disk.log.ledger()["capacity"] < FILE_SYSTEM // 2
        assert world.store.disk.log.audit() == []
        world.store.close()

        again = make(full(BLOCK), capacity=MOST, admit_all=True, device=device)  # nothing is free at all
        assert served(again, number) == (8, 8)
        keep(again, number + 1)
        (small / "others").unlink()
        again.clock.advance(6)
        number += 1
        for _ in range(80):
            number += 1
            keep(again, number)
        ledger = again.store.disk.log.ledger()
        assert ledger["capacity"] > FILE_SYSTEM // 2
        assert du(small / "log") > FILE_SYSTEM // 2
        assert served(again, number - 40) == (8, 8)
        assert again.store.disk.log.audit() == []
        assert exact(again)


# Serves what the test stored, stores what the test is to find, and says which device it had.
CHILD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from disk_words import *
from words import World, full
with worlds(Path(sys.argv[2])) as make:
    world = make(full(BLOCK), device="auto")
    assert served(world, 1) == (8, 8)
    keep(world, 2)
    print(world.store.disk.log.device)
"""


def child_serves(tmp_path: Path, before: str, *launcher: str) -> str:
    """The device of a child process, whose store served what ours left, and left what ours serves."""
    with worlds(tmp_path / "log") as make:
        world = make(full(BLOCK))
        keep(world, 1)
        world.store.close()
        command = [*launcher, sys.executable, "-c", before + CHILD, str(Path(__file__).parent)]
        done = subprocess.run(
            [*command, str(tmp_path / "log")], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        after = make(full(BLOCK))
        assert [served(after, number) for number in (1, 2)] == [(8, 8), (8, 8)]
    return done.stdout.strip()


def test_the_same_bytes_are_served_without_the_right_to_lock_memory(tmp_path: Path) -> None:
    bare = """
import resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (64 << 10, 64 << 10))
status = open("/proc/self/status").read()
assert not int(status.split("CapEff:")[1].split()[0], 16) >> 14 & 1, "CAP_IPC_LOCK"
"""
    drop = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock") if os.geteuid() == 0 else ()
    device = child_serves(tmp_path, bare, *drop)
    assert device == "io_uring" or device.startswith("threads (io_uring: ")


def test_the_same_bytes_are_served_where_io_uring_is_forbidden(tmp_path: Path) -> None:
    device = child_serves(tmp_path, FORBID_URING)
    assert device.startswith("threads (io_uring: the kernel refuses it: Operation not permitted"), device


def test_no_place_for_a_log_is_an_error_at_start_and_leaves_the_disk_as_it_was(small: Path) -> None:
    (small / "log").mkdir()
    with (small / "others").open("wb") as file:
        for piece in (256 << 10, 4 << 10):  # ext4 gives more than it says is there
            size = 0
            with pytest.raises(OSError, match="No space"):
                while True:
                    os.posix_fallocate(file.fileno(), size, piece)
                    size += piece
    with worlds(small / "log") as make, pytest.raises(ConfigError, match=r"manifest .* cannot be written"):
        make(full(BLOCK), capacity=MOST)
    assert {file.name for file in (small / "log").iterdir()} <= {"LOCK"}


def test_ranks_of_one_host_share_the_capacity_and_never_a_block(tmp_path: Path) -> None:
    config = Config.load({"disk": {"path": str(tmp_path), "capacity": "32MiB", "segment": "1MiB"}})
    ranks = [World(full(BLOCK), disk=config.disk_options(rank, 2)) for rank in range(2)]
    assert {path.name for path in tmp_path.iterdir()} == {"dp0", "dp1"}
    for number in range(40):  # more than a share
        keep(ranks[0], number)
    assert du(tmp_path / "dp0") <= 16 * MIB
    assert served(ranks[0], 39) == (8, 0)
    assert served(ranks[1], 39) == (0, 0)
    keep(ranks[1], 39)
    for rank in ranks:
        assert exact(rank)
        rank.store.close()
    with pytest.raises(ConfigError, match=r"holds dp\d"):  # a rank by itself would want the whole
        World(full(BLOCK), disk=config.disk_options())


def test_a_directory_that_disappears_is_a_slower_cache(tmp_path: Path) -> None:
    with worlds(tmp_path / "log") as make:
        world = make(full(BLOCK), admit_all=True)
        keep(world, 1)
        shutil.rmtree(tmp_path / "log")
        for number in range(2, 40):  # more than memory holds, and than the files that are still open
            keep(world, number)
            assert served(world, number)[0] == 8
        assert served(world, 1)[0] in (0, 8)
        assert world.store.disk.log.audit() == []

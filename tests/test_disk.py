"""The disk log through its bindings, on the real file system."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from disk_words import FORBID_URING, du
from kvarter import _core

BLOCK = 64 << 10
SEGMENT = 4 << 20
NS = bytes([1]) * 32
SHAPES = [(1, 1, True, [BLOCK])]
DEVICES = ["io_uring", "threads"]


def text(seed: int, units: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (units, 32), dtype=np.uint8)


def words(digest: np.ndarray) -> np.ndarray:
    """What the block of this digest holds."""
    return np.random.default_rng(int(digest[:8].view(np.uint64)[0])).integers(
        0, 2**63, BLOCK // 8, dtype=np.uint64
    )


class World:
    """A log, a pool of slots, and the blocks of texts."""

    def __init__(self, path: Path, device: str = "threads", slots: int = 64, **options: object) -> None:
        self.pool = _core.Pool(slots * BLOCK, slots * BLOCK, populate=False)
        self.clock = _core.SteadyClock()
        self.path, self.device = path, device
        self.options = {"segment_bytes": SEGMENT, "capacity": 8 * SEGMENT + (1 << 20), **options}
        self.bytes = np.memmap(f"/proc/self/fd/{self.pool.arenas[0][0]}", np.uint8, "r+")
        self.open()

    def open(self) -> None:
        self.log = _core.DiskLog(str(self.path), self.pool, self.clock, device=self.device, **self.options)
        self.ns = self.log.open_namespace(NS, SHAPES)

    def chain(self, digests: np.ndarray) -> _core.Chain:
        return _core.Chain(self.ns, digests)

    def slots(self, count: int) -> np.ndarray:
        slots = np.zeros(count, _core.SLOT_DTYPE)
        slots["offset"] = np.arange(count) * BLOCK
        slots["length"] = BLOCK
        return slots

    def finish(self, ticket: int) -> tuple[np.ndarray, ...]:
        assert ticket
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for number, *rest in self.log.poll():
                if number == ticket:
                    return tuple(rest)
            self.log.wait(0.1)
        raise AssertionError("the ticket never ends")

    def write(self, digests: np.ndarray) -> np.ndarray:
        slots = self.slots(len(digests))
        for i, digest in enumerate(digests):
            payload = words(digest).view(np.uint8)
            self.bytes[i * BLOCK : (i + 1) * BLOCK] = payload
            slots["checksum"][i] = _core.xxh3_64(payload)
        return self.finish(self.log.write(self.chain(digests), [(0, 0, len(digests))], slots))[0]

    def read(self, digests: np.ndarray) -> np.ndarray:
        """The statuses; what is Ok has its bytes."""
        self.bytes[:] = 0
        slots = self.slots(len(digests))
        status, *_ = self.finish(self.log.read(self.chain(digests), [(0, 0, len(digests))], slots))
        for i in np.flatnonzero(status == _core.Status.Ok):
            assert np.array_equal(self.bytes[i * BLOCK : (i + 1) * BLOCK].view(np.uint64), words(digests[i]))
        return status

    def flush(self) -> None:
        assert self.finish(self.log.flush())[0][0] == _core.Status.Ok

    def leading(self, digests: np.ndarray) -> int:
        return self.log.leading(self.chain(digests), 0, 0, len(digests))


@pytest.fixture(params=DEVICES)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "disk", request.param)
    yield world
    world.log.close()


def test_blocks_survive_a_restart_and_the_directory_never_outgrows_its_capacity(world: World) -> None:
    texts = [text(seed, 40) for seed in range(30)]
    for digests in texts:
        assert not (world.write(digests) == _core.Status.Rejected).any()
        assert du(world.path) <= world.options["capacity"]
    assert world.leading(texts[-1]) == 40
    assert (world.read(texts[-1]) == _core.Status.Ok).all()
    assert world.log.counters()["reasons"]["evicted"] > 100
    assert world.log.audit() == []
    world.flush()
    there = [world.leading(digests) for digests in texts]
    world.log.close()
    assert du(world.path) <= world.options["capacity"]
    world.open()
    assert [world.leading(digests) >= n for digests, n in zip(texts, there, strict=True)]
    assert (world.read(texts[-1]) == _core.Status.Ok).all()
    assert world.log.audit() == []


def test_files_are_the_owners_alone(world: World) -> None:
    world.write(text(1, 4))
    world.log.close()
    assert world.path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in world.path.iterdir()} == {0o600}


def test_a_second_opener_is_told_who_has_it(world: World) -> None:
    with pytest.raises(RuntimeError, match=f"in use by process {os.getpid()}"):
        World(world.path)
    assert _core.disk_inspect(str(world.path))["owner"] == os.getpid()
    with pytest.raises(RuntimeError, match="in use by process"):
        _core.disk_clear(str(world.path))


def test_a_directory_of_something_else_is_refused_and_left_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(RuntimeError, match=r"thesis\.tex"):
        World(tmp_path)
    with pytest.raises(RuntimeError, match="no manifest"):
        _core.disk_clear(str(tmp_path), shred=True)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_inspect_verify_and_clear(world: World) -> None:
    world.write(text(1, 40))
    world.write(text(2, 40))
    world.flush()
    world.log.close()
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in world.path.iterdir()}
    seen = _core.disk_inspect(str(world.path))
    assert (seen["blocks"], seen["bytes"], seen["owner"], seen["findings"]) == (80, 80 * BLOCK, 0, [])
    assert _core.disk_verify(str(world.path))["verified"] == 80
    assert before == {
        file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in world.path.iterdir()
    }
    with (world.path / "segment-00000000").open("r+b") as file:
        file.seek(SEGMENT // 2)
        file.write(b"rot")
    assert _core.disk_verify(str(world.path))["corrupt"] == 1
    (world.path / "mine.txt").write_text("kept")
    assert _core.disk_clear(str(world.path), shred=True) >= 2 * SEGMENT
    assert [file.name for file in world.path.iterdir()] == ["mine.txt"]


def test_a_directory_that_disappears_fails_cleanly(world: World) -> None:
    world.write(text(1, 4))
    while world.path.exists():  # the log may be naming its next segment
        shutil.rmtree(world.path, ignore_errors=True)
    for seed in range(2, 12):
        world.write(text(seed, 40))
    world.read(text(1, 4))
    assert world.log.audit() == []


def test_threads_take_over_where_io_uring_is_forbidden(tmp_path: Path) -> None:
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from pathlib import Path
        from test_disk import World, text, _core
        world = World(Path({str(tmp_path / "disk")!r}), "auto")
        assert world.log.device.startswith("threads (io_uring: the kernel refuses it"), world.log.device
        assert (world.write(text(1, 8)) == 0).all() and (world.read(text(1, 8)) == 0).all()
        world.log.close()
        try:
            World(Path({str(tmp_path / "disk")!r}), "io_uring")
        except RuntimeError as refused:
            assert "io_uring" in str(refused)
        else:
            raise AssertionError("io_uring was not refused")
    """
    subprocess.run([sys.executable, "-c", FORBID_URING + textwrap.dedent(program)], check=True, timeout=60)


WRITER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_disk import World, text
world = World(Path({path!r}), {device!r}, sync_seconds=0.01)
for seed in range(10**6):
    world.write(text(seed, 40))
    world.flush()
    print(seed, flush=True)
"""


@pytest.mark.parametrize("device", DEVICES)
def test_what_a_killed_process_was_told_is_durable_is_there(tmp_path: Path, device: str) -> None:
    path = tmp_path / "disk"
    program = WRITER.format(tests=str(Path(__file__).parent), path=str(path), device=device)
    rounds = np.random.default_rng(5).uniform(0.1, 0.6, 3)
    for pause in rounds:
        last = int(killed(program, pause)[-1])
        world = World(path, device)
        assert world.leading(text(last, 40)) == 40
        for seed in range(max(0, last - 20), last + 2):
            assert not (world.read(text(seed, 40)) == _core.Status.Corrupt).any()
        assert world.log.audit() == []
        world.log.close()


FORGETTER = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from kvarter import _core
from test_disk import NS, SHAPES, World, text
world = World(Path({path!r}), {device!r}, sync_seconds=0.01)
for seed in range(10**6):
    world.write(text(seed, 4))
    world.flush()
    if seed % 4 == 3:
        assert world.finish(world.log.invalidate(world.ns))[0][0] == _core.Status.Ok
        world.ns = world.log.open_namespace(NS, SHAPES)
        print(seed, flush=True)
"""


@pytest.mark.parametrize("device", DEVICES)
def test_what_was_invalidated_before_a_process_was_killed_never_returns(tmp_path: Path, device: str) -> None:
    path = tmp_path / "disk"
    program = FORGETTER.format(tests=str(Path(__file__).parent), path=str(path), device=device)
    for pause in (0.05, 0.2):
        last = int(killed(program, pause)[-1])
        world = World(path, device)
        assert [world.leading(text(seed, 4)) for seed in range(last + 1)] == [0] * (last + 1)
        assert world.log.audit() == []
        world.log.close()


def killed(program: str, pause: float) -> list[str]:
    """The whole lines that a process printed until it was killed, that long after the first."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    time.sleep(pause)
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.readlines()
    process.stdout.close()
    process.wait()
    return [line for line in lines if line.endswith("\n")]


def test_another_process_has_the_directory_until_it_ends(tmp_path: Path) -> None:
    program = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_disk import World, text
world = World(Path({path!r}))
world.write(text(1, 8))
world.flush()
print("open", flush=True)
sys.stdin.read()
""".format(tests=str(Path(__file__).parent), path=str(tmp_path / "disk"))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        other.send_signal(signal.SIGSTOP)  # so that its own threads change nothing
        os.waitpid(other.pid, os.WUNTRACED)
        before = {file.name: file.read_bytes() for file in (tmp_path / "disk").iterdir()}
        with pytest.raises(RuntimeError, match=f"in use by process {other.pid}"):
            World(tmp_path / "disk")
        assert {file.name: file.read_bytes() for file in (tmp_path / "disk").iterdir()} == before
        other.kill()
    world = World(tmp_path / "disk")
    assert (world.read(text(1, 8)) == _core.Status.Ok).all()
    world.log.close()


def test_a_small_file_system_stops_growth_and_nothing_else(tmp_path: Path) -> None:
    """The reserve stands for a disk that others fill."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    world = World(tmp_path / "disk", reserve_bytes=free + (1 << 40))
    assert (world.write(text(1, 4)) == _core.Status.Rejected).all()
    assert world.log.counters()["reasons"]["no_space"] == 1
    assert world.log.ledger()["capacity"] < SEGMENT
    assert world.log.audit() == []


def test_misuse_is_told_at_once(tmp_path: Path) -> None:
    world = World(tmp_path / "disk")
    digests = text(1, 4)
    with pytest.raises(ValueError, match=r"4 shards.* 3 spans"):
        world.log.write(world.chain(digests), [(0, 0, 4)], world.slots(3))
    outside = world.slots(1)
    outside["offset"] = 1 << 40
    with pytest.raises(ValueError, match="not in the pool"):
        world.log.read(world.chain(digests), [(0, 0, 1)], outside)
    with pytest.raises(ValueError, match="none of number 3"):
        world.log.leading(world.chain(digests), 3, 0, 4)
    with pytest.raises(ValueError, match="not open"):
        world.log.invalidate(77)
    with pytest.raises(ValueError, match="at least 2 segments"):
        World(tmp_path / "small", capacity=SEGMENT)
    with pytest.raises(ValueError, match="bytes of memory"):
        World(tmp_path / "large", max_index_bytes=1)
    with pytest.raises(ValueError, match="device"):
        World(tmp_path / "odd", "floppy")
    world.log.close()
    world.log.close()
    with pytest.raises(ValueError, match="closed"):
        world.log.poll()


def test_memory_that_somebody_lends_is_read_and_written_in_place(tmp_path: Path) -> None:
    lent = mmap.mmap(-1, 16 * BLOCK)
    arena = _core.ForeignArena(lent)
    log = _core.DiskLog(
        str(tmp_path), arena, _core.SteadyClock(), 4 * SEGMENT, segment_bytes=SEGMENT, max_dropped=2
    )
    chain = _core.Chain(log.open_namespace(NS, [(1, 1, False, [BLOCK])]), text(9, 4))
    slots = np.zeros(4, _core.SLOT_DTYPE)
    slots["offset"], slots["length"] = np.arange(4) * BLOCK, BLOCK
    data = np.random.default_rng(9).bytes(4 * BLOCK)
    lent[: 4 * BLOCK] = data
    slots["checksum"] = arena.checksums(slots)
    assert [int(s) for s in slots["checksum"]] == [
        _core.xxh3_64(data[i * BLOCK : (i + 1) * BLOCK]) for i in range(4)
    ]
    for call in (log.write, log.read):
        ticket = call(chain, [(0, 0, 4)], slots)
        while not (done := [one for one in log.poll() if one[0] == ticket]):
            log.wait(1.0)
        assert (done[0][1] == _core.Status.Ok).all()
        slots["offset"] += 8 * BLOCK
    assert lent[8 * BLOCK : 12 * BLOCK] == data
    log.remove(chain, 0, 0, 4)
    assert log.dropped() == [
        (0, 0, 0, bytes(row), _core.DISK_REASONS.index("removed"))
        for row in text(9, 4)[2:]  # the latest
    ]
    assert log.dropped() == []
    for offset in (100, 16 * BLOCK):
        slots["offset"][0] = offset
        with pytest.raises(ValueError, match="not in the pool, or not at a page"):
            log.read(chain, [(0, 0, 4)], slots)
    with pytest.raises(ValueError, match="1 disk logs still use the foreign arena"):
        arena.close()
    log.close()
    arena.close()
    lent.close()
    with mmap.mmap(-1, 2 * mmap.PAGESIZE) as two:
        with pytest.raises(ValueError, match="of 4096 bytes that begins 8 bytes into a page"):
            _core.ForeignArena(memoryview(two)[8 : 8 + mmap.PAGESIZE])
        with pytest.raises(TypeError, match="expected a writable contiguous buffer"):
            _core.ForeignArena(bytes(mmap.PAGESIZE))

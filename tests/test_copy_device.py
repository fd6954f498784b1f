"""Copies between a device's memory and the pool: with a driver without a card, and on a card where there is one."""

import importlib.metadata
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import xxhash

from kvarter import _core
from kvarter.errors import ConfigError
from kvarter.observe import Level
from kvarter.observe import cuda as probe

Status = _core.Status
FOREVER = 3600.0

# One rank's blocks of models people serve: for each group, (layers, bytes of a layer's segment, segments in a layer).
GEOMETRIES = {
    "llama-8b, 16 tokens, K and V of 8 heads apart": [(32, 16 * 128 * 2, 16)],
    "gpt-oss-120b, full and window": [(18, 16 * 8 * 64 * 2 * 2, 1), (18, 16 * 8 * 64 * 2 * 2, 1)],
    "deepseek-v3.2, latent and indexer": [(61, 64 * 656, 1), (61, 64 * 132, 1)],
    "deepseek-v4-pro, compressed and states": [(30, 64 * 584, 1), (31, 2 * 584, 1), (30, 16 << 10, 1)],
    "kimi-linear, state and latent": [(20, (2 << 20) + (72 << 10), 1), (7, 64 * 1152, 1)],
    "qwen3-next, state and full": [(36, (2 << 20) + (48 << 10), 1), (12, 16 * 2 * 256 * 2 * 2, 1)],
    "minimax-m3, K and V and sparse index": [(60, 16 * 1024, 1), (57, 16 * 128, 1)],
}


class Place:
    """A device with an engine's blocks, and a pool for them."""

    def __init__(self, driver, groups, blocks=4, kernel_below=0):
        self.engine = _core.CudaCopyEngine(0, driver=driver, kernel_below=kernel_below)
        self.card = _core._bench.Card(0, driver)
        self.count, self.groups, self.blocks, self.content, self.slots = blocks, groups, [], [], []
        random, offset = np.random.default_rng(1), 0
        self.padding = 64
        nbytes = sum(layers * size * segments for layers, size, segments in groups)
        self.pool = _core.Pool(-(-blocks * nbytes // (2 << 20)) * (2 << 20), 1 << 30, False)
        self.mapping = _core.Mapping([(fd, size, 0, n) for n, (fd, size) in enumerate(self.pool.arenas)])
        self.refused = self.engine.prepare(self.mapping)
        memory = self.mapping.payload(0)
        self.tensors = []
        for layers, size, segments in groups:
            stride = segments * size + self.padding
            regions = []
            for _ in range(layers):
                content = random.integers(0, 256, (blocks, stride), np.uint8)
                at = self.card.allocate(content.nbytes)
                self.card.write(at, content.reshape(-1))
                self.tensors.append((at, content))
                regions.append((at, stride, size, segments, size))
            self.blocks.append(_core.Blocks(regions, blocks))
            block = layers * size * segments
            self.slots.append(memory[offset : offset + blocks * block].reshape(blocks, block))
            own = self.tensors[-layers:]
            self.content.append(np.concatenate([c[:, : segments * size] for _, c in own], axis=1))
            offset += blocks * block

    def run(self, direction, group, checksums=None):
        slots = np.array([slot.ctypes.data for slot in self.slots[group]], np.uint64)
        ticket = self.engine.submit(
            direction, self.blocks[group], np.arange(self.count), slots, checksums, compute=0
        )
        assert self.engine.wait(ticket, FOREVER)
        return self.engine.take(ticket)

    def check_both_ways(self):
        """Every byte out and back, padding untouched."""
        for group, content in enumerate(self.content):
            statuses, sums = self.run("gather", group)
            assert (statuses == Status.Ok).all()
            assert (self.slots[group] == content).all()
            assert list(sums) == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in content]
        for at, content in self.tensors:
            self.card.write(at, np.full(content.size, 0xEE, np.uint8))
        for group, _ in enumerate(self.content):
            sums = np.array([xxhash.xxh3_64_intdigest(s.tobytes()) for s in self.slots[group]], np.uint64)
            assert (self.run("scatter", group, sums)[0] == Status.Ok).all()
        for at, content in self.tensors:
            there = self.card.read(at, content.size).reshape(content.shape)
            assert (there[:, : -self.padding] == content[:, : -self.padding]).all()
            assert (there[:, -self.padding :] == 0xEE).all()

    def close(self):
        for at, _ in self.tensors:
            self.card.release(at)


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.gpu)], ids=["fake", "card"])
def driver(request):
    """The path of a driver: the fake one's, or that of the card which is here."""
    return "" if request.param else request.getfixturevalue("fake").path


@pytest.mark.parametrize("model", GEOMETRIES)
@pytest.mark.parametrize("below", [0, 1 << 30], ids=["engines", "kernel"])
def test_every_byte_of_every_geometry_arrives_both_ways(driver, model, below):
    # Many blocks where they are small, as few as two where a state has megabytes.
    nbytes = sum(layers * size * segments for layers, size, segments in GEOMETRIES[model])
    place = Place(driver, GEOMETRIES[model], max(2, min(24, (8 << 20) // nbytes)), below)
    assert place.refused == []
    place.check_both_ways()
    account = place.engine.account()
    assert account["errors"] == account["single_bytes"] == 0
    assert bool(account["kernel_bytes"]) == bool(below)
    place.close()


@pytest.mark.parametrize("threads", [1, 4])
def test_every_number_of_threads_copies_alike(driver, threads):
    place = Place(driver, [(4, 4096, 2)], 6)
    place.engine = _core.CudaCopyEngine(0, driver=driver, threads=threads)
    place.check_both_ways()  # to slots that are not locked for this engine
    assert place.engine.account()["single_bytes"] > 0
    place.close()


def test_what_the_kernel_is_faster_for_is_measured(driver):
    place = Place(driver, [(2, 4096, 1)], kernel_below=-1)
    account = place.engine.account()
    for direction in ("gather_kernel", "scatter_kernel"):
        assert account[direction] == 0 or account[direction].bit_count() == 1
    assert account["locked_bytes"] == place.mapping.payload(0).nbytes
    place.check_both_ways()
    place.close()


def test_memory_that_the_driver_refuses_to_lock_is_said_with_numbers(fake):
    fake.set_lock_limit(1 << 20)
    place = Place(fake.path, [(2, 4096, 1)])
    (refused,) = place.refused
    assert refused.startswith(
        "page-locking 2097152 bytes of the pool answered CUDA_ERROR_OUT_OF_MEMORY (2); ulimit"
    )
    assert place.engine.account()["refused_bytes"] == 2 << 20
    place.check_both_ways()


def test_what_an_engine_locked_and_made_goes_with_it(fake):
    place = Place(fake.path, [(2, 4096, 1)])
    place.check_both_ways()
    place.close()
    assert fake.count("locked") == 2 << 20
    del place
    for what in ("locked", "contexts", "events", "allocations"):
        assert fake.count(what) == 0, what


def test_an_order_for_a_ticket_that_never_was_is_refused(fake):
    engine = _core.CudaCopyEngine(0, driver=fake.path)
    with pytest.raises(ValueError, match="ticket 99 is unknown or was taken; the last is 0"):
        engine.order(99, 0, 0.0)


def test_a_driver_or_device_that_is_not_there_is_refused_with_what_was_found(fake):
    with pytest.raises(RuntimeError, match="no CUDA driver: /nowhere/libcuda"):
        _core.CudaCopyEngine(0, driver="/nowhere/libcuda.so.1")
    with pytest.raises(RuntimeError, match="device 7 is asked for, and the driver has 2"):
        _core.CudaCopyEngine(7, driver=fake.path)
    with pytest.raises(ValueError, match="found 0 threads, expected at least 1"):
        _core.CudaCopyEngine(0, driver=fake.path, threads=0)


def test_doctor_says_what_the_driver_offers(fake, nothing_set, monkeypatch):
    monkeypatch.setenv("KVARTER_CUDA__DRIVER", fake.path)
    finding = probe.cuda()
    assert (finding.level, finding.found) == (
        Level.OK,
        "driver of CUDA 13.0, 0 Fake 0, 1 Fake 1, copies in batches",
    )
    monkeypatch.setenv("KVARTER_CUDA__DRIVER", "/nowhere/libcuda.so.1")
    finding = probe.cuda()
    assert finding.level is Level.PROBLEM
    assert finding.found.startswith("no CUDA driver: /nowhere/libcuda.so.1")


def test_settings_of_the_copy_engine_are_checked(nothing_set):
    from kvarter.config import Config

    assert Config.load({"cuda": {"kernel_below": 4096}}).cuda.kernel_below == 4096
    with pytest.raises(ConfigError, match=r"cuda\.kernel_below=-2"):
        Config.load({"cuda": {"kernel_below": -2}})


PTX = Path(__file__).parent.parent / "csrc" / "copy" / "move.ptx"


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_100"])
def test_the_kernel_assembles(tmp_path, architecture):
    files = importlib.metadata.files("nvidia-cuda-nvcc-cu12") or ()
    (packed,) = [file for file in files if file.match("bin/ptxas")]
    ptxas = shutil.copy(str(packed.locate()), tmp_path)  # pip may install it without the right to run it
    Path(ptxas).chmod(0o700)
    command = [ptxas, f"-arch={architecture}", "--warning-as-error", str(PTX), "-o", str(tmp_path / "cubin")]
    assembled = subprocess.run(command, capture_output=True, text=True)
    assert assembled.returncode == 0, assembled.stderr


def test_the_kernel_needs_no_newer_driver_than_its_card():
    lines = PTX.read_text().splitlines()
    assert ".version 6.4" in lines
    assert ".target sm_75" in lines

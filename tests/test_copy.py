"""Gather and scatter against numpy, and the copy engine's contract as Python sees it."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kvarter import _core

Status = _core.Status
FOREVER = 3600.0


def addresses(rows):
    return np.array([row.ctypes.data for row in rows], np.uint64)


def run(engine, direction, blocks, which, slots, checksums=None, **options):
    ticket = engine.submit(
        direction, blocks, np.array(which, np.int64), addresses(slots), checksums, **options
    )
    assert engine.wait(ticket, FOREVER)
    return engine.take(ticket)


def hashes(slots):
    return np.array([xxhash.xxh3_64_intdigest(slot.tobytes()) for slot in slots], np.uint64)


class Engine:
    """An engine's tensors: `num_blocks` blocks, each a few strided segments with padding between."""

    def __init__(self, num_blocks, shapes, seed=0):
        random = np.random.default_rng(seed)
        self.shapes = shapes
        self.num_blocks = num_blocks
        self.tensors = [
            random.integers(0, 256, (num_blocks, segments, size + padding), np.uint8)
            for segments, size, padding in shapes
        ]
        regions = [
            (t.ctypes.data, t.strides[0], size, segments, t.strides[1])
            for t, (segments, size, _) in zip(self.tensors, shapes, strict=True)
        ]
        self.blocks = _core.Blocks(regions, num_blocks)

    def content(self, block):
        parts = zip(self.tensors, self.shapes, strict=True)
        return np.concatenate([t[block, :, :size].ravel() for t, (_, size, _) in parts])

    def clear(self):
        for tensor, (_, size, _) in zip(self.tensors, self.shapes, strict=True):
            tensor[:, :, :size] = 0

    def slots(self, count):
        return np.zeros((count, self.blocks.bytes), np.uint8)


@pytest.fixture
def engine():
    return Engine(6, [(2, 4096, 64), (3, 576, 0)])


size = st.one_of(st.integers(1, 5000), st.integers(1, 80).map(lambda n: 64 * n))
shape = st.tuples(st.integers(1, 4), size, st.integers(0, 130))


def check_a_round_trip(engine, copier, which):
    slots = engine.slots(len(which))
    before = [tensor.copy() for tensor in engine.tensors]
    statuses, checksums = run(copier, "gather", engine.blocks, which, slots)
    assert (statuses == Status.Ok).all()
    assert all((slot == engine.content(block)).all() for slot, block in zip(slots, which, strict=True))
    assert (checksums == hashes(slots)).all()
    if sorted(which) == list(range(engine.num_blocks)):
        engine.clear()
    statuses, again = run(copier, "scatter", engine.blocks, which, slots, checksums)
    assert (statuses == Status.Ok).all()
    assert (again == checksums).all()
    assert all((now == then).all() for now, then in zip(engine.tensors, before, strict=True))


@given(st.integers(1, 5), st.lists(shape, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_block_gathered_and_scattered_is_the_same_and_its_padding_untouched(num_blocks, shapes, random):
    which = random.sample(range(num_blocks), num_blocks)
    check_a_round_trip(Engine(num_blocks, shapes, random.randrange(99)), _core.HostCopyEngine(), which)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_every_number_of_threads_copies_alike(engine, threads):
    check_a_round_trip(engine, _core.HostCopyEngine(threads), [5, 0, 3, 1, 4, 2])


FORCED = """
import sys
from kvarter import _core
sys.path.insert(0, sys.argv[1])
import test_copy as t
assert _core.copy_kernels() == {"copy": sys.argv[2]}, _core.copy_kernels()
for seed, shapes in enumerate([[(2, 4096, 64)], [(1, 1 << 20, 0)], [(3, 577, 7), (2, 64, 0)], [(1, 256, 0)],
                               [(1, 240, 3)], [(1, 1, 1)], [(5, 1088, 32), (1, 65536, 0)]]):
    t.check_a_round_trip(t.Engine(3, shapes, seed), _core.HostCopyEngine(), [2, 0, 1])
"""


def run_forced(kernel):
    here = os.path.dirname(__file__)  # noqa: PTH120
    environment = os.environ | {"KVARTER_COPY": kernel}
    return subprocess.run(
        [sys.executable, "-c", FORCED, here, kernel], env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("kernel", _core.usable_copy_kernels()["copy"])
def test_every_kernel_this_cpu_has_copies_alike(kernel):
    result = run_forced(kernel)
    assert result.returncode == 0, result.stderr


def test_an_unknown_kernel_is_refused():
    result = run_forced("abacus")
    assert "RuntimeError: KVARTER_COPY is 'abacus', expected a kernel this CPU can run (" in result.stderr


def test_a_scatter_whose_slot_changed_is_corrupt_and_stops_no_other(engine):
    copier = _core.HostCopyEngine()
    slots = engine.slots(3)
    _, checksums = run(copier, "gather", engine.blocks, [0, 1, 2], slots)
    slots[1, 777] ^= 1
    statuses, found = run(copier, "scatter", engine.blocks, [0, 1, 2], slots, checksums)
    assert list(statuses) == [Status.Ok, Status.Corrupt, Status.Ok]
    assert (found == hashes(slots)).all()


def test_a_scatter_without_checksums_compares_nothing(engine):
    slots = engine.slots(2)
    statuses, checksums = run(_core.HostCopyEngine(), "scatter", engine.blocks, [4, 1], slots)
    assert list(statuses) == [Status.Ok, Status.Ok]
    assert list(checksums) == [0, 0]
    assert not engine.content(4).any()


def test_a_gather_without_verify_computes_nothing(engine):
    slots = engine.slots(1)
    _, checksums = run(_core.HostCopyEngine(), "gather", engine.blocks, [2], slots, verify=False)
    assert list(checksums) == [0]
    assert (slots[0] == engine.content(2)).all()


def test_a_block_the_engine_does_not_have_is_rejected(engine):
    slots = engine.slots(3)
    statuses, _ = run(_core.HostCopyEngine(), "gather", engine.blocks, [0, 6, -1], slots)
    assert list(statuses) == [Status.Ok, Status.Rejected, Status.Rejected]
    assert not slots[1:].any()


def test_a_fence_closes_its_epochs_and_no_later_one(engine):
    copier = _core.HostCopyEngine(threads=1)
    slots = engine.slots(1)
    copier.fence(7)
    assert list(run(copier, "gather", engine.blocks, [0], slots, epoch=7)[0]) == [Status.Closed]
    assert not slots.any()
    assert list(run(copier, "gather", engine.blocks, [0], slots, epoch=8)[0]) == [Status.Ok]


def test_submit_does_not_wait_for_a_slow_engine_and_a_fence_ends_it(engine):
    slow = _core.FaultyCopyEngine(_core.HostCopyEngine(), delay=FOREVER)
    slots = engine.slots(2)
    tickets = [slow.submit("gather", engine.blocks, [i], addresses(slots[i : i + 1])) for i in range(2)]
    assert [slow.poll(ticket) for ticket in tickets] == [False, False]
    assert not slow.wait(tickets[0], 0.0)
    waiter = threading.Thread(target=slow.wait, args=(tickets[1], FOREVER))
    waiter.start()
    slow.fence(0)
    waiter.join()
    assert [list(slow.take(ticket)[0]) for ticket in tickets] == [[Status.Closed], [Status.Closed]]
    assert not slots.any()


def test_a_faulty_engine_fails_and_flips_on_command(engine):
    faulty = _core.FaultyCopyEngine(_core.HostCopyEngine(1), fail_every=4, flip_every=3, seed=5)
    slots = engine.slots(6)
    statuses, checksums = run(faulty, "gather", engine.blocks, range(6), slots)
    ok, late = Status.Ok, Status.TimedOut
    assert list(statuses) == [ok, ok, ok, late, ok, ok]
    rotten = [
        not failed and checksum != found
        for failed, checksum, found in zip(statuses, checksums, hashes(slots), strict=True)
    ]
    assert rotten == [False, False, True, False, False, True]
    assert not slots[3].any()


def test_an_engine_goes_away_with_work_queued(engine):
    slow = _core.FaultyCopyEngine(_core.HostCopyEngine(2), delay=FOREVER)
    slots = engine.slots(1)
    for _ in range(5):
        slow.submit("gather", engine.blocks, [0], addresses(slots))
    del slow
    assert not slots.any()


def test_an_empty_batch_is_done(engine):
    statuses, checksums = run(_core.HostCopyEngine(1), "gather", engine.blocks, [], [])
    assert len(statuses) == len(checksums) == 0


def test_blocks_say_what_they_are(engine):
    assert engine.blocks.bytes == 2 * 4096 + 3 * 576
    assert engine.blocks.num_blocks == 6
    assert repr(engine.blocks) == "<Blocks 6 of 9920 bytes in 3 segments>"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda c, b: c.submit("copy", b, [0], [0]), ValueError, "'copy', expected 'gather' or 'scatter'"),
        (
            lambda c, b: c.submit("gather", b, [0], [0, 1]),
            ValueError,
            r"slots has shape \(2,\), expected one value",
        ),
        (lambda c, b: c.submit("gather", b, [[0]], [0]), ValueError, r"engine_blocks has shape \(1, 1\)"),
        (lambda c, b: c.submit("scatter", b, [0], [1], []), ValueError, r"checksums has shape \(0,\)"),
        (lambda c, b: c.submit("gather", b, [0], [1], [1]), ValueError, "a gather computes its checksums"),
        (lambda c, b: c.poll(99), ValueError, "ticket 99 is unknown or was taken; the last is 0"),
        (lambda c, b: c.wait(99, 0.0), ValueError, "ticket 99 is unknown"),
        (lambda c, b: c.take(99), ValueError, "ticket 99 is unknown"),
        (lambda c, b: c.fence(2**64 - 1), ValueError, r"epoch is 2\^64 - 1, expected less"),
        (lambda c, b: _core.Blocks([], 1), ValueError, "found 0 regions, expected at least 1"),
        (
            lambda c, b: _core.Blocks([(64, 8, 16, 1, 16)], 2),
            ValueError,
            "block stride of 8, expected at least",
        ),
        (
            lambda c, b: _core.FaultyCopyEngine(c, fail_status=Status.Ok),
            ValueError,
            "fail_status is Ok, expected",
        ),
        (lambda c, b: _core.FaultyCopyEngine(c, delay=-1.0), ValueError, "delay is -1000000000 ns, expected"),
        (lambda c, b: _core.FaultyCopyEngine(None), ValueError, "found no inner engine"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_was_found_and_expected(engine, call, error, message):
    with pytest.raises(error, match=message):
        call(_core.HostCopyEngine(), engine.blocks)

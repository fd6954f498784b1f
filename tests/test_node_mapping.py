"""What a process that attaches to a pool has of it, with real processes."""

import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attach_words import (  # noqa: F401  fixtures
    LAYOUT,
    Mapper,
    MiB,
    Pool,
    connect,
    granted,
    pool_fixture,
    spawn_fixture,
    until,
)
from kvarter import _core

# Forking beside the node's threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_a_mapper_in_another_process_sees_and_writes_the_same_bytes(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    node = _core.Mapping(pool.exported)
    node.payload(0)[:5] = list(b"hello")
    os.pwrite(pool.fds[1], b"record", 100)
    mapper.attach(pool.path)
    assert mapper.eval("bytes(client.mapping.payload(0)[:5]).decode()") == "hello"
    assert mapper.eval("bytes(client.mapping.records()[100:106]).decode()") == "record"
    mapper.do("client.mapping.payload(0)[4095] = 42")
    assert node.payload(0)[4095] == 42
    until(lambda: pool.server.attached(pool.owner) == 1)
    assert pool.server.mappers(pool.owner) == [mapper.pid]
    assert mapper.eval("client.owner") == pool.owner


def test_payload_is_mapped_at_2_mib_and_left_out_of_forks_and_core_dumps(pool: Pool) -> None:
    mapping = _core.Mapping(pool.exported)
    address = mapping.address(0, 0, 4 * MiB)
    assert address % (2 * MiB) == 0
    entry = Path("/proc/self/smaps").read_text().partition(f"{address:x}-")[2]
    flags = entry.partition("VmFlags:")[2].partition("\n")[0].split()
    assert {"dc", "dd", "wr"} <= set(flags)


def test_records_and_index_views_are_read_only(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT)
    for view in (client.mapping.records(), client.mapping.index()):
        assert not view.flags.writeable
    assert client.mapping.records().size == MiB
    assert client.mapping.index().size == 8192


def test_records_and_index_descriptors_cannot_be_mapped_writable_and_no_file_can_be_resized(
    pool: Pool,
) -> None:
    with connect(pool.path) as connection:
        fds = granted(connection)
        assert len(fds) == 3
        with mmap.mmap(fds[0], MiB) as payload:
            payload[0] = 1
        for fd in fds[1:]:
            with pytest.raises(PermissionError):
                mmap.mmap(fd, 4096)
        for fd in fds:
            with pytest.raises(OSError):
                os.ftruncate(fd, 4096)
            os.close(fd)


def test_addresses_are_bounds_checked_and_the_first_bad_row_is_named(pool: Pool) -> None:
    mapping = _core.Mapping(pool.exported)
    base = mapping.address(0, 0, 0)
    arenas, lengths = np.zeros(3, np.uint32), np.full(3, 4096, np.uint64)
    good = np.array([0, 4096, 4 * MiB - 4096], np.uint64)
    assert mapping.addresses(arenas, good, lengths).tolist() == [base + int(offset) for offset in good]
    with pytest.raises(
        IndexError, match="row 1: arena 0, offset 4190209, length 4096 is outside the arena's 4194304"
    ):
        mapping.addresses(arenas, np.array([0, 4 * MiB - 4095, 2**64 - 1], np.uint64), lengths)
    with pytest.raises(IndexError, match="row 2"):
        mapping.addresses(np.array([0, 0, 1], np.uint32), good, lengths)
    with pytest.raises(IndexError):
        mapping.address(0, 2**64 - 1, 2)
    with pytest.raises(ValueError, match="3, 2 and 3 elements"):
        mapping.addresses(arenas, good[:2], lengths)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ((0, 8 * MiB, 0, 0), "4194304 bytes long, expected at least 8388608"),
        ((0, 0, 0, 0), "more than 0"),
        ((0, MiB, 3, 0), "kind 3, expected 0"),
        ((0, MiB, 0, 512), "payload arena 512, expected below 512"),
        ((0, MiB, 1, 0), "two pool files of kind 1"),
    ],
)
def test_a_pool_that_cannot_be_mapped_is_refused_at_start(
    pool: Pool, change: tuple[int, int, int, int], sentence: str
) -> None:
    exported = [(pool.fds[change[0]], *change[1:]), *pool.exported[1:]]
    with pytest.raises(ValueError, match=sentence):
        _core.NodeServer(pool.path + "2", exported, LAYOUT, pool.listener, 5)


def test_a_pool_of_many_arenas_arrives_whole(pool: Pool) -> None:
    exported = [(pool.fds[0], (1 + arena) * 4096, 0, arena) for arena in range(100)]
    server = _core.NodeServer(pool.path + "2", exported, LAYOUT, pool.listener, 5)
    server.open_engine("e", 1)
    client = _core.NodeClient(server.path, "e", 0, LAYOUT)
    assert [client.mapping.payload(arena).size for arena in range(101)] == [e[1] for e in exported] + [0]
    server.close()

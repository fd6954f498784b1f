"""When a mapper counts as gone, and when a fence is over, with real processes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from attach_words import (  # noqa: F401  fixtures
    LAYOUT,
    Mapper,
    Pool,
    connect,
    pool_fixture,
    spawn_fixture,
    until,
)
from kvarter import _core

# Forking beside the node's threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_a_killed_mapper_is_dead_although_a_forked_child_keeps_its_socket_open(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    child = mapper.eval("os.fork() or __import__('signal').pause()")
    try:
        until(lambda: pool.server.attached(pool.owner) == 1)
        mapper.kill()
        pool.heard("dead", pool.owner, 0)
        assert pool.server.mappers(pool.owner) == []
        os.kill(child, 0)  # the helper is alive and has the socket
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_of_a_mapper_has_no_mapping_and_exits_without_disturbing_it(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT)
    address = client.mapping.address(0, 0, 1)
    child = os.fork()
    if child == 0:
        maps = Path("/proc/self/maps").read_text()
        del client  # must neither hang on the thread that is not here nor unmap what is now elsewhere
        os._exit(1 if f"{address:x}-" in maps else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.connected
    assert client.mapping.payload(0)[0] == 0


def test_a_fence_waits_for_the_copy_that_runs(pool: Pool) -> None:
    fence = _core.ManualFence()
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT, fence)
    pool.server.fence(pool.owner, 5)
    until(lambda: fence.seen() == [5])
    pool.heard_nothing()
    fence.release()
    pool.heard("fenced", pool.owner, 5)
    client.close()


def test_fences_made_while_one_is_open_are_asked_as_one(pool: Pool) -> None:
    fence = _core.ManualFence()
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT, fence)
    pool.server.fence(pool.owner, 1)
    until(lambda: fence.seen() == [1])
    for epoch in (2, 3, 4):
        pool.server.fence(pool.owner, epoch)
    fence.release()
    pool.heard("fenced", pool.owner, 4)
    assert fence.seen() == [1, 4]
    assert pool.listener.events() == [("fenced", pool.owner, 1), ("fenced", pool.owner, 4)]
    pool.server.fence(pool.owner, 2)  # acknowledged long ago
    pool.heard("fenced", pool.owner, 2)
    client.close()


def test_a_fence_of_an_engine_without_mappers_ends_at_once(pool: Pool) -> None:
    pool.server.fence(pool.owner, 9)
    pool.heard("fenced", pool.owner, 9)


def test_a_stopped_mapper_never_acknowledges_and_its_death_ends_the_fence(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    until(lambda: pool.server.attached(pool.owner) == 1)
    mapper.signal(signal.SIGSTOP)
    until(lambda: Path(f"/proc/{mapper.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
    pool.server.fence(pool.owner, 1)
    pool.heard_nothing()
    mapper.kill()
    pool.heard("dead", pool.owner, 0)
    assert pool.listener.events() == [("fenced", pool.owner, 1), ("dead", pool.owner, 0)]


def test_of_two_mappers_one_acknowledges_and_one_dies_and_the_fence_ends(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    first, second = spawn(), spawn()
    first.attach(pool.path, rank=0)
    second.attach(pool.path, rank=1, handler="_core.ManualFence()")
    until(lambda: pool.server.attached(pool.owner) == 2)
    pool.server.fence(pool.owner, 3)
    until(lambda: second.eval("handler.seen()") == [3])
    pool.heard_nothing()
    second.kill()
    pool.heard("fenced", pool.owner, 3)
    assert pool.server.mappers(pool.owner) == [first.pid]
    first.kill()
    pool.heard("dead", pool.owner, 0)


def test_a_mapper_that_closed_its_socket_stays_one_until_it_dies_or_comes_back(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    mapper.do("client.close()")
    until(lambda: pool.server.attached(pool.owner) == 0)
    assert pool.server.mappers(pool.owner) == [mapper.pid]
    pool.server.fence(pool.owner, 1)
    pool.heard_nothing()
    mapper.attach(pool.path)  # the same process, the same rank
    pool.heard("fenced", pool.owner, 1)
    until(lambda: pool.server.attached(pool.owner) == 1)
    assert pool.server.mappers(pool.owner) == [mapper.pid]


def test_closing_and_attaching_again_in_one_breath_is_no_duplicate(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    mapper = spawn()
    mapper.attach(pool.path)
    for _ in range(50):
        mapper.do("client.close()")
        mapper.attach(pool.path)
    assert pool.server.mappers(pool.owner) == [mapper.pid]
    assert pool.listener.events() == []


def test_a_rank_with_a_live_mapper_is_refused_and_free_again_after_its_death(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    first, second = spawn(), spawn()
    first.attach(pool.path)
    with pytest.raises(RuntimeError, match=f"NodeRefused: rank 0 of engine 'e' is mapped by pid {first.pid}"):
        second.attach(pool.path)
    first.kill()
    second.attach(pool.path)
    assert pool.server.mappers(pool.owner) == [second.pid]
    pool.heard("dead", pool.owner, 0)


def test_an_engine_that_returns_gets_a_new_owner_and_the_old_one_stays_watched(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    old, new = spawn(), spawn()
    old.attach(pool.path)
    returned = pool.server.open_engine("e", 2)
    assert returned != pool.owner
    new.attach(pool.path)
    until(lambda: pool.server.attached(returned) == 1)
    assert (pool.server.mappers(pool.owner), pool.server.mappers(returned)) == ([old.pid], [new.pid])
    old.kill()
    pool.heard("dead", pool.owner, 0)
    assert pool.server.mappers(returned) == [new.pid]


def test_a_client_outlives_its_node_with_its_mapping(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 0, LAYOUT)
    assert client.connected
    pool.server.close()
    until(lambda: not client.connected)
    client.mapping.payload(0)[7] = 9
    assert os.pread(pool.fds[0], 1, 7) == b"\x09"


def test_a_killed_node_is_noticed_and_replaced_although_its_forked_child_lives(
    pool: Pool, spawn: Callable[[], Mapper]
) -> None:
    path = pool.path + "2"
    node = spawn()
    node.do("fd = os.memfd_create('p'); os.ftruncate(fd, 4096); listener = _core.RecordingListener()")
    node.do(f"server = _core.NodeServer({path!r}, [(fd, 4096, 0, 0)], {LAYOUT}, listener)")
    node.do("server.open_engine('e', 1)")
    client = _core.NodeClient(path, "e", 0, LAYOUT)
    child = node.eval("os.fork() or __import__('signal').pause()")
    try:
        with pytest.raises(_core.NodeError, match=f"a live node, pid {node.pid}, listens"):
            _core.NodeServer(path, pool.exported, LAYOUT, pool.listener, 5)
        node.kill()
        until(lambda: not client.connected)
        connect(path).close()  # the child still holds the listening socket
        _core.NodeServer(path, pool.exported, LAYOUT, pool.listener, 5).close()
    finally:
        os.kill(child, signal.SIGKILL)

"""A store whose pool is a node's, in another process: it answers as the store that owns its pool does, shares what it
has with others, and is a cache that misses while there is no node."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvarter import _core
from kvarter.errors import AttachError
from kvarter.node import Node, RemoteStore
from kvarter.store import Store
from served_words import SECONDS, Client, ServedNode, served, until
from words import KIB, MIB, full

pytestmark = pytest.mark.timeout(120)
BLOCK = 64 * KIB


class Host:
    """A node, and the clients that came to it."""

    def __init__(self, node: ServedNode) -> None:
        self.node = node
        self.clients: list[Client] = []

    def client(self, name: str, *groups: Any, **options: Any) -> Client:
        self.clients.append(Client(self.node, name, *groups, **options))
        return self.clients[-1]

    def close(self) -> None:
        for client in self.clients:
            client.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    with served(tmp_path) as node:
        host = Host(node)
        yield host
        host.close()
        node.go_on()


@pytest.fixture
def host_with_disk(tmp_path: Path) -> Iterator[Host]:
    disk = {"path": str(tmp_path / "disk"), "capacity": 64 * MIB, "segment_bytes": 2 * MIB}
    with served(tmp_path, disk=disk) as node:
        host = Host(node)
        yield host
        host.close()


# -- as a store


def test_what_was_stored_is_found_and_read_with_the_bytes_that_were_written(host: Host) -> None:
    client = host.client("a", full(BLOCK, shards=2))
    sequence = client.tokens(1, 8)
    written = client.put(sequence, {0: range(8)})
    match = client.store.match(sequence)
    assert match.tokens == 32 and len(written) == 16
    assert client.get(match) == written
    stats = client.store.stats()
    assert (stats["offered"], stats["stored"], stats["loaded"], stats["in_flight"]) == (8, 8, 8, 0)
    assert stats["stored_bytes"] == stats["loaded_bytes"] == 16 * BLOCK
    host.node.holds(resident=16 * BLOCK, reserved=0, leased=0, quarantined=0)


def test_a_block_of_which_a_shard_failed_or_that_was_aborted_is_never_seen(host: Host) -> None:
    client = host.client("a", full(BLOCK, shards=2))
    reservation = client.store.reserve(client.tokens(1, 4), {0: range(4)}, 10)
    client.commit(reservation, 0)
    assert not client.store.match(client.tokens(1, 4))
    client.commit(reservation, 1, ok=False)
    aborted = client.store.reserve(client.tokens(2, 4), {0: range(4)}, 10)
    aborted.abort()
    assert not client.store.match(client.tokens(1, 4)) and not client.store.match(client.tokens(2, 4))
    host.node.holds(resident=0, reserved=0, quarantined=0)
    assert client.store.stats()["failed"] + client.store.stats()["aborted"] == 8


def test_what_is_there_or_on_its_way_is_refused_with_its_reason(host: Host) -> None:
    client = host.client("a")
    client.put(client.tokens(1, 2), {0: range(2)})
    writing = client.store.reserve(client.tokens(2, 2), {0: range(2)}, 10)
    assert client.store.reserve(client.tokens(1, 2), {0: range(2)}, 10).reasons() == {"already_resident": 2}
    assert client.store.reserve(client.tokens(2, 2), {0: range(2)}, 10).reasons() == {"already_in_flight": 2}
    assert client.store.reserve(client.tokens(3, 2), {0: range(1, 2)}, 10).reasons() == {"no_parent": 1}
    writing.abort()


def test_a_burst_of_twice_the_pool_is_stored_while_anything_can_go(host: Host) -> None:
    client = host.client("a", hold_seconds=60.0)
    written = [client.put(client.tokens(number, 8), {0: range(8)}) for number in range(16)]
    assert [len(blocks) for blocks in written] == [8] * 16
    stats = client.store.stats()
    assert stats["stored"] == 128 and stats["no_space"] == 0
    for number in range(16):  # held: the node makes headroom behind the burst
        match = client.store.match(client.tokens(number, 8), request=f"r{number}")
        if match:
            got = client.get(match, request=f"r{number}")
            assert got.items() <= written[number].items()


def test_a_held_match_is_still_true_at_load_after_the_pool_turned_over(host: Host) -> None:
    client = host.client("a", hold_seconds=60.0)
    written = client.put(client.tokens(1, 4), {0: range(4)})
    match = client.store.match(client.tokens(1, 4), request="r")
    for number in range(2, 40):
        client.put(client.tokens(number, 4), {0: range(4)})
    with client.store.load(match, 60, request="r") as ticket:
        assert ticket.status == _core.Status.Ok
        assert client.read(ticket) == written


def test_a_pin_keeps_its_blocks_until_it_is_taken_off(host: Host) -> None:
    client = host.client("a")
    client.put(client.tokens(1, 4), {0: range(4)})
    pin = client.store.pin(client.tokens(1, 4), 600.0)
    assert pin is not None and host.node.ledger()["pinned"] == 4 * BLOCK
    for number in range(2, 40):
        client.put(client.tokens(number, 4), {0: range(4)})
    assert client.store.match(client.tokens(1, 4)).tokens == 16
    assert client.store.unpin(pin) and not client.store.unpin(pin)
    host.node.holds(pinned=0)
    assert client.store.pin(client.tokens(99, 4), 1.0) is None


def test_blocks_found_corrupt_go_for_everybody_with_what_leans_on_them(host: Host) -> None:
    one, other = host.client("a"), host.client("b")
    one.put(one.tokens(1, 4), {0: range(4)})
    with other.store.load(other.store.match(other.tokens(1, 4)), 10) as ticket:
        ticket.drop_corrupt(0, [2])
    assert one.store.match(one.tokens(1, 4)).tokens == 8
    assert set(one.put(one.tokens(1, 4), {0: range(4)})) == {(0, 2, 0), (0, 3, 0)}


def test_a_share_bounds_a_namespace_and_an_impossible_one_is_refused(host: Host) -> None:
    small, large = host.client("a"), host.client("b", names={"model": "large"})
    small.store.share(small.namespace, quota=4 * BLOCK)
    for number in range(6):
        small.put(small.tokens(number, 2), {0: range(2)})
        large.put(large.tokens(number, 2), {0: range(2)})
    by_size = sorted(space["bytes"] for space in host.node.status()["namespaces"])
    assert by_size == [4 * BLOCK, 12 * BLOCK]
    with pytest.raises(ValueError, match="above a quota"):
        small.store.share(small.namespace, floor=8 * BLOCK, quota=4 * BLOCK)


def test_a_hint_pins_what_the_session_found_and_what_is_no_hint_is_a_type_error(host: Host) -> None:
    client = host.client("a")
    client.put(client.tokens(1, 4), {0: range(4)})
    client.store.match(client.tokens(1, 4), session="s")
    client.store.hint("s", ttl=600.0)
    host.node.holds(pinned=4 * BLOCK)
    with pytest.raises(TypeError):
        client.store.hint("s", returns_soon=True)
    with pytest.raises(TypeError):
        client.store.hint("s", ttl=np.float32(1))
    assert client.store.connected and client.store.audit()


# -- several engines


def test_engines_of_one_namespace_share_blocks_and_those_of_another_never_meet(host: Host) -> None:
    one, same = host.client("a"), host.client("b")
    other = host.client("c", names={"weights": "others"})
    written = one.put(one.tokens(1, 4), {0: range(4)})
    assert same.get(same.store.match(same.tokens(1, 4))) == written
    assert same.store.reserve(same.tokens(1, 4), {0: range(4)}, 10).reasons() == {"already_resident": 4}
    assert not other.store.match(other.tokens(1, 4))
    others = other.put(other.tokens(1, 4), {0: range(4)})
    assert set(others.values()).isdisjoint(written.values())
    assert one.get(one.store.match(one.tokens(1, 4))) == written
    assert other.get(other.store.match(other.tokens(1, 4))) == others


def test_two_engines_may_not_have_one_name_and_it_is_free_again_when_its_session_ends(host: Host) -> None:
    client = host.client("a")
    with pytest.raises(AttachError, match="'a' has a session already"):
        RemoteStore(host.node.path, "a")
    client.store.close()
    RemoteStore(host.node.path, "a", timeout=SECONDS).close()


def test_an_invalidation_by_one_reaches_all_and_all_store_again_afterwards(host: Host) -> None:
    one, other = host.client("a"), host.client("b")
    one.put(one.tokens(1, 4), {0: range(4)})
    assert other.store.match(other.tokens(1, 4)).tokens == 16
    other.store.invalidate(other.namespace)
    host.node.holds(resident=0)
    for client in (one, other):
        assert not client.store.match(client.tokens(1, 4))
    written = one.put(one.tokens(1, 4), {0: range(4)})
    assert len(written) == 4
    assert other.get(other.store.match(other.tokens(1, 4))) == written


def test_what_another_session_holds_cannot_be_ended_by_a_number(host: Host) -> None:
    one, other = host.client("a"), host.client("b")
    one.put(one.tokens(1, 4), {0: range(4)})
    ticket = one.store.load(one.store.match(one.tokens(1, 4)), 60)
    assert host.node.ledger()["leased"] == 4 * BLOCK
    assert not other.store.index.release(ticket._lease, _core.Outcome.Loaded)
    assert not other.store.connected
    assert host.node.ledger()["leased"] == 4 * BLOCK
    assert host.node.status()["door"]["violations"] > 0
    assert ticket.finish(_core.Outcome.Loaded)


# -- without a node


def test_a_killed_node_costs_a_miss_at_once_and_the_next_one_is_found(host: Host) -> None:
    client = host.client("a")
    client.put(client.tokens(1, 4), {0: range(4)})
    match = client.store.match(client.tokens(1, 4))
    host.node.kill()
    begun = time.monotonic()
    until(lambda: not client.store.connected)
    assert not client.store.match(client.tokens(1, 4))
    assert client.store.load(match, 5).status == _core.Status.Closed
    assert client.store.pin(client.tokens(1, 4), 5.0) is None
    assert not client.store.find(client.tokens(1, 4), 0, range(4))
    reservation = client.store.reserve(client.tokens(2, 4), {0: range(4)}, 10)
    assert len(reservation) == 0 and not reservation.kept(0).any()
    assert time.monotonic() - begun < PATIENCE_OF_A_STEP
    host.node.start()
    client.came_back(1)
    written = client.put(client.tokens(1, 4), {0: range(4)})
    assert client.get(client.store.match(client.tokens(1, 4))) == written


PATIENCE_OF_A_STEP = 10.0  # half of what one call waits for a node that does not answer


def test_objects_of_a_node_that_is_gone_mean_nothing_to_the_next(host: Host) -> None:
    client = host.client("a")
    client.put(client.tokens(1, 4), {0: range(4)})
    match = client.store.match(client.tokens(1, 4), request="r")
    space = client.store._space(client.namespace)
    ticket = client.store.load(match, 600)
    pin = client.store.pin(client.tokens(1, 4), 600)
    reservation = client.store.reserve(client.tokens(2, 4), {0: range(4)}, 600)
    handles, pool = reservation.handles, ticket.pool
    host.node.kill()
    host.node.start()
    client.came_back(1)
    assert client.store.index.pool_id != pool

    # The same numbers now mean something else: another namespace, other leases, other entries.
    foreign = host.client("b", names={"model": "foreign"})
    foreign.put(foreign.tokens(1, 4), {0: range(4)})
    client.put(client.tokens(1, 4), {0: range(4)})
    mine = client.store.load(client.store.match(client.tokens(1, 4)), 600)
    kept = client.store.pin(client.tokens(1, 4), 600)
    writing = client.store.reserve(client.tokens(2, 4), {0: range(4)}, 600)
    before = host.node.ledger()

    assert not ticket.finish(_core.Outcome.Loaded)
    assert pin is not None and not client.store.unpin(pin)
    reservation.commit(0, np.ones(4, np.uint8), np.zeros(4, np.uint64))
    reservation.abort()
    client.store.drop_hold("r")
    chain = client.tokens(1, 4).chain(space.above)
    status, lease = space.index.lease(chain, [(0, 0, 4)], _core.LeaseKind.Read, 0, 1 << 62)
    assert (status, lease) == (_core.Status.Closed, 0)
    assert not space.index.contains(chain, 0, 0)
    refused, *_ = space.index.reserve(chain, (0, 0, 4), (0, 0), 0, 1 << 62)
    assert set(refused.tolist()) == {_core.Status.Closed}
    assert client.store.connected and len(handles) == 4
    assert host.node.ledger() == before

    assert mine.finish(_core.Outcome.Loaded) and kept is not None and client.store.unpin(kept)
    writing.abort()


def test_a_stopped_node_costs_one_patience_and_then_nothing(host: Host) -> None:
    client = host.client("a", patience=0.5)
    client.put(client.tokens(1, 4), {0: range(4)})
    match = client.store.match(client.tokens(1, 4))
    host.node.stop()
    begun = time.monotonic()
    assert client.store.load(match, 600).status == _core.Status.Closed
    for number in range(2, 200):
        assert not client.store.match(client.tokens(number, 4))
        assert len(client.store.reserve(client.tokens(number, 4), {0: range(4)}, 10)) == 0
    client.store.invalidate(client.namespace)
    assert time.monotonic() - begun < 20  # of 400 patiences, or for ever
    host.node.go_on()
    client.came_back(1)
    assert not client.store.match(client.tokens(1, 4))  # the invalidation was not lost
    host.node.holds(resident=0)


def test_what_a_session_was_writing_when_it_gave_its_node_up_comes_back(host: Host) -> None:
    """The process lives and has a worker that answers fences: nobody waits for its death."""
    client = host.client("a", patience=0.5)
    client.store.reserve(client.tokens(1, 4), {0: range(4)}, 1.0)
    host.node.stop()
    client.store.match(client.tokens(2, 1))
    client.store.reserve(client.tokens(2, 4), {0: range(4)}, 1.0)
    assert not client.store.connected
    host.node.go_on()
    host.node.holds(reserved=0, quarantined=0)


def test_a_pin_of_an_earlier_session_cannot_be_taken_off_and_costs_the_next_one_nothing(host: Host) -> None:
    client = host.client("a", patience=0.5)
    client.put(client.tokens(1, 4), {0: range(4)})
    pin = client.store.pin(client.tokens(1, 4), 600.0)
    host.node.stop()
    client.store.load(client.store.match(client.tokens(1, 4)), 600)
    host.node.go_on()
    client.came_back(1)
    assert pin is not None and not client.store.unpin(pin)
    assert client.store.connected and client.store.match(client.tokens(1, 4))
    assert host.node.status()["door"]["violations"] == 0


def test_a_store_is_refused_where_there_is_no_node_with_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(AttachError, match="no session with the node at"):
        RemoteStore(str(tmp_path / "node.sock"), "a", timeout=1.0)


def test_a_path_too_long_for_the_second_socket_is_refused_and_nothing_is_left_open(tmp_path: Path) -> None:
    directory = tmp_path / ("d" * (95 - len(str(tmp_path))))
    path = str(directory / "nodesock")
    assert 99 < len(path) < 108
    store = Store(2 * MIB, populate=False)
    with pytest.raises(AttachError, match="too long"):
        Node(store, path)
    assert not Path(path).exists()
    store.close()


def test_an_invalidation_without_a_node_holds_for_the_next_one_and_its_disk(host_with_disk: Host) -> None:
    host = host_with_disk
    client, other = host.client("a"), host.client("b", names={"model": "other"})
    for who in (client, other):
        who.put(who.tokens(1, 4), {0: range(4)})
    down(host, 8)
    host.node.close()
    until(lambda: not client.store.connected)
    client.store.invalidate(client.namespace)
    host.node.start()
    client.came_back(1)
    other.came_back(1)
    assert not client.store.match(client.tokens(1, 4))
    assert other.store.match(other.tokens(1, 4)).disk_tokens == 16


# -- the disk below


def turn_over(client: Client) -> None:
    """Everything that was in the pool is on disk alone."""
    for number in range(1000, 1040):
        client.put(client.tokens(number, 4), {0: range(4)})


def down(host: Host, blocks: int) -> None:
    until(lambda: host.node.status()["disk_counters"]["stored"] >= blocks, f"{blocks} blocks on disk")


def fetched(client: Client, match: Any) -> dict[tuple[int, int, int], bytes]:
    ticket = client.store.load(match, SECONDS)
    assert ticket.wait(SECONDS) and ticket.status == _core.Status.Ok
    with ticket:
        return client.read(ticket)


def test_what_fell_out_of_the_pool_comes_up_from_the_nodes_disk(host_with_disk: Host) -> None:
    client = host_with_disk.client("a")
    written = client.put(client.tokens(1, 4), {0: range(4)})
    down(host_with_disk, 4)
    turn_over(client)
    match = client.store.match(client.tokens(1, 4))
    assert (match.tokens, match.disk_tokens) == (16, 16)
    assert fetched(client, match) == written
    again = client.store.match(client.tokens(1, 4))
    assert (again.tokens, again.disk_tokens) == (16, 0)


def test_many_that_wait_for_one_block_cause_one_read(host_with_disk: Host) -> None:
    host = host_with_disk
    clients = [host.client(f"e{number}") for number in range(4)]
    written = clients[0].put(clients[0].tokens(1, 4), {0: range(4)})
    down(host, 4)
    turn_over(clients[0])
    before = host.node.status()["disk_counters"]["loaded"]
    sequences = [client.tokens(1, 4) for client in clients]
    matches = [client.store.match(sequence) for client, sequence in zip(clients, sequences, strict=True)]
    assert [match.disk_tokens for match in matches] == [16] * 4
    tickets = [
        client.store.load(m, SECONDS) for client, m in zip(clients, matches, strict=True) for _ in "ab"
    ]
    for number, ticket in enumerate(tickets):
        assert ticket.wait(SECONDS) and ticket.status == _core.Status.Ok
        assert clients[number // 2].read(ticket) == written
        assert ticket.finish(_core.Outcome.Loaded)
    assert host.node.status()["disk_counters"]["loaded"] - before == 4


def test_a_node_that_starts_again_on_its_disk_still_has_everything(host_with_disk: Host) -> None:
    client = host_with_disk.client("a")
    written = client.put(client.tokens(1, 4), {0: range(4)})
    down(host_with_disk, 4)
    host_with_disk.node.close()
    host_with_disk.node.start()
    client.came_back(1)
    match = client.store.match(client.tokens(1, 4))
    assert match.disk_tokens == 16
    assert fetched(client, match) == written


def test_a_node_that_dies_while_blocks_come_up_ends_the_wait(host_with_disk: Host) -> None:
    client = host_with_disk.client("a")
    client.put(client.tokens(1, 4), {0: range(4)})
    down(host_with_disk, 4)
    turn_over(client)
    match = client.store.match(client.tokens(1, 4))
    host_with_disk.node.stop()
    ticket = client.store.load(match, SECONDS)
    assert not ticket.poll()
    host_with_disk.node.kill()
    assert ticket.wait(SECONDS / 2) and ticket.status == _core.Status.Closed
    host_with_disk.node.start()

"""Blocks between hosts: nodes in network namespaces, over TCP. Whatever goes wrong is a miss, and nothing is held."""

import contextlib
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvarter import _core
from kvarter.geometry import CacheGroup, Full, Geometry, State, Window, groups_digest
from kvarter.peers import messages as m
from served_words import SECONDS, Client, stop, until
from street_words import PORT, SECRET, PeerNode, Street, fetched, loaded, settled
from words import KIB, MIB, UNIT, full

pytestmark = pytest.mark.timeout(240)
BLOCK = 64 * KIB
BRIEF = {"heartbeat": 0.1, "patience": 3.0}  # where somebody is to be found dead


@pytest.fixture
def street() -> Iterator[Street]:
    made = Street(3)
    yield made
    made.close()


class Town:
    """Nodes on hosts, each with an engine, closed when the test ends; the account of the living is exact then."""

    def __init__(self, directory: Path, street: Street) -> None:
        self._directory, self.street = directory, street
        self._stack = contextlib.ExitStack()
        self.nodes: dict[int, PeerNode] = {}

    def node(
        self, number: int, others: Any, *groups: CacheGroup, names: Any = None, **options: Any
    ) -> Client:
        node = self.nodes[number] = PeerNode(self._directory, self.street, number, others, **options)
        self._stack.callback(node.close)
        client = Client(node, f"engine {number}", *(groups or (full(BLOCK),)), names=names or {})
        self._stack.callback(client.close)
        return client

    def pair(self, *groups: CacheGroup, **options: Any) -> tuple[Client, Client]:
        """Hosts 1 and 2, which know each other."""
        clients = self.node(1, [2], *groups, **options), self.node(2, [1], *groups, **options)
        self.nodes[1].knows(2)
        self.nodes[2].knows(1)
        return clients

    def quiet(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.quiet()

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def town(tmp_path: Path, street: Street) -> Iterator[Town]:
    made = Town(tmp_path, street)
    try:
        yield made
        made.quiet()
    finally:
        made.close()


# --- that it works


def test_what_is_stored_on_one_host_serves_another(town: Town) -> None:
    here, there = town.pair()
    written = there.put(there.tokens(1, 16), {0: range(16)})
    assert fetched(here, here.tokens(1, 16)) == written
    again = settled(here, here.tokens(1, 16))
    assert (again.tokens, again.peer_tokens) == (16 * UNIT, 0)  # it is here now
    found = {"p2p": 16, "dram": 16}
    until(lambda: found.items() <= town.nodes[1].status()["found_units"].items(), f"{found}")
    assert town.nodes[2].peers()["lent"]["sent"] == 16


def test_every_group_and_every_shard_comes_across(town: Town) -> None:
    groups = (
        CacheGroup("full", Full(), UNIT, (8 * KIB, 12 * KIB)),
        CacheGroup("window", Window(2 * UNIT), UNIT, (4 * KIB, 4 * KIB)),
        CacheGroup("state", State(), 4 * UNIT, (20 * KIB, 20 * KIB)),
    )
    here, there = town.pair(*groups)
    written = there.put(there.tokens(2, 12), {0: range(12), 1: range(12), 2: range(3)})
    got = fetched(here, here.tokens(2, 12))
    assert {group for group, *_ in got} == {0, 1, 2}
    assert got == {key: written[key] for key in got}


def test_only_what_is_not_here_is_sent(town: Town) -> None:
    here, there = town.pair()
    sequence = here.tokens(3, 16)
    first = here.put(sequence, {0: range(6)})
    written = there.put(there.tokens(3, 16), {0: range(16)})
    got = fetched(here, sequence)
    assert got == {**written, **first}
    assert town.nodes[2].peers()["lent"]["asked"] == 10


def test_a_hit_that_others_do_not_extend_is_answered_from_here(town: Town) -> None:
    here, there = town.pair()
    here.put(here.tokens(4, 8), {0: range(6)})
    there.put(there.tokens(4, 8), {0: range(4)})
    match = settled(here, here.tokens(4, 8))
    assert (match.tokens, match.peer_tokens) == (6 * UNIT, 0)


def test_blocks_that_are_on_the_owners_disk_come_up_and_go_out(town: Town, tmp_path: Path) -> None:
    disk = {"path": str(tmp_path / "disk"), "capacity": 64 * MIB, "segment_bytes": MIB, "admit_all": True}
    there = town.node(2, [1], dram=4 * MIB, disk=disk)
    written = there.put(there.tokens(5, 16), {0: range(16)})
    until(lambda: town.nodes[2].status()["disk_counters"]["resident_blocks"] >= 16, "on disk")
    number = 100
    while there.store.index.contains(there.tokens(5, 16).chain(there.store.open(there.namespace)), 0, 15):
        number += 1
        there.put(there.tokens(number, 16), {0: range(16)})
    here = town.node(1, [2])
    town.nodes[1].knows(2)
    assert fetched(here, here.tokens(5, 16)) == written


def test_many_blocks_at_once_go_in_parts_of_a_bounded_size(town: Town) -> None:
    small = full(KIB)
    here, there = town.pair(small, dram=128 * MIB, in_flight="1MiB")
    written = there.put(there.tokens(6, 6000), {0: range(6000)})
    assert fetched(here, here.tokens(6, 6000)) == written
    assert town.nodes[2].peers()["lent"]["sent"] == 6000


def test_one_load_for_all_who_wait_for_the_same_blocks(town: Town) -> None:
    here, there = town.pair()
    written = there.put(there.tokens(7, 16), {0: range(16)})
    matches = [settled(here, here.tokens(7, 16)) for _ in range(4)]
    tickets = [here.store.load(match, SECONDS) for match in matches]
    for ticket in tickets:
        until(ticket.poll, "loaded")
        assert here.read(ticket) == written
        ticket.finish(_core.Outcome.Loaded)
    assert town.nodes[2].peers()["lent"]["asked"] == 16


# --- that what is not there is a miss


def test_what_nobody_has_is_a_miss(town: Town) -> None:
    here, there = town.pair()
    there.put(there.tokens(8, 4), {0: range(4)})
    assert settled(here, here.tokens(9, 4)).tokens == 0


def test_what_went_between_look_and_load_is_a_miss(town: Town) -> None:
    here, there = town.pair()
    there.put(there.tokens(10, 16), {0: range(16)})
    match = settled(here, here.tokens(10, 16))
    there.store.invalidate(there.namespace)
    assert loaded(here, match).status == _core.Status.NotFound


def test_another_namespace_and_other_groups_are_never_served(town: Town) -> None:
    here = town.node(1, [2], names={"weights": "v1"})
    there = town.node(2, [1], names={"weights": "v2"})
    town.nodes[1].knows(2)
    there.put(there.tokens(11, 8), {0: range(8)})
    assert settled(here, here.tokens(11, 8)).tokens == 0


def test_a_byte_that_changed_at_the_owner_is_never_served(town: Town) -> None:
    here, there = town.pair()
    there.put(there.tokens(12, 8), {0: range(8)})
    with loaded(there, settled(there, there.tokens(12, 8))) as ticket:
        there.slot(ticket.slots(0)[5, 0])[77] ^= 1
    match = settled(here, here.tokens(12, 8))
    assert match.tokens == 8 * UNIT
    assert loaded(here, match).status == _core.Status.NotFound
    kept = settled(here, here.tokens(12, 8), limit=5 * UNIT)
    assert kept.tokens == 5 * UNIT and kept.peer_tokens == 0  # what is whole has come
    assert town.nodes[1].peers()["fetched"]["Corrupt"] == 1
    until(lambda: there.store.match(there.tokens(12, 8)).tokens == 5 * UNIT, "it is gone at its owner, too")
    there.put(there.tokens(12, 8), {0: range(8)})  # and stored again it heals
    assert len(fetched(here, here.tokens(12, 8))) == 8


def test_no_more_is_lent_at_a_time_than_a_share_of_the_pool(town: Town) -> None:
    share = 5 * BLOCK + 1
    here, there = town.pair(lend_share=share / (8 * MIB))
    written = [there.put(there.tokens(number, 16), {0: range(16)}) for number in (13, 93)]
    matches = [settled(here, here.tokens(number, 16)) for number in (13, 93)]
    for ticket, bytes_ in zip([here.store.load(match, SECONDS) for match in matches], written, strict=True):
        until(ticket.poll, "loaded")
        assert here.read(ticket) == bytes_
        ticket.finish(_core.Outcome.Loaded)
    assert 0 < town.nodes[2].peers()["lent"]["peak_bytes"] <= share


def test_a_block_that_is_larger_than_what_is_lent_is_a_miss(town: Town) -> None:
    here, there = town.pair(lend_share=0.9 * BLOCK / (8 * MIB))
    there.put(there.tokens(94, 2), {0: range(2)})
    assert loaded(here, settled(here, here.tokens(94, 2))).status == _core.Status.NotFound
    assert town.nodes[2].peers()["lent"]["refused"] == 2


# --- that others may die, stand still, be cut off or be slow


@pytest.mark.parametrize("how", ["killed", "stopped", "cut"])
def test_a_holder_that_fails_in_the_middle_is_a_miss_and_nothing_is_held(town: Town, how: str) -> None:
    here, there = town.pair(lend_share=1, **BRIEF)
    there.put(there.tokens(14, 64), {0: range(64)})
    match = settled(here, here.tokens(14, 64))
    assert match.tokens == 64 * UNIT
    town.street.slow(2, "4mbit")  # 4 MiB in 8 s
    ticket = here.store.load(match, SECONDS)
    until(lambda: town.nodes[1].received() > 0 or ticket.poll(), "on its way")
    owner = town.nodes[2]
    if how == "killed":
        owner.kill()
    elif how == "stopped":
        owner.stop()
    else:
        town.street.cut(2)
    until(ticket.poll, "given up")
    assert ticket.status == _core.Status.NotFound
    town.nodes[1].knows()
    town.nodes[1].quiet()
    until(lambda: settled(here, here.tokens(14, 64)).tokens == 0, "a miss")
    mine = here.put(here.tokens(15, 100), {0: range(100)})  # all of the pool, for something else
    town.street.fast(2)
    if how == "killed":
        owner.start()
    elif how == "stopped":
        owner.go_on()
    else:
        town.street.mend(2)
    town.nodes[1].knows(2)
    assert here.get(settled(here, here.tokens(15, 100))) == mine  # no byte came late
    owner.quiet()


def test_what_does_not_come_in_time_is_a_miss_and_comes_another_time(town: Town) -> None:
    here, there = town.pair(lend_share=1)
    written = there.put(there.tokens(16, 64), {0: range(64)})
    match = settled(here, here.tokens(16, 64))
    town.street.slow(2, "2mbit")
    ticket = loaded(here, match, 1.0)
    assert ticket.status in (_core.Status.TimedOut, _core.Status.NotFound)
    town.street.fast(2)
    town.quiet()
    assert fetched(here, here.tokens(16, 64)) == written


def test_where_one_holder_fails_another_one_serves(town: Town) -> None:
    brief = {"dram": 16 * MIB, **BRIEF}
    here = town.node(1, [2, 3], **brief)
    holders = {number: town.node(number, [1], **brief) for number in (2, 3)}
    town.nodes[1].knows(2, 3)
    written = [client.put(client.tokens(17, 32), {0: range(32)}) for client in holders.values()]
    assert written[0] != written[1]  # so that it shows who has served
    for number in (2, 3):
        town.street.slow(number, "4mbit")
    match = settled(here, here.tokens(17, 32))
    assert match.tokens == 32 * UNIT
    ticket = here.store.load(match, SECONDS)
    lending: list[int] = []

    def lends() -> bool:
        lending[:] = [number for number in (2, 3) if town.nodes[number].peers()["lent"]["asked"]]
        return bool(lending)

    until(lends, "one is asked")
    stop(town.nodes[lending[0]].pid)
    for number in (2, 3):
        town.street.fast(number)
    until(ticket.poll, "loaded")
    assert ticket.status == _core.Status.Ok
    got = here.read(ticket)
    ticket.finish(_core.Outcome.Loaded)
    assert all(got[key] in (written[0][key], written[1][key]) for key in got)
    assert town.nodes[5 - lending[0]].peers()["lent"]["sent"] > 0
    town.nodes[lending[0]].go_on()
    town.nodes[1].knows(2, 3)


def test_a_client_that_dies_while_it_is_served_leaves_no_lease(town: Town) -> None:
    here, there = town.pair(lend_share=1, **BRIEF)
    there.put(there.tokens(18, 64), {0: range(64)})
    match = settled(here, here.tokens(18, 64))
    town.street.slow(2, "2mbit")
    here.store.load(match, SECONDS)
    until(lambda: town.nodes[2].peers()["lent"]["bytes"] > 0, "lent")
    town.nodes[1].kill()
    town.nodes[2].quiet()
    assert there.store.match(there.tokens(18, 64)).tokens == 64 * UNIT
    town.nodes[1].start()


def test_a_node_that_ends_while_it_fetches_and_lends_ends(town: Town) -> None:
    here, there = town.pair(lend_share=1, **BRIEF)
    there.put(there.tokens(19, 64), {0: range(64)})
    here.put(here.tokens(20, 64), {0: range(64)})
    matches = settled(here, here.tokens(19, 64)), settled(there, there.tokens(20, 64))
    for number in (1, 2):
        town.street.slow(number, "1mbit")
    for client, match in zip((here, there), matches, strict=True):
        client.store.load(match, SECONDS)
    until(lambda: all(town.nodes[n].peers()["lent"]["bytes"] > 0 for n in (1, 2)), "both lend")
    town.nodes[1].signal(signal.SIGCONT)
    town.nodes[1].close()


# --- that strangers get nothing


def test_who_has_another_secret_is_no_peer(town: Town, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"another word that nobody knows")
    other.chmod(0o600)
    here = town.node(1, [2], secret_file=str(other))
    there = town.node(2, [1])
    there.put(there.tokens(21, 8), {0: range(8)})
    until(lambda: town.nodes[2].peers()["meeting"]["refused"] > 1, "turned away")
    assert town.nodes[1].dialed() == town.nodes[2].dialed() == set()
    assert settled(here, here.tokens(21, 8)).tokens == 0


_STRANGER = """
import sys; sys.path[:0] = {path!r}
import numpy as np
from kvarter.peers.ucx_library import load
from peer_words import *
memory = np.zeros(1 << 20, np.uint8)
engine = load().module.Engine(memory.ctypes.data, memory.nbytes, devices=["eth0"])
for address, knows, words in {said!r}:
    host, _, port = address.rpartition(":")
    one = Stranger(int(port), host)
    try:
        if knows:
            one.knows({secret!r})
            one.greets()
            one.say(m.Welcome(words.pop(0) or engine.invite()))
            assert isinstance(one.hear(), m.Welcome)
        for word in words:
            one.say(word) if knows else one.socket.sendall(word)
            if knows:
                heard = one.hear()
                while isinstance(heard, m.Ping):
                    heard = one.hear()
                print(heard)
    except OSError:
        pass
    one.close()
"""


def _strangers(street: Street, number: int, said: list[tuple[str, bool, list[bytes]]]) -> list[str]:
    """What a host hears who says that, each from a connection of its own: (to whom, knowing the secret, words). The
    first word of who knows is an invitation; b"" stands for one that is good."""
    code = _STRANGER.format(path=sys.path, said=said, secret=SECRET)
    command = [*street.within(number), sys.executable, "-c", code]
    return subprocess.run(
        command, check=True, timeout=SECONDS, capture_output=True, text=True
    ).stdout.splitlines()


def test_random_bytes_and_forged_addresses_cost_nobody_anything(town: Town) -> None:
    here, there = town.pair()
    written = there.put(there.tokens(22, 8), {0: range(8)})
    numbers = random.Random(22)
    address = f"{town.street.address(1)}:{PORT}"
    noise = [(address, False, [numbers.randbytes(numbers.randrange(1, 400))]) for _ in range(40)]
    listening = _listening(town.nodes[1].pid)
    assert len(listening) > 1  # UCX's, too
    for port in listening:
        ucx = f"{town.street.address(1)}:{port}"
        noise += [(ucx, False, [numbers.randbytes(600)]) for _ in range(20)]
    _strangers(town.street, 3, noise)
    forged = [(address, True, [numbers.randbytes(size)]) for size in (1, 8, 40, 200, 4000) for _ in range(3)]
    _strangers(town.street, 3, forged)
    until(lambda: town.nodes[1].peers()["meeting"]["refused"] >= len(forged), "turned away")
    assert town.nodes[1].dialed() == {f"{town.street.address(2)}:{PORT}"}
    assert fetched(here, here.tokens(22, 8)) == written


def _listening(pid: int) -> list[int]:
    """TCP ports that a process's host listens at."""
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    return [int(line.split()[1].rpartition(":")[2], 16) for line in lines if line.split()[3] == "0A"]


def test_who_knows_the_secret_and_asks_for_what_cannot_be_is_refused_by_number(town: Town) -> None:
    there = town.node(2, [1])
    there.put(there.tokens(23, 8), {0: range(8)})
    digests, space = there.tokens(23, 8).digests.tobytes(), there.namespace.digest()
    groups = groups_digest(Geometry(UNIT, there.namespace.groups))
    words = [
        m.Look(1, space, bytes(32), digests, 64),
        m.Look(2, bytes(32), groups, digests, 64),
        m.Look(3, space, groups, digests, 64),
        m.Ask(4, 1, 99, [(0, 0, 1)], 1.0),
        m.Ask(5, 1, 3, [(0, 6, 3)], 1.0),
        m.Ask(6, 1, 3, [(1, 0, 1)], 1.0),
        m.Ask(7, 1, 3, [(0, 0, 8)] * 600, 1.0),
        m.Ask(8, 1, 3, [], 1.0),
    ]
    address = f"{town.street.address(2)}:{PORT}"
    heard = _strangers(town.street, 3, [(address, True, [b"", *map(m.encode, words)])])
    assert heard == [
        f"Refused(sentence='namespace {space.hex()[:16]} has other cache groups here', number=1)",
        "Have(number=2, tokens=0)",
        "Have(number=3, tokens=32)",
        "Refused(sentence='look 99 is not known here any more', number=4)",
        "Refused(sentence='blocks 6 to 9 of a chain that has 8', number=5)",
        "Refused(sentence='group 1 of a namespace that has 1', number=6)",
        "Refused(sentence='4800 blocks in one request; expected 1 to 4096', number=7)",
        "Refused(sentence='0 blocks in one request; expected 1 to 4096', number=8)",
    ]


# --- ahead of being asked


def test_what_is_pushed_is_there_before_it_is_asked_for(town: Town) -> None:
    here, there = town.pair()
    here.store.open(here.namespace)
    sequence = there.tokens(30, 16)
    there.store.push(sequence, f"{town.street.address(1)}:{PORT}")  # also before it is stored
    written = there.put(sequence, {0: range(16)})
    until(lambda: town.nodes[1].peers()["pushes"]["taken"] == 1, "taken")
    town.street.cut(2)
    match = here.store.match(here.tokens(30, 16))
    assert (match.tokens, match.peer_tokens) == (16 * UNIT, 0)
    assert here.get(match) == written
    town.street.mend(2)


def test_what_is_pushed_to_several_nodes_has_a_copy_at_each(town: Town) -> None:
    there = town.node(2, [1, 3])
    others = [town.node(1, [2]), town.node(3, [2])]
    for other in others:
        other.store.open(other.namespace)
    town.nodes[2].knows(1, 3)
    sequence = there.tokens(32, 8)
    written = there.put(sequence, {0: range(8)})
    for number in (1, 3):
        there.store.push(sequence, f"{town.street.address(number)}:{PORT}")
    for number, other in zip((1, 3), others, strict=True):
        until(lambda number=number: town.nodes[number].peers()["pushes"]["taken"] == 1, "taken")  # type: ignore[misc]
        match = other.store.match(other.tokens(32, 8))
        assert (match.tokens, match.peer_tokens) == (8 * UNIT, 0)
        assert other.get(match) == written


def test_what_is_pushed_to_nobody_or_into_no_namespace_is_forgotten(town: Town) -> None:
    there = town.node(2, [1])
    town.node(1, [2])
    town.nodes[2].knows(1)
    sequence = there.tokens(31, 8)
    there.put(sequence, {0: range(8)})
    there.store.push(sequence, f"{town.street.address(3)}:{PORT}")
    there.store.push(sequence, f"{town.street.address(1)}:{PORT}")
    until(lambda: town.nodes[2].peers()["pushes"]["pushed"] == 1, "pushed")
    assert town.nodes[1].peers()["pushes"]["taken"] == 0

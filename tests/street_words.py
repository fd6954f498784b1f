"""The language of the tests across hosts: network namespaces on one switch, and a node in each."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from kvarter import _core
from kvarter.transfers import Match, Ticket
from served_words import SECONDS, Client, ServedNode, until

PORT = 7450
_numbers = itertools.count(1)
SECRET = b"the longest word of the street"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


class Street:
    """Hosts 1 to `count`: each a network namespace with an eth0, all on one switch that is no host's."""

    def __init__(self, count: int) -> None:
        self._name = f"kv{os.getpid()}-{next(_numbers)}"
        self._made: list[str] = []
        try:
            self._add("s")
            run("ip", "-n", self.space("s"), "link", "add", "switch", "type", "bridge")
            run("ip", "-n", self.space("s"), "link", "set", "switch", "up")
            for number in range(1, count + 1):
                self._host(number)
        except BaseException:
            self.close()
            raise

    def space(self, name: object) -> str:
        return f"{self._name}-{name}"

    def _add(self, name: object) -> None:
        run("ip", "netns", "add", self.space(name))
        self._made.append(self.space(name))

    def _host(self, number: int) -> None:
        self._add(number)
        here, switch = self.space(number), self.space("s")
        peer = ["peer", "name", "eth0", "netns", here]
        run("ip", "-n", switch, "link", "add", f"port{number}", "type", "veth", *peer)
        run("ip", "-n", switch, "link", "set", f"port{number}", "master", "switch", "up")
        run("ip", "-n", here, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            run("ip", "-n", here, "link", "set", device, "up")

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{number}"

    def within(self, number: int) -> list[str]:
        """The command that runs another on that host."""
        return ["ip", "netns", "exec", self.space(number)]

    def cut(self, number: int) -> None:
        """Its cable is pulled."""
        run("ip", "-n", self.space("s"), "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        run("ip", "-n", self.space("s"), "link", "set", f"port{number}", "up")

    def slow(self, number: int, rate: str) -> None:
        """What it sends is held to a rate, like "2mbit"."""
        shape = ["tbf", "rate", rate, "burst", "32kb", "latency", "50ms"]
        run("tc", "-n", self.space(number), "qdisc", "add", "dev", "eth0", "root", *shape)

    def fast(self, number: int) -> None:
        run("tc", "-n", self.space(number), "qdisc", "del", "dev", "eth0", "root")

    def close(self) -> None:
        for name in self._made:
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", name)


def secret_file(directory: Path, secret: bytes = SECRET) -> str:
    path = directory / f"secret-{len(secret)}"
    path.write_bytes(secret)
    path.chmod(0o600)
    return str(path)


def peer_settings(street: Street, number: int, others: Seq[int], home: Path, **more: Any) -> dict[str, Any]:
    """Patient, unless said otherwise: on a crowded machine nobody is to be taken for dead or late."""
    return {
        "listen": f"{street.address(number)}:{PORT}",
        "device": "eth0",
        "static": [f"{street.address(other)}:{PORT}" for other in others],
        "secret_file": secret_file(home),
        "look_seconds": SECONDS / 4,
        "directory_seconds": SECONDS / 8,
        "patience": SECONDS,
        "measure": False,
        "copies": 1,  # as many as a test makes itself
        **more,
    }


class PeerNode(ServedNode):
    """A node on host `number` of a street, with one engine's session."""

    def __init__(
        self,
        home: Path,
        street: Street,
        number: int,
        others: Seq[int],
        *,
        dram: int = 8 << 20,
        disk: Any = None,
        arena_bytes: int | None = None,
        ucx: str = "",
        **peers: Any,
    ) -> None:
        """ucx: a directory with another libucx package."""
        self.number, self.street = number, street
        options: dict[str, Any] = {"peers": peer_settings(street, number, others, home, **peers)}
        options |= {"disk": disk} if disk is not None else {}
        home = home / str(number)
        home.mkdir(exist_ok=True)
        options |= {"arena_bytes": arena_bytes} if arena_bytes is not None else {}
        path = os.pathsep.join(filter(None, [ucx, os.environ.get("PYTHONPATH")]))
        within = [*street.within(number), *(["env", f"PYTHONPATH={path}"] if ucx else [])]
        super().__init__(home, dram=dram, within=within, **options)

    def peers(self) -> dict[str, Any]:
        told: dict[str, Any] = self.status()["peers"]
        return told

    def received(self) -> int:
        """Payload bytes."""
        return int(self.peers()["ucx"]["counters"]["bytes_received"])

    def dialed(self) -> set[str]:
        return {link["address"] for link in self.peers()["links"] if link["dialed"]}

    def knows(self, *others: int) -> None:
        """Waits until it reaches exactly these."""
        wanted = {f"{self.street.address(other)}:{PORT}" for other in others}
        until(lambda: self.dialed() == wanted, f"host {self.number} reaches {others}, but {self.dialed()}")

    def quiet(self) -> None:
        """Waits until nothing is held for anybody, and what is told adds up."""
        self.holds(reserved=0, leased=0, quarantined=0)
        until(lambda: self.peers()["lent"]["bytes"] == 0, "nothing is lent")
        fetched = self.peers()["fetched"]
        asked = fetched.pop("asked")
        assert asked == sum(fetched.values()), fetched


def settled(client: Client, sequence: Any, **options: Any) -> Match:
    """What a match comes to once nobody is being asked any more."""
    found: list[Match] = []

    def answered() -> bool:
        found[:] = [client.store.match(sequence, **options)]
        return not found[0].pending

    until(answered, "an answer")
    return found[0]


def loaded(client: Client, match: Match, seconds: float = SECONDS) -> Ticket:
    """Its load, once it is over: in time or not."""
    ticket = client.store.load(match, seconds)
    until(ticket.poll, "over")
    return ticket


def fetched(client: Client, sequence: Any) -> dict[tuple[int, int, int], bytes]:
    """What a hit that comes from a peer holds."""
    match = settled(client, sequence)
    assert match.peer_tokens > 0, match
    with loaded(client, match) as ticket:
        assert ticket.status == _core.Status.Ok
        return client.read(ticket)

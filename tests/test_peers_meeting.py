"""Nodes meet: who is let in, who is turned away and with which words, and who is noticed to be gone."""

import contextlib
import os
import random
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvarter import _core
from kvarter.errors import ConfigError
from kvarter.peers import messages as m
from kvarter.peers.handler import Times
from kvarter.peers.meeting import Meeting
from kvarter.peers.pulse import Backoff, Pulse
from kvarter.peers.trust import LISTENER, anybody, by_tls, proof
from peer_words import SECRET, Stranger, Talker, secret_in
from served_words import SECONDS, until

pytestmark = pytest.mark.timeout(120)
SPACE, GROUPS = b"s" * 32, b"g" * 32


@pytest.fixture
def talkers() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Talker:
            talker = Talker(*arguments, **options)
            stack.callback(talker.close)
            return talker

        yield make


@pytest.fixture
def stranger() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def make(talker: Talker) -> Stranger:
            return stack.enter_context(contextlib.closing(Stranger(talker.meeting.port)))

        yield make


def certificates(directory: Path) -> dict[str, str]:
    """Two authorities, and a node's certificate of each."""
    made = {}
    for name in ("ours", "theirs"):
        ca, key, cert = (str(directory / f"{name}.{kind}") for kind in ("ca", "key", "cert"))
        new = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ]
        subprocess.run(
            [*new, "-subj", f"/CN={name}", "-keyout", f"{ca}.key", "-out", ca],
            check=True,
            capture_output=True,
        )
        subprocess.run(
            [*new, "-subj", "/CN=node", "-CA", ca, "-CAkey", f"{ca}.key", "-keyout", key, "-out", cert],
            check=True,
            capture_output=True,
        )
        Path(key).chmod(0o600)
        made |= {f"{name}.ca": ca, f"{name}.key": key, f"{name}.cert": cert}
    return made


def test_two_who_know_the_secret_meet_and_talk(talkers: Any, tmp_path: Path) -> None:
    here, there = talkers(secret_in(tmp_path)), talkers(secret_in(tmp_path))
    link = here.seek(there)
    assert link.hello.node == there.said_of_itself["node"]
    assert there.here()[0].theirs == link.ours == b"invitation 1"
    here.say(link, m.Look(7, SPACE, GROUPS, bytes(32 * 5), 80))
    until(lambda: here.heard == [m.Have(7, 5)], "answered")
    here.say(link, m.Ask(8, 1, 7, [], 1.0))
    until(lambda: here.heard[1:] == [m.Refused("nothing was looked for", 8)], "refused by number")
    until(lambda: link.pulse.rtt > 0, "how far it is gets known")


def test_a_sequence_of_a_million_tokens_fits_a_look(talkers: Any, tmp_path: Path) -> None:
    here, there = talkers(secret_in(tmp_path)), talkers(secret_in(tmp_path))
    link = here.seek(there)
    here.say(link, m.Look(1, SPACE, GROUPS, bytes(32 * m.MOST_UNITS), 1 << 20))
    until(lambda: here.heard == [m.Have(1, m.MOST_UNITS)], "answered")


def test_tls_lets_in_certificates_of_its_authority_alone(talkers: Any, tmp_path: Path) -> None:
    made = certificates(tmp_path)
    ours = [by_tls(made["ours.cert"], made["ours.key"], made["ours.ca"]) for _ in range(2)]
    theirs = by_tls(made["theirs.cert"], made["theirs.key"], made["ours.ca"])
    here, there, other = talkers(ours[0]), talkers(ours[1]), talkers(theirs)
    here.seek(there)
    other.meeting.seek(there.at)
    until(lambda: other.counts["dialed"] >= 2, "tried again")
    assert other.here() == [] and len(there.here()) == 1


def test_without_the_secret_nobody_gets_in_and_nothing_is_told(
    talkers: Any, stranger: Any, tmp_path: Path
) -> None:
    there = talkers(secret_in(tmp_path))
    wrong = talkers(secret_in(tmp_path, b"another word that is long enough"))
    wrong.meeting.seek(there.at)
    until(lambda: there.counts["refused"] >= 2, "turned away, and tried again")
    guest = stranger(there)
    guest.say(m.Knock(m.PROTOCOL, "plain", bytes(32)))
    assert guest.hear().sentence == "proof of who it is by 'plain' found, by 'secret' expected"
    assert guest.hear() is None
    assert there.invited == 0 and there.here() == wrong.here() == []


def test_a_listener_that_does_not_know_the_secret_learns_nothing_either(talkers: Any, tmp_path: Path) -> None:
    here = talkers(secret_in(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as door:
        here.meeting.seek(f"127.0.0.1:{door.getsockname()[1]}")
        door.settimeout(SECONDS)
        connection, _ = door.accept()
        impostor = object.__new__(Stranger)
        impostor.socket, impostor.sealing, impostor.opening = connection, None, None
        knock = impostor.hear()
        impostor.say(m.Challenge(knock.nonce))  # its own, so that its own proof might do
        mac = impostor.hear().mac
        impostor.say(m.Proof(mac))
        assert impostor.hear().sentence == "who listens does not know the secret"
        connection.close()
    assert here.invited == 0


def test_what_was_said_in_one_connection_opens_no_other(talkers: Any, stranger: Any, tmp_path: Path) -> None:
    there = talkers(secret_in(tmp_path))
    guest = stranger(there)
    guest.say(m.Knock(m.PROTOCOL, "secret", bytes(32)))
    heard = guest.hear().nonce
    mac = proof(SECRET, b"dialer", bytes(32), heard)
    guest.say(m.Proof(mac))
    assert guest.hear().mac == proof(SECRET, LISTENER, bytes(32), heard)
    again = stranger(there)
    again.say(m.Knock(m.PROTOCOL, "secret", bytes(32)))
    again.hear()
    again.say(m.Proof(mac))
    assert again.hear().sentence == "who dials does not know the secret"


def test_a_frame_that_is_changed_repeated_or_unsealed_ends_the_link(
    talkers: Any, stranger: Any, tmp_path: Path
) -> None:
    there = talkers(secret_in(tmp_path))
    for number, wrong in enumerate(("changed", "repeated", "unsealed"), 1):
        guest = stranger(there)
        guest.knows(SECRET)
        guest.greets()
        guest.say(m.Welcome(b""))
        until(lambda: len(there.here()) == 1, "met")
        assert guest.sealing is not None
        body = m.encode(m.Ping(1))
        seal = guest.sealing.next(body)
        if wrong == "changed":
            guest.raw(seal + m.encode(m.Ping(2)))
        elif wrong == "repeated":
            guest.raw(seal + body)
            guest.raw(seal + body)
        else:
            guest.raw(body)
        until(lambda: there.here() == [], f"ended: {wrong}")
        assert there.counts["violations"] == number


@pytest.mark.parametrize(
    ("hello", "words"),
    [
        (
            {"ucx": (1, 19, 0)},
            "UCX version found 1.19.0, expected 1.18.1: minor versions differ on the wire of TCP",
        ),
        ({"namespaces": {SPACE: bytes(32)}}, f"namespace {SPACE.hex()[:16]} has other cache groups here"),
    ],
)
def test_who_does_not_fit_is_told_why_before_any_address(
    talkers: Any, stranger: Any, hello: dict[str, Any], words: str
) -> None:
    there = talkers(namespaces={SPACE: GROUPS})
    guest = stranger(there)
    guest.say(m.Knock(m.PROTOCOL, "plain", bytes(32)))
    guest.hear()
    guest.greets(**hello)
    assert guest.hear().sentence == words
    assert there.invited == 0


def test_another_patch_of_ucx_and_over_rdma_another_minor_version_too_do_fit(talkers: Any) -> None:
    one = talkers()
    assert one.seek(talkers(ucx=(1, 18, 0))).hello.ucx == (1, 18, 0)
    over = talkers(over="rdma")
    assert over.seek(talkers(over="rdma", ucx=(1, 22, 0))).hello.ucx == (1, 22, 0)


def test_another_protocol_is_refused_with_both_named(talkers: Any, stranger: Any) -> None:
    guest = stranger(talkers())
    guest.say(m.Knock(m.PROTOCOL + 1, "plain", bytes(32)))
    assert guest.hear().sentence == f"protocol version found {m.PROTOCOL + 1}, expected {m.PROTOCOL}"


def test_a_node_that_finds_itself_in_its_list_leaves_it_at_that(talkers: Any) -> None:
    alone = talkers()
    alone.meeting.seek(alone.at)
    until(lambda: alone.counts["refused"] == 1 and not alone.meeting.dialing._sought, "found out")
    assert alone.met_links == []


def test_nonsense_costs_who_says_it_alone(talkers: Any, stranger: Any, tmp_path: Path) -> None:
    here, there = talkers(secret_in(tmp_path)), talkers(secret_in(tmp_path))
    link = here.seek(there)
    numbers = random.Random(5)
    for _ in range(60):
        guest = stranger(there)
        with contextlib.suppress(ConnectionError):
            guest.socket.sendall(numbers.randbytes(numbers.randrange(1, 200)))
        guest.close()
    big = stranger(there)
    big.socket.sendall(m.LENGTH.pack(m.MOST_UNPROVEN + 1))
    assert big.hear().sentence == f"a frame of {m.MOST_UNPROVEN + 1} bytes; expected 0 to {m.MOST_UNPROVEN}"
    known = stranger(there)
    known.knows(SECRET)
    known.greets()
    known.say(m.Welcome(b""))
    until(lambda: len(there.here()) == 2, "met")
    known.say(b"\xc1")
    until(lambda: len(there.here()) == 1, "ended")
    here.say(link, m.Look(1, SPACE, GROUPS, b"", 0))
    until(lambda: here.heard == [m.Have(1, 0)], "the others go on")


def test_strangers_who_say_nothing_are_let_go_and_are_never_too_many(talkers: Any) -> None:
    there = talkers(times=Times(meeting=1.0, patience=SECONDS))
    with contextlib.ExitStack() as stack:
        quiet = [
            stack.enter_context(socket.create_connection(("127.0.0.1", there.meeting.port)))
            for _ in range(70)
        ]
        until(lambda: there.counts["crowded"] == 70 - 64, f"crowded: {there.counts}")
        for one in quiet:
            one.settimeout(SECONDS)
            with contextlib.suppress(ConnectionError):
                while one.recv(100):
                    pass
    until(lambda: there.meeting._strangers == 0, "all are gone")
    talkers().seek(there)


def test_a_peer_that_falls_silent_is_noticed_and_dialed_again(talkers: Any) -> None:
    brief = Times(period=0.05, patience=1.0, meeting=SECONDS)
    here = talkers(times=brief)
    # Something in between that stands still: the connection stays, and nothing comes.
    with socket.create_server(("127.0.0.1", 0)) as door:
        here.meeting.seek(f"127.0.0.1:{door.getsockname()[1]}")
        door.settimeout(SECONDS)
        connection, _ = door.accept()
        silent = object.__new__(Stranger)
        silent.socket, silent.sealing, silent.opening = connection, None, None
        silent.hear()
        silent.say(m.Challenge(bytes(32)))
        silent.greets()
        silent.say(m.Welcome(b""))
        until(lambda: len(here.met_links) == 1, "met")
        until(lambda: here.counts["silent"] == 1 and here.here() == [], "noticed")
        door.accept()[0].close()  # it dials again
        connection.close()


def test_a_link_that_nobody_wants_any_more_is_let_go(talkers: Any) -> None:
    here, there = talkers(), talkers()

    def met() -> bool:
        here.meeting.seek(there.at, 0.5)
        return bool(there.here())

    until(met, "met")
    until(lambda: there.here() == [], "let go")
    assert here.counts["silent"] == 0


def test_a_peer_that_starts_late_or_comes_back_is_found(talkers: Any) -> None:
    here = talkers()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    here.meeting.seek(f"127.0.0.1:{port}")
    until(lambda: here.counts["dialed"] >= 2, "tried")
    there = talkers()
    forward = socket.create_server(("127.0.0.1", port))
    forward.close()
    for _ in range(2):
        late = Meeting(("127.0.0.1", port), anybody(), there)
        before = len(here.met_links)
        late.open()
        until(lambda before=before: len(here.met_links) > before, "found")  # type: ignore[misc]
        late.close()
        until(lambda: here.here() == [], "gone")


def test_plain_is_for_loopback_and_addresses_are_explicit(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"peers at 192\.0\.2\.7 and no proof of who they are: give secret_file or tls"
    ):
        Meeting(("192.0.2.7", 0), anybody(), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"cannot be listened for at 192\.0\.2\.7:0"):
        Meeting(("192.0.2.7", 0), secret_in(tmp_path), None).open()  # type: ignore[arg-type]


def test_a_secret_that_others_can_read_or_guess_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has mode 0640: others may read it; expected 0600"):
        secret_in(tmp_path, mode=0o640)
    with pytest.raises(ConfigError, match="a secret of 5 bytes; expected at least 16"):
        secret_in(tmp_path, b"short")
    assert SECRET.decode() not in repr(secret_in(tmp_path))


def test_silence_is_measured_by_who_was_awake() -> None:
    clock = _core.SteppedClock()
    pulse = Pulse(clock, 0.2, 0.8)
    assert pulse.due() and not pulse.due()
    for _ in range(8):
        clock.advance(0.1)
        assert not pulse.dead()
    clock.advance(0.1)
    assert pulse.dead()
    pulse.heard()
    clock.advance(30)  # this process was stopped
    assert not pulse.dead()
    for _ in range(5):
        clock.advance(0.1)
        dead = pulse.dead()
    assert dead
    pulse.answered(clock.now() - 3_000_000)
    assert pulse.rtt == pytest.approx(0.003)


def test_attempts_get_rarer_and_do_not_march_in_step() -> None:
    backoff = Backoff(0.1, 1.0, uniform=lambda least, most: most)
    assert [backoff.next() for _ in range(5)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0])
    backoff.reset()
    assert backoff.next() == pytest.approx(0.1)
    assert len({Backoff().next() for _ in range(9)}) == 9


def test_the_proofs_of_the_two_roles_differ() -> None:
    a, b = os.urandom(32), os.urandom(32)
    assert (
        len({proof(SECRET, role, *pair) for role in (b"dialer", LISTENER) for pair in ((a, b), (b, a))}) == 4
    )

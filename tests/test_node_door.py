"""Who may map a pool, what is refused, and where the socket is, with real processes."""

import contextlib
import json
import os
import select
import socket
import stat
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attach_words import (  # noqa: F401  fixtures
    LAYOUT,
    MAGIC,
    PROTOCOL,
    Mapper,
    Pool,
    connect,
    granted,
    hello,
    pool_fixture,
    refusal,
    spawn_fixture,
    until,
)
from kvarter import _core

# Forking beside the node's threads is what some of these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def test_refusals_name_what_was_found_and_what_was_expected(pool: Pool) -> None:
    assert refusal(pool.path, hello(protocol=4)) == (2, "protocol version found 4, expected 2")
    assert refusal(pool.path, struct.pack("<3I", MAGIC, 9, 0)) == (2, "protocol version found 9, expected 2")
    assert refusal(pool.path, hello(protocol=0)) == (2, "protocol version found 0, expected 2")
    assert refusal(pool.path, hello(layout=8)) == (3, "layout version found 8, expected 7")
    code, sentence = refusal(pool.path, hello(name=b"x\xff\n"))
    assert (code, sentence) == (4, "engine 'x??' is unknown here: it must be opened at the node first")
    assert refusal(pool.path, hello(rank=2)) == (5, "rank 2 of engine 'e' is out of range, expected below 2")
    assert pool.server.mappers(pool.owner) == []


def test_a_refusal_reaches_the_client_as_an_exception(pool: Pool) -> None:
    for engine, rank, layout, sentence in (
        ("e", 0, 8, "layout version found 8, expected 7"),
        ("other", 0, LAYOUT, "engine 'other' is unknown here"),
        ("e", 2, LAYOUT, "rank 2 of engine 'e' is out of range"),
    ):
        with pytest.raises(_core.NodeRefused, match=sentence) as raised:
            _core.NodeClient(pool.path, engine, rank, layout)
        assert isinstance(raised.value, ConnectionError)
    with pytest.raises(ValueError, match="0 bytes, expected 1 to 108"):
        _core.NodeClient(pool.path, "", 0, LAYOUT)


def as_nobody(action: Callable[[], Any]) -> Any:
    """What `action` returns in a forked child with uid 65534."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        try:
            answer = action()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(child, 0)
    return answer


if os.geteuid() == 0:  # only root can become someone else

    def test_another_uid_is_refused_by_the_node_and_by_the_client(pool: Pool) -> None:
        denied = as_nobody(lambda: refusal(pool.path, hello()))
        assert denied.startswith("PermissionError")  # the directory keeps others out
        path = Path(pool.path)
        for directory in (path.parent, path.parent.parent):  # as if someone had opened it
            directory.chmod(0o711)
        path.chmod(0o666)
        assert as_nobody(lambda: refusal(pool.path, hello())) == [1, "uid found 65534, expected 0"]
        answer = as_nobody(lambda: _core.NodeClient(pool.path, "e", 0, LAYOUT).connected)
        assert answer.startswith("NodeRefused: the node at") and "uid found 0, expected 65534" in answer
        assert pool.server.mappers(pool.owner) == []


def test_malformed_packets_cost_their_connection_and_nothing_else(pool: Pool) -> None:
    client = _core.NodeClient(pool.path, "e", 1, LAYOUT)
    noise = np.random.default_rng(1)
    packets = [hello()[:n] for n in (1, 7, 8, 20, 127)]
    packets += [hello() + b"\0", b"\0" * 128, hello(name=b""), b"x" * 60000]
    packets += [struct.pack("<5I108s", MAGIC, PROTOCOL, LAYOUT, 0, 2**32 - 1, b"e")]
    packets += [noise.bytes(int(size)) for size in noise.integers(1, 600, 200)]
    for packet in packets:
        with connect(pool.path) as connection:
            connection.send(packet)
            assert connection.recv(4096) == b""
    assert client.connected
    assert pool.server.mappers(pool.owner) == [os.getpid()]


@pytest.mark.parametrize(
    "packet",
    [
        struct.pack("<IIQ", 3, 0, 5),  # acknowledges what was never asked
        struct.pack("<IIQ", 1, 0, 1),
        struct.pack("<IIQ", 1, 1, 0),
        struct.pack("<IIQ", 2, 0, 0),
        struct.pack("<IIQ", 4, 0, 0),
        b"\x01\0\0\0",
        b"\x01" + bytes(20),
        hello(),
    ],
)
def test_a_mapper_that_talks_nonsense_loses_its_connection_but_stays_a_mapper(
    pool: Pool, packet: bytes
) -> None:
    with connect(pool.path) as connection:
        for fd in granted(connection):
            os.close(fd)
        connection.send(packet)
        assert connection.recv(4096) == b""
    assert pool.server.attached(pool.owner) == 0
    assert pool.server.mappers(pool.owner) == [os.getpid()]


def test_a_mapper_that_has_not_said_that_it_mapped_is_not_attached(pool: Pool) -> None:
    with connect(pool.path) as connection:
        for fd in granted(connection):
            os.close(fd)
        assert pool.server.mappers(pool.owner) == [os.getpid()]
        assert pool.server.attached(pool.owner) == 0
        connection.send(struct.pack("<IIQ", 1, 0, 0))
        until(lambda: pool.server.attached(pool.owner) == 1)


def test_strangers_that_never_introduce_themselves_do_not_pile_up(pool: Pool) -> None:
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(connect(pool.path)) for _ in range(70)]
        for stranger in strangers[:6]:
            assert stranger.recv(1) == b""
        assert not select.select(strangers[6:], [], [], 0)[0]
        assert _core.NodeClient(pool.path, "e", 0, LAYOUT).connected


# -- the socket's place


def test_the_directory_is_created_for_its_owner_only_and_the_socket_goes_with_the_node(pool: Pool) -> None:
    path = Path(pool.path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pool.server.close()
    assert not path.exists()
    with pytest.raises(_core.NodeError, match="no node answers at"):
        _core.NodeClient(pool.path, "e", 0, LAYOUT)
    with pytest.raises(_core.NodeError, match="is closed"):
        pool.server.open_engine("late", 1)
    pool.server.fence(pool.owner, 1)  # a tick that falls into the closing: nobody is asked


def test_a_directory_others_can_enter_is_refused(pool: Pool) -> None:
    directory = Path(pool.path).parent
    directory.chmod(0o755)
    with pytest.raises(_core.NodeError, match=f"mode 0755 and owner {os.geteuid()}, expected mode 0700"):
        _core.NodeServer(f"{directory}/other", pool.exported, LAYOUT, pool.listener, 5)


def test_a_live_nodes_socket_is_refused_with_its_pid(pool: Pool) -> None:
    with pytest.raises(_core.NodeError, match=f"a live node, pid {os.getpid()}, listens"):
        _core.NodeServer(pool.path, pool.exported, LAYOUT, pool.listener, 5)
    assert _core.NodeClient(pool.path, "e", 0, LAYOUT).connected


def test_a_dead_nodes_socket_is_replaced_and_a_file_is_not(pool: Pool) -> None:
    stale = pool.path + "2"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(stale)
    server = _core.NodeServer(stale, pool.exported, LAYOUT, pool.listener, 5)
    server.close()
    Path(stale).write_text("precious")
    with pytest.raises(_core.NodeError, match="exists and is no socket"):
        _core.NodeServer(stale, pool.exported, LAYOUT, pool.listener, 5)
    assert Path(stale).read_text() == "precious"


def test_a_path_too_long_for_a_socket_is_refused_with_its_length(pool: Pool) -> None:
    path = pool.path + "x" * (108 - len(pool.path))
    with pytest.raises(_core.NodeError, match="has 108 bytes, expected 1 to 107"):
        _core.NodeServer(path, pool.exported, LAYOUT, pool.listener, 5)
    _core.NodeServer(path[:107], pool.exported, LAYOUT, pool.listener, 5).close()


def test_sockets_go_to_the_runtime_directory_if_it_is_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert _core.default_directory() == f"{tmp_path}/kvarter"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert _core.default_directory() == f"{tmp_path}/kvarter-{os.geteuid()}"


def test_a_client_gives_up_on_a_node_that_does_not_answer(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as deaf,
    ):
        deaf.bind(f"{directory}/s")
        deaf.listen()
        with pytest.raises(_core.NodeError, match="did not answer in time"):
            _core.NodeClient(f"{directory}/s", "e", 0, LAYOUT, None, 0.05)


def test_a_node_that_sends_nonsense_is_no_node() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as fake,
    ):
        fake.bind(f"{directory}/s")
        fake.listen()
        welcome = struct.pack("<6I488s", MAGIC, PROTOCOL, 0, 0, 1, 1, b"")
        for packets, sentence in (
            ([b"x" * 512], "is no node"),
            ([b"x" * 100], "sent 100 bytes, expected 512"),
            ([struct.pack("<6I488s", MAGIC, PROTOCOL, 1, 489, 0, 0, b"")], "is no node"),
            ([welcome, struct.pack("<2I512x", 0, 0)], "grants 0 descriptors of 1"),
            ([welcome, struct.pack("<2I512x", 33, 0)], "grants 33 descriptors of 1"),
            ([welcome, struct.pack("<2I512x", 1, 0)], "received 0 of 1 descriptors"),
            ([welcome], "closed the connection before"),
        ):
            child = os.fork()
            if child == 0:
                connection, _ = fake.accept()
                connection.recv(4096)
                for packet in packets:
                    connection.send(packet)
                os._exit(0)
            with pytest.raises(_core.NodeError, match=sentence):
                _core.NodeClient(f"{directory}/s", "e", 0, LAYOUT)
            os.waitpid(child, 0)

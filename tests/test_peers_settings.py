"""Settings for other nodes: what is refused, and what `kvarter doctor` and `/metrics` say of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvarter.config import Config, Peers
from kvarter.errors import ConfigError
from kvarter.observe.finding import Level
from kvarter.observe.peers import peers as probe
from kvarter.peers.directory import Static
from kvarter.peers.options import peer_options
from kvarter.peers.redis_directory import RedisDirectory
from peer_words import SECRET

pytestmark = pytest.mark.usefixtures("nothing_set")
LOOPBACK = {"listen": "127.0.0.1:7450", "device": "lo", "static": ["127.0.0.1:7451"]}


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, Any]:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    secret.chmod(0o600)
    return {
        "listen": "192.0.2.1:7450",
        "device": "eth1",
        "static": ["192.0.2.2:7450"],
        "secret_file": str(secret),
    }


def refusal(**said: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        peer_options(Peers(**said))
    return str(caught.value)


def test_without_an_address_there_are_no_peers_and_nothing_else_of_them() -> None:
    assert peer_options(Peers()) is None
    assert refusal(device="eth1") == "peers.device is set and peers.listen is not: it says where peers meet"


def test_on_loopback_nobody_needs_to_prove_anything() -> None:
    options = peer_options(Peers(**LOOPBACK))
    assert options is not None
    assert (options.listen, options.trust.kind) == (("127.0.0.1", 7450), "plain")
    assert isinstance(options.directory, Static)


def test_elsewhere_everything_is_explicit(outside: dict[str, Any]) -> None:
    options = peer_options(Peers(**outside, ports="7460-7470"))
    assert options is not None and (options.trust.kind, options.ports) == ("secret", (7460, 7470))
    for listen in ("0.0.0.0:7450", "node1:7450", "[::]:7450"):
        assert "expected ADDRESS:PORT of one interface" in refusal(**outside | {"listen": listen})
    assert "expected HOST:PORT" in refusal(**outside | {"listen": "192.0.2.1"})
    assert "UCX would open every interface" in refusal(**outside | {"device": None})
    assert "give secret_file or tls" in refusal(**outside | {"secret_file": None})
    assert "192.0.2.9 and no proof" in refusal(**LOOPBACK | {"static": ["192.0.2.9:1"]})


def test_one_way_to_find_others_and_one_to_know_them(outside: dict[str, Any]) -> None:
    url = "redis://192.0.2.3:6379"
    options = peer_options(Peers(**outside | {"static": [], "directory": url}))
    assert options is not None and isinstance(options.directory, RedisDirectory)
    assert "and not both" in refusal(**outside, directory=url)
    assert "and not both" in refusal(**outside | {"static": []})
    assert "one of the two says who they are" in refusal(**outside, tls_cert="c")
    without = outside | {"secret_file": None}
    assert refusal(**without, tls_cert="c") == "peers with TLS need tls_cert, tls_key and tls_ca"
    assert "No such file" in refusal(**without, tls_cert="/no/c", tls_key="/no/k", tls_ca="/no/a")


def test_settings_come_from_the_environment_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVARTER_PEERS__LISTEN", "127.0.0.1:7450")
    monkeypatch.setenv("KVARTER_PEERS__STATIC", "127.0.0.1:7451, 127.0.0.1:7452")
    assert Config.load().peers.static == ("127.0.0.1:7451", "127.0.0.1:7452")


@pytest.fixture
def doctor(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "net" / "eth1").mkdir(parents=True)

    def look(**said: Any) -> Any:
        return probe(lambda: Config(peers=Peers(**said)), tmp_path / "net")

    return look


def test_the_doctor_says_where_peers_meet_and_what_protects_them(
    doctor: Callable[..., Any], outside: dict[str, Any]
) -> None:
    assert doctor().level == Level.OK
    found = doctor(**outside)
    assert found.level == Level.NOTE
    assert "at 192.0.2.1:7450, payload over eth1, proof by secret" in found.found
    assert doctor(**outside | {"device": "eth9"}).advice == "Name one of eth1."
    assert doctor(**outside | {"secret_file": None}).level == Level.PROBLEM

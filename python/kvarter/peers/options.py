"""From settings to what `Peers` takes: everything that is wrong in them is found here, before anything starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..policy import AlwaysLoad, Measured
from .directory import Directory, Static
from .handler import Times
from .redis_client import Terms
from .redis_directory import RedisDirectory
from .service import PeerOptions
from .trust import Trust, anybody, by_secret, by_tls, is_address

if TYPE_CHECKING:
    from ..config import Peers as Settings


def peer_options(settings: Settings) -> PeerOptions | None:
    """None without `listen`. Raises `ConfigError`, in one sentence."""
    if settings.listen is None:
        said = settings.model_dump(exclude_defaults=True)
        if said:
            raise ConfigError(
                f"peers.{next(iter(said))} is set and peers.listen is not: it says where peers meet"
            )
        return None
    listen = _address("peers.listen", settings.listen)
    if not is_address(listen[0]):
        raise ConfigError(
            f"peers.listen is {settings.listen!r}; expected ADDRESS:PORT of one interface, so that no other is opened"
        )
    if not settings.device and "tcp" in settings.transports.split(","):
        raise ConfigError("peers.device is not set: UCX would open every interface; name one, like eth1")
    trust = _trust(settings)
    trust.check(listen[0])
    low, _, high = (settings.ports or "").partition("-")
    return PeerOptions(
        listen=listen,
        device=settings.device or "",
        trust=trust,
        directory=_directory(settings, trust),
        transports=settings.transports,
        ports=(int(low), int(high)) if settings.ports else None,
        look_seconds=settings.look_seconds,
        in_flight=int(settings.in_flight),
        lend_share=settings.lend_share,
        copies=settings.copies,
        policy=Measured() if settings.measure else AlwaysLoad(),
        times=Times(settings.heartbeat, settings.patience),
    )


def _trust(settings: Settings) -> Trust:
    tls = [settings.tls_cert, settings.tls_key, settings.tls_ca]
    if settings.secret_file is not None:
        if any(tls):
            raise ConfigError("peers have secret_file and TLS; one of the two says who they are")
        return by_secret(settings.secret_file)
    if settings.tls_cert and settings.tls_key and settings.tls_ca:
        return by_tls(settings.tls_cert, settings.tls_key, settings.tls_ca)
    if any(tls):
        raise ConfigError("peers with TLS need tls_cert, tls_key and tls_ca")
    return anybody()


def _directory(settings: Settings, trust: Trust) -> Directory:
    if bool(settings.static) == bool(settings.directory):
        raise ConfigError("peers need either a list `static` or a `directory`, and not both")
    if settings.directory is not None:
        return RedisDirectory(settings.directory, Terms(patience=settings.directory_seconds))
    for each in settings.static:
        trust.check(_address("peers.static", each)[0])
    return Static(settings.static)


def _address(name: str, said: str) -> tuple[str, int]:
    host, colon, port = said.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"{name} is {said!r}; expected HOST:PORT")
    return host, int(port)

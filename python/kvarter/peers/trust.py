"""Whom a node believes: mutual TLS, a shared secret, or, on loopback alone, anybody.

With a secret each end proves that it knows it, by HMAC-SHA256 over both nonces and its own role, and from then on
every frame carries a seal under a key of this connection and its own number: nothing can be put in, left out, replayed
or reflected. It is not encrypted. With TLS it is; every certificate of the authority given is a peer.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

NONCE_BYTES, SEAL_BYTES, _LEAST_SECRET = 32, 16, 16
DIALER, LISTENER = b"dialer", b"listener"


@dataclass(frozen=True)
class Trust:
    """How peers prove who they are. kind: "secret", "tls" or "plain". Made by the functions below."""

    kind: str
    secret: bytes = b""
    server: ssl.SSLContext | None = None
    client: ssl.SSLContext | None = None

    def check(self, host: str) -> None:
        """Raises `ConfigError` for a host that may not be talked to in this way."""
        if self.kind == "plain" and not is_loopback(host):
            raise ConfigError(
                f"peers at {host} and no proof of who they are: give secret_file or tls; without one peers are only "
                "let in on loopback addresses"
            )

    def __repr__(self) -> str:  # which never shows the secret
        return f"<Trust {self.kind}>"


def is_loopback(host: str) -> bool:
    """Of an address; a name is never known to be."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    """Whether it is the address of one interface."""
    try:
        return not ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def by_secret(path: str) -> Trust:
    """The content of a file that only its owner can read, without white space around it. Raises `ConfigError`."""
    secret = _private(path).strip()
    if len(secret) < _LEAST_SECRET:
        raise ConfigError(f"{path}: a secret of {len(secret)} bytes; expected at least {_LEAST_SECRET}")
    return Trust("secret", secret)


def by_tls(cert: str, key: str, ca: str) -> Trust:
    """Both ends show a certificate of the authority in `ca`; TLS 1.3. Raises `ConfigError`."""
    _private(key)
    contexts = []
    for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
        context = ssl.SSLContext(purpose)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the authority vouches for peers, not for names
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_cert_chain(cert, key)
            context.load_verify_locations(ca)
        except OSError as error:
            raise ConfigError(f"TLS of peers with {cert}, {key} and {ca}: {error}") from None
        contexts.append(context)
    return Trust("tls", server=contexts[0], client=contexts[1])


def anybody() -> Trust:
    """Whoever can reach the port: loopback only."""
    return Trust("plain")


def _private(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & 0o077:
                raise ConfigError(
                    f"{path} has mode {stat.S_IMODE(status.st_mode):04o}: others may read it; expected 0600"
                )
            return file.read(64 << 10)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, role: bytes, dialer: bytes, listener: bytes) -> bytes:
    """That the end in this `role` knows the secret, for these two nonces."""
    return hmac.digest(secret, b"kvarter/peers/1 proof " + role + b" " + dialer + listener, hashlib.sha256)


def proves(mac: bytes, secret: bytes, role: bytes, dialer: bytes, listener: bytes) -> bool:
    return hmac.compare_digest(mac, proof(secret, role, dialer, listener))


class Seal:
    """The seals of one direction of one connection, in order."""

    def __init__(self, secret: bytes, role: bytes, dialer: bytes, listener: bytes) -> None:
        """role: of who sends in this direction."""
        self._key = hmac.digest(
            secret, b"kvarter/peers/1 seal " + role + b" " + dialer + listener, hashlib.sha256
        )
        self._frames = 0

    def next(self, body: bytes) -> bytes:
        """Of the next frame, whose body this is."""
        self._frames += 1
        return hmac.digest(self._key, self._frames.to_bytes(8, "little") + body, hashlib.sha256)[:SEAL_BYTES]

    def opens(self, seal: bytes, body: bytes) -> bool:
        return hmac.compare_digest(seal, self.next(body))

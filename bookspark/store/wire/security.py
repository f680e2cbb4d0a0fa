"""Security of connections: TLS between clients and bookies, and a shared secret. Both are off by default.

Law: a bookie with a certificate speaks TLS only. With a client CA it serves only clients with a certificate of that CA. With a
secret it serves only clients that prove the secret. A client with a CA talks only to bookies with a certificate of that CA for
the dialled host. With ``tls_roles`` a bookie's certificate is no client's, and a client's is no bookie's. A client with a secret
sends a bookie nothing but a nonce until the bookie has proved a secret of the client's, and then proves that secret alone. An
unusable file is refused at start, by its option's name.

The secret is never sent. Both sides prove it in HELLO, the bookie first::

    client → bookie   HELLO         nonce of the client: 32 random bytes
    bookie → client   UNAUTHORIZED  Challenge: bookie id, advertised address, nonce of the bookie, a proof by each of its secrets
    client → bookie   HELLO         name of the client, its proof by the secret that the bookie proved
    bookie → client   OK

A proof is HMAC-SHA-256(secret, role ‖ client's nonce ‖ bookie's nonce ‖ bookie id ‖ address ‖ channel), each part behind its
length as u32, little-endian. Each part excludes an attack:

* nonces of both sides: replays, and proofs of a text that the other side chose;
* the role, "Bookspark HELLO bookie" or "… client": reflection of a proof to its sender;
* the bookie id: a proof of another bookie;
* the address, which the client dialled and the bookie advertises by its own options: a stranger at a crashed bookie's old port,
  or at an address that he registered in an open ZooKeeper, can't relay to the bookie;
* the channel, the SHA-256 of the bookie's certificate (b"" without TLS): somebody between two TLS connections needs the bookie's
  own certificate, not only one of the same CA.

The model is SCRAM (RFC 5802): two nonces, two proofs, and channel binding of type tls-server-end-point (RFC 5929, 4; here always
by SHA-256). SCRAM's client proves first, and so gives a false server a proof to guess a password by. Here the bookie proves
first: whoever reaches its port gets such a proof, of a secret of 16 random bytes or more, which nobody guesses. SCRAM's salt and
iterations are for passwords, and left out.

Without TLS a proof protects the greeting, not what follows it. So a secret without TLS off loopback needs an option on both sides
(``without_tls``).

Each new connection reads changed files again, so secrets, certificates and CAs are replaced without a restart
(docs/security.md). A file of secrets has a secret on each line: each of them serves, on both sides.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import ssl
import struct
from collections.abc import Callable, Iterable
from secrets import token_bytes
from typing import Generic, Literal, NamedTuple, TypeVar

from bookspark.errors import ConfigurationError
from bookspark.store.wire.header import WireError
from bookspark.support.certificates import ends_by_option, first_der, load_ca, load_certificate, require_roles
from bookspark.support.private_files import read_secret

Value = TypeVar("Value")

Role = Literal["bookie", "client"]
"""The side that sends a proof."""
NONCE_BYTES = 32
STANDS_BETWEEN = (
    "Without TLS the shared secret keeps out who only reaches a port, not who stands between client and bookie."
)
_LENGTH = struct.Struct("<I")
_HANDSHAKE = 22
_RECORD_START_BYTES, _RECORD_BYTES_MAX = 5, 1 << 14

log = logging.getLogger(__name__)


class ServerContext(ssl.SSLContext):
    """The TLS context of a bookie, with the SHA-256 of its certificate, to which proofs of a secret are bound."""

    certificate_hash = b""


def server_context(certificate: str, key: str, client_ca: str, *, roles: bool = False) -> ServerContext | None:
    """The TLS context of a bookie, from paths of PEM files ("": not given). None without a certificate. ``roles``: option
    ``tls_roles``. Raises ConfigurationError."""
    if not certificate:
        if key or client_ca or roles:
            raise ConfigurationError(
                "tls_key, tls_client_ca and tls_roles are of no use without tls_certificate; set that too"
            )
        return None
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    # A renegotiation costs the bookie ten times as much as the peer.
    context.options |= ssl.OP_NO_RENEGOTIATION
    load_certificate(context, certificate, key)
    context.certificate_hash = certificate_hash(first_der(certificate))
    if client_ca:
        load_ca(context, client_ca, "tls_client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    if roles:
        require_roles(context, certificate)
    return context


class ServerTls(NamedTuple):
    """TLS of a bookie: the context of new connections (None: without TLS), and the ends of its certificates by option, in ms
    since 1970."""

    context: ssl.SSLContext | None
    ends_ms: dict[str, int]


def server_tls(certificate: str, key: str, client_ca: str, *, roles: bool = False) -> ServerTls:
    """The TLS of a bookie, as of ``server_context``. Raises ConfigurationError."""
    return ServerTls(
        server_context(certificate, key, client_ca, roles=roles),
        ends_by_option(tls_certificate=certificate, tls_client_ca=client_ca),
    )


def client_context(ca: str, certificate: str, key: str, *, roles: bool = False) -> ssl.SSLContext | None:
    """The TLS context of a client, from paths of PEM files ("": not given). None without a CA. ``roles``: option ``tls_roles``.
    Raises ConfigurationError."""
    if not ca:
        if certificate or key or roles:
            raise ConfigurationError(
                "tls_certificate, tls_key and tls_roles are of no use without tls_ca; set that too"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_ca(context, ca, "tls_ca")
    if certificate:
        load_certificate(context, certificate, key)
    if roles:
        require_roles(context, certificate)
    return context


def client_hello_size(seen: bytes) -> int:
    """The size in bytes of the first TLS record, whose first bytes are ``seen``, or the number of bytes needed to compute it.
    Raises WireError for bytes that can't begin a ClientHello (RFC 8446, 5.1)."""
    if seen and (seen[0] != _HANDSHAKE or seen[1:2] not in (b"", b"\x03")):
        raise WireError("bytes that are no ClientHello: this bookie speaks TLS only")
    if len(seen) < _RECORD_START_BYTES:
        return _RECORD_START_BYTES
    size = int.from_bytes(seen[3:_RECORD_START_BYTES], "big")
    if not 0 < size <= _RECORD_BYTES_MAX:
        raise WireError(f"a TLS record of {size} bytes")
    return _RECORD_START_BYTES + size


def read_secrets(path: str, option: str = "shared_secret_file") -> tuple[bytes, ...]:
    """The non-empty lines of the file, stripped. () without a path. ``option``: the option's name, for errors. Raises
    ConfigurationError, also for a file that others can read and for a line with room for less than 16 random bytes."""
    if not path:
        return ()
    secrets = lines_of(read_secret(path, option))
    if not secrets:
        raise ConfigurationError(f"{option} {path} is empty; put the secret in it, the same one on both sides")
    for number, secret in enumerate(secrets, 1):
        if is_guessable(secret):
            raise ConfigurationError(
                f"{option} {path}: secret {number} has less than 16 random bytes, so it can be guessed; make one with: "
                "bookspark secret --file FILE"
            )
    return secrets


def lines_of(content: bytes) -> tuple[bytes, ...]:
    """The non-empty lines, stripped."""
    return tuple(line.strip() for line in content.splitlines() if line.strip())


def is_guessable(secret: bytes) -> bool:
    """Is the text shorter than 16 random bytes are: 32 characters in hexadecimal, else 22 (base64)? A longer text that somebody
    chose can't be told from a random one."""
    return len(secret) < (32 if re.fullmatch(rb"[0-9a-fA-F]*", secret) else 22)


class FromFiles(Generic[Value]):
    """A value made from files, and made again when a file has changed. If that fails, the last value stays in use."""

    def __init__(self, paths: Iterable[str], make: Callable[[], Value]) -> None:
        """``paths``: "" is no file. ``make`` raises ConfigurationError, here as well."""
        self._paths = [path for path in paths if path]
        self._make = make
        self._seen = self._look()
        self._value = make()

    def now(self) -> Value:
        """The value for the present files."""
        if (seen := self._look()) != self._seen:
            self._seen = seen
            try:
                self._value = self._make()
                log.info("%s: read again", ", ".join(self._paths))
            except ConfigurationError as error:
                log.warning("%s; what was read before is used further", error)
        return self._value

    def _look(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for path in self._paths:
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                # The time of a change of mode or owner too.
                found.append((status.st_ino, status.st_size, status.st_ctime_ns))
        return found


def without_tls(where: str) -> str:
    """The refusal to use a secret without TLS. ``where``: what is not loopback."""
    return (
        f"shared_secret_file without TLS, and {where} is not loopback. {STANDS_BETWEEN} Use TLS (bookies: tls_certificate; "
        "clients: tls_ca), or accept that with shared_secret_without_tls = true"
    )


class Exchange(NamedTuple):
    """The text that a proof covers, equal on both sides unless somebody stands between."""

    client_nonce: bytes
    bookie_nonce: bytes
    bookie_id: str
    address: str
    """``host:port``, as dialled and as advertised."""
    certificate_hash: bytes
    """Of the bookie's certificate, b"" without TLS."""


def new_nonce() -> bytes:
    return token_bytes(NONCE_BYTES)


def certificate_hash(der: bytes) -> bytes:
    return hashlib.sha256(der).digest()


def proof(secret: bytes, role: Role, exchange: Exchange) -> bytes:
    """``role``'s proof of knowing the secret."""
    client_nonce, bookie_nonce, bookie_id, address, certificate = exchange
    parts = (
        f"Bookspark HELLO {role}".encode(),
        client_nonce,
        bookie_nonce,
        bookie_id.encode(),
        address.encode(),
        certificate,
    )
    return hmac.digest(secret, b"".join(_LENGTH.pack(len(part)) + part for part in parts), hashlib.sha256)


def proven(secrets: Iterable[bytes], role: Role, proofs: Iterable[bytes], exchange: Exchange) -> bytes | None:
    """The first of ``secrets`` that one of ``role``'s proofs proves, or None. Proofs are compared in constant time."""
    proofs = list(proofs)
    for secret in secrets:
        right = proof(secret, role, exchange)
        if any(hmac.compare_digest(right, given) for given in proofs):
            return secret
    return None

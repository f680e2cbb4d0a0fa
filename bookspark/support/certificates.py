"""TLS certificates, keys and CAs in PEM files: put into a context, their roles and their last moments.

Law: nobody is asked for a passphrase. OpenSSL would ask at the terminal of the process, in the thread that loads the key, and
stop everything else in it: an encrypted key is refused like any other unusable file.

OpenSSL refuses a peer's certificate whose extended key usage lacks the peer's role, server or client, and takes one without the
extension for both. ``require_roles`` refuses that too.

End and roles of a certificate are read from its DER form (RFC 5280, 4.1): no library that is installed with a client decodes one.
"""

from __future__ import annotations

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bookspark.errors import ConfigurationError
from bookspark.support.private_files import secret_opened, trusted_opened

DAY_MS = 86_400_000
_PEM = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _UTC_TIME, _TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_BOOLEAN, _OCTETS, _EXTENSIONS = 0x01, 0x04, 0xA3
_EXTENDED_KEY_USAGE = bytes.fromhex("0603551d25")
_SERVER_AUTH, _CLIENT_AUTH = bytes.fromhex("06082b06010505070301"), bytes.fromhex("06082b06010505070302")
_PURPOSES = {_SERVER_AUTH: "serverAuth", _CLIENT_AUTH: "clientAuth"}


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Give the context its own certificate; ``key`` "": it is in the certificate's file. Raises ConfigurationError, also for a
    key that others can read."""
    with secret_opened(key or certificate, "tls_key" if key else "tls_certificate") as descriptor:
        # The judged file, even if its name leads to another one by now.
        judged = f"/proc/self/fd/{descriptor}"
        try:
            context.load_cert_chain(certificate if key else judged, judged, no_passphrase)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"tls_certificate {certificate} with tls_key {key or '(in the same file)'} can't be used: {error}"
            ) from error


def load_ca(context: ssl.SSLContext, path: str, option: str) -> None:
    """Let the context trust the certificates of a file. ``option``: the option's name, for errors. Raises ConfigurationError,
    also for a file that others can write."""
    with trusted_opened(path, option) as descriptor:
        try:
            context.load_verify_locations(f"/proc/self/fd/{descriptor}")
        except OSError as error:
            raise ConfigurationError(f"{option} {path} can't be used: {error}") from error


def check_client_files(ca: str, certificate: str, key: str) -> None:
    """Raises ConfigurationError unless a TLS client can use these files ("": not given)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_ca(context, ca, "tls_ca")
    if certificate:
        load_certificate(context, certificate, key)


def no_passphrase() -> str:
    """The answer to OpenSSL's question for a key's passphrase. Raises SSLError, which the loader of the key passes on."""
    raise ssl.SSLError(0, "the key has a passphrase; write it without one (openssl pkey -in KEY -out NEW)")


def require_roles(context: ssl.SSLContext, own: str) -> None:
    """Let a handshake fail unless the peer's certificate names the peer's role in its extended key usage. ``own``: file with the
    own certificate ("": none), which must name the own role. Raises ConfigurationError."""
    is_server = context.protocol is ssl.PROTOCOL_TLS_SERVER
    mine, others = (_SERVER_AUTH, _CLIENT_AUTH) if is_server else (_CLIENT_AUTH, _SERVER_AUTH)
    if own and mine not in purposes(first_der(own)):
        name = _PURPOSES[mine]
        raise ConfigurationError(
            f"tls_certificate {own} has no extended key usage {name}, which tls_roles wants; have it signed with "
            f"extendedKeyUsage={name}"
        )

    class PeerOfRole(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            shown = self.getpeercert(binary_form=True)
            if shown is not None and others not in purposes(shown):
                raise ssl.SSLCertVerificationError(
                    f"the peer's certificate has no extended key usage {_PURPOSES[others]}, which tls_roles wants"
                )

    context.sslobject_class = PeerOfRole


def purposes(der: bytes) -> frozenset[bytes]:
    """The extended key usages of a certificate (RFC 5280, 4.2.1.12), each as the DER form of its object id; empty without the
    extension."""
    found: set[bytes] = set()
    at, _ = _inside(der, 0, _SEQUENCE)
    at, end = _inside(der, at, _SEQUENCE)
    while at < end and der[at] != _EXTENSIONS:
        at = _behind(der, at)
    if at < end:
        at, _ = _inside(der, at, _EXTENSIONS)
        at, end = _inside(der, at, _SEQUENCE)
    while at < end:
        extension, at = _inside(der, at, _SEQUENCE)
        if not der.startswith(_EXTENDED_KEY_USAGE, extension):
            continue
        value = _behind(der, extension)
        if der[value] == _BOOLEAN:
            value = _behind(der, value)
        inside, _ = _inside(der, value, _OCTETS)
        usage, last = _inside(der, inside, _SEQUENCE)
        while usage < last:
            found.add(der[usage : _behind(der, usage)])
            usage = _behind(der, usage)
    return frozenset(found)


def first_der(path: str) -> bytes:
    """The first certificate of a PEM file, which a server shows, in DER. Raises ConfigurationError."""
    try:
        found = _PEM.search(Path(path).read_text("ascii", errors="replace"))
        if found is not None:
            return ssl.PEM_cert_to_DER_cert(found[0])
        why = "it has no BEGIN CERTIFICATE"
    except (OSError, ValueError) as error:
        why = str(error)
    raise ConfigurationError(f"tls_certificate {path} can't be used: {why}")


class Ends(NamedTuple):
    """The first and the last end of the certificates in a PEM file, in ms since 1970."""

    first_ms: int
    last_ms: int


def ends(path: str) -> Ends | None:
    """Ends of the certificates in the file; None without a readable certificate."""
    try:
        return ends_of(Path(path).read_text("ascii", errors="replace"))
    except OSError:
        return None


def ends_by_option(**files: str) -> dict[str, int]:
    """The end that counts of each option's file, in ms since 1970, without unreadable files and "": the last one of a file of
    CAs, since any of them serves, else the first one."""
    found = {option: ends(file) for option, file in files.items() if file}
    return {
        option: one.last_ms if option.endswith("ca") else one.first_ms
        for option, one in found.items()
        if one is not None
    }


def end_text(end_ms: int, now_ms: int) -> str:
    """``ends in 9 days, on 2026-12-09 10:00 UTC``, or ``ended 2 days ago, on …``. Days are rounded down."""
    when = datetime.fromtimestamp(end_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    days = abs(end_ms - now_ms) // DAY_MS
    counted = f"{days:,} day{'' if days == 1 else 's'}"
    return f"ends in {counted}, on {when}" if end_ms > now_ms else f"ended {counted} ago, on {when}"


def ends_of(text: str) -> Ends | None:
    """``ends`` of a file's text."""
    try:
        found = [_end_ms(ssl.PEM_cert_to_DER_cert(pem)) for pem in _PEM.findall(text)]
    except (ValueError, IndexError):
        return None
    return Ends(min(found), max(found)) if found else None


def _end_ms(der: bytes) -> int:
    """End of a certificate's validity. Raises ValueError and IndexError for other bytes."""
    at, _ = _inside(der, 0, _SEQUENCE)
    at, _ = _inside(der, at, _SEQUENCE)
    if der[at] == _VERSION:
        at = _behind(der, at)
    # Serial number, algorithm of the signature, issuer; then the validity: its begin, its end.
    for _ in range(3):
        at = _behind(der, at)
    at, _ = _inside(der, at, _SEQUENCE)
    at = _behind(der, at)
    tag = der[at]
    start, end = _inside(der, at, tag)
    text = der[start:end].decode("ascii")
    if tag not in (_UTC_TIME, _TIME):
        raise ValueError("no time")
    # A year of two digits is of 1950 to 2049 (RFC 5280, 4.1.2.5.1).
    century = "" if tag == _TIME else "19" if text[:2] >= "50" else "20"
    return int(datetime.strptime(century + text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp() * 1000)


def _inside(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """Start and end of the content of the value at ``at``, whose tag has to be ``tag``."""
    if der[at] != tag:
        raise ValueError(f"tag {der[at]:#x} instead of {tag:#x}")
    size, start = der[at + 1], at + 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[at + 2 : start], "big")
    return start, start + size


def _behind(der: bytes, at: int) -> int:
    return _inside(der, at, der[at])[1]

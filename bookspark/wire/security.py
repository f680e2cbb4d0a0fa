"""Who may talk to whom: TLS between clients and bookies, and a secret that they share. Both are off by default.

Law: with a certificate a bookie speaks TLS and nothing else, with a CA for clients it serves only those whose certificate that CA
signed, and with a secret only those that know it; a client that is told a CA talks only to bookies whose certificate it
signed, for the host that was dialled. What can't be used is refused at start, by name.

The secret itself is never sent. A HELLO without a proof is answered UNAUTHORIZED, with a challenge (32 random bytes) in the body;
the proof, in the next HELLO, is HMAC-SHA256(secret, challenge ‖ bookie id). It keeps strangers out; against one who can listen
or put himself in between it takes TLS as well.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl
from pathlib import Path

from bookspark.errors import ConfigurationError

_CHALLENGE_BYTES = 32


def server_context(certificate: str, key: str, client_ca: str) -> ssl.SSLContext | None:
    """A bookie's, from paths of PEM files ("": not given); None without a certificate. Raises ConfigurationError."""
    if not certificate:
        if key or client_ca:
            raise ConfigurationError("tls_key and tls_client_ca are of no use without tls_certificate; set that too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load_certificate(context, certificate, key)
    if client_ca:
        _load_ca(context, client_ca, "tls_client_ca")
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(ca: str, certificate: str, key: str) -> ssl.SSLContext | None:
    """A client's; None without a CA. Raises ConfigurationError."""
    if not ca:
        if certificate or key:
            raise ConfigurationError("tls_certificate and tls_key are of no use without tls_ca; set that too")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _load_ca(context, ca, "tls_ca")
    if certificate:
        _load_certificate(context, certificate, key)
    return context


def read_secret(path: str) -> bytes:
    """What is in the file but for white space around it; b"" if no file is named. Raises ConfigurationError."""
    if not path:
        return b""
    try:
        secret = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"shared_secret_file {path} can't be read: {error.strerror}") from error
    if not secret:
        raise ConfigurationError(
            f"shared_secret_file {path} is empty; put the secret in it, the same one on both sides"
        )
    return secret


def new_challenge() -> bytes:
    return secrets.token_bytes(_CHALLENGE_BYTES)


def proof(secret: bytes, challenge: bytes, bookie_id: str) -> bytes:
    """What shows the bookie of this id that its challenge was answered by someone who knows the secret."""
    return hmac.digest(secret, challenge + bookie_id.encode(), hashlib.sha256)


def is_proof(given: bytes, secret: bytes, challenge: bytes, bookie_id: str) -> bool:
    return bool(challenge) and hmac.compare_digest(given, proof(secret, challenge, bookie_id))


def _load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    try:
        context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"tls_certificate {certificate} with tls_key {key or '(in the same file)'} can't be used: {error}"
        ) from error


def _load_ca(context: ssl.SSLContext, path: str, option: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"{option} {path} can't be used: {error}") from error

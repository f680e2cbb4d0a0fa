"""Who may talk to whom: TLS between clients and bookies, and a secret that they share. Both are off by default.

Law: a bookie with a certificate speaks TLS only. With a CA for clients it serves only clients whose certificate that CA signed.
With a secret it serves only clients that know the secret. A client with a CA talks only to bookies whose certificate that CA
signed, for the host that was dialled. A file that can't be used is refused at start, by its option's name.

The secret itself is never sent. A HELLO without a proof is answered UNAUTHORIZED, with a challenge (32 random bytes) in the body.
The proof, in the next HELLO, is HMAC-SHA256(secret, challenge ‖ bookie id). That keeps strangers out. Against somebody who can
listen to the connection, or change it, TLS is needed as well.
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
    """The TLS context of a bookie, from paths of PEM files ("": not given). None without a certificate. Raises
    ConfigurationError."""
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
    """The TLS context of a client, from paths of PEM files ("": not given). None without a CA. Raises ConfigurationError."""
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
    """The content of the file, without white space around it. b"" if no file is named. Raises ConfigurationError."""
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
    """32 random bytes."""
    return secrets.token_bytes(_CHALLENGE_BYTES)


def proof(secret: bytes, challenge: bytes, bookie_id: str) -> bytes:
    """The proof, for the bookie of this id and its challenge, that the sender knows the secret."""
    return hmac.digest(secret, challenge + bookie_id.encode(), hashlib.sha256)


def is_proof(given: bytes, secret: bytes, challenge: bytes, bookie_id: str) -> bool:
    """Is ``given`` the proof that answers ``challenge``? Never, if there was no challenge."""
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

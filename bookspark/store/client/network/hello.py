"""The first exchange on a connection to a bookie: identity of both sides, and proofs of a secret by both.

Law: after it, the peer is the intended bookie (another bookie may have its old address) and speaks this protocol. A client with
secrets sends nothing but a nonce before the bookie has proved one of them, and nothing at all without TLS off loopback, unless
its options accept that. Any other outcome is an error with advice. ``wire.security`` describes the proofs.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

from bookspark.protocol.ledger.responses import Positive, UnknownReason
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.bookie_connection import Answer, BookieConnection, Question
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Header, Kind, WireError
from bookspark.store.wire.messages import Challenge, Hello
from bookspark.store.wire.security import (
    Exchange,
    FromFiles,
    client_context,
    new_nonce,
    proof,
    proven,
    read_secrets,
    without_tls,
)
from bookspark.support.addresses import is_loopback


class ClientSecurity(NamedTuple):
    """A client's credentials, and its demands on bookies. By default neither TLS nor a secret."""

    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    secrets: Callable[[], tuple[bytes, ...]] = tuple
    """Secrets of the client; a bookie has to prove one of them."""
    secret_without_tls: bool = False

    def check(self, host: str) -> None:
        """Raises ConnectionError if secrets must not be used with a bookie at this host."""
        if not (self.secret_without_tls or is_loopback(host)) and self.secrets() and self.tls() is None:
            raise ConnectionError(without_tls(f"the bookie's host {host}"))


def client_security(config: ClientConfig) -> ClientSecurity:
    """A ClientSecurity from the files in the options. Raises ConfigurationError for an unusable file."""
    files, secret_file = (config.tls_ca, config.tls_certificate, config.tls_key), config.shared_secret_file
    return ClientSecurity(
        FromFiles(files, lambda: client_context(*files, roles=config.tls_roles)).now,
        FromFiles((secret_file,), lambda: read_secrets(secret_file)).now,
        config.shared_secret_without_tls,
    )


async def say_hello(
    connection: BookieConnection,
    address: str,
    next_request_id: Callable[[], int],
    name: str,
    security: ClientSecurity,
) -> None:
    """Greet the bookie of ``connection``. ``name``: the client's, for the bookie's log ("": host and process id).

    Raises ConnectionError. An error or a cancellation cuts the connection.
    """
    try:
        name = name or f"{socket.gethostname()}:{os.getpid()}"
        if secrets := security.secrets():
            nonce = new_nonce()
            answer = await _ask(connection, next_request_id(), Hello(nonce=nonce))
            if isinstance(answer.response, Positive):
                raise ConnectionError(
                    f"{address} proves no secret, so it may be anybody's; give the bookie the client's shared_secret_file, or "
                    "leave that option out here"
                )
            if _is_challenge(answer):
                shown = _proof(answer, nonce, address, connection, secrets)
                answer = await _ask(connection, next_request_id(), Hello(name, proof=shown))
                if _is_challenge(answer):
                    raise ConnectionError(
                        f"{address} refuses the proof of its secret; try again: its file was replaced"
                    )
        else:
            answer = await _ask(connection, next_request_id(), Hello(name))
            if _is_challenge(answer):
                raise ConnectionError(f"{address} serves only clients that know its secret; set shared_secret_file")
        if answer.header is None:
            raise ConnectionError(f"{address} does not answer HELLO ({answer.response}); {_hint(security)}")
        _check(answer, answer.header, address, connection.bookie_id)
    except BaseException as error:
        connection.abort(f"no HELLO: {error}")
        raise
    connection.greeted(answer.header.incarnation)


def _proof(
    answer: Answer, nonce: bytes, address: str, connection: BookieConnection, secrets: tuple[bytes, ...]
) -> bytes:
    """The client's proof, of the first secret that the bookie's challenge proves. Raises ConnectionError."""
    try:
        challenge = Challenge.decode(answer.body)
    except WireError as error:
        raise ConnectionError(f"{address} proves no secret: {error}") from error
    if challenge.bookie_id != connection.bookie_id:
        raise ConnectionError(f"{address} is {challenge.bookie_id}, not {connection.bookie_id}")
    if challenge.address != address:
        raise ConnectionError(
            f"{address} passes on to a bookie whose clients dial {challenge.address!r}, and may be anybody's, so no secret is "
            "proved to it; if it is a proxy of yours, set advertised_address of the bookie to it"
        )
    # The address is the dialled one, and the certificate the received one: a relay can choose neither.
    exchange = Exchange(nonce, challenge.nonce, connection.bookie_id, address, connection.certificate_hash)
    secret = proven(secrets, "bookie", challenge.proofs, exchange)
    if secret is None:
        raise ConnectionError(f"{address} has another secret; give both sides the same shared_secret_file")
    return proof(secret, "client", exchange)


def _hint(security: ClientSecurity) -> str:
    if security.tls() is None:
        return "if it wants TLS, set tls_ca"
    return "if it wants a client's certificate, set tls_certificate to one that its tls_client_ca signed"


def _is_challenge(answer: Answer) -> bool:
    return getattr(answer.response, "reason", None) is UnknownReason.UNAUTHORIZED


def _check(answer: Answer, header: Header, address: str, bookie_id: str) -> None:
    told = bytes(answer.body).decode(errors="replace")
    if not isinstance(answer.response, Positive):
        raise ConnectionError(f"{address} refuses HELLO: {told or answer.response}")
    if header.value != PROTOCOL_VERSION:
        raise ConnectionError(
            f"{address} wants protocol version {header.value}, this client speaks {PROTOCOL_VERSION}; "
            "upgrade the older of the two"
        )
    if told != bookie_id:
        raise ConnectionError(f"{address} is {told}, not {bookie_id}")


async def _ask(connection: BookieConnection, request_id: int, hello: Hello) -> Answer:
    answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def on_answer(bookie_id: str, answer: Answer) -> None:
        if not answered.done():
            answered.set_result(answer)

    frame = control_frame(Header(Kind.HELLO, request_id, value=PROTOCOL_VERSION), hello.encode())
    connection.send(request_id, frame, Question(on_answer, None))
    return await answered

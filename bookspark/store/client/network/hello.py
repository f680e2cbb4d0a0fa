"""The first exchange on a connection to a bookie: identity of both sides, and the client's proof of a secret.

Law: after it, the peer is the intended bookie (another bookie may have its old address) and speaks this protocol. Any other
outcome is an error with advice. ``wire.security`` describes the proof.
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
from bookspark.store.wire.header import PROTOCOL_VERSION, Header, Kind
from bookspark.store.wire.messages import Hello
from bookspark.store.wire.security import FromFiles, client_context, proof, read_secrets


class ClientSecurity(NamedTuple):
    """A client's credentials, and its demands on bookies. By default neither TLS nor a secret."""

    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    secrets: Callable[[], tuple[bytes, ...]] = tuple
    """Tried in this order."""


def client_security(config: ClientConfig) -> ClientSecurity:
    """A ClientSecurity from the files in the options. Raises ConfigurationError for an unusable file."""
    files, secret_file = (config.tls_ca, config.tls_certificate, config.tls_key), config.shared_secret_file
    return ClientSecurity(
        FromFiles(files, lambda: client_context(*files, roles=config.tls_roles)).now,
        FromFiles((secret_file,), lambda: read_secrets(secret_file)).now,
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
        answer = await _ask(connection, next_request_id(), Hello(name))
        if _is_challenge(answer):
            if not (secrets := security.secrets()):
                raise ConnectionError(f"{address} serves only clients that know its secret; set shared_secret_file")
            for secret in secrets:
                shown = proof(secret, bytes(answer.body), connection.bookie_id)
                answer = await _ask(connection, next_request_id(), Hello(name, shown))
                if not _is_challenge(answer):
                    break
            else:
                raise ConnectionError(f"{address} has another secret; give both sides the same shared_secret_file")
        if answer.header is None:
            raise ConnectionError(f"{address} does not answer HELLO ({answer.response}); {_hint(security)}")
        _check(answer, answer.header, address, connection.bookie_id)
    except BaseException as error:
        connection.abort(f"no HELLO: {error}")
        raise
    connection.incarnation = answer.header.incarnation


def _hint(security: ClientSecurity) -> str:
    """Likely cause if a bookie ends the connection without an answer."""
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

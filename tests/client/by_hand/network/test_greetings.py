"""The first exchange on a connection: who is believed to be the bookie that was asked for, and what the error says if none is."""

from __future__ import annotations

import asyncio
import os

import pytest

from bookspark.client.network.bookie_connection import Answer
from bookspark.client.network.hello import ClientSecurity, say_hello
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason
from bookspark.wire.frames import parse_frame
from bookspark.wire.header import PROTOCOL_VERSION, Header, Kind
from bookspark.wire.messages import Hello
from bookspark.wire.security import proof
from tests.client.by_hand.network.test_connections_made import GONE, Connection

CHALLENGE = Answer(Unknown(UnknownReason.UNAUTHORIZED), Header(Kind.HELLO, 1), body=memoryview(b"challenge"))


def told(body=b"b1", response=None, version=PROTOCOL_VERSION):
    header = Header(Kind.HELLO, 1, value=version, incarnation=9)
    return Answer(response or Positive(), header, body=memoryview(body))


def greet(*answers, secrets=(), name="me", tls=None):
    """Greet b1, which answers so. Returns the connection, and what it was told."""
    hellos, left = [], list(answers)
    connection = Connection(incarnation=0)

    def send(request_id, frame, request):
        parsed = parse_frame(memoryview(frame))
        assert parsed.header == Header(Kind.HELLO, request_id, value=PROTOCOL_VERSION)
        assert request.timeout_seconds is None, "the whole attempt has one"
        hellos.append(Hello.decode(parsed.body))
        answer = left.pop(0)
        request.tell("b1", answer)
        request.tell("b1", Answer(GONE))  # which comes too late

    connection.send = send
    error = None
    try:
        asyncio.run(
            say_hello(
                connection, "here:1", iter(range(5, 99)).__next__, name, ClientSecurity(lambda: tls, lambda: secrets)
            )
        )
    except ConnectionError as raised:
        error = str(raised)
    assert left == [] and connection.aborted == [f"no HELLO: {error}"] * (error is not None)
    return connection, hellos, error


def test_a_bookie_that_knows_us_is_greeted_once_by_name():
    connection, hellos, error = greet(told())
    assert error is None and connection.incarnation == 9 and hellos == [Hello("me")]
    _, hellos, _ = greet(told(), name="")
    assert hellos[0].client.endswith(f":{os.getpid()}")


@pytest.mark.parametrize("right", [0, 1, 2])
def test_each_secret_is_shown_until_one_is_known(right):
    answers = [CHALLENGE, *[CHALLENGE] * right, told()]
    connection, hellos, error = greet(*answers, secrets=(b"s0", b"s1", b"s2"))
    assert error is None and connection.incarnation == 9
    assert hellos == [Hello("me"), *(Hello("me", proof(b"s%d" % n, b"challenge", "b1")) for n in range(right + 1))]


@pytest.mark.parametrize(
    ("answers", "secrets", "tls", "why"),
    [
        ([CHALLENGE], (), None, "serves only clients that know its secret"),
        ([CHALLENGE, CHALLENGE], (b"s",), None, "has another secret"),
        ([Answer(GONE)], (), None, "if it wants TLS, set tls_ca"),
        ([Answer(GONE)], (), "tls", "set tls_certificate"),
        ([CHALLENGE, Answer(GONE)], (b"s",), None, "does not answer HELLO"),
        ([told(b"no", Unknown(UnknownReason.IO_ERROR))], (), None, "refuses HELLO: no"),
        ([told(b"", Negative())], (), None, "refuses HELLO"),
        ([told(b"no", Unknown(UnknownReason.FENCED))], (), None, "refuses HELLO: no"),
        ([told(version=PROTOCOL_VERSION + 1)], (), None, "wants protocol version"),
        ([told(b"b2")], (), None, "is b2, not b1"),
    ],
)
def test_a_greeting_that_fails_cuts_the_connection_and_says_why(answers, secrets, tls, why):
    connection, _, error = greet(*answers, secrets=secrets, tls=tls)
    assert why in error and connection.incarnation == 0


def test_a_greeting_that_is_cancelled_cuts_the_connection():
    connection = Connection()

    async def cancelled():
        greeting = asyncio.ensure_future(say_hello(connection, "here:1", lambda: 5, "me", ClientSecurity()))
        await asyncio.sleep(0)
        greeting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await greeting

    asyncio.run(cancelled())
    assert len(connection.aborted) == 1

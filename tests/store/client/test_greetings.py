"""HELLO to a bookie and connections that end: errors for the user, and recovery afterwards."""

from __future__ import annotations

import os
import socket

import pytest

from bookspark.errors import ReadError
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from bookspark.store.wire.security import proof
from tests.awaiting import await_that
from tests.store.client.fake_bookie import RESPONSE, FakeBookie, garbage, hang_up, silence, told

CHALLENGE = b"a challenge of the bookie"


def refusal(bookie, header, body):
    return control_frame(Header(Kind.REFUSAL, 0, flags=RESPONSE), b"a frame of 17 bytes")


GREETINGS = {
    "another bookie": (lambda b, h, body: told(h, b"b2", value=1), "is b2, not b1"),
    "another version": (lambda b, h, body: told(h, b"b1", value=2), "wants protocol version 2, this client speaks 1"),
    "no reason": (Status.BAD_REQUEST, "refuses HELLO: request refused as malformed"),
    "a reason": (lambda b, h, body: told(h, b"not today", status=Status.BAD_REQUEST), "refuses HELLO: not today"),
    "a secret": (Status.UNAUTHORIZED, "serves only clients that know its secret; set shared_secret_file"),
    "the end": (hang_up, "does not answer HELLO.*if it wants TLS, set tls_ca"),
    "garbage": (garbage, "sent what is no answer"),
    "a refusal": (refusal, "refused what it was sent: a frame of 17 bytes"),
    "silence": (silence, r"in 0\.3 s"),
}


@pytest.mark.parametrize("greeting", GREETINGS)
def test_failed_hello_gives_its_reason_and_the_next_attempt_succeeds(cluster, greeting):
    (bookie,) = cluster.start("b1")
    answer, words = GREETINGS[greeting]
    bookie.answers[Kind.HELLO] = answer
    # A new client for the second attempt, without the short time limit.
    impatient = {"connect_timeout_seconds": 0.3} if greeting == "silence" else {}
    client = cluster.client(**impatient)
    with pytest.raises(ReadError, match=words):
        client.bookie_status("b1")
    bookie.answers.clear()
    assert (cluster.client() if impatient else client).bookie_status("b1").bookie_id == "b1"


@pytest.mark.parametrize("address", ["", "127.0.0.1", "127.0.0.1:port"])
def test_registration_without_a_valid_address_is_reported(cluster, address):
    cluster.store.register_bookie(BookieRegistration("b1", address, 1))
    with pytest.raises(ReadError, match=f"its registration has no address, but '{address}'"):
        cluster.client().bookie_status("b1")


def test_error_about_an_unreachable_bookie_names_its_address(cluster):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    cluster.store.register_bookie(BookieRegistration("b1", address, 1))
    with pytest.raises(ReadError, match=address):
        cluster.client().bookie_status("b1")


@pytest.mark.parametrize("name", ["", "a client of the test"])
def test_client_sends_hello_once_with_its_name(cluster, name):
    (bookie,) = cluster.start("b1")
    client = cluster.client(client_name=name)
    for _ in range(2):
        client.bookie_status("b1")
    assert len(bookie.came(Kind.HELLO)) == 1
    assert bookie.greeted_by.client == (name or f"{socket.gethostname()}:{os.getpid()}")


def knows(*secrets):
    """An answer to HELLO that demands the proof of one of these secrets."""

    def answer(bookie, header, body):
        admitted = FakeBookie.as_a_bookie(bookie, header, body)
        if bookie.greeted_by.proof in [proof(secret, CHALLENGE, "b1") for secret in secrets]:
            return admitted
        return told(header, CHALLENGE, status=Status.UNAUTHORIZED)

    return answer


@pytest.mark.parametrize(("known", "shown"), [(b"first", 2), (b"second", 3)])
def test_client_tries_each_secret_until_the_bookie_accepts(cluster, tmp_path, known, shown):
    (bookie,) = cluster.start("b1")
    bookie.answers[Kind.HELLO] = knows(known.ljust(32, b"."))
    secrets = tmp_path / "secrets"
    secrets.write_bytes(b"first".ljust(32, b".") + b"\n" + b"second".ljust(32, b".") + b"\n")
    secrets.chmod(0o600)
    assert cluster.client(shared_secret_file=str(secrets)).bookie_status("b1").bookie_id == "b1"
    assert len(bookie.came(Kind.HELLO)) == shown


def test_bookie_with_another_secret_is_reported(cluster, tmp_path):
    (bookie,) = cluster.start("b1")
    bookie.answers[Kind.HELLO] = knows(b"third".ljust(32, b"."))
    secrets = tmp_path / "secrets"
    secrets.write_bytes(b"first".ljust(32, b".") + b"\n")
    secrets.chmod(0o600)
    with pytest.raises(ReadError, match="has another secret; give both sides the same shared_secret_file"):
        cluster.client(shared_secret_file=str(secrets)).bookie_status("b1")


@pytest.mark.parametrize("answer", [garbage, hang_up, refusal])
def test_request_after_a_broken_connection_uses_a_new_connection(cluster, answer):
    (bookie,) = cluster.start("b1")
    client = cluster.client()
    client.bookie_status("b1")
    bookie.answers_once[Kind.STATUS].append(answer)
    if answer is refusal:
        # The bookie sends its reason and closes the connection.
        bookie.answers_once[Kind.STATUS][0] = lambda *request: (bookie.say(refusal(*request)), hang_up(*request))
    with pytest.raises(ReadError, match=r"sent what is no answer|closed by the bookie|refused what it was sent"):
        client.bookie_status("b1")
    assert client.bookie_status("b1").bookie_id == "b1"
    assert len(bookie.came(Kind.HELLO)) == 2


def something_else(bookie, header, body):
    return told(header, request_id=1 << 40)


@pytest.mark.parametrize("answer", [silence, something_else])
def test_late_answer_renews_the_connection_only_if_the_bookie_was_silent(cluster, answer):
    (bookie,) = cluster.start("b1")
    client = cluster.client(answer_timeout_seconds=2.0)
    await_that(lambda: client.bookie_status("b1"), despite=ReadError)
    greeted = len(bookie.came(Kind.HELLO))
    bookie.answers[Kind.STATUS] = answer
    with pytest.raises(ReadError, match=r"no answer in time: 2 s"):
        client.bookie_status("b1")
    bookie.answers.clear()
    await_that(lambda: client.bookie_status("b1"), despite=ReadError)
    assert (len(bookie.came(Kind.HELLO)) > greeted) == (answer is silence)


def test_answer_to_an_unknown_request_is_ignored(cluster):
    (bookie,) = cluster.start("b1")
    client = cluster.client()
    client.bookie_status("b1")
    bookie.say(told(Header(Kind.STATUS, 1 << 40), b"of nothing"))
    assert client.bookie_status("b1").bookie_id == "b1"
    assert len(bookie.came(Kind.HELLO)) == 1

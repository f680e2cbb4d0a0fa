"""HELLO to a bookie and connections that end: errors for the user, and recovery afterwards."""

from __future__ import annotations

import os
import socket

import pytest
import uvloop
from msgspec.structs import replace

from bookspark.errors import ReadError
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from bookspark.store.wire.messages import Challenge, Hello
from bookspark.store.wire.security import STANDS_BETWEEN, Exchange, proof
from tests.awaiting import await_that
from tests.secret_files import new_secret, write_secrets
from tests.store.client.fake_bookie import RESPONSE, FakeBookie, garbage, hang_up, silence, told


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


SECRET, OTHER_SECRET = new_secret(), new_secret()
NONCE = b"b" * 32


def proves(*secrets, proved=lambda exchange: exchange, told=lambda challenge: challenge, role="bookie"):
    """An answer to HELLO: proofs by these secrets, for ``proved`` of the right exchange, in ``told`` of the right challenge. Then
    the bookie serves every proof."""

    def answer(bookie, header, body):
        hello = Hello.decode(body)
        if hello.proof:
            return FakeBookie.as_a_bookie(bookie, header, body)
        address = f"127.0.0.1:{bookie.port}"
        exchange = proved(Exchange(hello.nonce, NONCE, "b1", address, b""))
        proofs = [proof(secret.encode(), role, exchange) for secret in secrets]
        body = told(Challenge("b1", address, NONCE, proofs)).encode()
        return control_frame(header._replace(flags=RESPONSE, status=Status.UNAUTHORIZED), body)

    return answer


def greeted_with(cluster, tmp_path, answer, *secrets):
    """A bookie that answers HELLO so, and a client with these secrets."""
    (bookie,) = cluster.start("b1")
    bookie.hellos = []

    def recorded(bookie, header, body):
        bookie.hellos.append(Hello.decode(body))
        return answer(bookie, header, body)

    bookie.answers[Kind.HELLO] = recorded
    file = write_secrets(tmp_path / "secrets", *secrets)
    return bookie, cluster.client(shared_secret_file=file, client_name="a name")


@pytest.mark.parametrize("known", [(SECRET,), (OTHER_SECRET,), (new_secret(), OTHER_SECRET), (SECRET, OTHER_SECRET)])
def test_client_proves_the_secret_that_the_bookie_proved_and_no_other(cluster, tmp_path, known):
    bookie, client = greeted_with(cluster, tmp_path, proves(*known), SECRET, OTHER_SECRET)
    assert client.bookie_status("b1").bookie_id == "b1"
    asked, shown = bookie.hellos
    assert (asked.client, asked.proof, len(asked.nonce)) == ("", b"", 32), "no name before the bookie's proof"
    exchange = Exchange(asked.nonce, NONCE, "b1", f"127.0.0.1:{bookie.port}", b"")
    expected = SECRET if SECRET in known else OTHER_SECRET
    assert (shown.client, shown.proof) == ("a name", proof(expected.encode(), "client", exchange))


IMPOSTORS = {
    "no proof": (lambda b, h, body: told(h, b"b1", value=1), "proves no secret.*shared_secret_file"),
    "no challenge": (lambda b, h, body: told(h, status=Status.UNAUTHORIZED), "proves no secret"),
    "garbage as challenge": (lambda b, h, body: told(h, b"{}", status=Status.UNAUTHORIZED), "proves no secret"),
    "another secret": (proves(new_secret()), "has another secret; give both sides the same shared_secret_file"),
    "no secrets": (proves(), "has another secret"),
    "the client's role": (proves(SECRET, role="client"), "has another secret"),
    "another nonce of the client": (
        proves(SECRET, proved=lambda exchange: exchange._replace(client_nonce=NONCE)),
        "has another secret",
    ),
    "another nonce of the bookie": (
        proves(SECRET, proved=lambda exchange: exchange._replace(bookie_nonce=b"c" * 32)),
        "has another secret",
    ),
    "another bookie": (
        proves(SECRET, proved=lambda exchange: exchange._replace(bookie_id="b2")),
        "has another secret",
    ),
    "another bookie, by its word": (
        proves(
            SECRET,
            proved=lambda exchange: exchange._replace(bookie_id="b2"),
            told=lambda challenge: replace(challenge, bookie_id="b2"),
        ),
        "is b2, not b1",
    ),
    "another address": (
        proves(SECRET, proved=lambda exchange: exchange._replace(address="127.0.0.1:1")),
        "has another secret",
    ),
    "another address, by its word": (
        proves(
            SECRET,
            proved=lambda exchange: exchange._replace(address="127.0.0.1:1"),
            told=lambda challenge: replace(challenge, address="127.0.0.1:1"),
        ),
        "whose clients dial '127.0.0.1:1'.*advertised_address",
    ),
    "a certificate": (
        proves(SECRET, proved=lambda exchange: exchange._replace(certificate_hash=bytes(32))),
        "has another secret",
    ),
    "a long answer": (
        proves(SECRET, told=lambda challenge: replace(challenge, proofs=[*challenge.proofs, b"p" * 4096])),
        "at most 4096 are allowed",
    ),
}


@pytest.mark.parametrize("impostor", IMPOSTORS)
def test_client_with_a_secret_says_nothing_to_a_bookie_that_does_not_prove_it(cluster, tmp_path, impostor):
    answer, words = IMPOSTORS[impostor]
    bookie, client = greeted_with(cluster, tmp_path, answer, SECRET)
    with pytest.raises(ReadError, match=words):
        client.bookie_status("b1")
    assert {header.kind for header, _ in bookie.requests} == {Kind.HELLO}
    assert bookie.hellos and not [hello for hello in bookie.hellos if hello.proof or hello.client]
    assert not any(any(header.master_key) for header, _ in bookie.requests)


def test_client_asks_each_bookie_with_a_new_nonce(cluster, tmp_path):
    bookie, client = greeted_with(cluster, tmp_path, proves(new_secret()), SECRET)
    for _ in range(3):
        with pytest.raises(ReadError):
            client.bookie_status("b1")
    assert len({hello.nonce for hello in bookie.hellos}) == len(bookie.hellos) >= 3


@pytest.mark.parametrize("address", ["192.0.2.1:3181", "bookie.example:3181", "[2001:db8::1]:3181"])
def test_client_dials_nobody_off_loopback_with_a_secret_and_no_tls(cluster, tmp_path, monkeypatch, address):
    """Unless its options accept that."""
    dialled = []

    async def create_connection(loop, protocol, host, port, **options):
        dialled.append((host, port))
        raise ConnectionRefusedError("a test dials nobody")

    monkeypatch.setattr(uvloop.Loop, "create_connection", create_connection)
    cluster.store.register_bookie(BookieRegistration("b1", address, 1))
    secret = {"shared_secret_file": write_secrets(tmp_path / "secret")}
    words = (
        f"shared_secret_file without TLS, and .* is not loopback. {STANDS_BETWEEN}.*shared_secret_without_tls = true"
    )
    with pytest.raises(ReadError, match=words):
        cluster.client(**secret).bookie_status("b1")
    assert not dialled
    for accepted in ({"shared_secret_without_tls": True} | secret, {}):
        with pytest.raises(ReadError, match="a test dials nobody"):
            cluster.client(**accepted).bookie_status("b1")
    assert len(dialled) == 2


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

"""Proofs of the shared secret at a real bookie, by hand: what it proves, what it accepts, what a wrong proof costs."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from bookspark.store.bookie.serving import porch, served_bookie, server
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Header, Kind, Status
from bookspark.store.wire.messages import Hello
from bookspark.store.wire.security import Exchange, certificate_hash, proof, proven
from bookspark.support.addresses import address_text
from tests.authority import Authority
from tests.secret_files import new_secret, write_secrets
from tests.store.bookie.kit import SECONDS_MAX, Client, config, serving

NONCE, OTHER_NONCE = b"n" * 32, b"o" * 32
SECRET, OTHER_SECRET = new_secret().encode(), new_secret().encode()


@contextmanager
def secured(tmp_path, *secrets, **options):
    """A bookie with these secrets; a function that makes connections to it."""
    file = write_secrets(tmp_path / "secret", *(secret.decode() for secret in secrets or (SECRET,)))
    with serving(config(tmp_path / "bookie", shared_secret_file=file, **options)) as (_, address):
        made = []

        def connect(**arguments):
            made.append(Client(address, greet=False, **arguments))
            return made[-1]

        try:
            yield address_text(*address), connect
        finally:
            for one in made:
                one.close()


def exchanged(client, address, nonce=NONCE, certificate=b""):
    """What both sides have to prove a secret for, after a HELLO."""
    return Exchange(nonce, client.ask_for_proofs(nonce).nonce, "bookie-test", address, certificate)


def is_ended(client):
    """Wait for the end of the connection, after the reason."""
    assert client.receive().header.kind == Kind.REFUSAL
    with pytest.raises(EOFError):
        client.receive()
    return True


def greets(client, address):
    return client.show(proof(SECRET, "client", exchanged(client, address))) == Status.OK


def test_bookie_proves_each_of_its_secrets_and_serves_who_proves_any(tmp_path):
    with secured(tmp_path, SECRET, OTHER_SECRET) as (address, connect):
        for secret in (SECRET, OTHER_SECRET):
            client = connect()
            challenge = client.ask_for_proofs(NONCE)
            assert (challenge.bookie_id, challenge.address) == ("bookie-test", address)
            exchange = Exchange(NONCE, challenge.nonce, "bookie-test", address, b"")
            assert len(challenge.nonce) == 32
            assert proven([b"another", secret], "bookie", challenge.proofs, exchange) == secret
            assert proven([b"another"], "bookie", challenge.proofs, exchange) is None
            assert client.call(Header(Kind.STATUS, 0)).header.status == Status.BAD_REQUEST
            assert client.add(1, 0).status == Status.BAD_REQUEST
            assert client.show(proof(secret, "client", exchange)) == Status.OK
            assert client.add(1, 0).status == Status.OK


def test_nonces_of_a_bookie_are_never_the_same(tmp_path):
    with secured(tmp_path) as (_, connect):
        client = connect()
        assert len({client.ask_for_proofs(NONCE).nonce for _ in range(8)}) == 8


WRONG = {
    "another secret": lambda right, challenge: proof(OTHER_SECRET, "client", right),
    "the bookie's own proof": lambda right, challenge: challenge.proofs[0],
    "the bookie's role": lambda right, challenge: proof(SECRET, "bookie", right),
    "another nonce of the client": lambda right, challenge: proof(
        SECRET, "client", right._replace(client_nonce=OTHER_NONCE)
    ),
    "another nonce of the bookie": lambda right, challenge: proof(
        SECRET, "client", right._replace(bookie_nonce=OTHER_NONCE)
    ),
    "nonces swapped": lambda right, challenge: proof(
        SECRET, "client", right._replace(client_nonce=right.bookie_nonce, bookie_nonce=NONCE)
    ),
    "another bookie": lambda right, challenge: proof(SECRET, "client", right._replace(bookie_id="bookie-tesu")),
    "another address": lambda right, challenge: proof(SECRET, "client", right._replace(address="127.0.0.1:1")),
    "a certificate": lambda right, challenge: proof(SECRET, "client", right._replace(certificate_hash=bytes(32))),
    "half of a proof": lambda right, challenge: proof(SECRET, "client", right)[:16],
}


def test_wrong_proof_ends_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "WRONG_PROOFS_PER_SECOND", 1e9)
    with secured(tmp_path) as (address, connect):
        for make in WRONG.values():
            client = connect()
            challenge = client.ask_for_proofs(NONCE)
            right = Exchange(NONCE, challenge.nonce, "bookie-test", address, b"")
            assert client.show(make(right, challenge)) == Status.UNAUTHORIZED
            assert is_ended(client)
        for unasked in (b"", b"p" * 32):
            client = connect()
            assert client.show(unasked) == Status.UNAUTHORIZED
        assert is_ended(client), "nobody asked for that proof"
        assert greets(connect(), address)


def test_proof_is_good_for_its_connection_and_once(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "WRONG_PROOFS_PER_SECOND", 1e9)
    with secured(tmp_path) as (address, connect):
        recorded, later = connect(), connect()
        shown = proof(SECRET, "client", exchanged(recorded, address))
        exchanged(later, address)
        assert later.show(shown) == Status.UNAUTHORIZED
        assert recorded.show(shown) == Status.OK
        assert recorded.show(shown) == Status.UNAUTHORIZED
        assert is_ended(recorded)


@pytest.mark.parametrize("size", [1, 31, 33])
def test_nonce_of_another_size_is_refused(tmp_path, size):
    with secured(tmp_path) as (_, connect):
        client = connect()
        hello = Header(Kind.HELLO, 0, value=PROTOCOL_VERSION)
        answer = client.call(hello, Hello(nonce=bytes(size)).encode())
        assert answer.header.status == Status.BAD_REQUEST and b"nonce" in bytes(answer.body)


def test_over_tls_a_proof_is_bound_to_the_certificate_of_the_connection(tmp_path, monkeypatch):
    """Also after the file of the certificate was replaced."""
    monkeypatch.setattr(server, "WRONG_PROOFS_PER_SECOND", 1e9)
    authority = Authority(tmp_path / "authority")
    old, new = (Path(authority.certificate(name)).read_text() for name in ("old", "new"))
    file = tmp_path / "bookie.pem"
    file.touch(mode=0o600)
    file.write_text(old)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.load_verify_locations(authority.file)

    def wrap(plain):
        return tls.wrap_socket(plain, server_hostname="127.0.0.1")

    def hashed(pem):
        return certificate_hash(ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE-----") :]))

    with secured(tmp_path, tls_certificate=str(file)) as (address, connect):
        before = connect(wrap=wrap)
        file.write_text(new)
        after = connect(wrap=wrap)
        for client, shown in ((before, old), (after, new)):
            assert certificate_hash(client.socket.getpeercert(binary_form=True)) == hashed(shown)
            right = exchanged(client, address, certificate=hashed(shown))
            assert client.show(proof(SECRET, "client", right)) == Status.OK
        for wrong in (b"", hashed(old)):
            client = connect(wrap=wrap)
            right = exchanged(client, address, certificate=wrong)
            assert client.show(proof(SECRET, "client", right)) == Status.UNAUTHORIZED


# -- the price of a wrong proof


def guess(client, address):
    return client.show(proof(OTHER_SECRET, "client", exchanged(client, address)))


def test_guesses_of_one_address_take_a_pause_each(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "WRONG_PROOFS_PER_SECOND", 5.0)
    with secured(tmp_path) as (address, connect):
        begun = time.monotonic()
        for _ in range(5):
            assert guess(connect(), address) == Status.UNAUTHORIZED
        assert time.monotonic() - begun >= 0.8
        assert greets(connect(), address), "a right client of that address comes in after a pause"


def test_during_the_pause_of_an_address_all_others_are_served(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "WRONG_PROOFS_PER_SECOND", 0.5 / SECONDS_MAX)
    monkeypatch.setattr(porch, "STRANGER_SECONDS", 2 * SECONDS_MAX)
    with secured(tmp_path) as (address, connect):
        served, waiting = connect(), connect()
        assert greets(served, address)
        assert guess(connect(), address) == Status.UNAUTHORIZED
        shown = Hello("test", proof=proof(SECRET, "client", exchanged(waiting, address))).encode()
        waiting.send(control_frame(Header(Kind.HELLO, 9, value=PROTOCOL_VERSION), shown))
        host, port = address.split(":")
        with closing(socket.create_connection((host, int(port)), SECONDS_MAX, ("127.0.0.2", 0))) as elsewhere:
            other = connect()
            other.socket.close()
            other.socket = elsewhere
            assert greets(other, address), "another address has no pause"
        assert served.add(1, 0).status == Status.OK, "nor have clients that are served"
        waiting.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            waiting.receive()


def test_second_hello_while_the_proof_waits_ends_the_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "WRONG_PROOFS_PER_SECOND", 0.5 / SECONDS_MAX)
    monkeypatch.setattr(porch, "STRANGER_SECONDS", 2 * SECONDS_MAX)
    with secured(tmp_path) as (address, connect):
        assert guess(connect(), address) == Status.UNAUTHORIZED
        client = connect()
        hello = control_frame(Header(Kind.HELLO, 9, value=PROTOCOL_VERSION), Hello("test", proof=b"p" * 32).encode())
        client.send(hello, hello)
        assert is_ended(client)


def test_log_names_who_did_not_prove_the_secret(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(served_bookie, "TOLD_SECONDS", 0.0)
    with secured(tmp_path) as (address, connect):
        assert guess(connect(), address) == Status.UNAUTHORIZED
        gone = connect()
        gone.ask_for_proofs(NONCE)
        gone.close()
    assert "a wrong proof of the shared secret" in caplog.text
    assert "it did not prove the shared secret" in caplog.text

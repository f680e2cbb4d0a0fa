"""Impostors before real bookies and clients that have a secret: relays, and bookies that prove nothing. ZooKeeper is open."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.frames import control_frame, parse_frame
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.store.wire.messages import Challenge, FetchFrom, Hello
from bookspark.support.addresses import split_address
from tests.authority import Authority
from tests.awaiting import SECONDS_MAX, await_that
from tests.secret_files import write_secrets
from tests.store.bookie.kit import Client
from tests.system.cluster.impostor import impostor, proves_nothing, registered

pytestmark = pytest.mark.acceptance


@contextlib.contextmanager
def relay(address, wrap=lambda plain: plain):
    """Passes requests on to the bookie at this address, and its answers back."""
    with contextlib.closing(Client(split_address(address), greet=False, wrap=wrap)) as bookie:

        def answers(header, body):
            bookie.send(control_frame(header, body))
            frame = bookie.receive()
            return control_frame(frame.header, bytes(frame.body))

        yield answers


def chooses_nonces(bookie_id, address):
    """Asks for a proof of a nonce that it chose, and proves nothing; sends the client's own nonce back as a proof."""

    def answers(header, body):
        nonce = Hello.decode(body).nonce
        challenge = Challenge(bookie_id, address(), nonce or bytes(32), [nonce, bytes(32)])
        return control_frame(header._replace(flags=Flag.RESPONSE, status=Status.UNAUTHORIZED), challenge.encode())

    return answers


def replays(challenge, address):
    """Answers with a bookie's challenge to somebody else."""

    def answers(header, body):
        said = msgspec.structs.replace(challenge, address=address())
        return control_frame(header._replace(flags=Flag.RESPONSE, status=Status.UNAUTHORIZED), said.encode())

    return answers


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    return write_secrets(tmp_path_factory.mktemp("secret") / "secret")


@pytest.fixture(scope="module")
def cluster(secret, new_chroot):
    with LocalCluster(bookies=3, zookeeper=new_chroot(), shared_secret_file=secret) as running:
        yield running


def asks(cluster, bookie_id, secret, **options):
    """A new client with the secret asks for the bookie's status; why it got none."""
    options = {"answer_timeout_seconds": 2.0, "shared_secret_file": secret} | options
    with cluster.bookkeeper(**options) as victim, pytest.raises(errors.ReadError) as caught:
        victim.bookie_status(bookie_id)
    return str(caught.value)


def test_relay_at_the_old_port_of_a_crashed_bookie_gets_nothing(cluster, secret):
    """It got the client's proof for the bookie at its new port, and was served there as that client."""
    bookie = cluster.bookies[0]
    with cluster.bookkeeper(shared_secret_file=secret) as victim:
        # The client learns all addresses, and dials one of them.
        victim.bookie_status(cluster.bookies[1].bookie_id)
        old = bookie.address
        bookie.kill()
        with impostor(lambda header, body: passed(header, body), port=split_address(old)[1]) as stranger:
            bookie.start()
            assert bookie.address != old
            with relay(bookie.address) as passed:
                assert victim.bookie_status(bookie.bookie_id).pid == bookie.pid, "it goes on to the bookie itself"
                assert stranger.got_nothing()


def test_relay_by_a_registration_made_anew_gets_nothing(cluster, secret):
    bookie = cluster.bookies[0]
    with (
        relay(bookie.address) as passed,
        impostor(passed) as stranger,
        registered(cluster.zookeeper, bookie.bookie_id, stranger.address),
    ):
        assert f"whose clients dial '{bookie.address}'" in asks(cluster, bookie.bookie_id, secret)
        assert stranger.got_nothing()


def test_relay_that_changes_the_address_in_the_answer_gets_nothing(cluster, secret):
    bookie = cluster.bookies[0]

    def changed(header, body):
        got = parse_frame(memoryview(passed(header, body)))
        challenge = msgspec.structs.replace(Challenge.decode(got.body), address=stranger.address)
        return control_frame(got.header, challenge.encode())

    with (
        relay(bookie.address) as passed,
        impostor(changed) as stranger,
        registered(cluster.zookeeper, bookie.bookie_id, stranger.address),
    ):
        assert "has another secret" in asks(cluster, bookie.bookie_id, secret)
        assert stranger.got_nothing()


def test_registration_that_leads_to_another_bookie_gets_nothing(cluster, secret):
    first, second = cluster.bookies[:2]
    with registered(cluster.zookeeper, first.bookie_id, second.address):
        assert f"is {second.bookie_id}, not {first.bookie_id}" in asks(cluster, first.bookie_id, secret)


def test_impostor_that_chooses_or_replays_nonces_gets_nothing(cluster, secret):
    bookie = cluster.bookies[0]
    with contextlib.closing(Client(split_address(bookie.address), greet=False)) as stranger:
        recorded = stranger.ask_for_proofs(bytes(32))
    for made in (
        lambda address: chooses_nonces(bookie.bookie_id, address),
        lambda address: replays(recorded, address),
    ):
        with (
            impostor(made(lambda: stranger.address)) as stranger,
            registered(cluster.zookeeper, bookie.bookie_id, stranger.address),
        ):
            assert "has another secret" in asks(cluster, bookie.bookie_id, secret)
            assert stranger.got_nothing()


def test_relay_between_two_tls_connections_gets_nothing(secret, new_chroot, tmp_path):
    """It has another certificate of the same CA for the same host, and clients dial it as the bookie's address."""
    authority = Authority(tmp_path / "authority")
    of_bookie = {"tls_certificate": authority.certificate("bookie"), "shared_secret_file": secret}
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(authority.file)

    def wrap(plain):
        return trusting.wrap_socket(plain, server_hostname="127.0.0.1")

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Clients dial the impostor, as if it had the bookie's address: only the certificate tells them apart.
    advertised = {"advertised_address": f"127.0.0.1:{port}"}
    with LocalCluster(bookies=1, zookeeper=new_chroot(), **of_bookie, **advertised) as cluster:
        [bookie] = cluster.bookies
        known = {"tls_ca": str(authority.file), "shared_secret_file": secret}
        for certificate in (authority.certificate("impostor"), of_bookie["tls_certificate"]):
            shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            shown.load_cert_chain(certificate)
            with relay(bookie.address, wrap) as passed, impostor(passed, port=port, tls=shown) as stranger:
                if certificate != of_bookie["tls_certificate"]:
                    assert "has another secret" in asks(cluster, bookie.bookie_id, secret, **known)
                    assert stranger.got_nothing()
                    continue
                with cluster.bookkeeper(**known) as client:
                    assert client.bookie_status(bookie.bookie_id).pid == bookie.pid, "nothing else keeps it out"


def test_no_kind_of_client_tells_an_impostor_anything(cluster, secret, tmp_path):
    """Writers, readers, a ledger's recovery, a producer, commands, autorecovery, and the bookies' own clients."""
    options = {"shared_secret_file": secret, "answer_timeout_seconds": 2.0, "add_timeout_seconds": 5.0}
    settings = tmp_path / "bookspark.toml"
    settings.write_text(f'[client]\nshared_secret_file = "{secret}"\n')
    environment = os.environ | {"BOOKSPARK_CONFIG": str(settings), "BOOKSPARK_ZOOKEEPER": cluster.zookeeper}
    bookie = cluster.bookies[0]
    with cluster.bookkeeper(**options) as owner:
        ledger, unclosed = owner.create_ledger(3, 3, 2), owner.create_ledger(3, 3, 2)
        for one in (ledger, unclosed):
            one.append(b"TOP SECRET")
        ledger.close()
        owner_digest = owner.get_ledger_metadata(ledger.ledger_id).digest_type.value
    with (
        impostor(proves_nothing(bookie.bookie_id)) as stranger,
        registered(cluster.zookeeper, bookie.bookie_id, stranger.address),
    ):

        def comes(act):
            """The client's part goes well or not; the impostor was dialled, and got nothing."""
            before = len(stranger.said)
            with contextlib.suppress(errors.BookKeeperError):
                act()
            await_that(lambda: len(stranger.said) > before, 15, act.__name__)
            return stranger.got_nothing()

        def run(*arguments):
            command = [sys.executable, "-m", "bookspark", *arguments]
            subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS_MAX, check=False)

        def write():
            with cluster.bookkeeper(**options) as writer:
                writer.create_ledger(3, 3, 2).append(b"ENTRY FOR A STRANGER")

        def produce():
            with cluster.bookkeeper(**options) as service, create_log(service, "orders").producer("a") as producer:
                producer.append(b"ROW FOR A STRANGER")

        def read():
            with cluster.bookkeeper(**options) as reader:
                handle = reader.open_ledger_no_recovery(ledger.ledger_id)
                assert [entry.payload for entry in handle.read(0, 0)] == [b"TOP SECRET"]
                reader.bookie_status(bookie.bookie_id)

        def recover():
            with cluster.bookkeeper(**options) as recoverer:
                recoverer.open_ledger(unclosed.ledger_id)

        def fetch():
            other, digest = cluster.bookies[1], owner_digest
            with contextlib.closing(Client(split_address(other.address), greet=False)) as repair:
                repair.prove(Path(secret).read_text().strip(), other.bookie_id, other.address)
                asked = Header(Kind.FETCH, 0, ledger.ledger_id, 0, 0, master_key=master_key(b""))
                answer = repair.call(asked, FetchFrom(bookie.bookie_id, digest).encode())
                assert b"proves no secret" in bytes(answer.body)

        def why():
            run("why")

        def command():
            run("bookies")

        for act in (write, produce, read, recover, why, command, fetch):
            assert comes(act)

        def audit():
            ending.callback(cluster.add_autorecovery(client={"shared_secret_file": secret}).stop)

        with contextlib.ExitStack() as ending:
            assert comes(audit)

"""ZooKeeper over TLS and with SASL, by options of the connection string: clients and bookies use them."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, WriterNotClosedException
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.states import KeeperState
from kazoo.security import Id

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.local import LocalCluster
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.zookeeper.layout import Access, parse_address
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.support.threads import Latch
from tests.authority import Authority, private
from tests.awaiting import await_that
from tests.store.metadata.kit import EVENT_SECONDS, begun
from tests.store.metadata.secured_zookeeper import sasl_zookeeper, secured_zookeeper

# Kazoo leaves a socket to the garbage collector when its TLS handshake fails.
pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

SASL = importlib.util.find_spec("puresasl") is not None
needs_sasl = pytest.mark.skipif(not SASL, reason="pure-sasl is not installed")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("secured")


@pytest.fixture(scope="module")
def authority(files):
    return Authority(files / "authority")


@pytest.fixture(scope="module")
def server(files, authority):
    certificate = authority.certificate("zookeeper")
    with secured_zookeeper(files / "zookeeper", certificate, str(authority.file), "us", "our password") as where:
        yield where


@pytest.fixture(scope="module")
def options(files, authority):
    tls = f"?tls_ca={authority.file}&tls_certificate={authority.certificate('us')}"
    return tls + (f"&sasl_file={secret(files, 'us', 'us:our password')}" if SASL else "")


def secret(files, name, content):
    return private(files / name, content + "\n")


def test_cluster_runs_over_tls_and_sasl_and_refuses_other_clients(files, authority, options, server):
    connect = f"{server}/secured{options}"
    begun(connect, start_timeout_seconds=60.0).close()
    with LocalCluster(bookies=1, zookeeper=connect) as cluster, cluster.bookkeeper() as client:
        ledger = client.create_ledger(1, 1, 1)
        ledger.append(b"entry")
        ledger.close()
        assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == [b"entry"]
    refused = {"": "could not be reached", f"?tls_ca={authority.file}": "and the files of its options"}
    if SASL:
        other = f"?tls_ca={authority.file}&tls_certificate={authority.certificate('other')}"
        refused[other] = "NoAuthError.*sasl_file"
        refused[f"{other}&sasl_file={secret(files, 'guessed', 'us:guessed')}"] = "AuthFailedError"

    def ask(others, seconds):
        with contextlib.closing(ZooKeeperStore(f"{server}/secured{others}", start_timeout_seconds=seconds)) as stranger:
            stranger.new_ledger_id()

    for others, told in refused.items():
        with pytest.raises(MetadataStoreError, match=told):
            # An expected answer from the server gets enough time; a server that never answers gets 1 s.
            ask(others, 60.0 if "Error" in told else 1.0)


@pytest.fixture
def turned_away(monkeypatch):
    """Each new session removes an item from this list, if any, and fails as if refused during the SASL exchange."""
    left = []
    authenticate = ConnectionHandler._authenticate_with_sasl

    def turns_away(self, host, timeout):
        if left:
            left.pop()
            raise AuthFailedError("Connection dropped in SASL")
        authenticate(self, host, timeout)

    monkeypatch.setattr(ConnectionHandler, "_authenticate_with_sasl", turns_away)
    return left


@needs_sasl
def test_sasl_refusal_before_the_start_waits_is_reported(options, server, turned_away, monkeypatch):
    """The refusal came before the start began to wait; the start then timed out without reporting it."""
    turned_away += [None] * 100
    seen = threading.Event()
    told, wait = KazooClient._session_callback, Latch.wait

    def tells(self, state):
        told(self, state)
        if state == KeeperState.AUTH_FAILED:
            seen.set()

    def waits_late(self, timeout_seconds=None):
        seen.wait(EVENT_SECONDS)
        return wait(self, timeout_seconds)

    monkeypatch.setattr(KazooClient, "_session_callback", tells)
    monkeypatch.setattr(Latch, "wait", waits_late)
    with pytest.raises(MetadataStoreError, match=r"AuthFailedError.*sasl_file"):
        ZooKeeperStore(f"{server}/secured{options}", start_timeout_seconds=EVENT_SECONDS)


@needs_sasl
def test_connection_lost_during_the_sasl_exchange_is_retried(options, server, turned_away):
    """Kazoo takes the lost connection for a refusal and does not retry: a bookie stayed unregistered forever."""
    bookie = BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7)
    with contextlib.closing(begun(f"{server}/exchange{options}", start_timeout_seconds=EVENT_SECONDS)) as store:
        store.register_bookie(bookie)
        turned_away.append(None)
        store.client._connection._socket.shutdown(socket.SHUT_RDWR)
        await_that(lambda: not turned_away, what="a session that is turned away")
        await_that(
            lambda: store.bookies() == {"bookie-1": bookie},
            what="the bookie's registration",
            despite=MetadataStoreError,
        )


@needs_sasl
def test_failed_restart_of_a_session_is_retried(options, server, turned_away, monkeypatch):
    failed = threading.Event()
    start = KazooClient.start_async

    def fails_once(self):
        if not failed.is_set():
            failed.set()
            raise WriterNotClosedException("the last thread has not ended")
        return start(self)

    with contextlib.closing(begun(f"{server}/again{options}", start_timeout_seconds=EVENT_SECONDS)) as store:
        monkeypatch.setattr(KazooClient, "start_async", fails_once)
        turned_away.append(None)
        store.client._connection._socket.shutdown(socket.SHUT_RDWR)
        assert failed.wait(EVENT_SECONDS)
        await_that(lambda: store.new_ledger_id() >= 0, what="a new session", despite=MetadataStoreError)


@needs_sasl
def test_cluster_runs_at_an_ipv6_zookeeper_that_requires_sasl(files):
    with sasl_zookeeper(files / "sasl", "us", "our/pass+word=") as server:
        ours = f"{server}/required?sasl_file={secret(files, 'ours', 'us:our/pass+word=')}"
        with contextlib.closing(begun(ours, start_timeout_seconds=60.0)) as store:
            for path in ("/required", "/required/ledgers", "/required/bookspark"):
                assert [acl.id for acl in store.client.get_acls(path)[0]] == [Id("sasl", "us")]
            assert store.exposure().nodes == ("/", "/zookeeper", "/zookeeper/quota")
        with LocalCluster(bookies=1, zookeeper=ours, host="::1") as cluster, cluster.bookkeeper() as client:
            assert cluster.bookies[0].address.startswith("[::1]:")
            ledger = client.create_ledger(1, 1, 1)
            ledger.append(b"entry")
            ledger.close()
            assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == [b"entry"]
        wrong = secret(files, "wrong", "us:guessed")
        for options, told in (("", "RequireSasl"), (f"?auth_file={wrong}", "RequireSasl"), (f"?sasl_file={wrong}", "")):
            with pytest.raises(MetadataStoreError, match=rf"{told}.*sasl_file"):
                ZooKeeperStore(f"{server}/required{options}", start_timeout_seconds=60.0)


def test_server_with_an_untrusted_certificate_authority_is_refused(files, server):
    stranger = Authority(files / "stranger")
    options = f"?tls_ca={stranger.file}&tls_certificate={stranger.certificate('us')}"
    with pytest.raises(MetadataStoreError, match="could not be reached"):
        ZooKeeperStore(f"{server}/secured{options}", start_timeout_seconds=1.0)


def test_unreadable_files_in_connection_options_are_refused(tmp_path):
    for option in Access._fields:
        more = "" if option in ("auth_file", "sasl_file", "tls_ca") else f"&tls_ca={__file__}"
        more += f"&tls_certificate={__file__}" if option == "tls_key" else ""
        with pytest.raises(ConfigurationError, match=f"{option} /nowhere can't be read"):
            ZooKeeperStore(f"h?{option}=/nowhere{more}")
    with pytest.raises(ConfigurationError, match=r"sasl_file .* does not hold user:password"):
        ZooKeeperStore(f"h?sasl_file={secret(tmp_path, 'empty', '')}")


@pytest.mark.skipif(SASL, reason="pure-sasl is installed")
def test_error_about_missing_sasl_package_names_the_extra(tmp_path):
    with pytest.raises(ConfigurationError, match=r"sasl_file needs puresasl.*bookspark\[sasl\]"):
        ZooKeeperStore(f"h?sasl_file={secret(tmp_path, 'us', 'us:our password')}")


@pytest.mark.parametrize(
    "query", ["tls_key=/k", "tls_ca=/a&tls_key=/k", "tls_ca=/a&tls_ca=/b", "tls_ca=", "user=me", "&"]
)
def test_invalid_connection_options_are_refused(query):
    with pytest.raises(ConfigurationError, match="does not name a ZooKeeper"):
        parse_address(f"h?{query}")

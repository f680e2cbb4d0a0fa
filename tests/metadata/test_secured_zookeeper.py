"""ZooKeeper over TLS and with SASL, as the options of the connection string say: client, bookies and their clients take them."""

from __future__ import annotations

import contextlib
import importlib.util

import pytest

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.local import LocalCluster
from bookspark.metadata.zookeeper.layout import Access, parse_address
from bookspark.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.authority import Authority
from tests.metadata.kit import begun
from tests.metadata.secured_zookeeper import secured_zookeeper

# Kazoo leaves a socket to the garbage collector when TLS fails on it.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")

SASL = importlib.util.find_spec("puresasl") is not None


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


def secret(files, name, content):
    path = files / name
    path.write_text(content + "\n")
    return str(path)


def test_a_cluster_runs_over_tls_and_sasl_and_nobody_else_gets_in(files, authority, server):
    tls = f"tls_ca={authority.file}&tls_certificate={authority.certificate('us')}"
    sasl = f"&sasl_file={secret(files, 'us', 'us:our password')}" if SASL else ""
    connect = f"{server}/secured?{tls}{sasl}"
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

    def ask(options, seconds):
        with contextlib.closing(
            ZooKeeperStore(f"{server}/secured{options}", start_timeout_seconds=seconds)
        ) as stranger:
            stranger.new_ledger_id()

    for options, told in refused.items():
        with pytest.raises(MetadataStoreError, match=told):
            # Whom the server answers has time to hear it; whom it never answers waits in vain.
            ask(options, 60.0 if "Error" in told else 1.0)


def test_a_server_that_a_stranger_vouches_for_is_not_trusted(files, server):
    stranger = Authority(files / "stranger")
    options = f"?tls_ca={stranger.file}&tls_certificate={stranger.certificate('us')}"
    with pytest.raises(MetadataStoreError, match="could not be reached"):
        ZooKeeperStore(f"{server}/secured{options}", start_timeout_seconds=1.0)


def test_options_are_files_that_are_there(tmp_path):
    for option in Access._fields:
        more = "" if option in ("auth_file", "sasl_file", "tls_ca") else f"&tls_ca={__file__}"
        more += f"&tls_certificate={__file__}" if option == "tls_key" else ""
        with pytest.raises(ConfigurationError, match=f"{option} /nowhere can't be read"):
            ZooKeeperStore(f"h?{option}=/nowhere{more}")
    with pytest.raises(ConfigurationError, match=r"sasl_file .* does not hold user:password"):
        ZooKeeperStore(f"h?sasl_file={secret(tmp_path, 'empty', '')}")


@pytest.mark.skipif(SASL, reason="pure-sasl is installed")
def test_sasl_without_its_package_names_the_extra(tmp_path):
    with pytest.raises(ConfigurationError, match=r"sasl_file needs puresasl.*bookspark\[sasl\]"):
        ZooKeeperStore(f"h?sasl_file={secret(tmp_path, 'us', 'us:our password')}")


@pytest.mark.parametrize(
    "query", ["tls_key=/k", "tls_ca=/a&tls_key=/k", "tls_ca=/a&tls_ca=/b", "tls_ca=", "user=me", "&"]
)
def test_options_that_make_no_sense_are_refused(query):
    with pytest.raises(ConfigurationError, match="does not name a ZooKeeper"):
        parse_address(f"h?{query}")

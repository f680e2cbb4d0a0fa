"""Certificates in PEM files: when they end, and keys that nobody is asked to unlock."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bookspark.support.certificates import DAY_MS, Ends, end_text, ends, ends_by_option
from tests.authority import Authority, locked, private
from tests.awaiting import await_that
from tests.terminals import terminal

_LOADERS = """
import sys
from bookspark.errors import ConfigurationError
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.wire.security import client_context, server_context

ca, pem = sys.argv[1:]
for load in (
    lambda: server_context(pem, "", ""),
    lambda: server_context(pem, pem, ca),
    lambda: client_context(ca, pem, ""),
    lambda: ZooKeeperStore(f"zk://127.0.0.1:1?tls_ca={ca}&tls_certificate={pem}"),
):
    try:
        load()
    except ConfigurationError as error:
        print("refused:", error)
"""

_RECONNECTING = """
import logging
import shutil
import socket
import sys
import threading
from bookspark.errors import MetadataStoreError
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore

ca, pem, locked = sys.argv[1:]
logging.basicConfig(level=logging.WARNING)
server = socket.create_server(("127.0.0.1", 0))

def serve():
    connection, _ = server.accept()
    shutil.copy(locked, pem)
    connection.close()

threading.Thread(target=serve, daemon=True).start()
address = f"zk://127.0.0.1:{server.getsockname()[1]}?tls_ca={ca}&tls_certificate={pem}"
try:
    ZooKeeperStore(address, start_timeout_seconds=2.0)
except MetadataStoreError as error:
    print(error)
"""


def by_openssl(path: str | Path) -> int:
    """When the first certificate of a file ends, in ms since 1970, as openssl says."""
    command = ["openssl", "x509", "-enddate", "-noout", "-in", path]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    at = datetime.strptime(told.strip(), "notAfter=%b %d %H:%M:%S %Y GMT").replace(tzinfo=UTC)
    return int(at.timestamp() * 1000)


@pytest.mark.parametrize("days", [-1, 1, 365, 20_000])
def test_end_of_a_certificate_is_that_of_openssl(tmp_path, days):
    """From 2050 on the form of the time is another."""
    certificate = Authority(tmp_path / "ca").certificate("host", days=days)
    assert ends(certificate) == Ends(by_openssl(certificate), by_openssl(certificate))


def test_end_that_counts_is_the_first_of_a_chain_and_the_last_of_several_authorities(tmp_path):
    old, new = (Authority(tmp_path / f"{days}", days=days) for days in (10, 20))
    several = tmp_path / "several.pem"
    several.write_text(old.file.read_text() + new.file.read_text())
    first, last = by_openssl(old.file), by_openssl(new.file)
    assert ends_by_option(tls_ca=str(several), tls_certificate=str(several), tls_client_ca="") == {
        "tls_ca": last,
        "tls_certificate": first,
    }


@pytest.mark.parametrize("text", ["", "no PEM", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_file_without_a_certificate_has_no_end(tmp_path, text):
    (tmp_path / "file").write_text(text)
    assert ends(str(tmp_path / "file")) is None
    assert ends_by_option(tls_ca=str(tmp_path / "file"), tls_certificate="/nowhere") == {}


def test_end_is_written_with_days_and_date():
    assert end_text(9 * DAY_MS + 1, 0) == "ends in 9 days, on 1970-01-10 00:00 UTC"
    assert end_text(0, DAY_MS) == "ended 1 day ago, on 1970-01-01 00:00 UTC"


def test_renewed_zookeeper_key_with_a_passphrase_does_not_ask_the_terminal(tmp_path):
    """The connection to ZooKeeper reads its files again at each connect."""
    authority = Authority(tmp_path / "ca")
    pem = tmp_path / "client.pem"
    private(pem, Path(authority.certificate("client")).read_text())
    key = locked(str(pem), tmp_path / "locked.pem")
    with terminal([sys.executable, "-c", _RECONNECTING, str(authority.file), str(pem), key]) as running:
        await_that(lambda: running.ended.is_set() or running.asks)
    assert "the key has a passphrase" in running.said and not running.asks, running.said


def test_key_with_a_passphrase_is_refused_and_the_terminal_is_not_asked(tmp_path):
    authority = Authority(tmp_path / "ca")
    key = locked(authority.certificate("host"), tmp_path / "locked.pem")
    with terminal([sys.executable, "-c", _LOADERS, str(authority.file), key]) as running:
        await_that(lambda: running.ended.is_set() or running.asks)
    assert running.said.count("refused:") == running.said.count("the key has a passphrase") == 4, running.said

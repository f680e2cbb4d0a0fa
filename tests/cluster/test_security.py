"""TLS and the shared secret over real bookies: who knows is served, and everybody else is told what is missing."""

from __future__ import annotations

import re
import subprocess
from itertools import count

import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from tests.awaiting import await_that
from tests.cluster.copies import cut_power, held_by

_serial = count(1)


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


class Authority:
    """A CA, and what it signs: ``certificate(name, host)`` is a PEM file with a key and a certificate for that address."""

    def __init__(self, directory):
        self._directory = directory
        directory.mkdir()
        self.file = directory / "ca.pem"
        self._key = directory / "ca.key"
        options = ("-nodes", "-days", 2, "-subj", "/CN=test CA", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        extension = ("-addext", "keyUsage=critical,keyCertSign")
        openssl("req", "-x509", *options, *extension, "-keyout", self._key, "-out", self.file)

    def certificate(self, name, host="127.0.0.1"):
        request, signed, extension = (self._directory / f"{name}.{end}" for end in ("csr", "crt", "ext"))
        both = self._directory / f"{name}.pem"
        options = ("-nodes", "-subj", f"/CN={name}", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
        openssl("req", *options, "-keyout", both, "-out", request)
        extension.write_text(f"subjectAltName=IP:{host}\nauthorityKeyIdentifier=keyid\n")
        authority = ("-CA", self.file, "-CAkey", self._key, "-set_serial", next(_serial), "-extfile", extension)
        openssl("x509", "-req", "-days", 2, "-in", request, *authority, "-out", signed)
        both.write_bytes(both.read_bytes() + signed.read_bytes())
        return str(both)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return tmp_path_factory.mktemp("security")


@pytest.fixture(scope="module")
def authority(files):
    return Authority(files / "authority")


@pytest.fixture(scope="module")
def stranger(files):
    return Authority(files / "stranger")


def secret_file(directory, name, secret):
    path = directory / name
    path.write_text(secret + "\n")
    return str(path)


@pytest.fixture(scope="module")
def cluster(files, authority, new_chroot):
    with LocalCluster(
        bookies=1,
        tls_certificate=authority.certificate("bookie"),
        tls_client_ca=str(authority.file),
        shared_secret_file=secret_file(files, "secret", "the secret"),
        zookeeper=new_chroot(),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def known(files, authority):
    """The options of a client that is served."""
    return {
        "tls_ca": str(authority.file),
        "tls_certificate": authority.certificate("client"),
        "shared_secret_file": secret_file(files, "secret of the client", "the secret"),
    }


def why_not_served(cluster, **options):
    """What a client with these options is told when it appends."""
    client = cluster.bookkeeper(**options)
    ledger = client.create_ledger(1, 1, 1)
    with pytest.raises(errors.NotEnoughBookiesError) as caught:
        ledger.append(b"x")
    with pytest.raises(errors.ReadError):
        client.bookie_status(cluster.bookies[0].bookie_id)
    return str(caught.value)


def test_who_has_it_all_is_served(cluster, known):
    client = cluster.bookkeeper(**known)
    ledger = client.create_ledger(1, 1, 1)
    payloads = [b"%d" % i * 1000 for i in range(2000)]
    ledger.append_batch(payloads)
    ledger.close()
    assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == payloads
    assert client.bookie_status(cluster.bookies[0].bookie_id).bookie_id == cluster.bookies[0].bookie_id


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        (["tls_ca", "tls_certificate"], "if it wants TLS, set tls_ca"),
        (["tls_certificate"], "set tls_certificate"),
        (["shared_secret_file"], "set shared_secret_file"),
    ],
)
def test_what_is_missing_is_named(cluster, known, missing, told):
    options = {name: value for name, value in known.items() if name not in missing}
    assert re.search(told, why_not_served(cluster, **options))


def test_another_secret_is_refused(cluster, known, files):
    other = secret_file(files, "another secret", "guessed")
    assert "give both sides the same shared_secret_file" in why_not_served(
        cluster, **known | {"shared_secret_file": other}
    )


def test_a_client_that_a_stranger_vouches_for_is_refused(cluster, known, stranger):
    assert "set tls_certificate to one that its tls_client_ca signed" in why_not_served(
        cluster, **known | {"tls_certificate": stranger.certificate("client")}
    )


def test_a_bookie_that_a_stranger_vouches_for_is_not_trusted(cluster, known, stranger):
    message = why_not_served(cluster, **known | {"tls_ca": str(stranger.file)})
    assert "certificate verify failed" in message


def test_a_certificate_for_another_host_is_not_trusted(cluster, known, authority):
    bookie = cluster.add_bookie(tls_certificate=authority.certificate("elsewhere", "192.0.2.1"))
    try:
        with pytest.raises(errors.ReadError, match="certificate verify failed: IP address mismatch"):
            cluster.bookkeeper(**known).bookie_status(bookie.bookie_id)
    finally:
        bookie.stop()
        cluster.bookies.remove(bookie)


def test_a_client_that_wants_tls_does_not_go_on_without(known, files, new_chroot):
    with LocalCluster(bookies=1, zookeeper=new_chroot()) as plain:
        assert "if it speaks no TLS, leave tls_ca out" in why_not_served(plain, tls_ca=known["tls_ca"])


def test_files_that_cannot_be_used_are_named(cluster, known, files, chroot):
    def started(**options):
        with LocalCluster(bookies=1, zookeeper=chroot, **options):
            pass

    empty = secret_file(files, "empty", "")
    for options, told in (
        ({"tls_certificate": "/nowhere.pem"}, r"tls_certificate /nowhere\.pem"),
        ({"tls_key": "/nowhere.pem"}, "without tls_certificate"),
        ({"shared_secret_file": empty}, "is empty"),
    ):
        with pytest.raises(errors.BookieError, match=told):
            started(**options)
    for options, told in (
        ({"tls_ca": "/nowhere.pem"}, r"tls_ca /nowhere\.pem"),
        ({"tls_key": "/nowhere.pem"}, "without tls_ca|set that too"),
        ({"shared_secret_file": "/nowhere"}, "can't be read"),
    ):
        with pytest.raises(errors.ConfigurationError, match=told):
            cluster.bookkeeper(**options).list_ledgers()


def test_a_bookie_with_tls_and_a_secret_heals_itself(files, authority, known, new_chroot):
    """It asks its peers, and itself, as any client does; without a CA and the secret it stayed in limbo."""
    options = {
        "tls_certificate": authority.certificate("healing bookie"),
        "tls_client_ca": str(authority.file),
        "shared_secret_file": secret_file(files, "secret of all", "the secret"),
    }
    later = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}
    with LocalCluster(bookies=3, journal_write_data=False, **options, **later, zookeeper=new_chroot()) as cluster:
        client = cluster.bookkeeper(**known)
        ledger = client.create_ledger(3, 3, 3)
        ledger.append_batch([b"entry"] * 10)
        bookie = cluster.bookies[0]
        cut_power(bookie)
        await_that(lambda: (status := client.bookie_status(bookie.bookie_id)).healed_boot == status.lossy_boot > 0)
        assert held_by(client, bookie.bookie_id, ledger.ledger_id) == set(range(10))

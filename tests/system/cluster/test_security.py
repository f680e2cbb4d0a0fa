"""TLS and the shared secret over real bookies: who knows is served, and everybody else is told what is missing."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from bookspark import errors
from bookspark.local import LocalCluster
from bookspark.servers.daemon.bookie_process import open_to_strangers
from bookspark.store.bookie.bookie_config import bookie_config
from tests.authority import Authority
from tests.awaiting import await_that
from tests.system.cluster.copies import cut_power, held_by

pytestmark = pytest.mark.acceptance


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
        # An idle writer tells its LAC, and with that record a bookie syncs what the cut is to take.
        client = cluster.bookkeeper(**known, explicit_lac_interval_seconds=3600.0)
        ledger = client.create_ledger(3, 3, 3)
        ledger.append_batch([b"entry"] * 10)
        bookie = cluster.bookies[0]
        cut_power(bookie)
        await_that(lambda: (status := client.bookie_status(bookie.bookie_id)).healed_boot == status.lossy_boot > 0)
        assert held_by(client, bookie.bookie_id, ledger.ledger_id) == set(range(10))


def test_secrets_are_replaced_without_a_restart(files, new_chroot):
    """All clients and bookies had to be stopped, and started with the new secret at once."""
    bookies, client = files / "secret of bookies", files / "secret of one client"
    bookies.write_text("the old one\n")
    client.write_text("the old one\n")

    def served(cluster, path):
        with cluster.bookkeeper(shared_secret_file=str(path)) as known:
            known.bookie_status(cluster.bookies[0].bookie_id)
            return True

    with LocalCluster(bookies=1, shared_secret_file=str(bookies), zookeeper=new_chroot()) as cluster:
        writer = cluster.bookkeeper(shared_secret_file=str(client))
        ledger = writer.create_ledger(1, 1, 1)
        ledger.append(b"before")
        bookies.write_text("the old one\nthe new one\n")
        assert served(cluster, client)
        client.write_text("the new one\n")
        assert served(cluster, client)
        client.write_text("of another cluster\nthe new one\n")
        assert served(cluster, client), "a client tries each of its secrets"
        bookies.write_text("")
        assert served(cluster, client), "a file that makes no sense changes nothing"
        bookies.write_text("the new one\n")
        assert served(cluster, client)
        with pytest.raises(errors.ReadError, match="has another secret"):
            served(cluster, secret_file(files, "the one before", "the old one"))
        ledger.append(b"after")
        writer.close()


def test_certificates_are_replaced_without_a_restart(files, new_chroot):
    old, new = Authority(files / "old authority"), Authority(files / "new authority")
    certificate, ca = files / "certificate of a bookie", files / "ca of a client"
    certificate.write_text(Path(old.certificate("bookie")).read_text())
    ca.write_text(old.file.read_text())
    with LocalCluster(bookies=1, tls_certificate=str(certificate), zookeeper=new_chroot()) as cluster:
        writer = cluster.bookkeeper(tls_ca=str(ca))
        writer.create_ledger(1, 1, 1).append(b"before")
        ca.write_text(old.file.read_text() + new.file.read_text())
        certificate.write_text(Path(new.certificate("bookie")).read_text())
        with cluster.bookkeeper(tls_ca=str(ca)) as both, cluster.bookkeeper(tls_ca=str(new.file)) as later:
            for client in (both, later):
                assert client.bookie_status(cluster.bookies[0].bookie_id).pid == cluster.bookies[0].pid
        with cluster.bookkeeper(tls_ca=str(old.file)) as late, pytest.raises(errors.ReadError, match="verify failed"):
            late.bookie_status(cluster.bookies[0].bookie_id)


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({}, False),
        ({"host": "::1"}, False),
        ({"host": "localhost"}, False),
        ({"host": "192.0.2.1"}, True),
        ({"host": "bookies.example"}, True),
        ({"host": "0.0.0.0", "advertised_address": "192.0.2.1:3181"}, True),
        ({"host": "192.0.2.1", "tls_certificate": "/c"}, True),
        ({"host": "192.0.2.1", "tls_certificate": "/c", "tls_client_ca": "/a"}, False),
        ({"host": "192.0.2.1", "shared_secret_file": "/s"}, False),
    ],
)
def test_a_bookie_off_loopback_that_asks_nobody_who_he_is_warns(options, warned):
    told = open_to_strangers(bookie_config(directories=["/d"], zookeeper="-", **options))
    assert bool(told) is warned and (not warned or "set shared_secret_file" in told)


def test_the_warning_is_in_the_log_of_its_start(new_chroot):
    """Written so, it is a name that the bookie does not know for this machine's."""
    with LocalCluster(bookies=1, host="127.1", zookeeper=new_chroot()) as cluster:
        log = Path(cluster.bookies[0].directories[0], "bookie.log").read_text()
        assert "listens on 127.1, and asks nobody" in log


def test_what_a_cluster_keeps_is_its_owners_alone(files):
    before = os.umask(0o022)
    kept = files / "kept"
    try:
        open_to_others = kept / "bookie-0"
        open_to_others.mkdir(parents=True, mode=0o755)
        with LocalCluster(
            bookies=1, directory=str(kept), autorecovery=True, checkpoint_interval_seconds=0.2
        ) as cluster:
            ledger = cluster.bookkeeper().create_ledger(1, 1, 1, password=b"password")
            ledger.append(b"entry")
            ledger.close()
            await_that(lambda: list(open_to_others.rglob("*checkpoint*")))
            modes = {}
            for path in (open_to_others, *open_to_others.rglob("*"), kept / "zookeeper", *kept.rglob("zookeeper/**/*")):
                with suppress(FileNotFoundError):
                    modes[str(path)] = path.lstat().st_mode
    finally:
        os.umask(before)
    assert len(modes) > 10
    assert not {path: oct(mode) for path, mode in modes.items() if mode & 0o077}


def test_a_secret_may_be_named_from_where_the_cluster_is_started(files, monkeypatch, new_chroot):
    """The bookie has another working directory, and did not find it."""
    secret_file(files, "here", "the secret")
    monkeypatch.chdir(files)
    with (
        LocalCluster(bookies=1, shared_secret_file="here", zookeeper=new_chroot()) as started,
        started.bookkeeper(shared_secret_file="here") as client,
    ):
        assert client.create_ledger(1, 1, 1).append(b"entry") == 0


def test_a_cluster_that_has_bookies_is_closed(files, authority, known, new_chroot, tmp_path):
    """The guide's two ways: a secret comes without a stop, because a bookie without one serves clients that have one; TLS comes
    with all bookies stopped, and what was acknowledged is there afterwards."""
    secret = {"shared_secret_file": known["shared_secret_file"]}
    with LocalCluster(bookies=2, directory=tmp_path, zookeeper=new_chroot()) as plain:
        plain.add_bookie(**secret)
        with plain.bookkeeper(**secret) as client, client.create_ledger(3, 3, 3) as ledger:
            ledger.append(b"before")
        address = plain.zookeeper
    tls = {"tls_certificate": authority.certificate("closed bookie"), "tls_ca": str(authority.file)}
    with (
        LocalCluster(bookies=3, directory=tmp_path, zookeeper=address, **tls, **secret) as closed,
        closed.bookkeeper(tls_ca=str(authority.file), **secret) as client,
    ):
        assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == [b"before"]

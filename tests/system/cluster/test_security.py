"""TLS and the shared secret over real bookies."""

from __future__ import annotations

import os
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bookspark import BookKeeper, errors
from bookspark.local import LocalCluster
from bookspark.servers.daemon.bookie_process import open_to_strangers
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.hello import client_security
from bookspark.store.wire.security import STANDS_BETWEEN
from tests.authority import Authority, locked, private
from tests.awaiting import await_that
from tests.secret_files import new_secret, write_secrets
from tests.system.cluster.copies import cut_power, held_by
from tests.terminals import terminal

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


SECRET = new_secret()


def secret_file(directory, name, secret):
    return write_secrets(directory / name, secret)


@pytest.fixture(scope="module")
def cluster(files, authority, new_chroot):
    with LocalCluster(
        bookies=1,
        tls_certificate=authority.certificate("bookie"),
        tls_client_ca=str(authority.file),
        shared_secret_file=secret_file(files, "secret", SECRET),
        zookeeper=new_chroot(),
    ) as running:
        yield running


@pytest.fixture(scope="module")
def known(files, authority):
    """Options of a client that is served."""
    return {
        "tls_ca": str(authority.file),
        "tls_certificate": authority.certificate("client"),
        "shared_secret_file": secret_file(files, "secret of the client", SECRET),
    }


def why_not_served(cluster, **options):
    """The error that a client with these options gets when it appends."""
    client = cluster.bookkeeper(**options)
    ledger = client.create_ledger(1, 1, 1)
    with pytest.raises(errors.NotEnoughBookiesError) as caught:
        ledger.append(b"x")
    with pytest.raises(errors.ReadError):
        client.bookie_status(cluster.bookies[0].bookie_id)
    return str(caught.value)


def test_client_with_certificate_and_secret_is_served(cluster, known):
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
def test_error_names_the_missing_option(cluster, known, missing, told):
    options = {name: value for name, value in known.items() if name not in missing}
    assert re.search(told, why_not_served(cluster, **options))


def test_client_with_another_secret_is_refused(cluster, known, files):
    other = secret_file(files, "another secret", new_secret())
    assert "give both sides the same shared_secret_file" in why_not_served(
        cluster, **known | {"shared_secret_file": other}
    )


def test_client_certificate_of_an_unknown_authority_is_refused(cluster, known, stranger):
    assert "set tls_certificate to one that its tls_client_ca signed" in why_not_served(
        cluster, **known | {"tls_certificate": stranger.certificate("client")}
    )


def test_bookie_certificate_of_an_unknown_authority_is_refused(cluster, known, stranger):
    message = why_not_served(cluster, **known | {"tls_ca": str(stranger.file)})
    assert "certificate verify failed" in message


def test_bookie_certificate_for_another_host_is_refused(cluster, known, authority):
    bookie = cluster.add_bookie(tls_certificate=authority.certificate("elsewhere", "192.0.2.1"))
    try:
        with pytest.raises(errors.ReadError, match="certificate verify failed: IP address mismatch"):
            cluster.bookkeeper(**known).bookie_status(bookie.bookie_id)
    finally:
        bookie.stop()
        cluster.bookies.remove(bookie)


def test_client_with_tls_refuses_a_bookie_without_tls(known, files, new_chroot):
    with LocalCluster(bookies=1, zookeeper=new_chroot()) as plain:
        assert "if it speaks no TLS, leave tls_ca out" in why_not_served(plain, tls_ca=known["tls_ca"])


def test_error_names_the_unusable_file(cluster, known, files, chroot):
    def started(**options):
        with LocalCluster(bookies=1, zookeeper=chroot, **options):
            pass

    empty = write_secrets(files / "empty", "")
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


@pytest.fixture(scope="module")
def roles(authority):
    """Options of bookies with a certificate for each of their roles, and of a client."""
    bookie, client = (authority.certificate(f"one {usage}", usage=usage) for usage in ("serverAuth", "clientAuth"))
    ca = str(authority.file)
    return (
        {"tls_certificate": bookie, "tls_client_ca": ca, "tls_client_certificate": client, "tls_roles": True},
        {"tls_certificate": client, "tls_ca": ca, "tls_roles": True},
    )


def test_certificate_of_one_role_does_not_pass_for_the_other(files, authority, roles, new_chroot):
    (bookies, client), ca = roles, str(authority.file)
    of_no_role = authority.certificate("of no role")
    with LocalCluster(bookies=1, zookeeper=new_chroot(), **bookies) as cluster:
        assert cluster.bookkeeper(**client).create_ledger(1, 1, 1).append(b"entry") == 0
        for stranger in (of_no_role, bookies["tls_certificate"]):
            told = why_not_served(cluster, tls_ca=ca, tls_certificate=stranger)
            assert "set tls_certificate to one that its tls_client_ca signed" in told
    with LocalCluster(bookies=1, tls_certificate=of_no_role, zookeeper=new_chroot()) as cluster:
        assert cluster.bookkeeper(tls_ca=ca).create_ledger(1, 1, 1).append(b"entry") == 0
        assert "no extended key usage serverAuth" in why_not_served(cluster, **client)
    with LocalCluster(bookies=1, tls_certificate=client["tls_certificate"], zookeeper=new_chroot()) as cluster:
        for demands in ({"tls_ca": ca}, client):
            assert "certificate purpose" in why_not_served(cluster, **demands)


def test_own_certificate_must_have_its_role(authority, roles, chroot):
    (bookies, client), of_no_role = roles, authority.certificate("of no role")
    for options, told in (
        (bookies | {"tls_certificate": of_no_role}, "no extended key usage serverAuth"),
        (bookies | {"tls_certificate": client["tls_certificate"]}, "no extended key usage serverAuth"),
        ({"tls_roles": True}, "tls_roles are of no use without tls_certificate"),
    ):
        with pytest.raises(errors.BookieError, match=told), LocalCluster(bookies=1, zookeeper=chroot, **options):
            pass
    with pytest.raises(errors.ConfigurationError, match="set tls_client_certificate"):
        bookie_config(directories=["/d"], zookeeper="-", **bookies | {"tls_client_certificate": ""})
    for own, told in ((of_no_role, "clientAuth"), (bookies["tls_certificate"], "clientAuth")):
        with pytest.raises(errors.ConfigurationError, match=f"no extended key usage {told}"):
            client_security(ClientConfig(**client | {"tls_certificate": own}))


def test_bookie_with_tls_and_a_secret_heals_after_a_power_cut(files, roles, known, new_chroot):
    """The bookie asks its peers, and itself, as any client does. Without a CA and the secret it stayed in limbo."""
    secret = {"shared_secret_file": secret_file(files, "secret of all", SECRET)}
    options, known = roles[0] | secret, roles[1] | secret
    later = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}
    with LocalCluster(bookies=3, journal_write_data=False, **options, **later, zookeeper=new_chroot()) as cluster:
        # An idle writer sends its LAC, and with that record a bookie syncs the data that the power cut should take.
        client = cluster.bookkeeper(**known, explicit_lac_interval_seconds=3600.0)
        ledger = client.create_ledger(3, 3, 3)
        ledger.append_batch([b"entry"] * 10)
        bookie = cluster.bookies[0]
        cut_power(bookie)
        await_that(lambda: (status := client.bookie_status(bookie.bookie_id)).healed_boot == status.lossy_boot > 0)
        assert held_by(client, bookie.bookie_id, ledger.ledger_id) == set(range(10))


def test_secrets_are_replaced_without_a_restart(files, new_chroot):
    """Once all clients and bookies had to be stopped, and started with the new secret at once."""
    bookies, client = files / "secret of bookies", files / "secret of one client"
    old, new = new_secret(), new_secret()
    write_secrets(bookies, old)
    write_secrets(client, old)

    def served(cluster, path):
        with cluster.bookkeeper(shared_secret_file=str(path)) as known:
            known.bookie_status(cluster.bookies[0].bookie_id)
            return True

    with LocalCluster(bookies=1, shared_secret_file=str(bookies), zookeeper=new_chroot()) as cluster:
        writer = cluster.bookkeeper(shared_secret_file=str(client))
        ledger = writer.create_ledger(1, 1, 1)
        ledger.append(b"before")
        write_secrets(bookies, old, new)
        assert served(cluster, client)
        write_secrets(client, new)
        assert served(cluster, client)
        write_secrets(client, new_secret(), new)
        assert served(cluster, client), "each of a client's secrets counts"
        bookies.chmod(0o644)
        assert served(cluster, client), "a file that others can read changes nothing"
        assert "is refused: others may read" in Path(cluster.bookies[0].directories[0], "bookie.log").read_text()
        bookies.chmod(0o600)
        bookies.write_text("")
        assert served(cluster, client), "a file that makes no sense changes nothing"
        write_secrets(bookies, new)
        assert served(cluster, client)
        write_secrets(client, old, new)
        assert served(cluster, client), "clients may have two, in any order"
        with pytest.raises(errors.ReadError, match="has another secret"):
            served(cluster, secret_file(files, "the one before", old))
        ledger.append(b"after")
        writer.close()


def test_certificates_are_replaced_without_a_restart(files, new_chroot):
    old, new = Authority(files / "old authority"), Authority(files / "new authority")
    certificate, ca = files / "certificate of a bookie", files / "ca of a client"
    private(certificate, Path(old.certificate("bookie")).read_text())
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


def test_bookie_in_a_terminal_keeps_its_key_when_the_new_one_has_a_passphrase(files, new_chroot):
    """OpenSSL asked for the passphrase at the bookie's keyboard: its clients hung until somebody typed."""
    authority, zookeeper = Authority(files / "authority of a terminal"), new_chroot()
    certificate, settings = files / "renewed.pem", files / "terminal.toml"
    private(certificate, Path(authority.certificate("bookie")).read_text())
    settings.write_text(f'[bookie]\ntls_certificate = "{certificate}"\n')
    command = [
        sys.executable,
        "-m",
        "bookspark",
        "bookie",
        "run",
        "--create",
        "--directory",
        str(files / "of a terminal"),
    ]
    environment = {"BOOKSPARK_CONFIG": str(settings), "BOOKSPARK_ZOOKEEPER": zookeeper}
    with terminal(command, environment) as running:
        await_that(lambda: '"bookie_id"' in running.said or running.ended.is_set(), what="the bookie serves")
        with BookKeeper(zookeeper, tls_ca=str(authority.file)) as before:
            ledger = before.create_ledger(1, 1, 1)
            ledger.append(b"before")
            certificate.write_text(Path(locked(certificate, files / "locked.pem")).read_text())
            with BookKeeper(zookeeper, tls_ca=str(authority.file)) as client:
                client.create_ledger(1, 1, 1).append(b"a new connection")
            ledger.append(b"after")
        await_that(lambda: "the key has a passphrase" in running.said)
        assert not running.asks


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
        ({"host": "192.0.2.1", "tls_certificate": "/c", "shared_secret_file": "/s"}, False),
    ],
)
def test_unauthenticated_bookie_off_loopback_warns(options, warned):
    told = open_to_strangers(bookie_config(directories=["/d"], zookeeper="-", **options))
    assert bool(told) is warned and (not warned or "set shared_secret_file" in told)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({}, ""),
        ({"host": "::1"}, ""),
        ({"host": "localhost", "advertised_address": "{host}:{port}"}, ""),
        ({"host": "192.0.2.1", "tls_certificate": "/c"}, ""),
        ({"host": "192.0.2.1"}, "host '192.0.2.1'"),
        ({"host": "bookies.example"}, "host 'bookies.example'"),
        ({"host": "0.0.0.0", "advertised_address": "127.0.0.1:3181"}, "host '0.0.0.0'"),
        ({"advertised_address": "192.0.2.1:3181"}, "advertised_address '192.0.2.1:3181'"),
        ({"advertised_address": "{hostname}:{port}"}, "advertised_address '{hostname}:{port}'"),
        ({"advertised_address": "[2001:db8::1]:3181"}, "advertised_address '[2001:db8::1]:3181'"),
    ],
)
def test_secret_without_tls_off_loopback_is_refused_unless_accepted(options, where):
    def told(**accepted):
        given = {"directories": ["/d"], "zookeeper": "-", "shared_secret_file": "/s"} | options | accepted
        return open_to_strangers(bookie_config(**given))

    words = f"shared_secret_file without TLS, and {where} is not loopback. {STANDS_BETWEEN}"
    if where:
        with pytest.raises(errors.ConfigurationError, match=re.escape(words)):
            told()
    else:
        assert not told()
    warning = told(shared_secret_without_tls=True)
    assert (STANDS_BETWEEN in warning and where in warning) if where else not warning


@pytest.mark.parametrize("page", ["security", "promises"])
def test_pages_say_of_a_secret_without_tls_what_the_error_says(page):
    text = (Path(__file__).parents[3] / "docs" / f"{page}.md").read_text()
    assert STANDS_BETWEEN in " ".join(text.split())


def test_bookie_and_clients_off_loopback_accept_a_secret_without_tls_by_an_option(new_chroot, files):
    """127.1 is loopback to the host, and not to Bookspark."""
    options = {"host": "127.1", "shared_secret_file": secret_file(files, "open secret", SECRET)}
    with pytest.raises(errors.ConfigurationError, match="shared_secret_without_tls = true"):
        LocalCluster(bookies=1, zookeeper=new_chroot(), **options)
    accepted = {"shared_secret_without_tls": True}
    with LocalCluster(bookies=1, zookeeper=new_chroot(), **options, **accepted) as cluster:
        [bookie] = cluster.bookies
        assert STANDS_BETWEEN in Path(bookie.directories[0], "bookie.log").read_text()
        client = {"shared_secret_file": options["shared_secret_file"]}
        with cluster.bookkeeper(**client, **accepted) as served:
            assert served.bookie_status(bookie.bookie_id).pid == bookie.pid
        with (
            cluster.bookkeeper(**client) as refused,
            pytest.raises(errors.ReadError, match=r"host 127\.1 is not loopback"),
        ):
            refused.bookie_status(bookie.bookie_id)


def test_bookie_log_has_the_warning_at_startup(new_chroot):
    """The bookie does not recognise the address 127.1 as loopback."""
    with LocalCluster(bookies=1, host="127.1", zookeeper=new_chroot()) as cluster:
        log = Path(cluster.bookies[0].directories[0], "bookie.log").read_text()
        assert "listens on 127.1, and asks nobody" in log


def test_bookie_log_names_nodes_of_zookeeper_that_the_world_may_change(files, new_chroot):
    user = files / "zookeepers-user"
    user.write_text("us:password\n")
    user.chmod(0o600)
    with LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster:
        log = Path(cluster.bookies[0].directories[0], "bookie.log")
        assert "the world may change" not in log.read_text()
    with LocalCluster(bookies=1, zookeeper=f"{new_chroot()}?auth_file={user}") as cluster:
        log = Path(cluster.bookies[0].directories[0], "bookie.log")
        await_that(lambda: "the world may change /, " in log.read_text())


def test_bookie_writes_no_core_file_although_its_launcher_would(files, new_chroot):
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        with LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster:
            assert resource.prlimit(cluster.bookies[0].pid, resource.RLIMIT_CORE)[0] == 0
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)


def test_files_of_a_local_cluster_are_accessible_to_their_owner_only(files):
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


def test_relative_secret_path_starts_at_the_callers_working_directory(files, monkeypatch, new_chroot):
    """The bookie has another working directory, and did not find the file."""
    secret_file(files, "here", SECRET)
    monkeypatch.chdir(files)
    with (
        LocalCluster(bookies=1, shared_secret_file="here", zookeeper=new_chroot()) as started,
        started.bookkeeper(shared_secret_file="here") as client,
    ):
        assert client.create_ledger(1, 1, 1).append(b"entry") == 0


def test_secret_and_tls_are_added_to_an_existing_cluster(files, authority, known, new_chroot, tmp_path):
    """The guide's way: with all bookies stopped. Acknowledged entries are there afterwards."""
    secret = {"shared_secret_file": known["shared_secret_file"]}
    with LocalCluster(bookies=3, directory=tmp_path, zookeeper=new_chroot()) as plain:
        with plain.bookkeeper() as client, client.create_ledger(3, 3, 3) as ledger:
            ledger.append(b"before")
        with plain.bookkeeper(**secret) as late, pytest.raises(errors.ReadError, match="proves no secret"):
            late.bookie_status(plain.bookies[0].bookie_id)
        address = plain.zookeeper
    tls = {"tls_certificate": authority.certificate("closed bookie"), "tls_ca": str(authority.file)}
    with (
        LocalCluster(bookies=3, directory=tmp_path, zookeeper=address, **tls, **secret) as closed,
        closed.bookkeeper(tls_ca=str(authority.file), **secret) as client,
    ):
        assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == [b"before"]

"""The table of docs/security.md, cell by cell, and its list: the actions open to a stranger who reaches bookies and ZooKeeper.

The stranger knows the protocol and a ledger id, and nothing else. Each setting is tried alone; a ledger has the default
password, b"", except where the password is the setting.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import uuid
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NodeExistsError

from bookspark import errors
from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.logs.rows.encodings import VALUE_BYTES_MAX
from bookspark.protocol.logs.log_options import Compression, LogOptions
from bookspark.servers.daemon.launch import adopt_or_start
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.support.addresses import split_address
from tests.authority import Authority, private
from tests.awaiting import await_that
from tests.logs.strange_rows import bomb, commit_entries
from tests.remote_strangers import BATCH, alive, connected, figure_at, hello_of_tls
from tests.secret_files import write_secrets
from tests.store.bookie.kit import Client, add_frame
from tests.strangers import as_another_user, shared_folder
from tests.system.cluster.impostor import impostor, proves_nothing, registered
from tests.system.clusters.kubernetes.manifests import FOLDER, parse, texts

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
SETTINGS = ("nothing", "ledger password", "shared secret", "TLS", "client certificates", "ZooKeeper ACL")
GUESSED = master_key(b"")
PORTS = {"metrics_port": -1, "unfinished_bytes_max": 64 << 20}
SESSION = {"zookeeper_session_timeout_seconds": 40.0}
"""A killed bookie stays registered for that long."""
NEVER_GIVEN_OUT = 1_000_000


class Stranger(Client):
    """A connection to a bookie, over TLS if the bookie speaks it."""

    def __init__(self, cluster, tls):
        host, _, port = cluster.bookies[0].address.rpartition(":")
        self.tls = tls
        super().__init__((host, int(port)), wrap=tls.wrap_socket if tls else lambda plain: plain)


class Case:
    """A cluster with a single setting, and the attempts of a stranger there."""

    def __init__(self, cluster, client, options, password, zookeeper, tls):
        self.cluster, self.client, self.options = cluster, client, options
        self.password, self.zookeeper, self.tls = password, zookeeper, tls

    def ledger(self, entries=1):
        ledger = self.client.create_ledger(1, 1, 1, password=self.password)
        for _ in range(entries):
            ledger.append(b"entry")
        return ledger

    def may(self, header, key=GUESSED):
        with contextlib.closing(Stranger(self.cluster, self.tls)) as stranger:
            stranger.send(control_frame(header._replace(request_id=9, master_key=key)))
            while (answer := stranger.receive()).batch is not None:
                pass
            return answer.header.status == Status.OK and answer.header.request_id == 9

    def metrics_address(self):
        return self.client.bookie_status(self.cluster.bookies[0].bookie_id).metrics_address

    def figure(self, name):
        return figure_at(self.metrics_address(), name)

    def adds(self, ledger_id, entry_id, key=GUESSED):
        with contextlib.closing(Stranger(self.cluster, self.tls)) as stranger:
            return stranger.add(ledger_id, entry_id, master_key=key).status == Status.OK


def see_status_ids_and_ranges(case):
    return all([case.may(Header(Kind.STATUS, 0)), case.may(Header(Kind.RANGES, 0, 0))])


def read_entries(case):
    return case.may(Header(Kind.READ, 0, case.ledger().ledger_id, 0, 0), key=bytes(16))


def append_to_a_ledger(case):
    return case.adds(case.ledger().ledger_id, 1)


def fence_a_ledger_that_the_bookie_knows(case):
    return case.may(Header(Kind.READ_LAC, 0, case.ledger().ledger_id, flags=Flag.FENCE))


def fence_a_ledger_that_the_bookie_has_not_seen(case):
    return case.may(Header(Kind.READ_LAC, 0, case.ledger(entries=0).ledger_id, flags=Flag.FENCE))


def fence_an_id_that_is_not_given_out(case):
    ledger_id = case.ledger().ledger_id + 1
    kinds = (
        Header(Kind.READ_LAC, 0, ledger_id, flags=Flag.FENCE),
        Header(Kind.READ, 0, ledger_id, 0, 0, flags=Flag.FENCE),
        Header(Kind.WRITE_LAC, 0, ledger_id, last_add_confirmed=3),
    )
    granted = [case.may(header, key) for header in kinds for key in (GUESSED, b"k" * 16)]
    assert case.ledger().ledger_id == ledger_id
    return any(granted)


def take_an_id_that_is_not_given_out(case):
    return case.adds(NEVER_GIVEN_OUT, 0)


def come_before_an_owner(case):
    """Entries with another key for the ids that come next, and for a ledger of which the bookie has seen nothing."""
    next_id, made = case.ledger().ledger_id + 1, case.ledger(entries=0)
    # His other requests that wait for metadata, many in flight, keep nobody's waiting.
    with contextlib.closing(Stranger(case.cluster, case.tls)) as busy, contextlib.suppress(ConnectionError, EOFError):
        busy.add(NEVER_GIVEN_OUT, 0, master_key=b"k" * 16)
        busy.send(*(add_frame(NEVER_GIVEN_OUT, 1, master_key=os.urandom(16)) for _ in range(1500)))
        return _comes_before(case, next_id, made)


def _comes_before(case, next_id, made):
    for ledger_id in (made.ledger_id, next_id + 1, next_id + 2):
        case.adds(ledger_id, 5, key=b"k" * 16)
        case.adds(ledger_id, 0, key=b"k" * 16)
    try:
        made.append(b"entry")
        ledgers = [made, case.ledger(), case.ledger()]
        assert [ledger.ledger_id for ledger in ledgers] == [next_id, next_id + 1, next_id + 2]
        assert [entry.payload for one in ledgers for entry in one.read(0, 0)] == [b"entry"] * 3
    except errors.BookKeeperError:
        return True
    return False


def keep_a_ledger_from_recovery(case):
    ledger_id = case.ledger(entries=0).ledger_id
    case.adds(ledger_id, 0, key=b"k" * 16)
    try:
        with case.client.open_ledger(ledger_id, case.password) as opened:
            return opened.last_add_confirmed != -1
    except errors.BookKeeperError:
        return True


def switch_a_bookie_read_only(case):
    def registered(read_only):
        found = [one.read_only for one in case.client.metadata.bookies().values()]
        return found == [read_only]

    done = case.may(Header(Kind.SWITCH_READ_ONLY, 0, value=1))
    if done:
        # ZooKeeper gets each switch later: wait for the first before making the second.
        await_that(lambda: registered(True))
        case.may(Header(Kind.SWITCH_READ_ONLY, 0, value=0))
        await_that(lambda: registered(False))
    return done


def take_all_connections(case):
    """Open 300 silent connections to a bookie that may open 100 files; then a client connects."""
    [bookie] = case.cluster.bookies
    limits = resource.prlimit(bookie.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(bookie.pid, resource.RLIMIT_NOFILE, (100, limits[1]))
    host, _, port = bookie.address.rpartition(":")
    with contextlib.ExitStack() as taken:
        for _ in range(300):
            taken.enter_context(socket.create_connection((host, int(port)), 60))
        try:
            with case.cluster.bookkeeper(**case.options) as newcomer:
                newcomer.bookie_status(bookie.bookie_id)
            return False
        except errors.ReadError:
            return True
        finally:
            resource.prlimit(bookie.pid, resource.RLIMIT_NOFILE, limits)


def have_a_reader_inflate_a_small_row_without_limit(case):
    """The row is committed, as by somebody who may append to the log."""
    log = f"log-{uuid.uuid4().hex[:8]}"
    options = LogOptions(ensemble_size=1, write_quorum=1, ack_quorum=1, compression=Compression.ZSTD)
    made = create_log(case.client, log, options=options)
    commit_entries(case.client, log, [bomb()], "zstd")
    with made.reader() as reader:
        try:
            return any(len(row.value) > VALUE_BYTES_MAX for row in reader.read())
        except errors.InvalidRowError:
            return False


def takes_in_a_client(case, stranger):
    """Does a writer send the impostor anything but HELLO?"""
    with case.cluster.bookkeeper(**{"add_timeout_seconds": 3.0} | case.options) as victim:
        with contextlib.suppress(errors.BookKeeperError):
            victim.create_ledger(1, 1, 1, password=case.password).append(b"entry")
        return stranger.got_a_request()


def be_taken_for_a_bookie_by_a_registration(case):
    [bookie] = case.cluster.bookies
    with impostor(proves_nothing(bookie.bookie_id)) as stranger:
        try:
            with registered(case.zookeeper, bookie.bookie_id, stranger.address):
                return takes_in_a_client(case, stranger)
        except NoAuthError:
            return False


def be_taken_for_a_bookie_at_its_port(case):
    """After a crash: the registration stands for a while."""
    [bookie] = case.cluster.bookies
    _, port = split_address(bookie.address)
    bookie.kill()
    try:
        with impostor(proves_nothing(bookie.bookie_id), port=port) as stranger:
            return takes_in_a_client(case, stranger)
    finally:
        bookie.start()


def take_memory(case):
    """Unfinished frames of 90 MiB, where 64 MiB are allowed."""
    with contextlib.ExitStack() as stack:
        for _ in range(6):
            with contextlib.suppress(ConnectionError, EOFError):
                stranger = stack.enter_context(contextlib.closing(Stranger(case.cluster, case.tls)))
                stranger.send(BATCH, bytes(15 << 20))
        return case.figure("unfinished_bytes") > 64 << 20


def make_probes_fail(case):
    with contextlib.ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(connected(case.metrics_address()))
        return alive(case.cluster.bookies[0].directories[0]).returncode != 0


def shake_hands_without_end(case):
    host, _, port = case.cluster.bookies[0].address.rpartition(":")
    hello = hello_of_tls()
    with contextlib.ExitStack() as stack:
        for _ in range(150):
            stranger = stack.enter_context(socket.create_connection((host, int(port)), 60, ("127.0.0.9", 0)))
            stranger.sendall(hello)
        with case.cluster.bookkeeper(**case.options) as newcomer:
            return newcomer.bookie_status(case.cluster.bookies[0].bookie_id) is None


def read_master_keys(case):
    ledger_id = case.ledger().ledger_id
    try:
        with contextlib.closing(ZooKeeperStore(case.zookeeper)) as store:
            return store.read_ledger(ledger_id).value.master_key == master_key(case.password)
    except errors.MetadataStoreError:
        return False


def delete_a_ledger(case):
    ledger_id = case.ledger().ledger_id
    try:
        with contextlib.closing(ZooKeeperStore(case.zookeeper)) as store:
            store.delete_ledger(ledger_id)
    except errors.MetadataStoreError:
        return False
    return True


def take_a_directory_that_he_made_first(case):
    """Another user of the bookie's host made it, with a link to a file of the bookie's user."""
    with shared_folder() as folder:
        home, ours = folder / "bookie", Path(private(folder / "ours", "ours"))

        def make():
            home.mkdir()
            home.chmod(0o777)
            (home / "bookie.json").symlink_to(ours)

        # Without root's rights the other user is this one, with a directory that is open to all.
        assert os.geteuid() != 0 or as_another_user(make) == "None"
        with contextlib.suppress(FileExistsError):
            make()
        with contextlib.suppress(errors.BookKeeperError):
            adopt_or_start(bookie_config(directories=[str(home)], zookeeper=case.zookeeper), "a table").kill()
        return ours.read_text() != "ours" or len(list(home.iterdir())) > 1


def make_nodes_at_the_root(case):
    """Make a node at the cluster's root, and one in the place of its records."""
    servers, _, chroot = case.zookeeper.partition("/")
    client = KazooClient(servers)
    client.start(60)
    try:
        return all([client.create(f"/{chroot}/stranger"), client.create(f"/{chroot}/bookspark/log_records", b"")])
    except NoAuthError:
        return False
    except NodeExistsError:
        return True
    finally:
        client.stop()
        client.close()


def use_an_admin_server(case):
    """The settings of both ZooKeepers that Bookspark brings; that of these tests is the embedded one."""
    (manifest,) = (one for one in parse(texts()["zookeeper"]) if one["kind"] == "ConfigMap")
    for settings in (manifest["data"]["zoo.cfg"], (FOLDER.parent / "zoo.cfg").read_text()):
        lines = dict(line.split("=", 1) for line in settings.split() if "=" in line)
        switches = ("admin.enableServer", "admin.snapshot.enabled", "admin.restore.enabled")
        if {lines.get(one) for one in switches} != {"false"}:
            return True
    return False


ACTIONS = {
    # Before an id is taken: a bookie that starts after that skips a million ids.
    "Be taken for a bookie, by a registration of his own": be_taken_for_a_bookie_by_a_registration,
    "Be taken for a bookie, at its port after a crash": be_taken_for_a_bookie_at_its_port,
    "See a bookie's status, its ledgers' ids and their ranges": see_status_ids_and_ranges,
    "Read entries": read_entries,
    "Append to a ledger": append_to_a_ledger,
    "Fence a ledger that the bookie knows": fence_a_ledger_that_the_bookie_knows,
    "Fence a ledger that names the bookie, which has seen nothing of it": fence_a_ledger_that_the_bookie_has_not_seen,
    "Fence an id that is not given out": fence_an_id_that_is_not_given_out,
    "Put entries under an id that is not given out": take_an_id_that_is_not_given_out,
    "Keep an owner from its ledger, by entries with another key": come_before_an_owner,
    "Keep a ledger from recovery, by an entry with another key": keep_a_ledger_from_recovery,
    "Switch a bookie to read-only, start a collection": switch_a_bookie_read_only,
    "Take all connections by silence": take_all_connections,
    "Take a bookie's memory by silence": take_memory,
    "Make a bookie's probes fail": make_probes_fail,
    "Keep new clients of other addresses out, by TLS handshakes of his own": shake_hands_without_end,
    "Take a bookie's directory that he made first": take_a_directory_that_he_made_first,
    "Have a reader inflate a small row without limit": have_a_reader_inflate_a_small_row_without_limit,
    "Read master keys in ZooKeeper": read_master_keys,
    "Delete ledgers in ZooKeeper": delete_a_ledger,
    "Make nodes at the cluster's root in ZooKeeper, or among its records": make_nodes_at_the_root,
    "Read or undo all of ZooKeeper by its AdminServer (ours: the manifest's, the embedded one)": use_an_admin_server,
}


def told():
    """Cells of the page's table, by action and setting, and of the list of actions that no setting allows."""
    text = PAGE.read_text()
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    head = rows.index(["a stranger can …", *SETTINGS])
    never = text.partition("a stranger can't:\n\n")[2].partition("\n\n")[0].splitlines()
    return {
        row[0]: dict(zip(SETTINGS, row[1:], strict=True)) for row in rows[head + 1 :] if len(row) == len(SETTINGS) + 1
    } | {action.removeprefix("* "): dict.fromkeys(SETTINGS, "no") for action in never}


@pytest.fixture(scope="module", params=SETTINGS)
def case(request, tmp_path_factory, new_chroot):
    setting, files = request.param, tmp_path_factory.mktemp("table")
    bookie, client, tls = {}, {}, None
    zookeeper = trusted = new_chroot()
    if setting == "shared secret":
        bookie = client = {"shared_secret_file": write_secrets(files / "secret")}
    elif setting in ("TLS", "client certificates"):
        authority = Authority(files / "authority")
        bookie = {"tls_certificate": authority.certificate("bookie")}
        client = {"tls_ca": str(authority.file)}
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if setting == "client certificates":
            bookie["tls_client_ca"] = str(authority.file)
            client["tls_certificate"] = authority.certificate("client")
    elif setting == "ZooKeeper ACL":
        trusted = f"{zookeeper}?auth_file={private(files / 'auth', 'us:password')}"
    password = b"password" if setting == "ledger password" else b""
    with (
        LocalCluster(bookies=1, zookeeper=trusted, **SESSION, **PORTS, **bookie) as cluster,
        cluster.bookkeeper(**client) as known,
    ):
        yield setting, Case(cluster, known, client, password, zookeeper, tls)


def test_each_cell_of_the_stranger_table_matches_the_cluster(case):
    setting, tried = case
    found = {}
    for action, attempt in ACTIONS.items():
        try:
            found[action] = "yes" if attempt(tried) else "no"
        except (EOFError, ConnectionError, ssl.SSLError):
            found[action] = "no"
        assert tried.ledger(), "a client goes on"
    assert found == {action: cells[setting] for action, cells in told().items()}

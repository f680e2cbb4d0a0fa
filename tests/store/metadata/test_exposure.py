"""Doors of ZooKeeper beside a cluster's ACL: nodes that the world may change, and an AdminServer that answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import ACL, OPEN_ACL_UNSAFE, Id, Permissions, make_digest_acl

from bookspark.operations.why.gathering import gather
from bookspark.operations.why.troubles import health_of
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper import exposure
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.operations.cli.conftest import Run, bookspark, impatient  # noqa: F401
from tests.store.metadata.kit import begun, ledger

BORN_OPEN = ("/", "/zookeeper", "/zookeeper/quota")
USER = "us:password"
HIDDEN = ACL(Permissions.READ, Id("world", "anyone"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running.connection_string


@pytest.fixture(scope="module")
def auth(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("auth") / "user"
    path.write_text(f"{USER}\n")
    path.chmod(0o600)
    return f"?auth_file={path}"


@contextlib.contextmanager
def session(server: str, user: str = "") -> Iterator[KazooClient]:
    client = KazooClient(server, auth_data=[("digest", user)] if user else [])
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture
def stranger(server: str) -> Iterator[KazooClient]:
    with session(server) as client:
        yield client


@pytest.fixture
def us(server: str) -> Iterator[KazooClient]:
    with session(server, USER) as client:
        yield client


@pytest.fixture
def closed(us: KazooClient) -> Iterator[None]:
    """ZooKeeper's own nodes closed as the remedy closes them."""
    for path in BORN_OPEN:
        us.set_acls(path, [*make_acl(), HIDDEN])
    yield
    for path in BORN_OPEN:
        us.set_acls(path, OPEN_ACL_UNSAFE)


def make_acl() -> list[ACL]:
    return [make_digest_acl(*USER.split(":"), all=True)]


def seen(server: str, options: str, chroot: str) -> exposure.Exposure:
    with contextlib.closing(ZooKeeperStore(f"{server}/{chroot}{options}")) as store:
        return store.exposure()


def all_below(client: KazooClient, path: str) -> list[str]:
    return [path, *(one for name in client.get_children(path) for one in all_below(client, f"{path}/{name}"))]


@pytest.mark.parametrize("manager", LedgerManager)
def test_every_node_of_a_cluster_with_an_acl_is_closed_from_its_chroot_down(
    server: str, auth: str, us: KazooClient, stranger: KazooClient, manager: LedgerManager
) -> None:
    chroot = f"/closed/{manager.value}"
    with contextlib.closing(ZooKeeperStore(f"{server}{chroot}{auth}", begin=manager)) as store:
        store.create_ledger(ledger(store.new_ledger_id()))
        store.write_record("log", "a", b"1", None)
        store.note_given_id(77)
    nodes = ["/closed", *all_below(us, chroot)]
    assert len(nodes) > 15
    for path in nodes:
        assert {acl.id.scheme for acl in us.get_acls(path)[0]} == {"digest"}, path
        for attempt in (
            lambda: stranger.create(f"{path}/x"),  # noqa: B023
            lambda: stranger.set_acls(path, OPEN_ACL_UNSAFE),  # noqa: B023
        ):
            with pytest.raises(NoAuthError):
                attempt()


def test_stranger_takes_no_place_of_a_cluster_at_an_open_root(server: str, auth: str, stranger: KazooClient) -> None:
    """The place of records was made with the first record: below an open root a stranger made it before."""
    with contextlib.closing(begun(f"{server}{auth}")) as store:
        for place in ("/ledgers", "/bookspark"):
            with pytest.raises(NotEmptyError):
                stranger.delete(place)
        assert store.write_record("log", "a", b"1", None) == 0


def test_empty_chroot_that_another_made_gets_the_acl(
    server: str, auth: str, us: KazooClient, stranger: KazooClient
) -> None:
    stranger.create("/made-before", b"")
    stranger.create("/used-before/by-another", b"", makepath=True)
    for chroot in ("made-before", "used-before"):
        begun(f"{server}/{chroot}{auth}").close()
    assert us.get_acls("/made-before")[0] == make_acl()
    assert us.get_acls("/used-before")[0] == OPEN_ACL_UNSAFE
    assert set(seen(server, auth, "used-before").nodes) == {*BORN_OPEN, "/used-before"}


def test_nodes_that_the_world_may_change_are_named_until_they_are_closed(
    server: str, auth: str, us: KazooClient, closed: None
) -> None:
    begun(f"{server}/ours/deep{auth}").close()
    assert seen(server, auth, "ours/deep").nodes == ()
    anybody, everywhere = Id("world", "anyone"), Id("ip", "0.0.0.0/0")
    for path, entry in (
        ("/", ACL(Permissions.CREATE, anybody)),
        ("/zookeeper", ACL(Permissions.ADMIN, anybody)),
        ("/ours", ACL(Permissions.DELETE, anybody)),
        ("/ours/deep", ACL(Permissions.WRITE, everywhere)),
        ("/ours/deep/ledgers/cookies", ACL(Permissions.ALL, anybody)),
        ("/ours/deep/bookspark/deletions", ACL(Permissions.ALL, anybody)),
    ):
        before = us.get_acls(path)[0]
        us.set_acls(path, [*make_acl(), entry])
        assert seen(server, auth, "ours/deep").nodes == (path,)
        us.set_acls(path, before)


def test_cluster_made_without_an_acl_is_named_with_the_command_that_closes_it(server: str, auth: str) -> None:
    begun(f"{server}/open").close()
    assert seen(server, "", "open") == exposure.Exposure()
    door, *_ = seen(server, auth, "open").doors()
    assert "/open/ledgers/idgen" in door.what
    assert "setAcl -R /open auth::cdrwa" in door.remedy and "setAcl / auth::cdrwa,world:anyone:r" in door.remedy


# -- AdminServers


LIST = "".join(f'<a href="/commands/{name}">{name}</a>\n<br/>\n' for name in ("restore", "ruok", "snapshot"))
OLD_LIST = LIST.replace("restore", "stats").replace("snapshot", "srvr")
BOTH_OFF = {"zookeeper.admin.snapshot.enabled": "false", "zookeeper.admin.restore.enabled": "false"}


@pytest.fixture
def admin_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Starts a server with the pages of ZooKeeper's AdminServer."""
    with contextlib.ExitStack() as stack:

        def start(listed: str, properties: dict[str, str], host: str = "127.0.0.1") -> None:
            class Pages(BaseHTTPRequestHandler):
                def do_GET(self) -> None:
                    body = json.dumps(properties, indent=2) if self.path.endswith("properties") else listed
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(body.encode())

                def log_message(self, *_: object) -> None:
                    pass

            class Server(ThreadingHTTPServer):
                address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            server = stack.enter_context(Server((host, 0), Pages))
            monkeypatch.setattr(exposure, "ADMIN_PORT", server.server_address[1])
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            stack.callback(thread.join, 60)
            stack.callback(server.shutdown)

        yield start


@pytest.mark.parametrize(
    ("listed", "properties", "commands"),
    [
        (LIST, {}, ("snapshot", "restore")),
        (LIST, {**BOTH_OFF, "zookeeper.admin.restore.enabled": "true"}, ("restore",)),
        (LIST, BOTH_OFF, None),
        (OLD_LIST, {}, None),
        ("<h1>another web server</h1>", {}, None),
    ],
)
def test_admin_server_on_loopback_is_named_while_a_command_goes_round_the_acls(
    server: str,
    auth: str,
    admin_server: Callable[..., None],
    listed: str,
    properties: dict[str, str],
    commands: tuple[str, ...] | None,
) -> None:
    begun(f"{server}/administered{auth}").close()
    admin_server(listed, properties)
    found = seen(server, auth, "administered")
    assert [one.commands for one in found.admin_servers] == ([] if commands is None else [commands])
    kinds = [door.kind for door in found.doors()]
    assert kinds == ["zookeeper-open", *(["zookeeper-admin"] if commands else [])]
    assert found.bypass is bool(commands)


def test_admin_server_on_loopback_is_harmless_with_a_closed_root(
    server: str, auth: str, closed: None, admin_server: Callable[..., None]
) -> None:
    begun(f"{server}/administered{auth}").close()
    admin_server(LIST, {})
    assert seen(server, auth, "administered") == exposure.Exposure()


def test_admin_server_off_loopback_is_named_whatever_its_commands(
    server: str, auth: str, closed: None, admin_server: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(f"{server}/administered{auth}").close()
    admin_server(LIST, BOTH_OFF)
    # Tests listen on loopback only.
    monkeypatch.setattr(exposure, "is_loopback", lambda host: False)
    (door,) = seen(server, auth, "administered").doors()
    assert door.kind == "zookeeper-admin" and "admin.enableServer=false" in door.remedy


def test_admin_server_at_an_ipv6_address_is_named(server: str, auth: str, admin_server: Callable[..., None]) -> None:
    begun(f"{server}/administered{auth}").close()
    admin_server(LIST, {}, host="::1")
    found = seen(f"{server},[::1]:{server.rpartition(':')[2]}", auth, "administered")
    assert [one.address for one in found.admin_servers] == [f"[::1]:{exposure.ADMIN_PORT}"]


def test_look_ends_at_a_silent_admin_port(server: str, auth: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(f"{server}/administered{auth}").close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(exposure, "ADMIN_PORT", silent.getsockname()[1])
        assert seen(server, auth, "administered").admin_servers == ()


def test_why_and_init_name_the_open_doors(
    server: str,
    auth: str,
    admin_server: Callable[..., None],
    bookspark: Run,  # noqa: F811
) -> None:
    admin_server(LIST, {})
    told = bookspark("init", "--zookeeper", f"{server}/why{auth}")
    assert told.status == 0 and "setAcl / auth::cdrwa,world:anyone:r" in told.err and "AdminServer" in told.err
    with BookKeeper(f"{server}/why{auth}", metadata_timeout_seconds=60.0) as client:
        kinds = {one.kind for one in health_of(gather(client)).troubles}
    assert {"zookeeper-open", "zookeeper-admin"} <= kinds
    begun(f"{server}/why-not").close()
    with BookKeeper(f"{server}/why-not", metadata_timeout_seconds=60.0) as client:
        kinds = {one.kind for one in health_of(gather(client)).troubles}
    assert not {"zookeeper-open", "zookeeper-admin"} & kinds


def test_packaged_settings_of_zookeeper_start_no_admin_server() -> None:
    text = (Path(__file__).parents[3] / "conf/zoo.cfg").read_text()
    assert "admin.enableServer=false" in text.splitlines()

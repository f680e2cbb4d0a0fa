"""The metadata store on a real ZooKeeper: its layout, and lost replies, sessions and servers."""

from __future__ import annotations

import contextlib
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from bookspark.errors import (
    ConfigurationError,
    InvalidCookieError,
    LedgerExistsError,
    MetadataStoreError,
    MetadataVersionError,
    NoSuchLedgerError,
)
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.short_waits import waits_at_most
from bookspark.store.metadata.zookeeper import nodes, zookeeper_store
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import Access, Address, LedgerManager, parse_address
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.authority import private
from tests.awaiting import Changes, await_that
from tests.processes import halted
from tests.store.metadata.kit import (
    CREATE,
    CREATE_2,
    EVENT_SECONDS,
    MULTI,
    SET_DATA,
    LossyProxy,
    begun,
    end_session,
    ledger,
)

BOOKIE = BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7)


@pytest.fixture
def store(chroot: str) -> Iterator[ZooKeeperStore]:
    made = begun(chroot)
    yield made
    made.close()


@pytest.fixture
def kazoo(zookeeper: EmbeddedZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper.connection_string)
    client.start()
    yield client
    client.stop()
    client.close()


def test_registrations_and_cookies_whose_names_are_no_bookie_ids_are_nobodys(
    store: ZooKeeperStore, kazoo: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger's names would reach commands that operators copy."""
    store.register_bookie(BOOKIE)
    value = kazoo.get(f"{store.layout.available}/{BOOKIE.bookie_id}")[0]
    for name in ("x; touch y", "-rf", "$(id)", "a b"):
        for place in (store.layout.available, store.layout.readonly, store.layout.cookies):
            kazoo.create(f"{place}/{name}", value, makepath=True)
    assert list(store.bookies()) == [BOOKIE.bookie_id]
    assert store.list_cookies() == []
    assert "8 registrations are not of bookies" in caplog.text


@pytest.fixture
def proxy(zookeeper: EmbeddedZooKeeper) -> Iterator[LossyProxy]:
    with LossyProxy(zookeeper.connection_string) as made:
        yield made


@pytest.fixture
def lossy(store: ZooKeeperStore, proxy: LossyProxy, chroot: str) -> Iterator[ZooKeeperStore]:
    """A second client of the same cluster, whose replies can be lost."""
    made = begun(proxy.address + "/" + chroot.partition("/")[2])
    yield made
    made.close()


# -- names


@pytest.mark.parametrize(
    ("connect", "servers", "chroot"),
    [
        ("h", "h:2181", ""),
        ("h1:1,h2", "h1:1,h2:2181", ""),
        ("zk://h1,h2,h3/a/b", "h1:2181,h2:2181,h3:2181", "/a/b"),
        (" h1:2181, h2:2182/a/ ", "h1:2181,h2:2182", "/a"),
        ("zk://[::1]:21,10.0.0.1/", "[::1]:21,10.0.0.1:2181", ""),
    ],
)
def test_connection_strings_are_parsed(connect: str, servers: str, chroot: str) -> None:
    assert parse_address(connect) == Address(servers, chroot)
    assert parse_address(connect.strip() + "?auth_file=/a/b?c") == Address(servers, chroot, Access("/a/b?c"))


@pytest.mark.parametrize(
    "connect", ["", "zk://", "/a", "h:", "h:0", "h:99999", "http://h", "h1,,h2", "h:1:2", "h/../a", "h i", "h?user=me"]
)
def test_bad_connection_string_is_refused(connect: str) -> None:
    with pytest.raises(ConfigurationError, match=r"does not name a ZooKeeper.*zk://"):
        begun(connect)


# -- layout


def test_layout_equals_bookkeepers(store: ZooKeeperStore, chroot: str, kazoo: KazooClient) -> None:
    root = "/" + chroot.partition("/")[2]
    store.create_ledger(ledger(1))
    store.register_bookie(BOOKIE)
    store.write_cookie(Cookie("bookie-1", ("/a",), store.instance_id, "n"), None)
    store.write_record("logs", "orders", b"{}", None)
    special = {"LAYOUT", "INSTANCEID", "available", "cookies", "idgen", "underreplication"}
    assert set(kazoo.get_children(f"{root}/ledgers")) == special | {"00"}
    assert kazoo.get(f"{root}/ledgers/LAYOUT")[0] == b"2\nhierarchical:1"
    assert kazoo.get(f"{root}/ledgers/INSTANCEID")[0].decode() == store.instance_id
    assert set(kazoo.get_children(f"{root}/ledgers/available")) == {"bookie-1", "readonly"}
    for path in ("ledgers/00/0000/L0001", "ledgers/cookies/bookie-1", "bookspark/logs/orders"):
        assert kazoo.exists(f"{root}/{path}")
    store.delete_ledger(1)
    assert store.list_ledgers() == []
    assert "00" not in kazoo.get_children(f"{root}/ledgers")


def test_client_uses_the_ledger_manager_named_in_layout(chroot: str, kazoo: KazooClient) -> None:
    flat = ZooKeeperStore(chroot, begin=LedgerManager.FLAT)
    hierarchical = ZooKeeperStore(chroot)
    hierarchical.create_ledger(ledger(7))
    assert kazoo.exists("/" + chroot.partition("/")[2] + "/ledgers/L0000000007")
    assert flat.list_ledgers() == hierarchical.list_ledgers() == [7]
    for each in (flat, hierarchical):
        each.close()


def test_a_foreign_layout_is_refused(chroot: str, kazoo: KazooClient) -> None:
    layout = "/" + chroot.partition("/")[2] + "/ledgers/LAYOUT"
    kazoo.create(layout, b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1", makepath=True)
    with pytest.raises(MetadataStoreError, match="another chroot"):
        begun(chroot)
    kazoo.delete(layout)
    with pytest.raises(MetadataStoreError, match="has no LAYOUT"):
        ZooKeeperStore(chroot, begin=LedgerManager.HIERARCHICAL)


def test_error_about_a_damaged_record_names_its_ledger(store: ZooKeeperStore) -> None:
    store.create_ledger(ledger(5))
    store.client.set(store.layout.ledger(5), b"rubbish")
    with pytest.raises(MetadataStoreError, match="ledger 5 can't be read"):
        store.read_ledger(5)


def test_exhausted_ledger_ids_raise(store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store._nodes, "count", lambda *_: -(2**31))
    with pytest.raises(MetadataStoreError, match="given out"):
        store.new_ledger_id()


def test_error_about_a_deleted_layout_names_its_path(store: ZooKeeperStore) -> None:
    store.client.delete(store.layout.ledgers, recursive=True)
    for operation in (
        store.new_ledger_id,
        store.bookies,
        lambda: store.watch_bookies(Changes()),
        lambda: store.register_bookie(BOOKIE),
    ):
        with pytest.raises(MetadataStoreError, match="/ledgers/"):
            operation()


def test_many_ledgers_are_read_in_groups_each_after_a_sync(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync precedes each group: without it, a server that is behind would answer with old records."""
    for ledger_id in range(5):
        store.create_ledger(ledger(ledger_id))
    store.write_ledger(ledger(3).in_recovery(), 0)
    asked: list[str] = []
    trips: list[int] = []
    gather = store.connection.gather

    def counted(what: str, send: Callable[[], Any]) -> list[Any]:
        before = len(asked)
        found = gather(what, send)
        trips.append(len(asked) - before)
        return found

    monkeypatch.setattr(zookeeper_store, "_AT_ONCE", 4)
    monkeypatch.setattr(store.connection, "gather", counted)
    sync, many = store.client.sync_async, nodes.read_many
    monkeypatch.setattr(store.client, "sync_async", lambda path: asked.append("sync") or sync(path))
    monkeypatch.setattr(nodes, "read_many", lambda *what: asked.append(f"{len(what[1])} nodes") or many(*what))
    read = store.read_ledgers(range(5), {})
    assert next(read).version == 0 and trips == [2], "no more is asked for than a group"
    assert [one.version for one in read] == [0, 0, 1, 0]
    assert trips == [2, 2] and asked == ["sync", "4 nodes", "sync", "1 nodes"]


def test_many_ledgers_are_read_with_few_requests(store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only missing ledgers are left out."""
    monkeypatch.setattr(nodes, "NODES_PER_REQUEST", 3)
    for ledger_id in range(8):
        store.create_ledger(ledger(ledger_id))
    store.write_ledger(ledger(5).in_recovery(), 0)
    store.delete_ledger(2)
    requests: list[str] = []
    send = store.client._call
    monkeypatch.setattr(store.client, "_call", lambda *what: requests.append(type(what[0]).__name__) or send(*what))
    found = list(store.read_ledgers(range(8), {}))
    assert [(one.value.ledger_id, one.version) for one in found] == [(n, int(n == 5)) for n in range(8) if n != 2]
    assert requests.count("ManyReads") == 3
    assert requests.count("GetData") == 1, "of INSTANCEID, because a ledger is gone"


def test_record_refused_within_a_group_is_read_alone(store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for ledger_id in range(3):
        store.create_ledger(ledger(ledger_id))
    many = nodes.read_many

    def refused(client: Any, paths: Sequence[str]) -> list[Any]:
        sent = many(client, paths)
        sent[0].get(EVENT_SECONDS)[1] = NoAuthError()
        return sent

    monkeypatch.setattr(nodes, "read_many", refused)
    assert [one.value.ledger_id for one in store.read_ledgers(range(3), {})] == [0, 1, 2]


@pytest.mark.parametrize("manager", ["hierarchical", "flat"])
@pytest.mark.parametrize("made_anew", [False, True])
def test_zookeeper_that_lost_its_data_does_not_report_ledgers_as_deleted(
    chroot: str, manager: str, made_anew: bool
) -> None:
    """Both checks of garbage collection then agreed, and every bookie deleted all its ledgers."""
    with contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager(manager))) as store:
        store.create_ledger(ledger(5))
        store.client.delete(store.layout.ledgers, recursive=True)
        if made_anew:
            ZooKeeperStore(chroot, begin=LedgerManager(manager)).close()
        for operation in (
            store.list_ledgers,
            lambda: store.read_ledger(5),
            lambda: list(store.read_ledgers([5], {})),
            lambda: store.write_ledger(ledger(5).in_recovery(), 0),
            lambda: store.delete_ledger(5),
        ):
            with pytest.raises(
                MetadataStoreError, match=r"INSTANCEID.* (is gone|belongs to).*; restore ZooKeeper's data"
            ):
                operation()


@pytest.mark.parametrize("manager", ["hierarchical", "flat"])
def test_client_of_a_removed_cluster_changes_nothing_in_the_new_cluster(chroot: str, manager: str) -> None:
    """Ledger ids and versions start again: the old client's close overwrote the record of another ledger, and its delete removed
    another ledger."""
    with (
        contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager(manager))) as old,
        contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager(manager))) as old_bookie,
    ):
        metadata = ledger(old.new_ledger_id())
        old.create_ledger(metadata)
        old.write_cookie(Cookie("bookie-1", ("/a",), old.instance_id, "n"), None)
        old.write_record("logs", "orders", b"old", None)
        old.client.delete(old.layout.root, recursive=True)
        with contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager(manager))) as new:
            assert new.new_ledger_id() == metadata.ledger_id
            new.create_ledger(ledger(metadata.ledger_id, c_token=2))
            cookie = Cookie("bookie-1", ("/b",), new.instance_id, "m")
            new.write_cookie(cookie, None)
            new.write_record("logs", "orders", b"new", None)
            for operation in (
                lambda: old.write_ledger(metadata.in_recovery(), 0),
                lambda: old.delete_ledger(metadata.ledger_id),
                lambda: old.write_cookie(Cookie("bookie-1", ("/a",), old.instance_id, "o"), 0),
                lambda: old.delete_cookie("bookie-1", 0),
                lambda: old.write_record("logs", "orders", b"old again", 0),
                lambda: old.delete_record("logs", "orders"),
                lambda: old_bookie.register_bookie(BOOKIE),
            ):
                with pytest.raises(MetadataStoreError, match="another cluster now, and nothing was changed"):
                    operation()
            assert new.read_ledger(metadata.ledger_id).value.c_token == 2
            assert new.read_cookie("bookie-1") == (cookie, 0)
            assert new.read_record("logs", "orders")[:2] == (b"new", 0)  # type: ignore[index]
            assert new.bookies() == {}


def test_cluster_without_its_mark_gets_it_at_the_next_start(chroot: str) -> None:
    with contextlib.closing(begun(chroot)) as store:
        store.create_ledger(ledger(5))
        mark = store.layout.mark(store.instance_id)
        store.client.delete(mark)
        with contextlib.closing(begun(chroot)) as later:
            assert later.client.exists(mark)
            assert later.write_ledger(ledger(5).in_recovery(), 0) == 1


# -- ACLs


def test_cluster_with_an_auth_file_refuses_clients_without_its_credentials(chroot: str, tmp_path: Path) -> None:
    files = {}
    for user in ("us", "them"):
        files[user] = tmp_path / user
        private(files[user], f"{user}:secret\n")
    ours = begun(f"{chroot}?auth_file={files['us']}")
    ours.create_ledger(ledger(5))
    ours.register_bookie(BOOKIE)
    ours.write_record("logs", "orders", b"{}", None)
    for path in (
        "ledgers",
        "ledgers/LAYOUT",
        "ledgers/00/0000/L0005",
        "ledgers/available/bookie-1",
        "bookspark/logs/orders",
    ):
        (acl,) = ours.client.get_acls(f"{ours.layout.root}/{path}")[0]
        assert (acl.id.scheme, acl.id.id.partition(":")[0]) == ("digest", "us")
    again = begun(f"{chroot}?auth_file={files['us']}")
    assert again.read_ledger(5).value == ledger(5)
    for stranger in (chroot, f"{chroot}?auth_file={files['them']}"):
        with pytest.raises(MetadataStoreError, match=r"NoAuthError.*\?auth_file="):
            begun(stranger)
    for each in (ours, again):
        each.close()


def test_unusable_auth_file_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="auth_file /nowhere can't be read"):
        begun("h?auth_file=/nowhere")
    private(tmp_path / "empty", "")
    with pytest.raises(ConfigurationError, match="does not hold user:password"):
        begun(f"h?auth_file={tmp_path / 'empty'}")


# -- lost replies


def test_layout_is_created_although_the_reply_is_lost(zookeeper: EmbeddedZooKeeper, proxy: LossyProxy) -> None:
    proxy.lose_reply(MULTI)
    made = begun(proxy.address + "/tests/lost-layout")
    assert proxy.lost == 1 and made.instance_id
    made.close()


def test_create_ledger_succeeds_although_its_reply_is_lost(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    store.create_ledger(ledger(4))
    proxy.lose_reply(CREATE)
    assert lossy.create_ledger(ledger(5, c_token=9)) == 0
    assert proxy.lost == 1
    assert store.read_ledger(5) == (ledger(5, c_token=9), 0)


def test_create_ledger_with_lost_reply_does_not_hide_a_concurrent_fence(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    metadata = ledger(5, c_token=9)
    store.create_ledger(ledger(4))
    proxy.lose_reply(CREATE, lambda: store.write_ledger(metadata.in_recovery(), 0) and None)
    version = lossy.create_ledger(metadata)
    with pytest.raises(MetadataVersionError):
        lossy.write_ledger(metadata.close_at(1, 1), version)


def test_create_ledger_with_lost_reply_raises_if_another_client_was_first(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    store.create_ledger(ledger(5, c_token=1))
    proxy.lose_reply(CREATE)
    with pytest.raises(LedgerExistsError):
        lossy.create_ledger(ledger(5, c_token=2))
    assert proxy.lost == 1


def test_write_ledger_succeeds_although_its_reply_is_lost(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    store.create_ledger(ledger(5))
    proxy.lose_reply(MULTI)
    assert lossy.write_ledger(ledger(5).in_recovery(), 0) == 1
    assert proxy.lost == 1 and store.read_ledger(5).version == 1


def test_write_ledger_with_lost_reply_raises_if_the_version_was_old(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    store.create_ledger(ledger(5))
    store.write_ledger(ledger(5).in_recovery(), 0)
    proxy.lose_reply(MULTI)
    with pytest.raises(MetadataVersionError):
        lossy.write_ledger(ledger(5).close_at(1, 1), 0)
    assert proxy.lost == 1 and store.read_ledger(5) == (ledger(5).in_recovery(), 1)


def test_outcome_of_write_ledger_is_unknown_if_overwritten_before_its_lost_reply(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    closed = ledger(5).in_recovery().close_at(1, 1)
    store.create_ledger(ledger(5))
    proxy.lose_reply(MULTI, lambda: store.write_ledger(closed, 1) and None)
    with pytest.raises(MetadataStoreError, match="unknown"):
        lossy.write_ledger(ledger(5).in_recovery(), 0)
    assert store.read_ledger(5) == (closed, 2)


def test_write_ledger_with_lost_reply_raises_if_the_ledger_was_deleted(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    store.create_ledger(ledger(5))
    proxy.lose_reply(MULTI, lambda: store.delete_ledger(5))
    with pytest.raises(NoSuchLedgerError):
        lossy.write_ledger(ledger(5).in_recovery(), 0)


def test_delete_ledger_succeeds_although_its_reply_is_lost(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    store.create_ledger(ledger(5))
    proxy.lose_reply(MULTI)
    lossy.delete_ledger(5)
    assert proxy.lost == 1 and store.list_ledgers() == []


def test_writes_and_deletes_of_records_succeed_although_their_replies_are_lost(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    store.write_record("logs", "a", b"", None)
    proxy.lose_reply(CREATE)
    assert lossy.write_record("logs", "b", b"1", None) == 0
    proxy.lose_reply(MULTI)
    assert lossy.write_record("logs", "b", b"2", 0) == 1
    proxy.lose_reply(MULTI)
    lossy.delete_record("logs", "b", 1)
    assert proxy.lost == 3 and store.list_records("logs") == ["a"]


def test_record_write_with_lost_reply_raises_if_the_record_was_recreated(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    def anew() -> None:
        store.delete_record("logs", "b")
        store.write_record("logs", "b", b"new", None)

    version = store.write_record("logs", "b", b"1", None)
    proxy.lose_reply(MULTI, anew)
    with pytest.raises(MetadataVersionError):
        lossy.write_record("logs", "b", b"2", version)
    version = store.write_record("logs", "b", b"newer", store.read_record("logs", "b").version)  # type: ignore[union-attr]
    proxy.lose_reply(MULTI, anew)
    with pytest.raises(MetadataVersionError):
        lossy.delete_record("logs", "b", version)
    assert proxy.lost == 2 and store.read_record("logs", "b").value == b"new"  # type: ignore[union-attr]


def test_each_operation_on_a_record_takes_a_single_round_trip(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[str] = []
    gathered = Connection._gather

    def counted(self: Connection, what: str, *arguments: Any) -> Any:
        trips.append(what)
        return gathered(self, what, *arguments)

    store.delete_record("logs", "a")
    monkeypatch.setattr(Connection, "_gather", counted)
    version = store.write_record("logs", "a", b"1", None)
    store.read_record("logs", "a")
    store.write_record("logs", "a", b"2", version)
    store.delete_record("logs", "a", version + 1)
    assert [trip.partition(" ")[0] for trip in trips] == ["creating", "reading", "changing", "deleting"]


def test_register_bookie_succeeds_although_its_reply_is_lost(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    proxy.lose_reply(MULTI)
    lossy.register_bookie(BOOKIE)
    assert proxy.lost == 1 and store.bookies() == {"bookie-1": BOOKIE}
    lossy.unregister_bookie("bookie-1")
    assert store.bookies() == {}


def test_new_ledger_id_with_lost_reply_leaves_a_gap_and_repeats_no_id(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    proxy.lose_reply(SET_DATA)
    assert [lossy.new_ledger_id(), store.new_ledger_id()] == [1, 2]


@pytest.mark.parametrize("manager", [LedgerManager.HIERARCHICAL, LedgerManager.BOOKKEEPER])
def test_skipped_ids_are_never_given_by_either_kind_of_id_counter(chroot: str, manager: LedgerManager) -> None:
    with closing(ZooKeeperStore(chroot, begin=manager)) as store:
        assert store.new_ledger_id() == 0
        store.skip_ledger_ids(700)
        assert store.last_ledger_id() == 700
        assert [store.new_ledger_id(), store.last_ledger_id()] == [701, 701]


def test_given_id_is_noted_although_the_reply_is_lost(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    proxy.lose_reply(CREATE)
    lossy.note_given_id(50)
    assert proxy.lost == 1 and store.highest_ledger_id() == 50
    proxy.lose_reply(MULTI)
    lossy.note_given_id(60)
    assert proxy.lost == 2 and store.highest_ledger_id() == 60
    store.client.set(store.layout.idgiven, b"rubbish")
    with pytest.raises(MetadataStoreError, match="not a ledger id"):
        store.highest_ledger_id()


def test_watchers_are_called_when_the_connection_is_lost(
    lossy: ZooKeeperStore, proxy: LossyProxy, store: ZooKeeperStore
) -> None:
    """The server drops its watches with the connection, so a change in the gap would be missed."""
    ledger_calls, record_calls, bookie_calls = Changes(), Changes(), Changes()
    store.create_ledger(ledger(5))
    lossy.watch_ledger(5, ledger_calls)
    lossy.watch_record("logs", "a", record_calls)
    lossy.watch_bookies(bookie_calls)
    proxy.lose_reply(SET_DATA)
    lossy.new_ledger_id()
    for calls in (ledger_calls, record_calls, bookie_calls):
        calls.wait()
    store.register_bookie(BOOKIE)
    bookie_calls.await_that(lambda: "bookie-1" in lossy.bookies())


def test_time_is_read_although_the_reply_is_lost(lossy: ZooKeeperStore, proxy: LossyProxy) -> None:
    proxy.lose_reply(CREATE_2)
    lossy.clock.now_ms()
    assert proxy.lost == 1 and abs(lossy.clock.store_ms() - time.time_ns() // 1_000_000) < 60_000
    nodes = lossy.layout.clocks
    await_that(lambda: len(lossy.client.get_children(nodes)) <= 1, what="a lost reply leaves a node")


# -- lost sessions


def expire(store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper) -> None:
    """End the store's session at the server."""
    end_session(zookeeper.connection_string, store.client)


def test_registration_and_watches_survive_an_expired_session(
    store: ZooKeeperStore, chroot: str, zookeeper: EmbeddedZooKeeper
) -> None:
    watcher, calls, own_calls = begun(chroot), Changes(), Changes()
    store.register_bookie(BOOKIE)
    store.watch_bookies(own_calls)
    watcher.watch_bookies(calls)
    session_id = store.client.client_id[0]
    expire(store, zookeeper)
    calls.wait()
    calls.await_that(lambda: watcher.bookies() == {"bookie-1": BOOKIE} and store.client.client_id[0] != session_id)
    own_calls.wait()
    watcher.register_bookie(BookieRegistration("bookie-2", "a:1", 1))
    own_calls.await_that(lambda: "bookie-2" in store.bookies())
    store.unregister_bookie("bookie-1")
    assert set(watcher.bookies()) == {"bookie-2"}
    watcher.close()


def test_time_is_read_again_after_a_lost_session_and_not_before(
    store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper
) -> None:
    """The machine may have stood still meanwhile, and its monotonic clock with it."""

    def made() -> int:
        store.clock.now_ms()
        return int(store.client.get(store.layout.clocks)[1].pzxid)

    store.clock.now_ms()
    # The node of the first reading is deleted without a wait.
    await_that(lambda: not store.client.get_children(store.layout.clocks))
    before = made()
    assert made() == before
    session_id = store.connection.session_id
    expire(store, zookeeper)
    await_that(lambda: store.connection.session_id not in (None, session_id))
    assert store.bookies() == {}, "it is connected again"
    await_that(lambda: made() != before)


def test_client_of_a_rolled_back_zookeeper_cannot_register_or_draw_ids(
    store: ZooKeeperStore,
    chroot: str,
    zookeeper: EmbeddedZooKeeper,
    kazoo: KazooClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A ZooKeeper restored from an older copy accepts its earlier clients. Their bookies continued as if nothing were lost."""
    watcher = begun(chroot)
    store.register_bookie(BOOKIE)
    store.skip_ledger_ids(5)
    kazoo.delete(store.layout.idgen)
    kazoo.create(store.layout.idgen)
    expire(store, zookeeper)
    await_that(lambda: "is at ledger id -1 and was at 5 before" in caplog.text)
    assert watcher.bookies() == {}
    watcher.skip_ledger_ids(50)
    with pytest.raises(MetadataStoreError, match="start this process again"):
        store.register_bookie(BOOKIE)
    with pytest.raises(MetadataStoreError, match="start this process again"):
        store.new_ledger_id()
    assert watcher.bookies() == {}
    with closing(begun(chroot)) as restarted:
        restarted.register_bookie(BOOKIE)
        assert restarted.new_ledger_id() > 50
    watcher.close()


def test_deleted_registration_is_created_again(store: ZooKeeperStore, chroot: str, kazoo: KazooClient) -> None:
    """The bookie kept serving, but clients could not find it until it was restarted."""
    watcher, calls = begun(chroot), Changes()
    watcher.watch_bookies(calls)
    for read_only in (False, True):
        registration = msgspec.structs.replace(BOOKIE, read_only=read_only)
        store.register_bookie(registration)
        path = store.layout.bookie("bookie-1", read_only)
        for _ in range(2):
            made = kazoo.get(path)[1].czxid
            kazoo.delete(path)
            calls.await_that(lambda path=path, made=made: _created_after(kazoo, path, made))
        assert watcher.bookies() == {"bookie-1": registration}
        kazoo.set(path, b"{}")
        calls.await_that(lambda path=path: kazoo.get(path)[0] != b"{}")
    store.unregister_bookie("bookie-1")
    assert watcher.bookies() == {}
    watcher.close()


def _created_after(kazoo: KazooClient, path: str, zxid: int) -> bool:
    found = kazoo.exists(path)
    return found is not None and found.czxid > zxid


def test_two_sessions_with_the_same_bookie_do_not_fight_over_its_registration(
    store: ZooKeeperStore, chroot: str, kazoo: KazooClient, caplog: pytest.LogCaptureFixture
) -> None:
    other = begun(chroot)
    store.register_bookie(BOOKIE)
    other.register_bookie(BOOKIE)
    await_that(lambda: "another process is registered as it" in caplog.text)
    node = kazoo.exists(store.layout.bookie("bookie-1", False))
    assert node is not None and node.ephemeralOwner == other.client.client_id[0]
    other.close()


COOKIE = Cookie("bookie-1", ("/disk",), "instance", "n")


def test_host_that_was_cut_off_does_not_take_the_registration_from_its_successor(
    store: ZooKeeperStore, lossy: ZooKeeperStore, proxy: LossyProxy, chroot: str, zookeeper: EmbeddedZooKeeper
) -> None:
    """It deleted the node of the host that had become the bookie: clients asked it for entries that it had never got."""
    replaced: queue.SimpleQueue[InvalidCookieError] = queue.SimpleQueue()
    calls, successor = Changes(), msgspec.structs.replace(BOOKIE, incarnation=8)
    store.write_cookie(COOKIE, None)
    lossy.register_bookie(BOOKIE, COOKIE, replaced.put)
    store.watch_bookies(calls)
    proxy.silent = True
    expire(lossy, zookeeper)
    calls.await_that(lambda: store.bookies() == {})
    store.write_cookie(replace(COOKIE, nonce="m"), 0)
    store.register_bookie(successor, replace(COOKIE, nonce="m"), replaced.put)
    proxy.silent = False
    assert "have become bookie-1 since" in str(replaced.get(timeout=EVENT_SECONDS))
    lossy.unregister_bookie("bookie-1")
    assert store.bookies() == {"bookie-1": successor}
    assert replaced.empty()


def test_host_that_stands_still_before_it_registers_is_refused(
    store: ZooKeeperStore, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_cookie(COOKIE, None)
    commit = store.connection.commit

    def late(*arguments: Any) -> None:
        monkeypatch.undo()
        with closing(begun(chroot)) as other:
            other.write_cookie(replace(COOKIE, nonce="m"), 0)
        commit(*arguments)

    monkeypatch.setattr(store.connection, "commit", late)
    with pytest.raises(InvalidCookieError, match="have become bookie-1 since"):
        store.register_bookie(BOOKIE, COOKIE)
    assert store.bookies() == {}


def test_cookie_that_is_gone_with_its_cluster_ends_no_bookie(store: ZooKeeperStore) -> None:
    """All bookies of a ZooKeeper that lost its data would end, and with them the service of their clients."""
    store.client.delete(store.layout.instance_id, recursive=True)
    with pytest.raises(MetadataStoreError, match="restore ZooKeeper's data"):
        store.register_bookie(BOOKIE, COOKIE)


def test_registration_returns_with_a_new_session_while_the_cookie_is_the_bookies(
    store: ZooKeeperStore, chroot: str, zookeeper: EmbeddedZooKeeper
) -> None:
    replaced: queue.SimpleQueue[InvalidCookieError] = queue.SimpleQueue()
    watcher, calls = begun(chroot), Changes()
    watcher.watch_bookies(calls)
    store.write_cookie(COOKIE, None)
    store.register_bookie(BOOKIE, COOKIE, replaced.put)
    made = watcher.client.get(store.layout.bookie("bookie-1", False))[1].czxid
    expire(store, zookeeper)
    calls.await_that(lambda: _created_after(watcher.client, store.layout.bookie("bookie-1", False), made))
    assert watcher.bookies() == {"bookie-1": BOOKIE} and replaced.empty()
    watcher.close()


def test_withdrawn_registration_does_not_return_with_a_new_session(
    store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper
) -> None:
    calls = Changes()
    store.register_bookie(BOOKIE)
    store.unregister_bookie("bookie-1")
    store.watch_bookies(calls)
    expire(store, zookeeper)
    calls.wait()
    assert store.bookies() == {}


def test_calls_continue_after_an_expired_session(store: ZooKeeperStore, zookeeper: EmbeddedZooKeeper) -> None:
    for turn in range(3):
        expire(store, zookeeper)
        assert store.new_ledger_id() == turn


# -- lost servers


def test_unreachable_server_raises_soon_with_its_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        for connect in (f"127.0.0.1:{port}", "127.0.0.1:1", "no-such-host.invalid:2181"):
            started = time.monotonic()
            with pytest.raises(MetadataStoreError, match=f"ZooKeeper at {connect} could not be reached"):
                begun(connect, start_timeout_seconds=0.5)
            assert time.monotonic() - started < 120


@contextlib.contextmanager
def takes_less_than(seconds: float) -> Iterator[None]:
    """The bound is far below the store's original deadline: a longer call has ignored the deadline set later."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def test_call_to_a_hanging_server_ends_at_its_deadline(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        store = begun(server.connection_string, timeout_seconds=600.0)
        store.connection.timeout_seconds = 1.0  # only after the connect: a starting server may take longer
        assert server.pid
        with halted(server.pid):
            with (
                takes_less_than(300),
                pytest.raises(MetadataStoreError, match=r"creating ledger 5: no answer .* in 1 s"),
            ):
                store.create_ledger(ledger(5, c_token=3))
            with takes_less_than(300), pytest.raises(MetadataStoreError, match="listing the ledgers"):
                store.list_ledgers()
            with waits_at_most(0.05), pytest.raises(MetadataStoreError, match=r"no answer .* in 0\.05 s"):
                store.read_ledger(5)
            with takes_less_than(300):
                store.close()


def test_clients_reconnect_to_a_restarted_server(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        port = server.port
        store, calls = begun(server.connection_string), Changes()
        store.create_ledger(ledger(5))
        store.register_bookie(BOOKIE)
        store.watch_bookies(calls)
    # An unclosed store would try to reconnect while later tests run.
    with closing(store), EmbeddedZooKeeper(tmp_path, port=port):
        await_that(lambda: store.list_ledgers() == [5], what="its answer", despite=MetadataStoreError)
        calls.wait()
        calls.await_that(lambda: store.bookies() == {"bookie-1": BOOKIE})


def test_watch_being_set_while_the_store_closes_logs_no_warning(
    store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If bookies left while a client closed, it logged that it would retry, with a closed connection."""
    watch, begun = store._nodes.watch_children, threading.Event()
    store.watch_bookies(Changes())

    def held_up(*arguments: Any) -> None:
        begun.set()
        assert store.connection._closed.wait(EVENT_SECONDS)
        watch(*arguments)

    monkeypatch.setattr(store._nodes, "watch_children", held_up)
    store.register_bookie(BOOKIE)
    assert begun.wait(EVENT_SECONDS)
    store.close()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

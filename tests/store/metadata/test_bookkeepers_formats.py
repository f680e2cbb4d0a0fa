"""Cookies, tasks, locks and votes in BookKeeper's formats."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from bookspark.errors import ConfigurationError, MetadataStoreError, UnreadableRecordError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.repair.underreplication_task import Mark, Reason, Task
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.process import Autorecovery
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.autorecovery.auditors import CheckReport
from bookspark.store.metadata.records.bookkeeper_texts import LAYOUT, check_bytes, is_layout
from bookspark.store.metadata.records.codec import decode_cookie, decode_task, encode_cookie, encode_task
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.store.metadata.kit import ledger

TASK = Task(
    7, {"bookie-1": Reason.LACKS, "host:3181": Reason.MISPLACED}, "said so", 1_700_000_000_000, 3, 2, "bad\nluck", 9
)
COOKIE = Cookie("bookie-1", ("/a", "/b c"), "9f2d6c1e-0000-4000-8000-000000000000", "6a09e667f3bcc908")


@contextlib.contextmanager
def nodes(chroot: str):
    """A ZooKeeper client and the path of the cluster's chroot."""
    host, _, path = chroot.removeprefix("zk://").partition("/")
    kazoo = KazooClient(host)
    kazoo.start()
    try:
        yield kazoo, f"/{path}"
    finally:
        kazoo.stop()
        kazoo.close()


def test_task_has_bookkeepers_text_and_keeps_our_fields() -> None:
    document = encode_task(TASK, bookkeepers=True)
    text, _, own = document.partition(b"# bookspark ")
    assert text == b'replica: "bookie-1"\nreplica: "host:3181"\nctime: 1700000000000\n'
    assert own.endswith(b"}\n") and own.count(b"\n") == 1
    assert decode_task(7, document) == TASK


def test_task_of_bookkeepers_auditor_marks_bookies_as_lost() -> None:
    found = decode_task(7, b'replica: "bookie-1"\nreplica: "bookie-2"\nctime: 5\n')
    assert found == Task(7, {"bookie-1": Reason.LOST, "bookie-2": Reason.LOST}, marked_at_ms=5)
    assert decode_task(7, b'replica: "bookie-1"\n') == Task(7, {"bookie-1": Reason.LOST})


def test_our_line_that_contradicts_bookkeepers_text_is_ignored() -> None:
    document = encode_task(TASK, bookkeepers=True).replace(b'replica: "host:3181"', b'replica: "bookie-2"')
    assert decode_task(7, document).bookies == {"bookie-1": Reason.LOST, "bookie-2": Reason.LOST}


@pytest.mark.parametrize("document", [b"replica: 7", b'replica: "a', b"ctime: x", b'replica: "\xff"'])
def test_error_about_a_damaged_task_names_its_ledger(document: bytes) -> None:
    with pytest.raises(UnreadableRecordError, match="task of ledger 7"):
        decode_task(7, document)


def test_cookie_has_bookkeepers_text_and_decodes_to_our_cookie() -> None:
    document = encode_cookie(COOKIE, bookkeepers=True)
    text, _, _ = document.partition(b"# bookspark ")
    assert text.decode() == (
        '5\nbookieHost: "bookie-1"\njournalDir: "/a,/b c"\nledgerDirs: "2\\t/a\\t/b c"\n'
        f'instanceId: "{COOKIE.instance_id}"\n'
    )
    assert decode_cookie(document, "here") == COOKIE
    assert decode_cookie(text, "here") == replace(COOKIE, nonce="")
    with pytest.raises(UnreadableRecordError, match="contradict"):
        decode_cookie(document.replace(b'bookieHost: "bookie-1"', b'bookieHost: "bookie-2"'), "here")


@pytest.mark.parametrize("field", ["bookieHost", "ledgerDirs"])
def test_cookie_without_a_bookie_or_directories_is_unreadable(field: str) -> None:
    text, _, _ = encode_cookie(COOKIE, bookkeepers=True).partition(b"# bookspark ")
    left = [line for line in text.splitlines() if not line.startswith(field.encode())]
    with pytest.raises(UnreadableRecordError, match="names no bookie, or no directories"):
        decode_cookie(b"\n".join(left), "here")


def test_new_cluster_for_bookkeepers_clients_has_bookkeepers_formats(chroot: str) -> None:
    with (
        contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)) as store,
        nodes(chroot) as (zk, root),
    ):
        assert store.layout.bookkeepers_formats
        assert is_layout(zk.get(f"{root}/ledgers/underreplication/LAYOUT")[0])
        store.write_cookie(COOKIE, None)
        store.underreplication.mark([Mark(1, {"bookie-1": Reason.LOST})])
        path = f"{root}/ledgers/underreplication/ledgers/0000/0000/0000/0001/urL0000000001"
        assert zk.get(path)[0].startswith(b'replica: "bookie-1"\n')
        assert zk.get(f"{root}/ledgers/cookies/bookie-1")[0].startswith(b"5\n")
        assert store.read_cookie("bookie-1") == (COOKIE, 0)


def test_instanceid_has_no_children_and_bookkeepers_shell_can_remove_it(chroot: str) -> None:
    """After BookKeeper's shell has formatted the cluster, a client of the old cluster changes nothing in the new one."""
    with (
        contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)) as store,
        nodes(chroot) as (zk, root),
    ):
        store.create_ledger(ledger(1))
        store.note_given_id(1)
        names = {"LAYOUT", "INSTANCEID", "available", "cookies", "idgen", "underreplication", "00"}
        assert set(zk.get_children(f"{root}/ledgers")) == names
        zk.delete(f"{root}/ledgers/underreplication/ledgers", recursive=True)
        zk.delete(f"{root}/ledgers/underreplication/locks", recursive=True)
        zk.delete(f"{root}/ledgers/cookies", recursive=True)
        zk.delete(f"{root}/ledgers/INSTANCEID")
        zk.create(f"{root}/ledgers/INSTANCEID", b"another")
        with pytest.raises(MetadataStoreError, match="another cluster"):
            store.write_ledger(ledger(1), 0)
        with contextlib.closing(ZooKeeperStore(chroot)) as another:
            assert another.instance_id == "another" and another.layout.bookkeepers_formats
            another.create_ledger(ledger(2))
            another.underreplication.mark([Mark(2, {"bookie-1": Reason.LOST})])
            assert another.underreplication.list_tasks() == [2]


def test_autorecovery_does_not_start_beside_bookkeepers_auditor(chroot: str) -> None:
    with contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)), nodes(chroot) as (zk, root):
        vote = f"{root}/ledgers/underreplication/auditorelection/V_"
        theirs = zk.create(vote, b'bookieId: "host-9:3181"\n', ephemeral=True, sequence=True)
        with pytest.raises(ConfigurationError, match="host-9:3181"):
            Autorecovery(BookKeeper(chroot), AutorecoveryConfig())
        with BookKeeper(chroot) as ours:
            auditors = ours.metadata.auditors
            assert auditors.auditor() == "host-9:3181" and auditors.elect("us") is None
            zk.delete(theirs)
            assert auditors.elect("us") is not None
            # A later vote does not win.
            zk.create(vote, b'bookieId: "host-9:3181"\n', ephemeral=True, sequence=True)
            assert auditors.auditor() == "us" and ours.metadata.auditors.elect("another") is None


def test_task_locked_by_bookkeepers_worker_is_not_taken(chroot: str) -> None:
    with (
        contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)) as store,
        nodes(chroot) as (zk, root),
    ):
        tasks = store.underreplication
        tasks.mark([Mark(1, {"bookie-1": Reason.LOST})])
        lock = zk.create(
            f"{root}/ledgers/underreplication/locks/urL0000000001", b'bookieId: "host-9"\n', ephemeral=True
        )
        assert tasks.holders() == {1: "host-9"} and tasks.take(1, "us") is None
        zk.delete(lock)
        taken = tasks.take(1, "us")
        assert taken is not None and zk.get(lock)[0].startswith(b'bookieId: "us"\n')
        tasks.release(taken)


def test_last_check_of_both_kinds_of_auditor_is_read(chroot: str) -> None:
    with (
        contextlib.closing(ZooKeeperStore(chroot, begin=LedgerManager.BOOKKEEPER)) as store,
        nodes(chroot) as (zk, root),
    ):
        report = CheckReport(1_700_000_000_000, 1.5, 10, 2, {"bookie-1": "away"})
        store.auditors.note_check(report)
        assert store.auditors.last_check() == report
        path = f"{root}/ledgers/underreplication/checkallledgersctime"
        assert zk.get(path)[0].startswith(b"\x08")
        zk.set(path, check_bytes(1_800_000_000_000, b""))
        assert store.auditors.last_check() == CheckReport(1_800_000_000_000, 0.0, 0, 0)
        zk.set(path, b"\xff\xff")
        assert store.auditors.last_check() is None


def as_earlier_versions_began_it(kazoo: KazooClient, root: str, instance_id: str) -> None:
    kazoo.delete(f"{root}/ledgers/underreplication", recursive=True)
    kazoo.create(f"{root}/ledgers/underreplication")
    kazoo.create(f"{root}/ledgers/INSTANCEID/{instance_id}")


def test_layout_of_autorecovery_has_bookkeepers_format() -> None:
    assert is_layout(LAYOUT) and not is_layout(b'type: "BASIC"\nversion: 1\n')

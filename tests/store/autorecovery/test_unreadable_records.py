"""An unreadable record affects only its own ledger, log or task: work over many records names it and goes on.

``custom_metadata={"team": "billing"}`` once made a record that could not be decoded, and autorecovery, lossy boots and listings
stopped for all ledgers of the cluster.
"""

from __future__ import annotations

import json
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import BookieError, MetadataStoreError, NoSuchLedgerError, UnreadableRecordError
from bookspark.logs.chain.codec import LogFormatError, encode_record
from bookspark.logs.chain.maintenance import delete_log
from bookspark.logs.chain.registry import LogRegistry
from bookspark.protocol.bookie.bookie_boot import NO_LOSSY_BOOT
from bookspark.protocol.bookie.bookie_ledger import FenceNoted, LimboNoted
from bookspark.protocol.bookie.garbage_collection import Complete, collectable
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.servers.daemon.bookie_process import fence_check, fence_what_may_be_lost
from bookspark.spark.tables.bookies import UNDERREPLICATION
from bookspark.spark.tables.ledgers import FRAGMENTS, LEDGERS, UNREADABLE
from bookspark.spark.tables.logs import LOGS
from bookspark.store.autorecovery import decommission as decommission_module
from bookspark.store.autorecovery import healing
from bookspark.store.autorecovery.auditor import Auditor
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.decommission import decommission
from bookspark.store.autorecovery.status import autorecovery_status, task_statuses
from bookspark.store.bookie.space.garbage_collection import list_ledgers, read_records
from bookspark.store.metadata.autorecovery.auditors import CheckReport
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.codec import encode_ledger
from bookspark.store.metadata.records.versioned import Versioned
from tests.awaiting import SECONDS_MAX, await_that
from tests.store.autorecovery.kit import Cluster
from tests.store.metadata.kit import ledger

BAD = 5
"""The ledger with an unreadable record, amid ledgers with readable records."""


def changed(**fields: Any) -> bytes:
    return json.dumps({**json.loads(encode_ledger(ledger(BAD))), **fields}).encode()


SEGMENT = {"ensembleMember": ["bookie-1", "bookie-2", "bookie-3"], "firstEntryId": 0}
DOCUMENTS = {
    "nothing": b"",
    "garbage": b"\x00\xffgarbage",
    "half of it": encode_ledger(ledger(BAD))[:60],
    "null": b"null",
    "a list": b"[]",
    "deeply nested": b"[" * 100_000,
    "a newer format": changed(formatVersion=9, colour="blue"),
    "a field of nobody": changed(colour="blue"),
    "text where base64 belongs": changed(customMetadata={"team": "billing"}),
    "a number where text belongs": changed(digestType=3),
    "no such digest type": changed(digestType="crc32c"),
    "quorums that do not fit": changed(ackQuorumSize=4),
    "a quorum of zero": changed(ackQuorumSize=0, quorumSize=0, ensembleSize=0),
    "no fragments": changed(segment=[]),
    "fragments that do not ascend": changed(segment=[SEGMENT, SEGMENT]),
    "one bookie twice": changed(segment=[{**SEGMENT, "ensembleMember": ["a", "a", "b"]}]),
    "a negative length": changed(length=-7),
    "a last entry of 80 bits": changed(lastEntryId=1 << 80),
    "the year 300000": changed(ctime=1 << 60),
    "infinity": encode_ledger(ledger(BAD)).replace(b'"length":0', b'"length":1e999'),
}


def spoil(store: MemoryStore, ledger_id: int = BAD, document: bytes = DOCUMENTS["text where base64 belongs"]) -> None:
    with store._world.lock:
        store._world.documents["ledger", str(ledger_id)] = Versioned(document, 0)


def spoil_task(store: MemoryStore, ledger_id: int, document: bytes) -> None:
    tree = store._tree()
    path = next(
        key[1]
        for key in list(store._world.documents)
        if key[1].endswith(f"urL{ledger_id:010}") and "locks" not in key[1]
    )
    found = tree.read(path)
    assert found is not None and tree.write(path, document, found.version)


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    for ledger_id in (1, 2, 8, 9):
        made.close_ledger(ledger_id)
    spoil(made.metadata)
    return made


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS.keys())
def test_unreadable_record_is_named_and_all_others_are_read(cluster: Cluster, document: bytes) -> None:
    store = cluster.metadata
    spoil(store, BAD, document)
    with pytest.raises(UnreadableRecordError, match=f"ledger {BAD}"):
        store.read_ledger(BAD)
    unreadable: dict[int, str] = {}
    assert [one.value.ledger_id for one in store.read_ledgers(store.list_ledgers(), unreadable)] == [1, 2, 8, 9]
    assert unreadable.keys() == {BAD} and f"ledger {BAD}" in unreadable[BAD]
    store.delete_ledger(BAD)
    assert BAD not in store.list_ledgers()


def test_the_auditor_marks_the_other_ledgers_of_a_lost_bookie(cluster: Cluster, caplog) -> None:
    cluster.metadata.unregister_bookie("a")
    config = AutorecoveryConfig(
        lost_bookie_delay_seconds=0.0, check_interval_hours=0.0, retry_seconds=0.01, poll_seconds=0.02
    )
    auditor = Auditor(cluster, config, "auditor-1")  # type: ignore[arg-type]
    auditor.start()
    try:
        await_that(lambda: cluster.metadata.underreplication.list_tasks() == [1, 2, 8, 9])
        await_that(lambda: f"ledger {BAD} may name a lost bookie" in caplog.text)
    finally:
        assert auditor.stop()


@pytest.mark.parametrize("document", [b"soon", b"nan", b"-1", b"\xff"])
def test_auditor_uses_its_own_delay_if_the_stored_delay_is_unreadable(
    cluster: Cluster, document: bytes, caplog
) -> None:
    assert cluster.metadata._tree().create("lostbookierecoverydelay", document)
    test_the_auditor_marks_the_other_ledgers_of_a_lost_bookie(cluster, caplog)
    with pytest.raises(UnreadableRecordError, match="autorecovery delay"):
        cluster.metadata.auditors.delay_seconds()
    cluster.metadata.auditors.set_delay(3.0)
    assert cluster.metadata.auditors.delay_seconds() == 3.0


def test_exact_check_names_an_unreadable_record_and_checks_the_others(cluster: Cluster) -> None:
    cluster.held["b"] = [row for row in cluster.held["b"] if row[0] != 8]
    report = cluster.check()
    assert (report.ledgers, report.marked) == (4, 1) and report.unreadable.keys() == {BAD}
    assert cluster.found().keys() == {8}


def test_exact_check_skips_a_record_that_becomes_unreadable_during_it(cluster: Cluster) -> None:
    cluster.held["b"] = []
    report = cluster.check(meanwhile=lambda: spoil(cluster.metadata, 8))
    assert report.marked == 3 and cluster.found().keys() == {1, 2, 9}


def test_decommission_moves_all_other_ledgers_but_keeps_the_cookie(cluster: Cluster, monkeypatch) -> None:
    monkeypatch.setattr(decommission_module, "_POLL_SECONDS", 0.0)
    cluster.metadata.unregister_bookie("a")

    def work(_: object) -> None:
        tasks = cluster.metadata.underreplication
        for ledger_id in tasks.list_tasks():
            taken = tasks.take(ledger_id, "w")
            assert taken is not None
            metadata, version = cluster.metadata.read_ledger(ledger_id)
            cluster.metadata.write_ledger(metadata.re_replicated(0, {"a": "d"}), version)
            tasks.done(taken)

    for _ in range(2):
        with pytest.raises(BookieError, match=f"keeps its cookie: ledger {BAD} may name it"):
            decommission(cluster, "a", timeout_seconds=60.0, progress=work)  # type: ignore[arg-type]
        assert "a" in cluster.metadata.list_cookies()
        assert "d" in cluster.get_ledger_metadata(9).last_fragment.ensemble
    cluster.metadata.delete_ledger(BAD)
    decommission(cluster, "a", timeout_seconds=60.0, progress=work)  # type: ignore[arg-type]
    assert "a" not in cluster.metadata.list_cookies()


def test_lossy_boot_fences_ledgers_with_and_without_a_readable_record() -> None:
    store = MemoryStore()
    for _ in range(7):
        store.create_ledger(ledger(store.new_ledger_id()))
    spoil(store)
    noted: list[Any] = []
    boots = SimpleNamespace(
        unreadable=(), unread=(), unclean=("/d",), losses=(), fences_lost=False, mark=NO_LOSSY_BOOT,
        only_absent=lambda emptied: 0,
        note_lossy_boot=lambda found, fences_lost: noted.append(found),
    )  # fmt: skip
    fence_what_may_be_lost(SimpleNamespace(lossy_boots=boots), store, "bookie-1", (), lambda _: None)  # type: ignore[arg-type]
    (found,) = noted
    assert {one.ledger_id for one in found.records if isinstance(one, FenceNoted)} == set(range(7))
    assert {one.ledger_id for one in found.records if isinstance(one, LimboNoted)} == set(range(7))
    with pytest.raises(UnreadableRecordError):
        # The storage answers unknown if this raises, so it admits no add.
        fence_check(store, "bookie-1")(BAD)


def test_garbage_collection_keeps_a_ledger_with_an_unreadable_record(cluster: Cluster) -> None:
    store = cluster.metadata
    assert list_ledgers(store) == Complete({1, 2, BAD, 8, 9}), "a bad record is a ledger that exists"
    answers = read_records(store, [3, BAD, 7])
    assert collectable([3, BAD, 7], answers) == (3, 7)


def test_healing_retries_an_unreadable_record_and_heals_the_others(monkeypatch) -> None:
    monkeypatch.setattr(healing, "_RETRY_SECONDS", 0.01)
    store = MemoryStore()
    for ledger_id in (1, 2):
        store.create_ledger(ledger(ledger_id))
    spoil(store)
    spoil(store, 6)
    limbo, healed, filled = {BAD: 1, 7: 1}, threading.Event(), []
    bookie = SimpleNamespace(
        boot=1, bookie_id="bookie-1", limbo=lambda: dict(limbo), note_healed=lambda boot: healed.set(),
        clear_limbo=lambda ledger_id, boot: limbo.pop(ledger_id),
        held=lambda ledger_id: filled.append(ledger_id) or [(0, 9)],
    )  # fmt: skip
    running = healing.Healing(bookie, SimpleNamespace(metadata=store, close=lambda: None), 0)  # type: ignore[arg-type]
    running.start()
    await_that(lambda: running.status().saw_all and limbo.keys() == {BAD})
    assert set(filled) == {1, 2} and not healed.is_set() and running.status().ledgers_left == 2
    store.delete_ledger(BAD)
    await_that(lambda: limbo == {} and running.status().ledgers_left == 1)
    assert not healed.is_set(), "ledger 6 may name the bookie"
    store.delete_ledger(6)
    assert healed.wait(SECONDS_MAX) and running.wait(SECONDS_MAX)


NEWER_TASK = b'{"formatVersion": 9, "replica": {}, "colour": "blue"}'


def test_damaged_task_is_replaced_and_a_task_of_a_newer_version_stays(cluster: Cluster) -> None:
    store, tasks = cluster.metadata, cluster.metadata.underreplication
    tasks.mark(Mark(ledger_id, {"a": Reason.LOST}) for ledger_id in (1, 2, 8, 9))
    spoil_task(store, 2, b"garbage")
    spoil_task(store, 8, NEWER_TASK)
    unreadable: dict[int, str] = {}
    assert [one.ledger_id for one in task_statuses(store, unreadable)] == [1, 9] and unreadable.keys() == {2, 8}
    status = autorecovery_status(store)
    assert status.unreadable.keys() == {2, 8} and status.ledgers == 2
    rows = {row[0]: row for row in UNDERREPLICATION.rows(cluster, None, b"")}  # type: ignore[arg-type]
    assert rows.keys() == {1, 2, 8, 9} and "decoded" in rows[2][7]
    assert sorted(tasks.due_of([1, 2, 8, 9])) == [1, 9]
    tasks.mark(Mark(ledger_id, {"b": Reason.LACKS}) for ledger_id in (1, 2, 8, 9))
    found = cluster.metadata.underreplication
    assert [dict(one.bookies) for one in found.tasks([1, 2, 9], {})] == [
        {"a": Reason.LOST, "b": Reason.LACKS}, {"b": Reason.LACKS}, {"a": Reason.LOST, "b": Reason.LACKS}
    ]  # fmt: skip
    with pytest.raises(UnreadableRecordError, match="upgrade Bookspark"):
        found.task(8)


def test_autorecovery_tolerates_its_other_unreadable_records(cluster: Cluster) -> None:
    store, tasks, auditors = cluster.metadata, cluster.metadata.underreplication, cluster.metadata.auditors
    tree = store._tree()
    tasks.mark([Mark(1, {"a": Reason.LOST})])
    assert tree.create("workers/w", b"garbage") and tasks.progress() == {}
    assert tree.create("locks/urL0000000001", b"\xff") and "lock" in tasks.holders()[1]
    assert tasks.take(1, "w") is None, "somebody holds it"
    assert tree.create("auditorelection", b"{}") and auditors.auditor() and auditors.state() is None
    assert tree.create("checkallledgersctime", b"[]") and auditors.last_check() is None
    auditors.note_check(CheckReport(1, 2.0, 3, 4))
    assert auditors.last_check() == CheckReport(1, 2.0, 3, 4)
    assert autorecovery_status(store).ledgers == 1


def test_bookie_with_an_unreadable_registration_counts_as_present_and_read_only(cluster: Cluster) -> None:
    world = cluster.metadata._world
    world.registrations["b"] = (world.registrations["a"][0], b"\xff")
    found = cluster.metadata.bookies()
    assert found.keys() == {"a", "b", "c"} and found["b"].read_only and found["b"].address == ""
    with pytest.raises(BookieError, match="registered"):
        decommission(cluster, "b", timeout_seconds=1.0)  # type: ignore[arg-type]


def test_system_tables_list_a_ledger_with_an_unreadable_record(cluster: Cluster, caplog) -> None:
    (ids,) = LEDGERS.plan(cluster)  # type: ignore[arg-type]
    rows = {row[0]: row for row in LEDGERS.rows(cluster, ids, b"")}  # type: ignore[arg-type]
    assert rows.keys() == {1, 2, BAD, 8, 9}
    assert rows[BAD] == (BAD, None, UNREADABLE, *[None] * (len(LEDGERS.columns) - 3))
    assert {row[0] for row in FRAGMENTS.rows(cluster, ids, b"")} == {1, 2, 8, 9}  # type: ignore[arg-type]
    assert f"ledger {BAD}" in caplog.text
    (batch,) = LEDGERS.read(cluster, ids, b"")  # type: ignore[arg-type]
    assert batch.num_rows == 5


def test_unreadable_record_of_a_log_does_not_hide_other_logs(cluster: Cluster) -> None:
    from bookspark.protocol.logs.log_options import LogOptions

    registry, store = LogRegistry(cluster.metadata), cluster.metadata
    registry.create("good", LogOptions(), b"")
    for name, document in (("bad", b"{"), ("nested", b"[" * 100_000), ("other", b'{"format": 1, "log": 3}')):
        store.write_record("log_records", str(registry.create(name, LogOptions(), b"").log_id), document, 0)
        with pytest.raises(LogFormatError, match=name):
            registry.get(name)
    unnamed = registry.create("unnamed", LogOptions(), b"")
    for name in ("unnamed", "nobodys"):
        store.write_record("logs", name, b"{", 0 if name == "unnamed" else None)
        with pytest.raises(LogFormatError, match=name):
            registry.get(name)
    rows = {row[0]: row for row in LOGS.rows(cluster, None, b"")}  # type: ignore[arg-type]
    assert rows.keys() == {"good", "bad", "nested", "other", "unnamed"}
    assert rows["bad"][8] is False and rows["good"][8] is True
    # An audit would else call its ledgers those of a deleted log.
    assert rows["unnamed"][-1] == unnamed.log_id
    (batch,) = LOGS.read(cluster, None, b"")  # type: ignore[arg-type]
    assert batch.num_rows == 5
    assert encode_record(registry.get("good"))


def test_deletion_of_a_log_keeps_a_ledger_with_an_unreadable_record(cluster: Cluster, caplog) -> None:
    from bookspark.protocol.logs.log_options import LogOptions
    from bookspark.protocol.logs.log_record import EPOCH_LABEL, LOG_ID_LABEL, LOG_LABEL

    store = cluster.metadata
    log_id = LogRegistry(store).create("log", LogOptions(), b"").log_id
    labels = {LOG_LABEL: b"log", LOG_ID_LABEL: str(log_id).encode(), EPOCH_LABEL: b"not a number"}
    store.create_ledger(ledger(3, custom_metadata=labels))
    store.create_ledger(ledger(7, custom_metadata=labels))
    deleted: list[int] = []

    def delete_ledger(ledger_id: int) -> None:
        store.delete_ledger(ledger_id)
        deleted.append(ledger_id)

    client = SimpleNamespace(
        metadata=store, list_ledgers=store.list_ledgers, get_ledger_metadata=lambda i: store.read_ledger(i).value,
        open_ledger=lambda *_, **__: SimpleNamespace(close=lambda: None), delete_ledger=delete_ledger,
    )  # fmt: skip
    with caplog.at_level(logging.WARNING):
        assert delete_log(client, "log", b"") == [3, 7] == deleted  # type: ignore[arg-type]
    assert f"ledger {BAD} is not deleted" in caplog.text and BAD in store.list_ledgers()


def test_unreadable_record_read_alone_is_an_error_of_the_metadata_store(cluster: Cluster) -> None:
    with pytest.raises(MetadataStoreError):
        cluster.get_ledger_metadata(BAD)
    with pytest.raises(NoSuchLedgerError):
        cluster.get_ledger_metadata(6)

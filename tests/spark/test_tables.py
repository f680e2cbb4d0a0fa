"""System tables without Spark: unknown values in their rows, and how many rows are in memory at once."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bookspark.errors import BookieError, UnauthorizedAccessError
from bookspark.logs import LogAddress, LogRegistry, LogRun, create_log, delete_log
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.open_rows import OpenRows
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.spark.snapshots.snapshot import ROWS_PER_FILE, rows_in_file
from bookspark.spark.tables.ledgers import ACCEPTED_LOSSES, FRAGMENTS, LEDGER_IDS, LEDGER_RECORDS, LEDGERS, Ids
from bookspark.spark.tables.logs import LOG_COMMITS, LOGS
from bookspark.spark.tables.table import LONG, ROWS_PER_BATCH, Rows, SystemTable, once
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.records.ledger_spans import IDS_PER_SPAN, LedgerSpan
from bookspark.store.metadata.zookeeper.nodes import Nodes
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import SECONDS_MAX
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryReader
from tests.store.metadata.kit import begun

LEDGER = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "custom_metadata": {}}


@pytest.mark.parametrize("error", [UnauthorizedAccessError("wrong password"), BookieError("no bookie answers")])
def test_unknown_lac_is_null_in_the_ledgers_table(error: Exception) -> None:
    bookkeeper = MemoryBookKeeper()
    for password in (b"", b"secret"):
        bookkeeper.create_ledger(**LEDGER, password=password).append(b"entry")
    tell = bookkeeper.open_ledger_no_recovery

    def refuse(ledger_id: int, password: bytes = b"") -> Any:
        if ledger_id == 1:
            raise error
        return tell(ledger_id, password)

    bookkeeper.open_ledger_no_recovery = refuse  # type: ignore[method-assign]
    [rows] = LEDGERS.read(cast(BookKeeper, bookkeeper), Ids(0, 1), b"")
    assert rows.column("last_add_confirmed").to_pylist() == [0, None]


def written(bookkeeper: MemoryBookKeeper, *names: str) -> BookKeeper:
    """The client of logs of one commit each."""
    client = cast(BookKeeper, bookkeeper)
    registry = LogRegistry(bookkeeper.metadata)
    for name in names:
        registry.ensure(name, {}, b"")
        run = LogRun.of(LogAddress("zookeeper", name), registry.claim(name, "run"))
        ranges = (EntryRange(bookkeeper.data_ledger(run), 0, 9, 10, 100),)
        Committer(client, run).commit(Commit("query", 0, "run", run.epoch, ranges))
    return client


def test_log_deleted_while_tables_are_read_is_left_out_without_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    bookkeeper = MemoryBookKeeper()
    client = written(bookkeeper, "first", "second", "third")
    listed = LOG_COMMITS.plan(client)
    assert list(map(str, listed)) == ["first", "second", "third"]
    delete_log(client, "first", b"")
    monkeypatch.setattr(LogRegistry, "all_lanes", lambda self: listed)
    opened = bookkeeper.open_ledger_no_recovery

    def open_then(ledger_id: int, password: bytes = b"", **named: Any) -> MemoryReader:
        monkeypatch.setattr(bookkeeper, "open_ledger_no_recovery", opened)
        delete_log(client, "second", b"")  # its record was read, its commits were not
        return opened(ledger_id, password, **named)

    monkeypatch.setattr(bookkeeper, "open_ledger_no_recovery", open_then)
    [logs] = LOGS.read(client, None, b"")
    assert logs.column("log").to_pylist() == ["third"]
    rows = [batch.to_pylist() for name in listed for batch in LOG_COMMITS.read(client, name, b"")]
    assert [row["log"] for part in rows for row in part] == ["third"]


def test_log_deleted_while_its_open_ledger_is_read_is_left_out_without_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bookkeeper, look = MemoryBookKeeper(), OpenRows.look
    bookkeeper.zookeeper = "memory"
    bookkeeper.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
    client = cast(BookKeeper, bookkeeper)
    producer = create_log(client, "orders", options=LogOptions(1, 1, 1)).producer("a")
    producer.append(b"row")

    def deleted(rows: OpenRows) -> bool:
        monkeypatch.setattr(OpenRows, "look", look)
        delete_log(client, "orders", b"")
        return look(rows)

    lanes = LOG_COMMITS.plan(client)
    monkeypatch.setattr(OpenRows, "look", deleted)
    assert [batch.num_rows for lane in lanes for batch in LOG_COMMITS.read(client, lane, b"")] == []


def test_log_with_missing_commits_does_not_hide_other_logs_from_tables() -> None:
    """Each snapshot of the cluster failed, so no audit could name the missing ledger."""
    bookkeeper = MemoryBookKeeper()
    client = written(bookkeeper, "orders", "others")
    chain = [link.ledger_id for link in LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers]
    bookkeeper.delete_ledger(chain[-1])
    [logs] = LOGS.read(client, None, b"")
    told = [(row["log"], row["readable"], row["rows"]) for row in logs.to_pylist()]
    assert told == [("orders", False, None), ("others", True, 10)]
    assert logs.to_pylist()[0]["commit_ledgers"] == chain
    rows = [batch.to_pylist() for name in LOG_COMMITS.plan(client) for batch in LOG_COMMITS.read(client, name, b"")]
    assert [row["log"] for part in rows for row in part] == ["others"]


def test_table_rows_are_made_a_batch_at_a_time() -> None:
    made = 0

    def rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
        nonlocal made
        for made in range(1, 10 * ROWS_PER_BATCH + 2):
            yield (made,)

    table = SystemTable("numbers", "Numbers.", (("number", LONG, "One"),), once, rows)
    taken: list[int] = []
    for batch in table.read(cast(BookKeeper, None), None, b""):
        assert made <= len(taken) + ROWS_PER_BATCH
        taken += batch.column("number").to_pylist()
    assert taken == list(range(1, 10 * ROWS_PER_BATCH + 2))


def test_bookies_are_asked_about_several_open_ledgers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking about one ledger after the other took a round trip for each."""
    bookkeeper, together = MemoryBookKeeper(), threading.Barrier(8)
    for _ in range(8):
        bookkeeper.create_ledger(**LEDGER, password=b"").append(b"entry")
    tell = bookkeeper.open_ledger_no_recovery

    def all_at_once(ledger_id: int, password: bytes = b"") -> MemoryReader:
        together.wait(SECONDS_MAX)
        return tell(ledger_id, password)

    monkeypatch.setattr(bookkeeper, "open_ledger_no_recovery", all_at_once)
    [rows] = LEDGERS.read(cast(BookKeeper, bookkeeper), Ids(0, 7), b"")
    assert rows.column("ledger_id").to_pylist() == list(range(8))
    assert rows.column("last_add_confirmed").to_pylist() == [0] * 8


def test_record_of_an_open_ledger_is_as_new_as_its_lac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ensemble may have changed since the record was first read: entries that the LAC confirms lie on the new ensemble."""
    bookkeeper = MemoryBookKeeper()
    for _ in range(3):
        bookkeeper.create_ledger(**LEDGER, password=b"").append(b"entry")
    tell, store = bookkeeper.open_ledger_no_recovery, bookkeeper.metadata
    new = ("d", "e", "f")

    def tell_after_changes(ledger_id: int, password: bytes = b"") -> MemoryReader:
        told = tell(ledger_id, password)
        metadata, version = store.read_ledger(ledger_id)
        if ledger_id == 0:
            store.write_ledger(replace(metadata, fragments=(*metadata.fragments, Fragment(1, new))), version)
        elif ledger_id == 1:
            store.delete_ledger(1)
        else:
            closed = replace(metadata, state=LedgerState.CLOSED, last_entry_id=4, length=9)
            store.write_ledger(closed, version)
        return told

    monkeypatch.setattr(bookkeeper, "open_ledger_no_recovery", tell_after_changes)
    [rows] = LEDGER_RECORDS.read(cast(BookKeeper, bookkeeper), Ids(0, 2), b"")
    opened, closed = rows.to_pylist()
    assert (opened["metadata_version"], opened["last_add_confirmed"], opened["fragments"]) == (1, 0, 2)
    assert [(one["last_entry_id"], one["ensemble"]) for one in opened["fragment_rows"]][1:] == [(None, [*new])]
    assert (closed["ledger_id"], closed["state"], closed["last_add_confirmed"]) == (2, "CLOSED", 4)


def test_runs_of_ledger_ids_end_at_holes_and_at_each_span(new_chroot: Callable[[], str]) -> None:
    with closing(begun(new_chroot())) as store:
        for ledger_id in (0, 1, 3, *range(9_998, 10_002), 20_000):
            store.create_ledger(LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, ("a", "b", "c")),)))
        client = cast(BookKeeper, SimpleNamespace(metadata=store))
        (ids,) = LEDGER_IDS.plan(client)
        (rows,) = LEDGER_IDS.read(client, ids, b"")
        runs = [(0, 1), (3, 3), (9_998, 9_999), (10_000, 10_001), (20_000, 20_000)]
        assert [tuple(row.values()) for row in rows.to_pylist()] == runs
        assert list(LEDGER_IDS.read(client, Ids(30_000, 39_999), b"")) == []


def test_records_of_many_ledgers_are_read_in_bulk(
    new_chroot: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table waited for the answer about one ledger before it asked about the next."""
    with closing(begun(new_chroot())) as store:
        for ledger_id in range(1200):
            store.create_ledger(LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, ("a", "b", "c")),)))
        metadata, version = store.read_ledger(7)
        closed = replace(metadata, state=LedgerState.CLOSED, last_entry_id=4, length=9)
        assert store.write_ledger(closed, version) == 1
        gathered: list[int] = []
        gather = Nodes.read_versions

        def counted(self: Nodes, what: str, paths: list[str]) -> Any:
            if not gathered:
                # Between the listing and the reading.
                store.delete_ledger(8)
            gathered.append(len(paths))
            return gather(self, what, paths)

        monkeypatch.setattr(Nodes, "read_versions", counted)
        monkeypatch.setattr(ZooKeeperStore, "read_ledger", None)
        client = cast(BookKeeper, SimpleNamespace(metadata=store))
        rows = [row for part in FRAGMENTS.read(client, Ids(0, 1199), b"") for row in part.to_pylist()]
        assert len(rows) == 1199 and gathered == [500, 500, 200]
        versions = {row["ledger_id"]: row["metadata_version"] for row in rows}
        assert (versions[6], versions[7]) == (0, 1) and 8 not in versions
        assert list(ACCEPTED_LOSSES.read(client, Ids(6, 7), b"")) == []


@pytest.mark.parametrize(
    "table", [LEDGERS, FRAGMENTS, ACCEPTED_LOSSES, LEDGER_RECORDS, LEDGER_IDS], ids=lambda table: table.name
)
def test_plan_on_the_driver_holds_no_list_of_ledger_ids(
    table: SystemTable, new_chroot: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan of 10⁷ ledgers was a list of them all, and each task was sent its own 2,000."""
    with closing(begun(new_chroot())) as store:
        for ledger_id in (3, 7, 20_000, 20_001):
            store.create_ledger(LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, ("a", "b", "c")),)))
        monkeypatch.setattr(ZooKeeperStore, "list_ledgers", None)
        client = cast(BookKeeper, SimpleNamespace(metadata=store))
        (ids,) = table.plan(client)
        assert (ids.first, ids.last) == (0, 29_999)
        if table is FRAGMENTS:
            rows = [row["ledger_id"] for part in table.read(client, ids, b"") for row in part.to_pylist()]
            assert rows == [3, 7, 20_000, 20_001]


def test_ten_million_ledgers_are_read_by_at_most_fifty_tasks() -> None:
    """There were 5,000 tasks, and a snapshot had a file of each task in each table."""
    spans = [LedgerSpan(number * IDS_PER_SPAN, IDS_PER_SPAN) for number in range(1000)]
    client = cast(BookKeeper, SimpleNamespace(metadata=SimpleNamespace(ledger_spans=lambda: spans)))
    plan = LEDGERS.plan(client)
    assert len(plan) <= 50 and len(pickle.dumps(plan)) < 10_000
    assert rows_in_file(10_000_000) * 48 >= 30_000_000 and rows_in_file(1000) == ROWS_PER_FILE

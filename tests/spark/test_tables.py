"""System tables without Spark: what their rows say of what can't be known, and how much of them is in memory at once."""

from __future__ import annotations

from typing import Any, cast

import pytest

from bookspark.client import BookKeeper
from bookspark.errors import BookieError, NoSuchLedgerError, UnauthorizedAccessError
from bookspark.logs import LogAddress, LogRegistry, LogRun, delete_log
from bookspark.logs.chain.committer import Committer
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.spark.tables.ledgers import LEDGERS
from bookspark.spark.tables.logs import LOG_COMMITS, LOGS
from bookspark.spark.tables.table import LONG, ROWS_PER_BATCH, Rows, SystemTable, once
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryReader

LEDGER = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2, "custom_metadata": {}}


@pytest.mark.parametrize("error", [UnauthorizedAccessError("wrong password"), BookieError("no bookie answers")])
def test_a_lac_that_nobody_tells_is_null_and_not_none_confirmed(error: Exception) -> None:
    bookkeeper = MemoryBookKeeper()
    for password in (b"", b"secret"):
        bookkeeper.create_ledger(**LEDGER, password=password).append(b"entry")
    tell = bookkeeper.open_ledger_no_recovery

    def refuse(ledger_id: int, password: bytes = b"") -> Any:
        if ledger_id == 1:
            raise error
        return tell(ledger_id, password)

    bookkeeper.open_ledger_no_recovery = refuse  # type: ignore[method-assign]
    [rows] = LEDGERS.read(cast(BookKeeper, bookkeeper), [0, 1], b"")
    assert rows.column("last_add_confirmed").to_pylist() == [0, None]


def written(bookkeeper: MemoryBookKeeper, *names: str) -> BookKeeper:
    """The client of logs of one commit each."""
    client = cast(BookKeeper, bookkeeper)
    registry = LogRegistry(bookkeeper.metadata)
    for name in names:
        registry.ensure(name, {}, b"")
        run = LogRun.of(LogAddress("zookeeper", name), registry.claim(name, "run"))
        ranges = (EntryRange(1000, 0, 9, 10, 100),)
        Committer(client, run).commit(Commit("query", 0, "run", run.epoch, ranges))
    return client


def test_a_log_that_is_deleted_while_the_tables_are_read_fails_no_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    bookkeeper = MemoryBookKeeper()
    client = written(bookkeeper, "first", "second", "third")
    listed = LOG_COMMITS.plan(client)
    assert listed == ["first", "second", "third"]
    delete_log(client, "first", b"")
    monkeypatch.setattr(LogRegistry, "names", lambda self: listed)
    opened = bookkeeper.open_ledger_no_recovery

    def open_then(ledger_id: int, password: bytes = b"") -> MemoryReader:
        monkeypatch.setattr(bookkeeper, "open_ledger_no_recovery", opened)
        delete_log(client, "second", b"")  # its record was read, its commits were not
        return opened(ledger_id, password)

    monkeypatch.setattr(bookkeeper, "open_ledger_no_recovery", open_then)
    [logs] = LOGS.read(client, None, b"")
    assert logs.column("log").to_pylist() == ["third"]
    rows = [batch.to_pylist() for name in listed for batch in LOG_COMMITS.read(client, name, b"")]
    assert [row["log"] for part in rows for row in part] == ["third"]


def test_a_log_whose_commits_are_gone_although_its_record_names_them_fails_the_read() -> None:
    bookkeeper = MemoryBookKeeper()
    client = written(bookkeeper, "orders")
    bookkeeper.delete_ledger(LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers[-1].ledger_id)
    with pytest.raises(NoSuchLedgerError):
        list(LOGS.read(client, None, b""))


def test_the_rows_of_a_table_are_not_all_in_memory_at_once() -> None:
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

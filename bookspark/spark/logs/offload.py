"""Offload: the rows of a log's closed ledgers as a Delta table, after which the bookies need not keep them.

Law: a row is in the table once or not at all, and a ledger is deleted only when every row of it that the log has is in
the table, by the log's record. ``protocol.log_offload`` has the steps; a process that ends between any two of them is
followed by one that goes on. Only committed rows are offloaded, up to the first commit that names a ledger that is still
open. One that no commit has named for ``IDLE_SECONDS`` is closed first: the worker that wrote it may be gone while its query
goes on, and Spark ends those it does not need after a minute. A writer that is there after all begins another ledger, as it is
to do after that time by default.

The table has the log's columns, then ``position``, ``ledger_id`` and ``entry_id``; each of its files holds consecutive
rows in their order. It is one log's: made empty with the table property ``bookspark.log``, which says whose, before that log's
record names it. It belongs to whoever made the log: deleting or truncating the log leaves it as it is.

Source: docs/decisions/logs.md; Delta's idempotent writes (``txnAppId``, ``txnVersion``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bookspark.client import BookKeeper
from bookspark.daemon.settings import of_environment
from bookspark.errors import BookKeeperError, NoSuchLedgerError
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.protocol.logs.log_record import EPOCH_LABEL, LogRecord
from bookspark.spark.logs import LogRegistry, RollPolicy, check_password, commits, recover_ledgers
from bookspark.spark.logs.offloaded import OWNER, table_version

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRANSACTION_BYTES_MAX = 4 << 30
"""Of payload; a transaction ends with the commit that reaches it."""
IDLE_SECONDS = RollPolicy().seconds_max
CLOSING_SECONDS_MAX = 60.0
"""For idle ledgers; those that are left over are closed by the next run."""


@dataclass(frozen=True)
class Offloaded:
    """What one run did, and how far the log is offloaded now."""

    rows: int
    position: int
    deleted: list[int]
    """Ledgers."""


def offload(
    spark: SparkSession,
    zookeeper: str,
    log: str,
    table: str,
    password: str = "",
    *,
    delete_after_seconds: float | None = None,
) -> Offloaded:
    """Offload what can be offloaded of ``log`` to the Delta table at ``table``, a path or URI; ``spark`` is a session of
    ``bookspark.spark.session``.

    ``delete_after_seconds``: then delete the ledgers all of whose rows are in the table and were committed so long ago;
    None: delete nothing. Raises NoSuchLogError, UnauthorizedAccessError, OffloadError (the log has another table, or the table is
    not this log's).
    """
    with BookKeeper(zookeeper, **of_environment("client")) as bookkeeper:
        run = _Run(spark, bookkeeper, log, table, password.encode())
        run.close_idle(IDLE_SECONDS)
        rows = 0
        while (done := run.transaction()) is not None:
            rows += done
        deleted = [] if delete_after_seconds is None else run.delete(delete_after_seconds)
        return Offloaded(rows, run.position, deleted)


def place_of(table: str) -> str:
    """The one name of a table's place: tasks on other hosts, and later runs, have other working directories."""
    if table.startswith("file:"):
        table = urlsplit(table).path
    return table.rstrip("/") if "://" in table else os.path.abspath(table)


class _Run:
    def __init__(self, spark: SparkSession, bookkeeper: BookKeeper, log: str, table: str, password: bytes) -> None:
        self._spark, self._bookkeeper, self._log, self._password = spark, bookkeeper, log, password
        self._table = place_of(table)
        self._registry = LogRegistry(bookkeeper.metadata)
        record = self._registry.get(log)
        check_password(record, password)
        if record.offload is not None:
            record.offload_begun(self._table, 0)  # another table is an error, also when there is nothing to do
        self._made = record.ctime_ms
        self._transactions = f"bookspark offload of log {log} made at {record.ctime_ms}"
        table_version(self._table, self._transactions, 0)

    @property
    def position(self) -> int:
        """How far the log is offloaded."""
        offload = self._record().offload
        return 0 if offload is None else offload.position

    def close_idle(self, idle_seconds: float) -> None:
        """Close the ledgers of rows that are to be offloaded which no commit has named for so long."""
        start = self._start(self._record())
        named: dict[int, int] = {}
        for placed in commits(self._bookkeeper, self._log, self._password, start):
            if placed.after.rows > start:
                named.update((item.ledger_id, placed.commit.time_ms) for item in placed.commit.ranges)
        before_ms = (time.time() - idle_seconds) * 1000
        idle = [ledger_id for ledger_id, time_ms in named.items() if time_ms < before_ms]
        recover_ledgers(self._bookkeeper, idle, self._password, CLOSING_SECONDS_MAX)

    def transaction(self) -> int | None:
        """Begin a transaction and carry it through, or one that is pending; None if there is nothing to offload."""
        record = self._record()
        pending = 0 if record.offload is None else record.offload.pending
        wanted = pending or self._end(record)
        if wanted is None:
            return None
        if record.offload is None:
            self._make_table()
        record = self._update(lambda record: record.offload_begun(self._table, wanted))
        assert record.offload is not None
        start, end = self._start(record), record.offload.pending
        if not end:
            return 0  # another run has done it meanwhile
        if start >= end:  # truncated meanwhile
            self._update(lambda record: record.offload_done(end, -1))
            return 0
        version = table_version(self._table, self._transactions, end)
        if version is None:
            self._write(start, end)
            version = table_version(self._table, self._transactions, end)
        if version is None:
            raise BookKeeperError(
                f"{self._table} does not show what was just written to it; is it another table by now?"
            )
        self._update(lambda record: record.offload_done(end, version))
        return end - start

    def delete(self, after_seconds: float) -> list[int]:
        """Delete the ledgers that the log does not need any more. Returns their ids."""
        record = self._record()
        before_ms = (time.time() - after_seconds) * 1000
        return [ledger_id for ledger_id in self._needless(record, before_ms) if self._delete(ledger_id)]

    def _record(self) -> LogRecord:
        return self._same(self._registry.get(self._log))

    def _update(self, transition: Callable[[LogRecord], LogRecord]) -> LogRecord:
        return self._registry.update(self._log, lambda record: transition(self._same(record)))

    def _same(self, record: LogRecord) -> LogRecord:
        """``record``, if it is that of the log whose table this is. To one that was made since, the table's transactions would
        say that its rows are there."""
        if record.ctime_ms != self._made:
            raise OffloadError(
                f"log {self._log!r} was deleted and made anew while it was offloaded: the table at {self._table} has rows of the "
                "old one. Offload the new log to another table"
            )
        return record

    def _start(self, record: LogRecord) -> int:
        offloaded = 0 if record.offload is None else record.offload.position
        return max(offloaded, record.first_position)

    def _end(self, record: LogRecord) -> int | None:
        """The row up to which the next transaction goes."""
        start, end, size = self._start(record), None, 0
        closed: dict[int, bool] = {}
        for placed in commits(self._bookkeeper, self._log, self._password, start):
            if placed.after.rows <= start:
                continue
            for ledger_id in {item.ledger_id for item in placed.commit.ranges} - closed.keys():
                closed[ledger_id] = self._bookkeeper.get_ledger_metadata(ledger_id).closed
            size += placed.commit.size
            if not all(closed[item.ledger_id] for item in placed.commit.ranges):
                break
            end = placed.after.rows
            if size >= TRANSACTION_BYTES_MAX:
                break
        return end

    def _make_table(self) -> None:
        """Make the table, empty, unless it is there. Of two logs that do so at once, one gets it, the other OffloadError."""
        from delta.tables import DeltaTable

        made = DeltaTable.createIfNotExists(self._spark).location(self._table).addColumns(self._rows(0, 0).schema)
        made.property(OWNER, self._transactions).execute()
        table_version(self._table, self._transactions, 0)

    def _write(self, start: int, end: int) -> None:
        """Append the rows ``start`` to before ``end``, unless the table has this transaction by now."""
        writer = self._rows(start, end).write.format("delta").mode("append")
        writer.option("txnAppId", self._transactions).option("txnVersion", end).save(self._table)

    def _rows(self, start: int, end: int) -> DataFrame:
        source = self._spark.read.format("bookspark").option("zookeeper", self._bookkeeper.zookeeper)
        source = source.option("log", self._log).option("startingOffsets", start).option("endingOffsets", end)
        if self._password:
            source = source.option("password", self._password.decode())
        return source.load()

    def _needless(self, record: LogRecord, before_ms: float) -> Iterator[int]:
        """Ledgers all of whose commits are offloaded and older than ``before_ms``, with nothing in them that may still be
        committed. ``record`` was read before the commits: if it is recovered, those have all that earlier epochs committed."""
        offloaded = 0 if record.offload is None else record.offload.position
        last_entries: dict[int, int] = {}
        needed: set[int] = set()
        for placed in commits(self._bookkeeper, self._log, self._password, record.first_position):
            for item in placed.commit.ranges:
                if placed.after.rows > offloaded or placed.commit.time_ms >= before_ms:
                    needed.add(item.ledger_id)
                last_entries[item.ledger_id] = max(item.last_entry_id, last_entries.get(item.ledger_id, -1))
        for ledger_id in sorted(last_entries.keys() - needed):
            try:
                metadata = self._bookkeeper.get_ledger_metadata(ledger_id)
            except NoSuchLedgerError:
                continue
            old = record.recovered and int(metadata.custom_metadata.get(EPOCH_LABEL, b"0")) < record.epoch
            if metadata.closed and (old or metadata.last_entry_id == last_entries[ledger_id]):
                yield ledger_id

    def _delete(self, ledger_id: int) -> bool:
        try:
            self._bookkeeper.delete_ledger(ledger_id)
        except NoSuchLedgerError:
            return False
        return True

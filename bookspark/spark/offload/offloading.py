"""Offload: copies rows of a log's closed ledgers to a Delta table, which relieves the bookies.

Law: a row is in the table once or not at all. The log's record calls rows offloaded only after they were read back and equalled
the rows in the ledgers (``proof``). A ledger is deleted only when all its committed rows are offloaded, and were read back once
more just before. ``protocol.logs.log_offload`` has the steps; if a process ends between two steps, the next process goes on.

Only committed rows are offloaded, up to the first commit that names an open ledger. A ledger without a commit for IDLE_SECONDS is
closed first: Spark ends workers that are idle for a minute, so its writer may have ended. A writer that still runs creates
another ledger, as it does by default after that time anyway.

The table has the log's columns, then ``position``, ``ledger_id`` and ``entry_id``. Each of its files has consecutive rows in
order. A table belongs to one log, named in table property ``bookspark.log``; it is created empty before that log's record names
it. Each run first checks the owner and whether tasks can read the table (``table``). Deleting or truncating the log leaves the
table as it is.

Rows are written unless the table has rows of these positions. Delta's transaction ids (``txnAppId``, ``txnVersion``) prevent two
simultaneous runs from both writing them; alone they would not suffice, because a table can be set to forget them.

Source: docs/decisions/logs.md; Delta's idempotent writes.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError, NoSuchLedgerError, ReadError
from bookspark.logs.chain.maintenance import recover_ledgers
from bookspark.logs.chain.reader import commits
from bookspark.logs.chain.registry import LaneName, LogRegistry, check_password
from bookspark.logs.rows.data_ledgers import RollPolicy
from bookspark.logs.rows.encodings import ID_COLUMNS, RowDecoder
from bookspark.logs.rows.splits import Piece, SizedPiece, positioned, split
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.lanes import MARK, LaneId
from bookspark.protocol.logs.log_offload import OffloadError
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.logs.orphans import epoch_of
from bookspark.spark.offload import table
from bookspark.spark.offload import table as tables
from bookspark.spark.offload.offloaded import rows_in_ledger
from bookspark.spark.offload.opened_ledgers import OpenedLedgers
from bookspark.spark.process_client import client
from bookspark.spark.rows.row_format import arrow_schema
from bookspark.spark.rows.rows import row_decoder
from bookspark.store.client import BookKeeper
from bookspark.store.decisions.seam import decided
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.store.settings import of_environment
from bookspark.support.arguments import Name, PasswordText, WaitSeconds, checked
from bookspark.support.hadoop_paths import Place, check_table_place

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame, SparkSession


# -- The proof that rows of a log are in its table: reads them back, and compares them with the rows in the ledgers.
#
# Law: tasks read the table through the same code that will serve the rows after the ledgers (``table.rows``), and compare each
# row, with all its columns, with the row in its ledger. Only then are rows called offloaded, and only then is a ledger deleted.
# A count or digest would read the same rows, so it would save nothing.


class _Part(NamedTuple):
    zookeeper: str
    log: LaneId
    password: bytes
    place: str
    schema: StructType
    pieces: Sequence[Piece]


def _prove(spark: SparkSession, whole: _Part, pieces: Iterable[SizedPiece]) -> None:
    """Return if the table has the rows of ``pieces`` as in their ledgers. ``whole``: the other values of each part.

    Raises OffloadError with the difference or the reason why a row is unreadable, and Spark's errors.
    """
    parts = [whole._replace(pieces=part) for part in split(pieces, 1)]
    if not parts:
        return
    problems = spark.sparkContext.parallelize(parts, len(parts)).map(_compare).collect()
    wrong = [problem for problem in problems if problem is not None]
    if wrong:
        raise OffloadError(
            f"{wrong[0]}. The ledgers stay, and nothing more is offloaded until the table has the rows of the log as they are"
        )


def _compare(part: _Part) -> str | None:
    """In a task: the fault of the rows of ``part`` in the table, in words, or None."""
    import pyarrow

    bookkeeper, log = client(part.zookeeper), part.log
    columns = StructType(part.schema.fields[: -len(ID_COLUMNS)])

    def decoder(metadata: LedgerMetadata) -> RowDecoder:
        return row_decoder(metadata, columns, lambda: LogRegistry(bookkeeper.metadata).get(log).dictionary)

    try:
        in_table = table.rows(part.place, str(log), part.pieces, part.schema)
        ledgers, left = OpenedLedgers(bookkeeper, part.password, decoder), deque(part.pieces)
        in_ledgers: list[pyarrow.RecordBatch] = []
        while left:
            in_ledgers += rows_in_ledger(ledgers, left.popleft(), part.schema, (), left)
    except BookKeeperError as error:
        return str(error)
    wanted = pyarrow.Table.from_batches(in_ledgers).cast(arrow_schema(part.schema))
    at = _first_difference(wanted, in_table)
    if at is None:
        return None
    position = in_table.column("position")[at].as_py() if at < in_table.num_rows else part.pieces[-1].position
    return f"row {position} of log '{log}' is another one in {part.place} than in its ledger"


def _first_difference(one: pyarrow.Table, other: pyarrow.Table) -> int | None:
    """Number of the first row that differs in the tables, or None. NaN equals NaN."""
    if one.equals(other):
        return None
    # Arrow calls NaN unequal to itself, so the rows decide.
    for number, (row, same) in enumerate(zip(one.to_pylist(), other.to_pylist(), strict=False)):
        if repr(row) != repr(same):
            return number
    return None if one.num_rows == other.num_rows else min(one.num_rows, other.num_rows)


# -- The offload


TRANSACTION_BYTES_MAX = 4 << 30
"""Bytes of payload of a transaction. A transaction ends with the commit that reaches it."""
IDLE_SECONDS = RollPolicy().seconds_max
"""A ledger without a commit for this time is closed."""
_POSITION_MAX = (1 << 63) - 1
CLOSING_SECONDS_MAX = 60.0
"""Time that an offload spends on closing idle ledgers. The next offload closes the others."""


@dataclass(frozen=True)
class Offloaded:
    rows: int
    position: int
    """All rows before this position, of the lane or of lane 0 of the log, are in the table, by this offload or an earlier one."""
    deleted: list[int]


@checked
def offload(
    spark: SparkSession,
    zookeeper: ConnectionString,
    log: LaneName,
    table: Name,
    password: PasswordText = "",
    *,
    delete_after_seconds: WaitSeconds | None = None,
) -> Offloaded:
    """Copy all rows of ``log`` that can be offloaded to the Delta table at ``table``.

    ``spark``: a session of ``bookspark.spark.session``, which has Delta. ``zookeeper``: the cluster. ``log``: a log, or one of
    its lanes. ``table``: a path or URI, for this log only; the rows of lane 3 of a log go to the table at ``<table>@3``.
    ``password``: the log's. ``delete_after_seconds``: delete ledgers whose rows are all in the table and were all committed at
    least this long ago by the cluster's clock (0: at any time); None: delete none.

    Raises NoSuchLogError; UnauthorizedAccessError (wrong password); OffloadError if the log has a retention or another table, the
    table is not this log's, or its rows differ from those of the ledgers; ReadError if the table is gone, has a feature unknown
    to tasks, or is unreadable, or if too few bookies answer; MetadataStoreError; and Spark's errors. After an error no ledger is
    deleted whose rows were not read back.
    """
    with BookKeeper(zookeeper, **of_environment("client")) as bookkeeper:
        lanes = LogRegistry(bookkeeper.metadata).lanes_of(log)
        first = _offload_lane(_Run(spark, bookkeeper, lanes[0], table, password.encode()), delete_after_seconds)
        others = [
            _offload_lane(
                _Run(spark, bookkeeper, lane, f"{place_of(table)}{MARK}{lane.number}", password.encode()),
                delete_after_seconds,
            )
            for lane in lanes[1:]
        ]
        rows = sum(done.rows for done in (first, *others))
        return Offloaded(rows, first.position, [ledger for done in (first, *others) for ledger in done.deleted])


def _offload_lane(run: _Run, delete_after_seconds: float | None) -> Offloaded:
    run.ready_table()
    run.check_writable()
    run.close_idle(IDLE_SECONDS)
    rows = 0
    while (done := run.transaction()) is not None:
        rows += done
    deleted = [] if delete_after_seconds is None else run.delete(delete_after_seconds)
    return Offloaded(rows, run.position, deleted)


def place_of(table: str) -> str:
    """The table's absolute path or URI: tasks on other hosts have other working directories. Raises ConfigurationError."""
    check_table_place(table)
    place = Place.of(table)
    return os.path.abspath(place.path) if place.is_local else str(place)


class _Run:
    """An offload of one lane of a log."""

    def __init__(self, spark: SparkSession, bookkeeper: BookKeeper, log: LaneId, table: str, password: bytes) -> None:
        self._spark, self._bookkeeper, self._log, self._password = spark, bookkeeper, log, password
        self._table = place_of(table)
        self._registry = LogRegistry(bookkeeper.metadata)
        record = self._registry.get(log)
        check_password(record, password)
        if record.offload is not None:
            # Another table is an error, even if there are no rows to offload.
            decided(LogRecord.offload_begun, record, self._table, 0)
        retention = self._registry.retention(record)
        if not retention.forever:
            raise OffloadError(
                f"log '{log}' has a retention, and a log has either a retention or an offload: rows would be gone from the log "
                "while the table still has them. End the retention: "
                f"`bookspark log alter {log.name} --retention-hours 0 --retention-bytes 0`"
            )
        self._transactions = f"bookspark offload of log {log} with id {log.log}"

    @property
    def position(self) -> int:
        offload = self._record().offload
        return 0 if offload is None else offload.position

    def ready_table(self) -> None:
        """Ensure that the table exists, is this log's, and is readable by tasks. A table that need not have a row is created,
        empty.

        Raises OffloadError, and ReadError if the table is unreadable, or is gone with perhaps the only copy of rows.
        OffloadError also for the table of an offload that was taken back: its rows may end amid a transaction of this one.
        """
        record = self._record()
        if self._known_version(record) < 0:
            tables.create(self._table, self._transactions, self._schema)
        self._check_table()
        # Another first offload may have begun since: then the rows are its own.
        if record.offload is None and tables.count(self._table, 0, _POSITION_MAX) and self._record().offload is None:
            raise OffloadError(
                f"the table at {self._table} has rows of an offload of log '{self._log}' that was taken back: give another "
                "table, or delete this one"
            )

    def check_writable(self) -> None:
        """Before the first offload, append no rows: Spark's writer refuses types that delta-rs takes. Once the record names the
        table, the log can have no retention. Raises Spark's errors."""
        if self._record().offload is None:
            writer = self._rows(0, 0).write.format("delta").mode("append")
            # At most one empty version, however often an offload finds no rows.
            writer.option("txnAppId", self._transactions).option("txnVersion", 0).save(self._table)

    def _check_table(self) -> int:
        """The table's newest version. Raises OffloadError and ReadError."""
        return tables.check(self._table, self._transactions, self._known_version(self._record()))

    def _known_version(self, record: LogRecord) -> int:
        """A version of the table with all offloaded rows; −1 if there are none, or all of them were truncated."""
        offload = record.offload
        return -1 if offload is None or offload.position <= record.first_position else offload.version

    def close_idle(self, idle_seconds: float) -> None:
        """Close the ledgers with rows to offload that no commit has named for this time."""
        start = self._start(self._record())
        named: dict[int, int] = {}
        for placed in commits(self._bookkeeper, self._log, self._password, start):
            if placed.after.rows > start:
                named.update((item.ledger_id, placed.commit.time_ms) for item in placed.commit.ranges)
        before_ms = self._bookkeeper.metadata.clock.now_ms() - idle_seconds * 1000
        idle = [ledger_id for ledger_id, time_ms in named.items() if time_ms < before_ms]
        recover_ledgers(self._bookkeeper, idle, self._password, CLOSING_SECONDS_MAX)

    def transaction(self) -> int | None:
        """Do a transaction, first the pending one. Returns its rows; None if there is nothing to offload."""
        record = self._record()
        pending = 0 if record.offload is None else record.offload.pending
        wanted = pending or self._end(record)
        if wanted is None:
            return None
        self._check_table()
        record = self._update(lambda record: decided(LogRecord.offload_begun, record, self._table, wanted))
        assert record.offload is not None
        start, end = self._start(record), record.offload.pending
        if not end:
            # Another offload has done it meanwhile.
            return 0
        if start >= end:
            # The rows were truncated meanwhile.
            self._update(lambda record: decided(LogRecord.offload_done, record, self._table, end, -1))
            return 0
        if not tables.count(self._table, start, end):
            self._write(start, end)
        tables.sync(self._table, start, end)
        self._prove(self._pieces(start, end))
        version = self._check_table()
        self._update(lambda record: decided(LogRecord.offload_done, record, self._table, end, version))
        return end - start

    def delete(self, after_seconds: float) -> list[int]:
        """Delete the ledgers that the log no longer needs. Returns their ids."""
        record = self._record()
        before_ms = self._bookkeeper.metadata.clock.now_ms() - after_seconds * 1000 if after_seconds else math.inf
        needless = set(self._needless(record, before_ms))
        if not needless:
            return []
        start, end = record.first_position, self.position
        tables.sync(self._table, start, end)
        offloaded = self._pieces(start, end)
        self._prove((piece, size) for piece, size in offloaded if piece.ledger_id in needless)
        self._check_table()
        self._update(lambda record: decided(LogRecord.offload_deleting, record, self._table, end))
        return [ledger_id for ledger_id in sorted(needless) if self._delete(ledger_id)]

    def _record(self) -> LogRecord:
        return self._registry.get(self._log)

    def _update(self, transition: Callable[[LogRecord], LogRecord]) -> LogRecord:
        return self._registry.update(self._log, transition)

    def _start(self, record: LogRecord) -> int:
        offloaded = 0 if record.offload is None else record.offload.position
        return max(offloaded, record.first_position)

    def _end(self, record: LogRecord) -> int | None:
        """The row before which the next transaction ends; None if there is nothing to offload."""
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

    def _pieces(self, start: int, end: int) -> Iterator[SizedPiece]:
        """All rows from ``start`` to before ``end``, with their places in ledgers. Raises ReadError if the bookies that answer
        don't confirm them yet, as others did: a proof of fewer rows would prove nothing of the others."""
        reached = start
        for placed in commits(self._bookkeeper, self._log, self._password, start):
            yield from positioned(placed.commit.ranges, placed.before.rows, start, end)
            reached = max(reached, placed.after.rows)
        if reached < end:
            raise ReadError(
                f"log '{self._log}' has rows up to {end - 1}, but the bookies that answer confirm rows before {reached} only: "
                "offload again later"
            )

    def _prove(self, pieces: Iterable[SizedPiece]) -> None:
        place = self._bookkeeper.zookeeper, self._log, self._password, self._table
        _prove(self._spark, _Part(*place, self._schema, ()), pieces)

    @cached_property
    def _schema(self) -> StructType:
        return self._rows(0, 0).schema

    def _write(self, start: int, end: int) -> None:
        """Append the rows from ``start`` to before ``end``, unless the table has this transaction already."""
        writer = self._rows(start, end).write.format("delta").mode("append")
        writer.option("txnAppId", self._transactions).option("txnVersion", end).save(self._table)

    def _rows(self, start: int, end: int) -> DataFrame:
        source = self._spark.read.format("bookspark").option("zookeeper", self._bookkeeper.zookeeper)
        lane = self._log
        source = source.option("log", f"{lane.name}{MARK}{lane.number}").option("logId", lane.log)
        source = source.option("startingOffsets", start).option("endingOffsets", end)
        if self._password:
            source = source.option("password", self._password.decode())
        return source.load()

    def _needless(self, record: LogRecord, before_ms: float) -> Iterator[int]:
        """Ids of ledgers whose commits are all offloaded and older than ``before_ms``, and which can get no further commit.

        ``record`` was read before the commits. So these include all commits of epochs that have ended in it.
        """
        offloaded = 0 if record.offload is None else record.offload.position
        last_entries: dict[int, int] = {}
        needed: set[int] = set()
        for placed in commits(self._bookkeeper, self._log, self._password, record.first_position):
            for item in placed.commit.ranges:
                if placed.after.rows > offloaded or placed.commit.time_ms >= before_ms:
                    needed.add(item.ledger_id)
                last_entries[item.ledger_id] = max(item.last_entry_id, last_entries.get(item.ledger_id, -1))
        unreadable: dict[int, str] = {}
        for metadata, _ in self._bookkeeper.metadata.read_ledgers(sorted(last_entries.keys() - needed), unreadable):
            ledger_id = metadata.ledger_id
            old = record.ended(epoch_of(metadata.custom_metadata))
            if metadata.closed and (old or metadata.last_entry_id == last_entries[ledger_id]):
                yield ledger_id

    def _delete(self, ledger_id: int) -> bool:
        try:
            self._bookkeeper.delete_ledger(ledger_id)
        except NoSuchLedgerError:
            return False
        return True

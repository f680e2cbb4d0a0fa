"""System tables: the cluster's state as rows, for ``spark.read.format("bookspark").option("table", name)`` and for snapshots.

Law: a table is whole or the read fails; a bookie that is registered and does not answer is an error, not an empty
index. The exceptions are said where they are: what only a password opens is null or left out, and a column tells so.

Each column's meaning stands beside its name below, and is its comment in Delta. Tables are read at slightly different
times. Where that matters, ``metadata_version`` tells whether two rows are about the same state of a ledger.

=================  ==========================================================================================
``ledgers``        one row per ledger: its metadata
``fragments``      one row per fragment of each ledger: which bookies hold which entries
``bookies``        one row per bookie that has a cookie or is registered
``index_ranges``   one row per run of entries in a bookie's index, asked of each bookie in a task of its own
``logs``           one row per log: its record
``log_commits``    one row per range of entries that a commit of a log names
=================  ==========================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bookspark.protocol.errors import BookKeeperError, NoSuchLedgerError
from bookspark.protocol.ledger_metadata import LedgerMetadata
from bookspark.protocol.log_record import EPOCH_LABEL, LOG_LABEL, ROLE_LABEL, CommitHeader, LogRecord
from bookspark.protocol.options import check_names
from bookspark.spark.logs import LogRegistry, check_password, commits, header_of

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client import BookKeeper

LEDGERS_PER_PARTITION = 2000
LONG, INT, TEXT, FLAG, TIME, TEXTS, LONGS = (
    LongType(),
    IntegerType(),
    StringType(),
    BooleanType(),
    TimestampType(),
    ArrayType(StringType()),
    ArrayType(LongType()),
)
Rows = Iterator[tuple[Any, ...]]


@dataclass(frozen=True)
class SystemTable:
    """``plan`` gives one argument per partition, on the driver; ``rows`` the rows of one, in a task."""

    name: str
    comment: str
    columns: tuple[tuple[str, DataType, str], ...]
    plan: Callable[[BookKeeper], list[Any]]
    rows: Callable[[BookKeeper, Any, bytes], Rows | Iterable[pyarrow.RecordBatch]]

    @property
    def schema(self) -> StructType:
        """With each column's comment in its metadata, where Delta takes it from."""
        return StructType([StructField(name, kind, True, {"comment": comment}) for name, kind, comment in self.columns])

    def read(self, bookkeeper: BookKeeper, argument: Any, password: bytes) -> Iterator[pyarrow.RecordBatch]:
        """The rows of one partition as record batches of exactly ``schema``."""
        import pyarrow

        schema = to_arrow_schema(self.schema, timezone="UTC")
        result = list(self.rows(bookkeeper, argument, password))
        if result and isinstance(result[0], pyarrow.RecordBatch):
            yield from result
        elif result:
            arrays = [
                pyarrow.array(column, type=field.type)
                for column, field in zip(zip(*result, strict=True), schema, strict=True)
            ]
            yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


def system_table(name: str) -> SystemTable:
    """Raises ConfigurationError, naming the nearest one."""
    check_names([name], TABLES, "system table")
    return TABLES[name]


# -- ledgers and fragments


def _plan_ledgers(bookkeeper: BookKeeper) -> list[list[int]]:
    ids = bookkeeper.list_ledgers()
    return [ids[at : at + LEDGERS_PER_PARTITION] for at in range(0, len(ids), LEDGERS_PER_PARTITION)]


def _metadata(bookkeeper: BookKeeper, ids: Iterable[int]) -> Iterator[tuple[LedgerMetadata, int]]:
    for ledger_id in ids:
        try:
            yield bookkeeper.metadata.read_ledger(ledger_id)
        except NoSuchLedgerError:
            continue  # deleted since the listing


def _last_add_confirmed(bookkeeper: BookKeeper, metadata: LedgerMetadata, password: bytes) -> int:
    """The highest entry known to be confirmed. Every fragment but the last is confirmed, whatever bookies say."""
    if metadata.closed:
        return metadata.last_entry_id
    known = metadata.last_fragment.first_entry_id - 1
    try:
        with bookkeeper.open_ledger_no_recovery(metadata.ledger_id, password=password) as reader:
            return max(known, reader.last_add_confirmed)
    except BookKeeperError:
        return known


def _ledger_rows(bookkeeper: BookKeeper, ids: list[int], password: bytes) -> Rows:
    for metadata, version in _metadata(bookkeeper, ids):
        labels = metadata.custom_metadata
        epoch = labels.get(EPOCH_LABEL)
        yield (
            metadata.ledger_id,
            version,
            metadata.state.value,
            metadata.ensemble_size,
            metadata.write_quorum,
            metadata.ack_quorum,
            metadata.digest_type.value,
            metadata.ledger_type.value,
            metadata.replication.value,
            metadata.last_entry_id if metadata.closed else None,
            metadata.length if metadata.closed else None,
            _last_add_confirmed(bookkeeper, metadata, password),
            len(metadata.fragments),
            _time(metadata.ctime_ms),
            _text(labels.get(LOG_LABEL)),
            int(epoch) if epoch is not None and epoch.isdigit() else None,
            _text(labels.get(ROLE_LABEL)),
            json.dumps({name: _text(value) for name, value in sorted(labels.items())}),
        )


def _fragment_rows(bookkeeper: BookKeeper, ids: list[int], password: bytes) -> Rows:
    for metadata, version in _metadata(bookkeeper, ids):
        for number, (fragment, last) in enumerate(metadata.fragment_ranges()):
            yield metadata.ledger_id, version, number, fragment.first_entry_id, last, list(fragment.ensemble)


# -- bookies and their indexes


def _bookie_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    store = bookkeeper.metadata
    registered = store.bookies()
    for bookie_id in sorted({*registered, *store.list_cookies()}):
        cookie = store.read_cookie(bookie_id)
        directories = list(cookie.value.directories) if cookie else []
        there = registered.get(bookie_id)
        if there is None:
            yield bookie_id, "down", None, None, None, directories
        else:
            state = "read_only" if there.read_only else "writable"
            yield bookie_id, state, there.address, there.host, there.pid, directories


def _index_rows(bookkeeper: BookKeeper, bookie_id: str, password: bytes) -> Iterator[pyarrow.RecordBatch]:
    import pyarrow

    schema = to_arrow_schema(TABLES["index_ranges"].schema, timezone="UTC")
    for batch in bookkeeper.list_ranges(bookie_id).to_batches():
        own = pyarrow.repeat(bookie_id, batch.num_rows)
        columns = [own, *(batch.column(name) for name in _INDEX_COLUMNS)]
        arrays = [column.cast(field.type) for column, field in zip(columns, schema, strict=True)]
        yield pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


_INDEX_COLUMNS = ("ledger_id", "first_entry_id", "last_entry_id", "log", "position", "bytes")
"""Of the client's table, in the order of ours."""


# -- logs


def _readable(record: LogRecord, password: bytes) -> bool:
    try:
        check_password(record, password)
    except BookKeeperError:
        return False
    return True


def _log_rows(bookkeeper: BookKeeper, argument: None, password: bytes) -> Rows:
    registry = LogRegistry(bookkeeper.metadata)
    for name in registry.names():
        record = registry.get(name)
        readable = _readable(record, password)
        header: CommitHeader | None = header_of(bookkeeper, record, password) if readable else None
        position = header.position if header else (None, None, None)
        yield (
            name,
            record.epoch,
            record.owner or None,
            [link.ledger_id for link in record.commit_ledgers],
            record.commit_ledgers[-1].epoch if record.commit_ledgers else None,
            *position,
            readable,
            record.options.ensemble_size,
            record.options.write_quorum,
            record.options.ack_quorum,
            record.options.digest_type.value,
            _time(record.ctime_ms),
        )


def _commit_rows(bookkeeper: BookKeeper, name: str, password: bytes) -> Rows:
    record = LogRegistry(bookkeeper.metadata).get(name)
    if not _readable(record, password):
        return
    for before, commit in commits(bookkeeper, name, password):
        position = before.rows
        for item in commit.ranges:
            yield (
                name, before.batches, commit.query, commit.batch, commit.run, commit.epoch, _time(commit.time_ms),
                position, item.ledger_id, item.first_entry_id, item.last_entry_id, item.rows, item.size,
            )  # fmt: skip
            position += item.rows


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _text(value: bytes | None) -> str | None:
    return value.decode(errors="backslashreplace") if value is not None else None


def _log_names(bookkeeper: BookKeeper) -> list[str]:
    return LogRegistry(bookkeeper.metadata).names()


TABLES = {
    table.name: table
    for table in (
        SystemTable(
            "ledgers",
            "One row per ledger: its metadata.",
            (
                ("ledger_id", LONG, "The ledger"),
                ("metadata_version", INT, "Version of its record when this row was read"),
                ("state", TEXT, "OPEN, IN_RECOVERY or CLOSED"),
                ("ensemble_size", INT, "Bookies that its entries are spread over"),
                ("write_quorum", INT, "Copies that are written of each entry"),
                ("ack_quorum", INT, "Copies that acknowledge an entry"),
                ("digest_type", TEXT, "How each entry is protected: CRC32C, CRC32, HMAC, HMAC_SHA1 or DUMMY"),
                ("ledger_type", TEXT, "When an add is acknowledged: PD_JOURNAL after the sync, VD_JOURNAL before it"),
                ("replication", TEXT, "best_effort or guaranteed write quorum"),
                ("last_entry_id", LONG, "Last entry of a closed ledger (-1: it is empty); null while not closed"),
                ("length", LONG, "Bytes of payload of a closed ledger; null while not closed"),
                ("last_add_confirmed", LONG, "Highest entry known to be confirmed when this row was read; -1: none"),
                ("fragments", INT, "How many fragments it has"),
                ("created_at", TIME, "When it was created"),
                ("log", TEXT, "Log that it was made for; null if none"),
                ("log_epoch", LONG, "Epoch of the log in which it was made"),
                ("log_role", TEXT, "commit or data; null if it is not a log's"),
                ("custom_metadata", TEXT, "Its custom metadata, a JSON object; bytes that are no text are escaped"),
            ),
            _plan_ledgers,
            _ledger_rows,
        ),
        SystemTable(
            "fragments",
            "One row per fragment of each ledger: which bookies hold which entries.",
            (
                ("ledger_id", LONG, "The ledger"),
                ("metadata_version", INT, "Version of the ledger's record when this row was read"),
                ("fragment", INT, "Number of the fragment in the ledger, from 0"),
                ("first_entry_id", LONG, "First entry of the fragment"),
                (
                    "last_entry_id",
                    LONG,
                    "Last entry of the fragment; null for the open end of a ledger that is not closed",
                ),
                ("ensemble", TEXTS, "Bookie ids in write-set order: entry e goes to places e mod size and following"),
            ),
            _plan_ledgers,
            _fragment_rows,
        ),
        SystemTable(
            "bookies",
            "One row per bookie that has a cookie or is registered.",
            (
                ("bookie_id", TEXT, "The bookie"),
                ("state", TEXT, "writable, read_only, or down: it has a cookie but is not registered"),
                ("address", TEXT, "host:port of its request server; null while down"),
                ("host", TEXT, "Host that it runs on; null while down"),
                ("pid", LONG, "Its process; null while down"),
                ("directories", TEXTS, "Its directories, as its cookie has them"),
            ),
            lambda bookkeeper: [None],
            _bookie_rows,
        ),
        SystemTable(
            "index_ranges",
            "One row per run of consecutive entries in a bookie's index.",
            (
                ("bookie_id", TEXT, "The bookie that was asked"),
                ("ledger_id", LONG, "The ledger"),
                ("first_entry_id", LONG, "First entry of the run"),
                ("last_entry_id", LONG, "Last entry of the run"),
                ("entry_log", LONG, "Number of the entry log that the run lies in"),
                ("position", LONG, "Byte position of the run's batch in the entry log"),
                ("bytes", LONG, "Bytes of the run in the entry log"),
            ),
            lambda bookkeeper: sorted(bookkeeper.metadata.bookies()),
            _index_rows,
        ),
        SystemTable(
            "logs",
            "One row per log: its record.",
            (
                ("log", TEXT, "Name of the log"),
                ("epoch", LONG, "Epoch that stands; 0: nobody claimed the log yet"),
                ("owner", TEXT, "Run that owns the log in that epoch"),
                ("commit_ledgers", LONGS, "Its commit ledgers, in order"),
                ("committed_epoch", LONG, "Epoch of the last commit ledger: all commits of earlier ones are decided"),
                ("batches", LONG, "Batches committed; null if not readable"),
                ("rows", LONG, "Rows committed; null if not readable"),
                ("bytes", LONG, "Bytes of payload committed; null if not readable"),
                ("readable", FLAG, "Whether the password given is the log's; if not, log_commits has nothing of it"),
                ("ensemble_size", INT, "Ensemble size of its ledgers"),
                ("write_quorum", INT, "Write quorum of its ledgers"),
                ("ack_quorum", INT, "Ack quorum of its ledgers"),
                ("digest_type", TEXT, "Digest type of its ledgers"),
                ("created_at", TIME, "When the log was made"),
            ),
            lambda bookkeeper: [None],
            _log_rows,
        ),
        SystemTable(
            "log_commits",
            "One row per range of entries that a commit of a log names, in order.",
            (
                ("log", TEXT, "Name of the log"),
                ("commit", LONG, "Number of the commit in the log, from 0"),
                ("query_id", TEXT, "Query that committed: Spark's id of a stream, or the id of a batch write"),
                ("batch_id", LONG, "Micro-batch of the query"),
                ("run_id", TEXT, "Run that committed"),
                ("epoch", LONG, "Epoch in which it committed"),
                ("committed_at", TIME, "When it committed, by the committer's clock"),
                ("position", LONG, "Position in the log of the range's first row"),
                ("ledger_id", LONG, "Data ledger"),
                ("first_entry_id", LONG, "First entry of the range"),
                ("last_entry_id", LONG, "Last entry of the range"),
                ("rows", LONG, "Rows of the range"),
                ("bytes", LONG, "Bytes of payload of the range"),
            ),
            _log_names,
            _commit_rows,
        ),
    )
}

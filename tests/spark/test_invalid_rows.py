"""Entries that are no rows: small ones that would inflate to much, damaged ones, others' Arrow messages. A reader says which row
it is and how to go on; other rows and other readers are not affected, and no reader takes more memory than a row may have."""

from __future__ import annotations

import dataclasses
import struct
import uuid
from collections.abc import Callable, Iterator
from itertools import chain

import pyarrow
import pytest
import zstandard
from pyspark.sql.types import (
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from bookspark.errors import DataLossError, EntryTooLargeError, InvalidRowError
from bookspark.local import LocalCluster
from bookspark.logs import Gap, GapKind, LogRow, create_log, open_log
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.row_reader import READ_BYTES_MAX
from bookspark.logs.rows.encodings import VALUE_BYTES_MAX
from bookspark.operations.console import rows as console_rows
from bookspark.protocol.logs.log_options import Compression, LogOptions, RowFormat
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.spark.connector import source
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.process_client import client, kept_client
from bookspark.spark.rows.row_format import arrow_schema
from bookspark.spark.rows.rows import row_encoder
from bookspark.store.client import BookKeeper
from tests.logs.strange_rows import LARGE, bomb, commit_entries

ONE = LogOptions(ensemble_size=1, write_quorum=1, ack_quorum=1)
VALUES = dataclasses.replace(ONE, compression=Compression.ZSTD)
COLUMNS = StructType([StructField("n", IntegerType()), StructField("text", StringType())])
TABLE = dataclasses.replace(VALUES, row_format=RowFormat.ARROW, columns=COLUMNS.json())
pack = zstandard.ZstdCompressor().compress


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster:
        yield cluster
        client(cluster.zookeeper).close()
        kept_client.cache_clear()


@pytest.fixture(scope="module")
def bookkeeper(cluster: LocalCluster) -> BookKeeper:
    return cluster.bookkeeper()


def stamp(time_ms: int = 5, flags: int = 0) -> bytes:
    return struct.pack("<qqB", time_ms, 6, flags)


def message(schema: pyarrow.Schema, columns: list[list[object]], compression: str | None = "zstd") -> bytes:
    """A record batch message as pyarrow writes it."""
    batch = pyarrow.record_batch(
        [pyarrow.array(one, kind) for one, kind in zip(columns, schema.types, strict=True)], schema
    )
    stream = pyarrow.BufferOutputStream()
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_stream(stream, schema, options=options) as writer:
        writer.write_batch(batch)
        end = stream.tell()
    return stream.getvalue().to_pybytes()[schema.serialize().size : end]


def row(number: int, text: str = "row") -> bytes:
    return message(arrow_schema(COLUMNS), [[number], [text]])


def task_rows(cluster: LocalCluster, log: str, fail: bool, columns: StructType = source.VALUE_SCHEMA) -> list[dict]:
    """The rows of a Spark task that reads the whole log."""
    options = {"log": log, "zookeeper": cluster.zookeeper, "failOnDataLoss": str(fail).lower()}
    feed = LogFeed(client(cluster.zookeeper), log, b"", fail_on_data_loss=fail, with_times=True)
    schema = StructType([*columns, *source.ID_SCHEMA, StructField(source.TIMESTAMP, TimestampType())])
    asked = SourceOptions.parse({**options, "includeTimestamp": "true"})
    tasks = source.EntryPartitions(asked, schema, [*columns.names, "position", source.TIMESTAMP])
    pieces = [piece for piece, _ in feed.pieces(feed.earliest(), feed.newest())]
    batches = list(tasks.read(source.Ranges(pieces, feed.log)))
    assert all(rows.nbytes < 2 * VALUE_BYTES_MAX for rows in batches)
    return [row for rows in batches for row in rows.to_pylist()]


INVALID_VALUES = {
    "would inflate to more than a row may have": ("zstd", bomb()),
    "does not say its size": ("zstd", zstandard.ZstdCompressor(write_content_size=False).compress(b"value")),
    "no zstd frame": ("zstd", b"no frame"),
    "damaged zstd frame": ("zstd", pack(b"value" * 100)[:-9] + b"\xff" * 9),
    "too short for a stamp": ("stamped_zstd", b"short"),
    "stamped, and inflates to more": ("stamped_zstd", stamp() + bomb()),
    "a time that nobody can show": ("stamped", stamp(1 << 62) + b"value"),
    "a key longer than the entry": ("stamped", stamp(5, 1) + struct.pack("<i", 1 << 30)),
}


@pytest.mark.parametrize("fault", INVALID_VALUES)
def test_invalid_value_stops_no_other_row(cluster: LocalCluster, bookkeeper: BookKeeper, fault: str) -> None:
    encoding, payload = INVALID_VALUES[fault]
    log = f"values-{uuid.uuid4().hex[:8]}"
    create_log(bookkeeper, log, options=VALUES)
    good = (lambda value: pack(value)) if encoding == "zstd" else lambda value: stamp() + value
    if encoding == "stamped_zstd":
        good = lambda value: stamp() + pack(value)  # noqa: E731
    ledger_id = commit_entries(bookkeeper, log, [good(b"first"), good(b"second"), payload, good(b"last")], encoding)
    named = f"row 2 of log '{log}', entry 2 of ledger {ledger_id}, can't be decoded: .*--from-row"
    with open_log(bookkeeper, log).reader() as reader:
        assert [found.value for found in reader.read()] == [b"first", b"second"]
        for _ in range(2):
            with pytest.raises(InvalidRowError, match=named):
                reader.read()
        invalid, last = reader.read_with_gaps()
        assert invalid == Gap(0, 2, 2, GapKind.INVALID) and isinstance(last, LogRow) and last.value == b"last"
        assert reader.read() == []
    with pytest.raises(DataLossError, match=named):
        task_rows(cluster, log, fail=True)
    found = [(found["position"], found["value"]) for found in task_rows(cluster, log, fail=False)]
    assert found == [(0, b"first"), (1, b"second"), (3, b"last")]
    shown = console_rows.look_at(bookkeeper, console_rows.Wanted(log)).rows
    assert [shown[at][2]["value"] for at in (0, 1, 3)] == [b"first", b"second", b"last"]
    assert "can't be decoded" in shown[2][2]["value"]


_SCHEMA = arrow_schema(COLUMNS)
_NAMES = pyarrow.schema([("n", pyarrow.int32()), ("text", pyarrow.list_(pyarrow.null()))])


def _lied(payload: bytes, at: int, number: int) -> bytes:
    made = bytearray(payload)
    struct.pack_into("<q", made, at, number)
    return bytes(made)


def _with_rows(count: int) -> bytes:
    """A message of one row that says to have ``count``."""
    payload = message(_SCHEMA, [[7], ["text"]], None)
    at = next(at for at in range(0, len(payload) - 8, 8) if struct.unpack_from("<q", payload, at)[0] == 1)
    return _lied(payload, at, count)


def _wild_offsets() -> bytes:
    """Text offsets that lead out of the message."""
    payload = message(_SCHEMA, [[7], ["text"]], None)
    at = payload.rindex(struct.pack("<ii", 0, 4))
    return payload[:at] + struct.pack("<ii", 0, 1 << 30) + payload[at + 8 :]


INVALID_MESSAGES = {
    "would inflate to more than an entry may have": lambda: row(7, "0" * LARGE),
    "more rows than its commit says": lambda: message(_SCHEMA, [[7, 7], ["text"] * 2]),
    "no rows": lambda: message(_SCHEMA, [[], []]),
    "a million rows that it lacks": lambda: _with_rows(1_000_000),
    "two rows that it lacks": lambda: _with_rows(2),
    "offsets out of the message": _wild_offsets,
    "no message": lambda: b"no message",
    "a schema": lambda: _SCHEMA.serialize().to_pybytes(),
    "cut": lambda: row(7)[:-16],
    "columns of others": lambda: message(pyarrow.schema([("n", pyarrow.int64())]), [[7]]),
}


@pytest.mark.parametrize("fault", INVALID_MESSAGES)
def test_invalid_message_stops_no_other_row(cluster: LocalCluster, bookkeeper: BookKeeper, fault: str) -> None:
    log = f"columns-{uuid.uuid4().hex[:8]}"
    create_log(bookkeeper, log, options=TABLE)
    ledger_id = commit_entries(bookkeeper, log, [row(0), row(1), INVALID_MESSAGES[fault](), row(3)], "arrow")
    named = f"row 2 of log '{log}', entry 2 of ledger {ledger_id}, can't be decoded: "
    with pytest.raises(DataLossError, match=named):
        task_rows(cluster, log, True, COLUMNS)
    found = [(found["position"], found["n"]) for found in task_rows(cluster, log, False, COLUMNS)]
    assert found == [(0, 0), (1, 1), (3, 3)]


def test_values_that_inflate_to_much_together_come_in_several_reads(
    cluster: LocalCluster, bookkeeper: BookKeeper
) -> None:
    """Each is a row as a writer may write it, and some kilobytes long."""
    log = f"values-{uuid.uuid4().hex[:8]}"
    create_log(bookkeeper, log, options=VALUES)
    sizes = [VALUE_BYTES_MAX, READ_BYTES_MAX // 2, READ_BYTES_MAX // 2, 1, VALUE_BYTES_MAX, 2]
    with open_log(bookkeeper, log).producer("service") as producer:
        producer.append_batch([bytes(size) for size in sizes])
    reads = []
    with open_log(bookkeeper, log).reader() as reader:
        while rows := reader.read():
            reads.append([len(found.value) for found in rows])
    assert [size for read in reads for size in read] == sizes
    assert max(sum(read[:-1]) for read in reads) <= READ_BYTES_MAX
    assert [len(found["value"]) for found in task_rows(cluster, log, True)] == sizes


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_row_larger_than_a_row_may_be_is_refused_before_its_compression(compression: Compression) -> None:
    values = row_encoder(LogRecord("orders", dataclasses.replace(ONE, compression=compression)))
    list(values.add(pyarrow.record_batch({"value": ["first"]})))
    with pytest.raises(EntryTooLargeError, match=r"row 2 of partition .* 16,646,145 bytes is larger than 16,646,144"):
        list(values.add(pyarrow.record_batch({"value": [b"", bytes(VALUE_BYTES_MAX + 1)]})))
    columns = row_encoder(LogRecord("orders", dataclasses.replace(TABLE, compression=compression)))
    with pytest.raises(EntryTooLargeError, match="larger than 16,646,144"):
        list(chain(columns.add(pyarrow.record_batch({"n": [1], "text": ["0" * LARGE]}, _SCHEMA)), columns.finish()))

"""Rows as entries and back: each format and compression, with empty rows, large rows, and rows of every type."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from decimal import Decimal
from itertools import pairwise

import pyarrow
import pytest
import zstandard
from pyspark.sql.types import ArrayType, DecimalType, IntegerType, LongType, MapType, StringType, StructType

from bookspark.errors import BookKeeperError, ConfigurationError, InvalidRowError
from bookspark.logs import LogRegistry, LogRun
from bookspark.logs.rows.encodings import ID_COLUMNS
from bookspark.logs.rows.splits import Piece
from bookspark.logs.rows.value_rows import train_dictionary
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.logs.log_options import Compression, LogOptions, RowFormat
from bookspark.protocol.logs.log_record import ENCODING_LABEL, LogRecord
from bookspark.spark.connector import sink
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.rows import rows as row_codecs
from bookspark.spark.rows.row_format import arrow_schema, columns_of
from bookspark.spark.rows.rows import row_decoder, row_encoder
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX
from tests.spark.memory_bookkeeper import MemoryBookKeeper

LEDGER = 7


def ledger(encoding: str) -> LedgerMetadata:
    labels = {ENCODING_LABEL: encoding.encode()} if encoding else {}
    return LedgerMetadata(LEDGER, 3, 3, 2, fragments=(Fragment(0, ("a", "b", "c")),), custom_metadata=labels)


def written(record: LogRecord, batches: Iterable[pyarrow.RecordBatch]) -> tuple[str, list[tuple[bytes, int]]]:
    """Encoding of a task, and payload and row count of each of its entries."""
    encoder = row_encoder(record)
    found = [payloads for batch in batches for payloads in encoder.add(batch)]
    found += encoder.finish()
    return encoder.encoding, [(value, p.rows_each) for p in found for value in p.values.to_pylist()]


def read(record: LogRecord, encoding: str, payloads: list[bytes], piece: Piece) -> pyarrow.Table:
    """The rows of a piece of the entries ``payloads``, whose first is entry 100."""
    decoder = row_decoder(ledger(encoding), columns_of(record.options), lambda: record.dictionary)
    first, last = piece.first_entry_id, piece.last_entry_id
    parts = []
    for at in range(first, last + 1, 3):  # as bookies answer: some entries at a time
        ids = list(range(at, min(at + 3, last + 1)))
        entries = pyarrow.record_batch(
            {
                "ledger_id": pyarrow.array([LEDGER] * len(ids), pyarrow.int64()),
                "entry_id": pyarrow.array(ids, pyarrow.int64()),
                "payload": pyarrow.array([payloads[i - 100] for i in ids], pyarrow.binary()),
            }
        )
        parts += decoder.rows(entries, piece)
    return pyarrow.Table.from_batches(parts)


def value_log(compression: Compression, dictionary: bytes = b"") -> LogRecord:
    return LogRecord("orders", LogOptions(compression=compression), dictionary=dictionary)


def arrow_log(columns: StructType, compression: Compression = Compression.NONE) -> LogRecord:
    return LogRecord("orders", LogOptions(row_format=RowFormat.ARROW, compression=compression, columns=columns.json()))


VALUES = ["", "a", "ä" * 300, "", *(f'{{"order": {n}, "customer": "somebody{n % 7}"}}' for n in range(2000)), ""]


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.binary(), pyarrow.large_string()], ids=str)
@pytest.mark.parametrize("compression", list(Compression))
def test_values_round_trip_under_each_compression(compression: Compression, kind: pyarrow.DataType) -> None:
    array = pyarrow.array(["cut off", *VALUES, "cut off"]).cast(kind).slice(1, len(VALUES))
    batch = pyarrow.record_batch({"value": array})
    record = value_log(compression, train_dictionary(batch) if compression is Compression.ZSTD_DICTIONARY else b"")
    encoding, entries = written(record, [batch, batch.slice(5, 1)])
    payloads, rows_each = [payload for payload, _ in entries], {rows for _, rows in entries}
    assert rows_each == {1}
    back = read(record, encoding, payloads, Piece(LEDGER, 100, 5000, len(payloads)))
    assert back["value"].to_pylist() == [value.encode() for value in [*VALUES, VALUES[5]]]
    assert back["position"].to_pylist() == list(range(5000, 5000 + len(payloads)))
    assert back["entry_id"].to_pylist() == list(range(100, 100 + len(payloads)))
    if compression is Compression.ZSTD_DICTIONARY:
        assert sum(map(len, payloads)) < 0.7 * sum(len(value.encode()) for value in VALUES)


def test_empty_values_round_trip_in_a_compressed_log() -> None:
    record = value_log(Compression.ZSTD)
    encoding, entries = written(record, [pyarrow.record_batch({"value": ["", ""]})])
    assert read(record, encoding, [payload for payload, _ in entries], Piece(LEDGER, 100, 0, 2))[
        "value"
    ].to_pylist() == [
        b"",
        b"",
    ]


def test_too_few_values_train_no_dictionary_and_use_plain_zstd() -> None:
    batch = pyarrow.record_batch({"value": ["a", "b"]})
    assert train_dictionary(batch) == b""
    assert written(value_log(Compression.ZSTD_DICTIONARY), [batch])[0] == "zstd"


def test_dictionary_is_trained_from_at_most_2_mib_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of 50 kB cost the first task 13 seconds and 170 MB."""
    sampled: list[bytes] = []
    train = zstandard.train_dictionary
    monkeypatch.setattr(
        zstandard, "train_dictionary", lambda size, samples: sampled.extend(samples) or train(size, samples)
    )
    values = [f'{{"customer": "somebody{n % 7}", "note": "{n:050000}"}}' for n in range(100)]
    assert train_dictionary(pyarrow.record_batch({"value": values}))
    assert sampled == [value.encode() for value in values[: len(sampled)]]
    assert len(sampled) == (2 << 20) // len(values[0])


def test_dictionary_made_after_the_first_rows_begins_a_ledger_labelled_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A worker keeps its ledger over micro-batches: in the ledger labelled zstd the later rows could not be read."""
    bookkeeper = MemoryBookKeeper()
    LogRegistry(bookkeeper.metadata).ensure("orders", {"compression": Compression.ZSTD_DICTIONARY}, b"")
    monkeypatch.setattr(sink, "client", lambda zookeeper: bookkeeper)
    writer = sink.LogWriter(SinkOptions.parse({"log": "orders", "zookeeper": "of-the-dictionarys-test"}))
    registry, written = LogRegistry(bookkeeper.metadata), []
    for values in (["a", "b"], ["c"], VALUES):
        record = registry.claim("orders", "run")
        run = LogRun.of(writer.options.log, record)
        written.append(
            writer.write_rows(
                iter([pyarrow.record_batch({"value": values})]), run, record, sink.RangesWritten("q", 0, "run")
            ).ranges
        )
    ledgers = [item.ledger_id for ranges in written for item in ranges]
    assert ledgers[0] == ledgers[1] != ledgers[2]
    metadata = [bookkeeper.get_ledger_metadata(ledger_id) for ledger_id in ledgers[1:]]
    assert [one.custom_metadata[ENCODING_LABEL] for one in metadata] == [b"zstd", b"zstd_dictionary"]
    assert metadata[0].closed


def test_entry_compressed_with_a_dictionary_is_unreadable_as_plain_zstd() -> None:
    batch = pyarrow.record_batch({"value": VALUES})
    record = value_log(Compression.ZSTD_DICTIONARY, train_dictionary(batch))
    encoding, entries = written(record, [batch])
    assert encoding == "zstd_dictionary"
    with pytest.raises(Exception, match=r"[Dd]ictionary"):
        read(record, "zstd", [payload for payload, _ in entries], Piece(LEDGER, 100, 0, len(entries)))


def test_null_value_is_refused_with_its_row_number() -> None:
    batch = pyarrow.record_batch({"value": ["a", "b"]})
    with pytest.raises(BookKeeperError, match="null in row 3 of partition"):
        written(value_log(Compression.NONE), [batch, pyarrow.record_batch({"value": ["c", None]})])


COLUMNS = (
    StructType()
    .add("a", "boolean")
    .add("b", "byte")
    .add("c", "short")
    .add("d", "integer")
    .add("e", "long")
    .add("f", "float")
    .add("g", "double")
    .add("h", DecimalType(20, 3))
    .add("i", "string")
    .add("j", "binary")
    .add("k", "date")
    .add("l", "timestamp")
    .add("m", "timestamp_ntz")
    .add("n", ArrayType(StructType().add("x", "integer").add("y", "string")))
    .add("o", StructType().add("p", ArrayType(IntegerType())).add("q", "double"))
    .add("r", MapType(StringType(), IntegerType()))
)


def table(count: int, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    def row(n: int) -> tuple[object, ...]:
        moment = datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=n)
        small = n % 100
        # fmt: off
        return (
            bool(n % 2), small, small, n, n << 33, n / 2, n / 3, Decimal(n) / 8, f"row {n}", bytes([n % 256]) * (n % 9),
            moment.date(), moment.replace(tzinfo=datetime.UTC), moment, [{"x": n, "y": None}] * (n % 3),
            {"p": [n, None], "q": None}, [(f"k{n}", n)],
        )
        # fmt: on

    rows = [tuple([None] * len(schema)) if n % 11 == 3 else row(n) for n in range(count)]
    arrays = [pyarrow.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pyarrow.RecordBatch.from_arrays(arrays, schema=schema)


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.ZSTD])
def test_rows_of_every_type_round_trip_in_entries_of_equal_row_counts(
    compression: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_codecs, "ENTRY_BYTES", 4000)
    record = arrow_log(COLUMNS, compression)
    schema = arrow_schema(COLUMNS)
    whole = table(1000, schema)
    cuts = [0, 400, 401, 401, 700, 1000]
    batches = [whole.slice(a, b - a) for a, b in pairwise(cuts) if b > a]
    encoding, entries = written(record, batches)
    counts = [rows for _, rows in entries]
    assert sum(counts) == 1000
    assert len(set(counts[:-1])) == 1 and counts[-1] <= counts[0]
    each = counts[0]
    payloads = [payload for payload, _ in entries]
    full = (len(counts) - 1) * each
    for start, stop in [(0, full), (1, full - 1), (each - 1, each + 1), (each, 2 * each), (5, 6), (full - 1, full)]:
        piece = Piece(LEDGER, 100, 9000, full, each).part(start, stop)
        back = read(record, encoding, payloads, piece)
        assert back.drop_columns(list(ID_COLUMNS)).to_pylist() == whole.slice(start, stop - start).to_pylist()
        assert back["position"].to_pylist() == list(range(9000 + start, 9000 + stop))
        assert back["entry_id"].to_pylist() == [100 + row // each for row in range(start, stop)]
        assert set(back["ledger_id"].to_pylist()) == {LEDGER}
    last = Piece(LEDGER, 100 + len(counts) - 1, 0, counts[-1], counts[-1])
    assert back.schema == read(record, encoding, payloads, last).schema


def test_compressed_rows_take_less_than_half_the_bytes() -> None:
    rows = table(5000, arrow_schema(COLUMNS))
    size = {
        compression: sum(len(payload) for payload, _ in written(arrow_log(COLUMNS, compression), [rows])[1])
        for compression in (Compression.NONE, Compression.ZSTD)
    }
    assert size[Compression.ZSTD] < size[Compression.NONE] / 2


def test_non_nullable_columns_and_times_of_another_zone_are_accepted() -> None:
    record = arrow_log(StructType().add("n", "long").add("at", "timestamp").add("list", ArrayType(IntegerType())))
    schema = pyarrow.schema(
        [
            pyarrow.field("n", pyarrow.int64(), nullable=False),
            pyarrow.field("at", pyarrow.timestamp("us", "Europe/Berlin")),
            pyarrow.field("list", pyarrow.list_(pyarrow.field("element", pyarrow.int32(), nullable=False))),
        ]
    )
    moment = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
    batch = pyarrow.RecordBatch.from_arrays(
        [pyarrow.array(v, f.type) for v, f in zip([[1], [moment], [[5]]], schema, strict=True)], schema=schema
    )
    encoding, entries = written(record, [batch])
    back = read(record, encoding, [entries[0][0]], Piece(LEDGER, 100, 0, 1))
    assert back.drop_columns(list(ID_COLUMNS)).to_pylist() == [{"n": 1, "at": moment, "list": [5]}]


def test_entries_hold_fewer_rows_when_rows_get_wider_and_more_when_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_codecs, "ENTRY_BYTES", 4000)
    record = arrow_log(StructType().add("blob", "binary"))
    widths = [1] * 400 + [1000] * 400 + [1] * 400
    encoder, held, entries = row_encoder(record), 0, []
    for at in range(0, len(widths), 40):
        held += sum(widths[at : at + 40])
        for payloads in encoder.add(pyarrow.record_batch({"blob": [b"y" * width for width in widths[at : at + 40]]})):
            entries += [(value, payloads.rows_each) for value in payloads.values.to_pylist()]
            held -= sum(map(len, payloads.values.to_pylist()))
        assert held < 10 * 4000, "in memory until there is an entry's worth of rows"
    entries += [(value, p.rows_each) for p in encoder.finish() for value in p.values.to_pylist()]
    assert sum(rows for _, rows in entries) == len(widths)
    assert max(len(payload) for payload, _ in entries) < 10 * 4000
    assert len(entries) < 300, "an entry for each narrow row"
    back = [
        len(value)
        for payload, rows in entries
        for value in read(record, "arrow", [payload], Piece(LEDGER, 100, 0, rows, rows))["blob"].to_pylist()
    ]
    assert back == widths


def test_rows_of_alternating_width_do_not_make_a_range_for_each_batch() -> None:
    encoder = row_encoder(arrow_log(StructType().add("blob", "binary")))
    sizes = []
    for at in range(400):
        batch = pyarrow.record_batch({"blob": [b"y" * (1 if at % 2 else 20_000)] * 20})
        sizes += [payloads.rows_each for payloads in encoder.add(batch)]
    assert sum(a != b for a, b in pairwise(sizes)) < 100


def test_rows_too_large_for_a_single_entry_are_split_over_several() -> None:
    columns = StructType().add("n", "long").add("blob", "binary")
    record = arrow_log(columns)
    small = pyarrow.record_batch({"n": list(range(64)), "blob": [b"x"] * 64})
    large = pyarrow.record_batch({"n": list(range(4)), "blob": [b"y" * (PAYLOAD_BYTES_MAX // 3)] * 4})
    schema = arrow_schema(columns)
    encoding, entries = written(record, [small.cast(schema), large.cast(schema)])
    assert max(len(payload) for payload, _ in entries) <= PAYLOAD_BYTES_MAX
    numbers: list[int] = []
    for k, (_, rows) in enumerate(entries):
        back = read(record, encoding, [payload for payload, _ in entries], Piece(LEDGER, 100 + k, 0, rows, rows))
        numbers += back["n"].to_pylist()
    assert numbers == [*range(64), *range(4)]


def test_dictionary_for_arrow_rows_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="use 'zstd'"):
        LogOptions(row_format=RowFormat.ARROW, compression=Compression.ZSTD_DICTIONARY)


def test_unknown_encoding_of_a_later_version_is_named_in_the_error() -> None:
    with pytest.raises(BookKeeperError, match="data ledger 7 has the encoding 'lz9'"):
        row_decoder(ledger("lz9"), None, lambda: b"")


def test_small_entries_of_rows_are_decoded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 1,500 entries of ten rows took 30 microseconds by itself. Pieces begin and end at any row of an entry."""
    columns = StructType().add("n", LongType()).add("word", StringType())
    record = arrow_log(columns)
    payloads: list[bytes] = []
    for first in range(0, 100, 10):
        numbers = range(first, first + 10)
        batch = pyarrow.record_batch(
            {"n": list(numbers), "word": [str(n) for n in numbers]}, schema=arrow_schema(columns)
        )
        encoding, found = written(record, [batch])
        payloads += [payload for payload, _ in found]
    for skip, rows in ((0, 100), (3, 97), (9, 1), (3, 15), (0, 10), (5, 90)):
        piece = Piece(LEDGER, 100, 1000, rows, rows_each=10, skip=skip)
        together = read(record, encoding, payloads, piece)
        assert together["n"].to_pylist() == list(range(skip, skip + rows))
        assert together.column("n").num_chunks == -(-piece.entries // 3)
        with monkeypatch.context() as alone:
            alone.setattr(row_codecs, "SMALL_ENTRY_BYTES", 0)
            assert read(record, encoding, payloads, piece) == together


def test_entry_with_fewer_rows_than_its_commit_says_is_an_error() -> None:
    """No writer makes a range of such entries. The rows that lack would be left out of the read without a word."""
    columns = StructType().add("n", LongType())
    record, payloads = arrow_log(columns), list[bytes]()
    for numbers in ([0, 1], [2], [4, 5]):
        encoding, found = written(record, [pyarrow.record_batch({"n": numbers}, schema=arrow_schema(columns))])
        payloads += [payload for payload, _ in found]
    with pytest.raises(InvalidRowError, match=r"rows 2 to 3 of .* an entry of 1 row, where its commit has 2"):
        read(record, encoding, payloads, Piece(LEDGER, 100, 0, 6, rows_each=2))

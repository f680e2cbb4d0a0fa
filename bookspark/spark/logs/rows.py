"""What the entries of a log's data ledgers hold: how rows become payloads, and payloads rows again.

Law: rows come back as they went in, in order. A data ledger says itself how its payloads are encoded, in its custom metadata
(label ``bookspark.encoding``), so that no reader has to guess, also not in a log whose dictionary came after its first rows:

=====================  ==========================================================================================
no label               an entry is a row, its payload the row's ``value``
``zstd``               the same, each payload a zstd frame; an empty value is an empty payload
``zstd_dictionary``    the same, compressed with the dictionary in the log's record
``arrow``              an entry is an encapsulated Arrow IPC record batch message, of the schema in the log's record;
                       with compression ``zstd`` its buffers are compressed as Arrow's format has it, and the message
                       says so
=====================  ==========================================================================================

Entries of Arrow rows have about ``ENTRY_BYTES`` each. Those of one task have as many rows each until the rows become much wider
or narrower: so a few ranges are enough, and none needs a list of how many rows each of its entries has. Arrow arrays go in and
out without a Python object for a row, except that zstandard hands out compressed and decompressed values one by one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol

import zstandard
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_record import ENCODING_LABEL, Compression, LogOptions, LogRecord, RowFormat
from bookspark.spark.logs.splits import Piece
from bookspark.wire.entry_batch import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow

PLAIN, ZSTD, ZSTD_DICTIONARY, ARROW = "", "zstd", "zstd_dictionary", "arrow"
ENTRY_BYTES = 256 << 10
"""Of Arrow rows before compression."""
ROWS_EACH_MAX = 1 << 16
UNEVEN = 8
"""An entry's rows are counted anew when it would have so many times its bytes, or so small a part of them."""
WIDENED_MAX = 16
"""So often a task makes entries of more rows than before: each time is one more range of its commit."""
DICTIONARY_BYTES = 16 << 10
SAMPLES_MAX = 4000
SAMPLE_BYTES_MAX = 2 << 20
"""A dictionary is made from so many values and bytes at most: more cost time, and make no better one."""
_LEVEL = 1
_Values = zstandard.BufferWithSegmentsCollection
ID_COLUMNS = ("position", "ledger_id", "entry_id")
"""What reading adds to the columns that were written."""


class Payloads(NamedTuple):
    """Entries to be appended, each of ``rows_each`` rows."""

    values: pyarrow.Array
    """Binary, without nulls."""
    rows_each: int = 1


class RowEncoder(Protocol):
    """The rows of one task on their way into entries."""

    encoding: str
    """The label of the data ledgers that they may go to."""

    def add(self, rows: pyarrow.RecordBatch) -> Iterator[Payloads]:
        """The entries that are full by now."""

    def finish(self) -> Iterator[Payloads]:
        """What is left."""


class RowDecoder(Protocol):
    """The entries of data ledgers as rows of the log."""

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """The rows of ``piece`` that lie in ``entries``, which are consecutive and all of the piece."""


def row_encoder(record: LogRecord) -> RowEncoder:
    """For a task that writes to the log."""
    options = record.options
    if options.row_format is RowFormat.ARROW:
        return _ArrowEncoder(options)
    if options.compression is Compression.NONE:
        return _ValueEncoder(PLAIN, None)
    if record.dictionary:
        return _ValueEncoder(ZSTD_DICTIONARY, _compressor(record.dictionary))
    return _ValueEncoder(ZSTD, _compressor(b""))


def row_decoder(ledger: LedgerMetadata, columns: StructType | None, dictionary: Callable[[], bytes]) -> RowDecoder:
    """For a data ledger. ``columns``: those of a log of Arrow rows; ``dictionary``: the log's, asked for if it is needed."""
    encoding = ledger.custom_metadata.get(ENCODING_LABEL, b"").decode()
    match encoding:
        case "":
            return _ValueDecoder(None)
        case "zstd":
            return _ValueDecoder(_decompressor(b""))
        case "zstd_dictionary":
            return _ValueDecoder(_decompressor(dictionary()))
        case "arrow" if columns is not None:
            return _ArrowDecoder(columns)
    raise BookKeeperError(
        f"data ledger {ledger.ledger_id} has the encoding {encoding!r}, which this version does not know: use a newer bookspark"
    )


def columns_of(options: LogOptions) -> StructType | None:
    """The columns of a log of Arrow rows; None if the log holds values."""
    return StructType.fromJson(json.loads(options.columns)) if options.row_format is RowFormat.ARROW else None


def train_dictionary(rows: pyarrow.RecordBatch) -> bytes:
    """A dictionary from the values of a first batch; empty if they are too few, or have nothing in common."""
    try:
        return zstandard.train_dictionary(DICTIONARY_BYTES, list(_samples(rows.column(0)))).as_bytes()
    except zstandard.ZstdError:
        return b""


def _samples(values: pyarrow.Array) -> Iterator[bytes]:
    room = SAMPLE_BYTES_MAX
    for scalar in values.slice(0, SAMPLES_MAX):
        value = scalar.as_py()
        if not value:
            continue
        sample = value.encode() if isinstance(value, str) else value
        room -= len(sample)
        if room < 0:
            return
        yield sample


# -- values


class _ValueEncoder:
    def __init__(self, encoding: str, compressor: zstandard.ZstdCompressor | None) -> None:
        self.encoding = encoding
        self._compressor = compressor
        self._row = 0

    def add(self, rows: pyarrow.RecordBatch) -> Iterator[Payloads]:
        import pyarrow

        values = rows.column(0)
        if values.null_count:
            context = TaskContext.get()
            raise BookKeeperError(
                f"column 'value' is null in row {self._row + values.is_null().index(True).as_py()} of partition "
                f"{context.partitionId() if context else '?'}; an entry can be empty but not null: "
                "filter such rows out, or use coalesce(value, '')"
            )
        self._row += rows.num_rows
        kind = values.type
        if pyarrow.types.is_large_string(kind) or pyarrow.types.is_large_binary(kind):
            values = values.cast(pyarrow.large_binary())
        values = values.cast(pyarrow.binary())
        if self._compressor is not None:
            values = _each(self._compressor.multi_compress_to_buffer, values)
        yield Payloads(values)

    def finish(self) -> Iterator[Payloads]:
        return iter(())


class _ValueDecoder:
    def __init__(self, decompressor: zstandard.ZstdDecompressor | None) -> None:
        self._decompressor = decompressor

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow
        import pyarrow.compute

        values, ids = entries.column("payload"), entries.column("entry_id")
        if self._decompressor is not None:
            values = _each(self._decompressor.multi_decompress_to_buffer, values)
        positions = pyarrow.compute.add(ids, piece.position - piece.first_entry_id)
        columns = [values, positions, entries.column("ledger_id"), ids]
        yield pyarrow.RecordBatch.from_arrays(columns, names=["value", *ID_COLUMNS])


def _each(convert: Callable[[zstandard.BufferWithSegments], _Values], values: pyarrow.Array) -> pyarrow.Array:
    """A binary array with each value compressed or decompressed; empty ones stay empty."""
    import numpy
    import pyarrow

    _, offsets, data = values.buffers()
    ends = numpy.frombuffer(offsets, numpy.int32)[values.offset : values.offset + len(values) + 1].astype(numpy.uint64)
    lengths = ends[1:] - ends[:-1]
    filled = lengths > 0
    if not filled.any():
        return values
    segments = numpy.column_stack((ends[:-1][filled], lengths[filled]))
    results = convert(zstandard.BufferWithSegments(data, segments.tobytes()))
    converted = [results[index].tobytes() for index in range(len(results))]
    sizes = numpy.zeros(len(values), numpy.int32)
    sizes[filled] = numpy.fromiter(map(len, converted), numpy.int32, len(converted))
    starts = numpy.concatenate((numpy.zeros(1, numpy.int32), numpy.cumsum(sizes, dtype=numpy.int32)))
    buffers = [None, pyarrow.py_buffer(starts.tobytes()), pyarrow.py_buffer(b"".join(converted))]
    return pyarrow.Array.from_buffers(pyarrow.binary(), len(values), buffers)


@lru_cache(maxsize=16)
def _compressor(dictionary: bytes) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=_LEVEL, dict_data=_parsed(dictionary))


@lru_cache(maxsize=16)
def _decompressor(dictionary: bytes) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(dict_data=_parsed(dictionary))


def _parsed(dictionary: bytes) -> zstandard.ZstdCompressionDict | None:
    return zstandard.ZstdCompressionDict(dictionary) if dictionary else None


# -- rows with all their columns


class _ArrowEncoder:
    encoding = ARROW

    def __init__(self, options: LogOptions) -> None:
        import pyarrow

        columns = columns_of(options)
        assert columns is not None
        self._schema = arrow_schema(columns)
        self._options = pyarrow.ipc.IpcWriteOptions(
            compression="zstd" if options.compression is Compression.ZSTD else None
        )
        self._rows_each = 0
        self._widened = 0
        self._rest: pyarrow.RecordBatch | None = None

    def add(self, rows: pyarrow.RecordBatch) -> Iterator[Payloads]:
        import pyarrow

        columns = [column.cast(field.type) for column, field in zip(rows.columns, self._schema, strict=True)]
        batch = pyarrow.RecordBatch.from_arrays(columns, schema=self._schema)
        fit = min(max(ENTRY_BYTES * batch.num_rows // max(batch.nbytes, 1), 1), ROWS_EACH_MAX)
        narrower = fit > self._rows_each * UNEVEN and self._widened < WIDENED_MAX
        if narrower or fit * UNEVEN < self._rows_each:
            yield from self.finish()
            self._rows_each = 1 << (fit.bit_length() - 1)
            self._widened += narrower
        if self._rest is not None:
            batch = pyarrow.concat_batches([self._rest, batch])
        full = batch.num_rows - batch.num_rows % self._rows_each
        self._rest = batch.slice(full) if full < batch.num_rows else None
        yield from self._payloads([batch.slice(at, self._rows_each) for at in range(0, full, self._rows_each)])

    def finish(self) -> Iterator[Payloads]:
        rest, self._rest = self._rest, None
        if rest is not None:
            yield from self._payloads([rest])

    def _payloads(self, batches: list[pyarrow.RecordBatch]) -> Iterator[Payloads]:
        """An entry each. One that is too large becomes two, of half the rows."""
        while batches:
            alike = next((k for k, batch in enumerate(batches) if self._too_large(batch)), len(batches))
            if alike:
                yield Payloads(self._messages(batches[:alike]), batches[0].num_rows)
                batches = batches[alike:]
            else:
                half = batches[0].num_rows // 2
                yield from self._payloads([batches[0].slice(0, half)])
                yield from self._payloads([batches[0].slice(half)])
                batches = batches[1:]

    def _too_large(self, batch: pyarrow.RecordBatch) -> bool:
        return bool(batch.num_rows > 1 and batch.nbytes > PAYLOAD_BYTES_MAX // 2)

    def _messages(self, batches: list[pyarrow.RecordBatch]) -> pyarrow.Array:
        """Each batch as a message; all of them lie one after the other in the stream that Arrow writes, behind its schema."""
        import pyarrow

        stream = pyarrow.BufferOutputStream()
        ends = []
        with pyarrow.ipc.new_stream(stream, self._schema, options=self._options) as writer:
            for batch in batches:
                writer.write_batch(batch)
                ends.append(stream.tell())
        offsets = pyarrow.array([self._schema.serialize().size, *ends], pyarrow.int32())
        buffers = [None, offsets.buffers()[1], stream.getvalue()]
        return pyarrow.Array.from_buffers(pyarrow.binary(), len(batches), buffers)


class _ArrowDecoder:
    def __init__(self, columns: StructType) -> None:
        import pyarrow

        self._schema = arrow_schema(columns)
        ids = [pyarrow.field(name, pyarrow.int64()) for name in ID_COLUMNS]
        self._full = pyarrow.schema([*self._schema, *ids])

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        import numpy
        import pyarrow

        for payload, entry_id in zip(entries.column("payload"), entries.column("entry_id").to_pylist(), strict=True):
            batch = pyarrow.ipc.read_record_batch(payload.as_buffer(), self._schema)
            before = (entry_id - piece.first_entry_id) * piece.rows_each - piece.skip
            low, high = max(0, -before), min(batch.num_rows, piece.rows - before)
            start = piece.position + before + low
            rows = high - low
            ids = [
                pyarrow.array(numpy.arange(start, start + rows, dtype=numpy.int64)),
                pyarrow.array(numpy.full(rows, piece.ledger_id, numpy.int64)),
                pyarrow.array(numpy.full(rows, entry_id, numpy.int64)),
            ]
            columns = [*batch.slice(low, rows).columns, *ids]
            yield pyarrow.RecordBatch.from_arrays(columns, schema=self._full)


def arrow_schema(columns: StructType) -> pyarrow.Schema:
    """How Spark's Python side has these columns in Arrow: times in UTC."""
    return to_arrow_schema(columns, timezone="UTC")

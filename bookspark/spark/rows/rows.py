"""The encoder of a log's rows and the decoder of a data ledger's entries.

Law: a task writes by the log's options and its dictionary; a reader decodes by the label of the data ledger.
``logs.rows.encodings`` has the encodings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.types import StructType

from bookspark.logs.rows.encodings import (
    ARROW,
    ID_COLUMNS,
    VALUE_BYTES_MAX,
    ZSTD_DICTIONARY,
    Payloads,
    RowDecoder,
    RowEncoder,
    invalid_row,
    parts_of,
    too_large,
    value_encoding,
)
from bookspark.logs.rows.splits import Piece
from bookspark.logs.rows.stamped_rows import split_stamps
from bookspark.logs.rows.statistics import Block, Bounds, Collected, high_bytes, high_text, low_bytes, low_text
from bookspark.logs.rows.value_rows import ValueDecoder, ValueEncoder
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.logs.log_options import Compression
from bookspark.protocol.logs.log_record import ENCODING_LABEL, LOG_LABEL, LogRecord
from bookspark.spark.rows.row_format import arrow_schema, columns_of
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX
from bookspark.support.inflating import InflationError, arrow_sizes
from bookspark.support.plain_text import counted

if TYPE_CHECKING:
    import numpy
    import pyarrow


# -- Bounds of the columns of Arrow batches, for the statistics of commits (``logs.rows.statistics``)
#
# Law: bounds are those of the written values, or wider. Columns of types without bounds record only their nulls, and only on
# request. A block with NaN, which is greater than every number, has no upper bound; a block of NaN alone has no bounds.


COLUMNS_MAX = 16
"""Default number of columns with statistics: the first columns that have bounds."""


def columns_told(schema: pyarrow.Schema, wanted: Sequence[str] | None) -> list[str]:
    """Names of the columns with statistics. ``wanted``: the requested columns; None: default."""
    if wanted is not None:
        return list(wanted)
    return [field.name for field in schema if _has_bounds(field.type)][:COLUMNS_MAX]


def block_of(rows: pyarrow.Table, columns: Sequence[str]) -> Block:
    return Block(rows.num_rows, tuple(_bounds(rows.column(name)) for name in columns))


def _has_bounds(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    if types.is_decimal(kind) or types.is_boolean(kind) or types.is_floating(kind) or types.is_signed_integer(kind):
        return True
    return types.is_date32(kind) or types.is_timestamp(kind) or _is_text(kind) or _is_bytes(kind)


def _is_text(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pyarrow.DataType) -> bool:
    import pyarrow.types as types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _bounds(values: pyarrow.ChunkedArray) -> Bounds:
    import pyarrow
    import pyarrow.compute
    import pyarrow.types as types

    kind, nulls = values.type, values.null_count
    if nulls == len(values) or not _has_bounds(kind):
        return Bounds(nulls=nulls)
    if _is_text(kind):
        # Python cannot represent texts that are no UTF-8, so bounds are taken of bytes.
        values = values.cast(pyarrow.binary() if types.is_string(kind) else pyarrow.large_binary())
    elif types.is_date32(kind):
        values = values.cast(pyarrow.int32())
    elif types.is_timestamp(kind):
        values = values.cast(pyarrow.int64())
    ends = pyarrow.compute.min_max(values)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if _is_text(kind):
        return Bounds(low_text(low), high_text(high), nulls)
    if _is_bytes(kind):
        return Bounds(low_bytes(low), high_bytes(high), nulls)
    if types.is_decimal(kind):
        return Bounds(_digits(low, kind.scale), _digits(high, kind.scale), nulls)
    if types.is_floating(kind):
        has_nan = pyarrow.compute.any(pyarrow.compute.is_nan(values)).as_py()
        return Bounds(_finite(low), None if has_nan else _finite(high), nulls)
    return Bounds(int(low), int(high), nulls)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _digits(value: Any, scale: int) -> int:
    sign, digits, exponent = value.as_tuple()
    number: int = int("".join(map(str, digits))) * 10 ** (scale + exponent)
    return -int(number) if sign else int(number)


# -- Entries of logs of row format ``arrow``: an entry is a record batch of rows with all their columns
#
# Law: rows come back unchanged and in order. Entries have about ``ENTRY_BYTES`` each. Entries of one task have the same number of
# rows until the rows become much wider or narrower. So a few ranges name all entries of a task, and no range needs a list of its
# entries' numbers of rows. Arrow arrays go in and out without a Python object for each row.
#
# An entry is read only if it is what a writer may write: one record batch message of the log's columns with as many rows as its
# commit says, at most ROWS_EACH_MAX, that inflates to FRAME_BYTES_MAX at most; a writer's row has up to VALUE_BYTES_MAX bytes.
# pyarrow takes a message for true, so its sizes come first, and its content is validated before any value is read.


ENTRY_BYTES = 256 << 10
"""Approximate size of an entry before compression."""
ROWS_EACH_MAX = 1 << 16
UNEVEN = 8
"""The number of rows of an entry is chosen anew if an entry would be larger or smaller than ENTRY_BYTES by this factor."""
ENTRIES_OF_BLOCK = 4
SMALL_ENTRY_BYTES = 32 << 10
"""Entries up to this mean size are decoded together: alone, each takes some 30 microseconds."""
WIDENED_MAX = 16
"""Limit on a task's increases of the rows per entry. Each increase adds a range to its commit."""


class ArrowEncoder:
    """Makes entries of many rows each."""

    encoding = ARROW

    def __init__(
        self, columns: StructType, compression: Compression, told: Sequence[str] | None = None, where: str = ""
    ) -> None:
        """``told``: the columns with statistics in the commit; None: default (``columns_told``). ``where``: place of the rows,
        for errors."""
        import pyarrow

        self._schema, self._where = arrow_schema(columns), where
        self._options = pyarrow.ipc.IpcWriteOptions(compression="zstd" if compression is Compression.ZSTD else None)
        self._rows_each = 0
        self._widened = 0
        self._rest: pyarrow.RecordBatch | None = None
        self._told = columns_told(self._schema, told)
        self._collected = Collected(self._told)

    def add(self, rows: pyarrow.RecordBatch) -> Iterator[Payloads]:
        """Add rows. Returns the entries that are full now."""
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
        """An entry of the remaining rows, if any."""
        rest, self._rest = self._rest, None
        if rest is not None:
            yield from self._payloads([rest])

    def _payloads(self, batches: list[pyarrow.RecordBatch]) -> Iterator[Payloads]:
        """An entry of each batch. A too large batch becomes two entries, of half its rows each."""
        while batches:
            alike = next((k for k, batch in enumerate(batches) if self._too_large(batch)), len(batches))
            if alike:
                self._collect(batches[:alike])
                yield Payloads(self._messages(batches[:alike]), batches[0].num_rows)
                batches = batches[alike:]
            elif batches[0].num_rows == 1:
                raise too_large(batches[0].nbytes, f"a row{self._where}")
            else:
                half = batches[0].num_rows // 2
                yield from self._payloads([batches[0].slice(0, half)])
                yield from self._payloads([batches[0].slice(half)])
                batches = batches[1:]

    def statistics(self, size: int) -> str:
        """The statistics of all rows for a commit of ``size`` bytes of payload; empty if none."""
        return self._collected.text(size)

    def _collect(self, batches: list[pyarrow.RecordBatch]) -> None:
        import pyarrow

        if self._told:
            for at in range(0, len(batches), ENTRIES_OF_BLOCK):
                for_block = pyarrow.Table.from_batches(batches[at : at + ENTRIES_OF_BLOCK])
                self._collected.add(block_of(for_block, self._told))

    def _too_large(self, batch: pyarrow.RecordBatch) -> bool:
        return bool(batch.nbytes > (PAYLOAD_BYTES_MAX // 2 if batch.num_rows > 1 else VALUE_BYTES_MAX))

    def _messages(self, batches: list[pyarrow.RecordBatch]) -> pyarrow.Array:
        """Each batch as a message. Arrow's stream has the schema first, then the messages one after the other."""
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


class ArrowDecoder:
    """Makes rows of record batch messages."""

    def __init__(self, columns: StructType, log: str = "") -> None:
        """``log``: the log or lane, for errors."""
        import pyarrow

        self._log = log
        self._schema = arrow_schema(columns)
        self._as_bytes = pyarrow.schema([(field.name, _as_bytes(field.type)) for field in self._schema])
        self._head = self._schema.serialize().to_pybytes()
        """The head of a stream whose messages are entries."""
        ids = [pyarrow.field(name, pyarrow.int64()) for name in ID_COLUMNS]
        self._full = pyarrow.schema([*self._schema, *ids])

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """The rows of ``piece`` that are in ``entries``. Raises InvalidRowError after the rows before an invalid entry."""
        import numpy
        import pyarrow

        if len(entries) > 1 and entries.nbytes <= len(entries) * SMALL_ENTRY_BYTES:
            together = self._together(entries, piece)
            if together is not None:
                yield together
                return
        for payload, entry_id in zip(entries.column("payload"), entries.column("entry_id").to_pylist(), strict=True):
            before = (entry_id - piece.first_entry_id) * piece.rows_each - piece.skip
            try:
                batch = self._batch(payload.as_buffer(), piece.rows_each)
            except (InflationError, pyarrow.ArrowException) as error:
                position = piece.position + max(0, before)
                rows = min(piece.rows_each, piece.rows - before) + min(0, before)
                raise invalid_row(self._log, position, piece.ledger_id, entry_id, error, rows) from error
            yield self._part(piece, before, batch, numpy.full(batch.num_rows, entry_id, numpy.int64))

    def _part(
        self, piece: Piece, before: int, batch: pyarrow.RecordBatch, entry_ids: numpy.ndarray
    ) -> pyarrow.RecordBatch:
        """The rows of ``piece`` in ``batch``. ``before``: rows of the piece before the batch, negative if that begins earlier.
        ``entry_ids``: of each row."""
        import numpy

        low, high = max(0, -before), min(batch.num_rows, piece.rows - before)
        start, rows = piece.position + before + low, high - low
        ids = numpy.arange(start, start + rows), numpy.full(rows, piece.ledger_id), entry_ids[low:high]
        return self._with_ids(batch.slice(low, rows), *ids)

    def _with_ids(self, batch: pyarrow.RecordBatch, *ids: numpy.ndarray) -> pyarrow.RecordBatch:
        """``batch`` with the ID_COLUMNS."""
        import numpy
        import pyarrow

        own = [pyarrow.array(column.astype(numpy.int64, copy=False)) for column in ids]
        return pyarrow.RecordBatch.from_arrays([*batch.columns, *own], schema=self._full)

    def _together(self, entries: pyarrow.RecordBatch, piece: Piece) -> pyarrow.RecordBatch | None:
        """The rows of small entries, read as one stream. None if an entry is not as in the piece, or they inflate to too much at
        once: then each entry must be decoded alone."""
        import numpy
        import pyarrow

        counts = [piece.rows_each] * len(entries)
        batches = self._batches(entries, counts)
        if batches is None:
            return None
        ids = entries.column("entry_id").to_numpy()
        before = (int(ids[0]) - piece.first_entry_id) * piece.rows_each - piece.skip
        return self._part(piece, before, pyarrow.concat_batches(batches), numpy.repeat(ids, counts))

    def whole(self, entries: pyarrow.RecordBatch, counts: Sequence[int]) -> pyarrow.RecordBatch | None:
        """All rows of ``entries``; None if an entry's number of rows differs from ``counts``, or they inflate to too much at
        once."""
        import numpy
        import pyarrow

        batches = self._batches(entries, counts)
        if batches is None:
            return None
        ids = (numpy.repeat(entries.column(name).to_numpy(), counts) for name in ("ledger_id", "entry_id"))
        return self._with_ids(pyarrow.concat_batches(batches), numpy.zeros(sum(counts), numpy.int64), *ids)

    def _batch(self, message: pyarrow.Buffer, rows: int) -> pyarrow.RecordBatch:
        """The record batch of an entry. Raises InflationError or ArrowException if it is none of so many rows."""
        import pyarrow

        if (count := arrow_sizes(message, FRAME_BYTES_MAX, ROWS_EACH_MAX).rows) != rows:
            raise InflationError(f"an entry of {counted(count, 'row')}, where its commit has {rows:,}")
        batch = pyarrow.ipc.read_record_batch(message, self._schema)
        try:
            batch.validate(full=True)
        except pyarrow.ArrowInvalid:
            # Spark's texts may be no UTF-8.
            pyarrow.ipc.read_record_batch(message, self._as_bytes).validate(full=True)
        return batch

    def _batches(self, entries: pyarrow.RecordBatch, counts: Sequence[int]) -> list[pyarrow.RecordBatch] | None:
        """The entries' record batches, of so many rows each, read as one stream; None if one is invalid, or they inflate to too
        much at once."""
        import numpy
        import pyarrow

        payloads, room = entries.column("payload"), FRAME_BYTES_MAX
        try:
            for payload, rows in zip(payloads, counts, strict=True):
                sizes = arrow_sizes(payload.as_buffer(), room, ROWS_EACH_MAX)
                room -= sizes.inflated_bytes
                if sizes.rows != rows:
                    return None
            _, offsets, data = payloads.buffers()
            ends = numpy.frombuffer(offsets, numpy.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
            batches = list(pyarrow.ipc.open_stream(b"".join((self._head, memoryview(data)[ends[0] : ends[-1]]))))
            for batch in batches:
                batch.validate(full=True)
        except (InflationError, pyarrow.ArrowException):
            return None
        return batches if [batch.num_rows for batch in batches] == list(counts) else None


def _as_bytes(kind: pyarrow.DataType) -> pyarrow.DataType:
    """The type with bytes in place of texts; both have one layout."""
    import pyarrow
    import pyarrow.types as types

    if _is_text(kind):
        return pyarrow.binary() if types.is_string(kind) else pyarrow.large_binary()
    if types.is_map(kind):
        return pyarrow.map_(_as_bytes(kind.key_type), _as_bytes(kind.item_type))
    if types.is_list(kind):
        return pyarrow.list_(_as_bytes(kind.value_type))
    if types.is_struct(kind):
        return pyarrow.struct([(field.name, _as_bytes(field.type)) for field in kind])
    return kind


# -- The choice of encoder and decoder


def row_encoder(record: LogRecord, told: Sequence[str] | None = None) -> RowEncoder:
    """The encoder of a task that writes to the log. ``told``: the columns with statistics in the commit (``columns_told``)."""
    task, compression = TaskContext.get(), record.options.compression
    where = f" of partition {task.partitionId() if task is not None else '?'}"
    columns = columns_of(record.options)
    if columns is not None:
        return ArrowEncoder(columns, compression, told, where)
    return ValueEncoder(value_encoding(record), record.dictionary, where)


def row_decoder(ledger: LedgerMetadata, columns: StructType | None, dictionary: Callable[[], bytes]) -> RowDecoder:
    """The decoder of a data ledger's entries.

    ``columns``: those of a log of Arrow rows, else None. ``dictionary`` gives the log's dictionary; it is called only if the
    ledger needs it. Raises BookKeeperError for an encoding unknown to this version.
    """
    label = ledger.custom_metadata.get(ENCODING_LABEL, b"").decode()
    log = ledger.custom_metadata.get(LOG_LABEL, b"").decode(errors="replace")
    if label == ARROW and columns is not None:
        return ArrowDecoder(columns, log)
    where = f"data ledger {ledger.ledger_id}"
    is_stamped, encoding = parts_of(label, where)
    split = partial(split_stamps, where=where) if is_stamped else None
    return ValueDecoder(encoding, dictionary() if encoding == ZSTD_DICTIONARY else b"", split, log)

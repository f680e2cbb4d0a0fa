"""Entries of logs with row format ``value``: an entry is one row, its payload the row's ``value``, compressed or not.

Law: values are read exactly as they were written, in order. A compressed payload is a zstd frame of its own, made with the log's
dictionary, if any; an empty value is an empty payload. Arrow arrays are converted without a Python object for each row, except
that zstandard returns compressed and decompressed values one by one.

A value has at most VALUE_BYTES_MAX bytes, before compression as after. A payload that would inflate to more is no row, and of
other payloads about that many bytes are inflated together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import zstandard

from bookspark.errors import BookKeeperError, InvalidRowError
from bookspark.logs.rows.encodings import (
    ID_COLUMNS,
    PLAIN,
    VALUE_BYTES_MAX,
    ZSTD_DICTIONARY,
    Payloads,
    invalid_row,
    too_large,
)
from bookspark.logs.rows.splits import Piece
from bookspark.support.inflating import InflationError, inflated, inflated_bytes

if TYPE_CHECKING:
    import numpy
    import pyarrow

DICTIONARY_BYTES = 16 << 10
SAMPLES_MAX = 4000
"""Most values to train a dictionary on. More values take longer, and make no better dictionary."""
SAMPLE_BYTES_MAX = 2 << 20
_LEVEL = 1
NO_ROW = (InflationError, InvalidRowError)
"""Errors of entries that are no rows, before a reader names their place."""
_Values = zstandard.BufferWithSegmentsCollection


class ValueEncoder:
    """Encodes each value as an entry. ``encoding``: PLAIN, ZSTD or ZSTD_DICTIONARY; the last needs ``dictionary``. ``where``:
    place of the rows, for errors."""

    def __init__(self, encoding: str, dictionary: bytes = b"", where: str = "") -> None:
        self.encoding, self._where = encoding, where
        self._compressor = None if encoding == PLAIN else _compressor(dictionary)
        self._row = 0

    def add(self, rows: pyarrow.RecordBatch) -> Iterator[Payloads]:
        """The values of ``rows`` as entries. Raises, with the row's number, BookKeeperError for a null and EntryTooLargeError."""
        import numpy
        import pyarrow

        values = rows.column(0)
        if values.null_count:
            raise BookKeeperError(
                f"column 'value' is null in row {self._row + values.is_null().index(True).as_py()}{self._where}; an entry can be "
                "empty but not null: "
                "filter such rows out, or use coalesce(value, '')"
            )
        kind = values.type
        if pyarrow.types.is_large_string(kind) or pyarrow.types.is_large_binary(kind):
            values = values.cast(pyarrow.large_binary())
        values = values.cast(pyarrow.binary())
        if (lengths := _lengths(values)).max(initial=0) > VALUE_BYTES_MAX:
            large = int(numpy.argmax(lengths > VALUE_BYTES_MAX))
            raise too_large(int(lengths[large]), f"row {self._row + large}{self._where},")
        self._row += rows.num_rows
        if self._compressor is not None:
            values = _each(self._compressor.multi_compress_to_buffer, values)
        yield Payloads(values)

    def finish(self) -> Iterator[Payloads]:
        """No entries, because no value waits for others."""
        return iter(())

    def statistics(self, size: int) -> str:
        return ""


class ValueDecoder:
    """Decodes each entry as a row. ``encoding`` and ``dictionary``: as for ``ValueEncoder``. ``split``: separates stamps from
    values (``stamped_rows.split_stamps``). ``log``: the log or lane, for errors."""

    def __init__(
        self,
        encoding: str,
        dictionary: bytes = b"",
        split: Callable[[pyarrow.Array], tuple[dict[str, pyarrow.Array], pyarrow.Array]] | None = None,
        log: str = "",
    ) -> None:
        self._decompressor = None if encoding == PLAIN else _decompressor(dictionary)
        self._split, self._log = split, log

    def rows(self, entries: pyarrow.RecordBatch, piece: Piece) -> Iterator[pyarrow.RecordBatch]:
        """The rows of ``piece`` in ``entries``; for stamped rows with the stamps' columns. Raises InvalidRowError after the rows
        before an entry that is none."""
        before = piece.position - piece.first_entry_id
        at, tried = 0, entries.num_rows
        while at < entries.num_rows:
            try:
                batch = self._first_rows(entries.slice(at, tried), before)
            except NO_ROW as error:
                if tried == 1:
                    ledger_id, entry_id = (entries.column(name)[at].as_py() for name in ("ledger_id", "entry_id"))
                    raise invalid_row(self._log, before + entry_id, ledger_id, entry_id, error) from error
                tried = max(1, min(tried, entries.num_rows - at) // 2)
                continue
            yield batch
            at += batch.num_rows

    def whole(self, entries: pyarrow.RecordBatch, counts: Sequence[int]) -> pyarrow.RecordBatch | None:
        """One row for each entry; None also if an entry is no row, or they inflate to too much at once."""
        if any(count != 1 for count in counts):
            return None
        try:
            batch = self._first_rows(entries, 0)
        except NO_ROW:
            return None
        return batch if batch.num_rows == entries.num_rows else None

    def _first_rows(self, entries: pyarrow.RecordBatch, before: int) -> pyarrow.RecordBatch:
        """The first rows, of about VALUE_BYTES_MAX inflated bytes and at least one. Raises one of NO_ROW if an entry is none."""
        import pyarrow
        import pyarrow.compute

        values, count = entries.column("payload"), entries.num_rows
        own: dict[str, pyarrow.Array] = {}
        if self._split is not None:
            own, values = self._split(values)
        if self._decompressor is not None:
            count = _fitting(values)
            values = _each(self._decompress, values.slice(0, count))
        ids = entries.column("entry_id").slice(0, count)
        positions, ledgers = pyarrow.compute.add(ids, before), entries.column("ledger_id").slice(0, count)
        columns = [values, positions, ledgers, ids, *(column.slice(0, count) for column in own.values())]
        return pyarrow.RecordBatch.from_arrays(columns, names=["value", *ID_COLUMNS, *own])

    def _decompress(self, values: zstandard.BufferWithSegments) -> _Values:
        assert self._decompressor is not None
        try:
            return self._decompressor.multi_decompress_to_buffer(values)
        except zstandard.ZstdError as error:
            raise InflationError(f"a damaged zstd frame ({error})") from error


def _fitting(values: pyarrow.Array) -> int:
    """Number of the first values that inflate to VALUE_BYTES_MAX together, at least one. Raises InflationError if one inflates to
    more."""
    room = VALUE_BYTES_MAX
    for number, value in enumerate(values):
        frame = memoryview(value.as_buffer())
        size = inflated_bytes(frame, VALUE_BYTES_MAX) if frame else 0
        if size > room and number:
            return number
        room -= size
    return len(values)


def train_dictionary(rows: pyarrow.RecordBatch) -> bytes:
    """A dictionary for values like those in the first column of ``rows``. Empty if they are too few or have nothing in common."""
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


def _each(convert: Callable[[zstandard.BufferWithSegments], _Values], values: pyarrow.Array) -> pyarrow.Array:
    """A binary array with each value compressed or decompressed. Empty values stay empty."""
    import numpy
    import pyarrow

    _, offsets, data = values.buffers()
    ends = numpy.frombuffer(offsets, numpy.int32)[values.offset : values.offset + len(values) + 1].astype(numpy.uint64)
    lengths = _lengths(values).astype(numpy.uint64)
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


def _lengths(values: pyarrow.Array) -> numpy.ndarray:
    import numpy

    offsets = values.buffers()[1]
    if offsets is None or not len(values):
        return numpy.zeros(len(values), numpy.int32)
    lengths: numpy.ndarray = numpy.diff(
        numpy.frombuffer(offsets, numpy.int32)[values.offset : values.offset + len(values) + 1]
    )
    return lengths


def value_encoder(encoding: str, dictionary: bytes = b"") -> Callable[[bytes], bytes]:
    """A function from value to payload. For one thread. ``encoding`` and ``dictionary``: as for ``ValueEncoder``."""
    if encoding == PLAIN:
        return lambda value: value
    compress = _new_compressor(dictionary).compress
    return lambda value: compress(value) if value else value


def value_decoder(encoding: str, dictionary: Callable[[], bytes]) -> Callable[[bytes], bytes]:
    """A function from payload to value. For one thread. ``dictionary``: returns the log's, called if ``encoding`` needs it. It
    raises InflationError for a payload that is no value."""
    if encoding == PLAIN:
        return lambda payload: payload
    decompress = _new_decompressor(dictionary() if encoding == ZSTD_DICTIONARY else b"").decompress
    return lambda payload: inflated(payload, VALUE_BYTES_MAX, decompress) if payload else payload


def _new_compressor(dictionary: bytes) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=_LEVEL, dict_data=_parsed(dictionary))


def _new_decompressor(dictionary: bytes) -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(dict_data=_parsed(dictionary))


_compressor, _decompressor = lru_cache(maxsize=16)(_new_compressor), lru_cache(maxsize=16)(_new_decompressor)
"""For Spark's workers, which have one thread."""


def _parsed(dictionary: bytes) -> zstandard.ZstdCompressionDict | None:
    return zstandard.ZstdCompressionDict(dictionary) if dictionary else None

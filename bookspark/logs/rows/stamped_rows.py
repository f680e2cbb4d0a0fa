"""Entries of producers: a row with its stamp (``chain.stamps``), one by one and as Arrow arrays.

Law: after the stamp, the law of ``value_rows``. Arrays without keys and headers are split without a Python object for each row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from bookspark.logs.chain.stamps import FLAGS_AT, STAMP_BYTES, TIME_MS_MAX, Headers, stamp_of
from bookspark.logs.rows.encodings import APPENDED_AT, ROW_HEADERS, ROW_KEY, parts_of
from bookspark.logs.rows.value_rows import value_decoder

if TYPE_CHECKING:
    import pyarrow


class Row(NamedTuple):
    value: bytes
    time_ms: int | None = None
    """Time of the append, in ms since 1970; None if the entry has no stamp."""
    key: bytes | None = None
    headers: Headers = ()


def entry_decoder(label: str, dictionary: Callable[[], bytes], where: str) -> Callable[[bytes], Row]:
    """A function from payload to row, for one ledger. For one thread.

    ``label``: the ledger's encoding label. ``dictionary``: returns the log's dictionary, called if needed. ``where``: for errors.
    Raises BookKeeperError for an unknown encoding. The function raises one of ``value_rows.NO_ROW`` for an entry that is no row.
    """
    is_stamped, encoding = parts_of(label, where)
    decode = value_decoder(encoding, dictionary)
    if not is_stamped:
        return lambda payload: Row(decode(payload))

    def row(payload: bytes) -> Row:
        time_ms, _, key, headers, value = stamp_of(payload, where)
        return Row(decode(value), time_ms, key, headers)

    return row


def split_stamps(payloads: pyarrow.Array, where: str) -> tuple[dict[str, pyarrow.Array], pyarrow.Array]:
    """Split a binary array of rows into the columns of the stamps, and the values as the entries hold them.

    The columns are APPENDED_AT (timestamps in microseconds, in UTC), ROW_KEY (binary) and ROW_HEADERS (``headers_type``); the
    last two are null for rows without them. Raises InvalidRowError, with ``where``, for an entry that is no row.
    """
    import numpy
    import pyarrow
    import pyarrow.compute

    _, offsets, data = payloads.buffers()
    ends = numpy.frombuffer(offsets, numpy.int32)[payloads.offset : payloads.offset + len(payloads) + 1]
    starts, raw = ends[:-1].astype(numpy.int64), numpy.frombuffer(data if data is not None else b"", numpy.uint8)
    whole = not (ends[1:] - ends[:-1] < STAMP_BYTES).any()
    times = raw[starts[:, None] + numpy.arange(8)].view("<i8").reshape(-1) if whole else starts
    if not whole or raw[starts + FLAGS_AT].any() or (times < 0).any() or (times > TIME_MS_MAX).any():
        rows = [stamp_of(payload.as_py(), where) for payload in payloads]
        times = numpy.array([row.time_ms for row in rows], numpy.int64)
        keys = pyarrow.array([row.key for row in rows], pyarrow.binary())
        headers = pyarrow.array([_structs(row.headers) for row in rows], headers_type())
        values = pyarrow.array([row.value for row in rows], pyarrow.binary())
    else:
        keys, headers = pyarrow.nulls(len(payloads), pyarrow.binary()), pyarrow.nulls(len(payloads), headers_type())
        # (A slice without an end fails in pyarrow 26.)
        values = pyarrow.compute.binary_replace_slice(payloads, 0, STAMP_BYTES, b"")
    at = pyarrow.array(times * 1000).view(pyarrow.timestamp("us", tz="UTC"))
    return {APPENDED_AT: at, ROW_KEY: keys, ROW_HEADERS: headers}, values


def _structs(headers: Headers) -> list[dict[str, str | bytes]] | None:
    return [{"key": name, "value": value} for name, value in headers] or None


def headers_type() -> pyarrow.DataType:
    """Type of the column ROW_HEADERS: names and values in order, as in Spark's Kafka source."""
    import pyarrow

    return pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))

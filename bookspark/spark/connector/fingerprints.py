"""What tells a micro-batch from another one of its number: Spark's plan of it, and a sum over its rows.

Law: a sum depends on the rows and their number alone, not on their order, nor on how they lie in partitions and Arrow batches. It
is the sum modulo 2^64 of a hash of each value of each column; which values stand in one row is not part of it. Nobody forges rows
here: a checkpoint that was set back brings rows that have nothing to do with the former ones.

Spark writes the plan of a micro-batch to ``offsets/<batch>`` in its checkpoint, before it runs the batch, and replays what stands
there: a version, a line of JSON with the time of planning, and one line with the offset of each source. Spark gives a sink no
plan. So the file is read where the batch is committed, on the driver's host, if the checkpoint is in the local file system (which
may be a shared one). Where it can't be read (``hdfs:``, ``s3a:``), the sum over the rows has to do. The offset of a source of
files is a number, which does not say which files it stands for: the list of these is part of the digest of the offsets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from bookspark.protocol.logs.commits import FILES
from bookspark.spark.connector.checkpoint_files import files_read, listed_files, local_path, planned_offsets

if TYPE_CHECKING:
    import numpy
    import pyarrow

SUMS = 1 << 64
"""Sums are modulo this."""
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
_WORD_BITS = 64


class Plan(NamedTuple):
    """Digests of what Spark planned; empty if that can't be read."""

    whole: str = ""
    """Of the file."""
    offsets: str = ""
    """Of the sources' offsets in it."""


def plan_of(checkpoint: str, batch: int) -> Plan:
    """The plan of micro-batch ``batch`` in the Spark checkpoint at ``checkpoint``, a path or URI."""
    folder = local_path(checkpoint)
    if folder is None:
        return Plan()
    try:
        text = (folder / "offsets" / str(batch)).read_bytes()
    except OSError:
        return Plan()
    offsets = planned_offsets(text)
    if not offsets:
        return Plan(_digest(text))
    files = _files_of(folder, batch)
    return Plan(_digest(text), (FILES if files else "") + _digest(offsets + files))


def _files_of(folder: Path, batch: int) -> bytes:
    """Which files the offsets of sources of files stand for, in any order; empty if there is no such source.

    A source without new files stands there with those of its last offset.
    """
    found = set()
    for source, offsets in files_read(folder, batch).items():
        for number in offsets or range(offsets.stop - 1, offsets.stop):
            for name in (str(number), f"{number}.compact"):
                files = listed_files(folder / "sources" / str(source) / name)
                found |= {f"\n{source} {file.timestamp} {file.path}" for file in files if file.batchId == number}
    return "".join(sorted(found)).encode()


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]


def sum_of(rows: pyarrow.RecordBatch) -> int:
    """The sum over the rows, below SUMS. Sums of several batches add up, modulo SUMS."""
    return sum(_column_sum(column) * _odd(place) for place, column in enumerate(rows.columns)) % SUMS


def _odd(place: int) -> int:
    """A factor for each column, so that columns can't take each other's place."""
    return (place * 2 + 1) * _GOLDEN % SUMS | 1


def _column_sum(column: pyarrow.Array) -> int:
    import pyarrow

    there, kind = column.drop_null(), column.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        there = there.cast(pyarrow.large_binary())
    if pyarrow.types.is_large_binary(there.type) or pyarrow.types.is_binary(there.type):
        return sum(map(crc32, there.to_pylist())) + int(column.null_count)
    if pyarrow.types.is_primitive(kind) and kind.bit_width <= _WORD_BITS:
        return _number_sum(there.to_numpy(zero_copy_only=False)) + int(column.null_count)
    return sum(crc32(repr(value).encode()) for value in there.to_pylist()) + int(column.null_count)


def _number_sum(values: numpy.ndarray[Any, Any]) -> int:
    """The sum over numbers, times and truth values of one size, by the bits of each (splitmix64)."""
    import numpy

    words = numpy.ascontiguousarray(values).view(f"u{values.dtype.itemsize}").astype(numpy.uint64)
    words = words + numpy.uint64(_GOLDEN)
    words = (words ^ (words >> numpy.uint64(30))) * numpy.uint64(_FIRST)
    words = (words ^ (words >> numpy.uint64(27))) * numpy.uint64(_SECOND)
    return int((words ^ (words >> numpy.uint64(31))).sum())


class Summed:
    """Passes Arrow batches on, and counts and sums up their rows."""

    def __init__(self, batches: Iterator[pyarrow.RecordBatch]) -> None:
        self._batches = batches
        self.rows = self.values = 0

    def __iter__(self) -> Iterator[pyarrow.RecordBatch]:
        for some in self._batches:
            self.rows += some.num_rows
            self.values = (self.values + sum_of(some)) % SUMS
            yield some

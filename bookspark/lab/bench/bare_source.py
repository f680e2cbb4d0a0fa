"""``format("bare")``: a Python data source that does nothing, to measure the cost of Spark itself with such a source.

Law: each method does as little as Spark accepts, and the worker's garbage collector runs as rarely as with Bookspark. The
sink drops its rows. The source has a row for each micro-batch; in a batch it repeats an Arrow batch made once in a process.
Time beyond this is Bookspark's own; the lower times of Spark's built-in sinks and sources are out of reach for any Python
data source.

Options of the source: ``rows``, number of rows; ``partitions``, number of tasks; ``rowBytes``, size of a row;
``batchRows``, rows of an Arrow batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from bookspark.spark.process_client import spare_the_collector

if TYPE_CHECKING:
    import pyarrow


class BareSource(DataSource):
    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "bare"

    def schema(self) -> str:
        return "value binary"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _StreamReader()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return _Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For ``df.writeStream``: to plan, and to commit."""
        spare_the_collector()
        return _StreamWriter()


@cache
def _batch(rows: int, row_bytes: int) -> pyarrow.RecordBatch:
    import pyarrow

    spare_the_collector()
    return pyarrow.record_batch([pyarrow.array([os.urandom(row_bytes)] * rows, pyarrow.binary())], names=["value"])


class _Rows(InputPartition):
    pass


class _Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._rows, self._partitions = int(options["rows"]), int(options["partitions"])
        self._shape = int(options["batchRows"]), int(options["rowBytes"])

    def partitions(self) -> list[InputPartition]:
        each, more = divmod(self._rows, self._partitions)
        return [_Rows(each + (number < more)) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        left, batch = partition.value, _batch(*self._shape)
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


class _StreamReader(DataSourceStreamReader):
    def __init__(self) -> None:
        self._at = 0

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def latestOffset(self) -> dict[str, int]:
        self._at += 1
        return {"row": self._at}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self._at = end["row"]
        return [_Rows(end["row"] - start["row"])]

    def read(self, partition: InputPartition) -> Iterator[pyarrow.RecordBatch]:
        yield _batch(partition.value, 1)


def _taken(rows: Iterator[Any]) -> WriterCommitMessage:
    spare_the_collector()
    for _ in rows:
        pass
    return WriterCommitMessage()


class _Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return _taken(iterator)


class _StreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        return _taken(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

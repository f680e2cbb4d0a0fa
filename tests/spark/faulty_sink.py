"""The sink with injected faults ("blows"): a task that fails or hangs after its writes, a driver killed around the
commit entry.

A blow is a file in the folder that the environment variable ``BLOWS`` names. The process that removes the file deals
the blow, so it is dealt once. Spark's workers must be able to import this module."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bookspark.spark.connector.data_source import BookSparkDataSource
from bookspark.spark.connector.sink import LogStreamWriter
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from tests.awaiting import time_passes

BLOWS = "BOOKSPARK_TEST_BLOWS"
DRIVER = "driver.pid"
FAILING_TASK, SLOW_TASK, BEFORE_COMMIT, AFTER_COMMIT = "failing-task", "slow-task", "before-commit", "after-commit"
# A slow task leaves this file if Spark did not end it: it made no speculative copy, or the copy did not finish.
NEVER_COPIED = "never-copied"
_SLOW_SECONDS_MAX = 300.0


def take(blow: str) -> bool:
    """Whether the blow was pending; the caller has to deal it then."""
    try:
        (Path(os.environ[BLOWS]) / blow).unlink()
    except FileNotFoundError:
        return False
    return True


class FaultySink(BookSparkDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return _FaultyWriter(*self._sink(schema, overwrite, lambda options: options))


class _FaultyWriter(LogStreamWriter):
    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            if take(FAILING_TASK):
                raise RuntimeError("made to fail after its writes")
            if take(SLOW_TASK):
                # Spark ends this attempt once its copy is done.
                time_passes(_SLOW_SECONDS_MAX)
                (Path(os.environ[BLOWS]) / NEVER_COPIED).touch()
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        append = LedgerHandle.append

        def append_or_die(handle: LedgerHandle, payload: Any) -> int:
            commits = payload.startswith(b'{"format":1,"commit"')
            if commits and take(BEFORE_COMMIT):
                _kill_the_driver()
            entry_id = append(handle, payload)
            if commits and take(AFTER_COMMIT):
                _kill_the_driver()
            return entry_id

        with mock.patch.object(LedgerHandle, "append", append_or_die):
            super().commit(messages, batchId)


def _kill_the_driver() -> None:
    """Kill the JVM, then this worker of it."""
    os.kill(int((Path(os.environ[BLOWS]) / DRIVER).read_text()), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)

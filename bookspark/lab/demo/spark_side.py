"""The main job's second Spark application, in this process: ingest, read back, compare.

Law: Spark computes three figures of the input and of the log: count, bytes, and the sum of all lines' 64-bit hashes. The
sum is independent of the order, and changes with a lost, doubled or altered line. ``inputs`` computes the input's count and
bytes again, without Spark.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bookspark.errors import BookKeeperError
from bookspark.lab.demo.inputs import Content
from bookspark.spark.short_jobs import plain_reason
from bookspark.support.plain_text import size_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from bookspark.lab.demo.event_logs import EventLogStager

LOG = "events"
_LOOK_SECONDS = 0.25
_BATCH_BYTES = 32 << 20
_FOLLOW_SECONDS_MIN = 15.0
_FOLLOW_BATCHES_MIN = 5
_FOLLOW_SECONDS_MAX = 600.0
"""Ends a hanging query, so it is far above the need of a busy host."""
_STOP_SECONDS = 30.0
_GATEWAY_MARK = "_PYSPARK_DRIVER_CONN_INFO_PATH"
"""An environment variable of the JVM that pyspark starts."""

log = logging.getLogger(__name__)


class ComparisonError(BookKeeperError):
    """The log's content differs from the input."""


@dataclass(frozen=True)
class Digest:
    """Figures of a multiset of lines."""

    lines: int
    size: int
    """Bytes of the lines, without line breaks."""
    hashes: Decimal
    """Sum of the lines' 64-bit hashes."""


@dataclass(frozen=True)
class Ingested:
    """The work of a streaming query."""

    batches: int
    rows: int
    seconds: float
    """Time of the micro-batches, without the pauses between them."""


@contextmanager
def spark_session(zookeeper: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session on ``local[2]``. Its JVM ends with the block. An error in the block becomes a BookKeeperError of one line:
    an error of Spark loses its message with the JVM."""
    from bookspark.spark.session import session

    try:
        yield session("bookspark main job", master="local[2]", zookeeper=zookeeper, **conf)
    except BookKeeperError:
        raise
    except Exception as error:
        log.error("%s: %s", type(error).__name__, error)
        raise BookKeeperError(plain_reason(error)) from error
    finally:
        _end_spark()


def ingest_folder(
    spark: SparkSession, source: Path, checkpoint: Path, expected: Content, tell: Callable[[str], None]
) -> Ingested:
    """Stream the files in ``source`` into the log until all are written. ``tell`` gets the progress."""
    query = _stream(spark, source, checkpoint).trigger(availableNow=True).start()
    with _stopped(query):
        while query.isActive:
            query.awaitTermination(_LOOK_SECONDS)
            done = _progress_of(query)
            tell(f"{done.rows:,} of {expected.lines:,} lines in {done.batches} micro-batches")
        return _progress_of(query)


def ingest_event_logs(
    spark: SparkSession, stager: EventLogStager, source: Path, checkpoint: Path, tell: Callable[[str], None]
) -> Ingested:
    """Stream the files that ``stager`` puts into ``source``: for at least 15 s and five micro-batches during staging, then
    the rest. ``tell`` gets the progress. Raises BookKeeperError if five micro-batches take more than ten minutes."""
    began = time.monotonic()
    query = _stream(spark, source, checkpoint).trigger(processingTime="1 second").start()
    with _stopped(query):
        done = _progress_of(query)
        while time.monotonic() - began < _FOLLOW_SECONDS_MIN or done.batches < _FOLLOW_BATCHES_MIN:
            if time.monotonic() - began > _FOLLOW_SECONDS_MAX:
                raise BookKeeperError(
                    f"only {done.batches} micro-batches in {_FOLLOW_SECONDS_MAX:g} s; see the run's log"
                )
            query.awaitTermination(_LOOK_SECONDS)
            done = _progress_of(query)
            tell(f"{done.rows:,} lines in {done.batches} micro-batches")
        stager.stop()
        query.processAllAvailable()
        done = _progress_of(query)
        tell(f"{done.rows:,} lines in {done.batches} micro-batches")
        return done


def digest_of_input(spark: SparkSession, source: Path) -> Digest:
    """Figures of the files in ``source``, by Spark."""
    return _digest(spark.read.text(str(source), lineSep="\n").selectExpr("CAST(value AS BINARY) AS value"))


def digest_of_log(spark: SparkSession) -> Digest:
    """Figures of the log's rows."""
    return _digest(spark.read.format("bookspark").option("log", LOG).option("minPartitions", 2).load())


def compare(counted: Content, read: Digest, stored: Digest) -> None:
    """Compare Python's count of the input, Spark's figures of it and the log's figures. Raises ComparisonError if they differ."""
    if (counted.lines, counted.size) != (read.lines, read.size):
        raise ComparisonError(
            f"Spark reads {read.lines:,} lines of {read.size:,} bytes in the input, and Python {counted.lines:,} lines of "
            f"{counted.size:,} bytes: was it changed meanwhile? Run again when nobody writes there"
        )
    if read != stored:
        raise ComparisonError(
            f"log {LOG!r} differs from its input: {stored.lines:,} entries of {stored.size:,} bytes, hash sum {stored.hashes}; "
            f"the input has {read.lines:,} lines of {read.size:,} bytes, hash sum {read.hashes}. Keep the run's folder and "
            "report this"
        )


def rate_text(rows: int, size: int, seconds: float) -> str:
    """``12.3 MB/s, 4,567 entries/s``."""
    seconds = max(seconds, 0.001)
    return f"{size_text(size / seconds)}/s, {rows / seconds:,.0f} entries/s"


def _stream(spark: SparkSession, source: Path, checkpoint: Path) -> DataStreamWriter:
    # The size limit gives visible progress and sync groups and partitions of a sensible size. Lines end with "\n" only, so
    # that the ingested bytes are known exactly.
    reader = spark.readStream.option("lineSep", "\n").option("maxBytesPerTrigger", _BATCH_BYTES)
    lines = reader.text(str(source)).selectExpr("CAST(value AS BINARY) AS value")
    return lines.writeStream.format("bookspark").option("log", LOG).option("checkpointLocation", str(checkpoint))


@contextmanager
def _stopped(query: StreamingQuery) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # The end of the session stops the query.
        raise
    except BaseException:
        with contextlib.suppress(Exception):
            query.stop()
        raise
    else:
        query.stop()


def _progress_of(query: StreamingQuery) -> Ingested:
    """The query's work so far. Raises the error of a failed query."""
    error = query.exception()
    if error is not None:
        raise error
    batches = {progress["batchId"]: progress for progress in query.recentProgress if progress["numInputRows"]}
    milliseconds = sum(progress["durationMs"].get("triggerExecution", 0) for progress in batches.values())
    rows = sum(progress["numInputRows"] for progress in batches.values())
    return Ingested(len(batches), rows, milliseconds / 1000)


def _digest(lines: DataFrame) -> Digest:
    row = lines.selectExpr(
        "COUNT(*) AS lines",
        "COALESCE(SUM(OCTET_LENGTH(value)), 0) AS size",
        "COALESCE(SUM(CAST(XXHASH64(value) AS DECIMAL(20, 0))), 0) AS hashes",
    ).first()
    assert row is not None
    return Digest(row.lines, row.size, row.hashes)


def _end_spark() -> None:
    """Stop the session, if any, and its JVM. Spark would keep the JVM until this process ends."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway = SparkContext._gateway
    if gateway is None:
        _end_gateways_begun()
        return
    stopping = threading.Thread(target=_stop_session, args=(SparkSession,), name="stopping Spark", daemon=True)
    stopping.start()
    stopping.join(_STOP_SECONDS)
    with contextlib.suppress(Exception):
        gateway.shutdown()
    jvm: subprocess.Popen[bytes] = gateway.proc
    assert jvm.stdin is not None
    jvm.stdin.close()
    try:
        jvm.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        jvm.kill()
        jvm.wait()
    SparkContext._gateway = SparkContext._jvm = None


def _end_gateways_begun() -> None:
    """End the JVM of a session whose start was interrupted: no Python object refers to it."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if _GATEWAY_MARK in child.environ():
                child.kill()
                child.wait()


def _stop_session(kind: type[SparkSession]) -> None:
    from pyspark import SparkContext

    # A hanging JVM is killed later.
    with contextlib.suppress(Exception):
        session = kind._instantiatedSession
        if session is not None:
            session.stop()
        elif SparkContext._active_spark_context is not None:
            SparkContext._active_spark_context.stop()

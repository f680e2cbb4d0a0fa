"""The main job's second Spark application, in this process: a query into the log, a query out of it, and the comparison.

Law: Spark computes three figures of the input, of the log, and of the rows streamed out of the log: count, bytes, and the sum
of all lines' 64-bit hashes. The sum is independent of the order, and changes with a lost, doubled or altered line. ``inputs``
computes the input's count and bytes again, without Spark.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    from pyspark.sql.streaming.listener import StreamingQueryProgress

_LOOK_SECONDS = 0.25
_BATCHES = 25
"""A run has about so many micro-batches, in these bounds of their size: visible progress, and sync groups of a sensible size."""
_BATCH_BYTES_MIN, _BATCH_BYTES_MAX = 1 << 20, 32 << 20
_LAST_BATCHES = 4
_CATCH_UP_SECONDS_MAX = 600.0
"""Ends a hanging query, so it is far above the need of a busy host."""
_OBSERVED = "digest"
_DIGEST = (
    "COUNT(*) AS lines",
    "COALESCE(SUM(OCTET_LENGTH(value)), 0) AS size",
    # A text, because a query's progress is JSON, whose readers round such numbers.
    "CAST(COALESCE(SUM(CAST(XXHASH64(value) AS DECIMAL(20, 0))), 0) AS STRING) AS hashes",
)
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
class Work:
    """The work of a streaming query."""

    batches: int
    rows: int
    seconds: float
    """Time of the micro-batches, without the pauses between them."""
    rows_per_second: float
    """Rate over the last micro-batches."""
    digest: Digest
    """Figures of the rows, of the query that reads the log."""


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


def stream(
    spark: SparkSession,
    log_name: str,
    source: Path,
    checkpoints: Path,
    expected: Content,
    look: Callable[[Work, Work], None],
) -> tuple[Work, Work]:
    """Stream the files in ``source`` into the log, and the log's rows out again meanwhile, until both have all of them. ``look``
    gets the work of both queries, a few times a second. Raises BookKeeperError if rows are missing in the second query ten
    minutes after the end of the first."""
    from pyspark.sql.functions import expr

    # Lines end with "\n" only, so that the ingested bytes are known exactly.
    size = min(_BATCH_BYTES_MAX, max(_BATCH_BYTES_MIN, expected.size // _BATCHES))
    lines = spark.readStream.option("lineSep", "\n").option("maxBytesPerTrigger", size).text(str(source))
    values = lines.selectExpr("CAST(value AS BINARY) AS value").writeStream.format("bookspark").option("log", log_name)
    rows = spark.readStream.format("bookspark").option("log", log_name).load()
    # The sink ``noop`` keeps nothing; the digest comes with the query's progress.
    seen = rows.selectExpr("value").observe(_OBSERVED, *(expr(text) for text in _DIGEST)).writeStream.format("noop")
    queries = (
        values.option("checkpointLocation", str(checkpoints / "in")).trigger(availableNow=True).start(),
        seen.option("checkpointLocation", str(checkpoints / "out")).start(),
    )
    written, read, deadline = _Batches(queries[0]), _Batches(queries[1]), 0.0
    with _stopped(queries):
        while True:
            ended = not queries[0].isActive
            works = written.look(), read.look()
            look(*works)
            if ended:
                deadline = deadline or time.monotonic() + _CATCH_UP_SECONDS_MAX
                if works[1].rows >= works[0].rows:
                    return works
                if time.monotonic() > deadline:
                    raise BookKeeperError(
                        f"a query that reads log {log_name!r} has {works[1].rows:,} of {works[0].rows:,} rows after "
                        f"{_CATCH_UP_SECONDS_MAX:g} s; see the run's log"
                    )
            queries[1].awaitTermination(_LOOK_SECONDS)


def digest_of_input(spark: SparkSession, source: Path) -> Digest:
    """Figures of the files in ``source``, by Spark."""
    return _digest(spark.read.text(str(source), lineSep="\n").selectExpr("CAST(value AS BINARY) AS value"))


def digest_of_log(spark: SparkSession, log_name: str) -> Digest:
    """Figures of the log's rows."""
    return _digest(rows_of_log(spark, log_name))


def rows_of_log(spark: SparkSession, log_name: str) -> DataFrame:
    return spark.read.format("bookspark").option("log", log_name).option("minPartitions", 2).load()


def compare(log_name: str, counted: Content, read: Digest, stored: Digest, streamed: Digest) -> None:
    """Compare Python's count of the input, Spark's figures of it, those of the log, and those of the rows that a query streamed
    out of it. Raises ComparisonError if they differ."""
    if (counted.lines, counted.size) != (read.lines, read.size):
        raise ComparisonError(
            f"Spark reads {read.lines:,} lines of {read.size:,} bytes in the input, and Python {counted.lines:,} lines of "
            f"{counted.size:,} bytes: was it changed meanwhile? Run again when nobody writes there"
        )
    for title, figures in ((f"log {log_name!r}", stored), (f"the stream out of log {log_name!r}", streamed)):
        if read != figures:
            raise ComparisonError(
                f"{title} differs from its input: {figures.lines:,} rows of {figures.size:,} bytes, hash sum {figures.hashes}; "
                f"the input has {read.lines:,} lines of {read.size:,} bytes, hash sum {read.hashes}. Keep the run's folder and "
                "report this"
            )


def rate_text(rows: int, size: int, seconds: float) -> str:
    """``12.3 MB/s, 4,567 rows/s``."""
    seconds = max(seconds, 0.001)
    return f"{size_text(size / seconds)}/s, {rows / seconds:,.0f} rows/s"


class _Batches:
    """The finished micro-batches of a query. Spark forgets all but the last hundred."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._batches: dict[int, StreamingQueryProgress] = {}

    def look(self) -> Work:
        """The query's work so far. Raises the error of a failed query."""
        error = self._query.exception()
        if error is not None:
            raise error
        self._batches |= {batch["batchId"]: batch for batch in self._query.recentProgress if batch["numInputRows"]}
        batches = list(self._batches.values())
        seen = [batch["observedMetrics"][_OBSERVED] for batch in batches if _OBSERVED in batch["observedMetrics"]]
        last = batches[-_LAST_BATCHES:]
        hashes = sum((Decimal(one.hashes) for one in seen), Decimal())
        digest = Digest(sum(one.lines for one in seen), sum(one.size for one in seen), hashes)
        return Work(len(batches), _rows(batches), _seconds(batches), _rows(last) / max(_seconds(last), 0.001), digest)


def _rows(batches: Sequence[StreamingQueryProgress]) -> int:
    return sum(batch["numInputRows"] for batch in batches)


def _seconds(batches: Sequence[StreamingQueryProgress]) -> float:
    milliseconds: int = sum(batch["durationMs"].get("triggerExecution", 0) for batch in batches)
    return milliseconds / 1000


@contextmanager
def _stopped(queries: Sequence[StreamingQuery]) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        # The end of the session stops the queries.
        raise
    except BaseException:
        for query in queries:
            with contextlib.suppress(Exception):
                query.stop()
        raise
    else:
        for query in queries:
            query.stop()


def _digest(lines: DataFrame) -> Digest:
    row = lines.selectExpr(*_DIGEST).first()
    assert row is not None
    return Digest(row.lines, row.size, Decimal(row.hashes))


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

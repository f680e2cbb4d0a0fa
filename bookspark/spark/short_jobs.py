"""Spark for the command line's short jobs over small tables, Spark's errors in one line, and the main function of packaged jobs.

Spark's defaults pay off in long jobs over much data. In a short job they are most of the work: on two cores, the settings here
halve the CPU time of the main job and of an audit. Larger jobs use ``spark-submit`` with the packaged jobs.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from bookspark.errors import BookKeeperError
from bookspark.support.plain_text import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives for minutes: a quick compiler, and a collector without threads."""

SMALL_TABLES = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""For queries over few rows: one partition, no generated code."""

_REASON_CHARACTERS_MAX = 500
_STREAM_FAILED = re.compile(r"^.*terminated with exception: (.*?)(?: SQLSTATE: \w+)?$")
_JAVA_CALL = re.compile(r"^An error occurred while calling \S+\s*: ")
_OUR_ERROR = re.compile(r"\bbookspark(?:\.\w+)+: (.+)")


@contextmanager
def quiet_session(name: str) -> Iterator[SparkSession]:
    """A silent session on ``local[2]`` for small tables. Spark's errors become a BookKeeperError of one line, which names a file
    with the details."""
    from bookspark.spark.session import SPARK_ERRORS, session

    keep = False
    with tempfile.NamedTemporaryFile(prefix="bookspark-spark-", suffix=".log", delete=False) as log:
        # The JVM and Spark's workers inherit this descriptor and keep it open.
        with _standard_error_to(log.fileno()):
            spark = session(name, master="local[2]", **SMALL_TABLES, **{"spark.driver.extraJavaOptions": QUICK_JVM})
        try:
            yield spark
        except SPARK_ERRORS as error:
            keep = True
            raise BookKeeperError(f"{plain_reason(error)} (details: {log.name})") from error
        finally:
            spark.stop()
            if not keep:
                os.unlink(log.name)


@contextmanager
def _standard_error_to(descriptor: int) -> Iterator[None]:
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(saved, 2)
        os.close(saved)


def plain_reason(error: BaseException) -> str:
    """A line for people from any error. Bookspark's own error keeps its message, also inside Spark's traceback of a worker."""
    text = _JAVA_CALL.sub("", str(error))
    if isinstance(error, BookKeeperError | OSError):
        return one_line(error)
    if ours := _OUR_ERROR.findall(text):
        return str(ours[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = _STREAM_FAILED.sub(r"\1", lines[0]) if lines else ""
    return f"{type(error).__name__}: {first}"[:_REASON_CHARACTERS_MAX]


def run_job(name: str, main: Callable[..., None]) -> NoReturn:
    """Run ``main`` of the packaged job ``name`` with the command line's arguments, and exit with the status of
    ``bookspark.support.command_line``. Errors of Bookspark and Spark print one line, others a traceback.

    Help is plain text, because rich's markup would take the ``[/chroot]`` of an address for a tag.
    """
    import typer

    from bookspark.spark.session import SPARK_ERRORS
    from bookspark.support.command_line import exit_status, judged

    def tell(error: Exception) -> None:
        if isinstance(error, (BookKeeperError, *SPARK_ERRORS)):
            print(f"bookspark {name}: {plain_reason(error)}", file=sys.stderr)
        else:
            traceback.print_exception(error)

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command()(judged(main))
    sys.exit(exit_status(app, tell))

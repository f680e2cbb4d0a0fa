"""Writes from other Python threads: the thread gets the DataFrame's session before Spark looks for the format.

For a write, Spark 4.2 looks a Python data source up in the session that is active in the calling thread, and a thread that
Python started has none: a write failed with "bookspark.DefaultSource" (class not found). Reads and SQL activate their session
themselves, and so does ``createDataFrame``. The same is done here before ``save``, ``start`` and ``toTable``, whatever the
format is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from pyspark.sql import DataFrameWriter, SparkSession
from pyspark.sql.streaming import DataStreamWriter

_done = False


def activate_before_writes() -> None:
    """Make writes of this process activate their session first. Later calls do nothing."""
    global _done
    if not _done:
        _done = True
        for kind, name in ((DataFrameWriter, "save"), (DataStreamWriter, "start"), (DataStreamWriter, "toTable")):
            setattr(kind, name, _activating(getattr(kind, name)))


def _activating(write: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(write)
    def activated(writer: Any, *arguments: Any, **options: Any) -> Any:
        spark = writer._spark
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        return write(writer, *arguments, **options)

    return activated

"""The end of a Python worker of Spark: after an error of the data source, and after its query.

Law: a worker ends in order. If a method that Spark calls raises, the worker closes its idle handles first. A BookKeeperError
reaches the user as its one sentence, because it says itself what was wrong; any other exception is a defect, and keeps its
traceback. A worker whose query has ended prints nothing.

Seen on Spark 4.2: a worker passes on one error and ends, so the switch for its traceback (the environment variable behind
``spark.sql.execution.pyspark.udf.hideTraceback.enabled``) concerns no other error. The process of a streaming source ends when
Spark closes the connection. It tries to report that over the closed connection, and without ``SilentEnd`` the traceback of a
broken pipe comes to the terminal of a successful query. If ``streamReader`` raises there, Spark's own code fails at a variable
without a value and passes on that error, so ``RefusedStream`` raises in its place.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from bookspark.errors import BookKeeperError
from bookspark.spark.idle_closing import closed_if_it_fails
from bookspark.spark.memory_limit import named_limit
from bookspark.spark.worker_daemon import end_silently

Kind = TypeVar("Kind", bound=type)

_OF_A_SOURCE = ("schema", "reader", "streamReader", "writer", "streamWriter")
_OF_A_READER = ("partitions", "read", "initialOffset", "latestOffset", "reportLatestOffset", "commit")
_OF_A_STREAM = ("getDefaultReadLimit", "prepareForTriggerAvailableNow")
_OF_A_WRITER = ("write", "commit")
_CALLED_BY_SPARK = {*_OF_A_SOURCE, *_OF_A_READER, *_OF_A_STREAM, *_OF_A_WRITER}

_HIDDEN = "SPARK_HIDE_TRACEBACK"
"""Spark's variable: a worker that has it passes on errors without their traceback."""
_WORKERS = "PYTHON_WORKER_FACTORY_"
"""Beginning of environment variables that only Spark's Python workers have."""
_SOURCES_PROCESS = "pyspark.sql.streaming.python_streaming_source_runner"


def ends_in_order(kind: Kind) -> Kind:
    """Decorate a class of the data source: its methods that Spark calls end their worker in order if they raise."""
    for name in _CALLED_BY_SPARK:
        method = getattr(kind, name, None)
        if method is not None and not method.__module__.startswith("pyspark."):
            setattr(kind, name, _orderly(method))
    return kind


def _orderly(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def orderly(*arguments: Any, **named: Any) -> Any:
        end_silently()
        with _in_order():
            result = method(*arguments, **named)
        return _each(result) if isinstance(result, Iterator) else result

    return orderly


def _each(items: Iterator[Any]) -> Iterator[Any]:
    while True:
        with _in_order():
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


@contextmanager
def _in_order() -> Iterator[None]:
    try:
        with closed_if_it_fails(), named_limit():
            yield
    except BookKeeperError:
        if any(name.startswith(_WORKERS) for name in os.environ):
            os.environ[_HIDDEN] = "1"
        raise


class SilentEnd:
    """The end of a streaming source."""

    def stop(self) -> None:
        """Spark calls it last, after the query or an error. A closed connection is no error of the process then."""
        if in_a_sources_process():
            sys.excepthook = _unless_hung_up


@ends_in_order
class RefusedStream(SilentEnd, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming source that could not be made. Its first use raises the error."""

    def __init__(self, error: BookKeeperError) -> None:
        self._error = error

    def latestOffset(self, *arguments: Any, **named: Any) -> NoReturn:
        raise self._error

    initialOffset = getDefaultReadLimit = prepareForTriggerAvailableNow = partitions = read = latestOffset


def in_a_sources_process() -> bool:
    """Whether this is the process that Spark starts for a streaming source."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == _SOURCES_PROCESS


def _unless_hung_up(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(kind, ConnectionError):
        sys.__excepthook__(kind, error, traceback)

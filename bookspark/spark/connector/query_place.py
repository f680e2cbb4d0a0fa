"""Which query a stream of a log belongs to, and how far it is, told to the cluster (``logs.readers``).

Law: best effort, beside the query. Spark tells the driver's side of a Python stream neither the query's id nor its name, but it
tells its tasks. So the first partition of a micro-batch carries the stream's record, and the task that reads it writes down whose
stream it is, until the driver's side has seen that. A query that has had no micro-batch since its start has no name yet.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pyspark import TaskContext

from bookspark.logs.readers.registration import Registration, introduce
from bookspark.protocol.logs.reader_record import ReaderKind, ReaderRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from bookspark.store.client import BookKeeper

_introduced: set[tuple[int, str]] = set()
"""(pid, record) of what this process has told."""
_INTRODUCED_MAX = 1000


class Stranger(NamedTuple):
    """A stream whose query is not known yet."""

    name: str
    """Of its record."""
    record: ReaderRecord


class QueryPlace:
    """On the driver's side: where the stream is. ``client``: gives the process's client. ``log``: None for ledgers, whose readers
    tell nothing."""

    def __init__(self, client: Callable[[], BookKeeper], log: str | None) -> None:
        self._client, self._log = client, log
        self._registration: Registration | None = None

    def tell(self, offset: Mapping[str, int]) -> None:
        """The query is done with all rows before ``offset``. Never blocks."""
        if self._registration is not None:
            self._registration.moved(offset)
        elif self._log is not None:
            self._registration = Registration(self._client(), self._log, ReaderKind.SPARK, offset)

    def tell_now(self) -> None:
        """The query may end at any moment, and Spark kills this process then. Waits five seconds at most."""
        if self._registration is not None:
            self._registration.tell_now()

    @property
    def stranger(self) -> Stranger | None:
        """What a task of the query is to introduce; None if nothing."""
        if self._registration is None or self._registration.record.reader:
            return None
        return Stranger(self._registration.name, self._registration.record)


def introduce_query(bookkeeper: BookKeeper, stranger: Stranger) -> None:
    """In a task of the query: write down whose stream it is. Never blocks."""
    context, mark = TaskContext.get(), (os.getpid(), stranger.name)
    query = context.getLocalProperty("sql.streaming.queryId") if context else None
    if context is None or not query or mark in _introduced:
        return
    if len(_introduced) >= _INTRODUCED_MAX:
        _introduced.clear()
    _introduced.add(mark)
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    name = _name_in(context.getLocalProperty("spark.job.description") or "", query)
    known = replace(stranger.record, reader=query, run=run, name=name)
    introduce(bookkeeper, stranger.name, known)


def _name_in(description: str, query: str) -> str:
    """The name of the query, which stands before its id."""
    before, found, _ = description.partition(f"id = {query}")
    return before.removesuffix("<br/>").strip() if found else ""

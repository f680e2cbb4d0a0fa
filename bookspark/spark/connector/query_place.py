"""Records in the cluster which query a stream of a log belongs to, and how far it is (``logs.readers``).

Law: best effort, beside the query. Spark gives the query's id and name to tasks only. So the first partition of a micro-batch
carries the stream's record, and its task adds the query to it, until the driver's side has seen that. Before its first
micro-batch since its start, a query has no name there.
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
"""(pid, record) of the streams that this process has introduced."""
_INTRODUCED_MAX = 1000


class Stranger(NamedTuple):
    """A stream whose query is not known yet."""

    name: str
    record: ReaderRecord


class QueryPlace:
    """The place of the stream, on the driver's side. ``client``: gives the process's client. ``key``: gives the key of the log;
    None for ledgers, whose readers report no place."""

    def __init__(self, client: Callable[[], BookKeeper], key: Callable[[], str] | None) -> None:
        self._client, self._key = client, key
        self._registration: Registration | None = None
        self._asked = False

    def tell(self, offset: Mapping[str, int]) -> None:
        """Record that the query is done with all rows before ``offset``. Never blocks."""
        if self._registration is not None:
            self._registration.moved(offset)
        elif self._key is not None:
            self._registration = Registration(self._client(), self._key(), ReaderKind.SPARK, offset)

    def done(self) -> None:
        """Record at once that the query has read all that it was started for (``availableNow``): it may end, and Spark then kills
        this process. Waits five seconds at most."""
        if self._registration is not None:
            self._registration.close(kept=self._asked)

    @property
    def stranger(self) -> Stranger | None:
        """The stream that a task of the query is to introduce, or None."""
        if self._registration is None or self._registration.record.reader:
            return None
        self._asked = True
        return Stranger(self._registration.name, self._registration.record)


def introduce_query(bookkeeper: BookKeeper, stranger: Stranger) -> None:
    """In a task of the query: add the query to the stream's record. Never blocks."""
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
    """The query's name, which precedes its id."""
    before, found, _ = description.partition(f"id = {query}")
    return before.removesuffix("<br/>").strip() if found else ""

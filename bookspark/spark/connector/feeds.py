"""Feeds: what can be read from one offset to another, now or as it grows. A feed is a log or a set of ledgers.

Law: an offset names the same entries for ever, and proves that the entries before it are confirmed. All entries between two
offsets are planned, or there is a DataLossError that says which are missing and why. With ``failOnDataLoss`` false, missing
entries are logged with their number and left out. Only entries that were truncated or deleted are ever left out; what can't be
read at the moment is an error. Entries that planning leaves out are counted too (``PassedOver``), and the query's progress shows
the count. What a task finds deleted is in its executor's log.

Offsets are what Spark keeps in its checkpoints, as JSON:

* of a log ``{"position": rows before it, "log": when the log was created, in ms since 1970}``: the second value tells the log
  from a later one of the same name;
* of ledgers ``{"<ledger id>": the next entry id, …}``.

Source: docs/decisions/logs.md. The meaning of ``failOnDataLoss``, and the share of each ledger in a limited micro-batch, are
those of Spark's Kafka source.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Protocol

from bookspark.errors import ConfigurationError, DataLossError, NoSuchLedgerError, ReadError
from bookspark.protocol.logs.commits import EntryRange
from bookspark.spark.connector.connector_options import SourceOptions
from bookspark.spark.logs.reader import LogReader, PlacedCommit, made_anew
from bookspark.spark.logs.splits import SizedPiece, positioned, rows_within
from bookspark.spark.process_client import client

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.client.reading.read_handle import ReadHandle

log = logging.getLogger(__name__)

Offset = dict[str, int]
"""A place in a feed, as Spark keeps it."""
_AT_THE_END = (1 << 63) - 1


class Limit(NamedTuple):
    """How much one micro-batch takes at most; it takes one entry at least. None: no limit."""

    rows: int | None = None
    """Rows of a log, or entries of ledgers."""
    size: int | None = None
    """Bytes of payload."""


class Feed(Protocol):
    """A log, or ledgers."""

    passed_over: PassedOver
    """The rows that planning left out."""

    def earliest(self) -> Offset:
        """The offset before the first entry that is still there."""

    def newest(self) -> Offset:
        """The offset after the last entry that is confirmed now. Raises DataLossError, ReadError and MetadataStoreError."""

    def wait(self, seconds: float) -> None:
        """Return when there may be more entries than the last ``newest`` told, or after ``seconds``."""

    def check(self, offset: Offset) -> None:
        """Raise DataLossError if ``offset`` is that of another log of this name, ConfigurationError if it has another form."""

    def limited(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        """``end``, or an earlier offset, so that no more than ``limit`` lies between ``start`` and the result."""

    def pieces(self, start: Offset, end: Offset) -> list[SizedPiece]:
        """The entries between two offsets, in order, with their bytes. Raises DataLossError, ReadError and MetadataStoreError."""


def feed(options: SourceOptions) -> Feed:
    """The feed that a read asks for.

    Raises NoSuchLogError, DataLossError (a ledger does not exist), UnauthorizedAccessError (wrong password), MetadataStoreError
    and ReadError.
    """
    bookkeeper = client(options.zookeeper)
    if options.log is not None:
        return LogFeed(bookkeeper, options.log, options.password, options.fail_on_data_loss)
    return LedgersFeed(bookkeeper, options.ledgers or (), options.password, options.fail_on_data_loss)


def data_loss(what: str, fail: bool, rows: int | None = None) -> None:
    """Raise DataLossError if ``fail``; else log that the reader goes on without the rows. ``what``: which rows are lost, in
    words."""
    if fail:
        raise DataLossError(
            f"{what}. To go on without them, set option failOnDataLoss to false: they are then skipped and logged"
        )
    them = "them" if rows is None else f"these {rows} rows"
    log.warning("%s; the reader goes on without %s (failOnDataLoss=false)", what, them)


class PassedOver:
    """Counts the rows that planning left out. Each row is counted and logged once, although Spark may plan it twice."""

    def __init__(self, fail: bool) -> None:
        self._fail = fail
        self.rows = 0
        """The number of rows that were left out."""
        self._up_to: dict[str, int] = {}

    def add(self, what: str, source: str, first: int, last: int) -> None:
        """Count the rows of ``source`` from ``first`` to before ``last``, which are gone. Raises DataLossError if the read is to
        fail."""
        rows = last - max(first, self._up_to.get(source, first))
        if rows > 0:
            data_loss(what, self._fail, rows)
            self.rows += rows
            self._up_to[source] = last


def _another_kind(what: str, offset: Offset) -> ConfigurationError:
    return ConfigurationError(
        f"this query reads {what}, but its checkpoint is at {offset}, which is a place in something else: "
        "give each query a checkpointLocation of its own"
    )


class LogFeed:
    """The rows of a log. It keeps the commits of the last plan, so that the next plan goes on from there."""

    def __init__(self, bookkeeper: BookKeeper, name: str, password: bytes, fail_on_data_loss: bool) -> None:
        self._bookkeeper, self._password = bookkeeper, password
        self.name = name
        """The log's name."""
        self.passed_over = PassedOver(fail_on_data_loss)
        self._head = LogReader(bookkeeper, name, password, _AT_THE_END)
        self._ctime_ms = self._head.record.ctime_ms
        self._body: LogReader | None = None
        self._more: Iterator[PlacedCommit] = iter(())
        self._planned: deque[PlacedCommit] = deque()
        self._planned_from = 0
        """``_planned``, and after it ``_more``, have all commits from this row on."""

    def earliest(self) -> Offset:
        return self.at(self._head.record.first_position)

    def newest(self) -> Offset:
        deque(self._head.commits(), maxlen=0)
        return self.at(self._head.position.rows)

    def at(self, position: int) -> Offset:
        """The offset before row ``position``."""
        return {"position": position, "log": self._ctime_ms}

    def wait(self, seconds: float) -> None:
        self._head.wait(seconds)

    def check(self, offset: Offset) -> None:
        if offset.keys() != {"position", "log"}:
            raise _another_kind(f"log {self.name!r}", offset)
        if offset["log"] != self._ctime_ms:
            raise made_anew(self.name, offset["position"])

    def limited(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        first, last = start["position"], end["position"]
        rows = rows_within(self._pieces(first, last), limit.rows, limit.size)
        # Rows that are gone count towards no limit: they are left out together with the rows after them.
        return end if rows is None else self.at(rows)

    def pieces(self, start: Offset, end: Offset) -> list[SizedPiece]:
        first, last = start["position"], end["position"]
        found: list[SizedPiece] = []
        at = first
        for piece, size in self._pieces(first, last):
            self._passed_over(at, piece.position)
            found.append((piece, size))
            at = piece.position + piece.rows
        self._passed_over(at, last)
        return found

    def _passed_over(self, at: int, following: int) -> None:
        if at < following:
            what = f"log {self.name!r}: rows {at} to {following - 1} were truncated, and were not read before"
            self.passed_over.add(what, self.name, at, following)

    def _pieces(self, first: int, last: int) -> Iterator[SizedPiece]:
        """The rows from ``first`` to before ``last`` that are still there. Raises ReadError if their commits can't be found."""
        if first >= last:
            return
        body = self._body
        if body is None or first < self._planned_from:
            body = LogReader(self._bookkeeper, self.name, self._password, first)
            if body.record.ctime_ms != self._ctime_ms:
                raise made_anew(self.name, first)
            self._body = body
            self._more, self._planned, self._planned_from = iter(()), deque(), first
        while self._planned and self._planned[0].after.rows <= first:
            self._planned_from = self._planned.popleft().after.rows
        kept = max(first, body.record.first_position)
        for placed in self._planned:
            yield from positioned(placed.commit.ranges, placed.before.rows, kept, last)
        while body.position.rows < last:
            following = next(self._more, None)
            if following is None:
                self._more = body.commits(known_rows=last)
                following = next(self._more, None)
                if following is None:
                    raise ReadError(
                        f"log {self.name!r}: as far as its commits can be read now, its commits end at row "
                        f"{body.position.rows}, but there were rows up to {last - 1}. Nothing is left out; try again"
                    )
            if following.after.rows > first:
                self._planned.append(following)
                yield from positioned(following.commit.ranges, following.before.rows, kept, last)


class LedgersFeed:
    """The entries of some ledgers, each up to its last add confirmed (LAC)."""

    def __init__(
        self, bookkeeper: BookKeeper, ledger_ids: tuple[int, ...], password: bytes, fail_on_data_loss: bool
    ) -> None:
        self._handles: dict[int, ReadHandle] = {}
        self._gone: set[int] = set()
        """Ledgers that were deleted before they were closed. They grow no more."""
        self._fail_on_data_loss = fail_on_data_loss
        self.passed_over = PassedOver(fail_on_data_loss)
        for ledger_id in ledger_ids:
            try:
                self._handles[ledger_id] = bookkeeper.open_ledger_no_recovery(ledger_id, password=password)
            except NoSuchLedgerError:
                data_loss(
                    f"there is no ledger {ledger_id}; it was deleted, or it is in another cluster", fail_on_data_loss
                )

    def earliest(self) -> Offset:
        return {str(ledger_id): 0 for ledger_id in self._handles}

    def newest(self) -> Offset:
        found: Offset = {}
        for ledger_id, handle in self._handles.items():
            try:
                if ledger_id not in self._gone:
                    handle.read_last_add_confirmed()
            except NoSuchLedgerError:
                data_loss(_deleted(ledger_id, f"from {handle.last_add_confirmed + 1} on"), self._fail_on_data_loss)
                self._gone.add(ledger_id)
            found[str(ledger_id)] = handle.last_add_confirmed + 1
        return found

    def wait(self, seconds: float) -> None:
        growing = [
            handle
            for ledger, handle in self._handles.items()
            if ledger not in self._gone and not handle.metadata.closed
        ]
        # ``newest`` reports a ledger that was deleted meanwhile.
        with suppress(NoSuchLedgerError):
            for handle in growing:
                known = handle.last_add_confirmed
                if handle.read_last_add_confirmed_and_entry(known + 1, timeout=seconds / len(growing))[0] > known:
                    return

    def check(self, offset: Offset) -> None:
        # No ledger id is used twice, so an offset needs no more than the right form.
        if not all(ledger.isdigit() for ledger in offset):
            raise _another_kind("ledgers", offset)

    def limited(self, start: Offset, end: Offset, limit: Limit) -> Offset:
        waiting = {ledger: last - start.get(ledger, 0) for ledger, last in end.items()}
        total = sum(waiting.values())
        allowed = total
        if limit.rows is not None:
            allowed = min(allowed, limit.rows)
        if limit.size is not None and total:
            size = sum(size for _, size in self.pieces(start, end))
            allowed = min(allowed, int(limit.size * total / max(size, 1)))
        if allowed >= total:
            return end
        shares = {ledger: count * allowed // total for ledger, count in waiting.items()}
        if not any(shares.values()):
            shares[max(waiting, key=waiting.__getitem__)] = 1
        return {ledger: start.get(ledger, 0) + share for ledger, share in shares.items()}

    def pieces(self, start: Offset, end: Offset) -> list[SizedPiece]:
        ranges = []
        for ledger, last in end.items():
            first = start.get(ledger, 0)
            handle = self._handles.get(int(ledger))
            if first >= last:
                continue
            try:
                if handle is None:
                    raise NoSuchLedgerError
                handle.confirm(last - 1)
                size = _size(handle, first, last)
            except NoSuchLedgerError:
                self.passed_over.add(_deleted(int(ledger), f"{first} to {last - 1}"), ledger, first, last)
            else:
                ranges.append(EntryRange(handle.ledger_id, first, last - 1, last - first, size))
        return list(positioned(ranges))


def _deleted(ledger_id: int, entries: str) -> str:
    return f"entries {entries} of ledger {ledger_id} were to be read, and the ledger was deleted"


def _size(handle: ReadHandle, first: int, last: int) -> int:
    """About the bytes of payload from entry ``first`` to before entry ``last``: their number times the average of all before
    ``last``."""
    if handle.metadata.closed and last == handle.last_add_confirmed + 1:
        length = handle.length
    else:
        # An entry has the length of the ledger up to and with itself.
        length = next(handle.read(last - 1, last - 1)).length
    return length * (last - first) // last

"""Feeds: the entries between two offsets, now or as they grow. A feed is a log or a set of ledgers.

Law: an offset names the same entries for ever, and proves that the entries before it are confirmed. All entries between two
offsets are planned, or a DataLossError names the missing entries with the reason; entries whose commit excludes them by option
``where`` are not missing (``spark.where.choosing``). With ``failOnDataLoss`` false, truncated, deleted or lost entries
(``logs.feeds.gaps``) are logged with their number and left out; temporarily unreadable entries are an error. The query's progress
counts entries left out by planning (``PassedOver``); losses seen by a task are in its executor's log.

Spark keeps offsets in its checkpoints, as JSON:

* of a log see ``logs.feeds.log_feed``;
* of ledgers ``{"<ledger id>": the next entry id, …}``.

Sources: docs/decisions/logs.md, docs/decisions/lanes.md; Spark's Kafka source for ``failOnDataLoss`` and the share of each ledger
or lane in a limited micro-batch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from bookspark.errors import NoSuchLedgerError, ReadError
from bookspark.logs.feeds.log_feed import Limit, LogFeed, Offset, another_kind
from bookspark.logs.feeds.lost_rows import PassedOver, data_loss
from bookspark.logs.feeds.times import Times
from bookspark.logs.rows.splits import SizedPiece, positioned
from bookspark.protocol.logs.commits import EntryRange
from bookspark.protocol.logs.lanes import LaneId, lane_name, lane_of, rows_before
from bookspark.spark.options.places import Place
from bookspark.spark.options.source_options import TIMESTAMP, SourceOptions
from bookspark.spark.process_client import client

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.client.reading.read_handle import ReadHandle


def feed(options: SourceOptions) -> Feed:
    """The feed of a read.

    Raises NoSuchLogError, DataLossError (a ledger does not exist), UnauthorizedAccessError (wrong password), MetadataStoreError
    and ReadError.
    """
    bookkeeper = client(options.zookeeper)
    if options.log is not None:
        with_times = TIMESTAMP in options.added
        log = None if options.log_id is None else LaneId(options.log_id, 0, lane_of(options.log)[0])
        return LogFeed(bookkeeper, options.log, options.password, options.fail_on_data_loss, with_times, log)
    return LedgersFeed(bookkeeper, options.ledgers or (), options.password, options.fail_on_data_loss)


def chosen_place(source: Feed, option: str, wanted: Place, otherwise: Offset, newest: Offset) -> Offset:
    """The offset before row ``wanted``, before the rows ``wanted`` of lanes, or before the first row of the times ``wanted``;
    ``otherwise`` if it is a word, and for lanes without a name in it.

    Raises ReadError if a lane has fewer rows: a read up to a row has all rows before it, and future rows are no place to start
    from. Raises ConfigurationError if the log has several lanes and ``wanted`` is a row, or names a missing lane.
    """
    if isinstance(wanted, str):
        return otherwise
    assert isinstance(source, LogFeed), "options refuse other places of ledgers"
    if isinstance(wanted, Times):
        return source.at_times(wanted, otherwise)
    offset = source.at(wanted, option) if isinstance(wanted, int) else source.at_rows(wanted, otherwise)
    ends = source.all_rows(newest)
    for lane, row in rows_before(offset).items():
        rows = ends.get(lane, 0)
        if row > rows:
            name = source.name if isinstance(wanted, int) else lane_name(source.name, lane)
            raise ReadError(
                f"log {name!r} has {rows} rows as far as its bookies tell now, and {option} {row} asks for more: start again "
                f"when they are committed, or leave {option} out"
            )
    return offset


class LedgersFeed:
    """The entries of some ledgers, each up to its last add confirmed (LAC). The methods are those of ``LogFeed``, but ``wait``
    always returns True."""

    def __init__(
        self, bookkeeper: BookKeeper, ledger_ids: tuple[int, ...], password: bytes, fail_on_data_loss: bool
    ) -> None:
        self._handles: dict[int, ReadHandle] = {}
        self._gone: set[int] = set()
        """Ledgers deleted before they were closed. They grow no more."""
        self._fail_on_data_loss = fail_on_data_loss
        self.log, self.choose = None, None
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
        ends: Offset = {}
        for ledger_id, handle in self._handles.items():
            try:
                if ledger_id not in self._gone:
                    handle.read_last_add_confirmed()
            except NoSuchLedgerError:
                data_loss(_deleted(ledger_id, f"from {handle.last_add_confirmed + 1} on"), self._fail_on_data_loss)
                self._gone.add(ledger_id)
            ends[str(ledger_id)] = handle.last_add_confirmed + 1
        return ends

    def wait(self, seconds: float) -> bool:
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
                    return True
        return True

    def check(self, offset: Offset) -> None:
        # Ledger ids are never used twice, so only the form of an offset can be wrong.
        if not all(ledger.isdigit() for ledger in offset):
            raise another_kind("ledgers", offset)

    def rows(self, start: Offset, end: Offset) -> int:
        return sum(max(0, last - start.get(ledger, 0)) for ledger, last in end.items())

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

    def close(self) -> None:
        """Do nothing: ledgers have no watches here."""


Feed = LogFeed | LedgersFeed


def _deleted(ledger_id: int, entries: str) -> str:
    return f"entries {entries} of ledger {ledger_id} were to be read, and the ledger was deleted"


def _size(handle: ReadHandle, first: int, last: int) -> int:
    """Approximate bytes of payload from entry ``first`` to before entry ``last``: their number times the average of all before
    ``last``."""
    if handle.metadata.closed and last == handle.last_add_confirmed + 1:
        length = handle.length
    else:
        # An entry records the length of the ledger up to and with itself.
        length = next(handle.read(last - 1, last - 1)).length
    return length * (last - first) // last

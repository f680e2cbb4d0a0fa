"""The ledgers of a producer: opened, closed, settled and taken over, one after another.

Law: rows go only to the ledger that the newest commit of the lane opened. The next commit comes only after that ledger is closed,
by its producer or by the successor's recovery, so its rows are final. After a commit with unknown outcome appends end: rows in a
ledger that no commit opened would be lost.

After a change of the log's options a thread creates the next ledger beside the appends; rows wait only for the close and the
commit. An unneeded ledger is deleted; after a crash it is an orphan.

For one thread at a time. Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from time import time_ns
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import (
    BookKeeperError,
    LedgerFencedError,
    LedgerRecoveryError,
    MetadataStoreError,
    NoSuchLedgerError,
)
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.log_run import CLOSE_SECONDS_MAX, LogRun
from bookspark.logs.chain.registry import RECORDS, LogRegistry
from bookspark.logs.chain.stamps import stamp_of
from bookspark.logs.rows.encodings import stamped_label, value_encoding
from bookspark.logs.rows.value_rows import value_encoder
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.log_record import DATA_ROLE, LogRecord, LogTakenOverError
from bookspark.store.decisions.seam import decided

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper, LedgerHandle
    from bookspark.store.client.writing.ledger_handle import SoleAppender

log = logging.getLogger(__name__)

LEDGER_BYTES_MAX, LEDGER_MS_MAX = 1 << 30, 3_600_000
"""Size and age after which the next append closes the ledger and opens another."""


class Numbers:
    """Sequence numbers of the open ledger's rows: each is one above the previous, unless the caller gave a higher number."""

    def __init__(self, last: int) -> None:
        self._runs = deque([(-1, last + 1)])
        """(first entry id, sequence number − entry id) of each run of consecutive numbers; entry −1 is the row before the
        ledger."""
        self.more = last + 1
        """Sequence number − entry id, for the next row."""

    def of(self, entry_id: int) -> int:
        """Number of a row: unacknowledged, last acknowledged, or next."""
        first, more = self._runs[-1]
        if entry_id < first:
            more = next(more for first, more in reversed(self._runs) if entry_id >= first)
        return entry_id + more

    def goes_on(self, sequence: int, entry_id: int, acknowledged: int) -> None:
        """Set the next row's number. ``acknowledged``: count of acknowledged rows."""
        runs = self._runs
        while len(runs) > 1 and runs[1][0] < acknowledged:
            runs.popleft()
        if runs[-1][0] == entry_id:
            # The row that should get this number was not appended.
            runs.pop()
        self.more = sequence - entry_id
        runs.append((entry_id, self.more))


class At(NamedTuple):
    """Place of a lane's next row."""

    handle: LedgerHandle | None
    """The open ledger; None before the first row."""
    rows: int
    """Rows of the lane before this ledger."""
    numbers: Numbers
    appender: SoleAppender | None = None

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged rows in the ledger."""
        return 0 if self.handle is None else self.handle.last_add_confirmed + 1


class ProducerLedgers:
    """The ledgers of the producer ``run``, the owner of its lane."""

    def __init__(self, bookkeeper: BookKeeper, run: LogRun, record: LogRecord, writer: str) -> None:
        """Fences the ledgers that an earlier producer left. Raises LogTakenOverError, LedgerRecoveryError, and the errors of
        opening a ledger."""
        self._bookkeeper, self._run, self._writer, self._record = bookkeeper, run, writer, record
        self.encode: Callable[[bytes], bytes] | None = None
        """Compresses a value for the open ledger; None: no compression."""
        self.committer = Committer(bookkeeper, run, tells_soon=True)
        header = self.committer.recover()
        self.at = At(None, header.position.rows, Numbers(header.last_batches.get(writer, -1)))
        """Place of the next row; replaced as a whole."""
        self.bytes_left = self.due_ms = 0
        """Bytes that the open ledger may still take, and the time at which the next ledger is due."""
        self.time_ms = header.time_ms
        """Time of the newest row or commit, in ms since 1970."""
        self._wanted = record
        """Last read record of the lane; ``_record`` is the record by which the open ledger was created."""
        self._changed, self._old_ms = False, 0
        """May the lane's record differ from ``_wanted``? And the time at which the open ledger is too old."""
        self._ahead: Future[tuple[LogRecord, LedgerHandle]] | None = None
        """The next ledger and its record, if its creation has begun."""
        self._unsettled: tuple[EntryRange, ...] = ()
        """Rows of the closed ledger that the newest commit opened."""
        self._taken_over = header.open_ledger is not None
        """Did an earlier producer's commit, the newest one, open a ledger?"""
        if header.open_ledger is not None:
            self._take_over(header.open_ledger)

    def now_ms(self) -> int:
        """Time of the next row, in ms since 1970; never decreases, although clocks jump."""
        now_ms = time_ns() // 1_000_000
        if now_ms < self.time_ms:
            return self.time_ms
        self.time_ms = now_ms
        return now_ms

    @property
    def is_due(self) -> bool:
        """Is the next ledger due? Raises NoSuchLogError if the log was deleted, and LogTakenOverError if the lane has ended or
        has another owner."""
        handle = self.at.handle
        if self._changed:
            self._learn_options()
            self._make_ahead()
        made = self._ahead is not None and self._ahead.done()
        if handle is None or (self.bytes_left > 0 and self.time_ms < self.due_ms and not made):
            return handle is None
        # A guaranteed ledger can't be closed while copies are missing, but still accepts rows.
        return (
            self._record.options.replication is not Replication.GUARANTEED
            or handle.last_add_fully_replicated == handle.last_add_pushed
        )

    def open_next(self, seconds: float) -> None:
        """Close the open ledger, if any, within ``seconds``, and open the next ledger. After an error of the commit the caller
        must append nothing. Raises the errors of ``close``, NotEnoughBookiesError and MetadataStoreError."""
        record, handle = self._made_ahead(seconds)
        try:
            if handle is None:
                self._learn_options()
                record = self._wanted
            if self.at.handle is not None:
                self._close_ledger(self.at.handle, seconds)
            if handle is None:
                handle = self._make(record)
            self._commit(handle.ledger_id)
        except BaseException:
            if handle is not None:
                with suppress(BookKeeperError):
                    handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)
            raise
        handle.tell_last_add_confirmed_soon()
        self._record, self.encode = record, _encoder(record)
        self.at = self.at._replace(handle=handle, appender=handle.sole_appender())
        self.bytes_left = LEDGER_BYTES_MAX
        self._old_ms = self.due_ms = self.time_ms + LEDGER_MS_MAX
        # The options changed while the ledger was opened, or the commit itself changed the record.
        if self._changed:
            self.due_ms = 0
        else:
            self._make_ahead()

    def leave(self) -> None:
        """Stop appending: rows not acknowledged yet fail. The successor settles the rest."""
        self.due_ms = 0
        self._discard_ahead(0.0)
        if self.at.handle is not None:
            with suppress(BookKeeperError):
                self.at.handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)

    def settle(self) -> None:
        """Settle the rows that an earlier producer left, if no row will be appended. Raises LogTakenOverError, and the errors of
        a commit."""
        if self._taken_over:
            self._commit(None)
            self._taken_over = False

    def close(self, seconds: float) -> None:
        """Wait until all rows are acknowledged, at most ``seconds``, and settle them. Raises AddTimeoutError, LogTakenOverError,
        and the errors of a commit."""
        self._discard_ahead(seconds)
        if self.at.handle is not None:
            self._close_ledger(self.at.handle, seconds)
            self._commit(None)

    # -- inside

    def _record_changed(self) -> None:
        """Called from the metadata store's thread. The next append reads the change."""
        self._changed, self.due_ms = True, 0

    def _learn_options(self) -> None:
        """Read the lane's record, and watch it. If the store does not answer, the opening of the next ledger reports that. Raises
        the errors of ``is_due``."""
        self.due_ms, self._changed = self._old_ms, False
        with suppress(MetadataStoreError):
            # Watched before the read, so no change is missed.
            self._bookkeeper.metadata.watch_record(RECORDS, self._run.lane.key, self._record_changed)
            record = LogRegistry(self._bookkeeper.metadata).get(self._run.lane)
            try:
                decided(LogRecord.check_writer, record, self._run.run, self._run.epoch)
            except LogTakenOverError as error:
                raise told(error) from None
            self._wanted = record
        # A guaranteed ledger may have to stay open for a while: the next ledger is due until it is opened.
        if self._ahead is not None and self._ahead.done():
            self.due_ms = 0

    def _make(self, record: LogRecord) -> LedgerHandle:
        """Create a ledger for rows with the options of ``record``."""
        # A row is acknowledged without a commit behind it, so it is synced like a commit.
        options = replace(record.options, ledger_type=LedgerType.PD_JOURNAL)
        label = stamped_label(value_encoding(record))
        return self._run.create_ledger(self._bookkeeper, options, DATA_ROLE, label)

    def _make_ahead(self) -> None:
        """Begin to create the next ledger if its options differ from those of the open ledger, and no creation is under way."""
        record = self._wanted
        if self.at.handle is None or self._ahead is not None or record.options == self._record.options:
            return
        made = Future[tuple["LogRecord", "LedgerHandle"]]()

        def make() -> None:
            try:
                handle = self._make(record)
                # The next append opens the ledger. Set again at the end: a read of the record in between resets it.
                self.due_ms = 0
                made.set_result((record, handle))
            except BaseException as error:
                self.due_ms = 0
                made.set_exception(error)
            self.due_ms = 0

        thread = threading.Thread(target=make, name=f"bookspark-next-ledger-{self._run.lane}", daemon=True)
        self._ahead = made
        thread.start()

    def _made_ahead(self, seconds: float) -> tuple[LogRecord, LedgerHandle | None]:
        """The record and the ledger created ahead; the ledger is None if there is none."""
        made, self._ahead = self._ahead, None
        if made is not None:
            try:
                return made.result(seconds)
            except Exception as error:
                log.info("log %s: the next ledger is made anew: %s", self._run.lane, error)
                made.add_done_callback(self._discarded)
        return self._wanted, None

    def _discard_ahead(self, seconds: float) -> None:
        """Delete the ledger created ahead, if any; waits at most ``seconds`` for its creation."""
        made, self._ahead = self._ahead, None
        if made is not None:
            wait((made,), seconds)
            made.add_done_callback(self._discarded)

    def _discarded(self, made: Future[tuple[LogRecord, LedgerHandle]]) -> None:
        if made.exception() is None:
            _, handle = made.result()
            # After a failure the ledger is an orphan.
            with suppress(BookKeeperError):
                handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)
                self._bookkeeper.delete_ledger(handle.ledger_id)

    def _close_ledger(self, handle: LedgerHandle, seconds: float) -> None:
        """Wait until all rows are acknowledged, and close their ledger, so that the next commit counts all of its rows."""
        try:
            handle.close(timeout=seconds)
        except BookKeeperError as error:
            raise told(error) from None
        rows = handle.last_add_confirmed + 1
        self._is_closed(handle.ledger_id, rows, handle.length, self.at.numbers.of(rows - 1))

    def _is_closed(self, ledger_id: int, rows: int, size: int, last_sequence: int) -> None:
        """Record the final rows of the ledger that the newest commit opened."""
        ranges = (EntryRange(ledger_id, 0, rows - 1, rows, size),) if rows else ()
        self._unsettled, self.at = ranges, At(None, self.at.rows + rows, Numbers(last_sequence))

    def _commit(self, open_ledger: int | None) -> None:
        """Commit the settled rows, and open the ledger."""
        run = self._run
        last = self.at.numbers.of(-1)
        commit = Commit(
            self._writer,
            last,
            run.run,
            run.epoch,
            self._unsettled,
            self.now_ms(),
            open_ledger=open_ledger,
            stamped=True,
        )
        self.committer.commit_open(commit)
        self._unsettled = ()

    def _take_over(self, ledger_id: int) -> None:
        """Fence the ledger that an earlier producer of this name left open, and count its rows."""
        try:
            with self._bookkeeper.open_ledger(ledger_id, password=self._run.password) as reader:
                last, size = reader.last_add_confirmed, reader.length
                number = self.at.numbers.of(-1)
                if last >= 0:
                    (entry,) = reader.read(last, last)
                    row = stamp_of(entry.payload, f"ledger {ledger_id}, entry {last}")
                    number, self.time_ms = row.sequence, max(self.time_ms, row.time_ms)
        except NoSuchLedgerError as error:
            raise LedgerRecoveryError(
                f"log '{self._run.lane}': ledger {ledger_id} with its newest rows was deleted, and nobody knows how many there "
                "were; use a producer of another name"
            ) from error
        self._is_closed(ledger_id, last + 1, size, number)


def _encoder(record: LogRecord) -> Callable[[bytes], bytes] | None:
    encoding = value_encoding(record)
    return value_encoder(encoding, record.dictionary) if encoding else None


def told(error: BookKeeperError) -> BookKeeperError:
    """Convert an error for the producer's caller."""
    if isinstance(error, LedgerFencedError | LogTakenOverError):
        return LogTakenOverError(
            f"another producer of this name was made, or its ledger was recovered or its lane ended by hand, and this one has "
            f"ended ({error})"
        )
    return error

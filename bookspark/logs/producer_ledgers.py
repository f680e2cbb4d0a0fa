"""The ledgers of a producer: opened, closed, settled and taken over, one after another.

Law: rows go to the ledger that the newest commit of the lane opened, and to no other. The next commit comes only once that ledger
is closed, by its producer or by the recovery of the next one, so its rows are known and can't become more. If it is not known
whether the log has a commit, nothing is appended any more: rows in a ledger that no commit opened would be lost.

When the log is altered, the next ledger is made beside the appends, in a thread of its own; rows wait only while the open one is
closed and the next one committed. A ledger that was made and is not needed is deleted; after a crash it is an orphan.

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
from bookspark.logs.chain.registry import KIND, LogRegistry
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
"""A ledger that is larger, or older, is closed at the next append, and the next one is opened."""


class Numbers:
    """The sequence numbers of the open ledger's rows: each row's is one above that before it, but where the caller said more."""

    def __init__(self, last: int) -> None:
        self._runs = deque([(-1, last + 1)])
        """From which entry on a number is how much more than the entry's id; entry −1 is the row before the ledger."""
        self.more = last + 1
        """How much more than its entry's id the number of the next row is."""

    def of(self, entry_id: int) -> int:
        """The number of a row that is not acknowledged, of the last one that is, or of the next one."""
        first, more = self._runs[-1]
        if entry_id < first:
            more = next(more for first, more in reversed(self._runs) if entry_id >= first)
        return entry_id + more

    def goes_on(self, sequence: int, entry_id: int, acknowledged: int) -> None:
        """The row after all others has this number. ``acknowledged``: how many rows are."""
        runs = self._runs
        while len(runs) > 1 and runs[1][0] < acknowledged:
            runs.popleft()
        if runs[-1][0] == entry_id:
            # The row that was to have it was not taken.
            runs.pop()
        self.more = sequence - entry_id
        runs.append((entry_id, self.more))


class At(NamedTuple):
    """Where the next row of a lane goes."""

    handle: LedgerHandle | None
    """The open ledger; None before the first row."""
    rows: int
    """The rows of the lane before it."""
    numbers: Numbers
    """The sequence numbers of its rows."""
    appender: SoleAppender | None = None
    """Appends to the open ledger; None if there is none."""

    @property
    def acknowledged(self) -> int:
        """How many of its rows are acknowledged."""
        return 0 if self.handle is None else self.handle.last_add_confirmed + 1


class ProducerLedgers:
    """The ledgers of the producer ``run``, which owns its lane."""

    def __init__(self, bookkeeper: BookKeeper, run: LogRun, record: LogRecord, writer: str) -> None:
        """Fences what an earlier producer left. Raises LogTakenOverError, LedgerRecoveryError, and the errors of opening a
        ledger."""
        self._bookkeeper, self._run, self._writer, self._record = bookkeeper, run, writer, record
        self.encode: Callable[[bytes], bytes] | None = None
        """Compresses a value for the open ledger; None: values stay as they are."""
        self.committer = Committer(bookkeeper, run, tells_soon=True)
        header = self.committer.recover()
        self.at = At(None, header.position.rows, Numbers(header.last_batches.get(writer, -1)))
        """Where the next row goes; replaced as a whole."""
        self.bytes_left = self.due_ms = 0
        """The bytes of rows that the open ledger may still take, and the time at which the next one is due."""
        self.time_ms = header.time_ms
        """The time of the newest row or commit, in ms since 1970."""
        self._wanted = record
        """The lane's record as it was last read; ``_record`` is the one by which the open ledger was made."""
        self._changed, self._old_ms = False, 0
        """Whether the lane's record may be another one than ``_wanted``; when the open ledger is too old."""
        self._ahead: Future[tuple[LogRecord, LedgerHandle]] | None = None
        """The next ledger, and by which record it is made, if it is made already."""
        self._unsettled: tuple[EntryRange, ...] = ()
        """The rows of the ledger that the newest commit opened, once it is closed."""
        self._taken_over = header.open_ledger is not None
        """Whether the newest commit is that of an earlier producer, and opened a ledger."""
        if header.open_ledger is not None:
            self._take_over(header.open_ledger)

    def now_ms(self) -> int:
        """The time of the next row, in ms since 1970: never before that of the row before it, although clocks jump."""
        now_ms = time_ns() // 1_000_000
        if now_ms < self.time_ms:
            return self.time_ms
        self.time_ms = now_ms
        return now_ms

    @property
    def is_due(self) -> bool:
        """Is the next ledger to be opened? Raises NoSuchLogError if the log was deleted, and LogTakenOverError if the lane has
        ended or is another one's."""
        handle = self.at.handle
        if self._changed:
            self._learn_options()
            self._make_ahead()
        made = self._ahead is not None and self._ahead.done()
        if handle is None or (self.bytes_left > 0 and self.time_ms < self.due_ms and not made):
            return handle is None
        # A guaranteed one can't be closed while copies are missing, and takes rows all the same.
        return (
            self._record.options.replication is not Replication.GUARANTEED
            or handle.last_add_fully_replicated == handle.last_add_pushed
        )

    def open_next(self, seconds: float) -> None:
        """Close the open ledger, if there is one, within ``seconds``, and open the next one. After an error of the commit nothing
        may be appended any more. Raises what ``close`` does, NotEnoughBookiesError and MetadataStoreError."""
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
        # It was altered while the ledger was opened, or the commit changed it.
        if self._changed:
            self.due_ms = 0
        else:
            self._make_ahead()

    def leave(self) -> None:
        """Append nothing more: what is not acknowledged at this moment fails. Whoever goes on settles the rest."""
        self.due_ms = 0
        self._discard_ahead(0.0)
        if self.at.handle is not None:
            with suppress(BookKeeperError):
                self.at.handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)

    def settle(self) -> None:
        """Settle what an earlier producer left open; for whoever appends nothing. Raises LogTakenOverError, and the errors of a
        commit."""
        if self._taken_over:
            self._commit(None)
            self._taken_over = False

    def close(self, seconds: float) -> None:
        """Wait until all rows are acknowledged, ``seconds`` at most, and settle them. Raises AddTimeoutError, LogTakenOverError,
        and the errors of a commit."""
        self._discard_ahead(seconds)
        if self.at.handle is not None:
            self._close_ledger(self.at.handle, seconds)
            self._commit(None)

    # -- inside

    def _record_changed(self) -> None:
        """Called from the metadata store's thread. The next append looks what has changed."""
        self._changed, self.due_ms = True, 0

    def _learn_options(self) -> None:
        """Read the lane's record, and be told of later changes. If the store does not answer, that is seen when the next ledger
        is opened. Raises what ``is_due`` does."""
        self.due_ms, self._changed = self._old_ms, False
        with suppress(MetadataStoreError):
            # Before it is read, so no change comes in between.
            self._bookkeeper.metadata.watch_record(KIND, self._run.log, self._record_changed)
            record = LogRegistry(self._bookkeeper.metadata).get(self._run.log)
            try:
                decided(LogRecord.check_writer, record, self._run.run, self._run.epoch)
            except LogTakenOverError as error:
                raise told(error) from None
            self._wanted = record
        # A guaranteed ledger may have to stay for a while: the next one is due until it is opened.
        if self._ahead is not None and self._ahead.done():
            self.due_ms = 0

    def _make(self, record: LogRecord) -> LedgerHandle:
        """A ledger for rows, as ``record`` says."""
        # A row is acknowledged without a commit behind it, so it is synced, as commits are.
        options = replace(record.options, ledger_type=LedgerType.PD_JOURNAL)
        label = stamped_label(value_encoding(record))
        return self._run.create_ledger(self._bookkeeper, options, DATA_ROLE, label)

    def _make_ahead(self) -> None:
        """Begin to make the next ledger, if it is to have other options than the open one, and none is made."""
        record = self._wanted
        if self.at.handle is None or self._ahead is not None or record.options == self._record.options:
            return
        made = Future[tuple["LogRecord", "LedgerHandle"]]()

        def make() -> None:
            try:
                handle = self._make(record)
                # The next append opens it. Twice, because a look at the record between the two sets it otherwise.
                self.due_ms = 0
                made.set_result((record, handle))
            except BaseException as error:
                self.due_ms = 0
                made.set_exception(error)
            self.due_ms = 0

        thread = threading.Thread(target=make, name=f"bookspark-next-ledger-{self._run.log}", daemon=True)
        self._ahead = made
        thread.start()

    def _made_ahead(self, seconds: float) -> tuple[LogRecord, LedgerHandle | None]:
        """The ledger that was made, and its record. Without one the ledger is None."""
        made, self._ahead = self._ahead, None
        if made is not None:
            try:
                return made.result(seconds)
            except Exception as error:
                log.info("log %s: the next ledger is made anew: %s", self._run.log, error)
                made.add_done_callback(self._discarded)
        return self._wanted, None

    def _discard_ahead(self, seconds: float) -> None:
        """Delete the ledger that was made, if there is one; wait for that up to ``seconds``."""
        made, self._ahead = self._ahead, None
        if made is not None:
            wait((made,), seconds)
            made.add_done_callback(self._discarded)

    def _discarded(self, made: Future[tuple[LogRecord, LedgerHandle]]) -> None:
        if made.exception() is None:
            _, handle = made.result()
            # If it fails, the ledger is an orphan.
            with suppress(BookKeeperError):
                handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)
                self._bookkeeper.delete_ledger(handle.ledger_id)

    def _close_ledger(self, handle: LedgerHandle, seconds: float) -> None:
        """Wait until all rows are acknowledged, and close their ledger, so that no row is added to what the next commit says."""
        try:
            handle.close(timeout=seconds)
        except BookKeeperError as error:
            raise told(error) from None
        rows = handle.last_add_confirmed + 1
        self._is_closed(handle.ledger_id, rows, handle.length, self.at.numbers.of(rows - 1))

    def _is_closed(self, ledger_id: int, rows: int, size: int, last_sequence: int) -> None:
        """The ledger that the newest commit opened has these rows, and no more."""
        ranges = (EntryRange(ledger_id, 0, rows - 1, rows, size),) if rows else ()
        self._unsettled, self.at = ranges, At(None, self.at.rows + rows, Numbers(last_sequence))

    def _commit(self, open_ledger: int | None) -> None:
        """Commit what is settled, and open the ledger."""
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
        """Fence the ledger that an earlier producer of this name left open, and learn how many rows it has."""
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
                f"log {self._run.log!r}: ledger {ledger_id} with its newest rows was deleted, and nobody knows how many there "
                "were; use a producer of another name"
            ) from error
        self._is_closed(ledger_id, last + 1, size, number)


def _encoder(record: LogRecord) -> Callable[[bytes], bytes] | None:
    encoding = value_encoding(record)
    return value_encoder(encoding, record.dictionary) if encoding else None


def told(error: BookKeeperError) -> BookKeeperError:
    """The error as a producer's caller is told it."""
    if isinstance(error, LedgerFencedError | LogTakenOverError):
        return LogTakenOverError(
            f"another producer of this name was made, or its ledger was recovered or its lane ended by hand, and this one has "
            f"ended ({error})"
        )
    return error

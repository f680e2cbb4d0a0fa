"""The ledgers of a producer: opened, closed, settled and taken over, one after another.

Law: rows go only to the ledger that the newest commit of the lane opened. The next commit comes only after that ledger is closed,
by its producer or by the successor's recovery, so its rows are final. After a commit with unknown outcome appends end: rows in a
ledger that no commit opened would be lost.

Another client may recover the open ledger (autorecovery, ``bookspark ledger recover``) while the lane stays this producer's. Its
unacknowledged rows are acknowledged if the recovery kept them. The others *move*: they are appended to the next ledger first, in
their order and with their sequence numbers and compression, so each keeps its position in the lane. Their futures follow
(``Moved``). They get the time of that append: readers may have read up to an earlier time already. Until then rows wait in the
recovered ledger's driver, later appends too. If the lane has another owner, they fail with LogTakenOverError. Rows that move
again still complete the futures of each of their ledgers directly, so any number of recoveries may follow one another.

After a change of the log's options a thread creates the next ledger beside the appends; rows wait only for the close and the
commit. An unneeded ledger is deleted; after a crash it is an orphan.

For one thread at a time. Source: docs/decisions/lanes.md.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from math import inf
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    InvalidRowError,
    LedgerRecoveryError,
    MetadataStoreError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadError,
)
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.log_run import CLOSE_SECONDS_MAX, LargerLook, LogRun
from bookspark.logs.chain.registry import RECORDS, LogRegistry
from bookspark.logs.chain.stamps import Stamped, restamped, stamp_of
from bookspark.logs.rows.encodings import stamped_label, value_encoding
from bookspark.logs.rows.value_rows import value_encoder
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.log_record import DATA_ROLE, LogRecord
from bookspark.store.decisions.seam import decided

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper, LedgerHandle
    from bookspark.store.client.reading.read_handle import ReadHandle
    from bookspark.store.client.writing.futures import Watermark
    from bookspark.store.client.writing.ledger_driver import OnFenced
    from bookspark.store.client.writing.ledger_handle import SoleAppender

log = logging.getLogger(__name__)

LEDGER_BYTES_MAX, LEDGER_MS_MAX = 1 << 30, 3_600_000
"""Size and age after which the next append closes the ledger and opens another."""


_ROWS_BACK_MAX = 16
"""Entries of one read, each of up to 16 MiB."""

_Ahead = Future[tuple["LogRecord", "LedgerHandle"] | None]
"""The next ledger and its record. None: bookies are missing for a larger ledger."""


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

    def after(self, entry_id: int) -> Numbers:
        """The numbers of the rows after ``entry_id``, as rows of the next ledger. ``entry_id``: as in ``of``."""
        moved, numbers = entry_id + 1, Numbers(self.of(entry_id))
        numbers._runs += ((first - moved, more + moved) for first, more in self._runs if first >= moved)
        numbers.more = numbers._runs[-1][1]
        return numbers


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
        return 0 if self.handle is None else self.handle.last_add_confirmed + 1


class Moved:
    """Rows of a recovered ledger that are in a later one, or on their way there."""

    def __init__(self, acknowledged: Watermark, last: int, more: int) -> None:
        """``acknowledged``: watermark of the recovered ledger, which completes their futures. ``last``: id of the last of them in
        the later ledger, where the first has id 0. ``more``: an id in the recovered ledger minus that in the later one."""
        self._acknowledged, self._last, self._more = acknowledged, last, more
        self._later: Watermark | None = None

    def follow(self, later: Watermark) -> None:
        """Give these rows the outcome that they have in the ledger of ``later``."""
        self._later = later
        later.call_when(self._last, partial(self._outcome, later))

    def _outcome(self, later: Watermark) -> None:
        # Rows that have moved on follow the ledger where they are now.
        if later is self._later:
            self._acknowledged.advance(min(later.value, self._last) + self._more)
            if later.value < self._last and later.error is not None:
                self.fail(later.error)

    def moves_on(self, kept: int) -> bool:
        """The later ledger was recovered too, up to entry ``kept``. True if some of these rows have to move again."""
        self._acknowledged.advance(min(kept, self._last) + self._more)
        self._later, self._last, self._more = None, self._last - (kept + 1), self._more + kept + 1
        return self._last >= 0

    def fail(self, error: BookKeeperError) -> None:
        self._acknowledged.fail(error)


class Moving(NamedTuple):
    """Rows of a recovered ledger that it lacks, on their way to the next ledger."""

    rows: list[bytes]
    moved: list[Moved]


class ProducerLedgers:
    """The ledgers of the producer ``run``, the owner of its lane."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        run: LogRun,
        record: LogRecord,
        writer: str,
        on_fenced: OnFenced | None = None,
    ) -> None:
        """Fences the ledgers that an earlier producer left. ``on_fenced``: gets ``open_next`` called for a ledger that another
        client recovers. Raises LogTakenOverError, LedgerRecoveryError, NoSuchLogError, and the errors of opening a ledger."""
        self._bookkeeper, self._run, self._writer, self._record = bookkeeper, run, writer, record
        # For operators: errors of a run that lost the lane have this id.
        log.info("log %s: run %s is %s in epoch %d", run.lane, run.run, writer, run.epoch)
        self._on_fenced = on_fenced
        self._end_watch: Callable[[], None] = lambda: None
        self._moving: Moving | None = None
        self._moved: list[Moved] = []
        """Rows of recovered ledgers that began the open ledger."""
        self._recovered_at = self._progress_at = -inf
        """Time of the last recovery by another client, and of the last one, or the first of several in a row, that kept a row."""
        self.encode: Callable[[bytes], bytes] | None = None
        """Compresses a value for the open ledger; None: no compression."""
        self.committer = Committer(bookkeeper, run, tells_soon=True)
        header = self.committer.recover()
        self.at = At(None, header.position.rows, Numbers(header.last_batches.get(writer, -1)))
        """Place of the next row; replaced as a whole."""
        self.bytes_left = self.due_ms = 0
        """Bytes that the open ledger may still take, and the time at which to ask ``is_due``; 0: the next ledger is due."""
        self.time_ms = header.time_ms
        """Time of the newest row or commit, in ms since 1970."""
        self.ahead_ns = bookkeeper.metadata.clock.ahead_ns()
        """The time now minus the monotonic clock; read anew for each ledger."""
        self._wanted = record
        """Last read record of the lane; ``_record`` is the record by which the open ledger was created."""
        self._changed, self._old_ms = False, 0
        """May the lane's record differ from ``_wanted``? And the time at which the open ledger is too old."""
        self._ahead: _Ahead | None = None
        self._look = LargerLook()
        """By ``now_ms``."""
        self._unsettled: tuple[EntryRange, ...] = ()
        """Rows of the closed ledger that the newest commit opened."""
        self._taken_over = header.open_ledger is not None
        """Did an earlier producer's commit, the newest one, open a ledger?"""
        if header.open_ledger is not None:
            self._take_over(header.open_ledger)

    def now_ms(self) -> int:
        """The time now, in ms since 1970. ``time_ms`` becomes the time of the next row: it never decreases, although clocks jump,
        and stands still until now has passed it."""
        now_ms = (monotonic_ns() + self.ahead_ns) // 1_000_000
        if now_ms > self.time_ms:
            self.time_ms = now_ms
        return now_ms

    @property
    def is_fenced(self) -> bool:
        """Has another client fenced the open ledger, whose unacknowledged rows now wait for the next ledger?"""
        appender = self.at.appender
        return appender is not None and appender.driver.fenced and appender.acknowledged.error is None

    @property
    def is_due(self) -> bool:
        """Is the next ledger due? Raises NoSuchLogError if the log was deleted, and LogTakenOverError if the lane has ended or
        has another owner."""
        handle = self.at.handle
        if self._changed:
            self._learn_options()
            self._make_ahead()
        if self._look.is_due(self.now_ms()):
            self._try_larger()
        made = self._ahead is not None and self._is_made(self._ahead)
        if self.is_fenced:
            return True
        # A due look for a larger ledger is no reason to end the open one.
        if handle is None or (self.bytes_left > 0 and self.due_ms and self.now_ms() < self._old_ms and not made):
            return handle is None
        # A guaranteed ledger can't be closed while copies are missing, but still accepts rows.
        return (
            self._record.options.replication is not Replication.GUARANTEED
            or handle.last_add_fully_replicated == handle.last_add_pushed
        )

    def open_next(self, seconds: float) -> None:
        """Close the open ledger, if any, within ``seconds``, and open the next ledger, with the rows that move. After an error
        the caller must append nothing, and call ``fail``. Raises the errors of ``close``, NotEnoughBookiesError and
        MetadataStoreError."""
        handle = None
        try:
            if self._ahead is None or self.is_fenced:
                self._learn_options()
            if self.at.handle is not None:
                self._close_ledger(self.at.handle, seconds)
            record, handle = self._next(seconds)
            self._commit(handle.ledger_id)
        except BaseException:
            self._discard_ahead(0.0)
            if handle is not None:
                with suppress(BookKeeperError):
                    handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)
            raise
        handle.tell_last_add_confirmed_soon()
        encoding = value_encoding(record)
        self._record, self.encode = record, value_encoder(encoding, record.dictionary) if encoding else None
        self.at = self.at._replace(handle=handle, appender=handle.sole_appender(self._on_fenced))
        self.bytes_left = LEDGER_BYTES_MAX
        self.ahead_ns = self._bookkeeper.metadata.clock.ahead_ns()
        now_ms = self.now_ms()
        self._old_ms = now_ms + LEDGER_MS_MAX
        self._look.opened(handle, record.options, now_ms)
        self.due_ms = self._next_due_ms()
        self._move()
        # The options changed while the ledger was opened, or the commit itself changed the record; or rows that move delayed the
        # ledger with the changed options.
        if self._changed or (self._ahead is not None and self._is_made(self._ahead)):
            self.due_ms = 0
        else:
            self._make_ahead()

    def leave(self) -> None:
        """Stop appending, and fail the unacknowledged rows; after ``fail``, also the rows of a fenced ledger. The next producer
        of the name settles the ledger."""
        self.due_ms = 0
        self._discard_ahead(0.0)
        if self.at.handle is not None:
            with suppress(BookKeeperError):
                self.at.handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)

    def fail(self, error: BookKeeperError) -> None:
        """Fail the rows of a fenced ledger, and those that move. The next append asks whether a ledger is due."""
        self.due_ms = 0
        if self._moving is not None:
            for moved in self._moving.moved:
                moved.fail(error)
            self._moving = None
        if self.is_fenced and self.at.appender is not None:
            self.at.appender.acknowledged.fail(error)

    def settle(self) -> None:
        """Settle the rows that an earlier producer left, if no row will be appended. Raises LogTakenOverError, and the errors of
        a commit."""
        if self._taken_over:
            self._commit(None)
            self._taken_over = False

    def close(self, seconds: float) -> None:
        """Wait until all rows are acknowledged, at most ``seconds``, and settle them. After an error the caller must call
        ``fail``. Raises AddTimeoutError, LogTakenOverError, LedgerRecoveryError, and the errors of a commit."""
        self._end_watch()
        self._discard_ahead(seconds)
        while self.at.handle is not None:
            self._close_ledger(self.at.handle, seconds)
            if self._moving is None:
                self._commit(None)
            else:
                self.open_next(seconds)
                self._discard_ahead(seconds)

    # -- inside

    def _record_changed(self) -> None:
        """Called from the metadata store's thread. The next append reads the change."""
        self._changed, self.due_ms = True, 0

    def _learn_options(self) -> None:
        """Read the lane's record, and watch it. If the store does not answer, the opening of the next ledger reports that. Raises
        the errors of ``is_due``."""
        # Together: after an interrupt between them the change would be forgotten, or the next ledger due.
        self.due_ms, self._changed = self._next_due_ms(), False
        with suppress(MetadataStoreError):
            # Watched before the read, so no change is missed.
            self._end_watch()
            self._end_watch = self._bookkeeper.metadata.watch_record(RECORDS, self._run.lane.key, self._record_changed)
            record = LogRegistry(self._bookkeeper.metadata).get(self._run.lane)
            decided(LogRecord.check_writer, record, self._run.run, self._run.epoch)
            self._wanted = record
        # A guaranteed ledger may have to stay open for a while: the next ledger is due until it is opened.
        if self._ahead is not None and self._is_made(self._ahead):
            self.due_ms = 0

    def _next_due_ms(self) -> int:
        """The open ledger is too old then, or a look for a larger one is due."""
        return int(min(self._old_ms, self._look.due_ms))

    @staticmethod
    def _is_made(ahead: _Ahead) -> bool:
        """Is there a next ledger, or a reason against it?"""
        return ahead.done() and (ahead.exception() is not None or ahead.result() is not None)

    def _make(self, record: LogRecord, larger_than: LedgerHandle | None = None) -> LedgerHandle | None:
        """Create a ledger for rows with the options of ``record``. None: there are too few bookies for a ledger over more than
        ``larger_than`` bookies."""
        # A row is acknowledged without a commit behind it, so it is synced like a commit.
        options = replace(record.options, ledger_type=LedgerType.PD_JOURNAL)
        label = stamped_label(value_encoding(record))
        if larger_than is not None:
            return self._run.larger_ledger(self._bookkeeper, options, larger_than, DATA_ROLE, label)
        return self._run.create_ledger(self._bookkeeper, options, DATA_ROLE, label)

    def _make_ahead(self) -> None:
        """Begin to create the next ledger if its options differ from those of the open ledger, and no creation is under way."""
        if self._ahead is not None and self._ahead.done() and not self._is_made(self._ahead):
            self._ahead = None
        record = self._wanted
        if self.at.handle is None or self._ahead is not None or record.options == self._record.options:
            return
        self._begin_ahead(record, None)

    def _try_larger(self) -> None:
        """Begin to create a ledger over as many bookies as wanted. If there are too few, the open ledger stays."""
        if self.due_ms:
            self.due_ms = self._next_due_ms()
        self._make_ahead()
        if self.at.handle is not None and self._ahead is None:
            self._begin_ahead(self._wanted, self.at.handle)

    def _begin_ahead(self, record: LogRecord, larger_than: LedgerHandle | None) -> None:
        ahead: _Ahead = Future()

        def make() -> None:
            try:
                handle = self._make(record, larger_than)
                if handle is None:
                    ahead.set_result(None)
                    return
                # The next append opens the ledger. Set again at the end: a read of the record in between resets it.
                self.due_ms = 0
                ahead.set_result((record, handle))
            except BaseException as error:
                self.due_ms = 0
                ahead.set_exception(error)
            self.due_ms = 0

        thread = threading.Thread(target=make, name=f"bookspark-next-ledger-{self._run.lane}", daemon=True)
        self._ahead = ahead
        thread.start()

    def _next(self, seconds: float) -> tuple[LogRecord, LedgerHandle]:
        record, handle = self._wanted, None
        if self._moving is None:
            record, handle = self._made_ahead(seconds)
        elif value_encoding(record) != value_encoding(self._record):
            # The rows that move are encoded already. The changed options come with the ledger after this one.
            options = replace(record.options, compression=self._record.options.compression)
            record = replace(record, options=options, dictionary=self._record.dictionary)
        handle = self._make(record) if handle is None else handle
        assert handle is not None
        return record, handle

    def _made_ahead(self, seconds: float) -> tuple[LogRecord, LedgerHandle | None]:
        """The record and the ledger created ahead; the ledger is None if there is none."""
        made, self._ahead = self._ahead, None
        if made is not None:
            try:
                return made.result(seconds) or (self._wanted, None)
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

    def _discarded(self, made: _Ahead) -> None:
        if made.exception() is None and (result := made.result()) is not None:
            _, handle = result
            # After a failure the ledger is an orphan.
            with suppress(BookKeeperError):
                handle.close(wait=False, timeout=CLOSE_SECONDS_MAX)
                self._bookkeeper.delete_ledger(handle.ledger_id)

    def _close_ledger(self, handle: LedgerHandle, seconds: float) -> None:
        """Wait until all rows are acknowledged, and close their ledger, so that the next commit counts all of its rows. Rows that
        it lacks after a recovery by another client move."""
        try:
            handle.close(timeout=seconds)
        except BookKeeperError:
            if not self.is_fenced:
                raise
            self._is_recovered(handle.ledger_id, seconds)
        else:
            last = handle.last_add_confirmed
            self._is_closed(handle.ledger_id, last + 1, handle.length, self.at.numbers.after(last))

    def _is_recovered(self, ledger_id: int, seconds: float) -> None:
        """Another client has fenced the open ledger: wait for the end of its recovery. Acknowledge the rows that it kept, and
        move the others. Raises LedgerRecoveryError, and AddTimeoutError if for ``seconds`` each ledger was recovered before it
        had a row."""
        _, _, numbers, appender = self.at
        assert appender is not None
        acknowledged = appender.acknowledged
        with self._recovered(ledger_id) as reader:
            last, size = reader.last_add_confirmed, reader.length
        if last < acknowledged.value:
            raise LedgerRecoveryError(
                f"log '{self._run.lane}': ledger {ledger_id} was recovered up to entry {last}, but entry {acknowledged.value} "
                "was acknowledged: bookies lost it. Run the audits, and bring back the bookies that held it"
            )
        now = monotonic()
        if last >= 0 or now - self._recovered_at > seconds:
            self._progress_at = now
        self._recovered_at = now
        if now - self._progress_at > seconds:
            raise AddTimeoutError(
                f"log '{self._run.lane}': for {seconds:g} s other clients recovered each open ledger before it had a row, the "
                f"last one was ledger {ledger_id}; stop them"
            )
        rows = appender.driver.unacknowledged()[last - acknowledged.value :]
        acknowledged.advance(last)
        moved = [one for one in self._moved if one.moves_on(last)]
        self._moving = Moving(rows, [*moved, Moved(acknowledged, len(rows) - 1, last + 1)]) if rows else None
        self._is_closed(ledger_id, last + 1, size, numbers.after(last))
        log.info(
            "log %s: another client recovered ledger %d up to entry %d; %d later rows go to the next ledger",
            self._run.lane,
            ledger_id,
            last,
            len(rows),
        )

    def _move(self) -> None:
        moving, appender = self._moving, self.at.appender
        self._moved = [] if moving is None else moving.moved
        if moving is None or appender is None:
            return
        self.now_ms()
        # Before the append: after an interrupt in between, the futures would wait for ever.
        for moved in moving.moved:
            moved.follow(appender.acknowledged)
        self.bytes_left -= appender.append_all([restamped(row, self.time_ms) for row in moving.rows])
        self._moving = None

    def _is_closed(self, ledger_id: int, rows: int, size: int, numbers: Numbers) -> None:
        """Record the final rows of the ledger that the newest commit opened. ``numbers``: of the rows after them."""
        ranges = (EntryRange(ledger_id, 0, rows - 1, rows, size),) if rows else ()
        self._unsettled, self.at = ranges, At(None, self.at.rows + rows, numbers)

    def _commit(self, open_ledger: int | None) -> None:
        """Commit the settled rows, and open the ledger."""
        run = self._run
        last = self.at.numbers.of(-1)
        self.now_ms()
        commit = Commit(
            self._writer,
            last,
            run.run,
            run.epoch,
            self._unsettled,
            self.time_ms,
            open_ledger=open_ledger,
            stamped=True,
        )
        self.committer.commit_open(commit)
        self._unsettled = ()

    def _take_over(self, ledger_id: int) -> None:
        """Fence the ledger that an earlier producer of this name left open, and count its rows."""
        with self._recovered(ledger_id) as reader:
            last, size = reader.last_add_confirmed, reader.length
            number = self.at.numbers.of(-1)
            if (row := _last_row(reader, last)) is not None:
                number, self.time_ms = row.sequence, max(self.time_ms, row.time_ms)
        self._is_closed(ledger_id, last + 1, size, Numbers(number))

    @contextmanager
    def _recovered(self, ledger_id: int) -> Iterator[ReadHandle]:
        """The ledger, recovered and closed. Raises NoSuchLogError, and LedgerRecoveryError, also if it alone was deleted."""
        try:
            with self._bookkeeper.open_ledger(ledger_id, password=self._run.password) as reader:
                yield reader
        except NoSuchLedgerError as error:
            LogRegistry(self._bookkeeper.metadata).get(self._run.lane)
            raise LedgerRecoveryError(
                f"log '{self._run.lane}': ledger {ledger_id} with its newest rows was deleted, and nobody knows how many there "
                "were; use a producer of another name"
            ) from error


def _last_row(reader: ReadHandle, last: int) -> Stamped | None:
    """The last entry that is a row, up to entry ``last``; None if there is none. Somebody else who knows the password may have
    appended other entries: they keep no producer from its lane."""
    count = 1
    while last >= 0:
        first = max(0, last - count + 1)
        try:
            entries = list(reader.read(first, last))
        except (NoSuchEntryError, ReadError):
            if first == last:
                raise
            # Perhaps the row is behind the unreadable entry.
            count = 1
            continue
        for entry in reversed(entries):
            with suppress(InvalidRowError):
                return stamp_of(entry.payload, f"ledger {entry.ledger_id}, entry {entry.entry_id}")
        last, count = first - 1, min(2 * count, _ROWS_BACK_MAX)
    return None

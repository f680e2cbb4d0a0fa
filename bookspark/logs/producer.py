"""A producer: writes rows of a service to a log, with no Spark.

Law: each producer name has a lane of the log of its own (``service:<name>``, ``chain.lane_choice``). Whoever makes a producer
takes its lane over: the one before it, in whatever process, commits nothing more. Rows of a lane keep the order in which they
were appended, and a row that is acknowledged is committed: readers see it from then on.

The engine is the sink's: rows go to a data ledger, and then one commit names them. Whatever is appended while a commit is under
way goes into the next one, so many appends share two round trips, and a single one takes them alone. The worker's thread alone
makes groups, numbers them and completes futures; ``append`` puts a row into a queue and holds no lock.

A *sequence number* makes a retry safe. Each row has one, above that of the row before it: the caller's, or else the next one. The
log keeps the last one of a lane (``last_sequence``), with the commit that has the row. A row whose number is not above it is in
the log already, so it is not appended again: its future has None. A commit has all rows of its group or none, so a producer that
is started again after a crash goes on behind ``last_sequence``, and each row is there once.

Source: docs/decisions/lanes.md; the names are those of Kafka's idempotent producer, whose broker keeps the last sequence numbers
too.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from bookspark.arguments import EntryId, Payload, WaitSeconds, checks_methods
from bookspark.client.runtime.calls import AwaitableFuture, done_with
from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    ConfigurationError,
    EntryTooLargeError,
    LedgerClosedError,
    LedgerFencedError,
)
from bookspark.logs.chain.committer import Committer
from bookspark.logs.chain.log_run import LogAddress, LogRun
from bookspark.logs.chain.registry import LogRegistry, check_password
from bookspark.logs.rows.data_ledgers import DataLedger, RollPolicy
from bookspark.logs.rows.encodings import PLAIN, ZSTD, ZSTD_DICTIONARY
from bookspark.logs.rows.value_rows import value_encoder
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import lane_name, service_writer
from bookspark.protocol.logs.log_record import Compression, LogRecord, RowFormat
from bookspark.threads import Waiters
from bookspark.wire.entry_batch import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    from bookspark.client import BookKeeper

WAITING_BYTES_MAX = 32 << 20
"""How many bytes of rows may wait for their commit. An append waits while there are more."""
GROUP_ROWS_MAX = 10_000
GROUP_BYTES_MAX = 8 << 20
"""The most rows, and about the most bytes, of one commit."""
VALUE_BYTES_MAX = PAYLOAD_BYTES_MAX - (64 << 10)
"""The largest row: with compression it may become a little larger."""
log = logging.getLogger(__name__)

_GIVE_UP = (LedgerFencedError, LedgerClosedError, AddTimeoutError)


class RowPosition(NamedTuple):
    """Where a row is in its log, for ever."""

    lane: int
    position: int
    """Its number in the lane, from 0 and without gaps."""


class UnexpectedPositionError(BookKeeperError):
    """A row was to be appended at a position that is not the lane's next one. It is not appended."""


class _Rows(NamedTuple):
    """Rows that were appended together: all of them come into one commit."""

    values: list[bytes]
    size: int
    """Their bytes."""
    sequence: int | None
    expect: int | None
    future: AwaitableFuture[Any]
    answer: Callable[[int], object]
    """The future's result, from the position of the first row."""


@checks_methods
class Producer:
    """The writer of one lane of a log; ``Log.producer`` makes it. Thread-safe.

    An error of the cluster ends it: every row that waits, and every later append, fails with the same error. What was not
    acknowledged may be in the log. Make the producer anew, look at ``last_sequence``, and append what comes behind it.
    """

    def __init__(self, bookkeeper: BookKeeper, log: LogAddress, name: str) -> None:
        registry, self.name = LogRegistry(bookkeeper.metadata), name
        record = registry.get(log.name)
        check_password(record, log.password)
        if record.options.row_format is not RowFormat.VALUE:
            raise ConfigurationError(f"log {log.name!r} keeps rows of several columns: write it with Spark")
        self._writer = service_writer(name)
        lane = registry.begin_lane(log.name, self._writer)
        address = replace(log, name=lane_name(log.name, lane))
        record = registry.claim(address.name, uuid.uuid4().hex, self._writer)
        self.lane = lane
        """The number of its lane."""
        self._run = LogRun.of(address, record)
        self._committer = Committer(bookkeeper, self._run)
        header = self._committer.recover()
        self.last_sequence = header.last_batches.get(self._writer, -1)
        """The sequence number of the last row that is acknowledged; −1: there is none."""
        self.position = header.position.rows
        """How many rows of the lane are acknowledged."""
        encoding = _encoding_of(record)
        self._encode = value_encoder(encoding, record.dictionary)
        self._data = DataLedger(bookkeeper, self._run, record.options, RollPolicy(), encoding)
        self._add_seconds = bookkeeper.context.config.add_timeout_seconds
        self._rows: queue.SimpleQueue[_Rows | None] = queue.SimpleQueue()
        self._bytes, self._lock, self._relieved = 0, threading.RLock(), Waiters()
        self._error: BookKeeperError | None = None
        self._closed = self._ended = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._work, name=f"bookspark-producer-{name}", daemon=True)
        self._thread.start()

    def append(
        self, value: Payload, sequence: EntryId | None = None, expect: EntryId | None = None
    ) -> RowPosition | None:
        """Append a row, and return its position once it is acknowledged: committed, and seen by readers.

        ``value``: its bytes. ``sequence``: its sequence number; None: the next one. ``expect``: the position that it must get, or
        it is not appended. Returns None if a row of that sequence number, or a later one, is in the log already.

        Raises UnexpectedPositionError, EntryTooLargeError, LedgerClosedError (the producer is closed), LogTakenOverError (another
        producer of this name was made), and the errors of the cluster (AddTimeoutError, LedgerRecoveryError,
        NotEnoughBookiesError, MetadataStoreError).
        """
        self._check_may_wait()
        return self.append_async(value, sequence, expect).result()

    def append_async(
        self, value: Payload, sequence: EntryId | None = None, expect: EntryId | None = None
    ) -> AwaitableFuture[RowPosition | None]:
        """The same without waiting for the acknowledgement: a future of the position. Waits while ``WAITING_BYTES_MAX`` bytes of
        rows are not acknowledged, twice ``add_timeout_seconds`` at most, then raises AddTimeoutError."""
        return self._enqueue([value], sequence, expect, lambda position: RowPosition(self.lane, position))

    def append_batch(self, values: Sequence[Payload]) -> range:
        """Append several rows, which come into one commit: all of them are in the log, or none. Returns their positions in the
        lane. Raises what ``append`` does."""
        self._check_may_wait()
        return self.append_batch_async(values).result()

    def append_batch_async(self, values: Sequence[Payload]) -> AwaitableFuture[range]:
        """The same without waiting for the acknowledgement. Waits as ``append_async`` does."""
        if not values:
            return done_with(range(0))
        count = len(values)
        return self._enqueue(list(values), None, None, lambda position: range(position, position + count))

    def close(self, timeout: WaitSeconds | None = None) -> None:
        """Have everything that was appended committed, and close the ledgers. Another producer of this name goes on at once.

        ``timeout``: in seconds; None: as long as appends may take. Raises AddTimeoutError if rows still wait then. What failed
        was told by the futures."""
        if not self._closed:
            self._closed = True
            self._rows.put(None)
        seconds = 3 * self._add_seconds if timeout is None else timeout
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise AddTimeoutError(
                f"producer {self.name!r}: rows are not acknowledged after {seconds:g} s; try close again"
            )

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Producer({self.name!r}, log={self._run.log!r}, position={self.position})"

    # -- inside

    def _check_may_wait(self) -> None:
        if threading.current_thread() is self._thread:
            raise BookKeeperError("a callback of an append must not wait for another one: use append_async")

    def _enqueue(
        self, values: list[bytes], sequence: int | None, expect: int | None, answer: Callable[[int], object]
    ) -> AwaitableFuture[Any]:
        if any(len(value) > VALUE_BYTES_MAX for value in values):
            raise EntryTooLargeError(
                f"a row of {max(map(len, values)):,} bytes is larger than {VALUE_BYTES_MAX:,}, more than a log takes; split it"
            )
        if self._bytes > WAITING_BYTES_MAX and not self._relieved.wait(
            lambda: self._bytes <= WAITING_BYTES_MAX or self._error is not None, 2 * self._add_seconds
        ):
            raise AddTimeoutError(
                f"producer {self.name!r}: {self._bytes:,} bytes of rows have waited for {2 * self._add_seconds:g} s; look at the "
                "bookies (bookspark why)"
            )
        if self._error is not None:
            raise self._error.with_traceback(None)
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"producer {self.name!r} is of process {self._pid}: make another one in this process"
            )
        if self._closed:
            raise LedgerClosedError(f"producer {self.name!r} is closed; make another one")
        rows = _Rows(values, sum(map(len, values)), sequence, expect, AwaitableFuture(), answer)
        # An append can't be taken back, so nobody may cancel it.
        rows.future.set_running_or_notify_cancel()
        with self._lock:
            self._bytes += rows.size
        self._rows.put(rows)
        if self._ended:
            self._refuse_rest()
        return rows.future

    # -- the worker's thread

    def _work(self) -> None:
        more = True
        while more:
            group, more = self._next_group()
            try:
                if self._error is not None:
                    raise self._error
                self._commit(group)
            except BaseException as error:
                self._fail(group, error)
            with self._lock:
                self._bytes -= sum(rows.size for rows in group)
            self._relieved.wake()
        self._ended = True
        self._refuse_rest()
        self._data.close()
        self._committer.close()

    def _refuse_rest(self) -> None:
        """Fail the rows that came together with the close, behind it."""
        with suppress(queue.Empty):
            while True:
                rows = self._rows.get_nowait()
                if rows is not None:
                    rows.future.set_exception(LedgerClosedError(f"producer {self.name!r} was closed meanwhile"))

    def _next_group(self) -> tuple[list[_Rows], bool]:
        """What waits, at least one append, and whether more may come."""
        group: list[_Rows] = []
        count = size = 0
        rows = self._rows.get()
        while rows is not None:
            group.append(rows)
            count, size = count + len(rows.values), size + rows.size
            if count >= GROUP_ROWS_MAX or size >= GROUP_BYTES_MAX:
                return group, True
            try:
                rows = self._rows.get_nowait()
            except queue.Empty:
                return group, True
        return group, False

    def _commit(self, appended: list[_Rows]) -> None:
        group, sequence = self._numbered(appended)
        if not group:
            return
        ranges = self._stored([self._encode(value) for rows in group for value in rows.values])
        run, now_ms = self._run, time.time_ns() // 1_000_000
        # Its own first try may have landed though its answer was lost: then it is a part of the log already.
        self._committer.commit(Commit(self._writer, sequence, run.run, run.epoch, ranges, now_ms))
        position, self.last_sequence = self.position, sequence
        self.position += sum(len(rows.values) for rows in group)
        for rows in group:
            rows.future.set_result(rows.answer(position))
            position += len(rows.values)
        try:
            self._committer.tend(thoroughly=True)
        except BookKeeperError as error:
            # The commit stands. Whoever makes the next producer cleans up.
            log.info("log %s: what earlier producers left is not cleaned up: %s", run.log, error)

    def _numbered(self, appended: list[_Rows]) -> tuple[list[_Rows], int]:
        """What is to be appended, and the sequence number of the last row. The others are told."""
        group: list[_Rows] = []
        last, position = self.last_sequence, self.position
        for rows in appended:
            if rows.sequence is not None and rows.sequence <= last:
                rows.future.set_result(None)
            elif rows.expect is not None and rows.expect != position:
                rows.future.set_exception(
                    UnexpectedPositionError(
                        f"log {self._run.log!r}: the row was to be row {rows.expect}, and the next one is {position}; it is not "
                        "appended. Read what came before it, and decide anew"
                    )
                )
            else:
                last = last + len(rows.values) if rows.sequence is None else rows.sequence
                position += len(rows.values)
                group.append(rows)
        return group, last

    def _stored(self, payloads: list[bytes]) -> tuple[EntryRange, ...]:
        """Have a data ledger take the payloads, acknowledged and synced. A ledger that failed is replaced once."""
        if self._data.due:
            self._data.close()
        for left in (1, 0):
            handle = self._data.handle()
            try:
                ids = handle.append_batch(payloads)
                self._data.sync()
                return (EntryRange(handle.ledger_id, ids[0], ids[-1], len(ids), sum(map(len, payloads))),)
            except _GIVE_UP:
                self._data.close(wait=False)
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _fail(self, group: list[_Rows], error: BaseException) -> None:
        if not isinstance(error, BookKeeperError):
            error = BookKeeperError(f"producer {self.name!r} ended: {type(error).__name__}: {error}")
        self._error = self._error or error
        for rows in group:
            if not rows.future.done():
                rows.future.set_exception(self._error)


def _encoding_of(record: LogRecord) -> str:
    """How a producer's rows become payloads (``rows.encodings``)."""
    if record.options.compression is Compression.NONE:
        return PLAIN
    return ZSTD_DICTIONARY if record.dictionary else ZSTD

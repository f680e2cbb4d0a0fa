"""A producer: writes rows of a service to a log, without Spark.

Law: each producer name has its own lane of the log (``service:<name>``, ``chain.lane_choice``). A new producer takes over the
lane of its name: the previous one, in any process, appends nothing more. Rows of a lane keep the order of their appends. An
acknowledged row is part of the log for ever, and readable at once.

A row is one add to a ledger that a commit of the lane *opened* (``protocol.logs.commits``), so it needs no commit of its own. The
next commit comes when the ledger is large or old, or the producer is closed or replaced. It follows a close or recovery of the
ledger, so it settles exactly the rows that readers saw. Adds are acknowledged after their sync, whatever the log's ledger type:
no commit follows that would wait for it.

A *sequence number* makes a retry safe. Each row's number, the caller's or the next free one, is above that of the previous row.
The row's stamp holds it (``chain.stamps``), and a commit holds that of its last row. After a crash a new producer reads the last
number (``last_sequence``) and the caller continues after it, so each row is there once. A row with a lower number is in the log
already: its future has the result None.

Appends take turns (``Turns``), from the numbering of a row until its ledger has accepted it.

Source: docs/decisions/lanes.md; the names are those of Kafka's idempotent producer, whose broker keeps the last sequence numbers
too.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast, overload

from msgspec import Meta

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    ConfigurationError,
    LedgerClosedError,
    LedgerFencedError,
)
from bookspark.logs.appended import RowFuture, RowPosition, UnexpectedPositionError
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.log_run import LogAddress, LogRun
from bookspark.logs.chain.registry import LogRegistry, check_password
from bookspark.logs.chain.stamps import Headers, plain_stamp, plain_stamps, stamped
from bookspark.logs.producer_ledgers import ProducerLedgers
from bookspark.logs.rows.encodings import VALUE_BYTES_MAX, too_large
from bookspark.protocol.logs.lanes import LaneId, lane_id, service_writer
from bookspark.protocol.logs.log_options import RowFormat
from bookspark.protocol.logs.log_record import LogChangedError
from bookspark.store.client.runtime.calls import AwaitableFuture, done_with
from bookspark.support.arguments import EntryId, Payload, WaitSeconds, checks_itself, checks_methods, judged, taken_by
from bookspark.support.threads import here

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.client.writing.futures import Watermark

log = logging.getLogger(__name__)


# -- Arguments of appends: converted and checked before anything is written (``bookspark.support.arguments``).


SequenceNumber = Annotated[int, Meta(ge=0, le=1 << 62)]
"""Half of the range of a stamp, so that the next free numbers after the largest one fit too."""

_APPEND, _BATCH = "append:", "append_batch:"
_VALUE, _SEQUENCE, _NUMBER, _KEY, _HEADERS, _VALUES = map(
    taken_by, (Payload, SequenceNumber | None, EntryId | None, Payload | None, Headers, Sequence[Payload])
)


def judged_row(
    value: bytes, sequence: int | None, expect: int | None, key: bytes | None, headers: Headers
) -> tuple[bytes, int | None, int | None, bytes | None, Headers]:
    """Convert and check the arguments of an append. Raises InvalidArgumentError and EntryTooLargeError."""
    value, key = judged(_APPEND, "value", _VALUE, value), judged(_APPEND, "key", _KEY, key)
    headers = judged(_APPEND, "headers", _HEADERS, headers)
    size = len(value) + len(key or b"") + sum(len(name) + len(one) for name, one in headers)
    if size > VALUE_BYTES_MAX:
        raise too_large(size)
    sequence = judged(_APPEND, "sequence", _SEQUENCE, sequence)
    return value, sequence, judged(_APPEND, "expect", _NUMBER, expect), key, headers


# -- Turns


Found = TypeVar("Found")


class Turns:
    """The turns of producer ``name``, for one thread at a time; a wait takes at most ``seconds_max``.

    Law: an interrupt leaves no turn behind. CPython runs signal handlers after calls, at the start of functions and at backward
    jumps. So each acquiring call is in a ``try`` that releases the lock, and no such point lies between that ``try`` and the next
    ``try``, which ends with the release. A signal handler that interrupts the holder and wants a turn gets an error, or runs
    within that turn. (``with lock`` would be as safe, but has no deadline.)
    """

    def __init__(self, name: str, seconds_max: float) -> None:
        self._name, self._seconds_max, self._pid = name, seconds_max, os.getpid()
        self.lock = cast(Any, threading.RLock())
        """The lock of the turn. Appends acquire and release it directly, to save calls."""
        self.is_mine: Callable[[], bool] = self.lock._is_owned

    def wait(self) -> None:
        """Take the turn. Raises AddTimeoutError, and LedgerClosedError in a forked process."""
        self.check_process()
        if not self.lock.acquire(timeout=self._seconds_max):
            raise AddTimeoutError(
                f"producer {self._name!r}: another append has waited for {self._seconds_max:g} s; look at the bookies "
                "(bookspark why)"
            )

    def let_go(self) -> None:
        """Release the turn if this thread has it: an error or an interrupt came before its use."""
        if self.is_mine():
            self.lock.release()

    def within(self, call: Callable[[], Found]) -> Found:
        """Call within a turn; a signal handler calls within its own thread's turn. Raises the errors of ``wait``."""
        if self.is_mine():
            return call()
        try:
            self.wait()
        except BaseException:
            self.let_go()
            raise
        try:
            return call()
        finally:
            self.lock.release()

    def interrupted(self) -> BookKeeperError:
        """Error of an append that interrupts another append of its own thread."""
        return BookKeeperError(
            f"producer {self._name!r}: this append interrupted another one, in a signal handler for example; append in "
            "another thread"
        )

    def check_process(self) -> None:
        """Raise LedgerClosedError in a forked process."""
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"producer {self._name!r} is of process {self._pid}: make another one in this process"
            )


# -- The producer


@checks_methods
class Producer:
    """The writer of one lane of a log, made by ``Log.producer``. Thread-safe. ``log_id``: the log at ``log``; None: the one that
    has its name now.

    An error of the cluster ends it: every waiting row and every later append fails. Unacknowledged rows may be in the log: create
    the producer again, read ``last_sequence``, and append the rows after it. A recovery of its ledger by another client ends it
    only if the lane was taken over.

    Without ``close`` it leaves its ledger open, with a ResourceWarning; the next producer of its name continues.
    """

    def __init__(self, bookkeeper: BookKeeper, log: LogAddress, name: str, log_id: LaneId | None = None) -> None:
        registry, self.name = LogRegistry(bookkeeper.metadata), name
        record = registry.get(log_id or log.name)
        check_password(record, log.password)
        if record.options.row_format is not RowFormat.VALUE:
            raise ConfigurationError(f"log {log.name!r} keeps rows of several columns: write it with Spark")
        writer = service_writer(name)
        run, index = uuid.uuid4().hex, LaneIndex(bookkeeper.metadata, lane_id(record))
        while True:
            lane = index.begin(NewLane(writer))
            # If the lane has ended since, the next round gets another lane.
            with suppress(LogChangedError):
                record = registry.claim(lane, run, writer)
                break
        self.lane = lane.number
        self._seconds_max = 2 * bookkeeper.context.config.add_timeout_seconds
        self._log = str(lane)
        # Weak: a dropped producer is freed, although its rows may wait.
        on_fenced = partial(_fenced, weakref.ref(self))
        self._ledgers = ProducerLedgers(bookkeeper, LogRun.of(log, record), record, writer, on_fenced)
        self._turns = Turns(name, self._seconds_max)
        self._lock, self._is_mine = self._turns.lock, self._turns.is_mine
        self._error: BookKeeperError | None = None
        self._stopped = False
        self._answer: Callable[[int], RowPosition]
        self._tending: threading.Thread | None = None
        self._pid, self._process = os.getpid(), here.process

    @property
    def position(self) -> int:
        """Number of acknowledged rows of the lane."""
        at = self._ledgers.at
        return at.rows + at.acknowledged

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last acknowledged row; −1: none."""

        def found() -> int:
            at = self._ledgers.at
            return at.numbers.of(at.acknowledged - 1)

        return self._turns.within(found)

    @overload
    def append(
        self,
        value: Payload,
        sequence: None = None,
        expect: EntryId | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
    ) -> RowPosition: ...

    @overload
    def append(
        self,
        value: Payload,
        sequence: SequenceNumber | None,
        expect: EntryId | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
    ) -> RowPosition | None: ...

    @checks_itself
    def append(
        self,
        value: Payload,
        sequence: SequenceNumber | None = None,
        expect: EntryId | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
    ) -> RowPosition | None:
        """Append a row; returns its position after the acknowledgement, or None if the log already has a row of that sequence
        number or a later one.

        ``value``: its bytes. ``sequence``: its sequence number; None: the next number. ``expect``: append only at this position.
        ``key``, ``headers`` (names and values): stored with the row.

        Raises UnexpectedPositionError, EntryTooLargeError, LedgerClosedError (the producer is closed), LogTakenOverError (another
        producer of this name was made, or its lane ended), NoSuchLogError (the log was deleted), and the errors of the cluster
        (AddTimeoutError, LedgerRecoveryError, NotEnoughBookiesError, MetadataStoreError).
        """
        return self.append_async(value, sequence, expect, key=key, headers=headers).result()

    @checks_itself
    def append_async(
        self,
        value: Payload,
        sequence: SequenceNumber | None = None,
        expect: EntryId | None = None,
        *,
        key: Payload | None = None,
        headers: Headers = (),
    ) -> AwaitableFuture[RowPosition | None]:
        """Like ``append``, without a wait for the acknowledgement. Waits while the client has too many unacknowledged bytes
        (``bytes_in_flight_max``), as ``LedgerHandle.append_async`` does, and while the next ledger is opened."""
        if type(value) is not bytes or not (sequence is None and expect is None and key is None and headers == ()):
            value, sequence, expect, key, headers = judged_row(value, sequence, expect, key, headers)
        elif len(value) > VALUE_BYTES_MAX:
            raise too_large(len(value))
        # Like ``_begin``, but without a call that most rows don't need. The law of ``Turns`` holds for both.
        if self._is_mine():
            raise self._turns.interrupted()
        try:
            if not self._lock.acquire(False):
                self._turns.wait()
        except BaseException:
            self._turns.let_go()
            raise
        try:
            ledgers = self._ledgers
            now_ms = (monotonic_ns() + ledgers.ahead_ns) // 1_000_000
            if now_ms > ledgers.time_ms:
                ledgers.time_ms = now_ms
            if (
                self._stopped
                or now_ms >= ledgers.due_ms
                or ledgers.bytes_left <= 0
                or self._process is not here.process
            ):
                self._check_open()
                ledgers.now_ms()
            _, before, numbers, appender = ledgers.at
            if appender is None:
                # A signal handler has closed it since.
                raise self._is_closed()
            entry_id = appender.driver.next_entry_id
            following = entry_id + numbers.more
            if sequence is not None:
                if sequence < following:
                    return self._repeated(sequence)
                if sequence > following and expect in (None, before + entry_id):
                    numbers.goes_on(sequence, entry_id, ledgers.at.acknowledged)
                    following = sequence
            if expect is not None and expect != before + entry_id:
                return self._unexpected(expect, before + entry_id)
            if ledgers.encode is not None:
                value = ledgers.encode(value)
            if key is None and not headers:
                row = plain_stamp(ledgers.time_ms, following, 0) + value
            else:
                row = stamped(ledgers.time_ms, following, value, key, headers)
            ledgers.bytes_left -= len(row)
            appender.append(row)
            return RowFuture(appender.acknowledged, entry_id, self._answer)  # type: ignore[return-value]
        finally:
            self._lock.release()

    @checks_itself
    def append_batch(self, values: Sequence[Payload]) -> range:
        """Append several consecutive rows; returns their positions in the lane once all are acknowledged. Raises the errors of
        ``append``; then the first rows of the batch may be in the log."""
        return self.append_batch_async(values).result()

    @checks_itself
    def append_batch_async(self, values: Sequence[Payload]) -> AwaitableFuture[range]:
        """Like ``append_batch``, without a wait for the acknowledgement. Waits like ``append_async``."""
        if type(values) is not list or not set(map(type, values)) <= {bytes}:
            values = judged(_BATCH, "values", _VALUES, values)
        if not values:
            return done_with(range(0))
        size = max(map(len, values))
        if size > VALUE_BYTES_MAX:
            raise too_large(size)
        if self._is_mine():
            raise self._turns.interrupted()
        try:
            self._begin()
            ledgers = self._ledgers
        except BaseException:
            self._turns.let_go()
            raise
        try:
            _, before, numbers, appender = ledgers.at
            if appender is None:
                # A signal handler has closed it since.
                raise self._is_closed()
            count, end, first = len(values), before + 1, appender.driver.next_entry_id
            encoded = list(values if ledgers.encode is None else map(ledgers.encode, values))
            stamps = plain_stamps(ledgers.time_ms, first + numbers.more, count)
            ledgers.bytes_left -= appender.append_all(encoded, stamps)
            answer = lambda entry_id: range(end + entry_id - count, end + entry_id)  # noqa: E731
            return RowFuture(appender.acknowledged, first + count - 1, answer)  # type: ignore[return-value]
        finally:
            self._lock.release()

    def close(self, timeout: WaitSeconds | None = None) -> None:
        """Wait until all rows are acknowledged, and close the ledgers. Another producer of this name can continue at once.

        ``timeout``: in seconds; None: the time limit of appends. Raises AddTimeoutError if rows still wait then. Other failures
        are reported by the rows' futures only. Does nothing in a forked process."""
        if os.getpid() != self._pid:
            return
        self._stopped = True
        self._turns.within(partial(self._close_ledgers, timeout))
        if self._tending is not None:
            self._tending.join(self._seconds_max)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """True if the producer can't append: it was closed, an error ended it, or it belongs to another process."""
        appender = self._ledgers.at.appender
        ended = appender is not None and appender.acknowledged.error is not None
        return self._stopped or self._error is not None or ended or os.getpid() != self._pid

    def __reduce__(self) -> Any:
        raise TypeError("a Producer can't be pickled: it is its process's; pickle its Log, and make a producer there")

    def __repr__(self) -> str:
        return f"Producer({self.name!r}, log={self._log!r}, position={self.position})"

    # -- inside

    def _close_ledgers(self, timeout: float | None) -> None:
        try:
            if self._error is None:
                self._ledgers.close(self._seconds_max if timeout is None else timeout)
        except BaseException as error:
            self._failed(error)
            if isinstance(error, AddTimeoutError) or not isinstance(error, BookKeeperError):
                raise
            log.info("producer %r leaves its ledger to the next one of its name: %s", self.name, error)
        finally:
            self._ledgers.committer.close()

    def _repeated(self, sequence: int) -> AwaitableFuture[Any]:
        """A future of None, done when the row of this number, or of a later one, is in the log."""
        at = self._ledgers.at
        if at.appender is None or sequence <= at.numbers.of(at.acknowledged - 1):
            return done_with(None)
        at.appender.send()
        newest = at.appender.driver.next_entry_id - 1
        return RowFuture(at.appender.acknowledged, newest, lambda entry_id: None)

    def _unexpected(self, expect: int, following: int) -> AwaitableFuture[Any]:
        future = AwaitableFuture[Any]()
        future.set_exception(
            UnexpectedPositionError(
                f"log {self._log!r}: the row was to be row {expect}, and the next one is {following}; it is not appended. "
                "Read what came before it, and decide anew"
            )
        )
        return future

    def _begin(self) -> None:
        """Take the turn, with an open ledger for the next row. After an error the caller releases the turn."""
        if not self._lock.acquire(False):
            self._turns.wait()
        ledgers = self._ledgers
        late = ledgers.now_ms() >= ledgers.due_ms
        if self._stopped or late or ledgers.bytes_left <= 0 or self._process is not here.process:
            self._check_open()
            ledgers.now_ms()

    def _check_open(self) -> None:
        """Ensure an open ledger for the next row, or raise."""
        self._turns.check_process()
        self._check_goes_on()
        try:
            is_due = self._ledgers.is_due
        except BookKeeperError as error:
            # Rows appended from now on would be lost.
            self._error = error
            self._ledgers.leave()
            self._failed(error)
            raise
        if is_due:
            self._open_next()
            # A signal handler may have closed it meanwhile.
            self._check_goes_on()

    def _check_goes_on(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._stopped:
            raise self._is_closed()

    def _is_closed(self) -> LedgerClosedError:
        return LedgerClosedError(f"producer {self.name!r} is closed; make another one")

    def _open_next(self) -> None:
        """Open the next ledger. An error ends the producer: the log may or may not have the ledger."""
        try:
            self._ledgers.open_next(self._seconds_max)
            lane, before = self.lane, self._ledgers.at.rows
            self._answer = lambda entry_id: RowPosition(lane, before + entry_id)
        except BaseException as error:
            self._error = self._failed(error)
            raise
        tending = threading.Thread(target=self._tend, name=f"bookspark-producer-{self.name}", daemon=True)
        tending.start()
        # After the start: a signal handler that closes the producer joins this thread.
        self._tending = tending

    def _failed(self, error: BaseException) -> BookKeeperError:
        """Fail the rows for which no other ledger comes. Returns their error."""
        why = error if isinstance(error, BookKeeperError) else BookKeeperError(f"{self!r} ended: {error!r}")
        self._ledgers.fail(why)
        return why

    def _goes_on(self) -> None:
        """In a thread of its own: open the ledger after a fenced one, or fail the rows that wait for it."""
        # A turn lasts for a bounded time, so this wait ends.
        with self._lock:
            if self._ledgers.is_fenced and self._error is None:
                # The rows have the error.
                with suppress(BookKeeperError):
                    self._open_next()
            elif self._error is not None:
                self._ledgers.fail(self._error)

    def _tend(self) -> None:
        try:
            self._ledgers.committer.tend(thoroughly=True)
        except BookKeeperError as error:
            # The next producer cleans up.
            log.info("log %s: remains of earlier producers are not cleaned up: %s", self._log, error)


def _fenced(producer: weakref.ref[Producer], acknowledged: Watermark, error: LedgerFencedError) -> None:
    """Another client has fenced the producer's ledger: have the next one opened (``OnFenced``)."""
    owner = producer()
    if owner is None:
        acknowledged.fail(error)
        return
    owner._ledgers.due_ms = 0
    threading.Thread(target=owner._goes_on, name=f"bookspark-next-ledger-{owner.name}", daemon=True).start()

"""Data ledgers: where the sink's tasks put rows; what an entry holds of them is said in ``rows``.

Law: a range is handed out only once every entry of it is acknowledged and synced, so whatever a commit names is there.
Entries whose outcome is unknown (the ledger was fenced, an ack quorum did not answer in time) are written again to a
new ledger: nobody ever names the first copies. On a VD_JOURNAL ledger acknowledged is not synced: a task has it synced
before it ends, once for all of its rows; if that fails, so does the task, and Spark tries it again.

One ledger per Python worker, log and epoch is kept open over tasks and micro-batches (Spark reuses its workers), and
rolled by size and age. A worker that Spark ends leaves its ledger open: that harms no reader, as committed ranges are
readable as they are, and whoever owns the log later recovers it. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerClosedError, LedgerFencedError
from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.protocol.logs.commits import EntryRange, merged
from bookspark.protocol.logs.log_record import DATA_ROLE, LogOptions
from bookspark.spark.logs.labels import create_labelled, labels
from bookspark.spark.logs.rows import Payloads

if TYPE_CHECKING:
    import pyarrow

    from bookspark.client import BookKeeper, LedgerHandle
    from bookspark.client.writing.futures import AppendFuture

log = logging.getLogger(__name__)

PENDING_BATCHES_MAX = 8
"""Arrow batches of a task that are not acknowledged yet; the client bounds their bytes."""
CLOSE_SECONDS_MAX = 30.0
"""A ledger that is not closed by then is left for recovery: a guaranteed one would go on trying, and Spark waits."""
_GONE = (LedgerFencedError, LedgerClosedError, AddTimeoutError)


class RollPolicy(NamedTuple):
    """When a data ledger is closed and the next one begun."""

    bytes_max: int = 1 << 30
    seconds_max: float = 3600.0


class DataLedger:
    """The open data ledger of this process for one log and epoch, replaced by a new one as ``policy`` says."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        name: str,
        run: str,
        epoch: int,
        options: LogOptions,
        password: bytes,
        policy: RollPolicy,
        encoding: str = "",
    ) -> None:
        self._bookkeeper, self._password, self._policy = bookkeeper, password, policy
        self._options = options
        self._labels = labels(name, epoch, run, DATA_ROLE, encoding)
        self._ledger: LedgerHandle | None = None
        self._opened_at = 0.0

    @property
    def due(self) -> bool:
        """Whether the ledger is large or old enough to be closed."""
        return self._ledger is not None and (
            self._ledger.length >= self._policy.bytes_max
            or time.monotonic() - self._opened_at >= self._policy.seconds_max
        )

    def handle(self) -> LedgerHandle:
        """The ledger to append to."""
        if self._ledger is None:
            self._ledger = create_labelled(self._bookkeeper, self._options, self._password, self._labels)
            self._opened_at = time.monotonic()
        return self._ledger

    @property
    def volatile(self) -> bool:
        """Whether what is acknowledged has still to be synced."""
        return self._options.ledger_type is LedgerType.VD_JOURNAL

    def sync(self) -> None:
        """Have all that is acknowledged synced. If that raises, the ledger is given up."""
        if self._ledger is not None and self.volatile:
            try:
                self._ledger.sync()
            except BookKeeperError:
                self.close(wait=False)
                raise

    def publish(self) -> None:
        """Tell the bookies the LAC, so that readers see all that is acknowledged."""
        if self._ledger is not None:
            try:
                self._ledger.flush_last_add_confirmed()
            except BookKeeperError as error:
                # A commit that names the range is proof enough; only LAC-bound readers wait.
                log.info("data ledger %d: its LAC is not announced: %s", self._ledger.ledger_id, error)

    def close(self, wait: bool = True) -> None:
        """Close the ledger, or with ``wait=False`` give it up: its recovery is then the business of the log's owner."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            try:
                ledger.close(wait=wait, timeout=CLOSE_SECONDS_MAX)
            except BookKeeperError as error:
                log.info("data ledger %d is left for recovery: %s", ledger.ledger_id, error)


class _Pending(NamedTuple):
    ledger_id: int
    future: AppendFuture
    payloads: Payloads


class DataWriter:
    """One task's rows on their way into the data ledger, several Arrow batches at a time."""

    def __init__(self, ledger: DataLedger) -> None:
        self._ledger = ledger
        self._pending: deque[_Pending] = deque()
        self._ranges: list[EntryRange] = []
        self._failed = False

    def append(self, payloads: Payloads) -> None:
        """Append entries, one at least; may return before they are acknowledged."""
        if self._ledger.due:
            self._settle(0)
            self._ledger.sync()
            self._ledger.close()
        self._send(payloads)
        self._settle(PENDING_BATCHES_MAX)

    def finish(self) -> tuple[EntryRange, ...]:
        """Wait until everything is acknowledged and synced; the ranges in the order of the rows."""
        self._settle(0)
        if self._ranges:
            self._ledger.sync()
            self._ledger.publish()
        return merged(self._ranges)

    def _send(self, payloads: Payloads) -> None:
        handle = self._ledger.handle()
        try:
            self._pending.append(_Pending(handle.ledger_id, handle.append_batch_async(payloads.values), payloads))
        except _GONE as error:
            self._begin_anew(handle.ledger_id, error)
            self._send(payloads)

    def _settle(self, pending_max: int) -> None:
        while len(self._pending) > pending_max:
            oldest = self._pending[0]
            try:
                last = oldest.future.result()
            except _GONE as error:
                self._begin_anew(oldest.ledger_id, error)
                continue
            self._pending.popleft()
            values, rows_each = oldest.payloads
            first, rows = last - len(values) + 1, len(values) * rows_each
            self._ranges.append(EntryRange(oldest.ledger_id, first, last, rows, _size(values)))

    def _begin_anew(self, ledger_id: int, error: BookKeeperError) -> None:
        """The kept ledger went bad: send all that is not acknowledged to a new one. Once: then the cluster is bad. Not if rows of
        this task were acknowledged there and never synced: nobody has them any more."""
        log.info("data ledger %d is given up: %s", ledger_id, error)
        self._ledger.close(wait=False)
        unsynced = self._ledger.volatile and any(kept.ledger_id == ledger_id for kept in self._ranges)
        if self._failed or unsynced:
            raise error
        self._failed = True
        again, self._pending = self._pending, deque()
        for item in again:
            self._send(item.payloads)


def _size(values: pyarrow.Array) -> int:
    """Bytes of payload of a binary array without nulls."""
    import pyarrow.compute

    return int(pyarrow.compute.sum(pyarrow.compute.binary_length(values)).as_py())


_open: dict[tuple[int, str, str], tuple[tuple[int, str, int, str], DataLedger]] = {}
"""(pid, zookeeper, log) → ((when it was made, run, epoch, encoding), its data ledger). A Python worker runs one task at a time,
so there is no lock."""


def current_data_ledger(
    bookkeeper: BookKeeper,
    zookeeper: str,
    name: str,
    made: int,
    run: str,
    epoch: int,
    options: LogOptions,
    password: bytes,
    policy: RollPolicy,
    encoding: str,
) -> DataLedger:
    """This process's data ledger for the log that was made at ``made`` (its ctime_ms); that of another one, run, epoch or
    encoding is closed."""
    key = os.getpid(), zookeeper, name
    held_as, held = _open.get(key, (None, None))
    if held is None or held_as != (made, run, epoch, encoding):
        if held is not None:
            held.close()
        held = DataLedger(bookkeeper, name, run, epoch, options, password, policy, encoding)
        _open[key] = (made, run, epoch, encoding), held
    return held

"""Data ledgers: the sink's tasks append rows to them (``encodings`` describes the entries).

Law: a range of entries is returned only when all its entries are acknowledged and synced, so a commit names no entry that could
be lost. Entries with an unknown outcome (the ledger was fenced, or too few bookies answered in time) are appended again to a new
ledger, and no commit ever names the first copies. In a VD_JOURNAL ledger, acknowledged entries may be unsynced: a task syncs the
ledger once before it ends. If the sync fails, the task fails, and Spark runs it again.

Each Python worker keeps one ledger open for each log and epoch, across tasks and micro-batches (Spark reuses its workers), until
the ledger is large or old, or was made over fewer bookies than there are now. The sink closes idle ledgers
(``spark.idle_closing``). A killed worker leaves its ledger open: committed ranges are readable, and a later writer of the log
recovers the ledger. Source: docs/decisions/logs.md.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerClosedError, LedgerFencedError
from bookspark.logs.chain.log_run import CLOSE_SECONDS_MAX, LargerLook, LogRun
from bookspark.logs.rows.encodings import Payloads
from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.protocol.logs.commits import EntryRange, merged
from bookspark.protocol.logs.lanes import LaneId
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import DATA_ROLE

if TYPE_CHECKING:
    import pyarrow

    from bookspark.store.client import BookKeeper, LedgerHandle
    from bookspark.store.client.writing.futures import AppendFuture

log = logging.getLogger(__name__)

PENDING_BATCHES_MAX = 8
"""Limit of a task's unacknowledged Arrow batches. The client limits their bytes."""
_GIVE_UP = (LedgerFencedError, LedgerClosedError, AddTimeoutError)


class RollPolicy(NamedTuple):
    """Limits after which a data ledger is closed and the next ledger created."""

    bytes_max: int = 1 << 30
    seconds_max: float = 3600.0


class DataLedger:
    """This process's open data ledger for one run, replaced by ``policy``."""

    def __init__(
        self, bookkeeper: BookKeeper, run: LogRun, options: LogOptions, policy: RollPolicy, encoding: str = ""
    ) -> None:
        self.run, self.encoding, self.options = run, encoding, options
        self._bookkeeper, self._policy = bookkeeper, policy
        self._ledger: LedgerHandle | None = None
        self._larger: LedgerHandle | None = None
        """The next ledger, if bookies are back that the open one had to do without."""
        self._look, self._opened_at = LargerLook(), 0.0

    @property
    def due(self) -> bool:
        """Has the ledger reached a limit of the policy, or is there a larger one?"""
        ledger, now = self._ledger, time.monotonic()
        if ledger is None:
            return False
        if ledger.length >= self._policy.bytes_max or now - self._opened_at >= self._policy.seconds_max:
            return True
        if self._larger is None and self._look.is_due(int(1000 * now)):
            self._larger = self.run.larger_ledger(self._bookkeeper, self.options, ledger, DATA_ROLE, self.encoding)
            self._look.is_over(int(1000 * time.monotonic()))
        return self._larger is not None

    def handle(self) -> LedgerHandle:
        """The ledger to append to; created if needed."""
        if self._ledger is None:
            self._ledger, self._larger = self._larger, None
            if self._ledger is None:
                self._ledger = self.run.create_ledger(self._bookkeeper, self.options, DATA_ROLE, self.encoding)
            self._opened_at = time.monotonic()
            self._look.opened(self._ledger, self.options, int(1000 * self._opened_at))
        return self._ledger

    @property
    def volatile(self) -> bool:
        """May an acknowledged entry be unsynced?"""
        return self.options.ledger_type is LedgerType.VD_JOURNAL

    def sync(self) -> None:
        """Sync all acknowledged entries. After a failure the ledger is abandoned and the error raised."""
        if self._ledger is not None and self.volatile:
            try:
                self._ledger.sync()
            except BookKeeperError:
                self.close(wait=False)
                raise

    def close(self, wait: bool = True) -> None:
        """Close the ledger. ``wait=False``: abandon it; the log's owner recovers it later."""
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
    """Appends one task's rows to the data ledger, several Arrow batches at a time."""

    def __init__(self, ledger: DataLedger) -> None:
        self._ledger = ledger
        self._pending: deque[_Pending] = deque()
        self._ranges: list[EntryRange] = []
        self._failed = False

    def append(self, payloads: Payloads) -> None:
        """Append one or more entries. May return before they are acknowledged.

        Raises LedgerFencedError, LedgerClosedError or AddTimeoutError if these or earlier entries could not be appended to a new
        ledger either; NotEnoughBookiesError and MetadataStoreError if no new ledger could be created.
        """
        if self._ledger.due:
            self._settle(0)
            self._ledger.sync()
            self._ledger.close()
        self._send(payloads)
        self._settle(PENDING_BATCHES_MAX)

    def finish(self) -> tuple[EntryRange, ...]:
        """Wait until all entries are acknowledged and synced. Returns their ranges, in the order of the rows.

        Raises LedgerFencedError, LedgerClosedError or AddTimeoutError if entries could not be appended to a new ledger either;
        NotEnoughBookiesError and MetadataStoreError if no new ledger could be created; and the error of the sync.
        """
        self._settle(0)
        if self._ranges:
            self._ledger.sync()
        return merged(self._ranges)

    def _send(self, payloads: Payloads) -> None:
        handle = self._ledger.handle()
        try:
            self._pending.append(_Pending(handle.ledger_id, handle.append_batch_async(payloads.values), payloads))
        except _GIVE_UP as error:
            self._begin_anew(handle.ledger_id, error)
            self._send(payloads)

    def _settle(self, pending_max: int) -> None:
        while len(self._pending) > pending_max:
            oldest = self._pending[0]
            try:
                last = oldest.future.result()
            except _GIVE_UP as error:
                self._begin_anew(oldest.ledger_id, error)
                continue
            self._pending.popleft()
            values, rows_each = oldest.payloads
            first, rows = last - len(values) + 1, len(values) * rows_each
            self._ranges.append(EntryRange(oldest.ledger_id, first, last, rows, _size(values)))

    def _begin_anew(self, ledger_id: int, error: BookKeeperError) -> None:
        """The open ledger failed: append all unacknowledged entries to a new ledger. Only once for a task: a second failure is
        the cluster's. Never if acknowledged rows of this task are unsynced: they may be lost, and this object no longer has
        them."""
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
    import pyarrow.compute

    return int(pyarrow.compute.sum(pyarrow.compute.binary_length(values)).as_py())


_open: dict[tuple[int, str, LaneId], DataLedger] = {}
"""(pid, zookeeper, lane) → data ledger. A Python worker runs one task at a time, so there is no lock."""


def current_data_ledger(
    bookkeeper: BookKeeper, run: LogRun, options: LogOptions, policy: RollPolicy, encoding: str
) -> DataLedger:
    """This process's data ledger for ``run``, with payloads of ``encoding``.

    Closes the process's ledger of the same log for another run or encoding, or with other options.
    """
    key = os.getpid(), run.address.zookeeper, run.lane
    held = _open.get(key)
    if held is None or (held.run, held.encoding, held.options) != (run, encoding, options):
        if held is not None:
            held.close()
        held = _open[key] = DataLedger(bookkeeper, run, options, policy, encoding)
    return held

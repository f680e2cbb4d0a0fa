"""An open ledger, for writing: the handle of the one client that created it.

Law: ids are given out in the order of the calls. ``append`` returns once an ack quorum of bookies has the entry, synced (PD) or
in memory (VD, BP-14); ``sync`` once all that was appended before it is synced: the LAC of either. Memory is bounded by
``bytes_in_flight_max``, over what is not acknowledged, not synced (VD) or not on its whole write set (guaranteed) yet. Every wait
has a deadline but one: ``close()`` of a guaranteed ledger keeps trying.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookspark.client.reading.read_handle import ReadHandle
from bookspark.client.runtime.client_context import ClientContext
from bookspark.client.writing.futures import AppendFuture, SyncFuture
from bookspark.client.writing.ledger_driver import LedgerDriver
from bookspark.client.writing.payloads import PayloadRun, runs_of
from bookspark.errors import AddTimeoutError, EntryTooLargeError, LedgerClosedError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, Replication
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.writing.writer import State
from bookspark.wire.entry_batch import PAYLOAD_BYTES_MAX

if TYPE_CHECKING:
    import pyarrow

_END_SECONDS = 15.0
"""What a close that is out of time may take to end: one answer of the metadata store."""

log = logging.getLogger(__name__)


class LedgerHandle(ReadHandle):
    """What ``create_ledger`` returns. Thread-safe; in a forked process it can only read."""

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        super().__init__(context, metadata, version, password)
        self._pid = os.getpid()
        self._driver = LedgerDriver(context, metadata, version, password)
        self._writer, self._cursors = self._driver.writer, self._driver.cursors
        self._striped = metadata.ensemble_size > metadata.write_quorum
        self._io = context.runtime.io
        # Under the lock:
        self._lock = threading.Lock()
        self._next_entry_id = 0
        self._appended_bytes = 0
        context.runtime.add_writer(self._driver)
        self._io.submit(self._driver.want_bookies)

    # -- for users

    @property
    def last_add_confirmed(self) -> int:
        return self._cursors.last_add_confirmed

    @property
    def last_add_synced(self) -> int:
        """The highest id such that an ack quorum has synced every entry up to it: the LAC."""
        return self._cursors.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The highest id that an append was given; −1 if there was none."""
        return self._next_entry_id - 1

    @property
    def last_add_fully_replicated(self) -> int:
        """Of a guaranteed ledger, the highest id such that every entry up to it is on its whole write set; −1 on others."""
        return self._cursors.last_add_fully_replicated

    @property
    def length(self) -> int:
        """Payload bytes up to the last confirmed entry."""
        return self._cursors.length

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    def append(self, payload: bytes) -> int:
        """Append one entry and return its id once an ack quorum has it: synced, or in memory on a VD_JOURNAL ledger.

        Raises LedgerFencedError, LedgerClosedError, AddTimeoutError, UnauthorizedAccessError, EntryTooLargeError.
        """
        self._driver.acknowledged.check_may_wait()
        return self.append_async(payload).result()

    def append_async(self, payload: bytes) -> AppendFuture:
        """Append one entry; the future's result is its id. Waits only while ``bytes_in_flight_max`` bytes are kept."""
        if not isinstance(payload, bytes):
            payload = bytes(memoryview(payload))
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise EntryTooLargeError(
                f"ledger {self.ledger_id}: an entry of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} fit, split it"
            )
        return AppendFuture(self._driver.acknowledged, self._enqueue((payload,), 1, len(payload)))

    def append_batch(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> range:
        """Append all of ``payloads`` (a list of bytes, or a pyarrow binary or string array without nulls) as consecutive
        entries; returns their ids once all are acknowledged. Raises as ``append`` does; some may have been appended then."""
        self._driver.acknowledged.check_may_wait()
        last = self.append_batch_async(payloads).result()
        return range(last - len(payloads) + 1, last + 1)

    def append_batch_async(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> AppendFuture:
        """The same without waiting; the future's result is the id of the last one (−1 at once if there are none)."""
        runs = runs_of(payloads, self._context.config.frame_bytes, self._striped)
        count = len(payloads)
        first = self._enqueue(runs, count, sum(run.byte_length for run in runs)) if count else 0
        return AppendFuture(self._driver.acknowledged, first + count - 1)

    def sync(self, timeout: float | None = None) -> int:
        """Have all that was appended before this call synced by an ack quorum; returns the last synced entry id, which is
        that of the last such append or a later one.

        On a PD_JOURNAL ledger that is what each append waits for anyway. Raises as ``append`` does, and TimeoutError after
        ``timeout`` seconds; without it, as long as the client's add timeout lets it wait.
        """
        return self.sync_async().result(timeout)

    def sync_async(self) -> SyncFuture:
        """The same without waiting."""
        self._check_process()
        last = self.last_add_pushed
        if last > self.last_add_confirmed:
            self._io.submit(self._driver.sync, last)
        return SyncFuture(self._driver.confirmed, last)

    def flush_last_add_confirmed(self) -> int:
        """Tell the bookies the LAC now (explicit LAC), so that readers see the last entry; returns it.

        An idle writer does so by itself within ``explicit_lac_interval_seconds``. Raises AddTimeoutError if not at least an
        ack quorum of bookies took it.
        """
        self._check_process()
        confirmed = self.last_add_confirmed
        answers: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._io.submit(self._driver.tell_lac, lambda _, answer: answers.put(isinstance(answer.response, Positive)))
        taken = 0
        deadline = time.monotonic() + self._context.config.answer_timeout_seconds + 1.0
        try:
            for _ in range(self.metadata.ensemble_size):
                taken += answers.get(timeout=max(0.0, deadline - time.monotonic()))
                if taken >= self.metadata.ack_quorum:
                    return confirmed
        except queue.Empty:
            pass
        raise AddTimeoutError(
            f"ledger {self.ledger_id}: only {taken} bookies took the explicit LAC {confirmed}; try again"
        )

    def close(self, wait: bool = True, timeout: float | None = None) -> None:
        """Wait until all appends are acknowledged and synced, and of a guaranteed ledger on their whole write sets, then close
        the ledger at the last one.

        With ``wait=False``, what is not done at this moment fails. Raises, within ``timeout`` seconds, what the appends
        failed with, or LedgerFencedError if another client closed it elsewhere. The ledger is then still open or being
        recovered, and nothing that was confirmed is lost: ``open_ledger`` closes it; the error's ``unconfirmed`` has the ids that
        were not. Without ``timeout`` that is after the add timeout; a guaranteed ledger whose appends are all acknowledged goes
        on trying until each entry is on ``write_quorum`` bookies, however long that takes, and warns in the log.
        """
        if os.getpid() != self._pid:
            return
        driver = self._driver
        driver.acknowledged.check_may_wait()
        with self._lock:
            driver.closing = True
        if not wait:
            self._io.submit(driver.give_up)
        self._io.submit(driver.pump)
        try:
            if not self._wait_for_end(timeout):
                self._io.submit(driver.end)
                driver.ended.wait(_END_SECONDS)
        finally:
            self._io.submit(driver.leave)
        if self._writer.state is not State.CLOSED:
            error = driver.acknowledged.error or AddTimeoutError(
                f"ledger {self.ledger_id}: the close did not end in time"
            )
            error.unconfirmed = range(self.last_add_confirmed + 1, self.last_add_pushed + 1)
            raise error.with_traceback(None)

    # -- inside, in callers' threads

    def _wait_for_end(self, timeout: float | None) -> bool:
        """Wait for the close. False when the time is over."""
        ended, limit = self._driver.ended, self._context.config.add_timeout_seconds
        if timeout is not None or self.metadata.replication is not Replication.GUARANTEED:
            return ended.wait(limit if timeout is None else timeout)
        while not ended.wait(limit):  # appends that are not acknowledged have their own deadline
            log.warning(
                "ledger %d: its close goes on trying, for entries from %d on are not on %d bookies yet",
                self.ledger_id,
                self.last_add_fully_replicated + 1,
                self.metadata.write_quorum,
            )
        return True

    def _enqueue(self, items: Sequence[bytes | PayloadRun], count: int, byte_length: int) -> int:
        """Give ``count`` entries the next ids, in one run, and let them be sent; returns the first id."""
        self._make_room()
        driver = self._driver
        with self._lock:
            if driver.closing:
                raise LedgerClosedError(f"ledger {self.ledger_id} is closed; append to a new one")
            if driver.acknowledged.error is not None:
                raise driver.acknowledged.error.with_traceback(None)
            first = self._next_entry_id
            self._next_entry_id += count
            self._appended_bytes += byte_length
            driver.outgoing.put(items)
            schedule = not driver.pump_scheduled
            driver.pump_scheduled = True
        if schedule:
            self._io.submit(driver.pump)
        return first

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"ledger {self.ledger_id} was created by process {self._pid}; a ledger has one writer, create another one here"
            )

    def _make_room(self) -> None:
        """Back-pressure: wait while too much is kept."""
        self._check_process()
        config, kept = self._context.config, self._driver.kept
        limit = config.bytes_in_flight_max
        if self._appended_bytes - kept.released_bytes > limit and not self._driver.acknowledged.wait(
            lambda: self._appended_bytes - kept.released_bytes <= limit, config.add_timeout_seconds * 2
        ):
            raise AddTimeoutError(f"ledger {self.ledger_id}: {limit} bytes wait for {self._what_is_missing()}")

    def _what_is_missing(self) -> str:
        cursors = self._cursors
        if cursors.last_add_acknowledged < cursors.last_add_pushed:
            return "an acknowledgement; no bookie makes progress"
        if cursors.last_add_confirmed < cursors.last_add_pushed:
            return "a sync; too few bookies make progress"
        return f"their {self.metadata.write_quorum} copies; bring back the bookies of the ensemble, or start more"

"""An open ledger, for writing: the handle of the one client that created it.

Law: ids are given out in the order of the calls. ``append`` returns once an ack quorum of bookies has the entry: synced on a PD
ledger (persistent durability), in memory on a VD ledger (volatile durability, BP-14). ``sync`` returns once everything that was
appended before it is synced. The LAC (last add confirmed) covers what is acknowledged and synced; the writer decides it, so all
methods of this handle tell the same one. Memory is bounded by ``bytes_in_flight_max``, over what is not acknowledged, on a VD
ledger not synced, or on a guaranteed ledger not on its whole write set. Every wait has a deadline, but ``close()`` of a
guaranteed ledger keeps trying.

A signal handler may use the handle, whatever it interrupts: nobody waits with a lock held, and what the lock guards is changed
without a call in between, where a handler could run (Python runs handlers only at calls and loops).

A handle that is dropped without ``close`` is freed once its appends are acknowledged, with a ResourceWarning, as a file is. The
ledger stays open, as after a crash of its writer: a handle may be dropped because something went wrong.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bookspark.errors import AddTimeoutError, BookKeeperError, EntryTooLargeError, LedgerClosedError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, Replication
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.writing.writer_state import State
from bookspark.store.client.network.connections import Answer
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.client.reading.read_handle import HOLD_SECONDS_MAX, UNFOLLOWED_SECONDS, ReadHandle
from bookspark.store.client.runtime.calls import AwaitableFuture, done_with, in_thread
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.writing.back_pressure import BackPressure
from bookspark.store.client.writing.futures import AppendFuture, SyncFuture
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from bookspark.store.client.writing.payloads import PayloadRun, payload_of, payloads_of, runs_of
from bookspark.store.client.writing.sole_appender import SoleAppender
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX, Entry
from bookspark.support.arguments import EntryId, WaitSeconds, checks_itself, checks_methods
from bookspark.support.threads import check_may_wait

if TYPE_CHECKING:
    import pyarrow

log = logging.getLogger(__name__)


# -- Telling the bookies the LAC (last add confirmed) without an entry, and waiting for as many of them as count.


def told_lac(io: IoLoop, driver: LedgerDriver, seconds: float) -> int:
    """Have the bookies told the LAC now; returns it once an ack quorum of them took it, or at once of a closed ledger.

    Raises AddTimeoutError if fewer did within ``seconds``, the error that ended the ledger, and BookKeeperError in a thread of
    the client's own."""
    check_may_wait()
    confirmed, metadata = driver.cursors.last_add_confirmed, driver.writer.metadata
    answers: queue.SimpleQueue[bool | None] = queue.SimpleQueue()

    def answered(bookie: str, answer: Answer) -> None:
        answers.put(isinstance(answer.response, Positive))

    io.submit(driver.tell_lac, answered, lambda: answers.put(None))
    taken, deadline = 0, time.monotonic() + seconds
    try:
        for _ in range(metadata.ensemble_size):
            took = answers.get(timeout=max(0.0, deadline - time.monotonic()))
            if took is None:
                if driver.shared.acknowledged.error is not None:
                    raise driver.shared.acknowledged.error.with_traceback(None)
                return driver.cursors.last_add_confirmed
            taken += took
            if taken >= metadata.ack_quorum:
                return confirmed
    except queue.Empty:
        pass
    raise AddTimeoutError(
        f"ledger {driver.ledger_id}: only {taken} bookies took the explicit LAC {confirmed}; try again"
    )


# --


_END_SECONDS = 15.0
"""How long a close whose time is over may take to end: one answer of the metadata store."""


@checks_methods
class LedgerHandle(ReadHandle):
    """An open ledger for writing, which ``create_ledger`` returns. Thread-safe. In a forked process it can only read."""

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, version: int, password: bytes) -> None:
        super().__init__(context, metadata, version, password)
        self._pid = os.getpid()
        self._driver = LedgerDriver(context, metadata, version, password)
        self._shared, self._writer, self._cursors = self._driver.shared, self._driver.writer, self._driver.cursors
        self._room = self._driver.room
        self._pressure = BackPressure(metadata, context, self._driver)
        striped = metadata.ensemble_size > metadata.write_quorum
        self._split = partial(runs_of, frame_bytes=context.config.frame_bytes, one_each=striped)
        self._io = context.runtime.io
        self._pump = self._driver.pump
        self._lock = threading.RLock()
        """Guards ``_room.appended``, and what ``SharedWithCallers`` lists."""
        context.runtime.add_writer(self._driver)
        self._io.submit(self._driver.want_bookies)

    # -- what is known of the ledger

    @property
    def last_add_confirmed(self) -> int:
        """The LAC: the highest id such that every entry up to it is acknowledged and synced; −1 if there is none. Once the writer
        has failed and another client has recovered the ledger, it is what ``read_last_add_confirmed`` found, if that is more."""
        return max(self._cursors.last_add_confirmed, self._last_add_confirmed)

    @property
    def last_add_synced(self) -> int:
        """The highest id such that an ack quorum has synced every entry up to it, which is the LAC; −1 if there is none."""
        return self.last_add_confirmed

    @property
    def last_add_pushed(self) -> int:
        """The highest id that an append was given; −1 if there was none."""
        return self._shared.next_entry_id - 1

    @property
    def last_add_fully_replicated(self) -> int:
        """Of a guaranteed ledger, the highest id such that every entry up to it is on its whole write set; −1 on others."""
        return self._cursors.last_add_fully_replicated

    @property
    def length(self) -> int:
        """Payload bytes up to the last confirmed entry."""
        metadata = self.metadata
        return metadata.length if metadata.closed else self._cursors.length

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata as this handle last wrote or saw it."""
        known, writer = self._known, self._writer
        return known.value if known.version > writer.version else writer.metadata

    def read_last_add_confirmed(self) -> int:
        """The LAC. This writer decides it, so it is told without a question to bookies, who hear of it with the next entry.

        Once the writer has failed, another client may recover the ledger and find entries that were not confirmed here. From then
        on, and in a forked process, the bookies are asked, or the metadata of the closed ledger; what this writer had confirmed
        counts as well. A writer that was fenced and has not heard of it tells what it confirmed: no recovery ends the ledger
        before that. Raises ReadError, NoSuchLedgerError and MetadataStoreError, only where others are asked.
        """
        if self._is_writing():
            return self.last_add_confirmed
        self._confirm(self._cursors.last_add_confirmed)
        return super().read_last_add_confirmed()

    def read_last_add_confirmed_and_entry(self, entry_id: EntryId, timeout: WaitSeconds) -> tuple[int, Entry | None]:
        """Wait up to ``timeout`` seconds for ``entry_id`` to be confirmed, by this writer; by others as soon as
        ``read_last_add_confirmed`` would ask them.

        Returns (LAC, the entry), or (LAC, None) if it is not confirmed by then or the ledger was closed before it. Raises
        ReadError if the entry, or the LAC where it is asked for, could not be read; NoSuchEntryError if all replicas say that the
        entry is not there; NoSuchLedgerError if the ledger was deleted; BookKeeperError in a thread of the client's own.
        """
        deadline = time.monotonic() + timeout
        if self._is_writing():
            self._await_confirmed(entry_id, deadline)
        self._confirm(self._cursors.last_add_confirmed)
        return super().read_last_add_confirmed_and_entry(entry_id, max(0.0, deadline - time.monotonic()))

    def _await_confirmed(self, entry_id: int, deadline: float) -> None:
        """Wait until this writer has confirmed the entry, the ledger is closed, by whomever, or the time is over.

        A writer that has nothing to append does not hear that another client recovers its ledger: the metadata tells it."""
        cursors, ended = self._cursors, self._shared.ended
        while True:
            left = deadline - time.monotonic()
            if entry_id <= cursors.last_add_confirmed or ended.is_set() or self._known.value.closed or left <= 0:
                return
            follows = self._follow()
            self._shared.confirmed.wait(
                lambda: (
                    entry_id <= cursors.last_add_confirmed
                    or ended.is_set()
                    or self._known.value.closed
                    or (follows and not self._watching_pid)  # noqa: B023
                ),
                min(left, HOLD_SECONDS_MAX if follows else UNFOLLOWED_SECONDS),
            )

    def _metadata_changed(self, found: Versioned[LedgerMetadata] | None) -> None:
        super()._metadata_changed(found)
        self._shared.confirmed.wake()

    def _is_writing(self) -> bool:
        """Is the writer in this process, and has it not failed?"""
        return os.getpid() == self._pid and self._writer.state is not State.FAILED

    @property
    def closed(self) -> bool:
        """True if nothing can be appended through this handle: it was closed, an error ended it, or it is another process's."""
        shared = self._shared
        return shared.closing or shared.acknowledged.error is not None or os.getpid() != self._pid

    @property
    def _state_told(self) -> str:
        error = self._shared.acknowledged.error
        return (
            super()._state_told
            if error is None or self._writer.state is State.CLOSED
            else f"ended by {type(error).__name__}"
        )

    # -- appends

    @checks_itself
    def append(self, payload: bytes) -> int:
        """Append one entry and return its id once an ack quorum has it: synced, or in memory on a VD_JOURNAL ledger.

        Raises InvalidArgumentError, EntryTooLargeError and LedgerClosedError, and nothing is appended. Raises LedgerFencedError
        if another client opened the ledger, UnauthorizedAccessError if a bookie knows another password, AddTimeoutError after
        ``add_timeout_seconds`` without an acknowledgement, NotEnoughBookiesError if no bookie could take the place of those that
        failed, and MetadataStoreError or NoSuchLedgerError if the ledger's record could not be changed for that; then the entry
        may be part of the ledger or not.
        """
        if type(payload) is not bytes:
            payload = payload_of(payload, "append")
        self._shared.acknowledged.check_may_wait()
        return self.append_async(payload).result()

    @checks_itself
    def append_async(self, payload: bytes) -> AppendFuture:
        """Append one entry without waiting for its acknowledgement; the future's result is its id, or an error of ``append``.

        Waits only while ``bytes_in_flight_max`` bytes are kept. Raises InvalidArgumentError, EntryTooLargeError,
        LedgerClosedError, AddTimeoutError if that wait lasts twice ``add_timeout_seconds``, and the error that ended the ledger,
        if one did.
        """
        payload = self._payload(payload, "append_async")
        return AppendFuture(self._shared.acknowledged, self._enqueue((payload,), 1, len(payload)))

    @checks_itself
    def append_batch(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> range:
        """Append ``payloads`` (a list of bytes, or a pyarrow binary or string array without nulls) as consecutive entries.
        Returns their ids once all are acknowledged.

        Raises InvalidArgumentError for nulls and for what is not binary, and nothing is appended then. Raises the errors of
        ``append`` (EntryTooLargeError, LedgerClosedError, LedgerFencedError, UnauthorizedAccessError, AddTimeoutError,
        NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). After one of the last six, any of the entries may be part
        of the ledger.
        """
        payloads = payloads_of(payloads, "append_batch")
        self._shared.acknowledged.check_may_wait()
        last = self.append_batch_async(payloads).result()
        return range(last - len(payloads) + 1, last + 1)

    @checks_itself
    def append_batch_async(self, payloads: Sequence[bytes] | pyarrow.BinaryArray) -> AppendFuture:
        """Append ``payloads`` as ``append_batch`` takes them, without waiting for their acknowledgement.

        The future's result is the id of the last one, or an error; −1 at once if there are none. Waits only while
        ``bytes_in_flight_max`` bytes are kept. Raises InvalidArgumentError, EntryTooLargeError, LedgerClosedError,
        AddTimeoutError if that wait lasts twice ``add_timeout_seconds``, and the error that ended the ledger, if one did.
        """
        payloads = payloads_of(payloads, "append_batch_async")
        runs = self._split(payloads)
        count = len(payloads)
        first = self._enqueue(runs, count, sum(run.byte_length for run in runs)) if count else 0
        return AppendFuture(self._shared.acknowledged, first + count - 1)

    def sync(self, timeout: WaitSeconds | None = None) -> int:
        """Have everything that was appended before this call synced by an ack quorum. Returns the last synced entry id, which is
        that of the last such append or a later one. On a PD_JOURNAL ledger each append waits for that anyway.

        Raises TimeoutError after ``timeout`` seconds; without it, AddTimeoutError after ``add_timeout_seconds`` without progress.
        Raises LedgerFencedError, UnauthorizedAccessError, NotEnoughBookiesError, MetadataStoreError or NoSuchLedgerError if the
        ledger ends before; then what was not synced may be part of it or not. Raises LedgerClosedError in a forked process.
        """
        return self.sync_async().result(timeout)

    def sync_async(self) -> SyncFuture:
        """Begin a ``sync`` without waiting for it; the future's result is the last synced entry id, or an error of ``sync``.
        Raises LedgerClosedError in a forked process."""
        self._check_process()
        last = self.last_add_pushed
        if last > self._cursors.last_add_confirmed:
            self._io.submit(self._driver.sync, last)
        return SyncFuture(self._shared.confirmed, last)

    def flush_last_add_confirmed(self) -> int:
        """Tell the bookies the LAC now (explicit LAC), so that readers see the last entry; returns the LAC.

        An idle writer does so by itself within ``explicit_lac_interval_seconds``. Of a closed ledger the metadata tells it.
        Raises AddTimeoutError if fewer bookies than an ack quorum took it, LedgerClosedError in a forked process, and the error
        that ended the ledger, if one did.
        """
        self._check_process()
        told = told_lac(self._io, self._driver, self._context.config.answer_timeout_seconds + 1.0)
        return max(told, self._last_add_confirmed)

    def sole_appender(self) -> SoleAppender:
        """Appends for a caller that orders them itself, and is the only one. Not part of the public API: for a log's producer."""
        return SoleAppender(
            self._shared, self._driver, self._pressure, self._io.submit_once, self._split, self._why_ended
        )

    def tell_last_add_confirmed_soon(self) -> None:
        """From now on tell the bookies the LAC (explicit LAC) a millisecond after each confirmation unless an entry tells it,
        so that readers see each entry soon after its acknowledgement."""
        self._driver.tells_soon = True

    def close(self, wait: bool = True, timeout: WaitSeconds | None = None) -> None:
        """Wait until all appends are acknowledged and synced, and of a guaranteed ledger on their whole write sets, then close
        the ledger at the last one. Does nothing in a forked process.

        ``wait=False``: what is not done at this moment fails. ``timeout``: the close fails after this many seconds. Without it
        the close fails after ``add_timeout_seconds``; but a guaranteed ledger whose appends are all acknowledged goes on trying
        until each entry is on ``write_quorum`` bookies, however long that takes, and warns in the log.

        Raises AddTimeoutError when the time is over, LedgerFencedError if another client closed or recovers the ledger, or the
        error that ended the ledger (UnauthorizedAccessError, NotEnoughBookiesError, MetadataStoreError, NoSuchLedgerError). The
        ledger may still be open then. Nothing that was confirmed is lost: ``open_ledger`` recovers and closes it. The error's
        ``unconfirmed`` has the ids that were not confirmed.
        """
        if os.getpid() != self._pid:
            return
        driver, shared = self._driver, self._shared
        shared.acknowledged.check_may_wait()
        with self._lock:
            shared.closing = True
        if not wait:
            self._io.submit(driver.give_up)
        self._io.submit(driver.pump)
        if not self._wait_for_end(timeout):
            self._io.submit(driver.end)
            shared.ended.wait(_END_SECONDS)
        if self._writer.state is not State.CLOSED:
            error = shared.acknowledged.error or AddTimeoutError(
                f"ledger {self.ledger_id}: the close did not end in time"
            )
            error.unconfirmed = range(self.last_add_confirmed + 1, self.last_add_pushed + 1)
            raise error.with_traceback(None)

    close_async = in_thread(close)

    def drain_async(self) -> AwaitableFuture[None]:
        """A future that is done once ``append_async`` need not wait for room: await it before appends in a coroutine, as with the
        ``drain`` of asyncio's streams. Its error is AddTimeoutError if that lasts twice ``add_timeout_seconds``, or
        LedgerClosedError in a forked process. Raises BookKeeperError if the client was closed."""
        self._check_process()
        if self._pressure.is_off:
            return done_with(None)
        return self._calls.begin(self._pressure.wait, self.last_add_pushed, 0, 0)

    def __exit__(self, *exc_info: object) -> None:
        """Close the ledger. If that fails after an error in the ``with`` body, the body's error is raised, with a note of it."""
        failed = exc_info[1] if len(exc_info) > 1 else None
        try:
            self.close()
        except BookKeeperError as error:
            if not isinstance(failed, BaseException):
                raise
            failed.add_note(f"ledger {self.ledger_id} could not be closed either: {error}")

    def __del__(self) -> None:
        # Any thread may run this, also the I/O thread, and in the middle of anything. It must not wait.
        driver: LedgerDriver | None = getattr(self, "_driver", None)
        if driver is None or os.getpid() != self._pid or sys.is_finalizing():
            return
        if not driver.shared.ended.is_set():
            self._io.submit(driver.drop)
            warnings.warn(
                f"ledger {driver.ledger_id} was not closed; use it in a with statement, or call close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    # -- inside, in callers' threads

    def _wait_for_end(self, timeout: float | None) -> bool:
        """Wait for the close; False if the time is over before."""
        ended, limit = self._shared.ended, self._context.config.add_timeout_seconds
        if timeout is not None or self.metadata.replication is not Replication.GUARANTEED:
            return ended.wait(limit if timeout is None else timeout)
        # Appends that are not acknowledged have their own deadline, so this wait goes on.
        while not ended.wait(limit):
            log.warning(
                "ledger %d: its close goes on trying, for entries from %d on are not on %d bookies yet",
                self.ledger_id,
                self.last_add_fully_replicated + 1,
                self.metadata.write_quorum,
            )
        return True

    def _payload(self, payload: bytes, method: str) -> bytes:
        """``payload`` as bytes. Raises InvalidArgumentError and EntryTooLargeError."""
        if type(payload) is not bytes:
            payload = payload_of(payload, method)
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise EntryTooLargeError(
                f"ledger {self.ledger_id}: an entry of {len(payload)} bytes; at most {PAYLOAD_BYTES_MAX} fit, split it"
            )
        return payload

    def _enqueue(self, items: Sequence[bytes | PayloadRun], count: int, byte_length: int) -> int:
        """Give ``count`` entries the next ids, in one run, and let them be sent; returns the first id."""
        self._check_process()
        self._pressure.wait(self.last_add_pushed, count, byte_length)
        shared, room = self._shared, self._room
        put = shared.outgoing.put
        with self._lock:
            # No call but the last: a signal handler that appends, or closes, comes before all of it or after all of it.
            if shared.closing or shared.acknowledged.error is not None:
                raise self._why_ended()
            first = shared.next_entry_id
            shared.next_entry_id += count
            room.appended += byte_length
            put(items)
        self._io.submit_once(self._pump)
        return first

    def _why_ended(self) -> BookKeeperError:
        """Why nothing can be appended any more."""
        error = self._shared.acknowledged.error
        if self._shared.closing or error is None:
            return LedgerClosedError(f"ledger {self.ledger_id} is closed; append to a new one")
        return error.with_traceback(None)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerClosedError(
                f"ledger {self.ledger_id} was created by process {self._pid}; a ledger has one writer, create another one here"
            )
